"""Tools that tell where they are while their worker may be stopped; the oracle is the ledger.

Each waits in its first attempt at the moment that it is asked for, `before` its request is sent or
`after` the effect and before it returns, until the file GATE is there. At `freeze` it stops its own
worker in the middle of a step, before the request.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from tests.faults.killable import note
from turnkeeper import Agent, ToolContext, tool
from turnkeeper.probe import Answer, Landed, NotLanded
from turnkeeper.testing import AsyncEffects, Effects

Moment = Literal["before", "after", "freeze"]


def _note(event: str, ctx: ToolContext) -> None:
    note(event, ctx, attempt=ctx.attempt, run=ctx.workflow_id, pid=os.getpid())


def _waits(now: Moment, moment: Moment, ctx: ToolContext) -> bool:
    if now != moment or ctx.attempt > 1:
        return False
    _note("here", ctx)
    return True


def _open() -> bool:
    return Path(os.environ["GATE"]).exists()


async def _at(now: Moment, moment: Moment, ctx: ToolContext) -> None:
    if _waits(now, moment, ctx):
        # From outside of this process: no event can be set.
        while not _open():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def _post(ctx: ToolContext, moment: Moment) -> str:
    _note("begin", ctx)
    await _at("before", moment, ctx)
    if _waits("freeze", moment, ctx):
        os.kill(os.getpid(), signal.SIGSTOP)
    effects, body = AsyncEffects(os.environ["LEDGER_URL"]), {"run": ctx.workflow_id}
    if ctx.tool.startswith("refund"):
        receipt = await effects.keyed(ctx.tool, ctx.idempotency_key, body)
    elif ctx.tool.startswith("book"):
        receipt = await effects.probed(ctx.tool, ctx.idempotency_key, body)
    else:
        receipt = await effects.plain(ctx.tool, body)
    await _at("after", moment, ctx)
    _note("end", ctx)
    return receipt.receipt


def _at_in_process(now: Moment, moment: Moment, ctx: ToolContext) -> None:
    if _waits(now, moment, ctx):
        while not _open():
            time.sleep(0.05)


def _post_in_process(ctx: ToolContext, moment: Moment) -> str:
    _note("begin", ctx)
    _at_in_process("before", moment, ctx)
    effects, body = Effects(os.environ["LEDGER_URL"]), {"run": ctx.workflow_id}
    if ctx.tool.startswith("refund"):
        receipt = effects.keyed(ctx.tool, ctx.idempotency_key, body)
    elif ctx.tool.startswith("book"):
        receipt = effects.probed(ctx.tool, ctx.idempotency_key, body)
    else:
        receipt = effects.plain(ctx.tool, body)
    _at_in_process("after", moment, ctx)
    _note("end", ctx)
    return receipt.receipt


async def landed(ctx: ToolContext, _args: Mapping[str, Any]) -> Answer:
    """Ask the ledger."""
    found = await AsyncEffects(os.environ["LEDGER_URL"]).landed(ctx.tool, ctx.idempotency_key)
    return NotLanded() if found is None else Landed(found.receipt)


@tool(effect="read", retries=8)
async def peek(ctx: ToolContext, moment: Moment) -> str:
    """Leave a trace of a read."""
    return await _post(ctx, moment)


@tool(effect="idempotent", retries=8)
async def refund(ctx: ToolContext, moment: Moment) -> str:
    """Refund under the call's key."""
    return await _post(ctx, moment)


@tool(effect="reconcilable", retries=8, probe=landed)
async def book(ctx: ToolContext, moment: Moment) -> str:
    """Book where it can be asked for."""
    return await _post(ctx, moment)


@tool(effect="reconcilable", retries=8, probe=landed)
async def book_in_a_child(ctx: ToolContext, moment: Moment) -> str:
    """Book in a task of its own."""
    async with asyncio.TaskGroup() as group:
        work = group.create_task(_post(ctx, moment))
    return work.result()


@tool(effect="once")
async def send(ctx: ToolContext, moment: Moment) -> str:
    """Send what cannot be taken back."""
    return await _post(ctx, moment)


@tool(effect="idempotent", retries=8)
def refund_in_process(ctx: ToolContext, moment: Moment) -> str:
    """Refund by a synchronous library."""
    return _post_in_process(ctx, moment)


@tool(effect="reconcilable", retries=8, probe=landed)
def book_in_process(ctx: ToolContext, moment: Moment) -> str:
    """Book by a synchronous library."""
    return _post_in_process(ctx, moment)


@tool(effect="once")
def send_in_process(ctx: ToolContext, moment: Moment) -> str:
    """Send by a synchronous library."""
    return _post_in_process(ctx, moment)


TOOLS = [
    peek,
    refund,
    book,
    book_in_a_child,
    send,
    refund_in_process,
    book_in_process,
    send_in_process,
]
agent = Agent(name="zombie", model="claude-sonnet-5-5", instructions="You are a test.", tools=TOOLS)
