"""What is known of a call's earlier attempts, and what that allows.

It travels in heartbeat details from one attempt to the next; whatever did not arrive is taken for
the worse.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from pydantic import BaseModel, ValidationError
from temporalio import activity

VAIN_PROBES = 3
"""Probes without an answer until the outcome counts as unknown."""


class Attempts(BaseModel):
    """The attempts of one call up to now."""

    begun: int = 0
    """Times that the body was begun."""
    aside: int = 0
    """Attempts that met a worker without the tool: the server counts those, too."""
    unsure: int = 0
    """Begun ones that may have changed the world: not those that ended with RetryTool, and none
    before a probe that answered `NotLanded`."""
    settled: int = 0
    """Begun ones of whose end the server was told, or that were counted as timed out."""
    vain: int = 0
    """Attempts that only probed, and got no answer."""
    over: bool = False
    """The body is not to be begun again, whatever is left."""
    first: float | None = None
    """When the body was first begun, by the server's clock, in seconds since 1970."""
    why: str = ""
    """How the last begun attempt failed, for the model."""
    details: Any = None
    """The tool's own."""

    def begin(self) -> None:
        """The body is begun now; the server hears of it before anything else happens."""
        self.begun += 1
        self.unsure += 1
        if self.first is None:
            self.first = activity.info().started_time.timestamp()
        activity.heartbeat(self)

    def end(self) -> None:
        """The attempt fails, and the next one is to know that it said so."""
        self.settled = self.begun
        activity.heartbeat(self)

    def is_late(self, key_ttl: float | None) -> bool:
        """Whether the target may have forgotten the key before this attempt's time is over."""
        if key_ttl is None:
            return False
        info = activity.info()
        # Both by the server's clock. Where the first beginning is not known it was later than this.
        first = info.scheduled_time.timestamp() if self.first is None else self.first
        ends = info.started_time + (info.start_to_close_timeout or timedelta())
        return ends.timestamp() - first >= key_ttl


def earlier_attempts() -> Attempts:
    """Of the activity that runs."""
    known = _told(activity.info().heartbeat_details)
    # An attempt that is accounted for nowhere was begun: its worker died, or could not say so.
    lost = max(0, activity.info().attempt - 1 - known.aside - known.vain - known.begun)
    if not lost:
        return known
    # How it failed is not known either: the words of the one before would be wrong.
    now = {"begun": known.begun + lost, "unsure": known.unsure + lost, "why": ""}
    return known.model_copy(update=now)


def _told(details: Sequence[Any]) -> Attempts:
    try:
        return Attempts.model_validate(details[0]) if details else Attempts()
    except ValidationError:
        # A tool's own, by `temporalio.activity.heartbeat`, or of another release.
        return Attempts()


def backoff(number: int) -> timedelta:
    """Before the attempt after the `number`th.

    The server's own would also grow with the attempts that met no worker with the tool.
    """
    return timedelta(seconds=min(2.0 ** (number - 1), 30))
