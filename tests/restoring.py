"""The loop that forgets everything but its serialised state before each step.

A module of its own, and a light one: the sandbox imports it again for each run.
"""

from __future__ import annotations

from collections.abc import Sequence

from temporalio import workflow
from temporalio.common import RawValue

from turnkeeper.contract import RunResult
from turnkeeper.state import RunState
from workflows.agent_run import AgentRun


@workflow.defn(dynamic=True)
class RestoringRun(AgentRun):
    """Makes the same commands as AgentRun, if RunState is all that the loop keeps."""

    @workflow.init
    def __init__(self, args: Sequence[RawValue]) -> None:
        super().__init__(args)

    @workflow.run
    async def run(self, args: Sequence[RawValue]) -> RunResult:
        """See AgentRun."""
        return await super().run(args)

    async def _step(self) -> None:
        # Nothing is in flight between two steps: no task holds the state that is thrown away.
        assert not self.tasks
        self.state = RunState.model_validate_json(self.state.model_dump_json(exclude_none=True))
        await super()._step()
