"""Attempts of a tool call: counted by what ran, bounded, and under one key."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from temporalio.client import Client

from tests.fleet import Fleet, agent
from tests.rig import RigFactory, until
from turnkeeper import Landed, Limits, RetryTool, ToolContext, ToolFailed, tool
from turnkeeper.artifacts import FolderStore
from turnkeeper.client import AgentClient
from turnkeeper.testing import ScriptedProvider, call, text

SCRIPT: list[Any] = [call("work"), lambda x: text(x.last_results[0].text)]


def failing(
    error: Callable[[], BaseException], seen: list[ToolContext], *, times: int = 99, **options: Any
) -> Any:
    """A tool `work` that raises so many times."""

    async def work(ctx: ToolContext) -> str:
        """Work."""
        seen.append(ctx)
        if len(seen) <= times:
            raise error()
        return f"done in attempt {ctx.attempt}"

    return tool(name="work", **options)(work)


@pytest.mark.parametrize("effect", ["read", "idempotent", "once"])
async def test_retry_tool_is_retried_under_every_effect(rig: RigFactory, effect: str) -> None:
    """RetryTool says that nothing happened: `retries=2` are three attempts, all with one key."""
    seen: list[ToolContext] = []
    work = failing(lambda: RetryTool("busy", delay=0.01), seen, times=2, effect=effect, retries=2)
    async with rig(SCRIPT, tools=[work]) as r:
        assert (await r.run()).answer == "done in attempt 3"
    assert [c.attempt for c in seen] == [1, 2, 3]
    assert len({c.idempotency_key for c in seen}) == 1


@pytest.mark.parametrize(("effect", "retries", "ran"), [("read", 2, 3), ("once", 0, 1)])
async def test_retry_tool_is_bounded(rig: RigFactory, effect: str, retries: int, ran: int) -> None:
    """When the attempts are used up the model is told how many there were, and why."""
    seen: list[ToolContext] = []
    work = failing(lambda: RetryTool("busy", delay=0.01), seen, effect=effect, retries=retries)
    async with rig(SCRIPT, tools=[work]) as r:
        result = await r.run()
    assert len(seen) == ran
    tries = "1 attempt" if ran == 1 else f"{ran} attempts"
    assert result.answer is not None
    assert result.answer.startswith(f"Tool work failed after {tries}: busy")


@pytest.mark.parametrize(
    ("effect", "error", "ran"),
    [
        ("read", OSError("down"), 2),
        ("idempotent", OSError("down"), 2),
        ("once", OSError("down"), 1),
        # The same attempt would fail again: a bug of the tool is not retried.
        ("read", TypeError("a bug"), 1),
        ("read", RecursionError("too deep"), 1),
        ("read", ToolFailed("no"), 1),
        ("read", SystemExit(3), 2),
    ],
)
async def test_exceptions_are_retried_if_the_effect_allows(
    rig: RigFactory, effect: str, error: BaseException, ran: int
) -> None:
    """One retry allowed: `once` and bugs get a single attempt, the rest two. Each that raised is a
    line in the log, of which the first has the traceback and the last is an error."""
    seen: list[ToolContext] = []
    work = failing(lambda: error, seen, effect=effect, retries=1 if effect != "once" else 0)
    with capture_logs() as logs:
        async with rig(SCRIPT, tools=[work]) as r:
            result = await r.run()
            assert await r.task_failures() == 0
    raised = [line for line in logs if line["event"] == "tool raised"]
    if not isinstance(error, ToolFailed):
        levels = ["warning"] * (ran - 1) + ["error"]
        assert [line["log_level"] for line in raised] == levels
        assert {line["error"] for line in raised} == {f"{type(error).__name__}: {error}"}
        assert ["traceback" in line for line in raised] == [n == 0 for n in range(ran)]
        assert "raise error()" in raised[0]["traceback"]
    assert (len(seen), result.outcome, result.errors) == (ran, "completed", 1)


async def test_timeouts_are_bounded(rig: RigFactory) -> None:
    """A tool that never ends: cut off per attempt, its attempts counted, the model told."""
    begun: list[int] = []

    @tool(effect="read", timeout=0.5, retries=1)
    async def work(ctx: ToolContext) -> str:
        """Work for ever."""
        begun.append(ctx.attempt)
        await asyncio.sleep(3600)
        return ""

    async with rig(SCRIPT, tools=[work], settings={"heartbeat_seconds": 1}) as r:
        result = await r.run()
    assert begun == [1, 2]
    assert result.answer is not None
    assert "2 attempts" in result.answer


async def test_attempts_are_bounded_though_no_heartbeat_was_heard(
    rig: RigFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attempt that is accounted for nowhere was begun: its worker may have died at once."""
    begun: list[int] = []

    @tool(effect="idempotent", timeout=0.5, retries=1)
    async def work(ctx: ToolContext) -> str:
        """Work for ever."""
        begun.append(ctx.attempt)
        await asyncio.sleep(3600)
        return ""

    async with rig(SCRIPT, tools=[work]) as r:
        monkeypatch.setattr("temporalio.activity.heartbeat", lambda *_: None)
        result = await r.run()
    assert begun == [1, 2]
    assert result.answer is not None
    assert "It may or may not have taken effect" in result.answer


