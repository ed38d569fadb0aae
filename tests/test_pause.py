"""Pause and resume: a run waits at a turn boundary for a person, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from temporalio.client import WorkflowUpdateFailedError

from tests.rig import Rig, RigFactory, is_failed_task, until
from turnkeeper import Limits, tool
from turnkeeper.artifacts import FolderStore
from turnkeeper.client import AgentClient, AgentRunHandle, RunSummary
from turnkeeper.contract import PAUSE, RESUME
from turnkeeper.spec import HistoryPolicy
from turnkeeper.testing import Exchange, Reply, call, text

AWAITED = "a person to resume it, paused by ann: the vendor is down"
ASKED = {"reason": "the vendor is down", "actor": "ann"}


class Gate:
    """A tool that is held until the test lets it go."""

    def __init__(self) -> None:
        self.reached, self.go = asyncio.Event(), asyncio.Event()
        self.tool = tool(effect="read", timeout=60, name="work")(self._work)

    async def _work(self) -> str:
        """Work."""
        self.reached.set()
        await self.go.wait()
        return "worked"


def one_call(x: Exchange) -> Reply:
    """A call, then the answer."""
    return call("work") if x.turn == 0 else text("Done.")


async def held(r: Rig, run: AgentRunHandle) -> RunSummary:
    """The run in a list, once it waits to be resumed."""

    async def waits() -> RunSummary | None:
        async for summary in r.agents.list_runs(f"WorkflowId = '{run.id}'"):
            return summary if summary.status == "waiting" else None
        return None

    summary: RunSummary = await until(waits)
    return summary


async def paused_at_the_boundary(r: Rig, gate: Gate) -> AgentRunHandle:
    """A run whose first turn is done, and whose second is not begun."""
    run = await r.start()
    async with asyncio.timeout(60):
        await gate.reached.wait()
    assert await run.pause("the vendor is down", "ann") == "pausing"
    gate.go.set()
    await held(r, run)
    return run


def slow_store(monkeypatch: pytest.MonkeyPatch) -> tuple[asyncio.Event, asyncio.Event]:
    """Writes to the artifact store wait: set when the first one has come, and to let them go."""
    reached, go = asyncio.Event(), asyncio.Event()
    put = FolderStore.put

    async def slow(store: FolderStore, owner: str, data: bytes) -> str:
        reached.set()
        await go.wait()
        return await put(store, owner, data)

    monkeypatch.setattr(FolderStore, "put", slow)
    return reached, go


async def card(r: Rig, run: AgentRunHandle) -> str:
    """What Temporal's UI shows of it."""
    handle = r.client.get_workflow_handle(run.id)
    metadata: Any = await handle.query("__temporal_workflow_metadata")
    return str(metadata.current_details)


# --- the boundary -------------------------------------------------------------------------------


async def test_a_paused_run_finishes_its_turn_and_waits(rig: RigFactory) -> None:
    """What runs is finished, the next generation is not asked for until somebody resumes it."""
    gate = Gate()
    async with rig(one_call, tools=[gate.tool]) as r:
        run = await r.start()
        async with asyncio.timeout(60):
            await gate.reached.wait()
        assert await run.pause("the vendor is down", "ann") == "pausing"
        status = await run.status()
        assert (status.phase, status.waiting_for) == ("EXECUTE", "results of work")
        assert status.paused is not None
        gate.go.set()
        assert (await held(r, run)).waiting_for == AWAITED
        await asyncio.sleep(0.5)
        assert len(r.provider.requests) == 1
        assert (await run.status()).waiting_for == AWAITED
        assert await run.resume("bob") == "resuming"
        result = await run.result(timeout=60)
        assert (result.answer, len(r.provider.requests)) == ("Done.", 2)
        assert (await run.status()).paused is None
        assert await r.task_failures() == 0


async def test_a_generation_that_runs_is_finished(rig: RigFactory) -> None:
    """Its reply is paid for: it is kept, and its calls are run before the run waits."""
    gate = Gate()
    gate.go.set()

    def script(x: Exchange) -> Reply:
        return call("work", delay=1) if x.turn == 0 else text("Done.")

    async with rig(script, tools=[gate.tool]) as r:
        run = await r.start()
        await until(lambda: r.provider.requests)
        await run.pause()
        await held(r, run)
        assert gate.reached.is_set()
        assert r.provider.requests[0].outcome == "sent"
        await run.resume()
        assert (await run.result(timeout=60)).usage.estimated_tokens == 0


