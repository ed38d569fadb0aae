"""The morning agent: what is open, in a few lines, before the day begins."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

from turnkeeper import Agent, Limits, ToolFailed, tool

__all__ = ["agent", "open_tickets"]

_SAMPLE = Path(__file__).parent / "tickets.csv"


@tool(effect="read", timeout=10)
def open_tickets() -> str:
    """All support tickets that are open today, as CSV, with today's date in the first line."""
    path = Path(os.environ.get("MORNING_TICKETS") or _SAMPLE)
    try:
        tickets = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ToolFailed(f"The tickets cannot be read: {error}") from None
    # The date comes from here and is recorded with the result: the prompt is the schedule's and
    # the same every day, and a run that goes on after midnight keeps its day.
    return f"Open on {datetime.now(UTC):%Y-%m-%d}:\n{tickets}"


agent = Agent(
    name="morning",
    model="claude-sonnet-5-5",
    instructions=(
        "You brief a support team. Look the open tickets up. Say how many there are, then one line "
        "for each that is urgent or older than a week, the most urgent first."
    ),
    tools=[open_tickets],
    # Over before the next one is due: while it runs, no other is started.
    limits=Limits(turns=5, wall_seconds=3_600),
)
