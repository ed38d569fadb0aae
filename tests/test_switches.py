"""Kill switches: a tool, an agent or a tenant, off for all runs within two seconds."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from activities import switched, switched_on
from tests.rig import AGENT, Rig, RigFactory, until
from turnkeeper import Limits, RetryTool, ask_person, outside, switchboard, tool
from turnkeeper.client import AgentClient
from turnkeeper.contract import SWITCH, SWITCHED_ON, SWITCHES
from turnkeeper.errors import InvalidRequest
from turnkeeper.switchboard import read, workflow_id
from turnkeeper.switches import MAX_SWITCHES, Switch, SwitchList
from turnkeeper.testing import Exchange, Reply, call, calls, text

BEGUN: list[float] = []
"""When the body of `pay` was begun, by the monotonic clock."""


@tool(effect="idempotent")
async def pay(n: int = 0) -> str:
    """Pay."""
    BEGUN.append(time.monotonic())
    return f"paid {n}"


@tool(effect="idempotent")
async def log_it(n: int = 0) -> str:
    """Log."""
    return "logged"


@tool(effect="read")
async def look() -> str:
    """Look."""
    return "seen"


@pytest.fixture(autouse=True)
def no_calls() -> None:
    """Each test counts its own."""
    BEGUN.clear()


def results(exchange: Exchange) -> Reply:
    """An answer that is all results of the last turn."""
    return text(" | ".join(r.text for r in exchange.last_results))


def done(_exchange: Exchange) -> Reply:
    """An answer at once."""
    return text("Done.")


def ever_on(exchange: Exchange) -> Reply:
    """Pay, again and again."""
    return call("pay", {"n": exchange.turn})


async def listed(agents: AgentClient) -> list[Switch]:
    """What is off for the client's task queue alone."""
    return (await read(agents.client, agents.task_queue)).switches


async def scheduled(r: Rig, run: str) -> list[str]:
    """Types of the activities that a run has scheduled."""
    return [
        e.activity_task_scheduled_event_attributes.activity_type.name
        for e in await r.events(run)
        if e.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
    ]


# --- tools ----------------------------------------------------------------------------------------


async def test_a_call_of_a_tool_that_is_off_is_not_run(rig: RigFactory) -> None:
    """The model reads who and why; it counts as no error, later changes of the reply are not run,
    and others of the agent's tools go on."""
    script = [
        calls([("look", {}), *[("pay", {"n": n}) for n in range(5)], ("log_it", {"n": 1})]),
        lambda x: call("log_it", {"n": 2}) if "ann" in str(x.last_results) else text("?"),
        results,
    ]
    limits = Limits(consecutive_errors=3)
    async with rig(script, tools=[pay, log_it, look], limits=limits) as r:
        assert await r.switch_off("tool", "pay", "too many.", "ann") == "switched"
        result = await r.run()
        assert (result.outcome, result.answer) == ("completed", "logged")
        assert (result.errors, result.unknown, BEGUN) == (0, [], [])
        told = [e.value["text"] for e in (await r.transcript()).entries if e.kind == "result"]
        off = "Tool pay was switched off by ann: too many. The call was not run."
        assert told[:2] == ["seen", off]
        assert told[2:7] == ["Not run: an earlier call of this reply failed."] * 5
        assert await r.task_failures() == 0


async def test_of_one_agent_only(rig: RigFactory) -> None:
    """`agent.tool` is that agent's tool alone; switched on again it is run."""
    async with rig(lambda x: ever_on(x) if x.turn < 3 else results(x), tools=[pay]) as r:
        await r.switch_off("tool", "another.pay", "x")
        await r.run(limits={"turns": 1})
        assert len(BEGUN) == 1
        await r.switch_off("tool", f"{AGENT}.pay", "x")
        await asyncio.sleep(switched.FRESH_SECONDS)
        await r.run(limits={"turns": 1})
        assert len(BEGUN) == 1
        await r.switch_on("tool", f"{AGENT}.pay")
        await asyncio.sleep(switched.FRESH_SECONDS)
        await r.run(limits={"turns": 1})
        assert len(BEGUN) == 2