async def test_operators_see_who_paused_it_and_how_to_go_on(rig: RigFactory) -> None:
    """In the card, in a list, by search attribute, by `why`, without a worker, in the steps."""
    gate = Gate()
    async with rig(one_call, tools=[gate.tool]) as r:
        run = await paused_at_the_boundary(r, gate)
        shown = await card(r, run)
        assert "**Paused** by ann: the vendor is down. The time limit goes on." in shown
        assert f"`starter.py resume {run.id}`" in shown
        assert 'the update `resume` with:\n\n```\n{\n  "actor": "your name"\n}' in shown
        found = await held(r, run)
        assert (found.turns, found.tokens) == (2, (await run.status()).usage.total)
        query = f"TurnkeeperStatus = 'waiting' AND WorkflowId = '{run.id}'"

        async def searchable() -> bool:
            return await r.agents.count_runs(query) == 1

        await until(searchable)
        diagnosis = await r.agents.why(run.id)
        assert diagnosis.status == "waiting"
        (finding,) = diagnosis.findings
        assert finding.what == f"it waits for {AWAITED}"
        assert list(map(str, finding.commands)) == [f"resume {run.id}"]
        unanswered = await r.agents.status(run.id, timeout=0)
        assert unanswered.waiting_for == f"{AWAITED}; no worker answers"
        await run.resume("bob")
        await run.result(timeout=60)
        steps = [s.text async for s in run.follow() if s.phase == "WAITING"]
        assert steps == [f"for {AWAITED}", "-> no longer paused"]
        assert "resume" not in await card(r, run)


async def test_the_card_tells_of_a_pause_before_the_boundary(rig: RigFactory) -> None:
    """While the turn still runs an operator sees that the pause was heard."""
    gate = Gate()
    async with rig(one_call, tools=[gate.tool]) as r:
        run = await r.start()
        async with asyncio.timeout(60):
            await gate.reached.wait()
        await run.pause("the vendor is down", "ann")
        told = "**Paused** by ann: the vendor is down. It waits once this turn is done."
        assert told in await card(r, run)
        gate.go.set()
        await held(r, run)
        await run.resume()
        assert (await run.result(timeout=60)).outcome == "completed"


# --- repeats and wrong bodies -------------------------------------------------------------------


async def test_repeats_change_nothing_and_say_so(rig: RigFactory) -> None:
    """The first pause stays, with its reason; a run that is not paused is left as it is."""
    gate = Gate()
    async with rig(one_call, tools=[gate.tool]) as r:
        run = await r.start()
        async with asyncio.timeout(60):
            await gate.reached.wait()
        handle = r.client.get_workflow_handle(run.id)
        answer = await handle.execute_update(RESUME, {"actor": "bob"})
        assert answer == {"accepted": "resume", "note": "it was not paused"}
        assert await run.resume() == "running"
        assert await handle.execute_update(PAUSE, ASKED) == {"accepted": "pause"}
        answer = await handle.execute_update(PAUSE, {"actor": "bob"})
        assert answer["note"] == "it is paused by ann: the vendor is down already"
        assert await run.pause("another") == "paused"
        gate.go.set()
        assert (await held(r, run)).waiting_for == AWAITED
        await run.resume()
        await run.result(timeout=60)
        assert await run.pause() == "ended"
        assert await run.resume() == "ended"


async def test_a_pause_that_is_taken_back_in_time_is_none(rig: RigFactory) -> None:
    """Resumed before the turn is done, a run goes on without a stop, and publishes none."""
    gate = Gate()
    async with rig(one_call, tools=[gate.tool]) as r:
        run = await r.start()
        async with asyncio.timeout(60):
            await gate.reached.wait()
        await run.pause()
        assert await run.resume() == "resuming"
        gate.go.set()
        assert (await run.result(timeout=60)).outcome == "completed"
        assert [s async for s in run.follow() if s.phase == "WAITING"] == []


async def test_wrong_bodies_are_refused(rig: RigFactory) -> None:
    """An update names the field, a signal is dropped; the run is unharmed."""
    gate = Gate()
    async with rig(one_call, tools=[gate.tool]) as r:
        run = await r.start()
        async with asyncio.timeout(60):
            await gate.reached.wait()
        handle = r.client.get_workflow_handle(run.id)
        for wrong in ({"why": "x"}, {"actor": 7}, {"reason": "x" * 2_001}):
            with pytest.raises(WorkflowUpdateFailedError) as caught:
                await handle.execute_update(PAUSE, wrong)
            assert next(iter(wrong)) in str(caught.value.cause)
            await handle.signal(PAUSE, wrong)
        assert (await run.status()).paused is None
        gate.go.set()
        assert (await run.result(timeout=60)).outcome == "completed"
        assert await r.task_failures() == 0


# --- ends, switches, absent workers -------------------------------------------------------------


