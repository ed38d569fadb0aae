"""Tools with which an agent waits: list them in `Agent(tools=[ask_person, sleep, wait_until])`.

The run serves them itself, without a worker, for days if need be: `Limits.wall_seconds` has to
allow that. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, Field

from turnkeeper.errors import ToolFailed
from turnkeeper.text import clock
from turnkeeper.tools import Tool, ToolContext, tool
from turnkeeper.waits import Held

__all__ = ["ask_person", "hold", "sleep", "wait_until"]

_MAX_SECONDS = 366 * 86_400


@tool(effect="read")
def ask_person(
    question: Annotated[
        str, Field(min_length=1, max_length=4_000, description="With all that is needed to answer.")
    ],
) -> str:
    """Ask a person, who may answer in minutes or days, what only a person can know or decide."""
    raise ToolFailed(f"Only a run can wait for an answer to {question[:80]!r}.")


@tool(effect="read")
def sleep(seconds: Annotated[float, Field(gt=0, le=_MAX_SECONDS)]) -> str:
    """Wait. Call it alone: other calls of the same reply do not wait for it."""
    raise ToolFailed(f"Only a run can wait for {seconds:g} seconds.")


@tool(effect="read")
def wait_until(
    time: Annotated[
        AwareDatetime, Field(description="ISO 8601 with an offset, as 2026-12-01T09:00:00Z.")
    ],
) -> str:
    """Wait until a time. Call it alone: other calls of the same reply do not wait for it."""
    raise ToolFailed(f"Only a run can wait until {time}.")


def _served_by_the_run(made: Tool, awaits: Literal["answer", "time"]) -> Tool:
    made.spec = made.spec.model_copy(update={"awaits": awaits})
    return made


_ALL = {
    made.name: made
    for made in (
        _served_by_the_run(ask_person, "answer"),
        _served_by_the_run(sleep, "time"),
        _served_by_the_run(wait_until, "time"),
    )
}


def hold(name: str, arguments: Mapping[str, Any], now: float, deadline: float) -> Held:
    """What a call waits for. `now` and `deadline`, the run's end: seconds since 1970.

    Raises:
        ValueError: it cannot be waited for; the text is for the model.
    """
    known = _ALL.get(name)
    if known is None:
        raise ValueError(f"Tool {name} is not available at the moment. It was not run.")
    given = known.bind(arguments, ToolContext())
    if known is ask_person:
        return Held(since=now, question=given["question"])
    until = now + given["seconds"] if known is sleep else given["time"].timestamp()
    if until > deadline:
        raise ValueError(f"This run ends at {clock(deadline)}: it cannot wait longer than that.")
    # Not before now: a year that no clock has is none of a run's.
    return Held(since=now, until=max(until, now))