async def test_nothing_begins_after_two_seconds(rig: RigFactory) -> None:
    """The bound that is promised, under load, from the moment at which the command has answered."""
    limits = Limits(turns=10_000, repetition=100)
    async with rig(ever_on, tools=[pay], limits=limits) as r:
        runs = [await r.start() for _ in range(5)]
        await until(lambda: len(BEGUN) > 20)
        await r.switch_off("tool", "pay", "stop it", "ann")
        answered = time.monotonic()
        await asyncio.sleep(2 * switched.FRESH_SECONDS + 1)
        assert max(BEGUN) < answered + switched.FRESH_SECONDS + 0.1
        # They went on meanwhile: it is the switch that kept them from it.
        turns = [(await run.status()).turn for run in runs]
        await until(lambda: _all_past(runs, turns))
        await asyncio.gather(*(run.stop("enough") for run in runs))
        await asyncio.gather(*(run.result(check=False) for run in runs))
        assert await r.task_failures() == 0


async def _all_past(runs: list[Any], turns: list[int]) -> bool:
    return all([(await r.status()).turn > t for r, t in zip(runs, turns, strict=True)])


async def test_a_call_that_runs_goes_on(rig: RigFactory) -> None:
    """Half an effect would be worse: what has begun is neither cancelled nor called unknown."""
    begun, go = asyncio.Event(), asyncio.Event()

    @tool
    async def send() -> str:
        """Send."""
        begun.set()
        await go.wait()
        return "sent"

    async with rig([call("send"), results], tools=[send]) as r:
        run = await r.start()
        await begun.wait()
        await r.switch_off("tool", "send", "x")
        await asyncio.sleep(switched.FRESH_SECONDS)
        go.set()
        assert (await run.result()).answer == "sent"


@pytest.mark.parametrize("sure", [True, False])
async def test_no_further_attempt_begins(rig: RigFactory, sure: bool) -> None:
    """After an attempt that may have taken effect the outcome is unknown, and is called so; after
    one that asked to be tried again nothing has happened."""
    begun: list[int] = []

    @tool(effect="idempotent", retries=5)
    async def send() -> str:
        """Send."""
        begun.append(1)
        await rigs[0].switch_off("tool", "send", "x", "ann")
        raise RetryTool("busy", delay=3) if sure else OSError("connection lost")

    rigs: list[Rig] = []
    script = [call("send"), results]
    async with rig(script, tools=[send], settings={"heartbeat_seconds": 4}) as r:
        rigs.append(r)
        result = await r.run()
        assert result.answer is not None
        assert "switched off by ann" in result.answer
        assert len(begun) <= 3  # within two seconds another one may begin
        assert bool(result.unknown) is not sure
        assert ("not run" in result.answer) is sure


# --- everywhere -----------------------------------------------------------------------------------


@tool(effect="idempotent")
async def wire() -> str:
    """Wire."""
    BEGUN.append(time.monotonic())
    return "wired"


def all_over(client: Client) -> AgentClient:
    """Of an operator who knows of no task queue."""
    return AgentClient(client, task_queue=f"nobody-{uuid.uuid4()}")


async def where_off(agents: AgentClient, name: str) -> list[str | None]:
    """On which task queues something is off; None: on all."""
    return [s.task_queue for s in await agents.switches() if s.name == name]


async def test_it_is_off_on_all_task_queues(rig: RigFactory, client: Client) -> None:
    """Unless one is named: also on those that nobody has thought of, until it is on again; any
    worker of the namespace answers, whichever has answered before."""
    everywhere = all_over(client)
    wiring = [call("wire"), results]
    keeps = {"keeps_switches": True}
    async with rig(wiring, tools=[wire], settings=keeps) as one:
        assert await everywhere.switch_off("tool", "wire", "twice", "ann") == "switched"
        assert "off by ann: twice" in str((await one.run()).answer)
    async with rig([*wiring, *wiring], tools=[wire], settings=keeps) as another:
        assert "off by ann: twice" in str((await another.run()).answer)
        assert await everywhere.switch_on("tool", "wire") == "switched"
        await asyncio.sleep(switched.FRESH_SECONDS)
        assert BEGUN == []
        assert (await another.run()).answer == "wired"
        another.ids.append(workflow_id(None))
        assert await another.task_failures() == 0


