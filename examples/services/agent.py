"""The agent that the samples call: it refunds orders, once a person has allowed it."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from turnkeeper import Agent, Limits, ToolContext, tool

__all__ = ["agent", "issue_refund"]

_HOME: Final = Path(__file__).resolve().parents[2] / ".turnkeeper" / "services"


@tool(effect="idempotent", approval="always", timeout=30)
async def issue_refund(order: Annotated[int, Field(ge=1)], ctx: ToolContext) -> str:
    """Pay an order back."""
    await asyncio.to_thread(_pay, order, ctx.idempotency_key)
    return f"Refunded order {order}."


def _pay(order: int, key: str) -> None:
    """Once per key: an attempt after a crash, or a run that repeats another, changes nothing."""
    home = Path(os.environ.get("SERVICES_HOME") or _HOME)
    home.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(home / "refunds.db")) as database, database:
        database.execute("CREATE TABLE IF NOT EXISTS refunds (key TEXT PRIMARY KEY, paid INTEGER)")
        database.execute("INSERT OR IGNORE INTO refunds VALUES (?, ?)", (key, order))


agent = Agent(
    name="desk",
    model="claude-sonnet-5-5",
    instructions="You are the support desk of a shop. Refund the orders that you are asked to.",
    tools=[issue_refund],
    limits=Limits(turns=20, wall_seconds=86_400),
)
