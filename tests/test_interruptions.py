"""Stop, cancel, the time limit, StopRun: a run ends at once and leaves nothing running."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import CancelledError
from temporalio.testing import WorkflowEnvironment

from tests.rig import RigFactory, open_rig, until
from turnkeeper import Limits, RetryTool, StopRun, ToolContext, tool
from turnkeeper.errors import RunCancelled
from turnkeeper.testing import call, calls, text

FAST = {"heartbeat_seconds": 1}


class Steps:
    """What a tool of a test noted, in order."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def tool(self, name: str, *, effect: str = "once", seconds: float = 3600) -> object:
        """A tool that works for a while and notes how that ended."""

        async def work(ctx: ToolContext) -> str:
            self.seen.append(f"{name} begins")
            try:
                await asyncio.sleep(seconds)
            except asyncio.CancelledError:
                # What a real tool does here takes a moment, and is waited for.
                await asyncio.sleep(0.2)
                self.seen.append(f"{name} cancelled")
                raise
            self.seen.append(f"{name} ends")
            return f"{name} done"

        work.__doc__ = f"Work on {name}."
        return tool(effect=effect, name=name)(work)  # type: ignore[call-overload]


async def test_stop_ends_a_generation_at_once(rig: RigFactory) -> None:
    """Not when the reply is there; the provider's connection is closed, an estimate charged."""
    async with rig([text("Late.", delay=30)], settings=FAST) as r:
        run = await r.start()
        await until(lambda: r.provider.requests)
        asked = time.monotonic()
        assert await run.stop("enough", "ann") == "stopping"
        result = await run.result(check=False)
        assert time.monotonic() - asked < 10
        assert (result.outcome, result.reason) == ("stopped", "stopped by ann: enough")
        assert result.usage.estimated_tokens > 0
        await until(lambda: r.provider.requests[-1].outcome == "client_gone")
        assert await r.task_failures() == 0


async def test_stop_ends_a_tool_and_waits_for_it(rig: RigFactory) -> None:
    """The running call is cancelled and awaited, its result says that its effect is unknown."""
    steps = Steps()
    async with rig([call("act")], tools=[steps.tool("act")], settings=FAST) as r:
        run = await r.start()
        await until(lambda: steps.seen)
        await run.stop()
        result = await run.result(check=False, timeout=60)
        assert steps.seen == ["act begins", "act cancelled"]
        assert (result.outcome, result.errors) == ("stopped", 1)
        assert await r.task_failures() == 0


async def test_a_stop_before_the_first_worker_task_is_kept(rig: RigFactory) -> None:
    """A signal that comes with the start ends the run before any generation."""
    async with rig([text("Never asked.")]) as r:
        handle = await r.start_raw(
            {"agent": "tester", "prompt": "q"}, start_signal="stop", start_signal_args=[{}]
        )
        result = await r.agents.result(handle.id, check=False)
        assert (result.outcome, r.provider.requests) == ("stopped", [])


async def test_cancel_reaches_the_tool_before_the_run_closes(rig: RigFactory) -> None:
    """Cancelled through Temporal: the tool has ended when the workflow is Canceled."""
    steps = Steps()
    async with rig([call("act")], tools=[steps.tool("act")], settings=FAST) as r:
        run = await r.start()
        await until(lambda: steps.seen)
        handle = r.client.get_workflow_handle(run.id)
        await handle.cancel()
        with pytest.raises(WorkflowFailureError) as caught:
            await handle.result()
        assert isinstance(caught.value.cause, CancelledError)
        assert steps.seen == ["act begins", "act cancelled"]
        with pytest.raises(RunCancelled):
            await run.result()
        assert await r.task_failures() == 0


async def test_cancel_ends_a_generation(rig: RigFactory) -> None:
    """The connection to the provider is closed, the run is Canceled."""
    async with rig([text("Late.", delay=30)], settings=FAST) as r:
        run = await r.start()
        await until(lambda: r.provider.requests)
        await r.client.get_workflow_handle(run.id).cancel()
        with pytest.raises(RunCancelled):
            await run.result(timeout=60)
        await until(lambda: r.provider.requests[-1].outcome == "client_gone")