async def test_a_word_about_all_and_one_about_a_task_queue_stand_side_by_side(
    rig: RigFactory, client: Client
) -> None:
    """A list of before, of one task queue, is heeded as ever, is listed whoever asks, and what is
    off there is not switched on with the rest."""
    everywhere = all_over(client)
    async with rig([call("wire"), results], tools=[wire], settings={"keeps_switches": True}) as r:
        await r.switch_off("tool", "wire", "here")
        await everywhere.switch_off("tool", "wire", "everywhere")
        await until(lambda: _both(everywhere, r.task_queue))
        assert await everywhere.switch_on("tool", "wire") == "switched"
        assert await where_off(r.agents, "wire") == [r.task_queue]
        assert await all_over(client).switches(task_queue="another") == []
        assert "switched off: here" in str((await r.run()).answer)
        assert BEGUN == []


async def _both(agents: AgentClient, queue: str) -> bool:
    return await where_off(agents, "wire") == [None, queue]


async def test_a_tool_that_the_run_serves_is_off_as_well(rig: RigFactory) -> None:
    """No worker sees its calls: the model reads the same, and nobody is asked."""
    asks = call("ask_person", {"question": "Which?"})
    async with rig([asks, results, asks], tools=[ask_person]) as r:
        await r.switch_off("tool", "ask_person", "nobody is there", "ann")
        told = "Tool ask_person was switched off by ann: nobody is there. The call was not run."
        result = await r.run()
        assert (result.answer, result.errors) == (told, 0)
        await r.switch_on("tool", "ask_person")
        await asyncio.sleep(switched.FRESH_SECONDS)
        run = await r.start()

        async def asked() -> bool:
            return "Which?" in (await run.status()).waiting_for

        await until(asked)
        await run.stop("enough")


# --- agents and tenants ---------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "name"), [("agent", AGENT), ("tenant", "acme")])
async def test_its_runs_wait_and_go_on(
    rig: RigFactory, monkeypatch: pytest.MonkeyPatch, kind: Any, name: str
) -> None:
    """No request reaches the model, the run says what it waits for, a look adds no event, and it
    goes on when it is switched on again; its pending calls are not run."""
    monkeypatch.setattr(switched_on, "FIRST_WAIT_SECONDS", 0.2)
    monkeypatch.setattr(switched_on, "MOST_WAIT_SECONDS", 0.5)
    begun, release = asyncio.Event(), asyncio.Event()

    @tool(effect="read")
    async def wait() -> str:
        """Wait."""
        begun.set()
        await release.wait()
        return "done"

    script = [calls([("wait", {}), ("pay", {})]), results]
    async with rig(script, tools=[wait, pay]) as r:
        run = await r.start(metadata={"tenant": "acme"})
        other = f"{kind} {name} to be switched on again: off by ann: too dear"
        await begun.wait()
        await r.switch_off(kind, name, "too dear", "ann")
        await asyncio.sleep(switched.FRESH_SECONDS)
        release.set()
        await until(lambda: _waits(run, other))
        await until(lambda: listed_as_waiting(r, run.id, other))
        (finding,) = (await r.agents.why(run.id)).findings
        assert finding.what == f"it waits for {other}"
        assert "switch on" in finding.mend
        (listing,) = map(str, finding.commands)
        assert listing == f"switch list --task-queue {r.task_queue}"
        events = len(await r.events(run.id))
        await asyncio.sleep(2)
        assert len(await r.events(run.id)) == events
        assert (len(r.provider.requests), BEGUN) == (1, [])
        await r.switch_on(kind, name)
        result = await run.result(timeout=60)
        assert result.outcome == "completed"
        assert result.answer is not None
        assert result.answer.startswith(
            f"done | {kind.capitalize()} {name} was switched off by ann"
        )
        assert result.errors == 0
        assert not await outside.waits_of(await outside.describe(r.client, run.id))
        assert (await scheduled(r, run.id)).count(SWITCHED_ON) == 1
        assert await r.task_failures() == 0


