"""The workflow that counts what is used under one limit per day, over all runs.

Its memo is the count: whoever wants to know reads it with one `describe`. It is told the limit
with each request, and keeps none itself. The first request starts it (`turnkeeper/days.py`), and it
never ends.
"""

from __future__ import annotations

from typing import Any

from temporalio import workflow
from temporalio.common import RawValue

from turnkeeper.contract import DAY, DAY_MEMO, RESERVE, SETTLE
from turnkeeper.day_limits import DayLimit, Estimate, ReserveRequest, SettleRequest, Used
from workflows import boundary

MAX_CHANGES = 100
"""Until it continues as new: it is replayed for each of them, since no worker caches it."""


@workflow.defn(name=DAY)
class Day:
    """The workflow `TurnkeeperDay`."""

    # Raw, and with a default: a start by hand, with anything or nothing, must not wedge it.
    @workflow.init
    def __init__(self, carried: RawValue = boundary.NOTHING) -> None:
        self.used = Used.read(boundary.carried(carried.payload))
        self.changes = 0

    @workflow.run
    async def run(self, carried: RawValue = boundary.NOTHING) -> None:  # noqa: ARG002
        """Count, and continue as new after some."""
        await workflow.wait_condition(lambda: self.changes >= MAX_CHANGES)
        # In a task of its own, as in `switches.py`: an update in one that is thrown away fails.
        await workflow.sleep(0.001, summary="acknowledge")
        await workflow.wait_condition(workflow.all_handlers_finished)
        workflow.continue_as_new(self.used, memo=self._memo())

    @workflow.update(name=RESERVE, description="Set aside what requests may cost. Sent by workers.")
    async def reserve(self, *args: Any) -> dict[str, Any]:
        """Whether the limit allows each request, and what is used with them."""
        asked = boundary.body(ReserveRequest, args)
        self.changes += 1
        self.used = self.used.at(workflow.time())
        admitted = [self._set_aside(asked.limit, estimate) for estimate in asked.estimates]
        self._publish()
        return {"admitted": admitted, "used": self.used.model_dump()}

    @reserve.validator
    def check(self, *args: Any) -> None:
        """Refused here, an update leaves nothing in history."""
        with boundary.refusing():
            boundary.body(ReserveRequest, args)

    @workflow.signal(name=SETTLE, description="What requests have cost. Sent by workers.")
    def settle(self, *args: Any) -> None:
        """Of a day that is over nothing is counted any more."""
        self.changes += 1
        with boundary.dropping(SETTLE):
            told = boundary.body(SettleRequest, args)
            self.used = self.used.at(workflow.time())
            for settled in told.settled:
                if settled.day == self.used.day:
                    self.used = self.used.plus(settled.tokens, settled.usd)
            self._publish()

    def _set_aside(self, limit: DayLimit, estimate: Estimate) -> bool:
        allowed = limit.allows(self.used, estimate)
        if allowed:
            self.used = self.used.plus(estimate.tokens, estimate.usd)
        return allowed

    def _publish(self) -> None:
        workflow.upsert_memo(self._memo())

    def _memo(self) -> dict[str, Any]:
        return {DAY_MEMO: self.used.model_dump()}
