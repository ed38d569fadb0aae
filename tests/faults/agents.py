"""Agents of the crash suite: a tool of each effect class, whose effects are counted elsewhere.

`EFFECTS_URL` is the effect ledger's, `CASE_FOLDER` the place of the tools' own database.
"""

from __future__ import annotations

import asyncio
import functools
import os
import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from tests.faults import without
from tests.prose import prose
from turnkeeper import Agent, ContextPolicy, Landed, ModelSpec, NotLanded, ToolContext, tool
from turnkeeper.ledger import create_ledger, once_per_key
from turnkeeper.spec import HistoryPolicy
from turnkeeper.testing import AsyncEffects, Effects
from turnkeeper.testing.effects import Arrival

ORDERS = "orders.db"
_CHANGES = """
CREATE TABLE IF NOT EXISTS changes (
    change INTEGER PRIMARY KEY, key TEXT NOT NULL, "order" TEXT NOT NULL, time REAL NOT NULL
)
"""
RETRIES = 5
"""More than the kills: a machine that is too busy may lose attempts that nobody has killed."""
LABEL_CHARACTERS = 40_000
"""More than a result may have inline."""


@tool(effect="read")
async def look(order: str, seconds: float = 0) -> str:
    """Look an order up."""
    await asyncio.sleep(seconds)
    return f"{order}: open"


@tool(effect="idempotent", retries=RETRIES)
async def charge(order: str, ctx: ToolContext) -> str:
    """Charge a card under a key."""
    await _ledger().keyed("charge", ctx.idempotency_key, {"order": order})
    return f"charged {order}"


@tool(effect="read")
def chapter(number: int) -> str:
    """Read a chapter."""
    return f"chapter {number} {prose(number, 2_000)}"


async def find_booking(ctx: ToolContext, args: Mapping[str, Any]) -> Landed | NotLanded:
    """Ask whether it was booked under this key."""
    found = await _ledger().landed("book", ctx.idempotency_key)
    return Landed(f"booked {args['order']}") if found else NotLanded()


@tool(effect="reconcilable", probe=find_booking, retries=RETRIES)
async def book(order: str, ctx: ToolContext, behaviour: str = "") -> str:
    """Book a pickup, each time anew; the first attempt meets the behaviour."""
    how = behaviour if behaviour and ctx.attempt == 1 else None
    await _ledger().probed("book", ctx.idempotency_key, {"order": order}, behaviour=how)
    return f"booked {order}"


@tool(effect="once")
async def mail(order: str, ctx: ToolContext, behaviour: str = "") -> str:
    """Send a letter, each time anew."""
    body = {"order": order, "key": ctx.idempotency_key}
    await _ledger().plain("mail", body, behaviour=behaviour or None)
    return f"mailed {order}"


@tool(effect="idempotent", retries=RETRIES)
def record(order: str, ctx: ToolContext) -> Any:
    """Change a database of our own, once per key."""
    with _orders().begin() as connection, once_per_key(connection, ctx) as effect:
        if effect.is_new:
            connection.execute(
                sa.text('INSERT INTO changes (key, "order", time) VALUES (:key, :order, :time)'),
                {"key": ctx.idempotency_key, "order": order, "time": time.time()},
            )
            effect.receipt = f"recorded {order}"
    return effect.receipt


@tool(effect="idempotent", retries=RETRIES)
def label(order: str, ctx: ToolContext) -> str:
    """Print a label under a key, by a synchronous client; the result is a large one."""
    Effects(os.environ["EFFECTS_URL"]).keyed("label", ctx.idempotency_key, {"order": order})
    return f"label of {order}: ".ljust(LABEL_CHARACTERS, "#")


def recorded_changes(folder: Path) -> list[Arrival]:
    """What `record` has changed in a case, as rows of a ledger."""
    path = folder / ORDERS
    if not path.exists():
        return []
    with closing(sqlite3.connect(path)) as orders:
        rows = orders.execute("SELECT change, key, time FROM changes ORDER BY change").fetchall()
    return [
        Arrival(
            arrival=change,
            kind="keyed",
            name="record",
            key=key,
            digest="",
            body=None,
            time=when,
            applied=True,
            status=200,
            receipt=None,
            behaviour=None,
        )
        for change, key, when in rows
    ]


def _ledger() -> AsyncEffects:
    return AsyncEffects(os.environ["EFFECTS_URL"])


@functools.cache
def _orders() -> sa.Engine:
    engine = sa.create_engine(f"sqlite:///{os.environ['CASE_FOLDER']}/{ORDERS}")
    create_ledger(engine)
    with engine.begin() as connection:
        connection.exec_driver_sql(_CHANGES)
    return engine


clerk = Agent(
    name="clerk",
    model="claude-sonnet-5-5",
    instructions="You are a test.",
    tools=[look, charge, book, mail, record, label],
    # Small, so that a short run continues as new more than once.
    history=HistoryPolicy(events=50),
)
asker = Agent(
    name="asker",
    model="claude-sonnet-5-5",
    instructions="You are a test.",
    tools=[mail],
    on_unknown="wait",
)
reader = Agent(
    name="reader",
    # Small, so that a short run begins more than one epoch.
    model=ModelSpec(name="claude-sonnet-5-5", window=6_000, max_output_tokens=1_000),
    instructions="You are a test.",
    tools=[chapter, charge],
    context=ContextPolicy(keep_turns=2),
)

without.switch_off(os.environ.get("WITHOUT", ""), book)
