"""What is counted, as metrics of Temporal's runtime; `worker.py --metrics` serves them.

- `turnkeeper_attempts_timed_out` {tool}: attempts of a tool call whose end nobody told the server:
  their worker died, was stopped or cut off, or their time was over. Counted once each, by the next
  attempt or, if there is none, by the run.
- `turnkeeper_attempts_stopped` {tool, loss}: attempts that a worker stopped by itself; `superseded`
  when the server had given them up, `silent` when the tool no longer answered.
"""

from __future__ import annotations

from temporalio import activity

TIMED_OUT = "turnkeeper_attempts_timed_out"
STOPPED = "turnkeeper_attempts_stopped"


def count(name: str, number: int = 1, **attributes: str) -> None:
    """Add to a counter, within an activity."""
    activity.metric_meter().create_counter(name).add(number, attributes)
