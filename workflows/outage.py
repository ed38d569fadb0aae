"""A run whose provider does not answer: it waits on a timer, visibly, instead of failing."""

from __future__ import annotations

import contextlib

from temporalio import workflow
from temporalio.exceptions import ActivityError

from turnkeeper.state import RunState
from workflows import cockpit, failures


class OutlastsOutages:
    """What a run does when all attempts to ask its model have failed."""

    state: RunState

    def _interrupted(self) -> bool:
        raise NotImplementedError

    def _parks(self, error: ActivityError) -> bool:
        """Whether the run waits for its provider; if not, it has waited as long as it may."""
        state = self.state
        bound = state.pinned.outage_seconds
        if not bound or not failures.is_outage(error):
            return False
        why = failures.end_of(error, "").reason or "no answer"
        # Of the run itself, and the same in a replay.
        spread = workflow.random().random()
        return state.outage.again(workflow.time(), why, bound=bound, spread=spread)

    async def _await_provider(self) -> None:
        """Until it is time to ask again, somebody pauses the run, or it is to end."""
        state, outage = self.state, self.state.outage
        cockpit.publish_outage(state)
        workflow.logger.warning("waiting for the provider", extra={"why": outage.why})
        wait = max(0.0, outage.until - workflow.time())
        with contextlib.suppress(TimeoutError):
            await workflow.wait_condition(
                lambda: self._interrupted() or state.control.pause is not None,
                timeout=wait,
                timeout_summary="waiting for the provider",
            )
        outage.until = 0
        cockpit.publish_outage(state)
