"""An agent for conversations that are killed: it continues as new every few turns."""

from __future__ import annotations

import asyncio

from turnkeeper import Agent, HistoryPolicy, Limits, tool


@tool(effect="read")
async def look(what: str) -> str:
    """Look at something, for a moment."""
    await asyncio.sleep(0.2)
    return f"seen {what}"


agent = Agent(
    name="talkative",
    model="claude-sonnet-5-5",
    instructions="You are a test.",
    tools=[look],
    limits=Limits(turns=1_000, consecutive_errors=100, repetition=100),
    history=HistoryPolicy(events=50),
)