async def test_a_once_tool_that_times_out_is_not_begun_again(rig: RigFactory) -> None:
    """Begun once; the model reads that the outcome is unknown."""
    begun: list[int] = []

    @tool(effect="once", timeout=0.5)
    async def work() -> str:
        """Work for ever."""
        begun.append(1)
        await asyncio.sleep(3600)
        return ""

    async with rig(SCRIPT, tools=[work], settings={"heartbeat_seconds": 1}) as r:
        result = await r.run()
    assert len(begun) == 1
    assert result.answer == (
        "Tool work did not finish within 0.5 seconds. "
        "It may or may not have taken effect, and was not tried again."
    )


async def test_heartbeat_details_reach_the_next_attempt(rig: RigFactory) -> None:
    """`resume_from` is what the lost attempt told last; a new call begins without."""
    seen: list[Any] = []

    @tool(effect="idempotent", retries=2)
    async def work(ctx: ToolContext) -> str:
        """Work in pages."""
        seen.append(ctx.resume_from)
        ctx.heartbeat({"page": len(seen)})
        if len(seen) < 3:
            raise OSError("down")
        return "done"

    script = [call("work"), call("work"), text("Done.")]
    async with rig(script, tools=[work]) as r:
        assert (await r.run()).outcome == "completed"
    assert seen == [None, {"page": 1}, {"page": 2}, None]


async def test_a_synchronous_tool_may_heartbeat(rig: RigFactory) -> None:
    """From its thread, too: the next attempt reads what it told last."""
    seen: list[Any] = []

    @tool(effect="idempotent", retries=1)
    def work(ctx: ToolContext) -> str:
        """Work in pages."""
        seen.append(ctx.resume_from)
        ctx.heartbeat({"page": len(seen)})
        if len(seen) == 1:
            raise OSError("down")
        return "done"

    async with rig(SCRIPT, tools=[work]) as r:
        assert (await r.run()).answer == "done"
    assert seen == [None, {"page": 1}]


# --- workers that differ --------------------------------------------------------------------------


@pytest.fixture
async def fleet(client: Client, tmp_path: Path) -> AsyncIterator[Fleet]:
    """A task queue without workers, and a model that asks for `work` after half a second."""
    script: list[Any] = [call("work", delay=0.5), lambda x: text(x.last_results[0].text)]
    async with ScriptedProvider(script, fsync=False) as provider:
        agents = AgentClient(client, task_queue=f"test-{uuid.uuid4()}", store=FolderStore(tmp_path))
        yield Fleet(agents, provider, tmp_path)


