"""The workflow that keeps what is switched off: one for the namespace, one for a task queue.

The namespace's keeps the limits per day, too.

Its memo is the list: whoever wants to know reads it with one `describe`, also while no worker is
up. It is started by the first change (`turnkeeper/switchboard.py`) and never ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue

from turnkeeper import day_limits
from turnkeeper.contract import DAY_LIMIT, SWITCH, SWITCHES
from turnkeeper.day_limits import DayLimitRequest
from turnkeeper.switches import EVERYWHERE, SwitchList, SwitchRequest
from workflows import boundary

MAX_CHANGES = 50
"""Until it continues as new: each one has the whole list in its history."""


@workflow.defn(name=SWITCHES)
class Switches:
    """The workflow `TurnkeeperSwitches`."""

    # Raw, and with a default: a start by hand, with anything or nothing, must not wedge it.
    @workflow.init
    def __init__(self, carried: RawValue = boundary.NOTHING) -> None:
        told = boundary.carried(carried.payload)
        told = told if isinstance(told, dict) else {}
        self.list = SwitchList.read(told.get("switches"), told.get("day_limits"))
        self.changes = 0

    @workflow.run
    async def run(self, carried: RawValue = boundary.NOTHING) -> None:  # noqa: ARG002
        """Wait for changes, and continue as new after some."""
        self._publish()
        await workflow.wait_condition(lambda: self.changes >= MAX_CHANGES)
        # In a task of its own: one that ends this execution is thrown away when another message
        # comes meanwhile, and an update in it is given back to its caller as an error.
        await workflow.sleep(0.001, summary="acknowledge")
        await workflow.wait_condition(workflow.all_handlers_finished)
        workflow.continue_as_new(self.list, memo=self.list.memo())

    # With `*args`, as in `messages.py`: a missing argument must not fail the workflow task.
    @workflow.update(
        name=SWITCH,
        description='Switch off or on. Body: {"kind": "tool", "name": "...", "off": true, '
        '"reason": "...", "actor": "..."}; kinds: tool, agent, tenant.',
    )
    async def switch_update(self, *args: Any) -> dict[str, Any]:
        """Answers once it is published. Not refused here: an update that was let in has to be
        taken, though others in the same task may have filled the list."""
        return {"accepted": SWITCH, "changed": self._take(boundary.body(SwitchRequest, args))}

    @switch_update.validator
    def check(self, *args: Any) -> None:
        """Refused here, an update leaves nothing in history."""
        with boundary.refusing():
            self._read(args)

    @workflow.signal(name=SWITCH, description="As the update; works while no worker is up.")
    def switch_signal(self, *args: Any) -> None:
        """What an update would have refused is dropped."""
        with boundary.dropping(SWITCH):
            self._take(self._read(args))

    @workflow.update(
        name=DAY_LIMIT,
        description='Set a limit per day. Body: {"kind": "tenant", "name": "...", "cost_usd": 20, '
        '"tokens": 5000000, "actor": "..."}; kinds: agent, tenant. Without a bound: none any more.',
    )
    async def limit_update(self, *args: Any) -> dict[str, Any]:
        """Answers once it is published."""
        return {
            "accepted": DAY_LIMIT,
            "changed": self._limit(boundary.body(DayLimitRequest, args)),
        }

    @limit_update.validator
    def check_limit(self, *args: Any) -> None:
        """As `check`."""
        with boundary.refusing():
            self._read_limit(args)

    @workflow.signal(name=DAY_LIMIT, description="As the update; works while no worker is up.")
    def limit_signal(self, *args: Any) -> None:
        """As `switch_signal`."""
        with boundary.dropping(DAY_LIMIT):
            self._limit(self._read_limit(args))

    def _read(self, args: Sequence[Any]) -> SwitchRequest:
        asked = boundary.body(SwitchRequest, args)
        if problem := self.list.refusal(asked):
            raise ValueError(problem)
        return asked

    def _read_limit(self, args: Sequence[Any]) -> DayLimitRequest:
        asked = boundary.body(DayLimitRequest, args)
        if workflow.info().workflow_id != EVERYWHERE:
            raise ValueError(f"limits per day are for the whole namespace: tell {EVERYWHERE}")
        if problem := day_limits.refusal(self.list.day_limits, asked):
            raise ValueError(problem)
        return asked

    def _take(self, asked: SwitchRequest) -> bool:
        return self._publish_if(self.list.take(asked, workflow.time()))

    def _limit(self, asked: DayLimitRequest) -> bool:
        return self._publish_if(day_limits.take(self.list.day_limits, asked, workflow.time()))

    def _publish_if(self, changed: bool) -> bool:
        if changed:
            self.changes += 1
            self._publish()
        return changed

    def _publish(self) -> None:
        workflow.upsert_memo(self.list.memo())
        told = [s.told for s in self.list.switches] or ["Nothing is switched off."]
        told += [f"Limit per day of {x.named}: {x.bounds}" for x in self.list.day_limits]
        workflow.set_current_details("\n".join(f"- {line}" for line in told))
