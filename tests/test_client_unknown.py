"""AgentClient and calls with an unknown outcome: settled by people, listed over all runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from activities.load_agent import registered_attributes
from tests.archive import Archive
from tests.namespaces import bare_namespace
from tests.rig import RigFactory, open_rig, until
from turnkeeper import errors, tool
from turnkeeper.client import AgentClient, AgentRunHandle, UnknownOutcome
from turnkeeper.follow import Step
from turnkeeper.spec import HistoryPolicy
from turnkeeper.testing import call, text

SCRIPT: list[Any] = [
    call("send", {"to": "ann"}, id="c1"),
    lambda x: text(x.last_results[0].text),
]


@tool
async def send(to: str = "") -> str:
    """Send."""
    raise OSError(f"connection to {to} lost")


@tool(effect="read")
async def look() -> str:
    """Look."""
    return "seen"


async def waits(run: AgentRunHandle, call_id: str = "c1") -> AgentRunHandle:
    """The run, once its call waits for a person."""

    async def waiting() -> bool:
        unknown = (await run.status()).unknown
        return bool(unknown) and unknown[-1].status == "waiting"

    await until(waiting)
    assert (await run.status()).unknown[-1].call_id == call_id
    return run


async def listed(agents: AgentClient, *runs: str, **options: Any) -> list[UnknownOutcome]:
    """Of these runs; what is listed lags a little behind."""
    return [o async for o in agents.unknown_calls(**options) if o.id in runs]


# --- resolve ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("landed", "answer", "status"),
    [(True, "receipt 7", "landed"), (False, "send did not take effect", "not_landed")],
)
async def test_resolve_lets_a_run_go_on(
    rig: RigFactory, landed: bool, answer: str, status: str
) -> None:
    """The model reads what the person said; who it was is kept; afterwards the run is over."""
    async with rig(SCRIPT, tools=[send], on_unknown="wait") as r:
        run = await waits(await r.start())
        said = await run.resolve("c1", landed=landed, result="receipt 7", actor="ann")
        assert said == "resolved"
        result = await run.result(timeout=60)
        assert answer in (result.answer or "")
        assert [(u.status, u.actor) for u in result.unknown] == [(status, "ann")]
        assert [u.status for u in (await run.status()).unknown] == [status]
        assert await run.resolve("c1", landed=landed) == "ended"


async def test_of_two_at_once_one_wins(rig: RigFactory) -> None:
    """The other is told that it came too late, or that the run has gone on or ended."""
    async with rig(SCRIPT, tools=[send], on_unknown="wait") as r:
        run = await waits(await r.start())
        said = await asyncio.gather(
            run.resolve("c1", landed=True, result="first", actor="ann"),
            run.resolve("c1", landed=False, result="second", actor="bob"),
            return_exceptions=True,
        )
        assert said.count("resolved") == 1
        (other,) = [s for s in said if s != "resolved"]
        assert isinstance(other, errors.InvalidRequest) or other == "ended"
        (unknown,) = (await run.result(timeout=60)).unknown
        won = said.index("resolved")
        assert unknown.actor == ("ann", "bob")[won]
        assert unknown.status == ("landed", "not_landed")[won]


async def test_a_call_that_does_not_wait_is_refused_in_the_run_s_words(rig: RigFactory) -> None:
    """What waits is named, and the run is none the worse for it."""
    async with rig(SCRIPT, tools=[send], on_unknown="wait") as r:
        run = await waits(await r.start())
        with pytest.raises(errors.InvalidRequest, match=r"no call 'c2' waits .*; waiting: c1$"):
            await run.resolve("c2", landed=True)
        for body in ({"call_id": ""}, {"call_id": "c1", "result": "x" * 20_001}):
            with pytest.raises(errors.InvalidRequest, match=next(reversed(body))):
                await run.resolve(**body, landed=True)
        assert await run.resolve("c1", landed=True) == "resolved"
        await run.result(timeout=60)
    with pytest.raises(LookupError, match="no run nowhere"):
        await r.agents.resolve("nowhere", "c1", landed=True)


async def test_it_is_kept_in_the_server_while_no_worker_is_up(rig: RigFactory) -> None:
    """Delivered to the next worker; what the run would drop is refused instead."""
    async with rig(SCRIPT, tools=[send], on_unknown="wait") as first:
        run = await waits(await first.start())
    with pytest.raises(errors.InvalidRequest, match=r"no call 'c2' waits .*; waiting: c1$"):
        await run.client.resolve(run.id, "c2", landed=True, timeout=0.3)
    said = await run.client.resolve(run.id, "c1", landed=True, result="receipt 7", timeout=0.3)
    assert said == "queued"
    queue = {"task_queue": first.task_queue}
    async with rig(SCRIPT, tools=[send], on_unknown="wait", settings=queue):
        result = await run.result(timeout=30)
    assert result.answer == "receipt 7"
    assert [u.status for u in result.unknown] == ["landed"]


# --- the list -----------------------------------------------------------------------------------


async def test_calls_are_listed_over_all_runs(rig: RigFactory) -> None:
    """Those that wait, and those that were told to the model; not those that were settled."""
    async with rig(SCRIPT, tools=[send], on_unknown="wait") as r:
        settled, waiting = [await waits(await r.start()) for _ in range(2)]
        await settled.resolve("c1", landed=True)
        await settled.result(timeout=60)
    async with rig(SCRIPT, tools=[send]) as r:
        told = await r.start()
        await told.result()
        runs = (settled.id, waiting.id, told.id)
        found = await until(lambda: _of(r.agents, runs, 2))
        by_run = {o.id: o for o in found}
        assert set(by_run) == {waiting.id, told.id}
        one = by_run[waiting.id]
        assert (one.agent, one.status, one.run_id) == ("tester", "waiting", waiting.run_id)
        assert (one.call.call_id, one.call.tool, one.call.status) == ("c1", "send", "waiting")
        assert one.call.arguments == 'to="ann"'
        assert len(one.call.key) == 32
        assert "connection to ann lost" in one.call.what
        assert (by_run[told.id].status, by_run[told.id].call.status) == ("completed", "open")
        only = await listed(r.agents, *runs, waiting_only=True)
        assert [o.id for o in only] == [waiting.id]
        assert await listed(r.agents, *runs, query=f"WorkflowId = '{told.id}'") == [by_run[told.id]]
        with pytest.raises(ValueError, match="query"):
            await listed(r.agents, query="nonsense = 'x'")
    await waiting.client.client.get_workflow_handle(waiting.id).terminate()
    # It could not say so itself any more: nobody resolves it now.
    status = await waiting.status()
    assert (status.outcome, [u.status for u in status.unknown]) == ("terminated", ["open"])
    (ended,) = await until(lambda: _open(r.agents, waiting.id))
    assert ended.status == "terminated"
    assert not await listed(r.agents, waiting.id, waiting_only=True)


async def _of(agents: AgentClient, runs: tuple[str, ...], count: int) -> list[UnknownOutcome]:
    found = await listed(agents, *runs)
    return found if len(found) == count else []


async def _open(agents: AgentClient, run: str) -> list[UnknownOutcome]:
    return [o for o in await listed(agents, run) if o.call.status == "open"]


@pytest.mark.long
async def test_thirty_runs_are_listed_and_the_limit_is_of_runs(rig: RigFactory) -> None:
    """Each run's calls once, the newest first; with a limit that many runs are read."""
    script = [call("send", id="a"), call("send", id="b"), text("Done.")]
    async with rig(script, tools=[send]) as r:
        runs = await asyncio.gather(*(r.start(str(n)) for n in range(30)))
        await asyncio.gather(*(run.result(timeout=180) for run in runs))
        query = f"TaskQueue = '{r.task_queue}'"

        async def found(**options: Any) -> list[UnknownOutcome]:
            return [o async for o in r.agents.unknown_calls(query, **options)]

        async def all_of_them() -> list[UnknownOutcome]:
            every = await found()
            return every if len(every) == 60 else []

        every = await until(all_of_them, timeout=60)
        assert {o.id for o in every} == {run.id for run in runs}
        assert [o.call.call_id for o in every] == ["b", "a"] * 30
        assert len({o.id for o in await found(limit=7)}) == 7