@pytest.mark.parametrize("how", ["stopped", "cancelled"])
async def test_a_run_ends_while_its_agent_is_loaded(
    rig: RigFactory, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Before the first turn too, a run that is stopped or cancelled ends at once and as such."""
    reached, never = asyncio.Event(), asyncio.Event()

    async def hang(client: object) -> list[str]:
        reached.set()
        await never.wait()
        return []

    monkeypatch.setattr("activities.load_agent._listed", hang)
    async with rig([text("Never.")], settings=FAST) as r:
        run = await r.start()
        async with asyncio.timeout(60):
            await reached.wait()
        if how == "stopped":
            assert await run.stop("enough") == "stopping"
        else:
            await r.client.get_workflow_handle(run.id).cancel()
        assert (await run.result(check=False, timeout=60)).outcome == how
        assert r.provider.requests == []
        never.set()


async def test_stop_run_drains_the_calls_beside_it(rig: RigFactory) -> None:
    """A tool's StopRun cancels reads in flight and awaits them; every call has its result."""
    steps = Steps()

    @tool(effect="read")
    async def give_up() -> str:
        """End the run."""
        await until(lambda: len(steps.seen) == 2)
        raise StopRun("enough")

    tools = [steps.tool("a", effect="read"), steps.tool("b", effect="read"), give_up]
    script = [calls([("a", {}), ("give_up", {}), ("b", {})])]
    async with rig(script, tools=tools, settings=FAST) as r:
        result = await r.run()
        assert (result.outcome, result.reason) == ("stopped", "enough")
        assert sorted(steps.seen[2:]) == ["a cancelled", "b cancelled"]
        assert result.calls == 3
        assert await r.task_failures() == 0


async def test_stop_run_leaves_later_mutating_calls_unbegun(rig: RigFactory) -> None:
    """What waits behind the call that ended the run is not begun."""
    steps = Steps()

    @tool(effect="once")
    def give_up() -> str:
        """End the run."""
        raise StopRun("enough")

    script = [calls([("give_up", {}), ("act", {})])]
    async with rig(script, tools=[give_up, steps.tool("act")]) as r:
        assert (await r.run()).outcome == "stopped"
        assert steps.seen == []


async def test_the_time_limit_ends_a_long_generation(rig: RigFactory) -> None:
    """A limit of 1 s in a generation of 30 s: the run ends long before it."""
    async with rig([text("Late.", delay=30)], limits=Limits(wall_seconds=1), settings=FAST) as r:
        result = await r.run()
        assert (result.outcome, result.turns) == ("time_limit", 1)
        assert 0.9 < result.seconds < 15
        assert result.usage.estimated_tokens > 0
        await until(lambda: r.provider.requests[-1].outcome == "client_gone")


async def test_a_retry_in_an_hour_takes_no_time_on_a_virtual_clock(
    virtual: WorkflowEnvironment, tmp_path: Path
) -> None:
    """Waits are Temporal's, not the worker's: RetryTool in an hour, twice, is two hours of the
    run's own time."""

    @tool(effect="read", retries=2)
    def later(ctx: ToolContext) -> str:
        """Work in the third hour."""
        if ctx.attempt < 3:
            raise RetryTool("not yet", delay=3600)
        return "at last"

    script = [call("later"), lambda x: text(x.last_results[0].text)]
    async with open_rig(virtual.client, tmp_path, script, tools=[later]) as r:
        result = await r.run()
        assert (result.outcome, result.answer) == ("completed", "at last")
        assert 7200 <= result.seconds < 7300


async def test_the_time_limit_holds_on_a_virtual_clock(
    virtual: WorkflowEnvironment, tmp_path: Path
) -> None:
    """A limit of an hour in a tool that wants to be tried again in two."""

    @tool(effect="read", retries=2)
    def later() -> str:
        """Work tomorrow."""
        raise RetryTool("not yet", delay=7200)

    limits = Limits(wall_seconds=3600)
    async with open_rig(
        virtual.client, tmp_path, [call("later")], tools=[later], limits=limits
    ) as r:
        result = await r.run()
        assert result.outcome == "time_limit"
        assert 3600 <= result.seconds < 3700
