"""What persons have said about a run's going on, and what became of it. Pure."""

from __future__ import annotations

from pydantic import BaseModel

from turnkeeper.contract import Paused, PauseRequest, ResumeRequest
from turnkeeper.text import one_line

_REASON = 300
"""Characters of a reason that are published."""


class Control(BaseModel):
    """The part of a run's state that persons steer."""

    pause: PauseRequest | None = None
    """Asked for and not resumed."""
    held: Paused | None = None
    """Once the run has come to where it waits: what it has published of that."""

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
        self.pause = self.held = None
        return None

    def hold(self, now: float) -> None:
        """The run waits from now on."""
        assert self.pause is not None
        self.held = Paused(
            reason=one_line(self.pause.reason, _REASON), actor=self.pause.actor, since=now
        )


def paused_words(said: PauseRequest | Paused) -> str:
    """Who has paused a run, and why: `paused by ann: the vendor is down`."""
    by = f" by {one_line(said.actor, 100)}" if said.actor else ""
    why = f": {one_line(said.reason, _REASON)}" if said.reason.strip() else ""
    return f"paused{by}{why}"
