"""Loops that hear more than the product's, do not want to go, or have a bug.

A module of its own, and a light one: the sandbox imports it again for each run.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue

from turnkeeper.contract import RunResult
from workflows.agent_run import AgentRun


@workflow.defn(dynamic=True)
class HearingRun(AgentRun):
    """Takes note of signals `note`, in a list of the state that nothing else reads."""

    @workflow.init
    def __init__(self, args: Sequence[RawValue]) -> None:
        super().__init__(args)

    @workflow.run
    async def run(self, args: Sequence[RawValue]) -> RunResult:
        """See AgentRun."""
        return await super().run(args)

    @workflow.signal(name="note")
    def take_note(self, *args: Any) -> None:
        """Remember a number."""
        self.state.attributes.append(str(args[0]))

    @workflow.query
    def noted(self, *_args: Any) -> list[str]:
        """All that was remembered, in order."""
        return [a for a in self.state.attributes if a.isdigit()]


@workflow.defn(dynamic=True)
class SlowHandlerRun(AgentRun):
    """Has an update whose handler takes a while."""

    @workflow.init
    def __init__(self, args: Sequence[RawValue]) -> None:
        super().__init__(args)

    @workflow.run
    async def run(self, args: Sequence[RawValue]) -> RunResult:
        """See AgentRun."""
        return await super().run(args)

    @workflow.update
    async def ponder(self, *args: Any) -> str:
        """Answer after some seconds, from the execution that was asked."""
        await workflow.sleep(args[0])
        return workflow.info().run_id


@workflow.defn(dynamic=True)
class UnwillingRun(AgentRun):
    """Cannot be evicted at the first try: it waits on when it is told to go."""

    @workflow.init
    def __init__(self, args: Sequence[RawValue]) -> None:
        super().__init__(args)

    @workflow.run
    async def run(self, args: Sequence[RawValue]) -> RunResult:
        """See AgentRun."""
        result = None
        try:
            result = await super().run(args)
            return result
        finally:
            if result is None:
                with contextlib.suppress(BaseException):
                    await asyncio.get_running_loop().create_future()


@workflow.defn(dynamic=True)
class FaultyRun(AgentRun):
    """A loop with a bug."""

    @workflow.init
    def __init__(self, args: Sequence[RawValue]) -> None:
        super().__init__(args)

    @workflow.run
    async def run(self, args: Sequence[RawValue]) -> RunResult:  # noqa: ARG002
        """Fail the workflow task."""
        raise TypeError("a bug in the loop")
