"""What persons have said about a run's going on, and what became of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from turnkeeper.contract import (
    Paused,
    PauseRequest,
    RaiseLimitsRequest,
    ResumeRequest,
    problem_text,
)
from turnkeeper.spec import Limits
from turnkeeper.text import one_line

MAX_RAISED = 10
"""Raised limits that are remembered, the last ones."""
MAX_EARLY = 20
"""Raises that wait for the agent to be loaded."""
_REASON = 300
"""Characters of a reason that are published."""
_FIXED = ("recent_calls", "on_limit")
"""Limits that have no wider value: a longer look back counts more errors."""


class Raised(BaseModel):
    """Limits that somebody has raised, or could not raise."""

    what: str
    """`turns 8 → 20`."""
    reason: str = ""
    actor: str | None = None


class Control(BaseModel):
    """The part of a run's state that persons steer."""

    pause: PauseRequest | None = None
    """Asked for and not resumed."""
    held: Paused | None = None
    """Once the run has come to where it waits: what it has published of that, until it publishes
    that it goes on."""
    released: bool = False
    """Whether somebody has resumed it since."""
    raised: list[Raised] = Field(default_factory=list)
    """Limits that were raised: the last ones, for the run card."""
    early: list[RaiseLimitsRequest] = Field(default_factory=list)
    """What came before the agent's own limits were known."""

    def take_pause(self, said: PauseRequest) -> str | None:
        """Somebody asks the run to wait; the first one stays: it says who, and why."""
        if self.pause is not None:
            return f"it is {paused_words(self.pause)} already"
        self.pause = said
        return None

    def take_resume(self, _said: ResumeRequest) -> str | None:
        """Somebody lets the run go on."""
        if self.pause is None:
            return "it was not paused"
        self.pause = None
        self.released = True
        return None

    @property
    def waits(self) -> bool:
        """Whether the run waits to be resumed."""
        return self.pause is not None and self.held is not None

    def hold(self, now: float) -> None:
        """The run waits from now on."""
        assert self.pause is not None
        self.released = False
        self.held = Paused(
            reason=one_line(self.pause.reason, _REASON), actor=self.pause.actor, since=now
        )

    def go_on(self) -> None:
        """The run no longer waits."""
        self.held, self.released = None, False

    def note_raise(self, said: RaiseLimitsRequest, what: str) -> None:
        """Remember who has raised which limits."""
        noted = Raised(what=what, reason=one_line(said.reason, _REASON), actor=said.actor)
        self.raised = [*self.raised, noted][-MAX_RAISED:]


def wider(present: Limits, asked: Mapping[str, Any]) -> Limits:
    """The present limits with those that somebody asks for.

    Raises:
        ValueError: one of them would be narrower than it is, or has no wider value; names it.
    """
    try:
        limits = Limits.model_validate({**present.model_dump(), **asked})
    except ValidationError as error:
        raise ValueError(problem_text(error, "limits")) from None
    for name in asked:
        now, then = getattr(present, name), getattr(limits, name)
        if then == now or (then is None and name not in _FIXED):
            continue
        if name in _FIXED:
            raise ValueError(f"limits.{name}: it stays {now} for the whole run")
        if now is None or then < now:
            raise ValueError(
                f"limits.{name}: {_said(then)} is less than the present {_said(now)}; limits of a "
                "run can only be raised"
            )
    return limits


def changes(before: Limits, after: Limits) -> str:
    """What was changed, on one line: `turns 8 → 20, tokens 5,000 → no limit`; empty if nothing."""
    told = (
        f"{name} {_said(getattr(before, name))} → {_said(getattr(after, name))}"
        for name in Limits.model_fields
        if getattr(before, name) != getattr(after, name)
    )
    return ", ".join(told)


def limits_words(limits: Mapping[str, Any]) -> str:
    """Limits on one line: `turns 20, tokens no limit`."""
    return ", ".join(
        f"{name} {one_line(value, 40) if isinstance(value, str) else _said(value)}"
        for name, value in limits.items()
    )


def _said(value: float | None) -> str:
    if value is None:
        return "no limit"
    # Not by way of a float: a number of tokens may have more digits than one holds.
    whole = int(value)
    return f"{whole if whole == value else value:,}"


def paused_words(said: PauseRequest | Paused) -> str:
    """Who has paused a run, and why: `paused by ann: the vendor is down`."""
    by = f" by {one_line(said.actor, 100)}" if said.actor else ""
    why = f": {one_line(said.reason, _REASON)}" if said.reason.strip() else ""
    return f"paused{by}{why}"
