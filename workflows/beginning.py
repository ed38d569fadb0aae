"""A run that begins with a part of another one."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError

from turnkeeper import contract
from turnkeeper.contract import ForkInput, ForkOutput
from turnkeeper.state import RunState
from workflows import cockpit, failures, options


class Forks:
    """How a fork comes to what was said before it."""

    state: RunState

    def _interrupted(self) -> bool:
        raise NotImplementedError

    async def _alone(self, activity: Coroutine[Any, Any, None]) -> None:
        raise NotImplementedError

    async def _take_over(self) -> None:
        """Before the first turn, if the run is a fork."""
        state = self.state
        if state.request.fork is not None and state.outcome is None and not self._interrupted():
            await self._alone(self._fork(state.request.fork))

    async def _fork(self, fork: contract.ForkRequest) -> None:
        state = self.state
        try:
            begun: ForkOutput = await workflow.execute_activity(
                contract.FORK, ForkInput(fork=fork), result_type=ForkOutput, **options.fork(state)
            )
        except ActivityError as error:
            if not failures.is_cancelled(error):
                state.end(*failures.end_of(error, "state_lost"))
            return
        state.take_over(begun, fork.turn)
        cockpit.show(state)