async def test_a_continued_run_is_still_listed(rig: RigFactory) -> None:
    """What was published in an earlier execution is not forgotten with its history."""
    script = [call("send", id="c1"), *[call("look")] * 15, text("Done.")]
    policy = HistoryPolicy(events=50)
    async with rig(script, tools=[send, look], history=policy) as r:
        run = await r.start(limits={"repetition": 100})
        result = await run.result(timeout=60)
        assert len(await r.executions()) > 1
        assert [u.status for u in result.unknown] == ["open"]
        (found,) = await until(lambda: _of(r.agents, (run.id,), 1))
        assert (found.status, found.call.call_id) == ("completed", "c1")


@pytest.fixture
async def bare(client: Client, histories: Archive) -> AsyncIterator[Client]:
    """A client of a namespace without our search attributes."""
    found = histories.watched(await bare_namespace(client))
    yield found
    await histories.take(found)


async def test_without_our_search_attributes_every_run_is_looked_at(
    bare: Client, tmp_path: Path
) -> None:
    """The memo tells; runs without such calls are passed over."""
    assert await registered_attributes(bare) == []

    def script(exchange: Any) -> Any:
        if exchange.prompt == "plain":
            return text("Hello.")
        return SCRIPT[0] if exchange.turn == 0 else text("Done.")

    async with open_rig(bare, tmp_path, script, tools=[send], on_unknown="wait") as r:
        await (await r.start("plain")).result()
        run = await waits(await r.start())
        (found,) = await until(lambda: _of(r.agents, (run.id,), 1))
        assert (found.agent, found.call.call_id, found.call.status) == ("tester", "c1", "waiting")
        assert [o.id for o in await listed(r.agents, run.id, waiting_only=True)] == [run.id]
        (summary,) = [s async for s in r.agents.list_runs("ExecutionStatus = 'Running'")]
        assert (summary.id, summary.status) == (run.id, "waiting")
        await run.resolve("c1", landed=True)
        await run.result(timeout=60)

        async def gone() -> bool:
            return not await listed(r.agents, run.id)

        await until(gone)


