"""Tools that stop answering in their first attempt; their attempts are in the file CALL_LOG."""

from __future__ import annotations

import asyncio
import ctypes
import os
import threading
import time

from tests.faults.killable import note
from turnkeeper import Agent, ToolContext, tool


def _begin(ctx: ToolContext) -> bool:
    """Note it; whether this attempt is the one that hangs."""
    note("begin", ctx, attempt=ctx.attempt, resume_from=ctx.resume_from, pid=os.getpid())
    return ctx.attempt == 1


@tool(effect="idempotent", heartbeat=1, timeout=60)
async def page(ctx: ToolContext) -> str:
    """Read page by page, until no page comes."""
    for number in range(5):
        ctx.heartbeat({"page": number})
        await asyncio.sleep(0.3)
    if _begin(ctx):
        await asyncio.sleep(3_600)
    return "read"


@tool(effect="idempotent", heartbeat=2, timeout=60)
def page_in_process(ctx: ToolContext) -> str:
    """Read page by page by a synchronous library."""
    for number in range(5):
        ctx.heartbeat({"page": number})
        time.sleep(0.1)
    if _begin(ctx):
        time.sleep(3_600)
    return "read"


@tool(effect="once", heartbeat=1, timeout=60)
async def post(ctx: ToolContext) -> str:
    """Never come back."""
    _begin(ctx)
    await asyncio.sleep(3_600)
    return "never"


@tool(effect="once", heartbeat=1, timeout=60)
async def steady(ctx: ToolContext) -> str:
    """Give signs of life from a thread."""
    done = threading.Event()

    def tell() -> None:
        while not done.wait(0.2):
            ctx.heartbeat()

    threading.Thread(target=tell, daemon=True).start()
    await asyncio.sleep(3)
    done.set()
    return "done"


@tool(effect="idempotent", timeout=60)
def stopped(ctx: ToolContext) -> str:
    """Wait to be stopped by a signal."""
    if _begin(ctx):
        time.sleep(3_600)
    return "went on"


@tool(effect="once", timeout=2)
async def slow(ctx: ToolContext) -> str:
    """Take too long."""
    _begin(ctx)
    await asyncio.sleep(3_600)
    return "never"


@tool(effect="read", timeout=5)
def hold(ctx: ToolContext) -> str:
    """Block for ever in native code that holds the interpreter's lock, the first time."""
    if _begin(ctx):
        ctypes.PyDLL(None).sleep(3_600)
    return "read"


agent = Agent(
    name="hung",
    model="claude-sonnet-5-5",
    instructions="You are a test.",
    tools=[page, page_in_process, post, steady, stopped, slow, hold],
)
