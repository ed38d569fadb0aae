"""The finance agent: "What is 7% of last year's revenue?" """

from __future__ import annotations

from examples.finance.tools import calculator, search
from turnkeeper import Agent, Limits

__all__ = ["agent"]

# The reporting year stands here and not in a clock: a run started on 31 December and resumed on
# 2 January means the same year throughout, and a constant prompt can be cached by the provider.
_INSTRUCTIONS = """\
You answer questions about Halden Instruments plc from its annual reports for 2021 to 2025.

The latest full financial year is 2025, so "last year" means 2025, "the year before" means 2024, \
and so on. "Revenue" means group revenue as reported, unless the question names a segment, a \
region, a currency, a budget or a pro-forma basis.

Look every figure up with `search`; never rely on memory. Read the year, the unit and the basis of \
each passage before you use its figure, and search again with other words if none fits. Compute \
with `calculator`, not in your head. If the reports do not have the answer, say so.

Answer in one or two short sentences: the figure with its unit, rounded sensibly, and the report \
it comes from. If a figure was restated later, give the restated one and say so."""

agent = Agent(
    name="finance",
    model="claude-sonnet-5-5",
    instructions=_INSTRUCTIONS,
    tools=[search, calculator],
    limits=Limits(turns=8, wall_seconds=600),
)