async def listed_as_waiting(r: Rig, run: str, words: str) -> bool:
    """Whether lists find a run that waits for a switch, by its state and by what it waits for."""
    query = f"WorkflowId = '{run}' AND TurnkeeperStatus = 'waiting'"
    for kind in ("switch", "person"):
        found = [s async for s in r.agents.list_runs(query, waiting_for=kind)]
        if [(s.status, s.waiting_for) for s in found] != [("waiting", words)]:
            return False
    return True


async def _waits(run: Any, words: str) -> bool:
    return words in (await run.status()).waiting_for


async def test_another_tenant_is_not_concerned(rig: RigFactory) -> None:
    """Runs of other tenants, and of none, go on."""
    async with rig(done, tools=[pay]) as r:
        await r.switch_off("tenant", "acme", "x")
        for metadata in ({"tenant": "other"}, {}):
            assert (await r.run(metadata=metadata)).outcome == "completed"


async def test_a_run_that_waits_ends_at_its_deadline_or_when_it_is_stopped(rig: RigFactory) -> None:
    """A switch that nobody remembers holds no run for ever."""
    async with rig(done, tools=[pay]) as r:
        await r.switch_off("agent", AGENT, "x")
        late = await r.run(limits={"wall_seconds": 3})
        assert late.outcome == "time_limit"
        run = await r.start()
        await until(lambda: _waits(run, "switched on again"))
        await run.stop("enough")
        assert (await run.result(check=False)).outcome == "stopped"
        assert not r.provider.requests
        assert await r.task_failures() == 0


# --- the list -------------------------------------------------------------------------------------


async def test_the_list_says_who_and_why_and_keeps_the_first(rig: RigFactory) -> None:
    """Twice off is once off; on again takes it from the list; the list needs no worker."""
    async with rig([]) as r:
        assert await listed(r.agents) == []
        assert await r.switch_off("tool", "pay", "first", "ann") == "switched"
        assert await r.switch_off("tool", "pay", "second", "bob") == "unchanged"
        assert await r.switch_off("tenant", "acme & co", "unpaid") == "switched"
        assert await r.switch_on("agent", "nobody") == "unchanged"
    first, second = await listed(r.agents)
    assert (first.kind, first.name, first.reason, first.actor) == ("tool", "pay", "first", "ann")
    assert abs(first.since - time.time()) < 60
    assert (second.name, second.actor) == ("acme & co", None)


async def test_without_a_worker_it_waits_for_one(rig: RigFactory, client: Client) -> None:
    """The server keeps the change, and the next worker makes it."""
    queue = f"later-{uuid.uuid4()}"
    agents = AgentClient(client, task_queue=queue)
    left = await agents.switch_off("tool", "pay", "x", task_queue=queue, timeout=0.5)
    assert left == "queued"
    handle = client.get_workflow_handle(workflow_id(queue))
    assert (await handle.describe()).workflow_type == SWITCHES
    settings = {"task_queue": agents.task_queue}
    async with rig([call("pay"), results], tools=[pay], settings=settings):
        await until(lambda: listed(agents))
        answer = (await (await agents.start(AGENT, "question")).result()).answer
    assert answer == "Tool pay was switched off: x. The call was not run."


@pytest.mark.parametrize(
    ("kind", "name", "reason", "field"),
    [
        ("tool", "pay", " ", "reason"),
        ("tool", "no such name", "x", "name"),
        ("agent", "", "x", "name"),
        ("agent", "a" * 131, "x", "name"),
        ("tenant", "two\nlines", "x", "name"),
        ("tool", "pay", "x" * 301, "reason"),
        ("model", "m", "x", "kind"),
    ],
)
async def test_what_is_malformed_is_refused(
    client: Client, kind: Any, name: str, reason: str, field: str
) -> None:
    """Before anything is sent; the message names the field."""
    with pytest.raises(InvalidRequest, match=field):
        await AgentClient(client, task_queue="nobody").switch_off(kind, name, reason)


