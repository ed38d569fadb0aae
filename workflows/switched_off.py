"""A run whose agent or tenant is switched off, or has used what it may in a day: it stands still
until that is over."""

from __future__ import annotations

from temporalio import workflow
from temporalio.exceptions import ActivityError

from turnkeeper import contract
from turnkeeper.contract import SwitchedOnInput
from turnkeeper.state import RunState
from workflows import cockpit, failures, options


class StandsStill:
    """What a run does when it may not ask its model."""

    state: RunState
    standing: tuple[str, ...] = ()
    """What is waited for: a generation may wait, and a summary beside it."""
    not_sent = False
    """Whether it is the generation that waits."""

    async def _until_switched_on(self, error: ActivityError) -> None:
        """Wait after a request that was not sent, as long as the run's deadline allows.

        The wait is one activity that fails until then: its attempts leave no event in history, are
        none of the request itself, and tell an operator what is waited for.
        """
        state = self.state
        state.charge(failures.lost_usage(error))
        state.switched_off = awaited = failures.end_of(error, "").reason
        self.standing += (awaited,)
        cockpit.show(state)
        # Runs that were switched off before this was published have no such commands.
        published = workflow.patched("switched-off-published")
        if published:
            cockpit.publish_switched_off(state)
        try:
            await workflow.execute_activity(
                contract.SWITCHED_ON,
                SwitchedOnInput(
                    agent=state.request.agent,
                    tenant=state.tenant,
                    # A summary may need more than a generation.
                    estimate=failures.refused(error) or state.estimate(),
                ),
                **options.switched_on(max(1.0, state.deadline - workflow.time())),
            )
        except ActivityError:
            # Cancelled, or at the deadline: the loop looks which.
            pass
        finally:
            left = list(self.standing)
            left.remove(awaited)
            self.standing = tuple(left)
            self.state.switched_off = left[-1] if left else ""
        if published:
            cockpit.publish_switched_off(state)
