"""Agents of the kill tests; each tool call leaves durable lines in the file `CALL_LOG`."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from turnkeeper import Agent, ToolContext, tool

SLOWEST = 3600.0
"""Seconds that a call takes at most; a run that nothing kills need not wait."""


def note(event: str, ctx: ToolContext, **more: Any) -> None:
    """Append one line and make it durable."""
    line = {"event": event, "tool": ctx.tool, "key": ctx.idempotency_key, "turn": ctx.turn, **more}
    file = os.open(os.environ["CALL_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, json.dumps(line).encode() + b"\n")
    os.fsync(file)
    os.close(file)


def read_notes(event: str, tool: str = "", *, log: str = "") -> list[dict[str, Any]]:
    """The lines about an event, in order; `log` if it is not this process's own."""
    path = Path(log or os.environ["CALL_LOG"])
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [x for x in lines if x["event"] == event and tool in ("", x["tool"])]


async def _work(ctx: ToolContext, seconds: float) -> str:
    note("begin", ctx, attempt=ctx.attempt, resume_from=ctx.resume_from)
    ctx.heartbeat({"at": ctx.attempt})
    # Only the first attempt is slow: the one that is killed.
    await asyncio.sleep(min(seconds, SLOWEST) if ctx.attempt == 1 else 0)
    note("end", ctx, attempt=ctx.attempt)
    return f"{ctx.tool} done"


@tool(effect="read")
async def look(seconds: float, ctx: ToolContext) -> str:
    """Change nothing."""
    return await _work(ctx, seconds)


@tool(effect="idempotent")
async def refund(seconds: float, ctx: ToolContext) -> str:
    """Refund under a key."""
    return await _work(ctx, seconds)


@tool(effect="once")
async def send(seconds: float, ctx: ToolContext) -> str:
    """Send something that cannot be taken back."""
    return await _work(ctx, seconds)


agent = Agent(
    name="killable",
    model="claude-sonnet-5-5",
    instructions="You are a test.",
    tools=[look, refund, send],
)
