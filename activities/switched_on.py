"""The wait of a run that may not ask its model: until that is switched on, or a new day begins."""

from __future__ import annotations

from datetime import timedelta

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from activities.gate import Gate
from turnkeeper.contract import SWITCHED_ON, SwitchedOnInput
from turnkeeper.day_limits import Estimate

FIRST_WAIT_SECONDS, MOST_WAIT_SECONDS = 5.0, 60.0
"""Between two looks."""


class SwitchedOn:
    """The activity `run.switched_on`."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    @activity.defn(name=SWITCHED_ON)
    async def run(self, asked: SwitchedOnInput) -> None:
        """Look once.

        Raises:
            ApplicationError: of type `SwitchedOff` or `DayIsSpent`, to be tried again: it says what
                is waited for.
        """
        estimate = asked.estimate or Estimate()
        closed = await self._gate.closed(
            asked.agent, asked.tenant, estimate, just_refused=activity.info().attempt == 1
        )
        if closed is None:
            return
        # Bounded first: a wait of weeks has many attempts.
        wait = FIRST_WAIT_SECONDS * 2.0 ** min(activity.info().attempt - 1, 10)
        raise ApplicationError(
            closed.awaited,
            type=closed.kind,
            next_retry_delay=timedelta(seconds=min(wait, MOST_WAIT_SECONDS)),
            category=ApplicationErrorCategory.BENIGN,
        )