@pytest.mark.parametrize("end", ["stop", "time", "cancel"])
async def test_a_paused_run_can_be_ended(rig: RigFactory, end: str) -> None:
    """By a stop, a cancel, and its time limit, for which paused time counts."""
    gate = Gate()
    limits = Limits(wall_seconds=3 if end == "time" else 600)
    async with rig(one_call, tools=[gate.tool], limits=limits) as r:
        run = await paused_at_the_boundary(r, gate)
        if end == "stop":
            await run.stop("enough")
        elif end == "cancel":
            await r.client.get_workflow_handle(run.id).cancel()
        result = await run.result(check=False, timeout=60)
        wanted = {"stop": "stopped", "time": "time_limit", "cancel": "cancelled"}[end]
        assert (result.outcome, len(r.provider.requests)) == (wanted, 1)
        described = await r.client.get_workflow_handle(run.id).describe()
        assert await described.memo_value("paused", None) is None
        assert await r.task_failures() == 0


async def test_a_paused_run_continues_as_new(rig: RigFactory) -> None:
    """Messages alone make its history long; it goes on in a new execution, paused as before."""
    gate = Gate()
    async with rig(one_call, tools=[gate.tool], history=HistoryPolicy(events=50)) as r:
        run = await paused_at_the_boundary(r, gate)
        while not await r.carried(run.id):
            await run.pause("again")
        status = await run.status()
        assert (status.waiting_for, status.turn) == (AWAITED, 2)
        assert (await held(r, run)).waiting_for == AWAITED
        await run.resume()
        assert (await run.result(timeout=60)).answer == "Done."
        assert len(r.provider.requests) == 2
        assert await r.task_failures() == 0


async def test_resumed_while_it_continues_as_new(
    rig: RigFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next execution goes on, and nothing says any more that it is paused."""
    reached, go = slow_store(monkeypatch)
    gate = Gate()
    async with rig(one_call, tools=[gate.tool], history=HistoryPolicy(events=50)) as r:
        run = await paused_at_the_boundary(r, gate)
        while not reached.is_set():
            await run.pause("again")
        assert await run.resume() == "resuming"
        go.set()
        assert (await run.result(timeout=60)).answer == "Done."
        assert len(await r.carried(run.id)) == 1
        described = await r.client.get_workflow_handle(run.id).describe()
        assert await described.memo_value("paused", None) is None
        assert await r.task_failures() == 0


async def test_paused_while_it_seals(rig: RigFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pause that comes while a run continues as new holds it in its next execution."""
    reached, go = slow_store(monkeypatch)

    @tool(effect="read")
    async def work() -> str:
        """Work."""
        return "worked"

    def script(x: Exchange) -> Reply:
        return call("work") if x.turn < 8 else text("Done.")

    limits = Limits(repetition=100)
    async with rig(script, tools=[work], limits=limits, history=HistoryPolicy(events=50)) as r:
        run = await r.start()
        async with asyncio.timeout(30):
            await reached.wait()
        assert await run.pause("the vendor is down", "ann") == "pausing"
        go.set()
        assert (await held(r, run)).waiting_for == AWAITED
        assert len(await r.carried(run.id)) == 1
        assert await run.resume() == "resuming"
        assert (await run.result(timeout=30)).answer == "Done."
        assert await r.task_failures() == 0


async def test_paused_before_its_agent_was_loaded(rig: RigFactory) -> None:
    """A pause that comes with the start holds the run before its first generation."""
    async with rig([text("Done.")]) as r:
        started = await r.start_raw(
            {"agent": "tester", "prompt": "q"}, start_signal=PAUSE, start_signal_args=[ASKED]
        )
        run = AgentRunHandle(r.agents, started.id)
        assert (await held(r, run)).waiting_for == AWAITED
        assert r.provider.requests == []
        await run.resume()
        assert (await run.result(timeout=60)).answer == "Done."


async def test_resumed_while_no_worker_is_up(rig: RigFactory) -> None:
    """The server keeps the word: the next worker that comes goes on with the run."""
    gate = Gate()
    async with rig(one_call, tools=[gate.tool]) as r:
        run = await paused_at_the_boundary(r, gate)
        queue = r.agents.task_queue
    alone = AgentClient(r.client, task_queue=queue)
    assert await alone.resume(run.id, "bob", timeout=0.5) == "queued"
    async with rig(one_call, tools=[gate.tool], settings={"task_queue": queue}):
        assert (await run.result(timeout=30)).answer == "Done."
    events = await r.events(run.id)
    assert not [e for e in events if is_failed_task(e)]


async def test_the_first_pause_after_a_resume_counts(rig: RigFactory) -> None:
    """Resumed and paused again in one breath, it waits on, and says who pauses it now."""
    gate = Gate()
    async with rig(one_call, tools=[gate.tool]) as r:
        run = await paused_at_the_boundary(r, gate)
        queue = r.agents.task_queue
    handle = r.client.get_workflow_handle(run.id)
    await handle.signal(RESUME, {})
    await handle.signal(PAUSE, {"actor": "bob"})
    async with rig(one_call, tools=[gate.tool], settings={"task_queue": queue}):

        async def by_bob() -> bool:
            return (await held(r, run)).waiting_for == "a person to resume it, paused by bob"

        await until(by_bob)
        await run.resume()
        assert (await run.result(timeout=30)).answer == "Done."