async def test_raw_messages_cannot_wedge_it(rig: RigFactory, client: Client) -> None:
    """Any client may send anything: it is refused or dropped, and the list goes on."""
    async with rig([]) as r:
        await r.switch_off("tool", "pay", "x")
        handle = client.get_workflow_handle(workflow_id(r.task_queue))
        bad: list[list[Any]] = [[], [1], [{"kind": "tool"}], [{}, {}], [{"kind": 1, "name": 1}]]
        for args in bad:
            await handle.signal(SWITCH, args=args)
            with pytest.raises(Exception, match="Workflow update failed"):
                await handle.execute_update(SWITCH, args=args)
        await r.switch_off("tool", "log_it", "x")
        assert [s.name for s in await listed(r.agents)] == ["pay", "log_it"]
        r.ids.append(handle.id)
        assert await r.task_failures() == 0


async def test_it_is_bounded_and_continues_as_new(rig: RigFactory, client: Client) -> None:
    """Changes beyond those of one history lose nothing; one thing too many is refused."""
    async with rig([]) as r:
        # The server takes ten updates of a workflow at once.
        for start in range(0, MAX_SWITCHES, 5):
            names = [f"tool-{n}" for n in range(start, start + 5)]
            done = [r.switch_off("tool", name, "x") for name in names]
            assert await asyncio.gather(*done) == ["switched"] * 5
        assert len({s.name for s in await listed(r.agents)}) == MAX_SWITCHES
        with pytest.raises(InvalidRequest, match="which is the most"):
            await r.switch_off("tool", "pay", "x")
        assert await r.switch_on("tool", "tool-7") == "switched"
        assert await r.switch_off("tool", "pay", "x") == "switched"
        r.ids.append(workflow_id(r.task_queue))
        executions = await r.executions(workflow_id(r.task_queue))
        assert len(executions) > 2
        assert max(len(events) for events in executions) < 600
        assert await r.task_failures() == 0


async def test_one_that_was_terminated_counts_on(rig: RigFactory, client: Client) -> None:
    """Who ends the workflow that keeps the list switches nothing on, now or at the next change."""
    async with rig([]) as r:
        await r.switch_off("tool", "pay", "x")
        await client.get_workflow_handle(workflow_id(r.task_queue)).terminate("tidy")
        assert [s.name for s in await listed(r.agents)] == ["pay"]
        await r.switch_off("tool", "log_it", "x")
        assert [s.name for s in await listed(r.agents)] == ["pay", "log_it"]


async def test_no_run_can_have_its_id(client: Client) -> None:
    """A run of that name would be taken for the list."""
    with pytest.raises(InvalidRequest, match="turnkeeper's own"):
        await AgentClient(client).start("a", "b", id=workflow_id("turnkeeper"))


# --- the worker's copy ----------------------------------------------------------------------------


async def test_all_calls_together_ask_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand looks in two seconds are one request; a server that is away costs one a time, the
    last copy counts, and the log says so once."""
    asked: list[int] = []
    fails = False

    async def answer(*_: Any) -> Any:
        asked.append(1)
        if fails:
            raise RPCError("away", RPCStatusCode.UNAVAILABLE, b"")
        return SwitchList.read([{"kind": "tool", "name": "pay", "reason": "x"}])

    now = [100.0]
    monkeypatch.setattr(switchboard, "in_force", answer)
    monkeypatch.setattr(switched, "clock", lambda: now[0])
    errors: list[str] = []
    monkeypatch.setattr(switched.log, "error", lambda event, **_: errors.append(event))
    client: Any = None
    copy = switched.Switched(client, "queue")
    await asyncio.gather(*(copy.now() for _ in range(1_000)))
    assert len(asked) == 1
    fails = True
    for _ in range(3):
        now[0] += switched.FRESH_SECONDS
        await asyncio.gather(*(copy.now() for _ in range(100)))
        assert (await copy.check_tool("a", "pay", None)) is not None
    assert (len(asked), len(errors)) == (4, 1)


async def test_nothing_is_off_where_there_is_no_list(client: Client) -> None:
    """Most applications never switch anything off."""
    assert (await read(client, "never-used")).switches == []
