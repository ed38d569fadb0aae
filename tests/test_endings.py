"""Ends that cross each other, and what the model is told about attempts."""

from __future__ import annotations

import asyncio
import time

from temporalio.client import WorkflowExecutionStatus

from tests.rig import RigFactory, until
from turnkeeper import Limits, RetryTool, tool
from turnkeeper.contract import RunRequest
from turnkeeper.entries import message
from turnkeeper.parse import ProposedCall
from turnkeeper.spec import AgentSpec, ModelSpec, ToolSpec
from turnkeeper.state import RunState
from turnkeeper.testing import call, status, text


async def test_a_cancel_after_a_stop_still_closes_the_books(rig: RigFactory) -> None:
    """Stopped, then cancelled at once: whichever wins, the run is no longer shown as running."""
    async with rig([text("late", delay=20)]) as r:
        handle = await r.start()
        await until(lambda: r.provider.requests)
        bare = r.client.get_workflow_handle(handle.id)
        stopping = asyncio.create_task(bare.execute_update("stop"))
        await bare.cancel()
        await asyncio.gather(stopping, return_exceptions=True)
        result = await handle.result(check=False, timeout=60)
        described = await bare.describe()
        assert described.status in (
            WorkflowExecutionStatus.COMPLETED,
            WorkflowExecutionStatus.CANCELED,
        )
        attributes = {p.key.name: p.value for p in described.typed_search_attributes}
        assert attributes["TurnkeeperStatus"] == "ended"
        assert attributes["TurnkeeperOutcome"] == result.outcome in ("stopped", "cancelled")


async def test_a_tool_that_ignores_its_cancel_holds_the_run_for_a_bounded_time(
    rig: RigFactory,
) -> None:
    """The run ends without it after the heartbeat timeout and a grace, and says so."""

    @tool(effect="once", timeout=60)
    async def stubborn() -> str:
        """Go on whatever happens."""
        until = time.monotonic() + 25
        while time.monotonic() < until:
            try:
                await asyncio.sleep(1)
            except asyncio.CancelledError:
                continue
        return "done"

    limits = Limits(wall_seconds=1)
    async with rig(
        [call("stubborn")], tools=[stubborn], limits=limits, settings={"heartbeat_seconds": 1}
    ) as r:
        began = time.monotonic()
        result = await r.run(timeout=40)
        assert result.outcome == "time_limit"
        assert time.monotonic() - began < 20


async def test_retries_used_up_by_nothing_happened_are_no_unknown_outcome(rig: RigFactory) -> None:
    """RetryTool says that nothing happened; the model is not told that something may have."""

    @tool(effect="idempotent", retries=1)
    async def busy() -> str:
        """Never get to it."""
        raise RetryTool("the desk is closed", delay=0)

    async with rig([call("busy"), lambda x: text(x.last_results[0].text)], tools=[busy]) as r:
        result = await r.run()
        assert result.answer == "Tool busy failed after 2 attempts: the desk is closed"


async def test_an_exception_of_a_mutating_tool_is_an_unknown_outcome(rig: RigFactory) -> None:
    """The effect may have landed before the exception; `once` says that it was not repeated."""

    @tool(effect="once")
    async def send() -> str:
        """Send."""
        raise OSError("connection lost")

    async with rig([call("send"), lambda x: text(x.last_results[0].text)], tools=[send]) as r:
        result = await r.run()
        assert result.answer == (
            "Tool send failed after 1 attempt: OSError: connection lost. "
            "It may or may not have taken effect, and was not tried again."
        )


async def test_a_failing_last_answer_does_not_hide_the_limit(rig: RigFactory) -> None:
    """The limit was reached all the same: its outcome stays, without an answer."""

    @tool(effect="read")
    async def look() -> str:
        """Look."""
        return "seen"

    limits = Limits(turns=1, on_limit="answer")
    script = [call("look"), status(400, error_type="invalid_request_error", message="no")]
    async with rig(script, tools=[look], limits=limits) as r:
        result = await r.run()
        assert (result.outcome, result.answer) == ("turn_limit", None)


async def test_an_unusable_reply_after_an_outage_is_asked_for_again(rig: RigFactory) -> None:
    """Unusable replies are counted by themselves, not by the attempts of an outage before them."""
    again = status(529, headers={"retry-after": "0.1"})
    script = [[again, again, text("x" * 950_000), text("ok")]]
    async with rig(script) as r:
        result = await r.run(timeout=60)
        assert (result.outcome, result.answer) == ("completed", "ok")
        assert result.usage.estimated_tokens > 100_000


def test_a_call_that_was_not_run_is_no_success() -> None:
    """The first change of each turn fails, the second is not run: errors in a row nonetheless."""
    write = ToolSpec(name="write", description="", input_schema={}, effect="idempotent")
    state = RunState(
        request=RunRequest(agent="a", prompt="p"),
        key_base="k",
        started=0,
        spec=AgentSpec(
            name="a",
            model=ModelSpec(name="m"),
            instructions="",
            tools=(write,),
            limits=Limits(consecutive_errors=3),
        ),
        pending=[message("p")],
    )
    for turn in range(3):
        assert state.limit_reached() is None
        state.propose(
            [
                ProposedCall(call_id=f"{turn}{i}", tool="write", arguments={"n": turn})
                for i in (0, 1)
            ]
        )
        [first] = state.startable()
        first.finish("error", "broken")
        assert state.startable() == []
        state.take_results()
        state.next_turn()
    assert state.limit_reached() == ("error_limit", "3 tool errors in a row")