@pytest.mark.parametrize(
    ("effect", "retries", "fails", "attempts"), [("once", 0, 0, [1]), ("read", 1, 1, [1, 2])]
)
async def test_a_call_goes_to_a_worker_that_has_the_tool(
    fleet: Fleet, effect: str, retries: int, fails: int, attempts: list[int]
) -> None:
    """A worker that lacks the tool hands the call on: neither the one attempt of `once` nor the
    one retry of a read is spent by that."""
    seen: list[int] = []

    async def run_of(ctx: ToolContext) -> str:
        """Work, but not at once."""
        seen.append(ctx.attempt)
        if len(seen) <= fails:
            raise OSError("down")
        return "done"

    work = tool(effect=effect, retries=retries, name="work")(run_of)  # type: ignore[call-overload]
    # Pinned with the tool, the run then meets a worker of another release, without it.
    async with fleet.worker(agent(work)):
        run = await fleet.agents.start("tester", "q", task_timeout=2)
        await until(lambda: fleet.provider.requests)
    handle = fleet.agents.client.get_workflow_handle(run.id)

    async def handed_back() -> int:
        pending = (await handle.describe()).raw_description.pending_activities
        return sum(p.activity_type.name == "work" and p.attempt > 2 for p in pending)

    async with fleet.worker(agent()):
        await until(handed_back)
        assert seen == []
        (why,) = (await fleet.agents.why(run.id)).findings
        # Those that met no worker with the tool are none of its own.
        own = "the only one (effect once)" if effect == "once" else "attempt 1 of 2"
        assert why.what.startswith("work: attempt 1")
        assert own in why.what
        async with fleet.worker(agent(work)):
            result = await run.result(timeout=30)
    assert (result.answer, seen) == ("done", attempts)


async def test_a_tool_that_no_worker_has_is_told_to_the_model(rig: RigFactory) -> None:
    """Bounded: in the end the model reads that the tool is not there. (The bound itself is looked
    at, not waited for.)"""
    from turnkeeper.spec import ToolSpec
    from workflows import options

    assert options.NOT_HERE_ATTEMPTS == 20
    assert Limits().consecutive_errors == 5
    spec = ToolSpec(name="work", description="", input_schema={}, retries=2)
    assert spec.attempts + options.NOT_HERE_ATTEMPTS == 23


async def test_a_once_tool_is_not_begun_again_when_its_result_was_lost(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its retries are for RetryTool: a worker that ends while it stores the result leaves a call
    of which nobody knows, not one to try again."""
    begun: list[int] = []
    storing = asyncio.Event()

    @tool(retries=3)
    async def work(ctx: ToolContext) -> str:
        """Work."""
        begun.append(ctx.attempt)
        return "x" * 100_000

    async def put(*_: Any) -> str:
        storing.set()
        return str(await asyncio.Event().wait())

    with monkeypatch.context() as hanging:
        hanging.setattr(FolderStore, "put", put)
        async with fleet.worker(agent(work)):
            run = await fleet.agents.start("tester", "q", task_timeout=2)
            await storing.wait()
    async with fleet.worker(agent(work)):
        result = await run.result(timeout=60)
    assert begun == [1]
    assert result.answer is not None
    assert "may or may not have taken effect" in result.answer


@pytest.mark.parametrize("effect", ["once", "reconcilable"])
async def test_a_tool_that_a_deploy_makes_stricter_is_not_tried_blindly(
    fleet: Fleet, effect: str
) -> None:
    """Begun as `idempotent`; the next worker's author no longer says that a repeat is harmless."""
    begun: list[int] = []

    async def run_of(ctx: ToolContext) -> str:
        """Work for long."""
        begun.append(ctx.attempt)
        return str(await asyncio.Event().wait())

    async def landed(_ctx: ToolContext, _args: Any) -> Landed:
        return Landed("receipt")

    options: dict[str, Any] = {"probe": landed} if effect == "reconcilable" else {}
    before = tool(effect="idempotent", name="work")(run_of)
    after = tool(effect=effect, name="work", **options)(run_of)  # type: ignore[call-overload]
    async with fleet.worker(agent(before)):
        run = await fleet.agents.start("tester", "q", task_timeout=2)
        await until(lambda: begun)
    async with fleet.worker(agent(after)):
        result = await run.result(timeout=60)
    assert begun == [1]
    assert result.answer is not None
    told = "receipt" if options else "may or may not have taken effect"
    assert told in result.answer
