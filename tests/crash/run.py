"""The loop with a crash point in each phase that runs inside a workflow task.

Nothing of this is in the product: the points are laid around its methods.
"""

from __future__ import annotations

from collections.abc import Sequence

from temporalio import workflow
from temporalio.common import RawValue

from turnkeeper.contract import RunResult
from turnkeeper.state import Call
from workflows.agent_run import AgentRun

# One module for sandbox and process: a copy per run would count each run's passings apart.
with workflow.unsafe.imports_passed_through():
    from tests.crash import points


@workflow.defn(dynamic=True)
class CrashingRun(AgentRun):
    """Makes the same commands as AgentRun."""

    @workflow.init
    def __init__(self, args: Sequence[RawValue]) -> None:
        super().__init__(args)

    @workflow.run
    async def run(self, args: Sequence[RawValue]) -> RunResult:
        """See AgentRun."""
        return await super().run(args)

    def _parse(self) -> None:
        _passing("parse")
        super()._parse()

    def _start(self, call: Call) -> None:
        super()._start(call)
        _passing("execute")

    def _resume(self) -> None:
        _passing("resume")
        super()._resume()


def _passing(name: str) -> None:
    with workflow.unsafe.sandbox_unrestricted():
        points.passing(name)
