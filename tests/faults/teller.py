"""Agents with a tool of each effect class; every effect is in the ledger."""

from __future__ import annotations

import os

from tests.faults.agents import book, charge, label, mail
from turnkeeper import Agent, tool
from turnkeeper.spec import HistoryPolicy
from turnkeeper.testing import AsyncEffects


@tool(effect="read")
async def inquire(order: str) -> str:
    """Ask whether an order was charged before."""
    known = await AsyncEffects(os.environ["EFFECTS_URL"]).probe("charge", order)
    return f"{order}: {'charged' if known else 'open'}"


teller = Agent(
    name="teller",
    model="claude-sonnet-5-5",
    instructions="You are a test.",
    tools=[inquire, charge, book, mail, label],
    # Small, so that a short run continues as new.
    history=HistoryPolicy(events=50),
)
patient = Agent(
    name="patient",
    model="claude-sonnet-5-5",
    instructions="You are a test.",
    tools=[mail],
    on_unknown="wait",
)
