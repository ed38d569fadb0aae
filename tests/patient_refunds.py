"""The refunds agent, for tests that make it continue as new early."""

from __future__ import annotations

from examples.refunds import agent as refunds
from turnkeeper import Agent, HistoryPolicy

_SPEC = refunds.agent.spec()

agent = Agent(
    name=_SPEC.name,
    model=_SPEC.model,
    instructions=_SPEC.instructions,
    tools=list(refunds.agent.tools.values()),
    limits=_SPEC.limits,
    on_unknown="wait",
    approvals=_SPEC.approvals,
    history=HistoryPolicy(events=50),
)
