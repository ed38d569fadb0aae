"""An agent whose tool returns more than fits, for workers in processes of their own."""

from __future__ import annotations

from turnkeeper import Agent, tool


@tool(effect="read")
async def export() -> str:
    """A large table."""
    return "x" * 100_000


agent = Agent(name="exporting", model="claude-sonnet-5-5", instructions="Export.", tools=[export])