# --- status, list, follow -----------------------------------------------------------------------


async def test_a_waiting_run_says_so_without_a_worker(rig: RigFactory) -> None:
    """In its status, which call it is, and in the list of runs."""
    async with rig(SCRIPT, tools=[send], on_unknown="wait") as r:
        run = await waits(await r.start())
    status = await run.client.status(run.id, timeout=0.3)
    assert status.waiting_for == (
        "a person to say whether send (call c1) took effect; no worker answers"
    )
    assert (status.phase, [(c.call_id, c.status) for c in status.calls]) == (
        "EXECUTE",
        [("c1", "waiting")],
    )
    assert [u.call_id for u in status.unknown] == ["c1"]

    async def shown() -> list[str]:
        found = [s async for s in run.client.list_runs(f"WorkflowId = '{run.id}'")]
        return [s.status for s in found if s.status == "waiting"]

    assert await until(shown) == ["waiting"]
    await run.client.client.get_workflow_handle(run.id).terminate()


async def test_the_steps_tell_when_a_call_begins_to_wait_and_who_settled_it(
    rig: RigFactory,
) -> None:
    """Two steps, in the turn of the call, the first with its id."""
    async with rig(SCRIPT, tools=[send], on_unknown="wait") as r:
        run = await waits(await r.start())
        await run.resolve("c1", landed=False, actor="ann")
        assert [(s.turn, s.phase, s.text, s.call_id) for s in await _after(run, "WAITING")][:2] == [
            (1, "WAITING", "for a person to say whether send (call c1) took effect", "c1"),
            (1, "EXECUTE", "-> send (call c1) did not take effect, says ann (unverified)", ""),
        ]


async def test_the_steps_tell_when_nobody_settled_it(rig: RigFactory) -> None:
    """A run that is stopped while it waits leaves the call open."""
    async with rig(SCRIPT, tools=[send], on_unknown="wait") as r:
        run = await waits(await r.start())
        await run.stop("enough")
        steps = await _after(run, "WAITING")
        assert "-> send (call c1) may or may not have taken effect" in [s.text for s in steps]
        result = await run.result(check=False)
        assert [u.status for u in result.unknown] == ["open"]


async def _after(run: AgentRunHandle, phase: str) -> list[Step]:
    """The run's steps from the first of a phase on."""
    steps = [s async for s in run.follow()]
    return steps[[s.phase for s in steps].index(phase) :]


async def test_an_end_by_an_unknown_outcome_names_the_call(rig: RigFactory) -> None:
    """The error says which call, and where to look at it."""
    async with rig(SCRIPT, tools=[send], on_unknown="stop") as r:
        run = await r.start()
        with pytest.raises(errors.RunFailed, match=r"outcome_unknown: turn 1, call c1: ") as raised:
            await run.result(timeout=60)
        assert "`result.unknown` has the call" in str(raised.value)
        (found,) = await until(lambda: _of(r.agents, (run.id,), 1))
        assert (found.status, found.call.status) == ("failed", "open")
