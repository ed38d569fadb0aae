"""Tools that change the world by the effect ledger at LEDGER_URL, and an agent that has them.

For workers in this process and in others. Each attempt leaves durable lines in the file CALL_LOG:
`begin`, `posted` when the effect was acknowledged, `end`. Arguments, in seconds: `before` the
effect, `after` it and before the tool returns; only the first `slow` attempts wait.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.faults.killable import note
from turnkeeper import Agent, ToolContext, tool
from turnkeeper.probe import Answer, Landed, NotLanded
from turnkeeper.testing import AsyncEffects, Effects


def _note(event: str, ctx: ToolContext) -> None:
    note(event, ctx, attempt=ctx.attempt, run=ctx.workflow_id, pid=os.getpid(), time=time.time())


async def _post(ctx: ToolContext, before: float, after: float, slow: int) -> str:
    waits = ctx.attempt <= slow
    _note("begin", ctx)
    await asyncio.sleep(before if waits else 0)
    effects = AsyncEffects(os.environ["LEDGER_URL"])
    if ctx.tool in ("send", "peek"):
        receipt = await effects.plain(ctx.tool, {"run": ctx.workflow_id})
    else:
        receipt = await effects.keyed(ctx.tool, ctx.idempotency_key, {"run": ctx.workflow_id})
    _note("posted", ctx)
    await asyncio.sleep(after if waits else 0)
    _note("end", ctx)
    return receipt.receipt


@tool(effect="read")
async def peek(ctx: ToolContext, before: float = 0, after: float = 0, slow: int = 1) -> str:
    """Change something, though it says that it only reads."""
    return await _post(ctx, before, after, slow)


@tool(effect="idempotent", retries=5)
async def refund(ctx: ToolContext, before: float = 0, after: float = 0, slow: int = 1) -> str:
    """Refund under the call's key."""
    return await _post(ctx, before, after, slow)


async def find_booking(ctx: ToolContext, _args: Mapping[str, Any]) -> Answer:
    """Ask the ledger."""
    effects = AsyncEffects(os.environ["LEDGER_URL"])
    found = await effects.probe(ctx.tool, ctx.idempotency_key)
    return NotLanded() if found is None else Landed(found.receipt)


@tool(effect="reconcilable", probe=find_booking)
async def book(ctx: ToolContext, before: float = 0, after: float = 0, slow: int = 1) -> str:
    """Book under a reference that can be asked for."""
    return await _post(ctx, before, after, slow)


@tool(effect="once")
async def send(ctx: ToolContext, before: float = 0, after: float = 0, slow: int = 1) -> str:
    """Send what cannot be taken back."""
    return await _post(ctx, before, after, slow)


@tool(effect="once")
async def wait(ctx: ToolContext) -> str:
    """Send once the file GATE is there."""
    _note("begin", ctx)
    while not Path(os.environ["GATE"]).exists():  # noqa: ASYNC110, ASYNC240
        await asyncio.sleep(0.05)
    receipt = await AsyncEffects(os.environ["LEDGER_URL"]).plain("wait", {"run": ctx.workflow_id})
    _note("end", ctx)
    return receipt.receipt


@tool(effect="idempotent")
async def stall(ctx: ToolContext, before: float = 0) -> str:
    """Refund by a library that holds up the whole worker, the first time."""
    _note("begin", ctx)
    if ctx.attempt == 1:
        time.sleep(before)  # noqa: ASYNC251
    receipt = Effects(os.environ["LEDGER_URL"]).keyed("stall", ctx.idempotency_key, {})
    _note("posted", ctx)
    return receipt.receipt


@tool(effect="once")
def pay(ctx: ToolContext, before: float = 0) -> str:
    """Pay by a synchronous library."""
    _note("begin", ctx)
    time.sleep(before)
    receipt = Effects(os.environ["LEDGER_URL"]).plain("pay", {"run": ctx.workflow_id})
    _note("end", ctx)
    return receipt.receipt


@tool(effect="idempotent")
def tick(ctx: ToolContext, seconds: float) -> str:
    """Say ten times a second that this attempt lives."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        _note("tick", ctx)
        time.sleep(0.1)
    return "ticked"


@tool(effect="once")
def ask(ctx: ToolContext) -> str:
    """Wait for a program that reads from its standard input for ever."""
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"],
        stdin=subprocess.PIPE,
        start_new_session=True,
    ) as program:
        note("begin", ctx, pid=program.pid)
        program.wait()
    return "never"


@tool(effect="idempotent", timeout=2, retries=1)
def hang(ctx: ToolContext) -> str:
    """Block for ever in native code that holds the interpreter's lock."""
    _note("begin", ctx)
    ctypes.PyDLL(None).sleep(3_600)
    return "never"


agent = Agent(
    name="effects",
    model="claude-sonnet-5-5",
    instructions="You are a test.",
    tools=[peek, refund, book, send, wait, stall, pay, tick, ask, hang],
)
