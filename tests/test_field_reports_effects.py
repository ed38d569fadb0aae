"""Failures that people met in public: effects that happened twice, and calls paid for twice.

The ids are those of the collected reports. The oracle is the effect ledger, which nothing kills.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import os
import signal
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import (
    DeleteWorkflowExecutionRequest,
)
from temporalio.client import Client
from temporalio.common import RetryPolicy
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import WorkflowEnvironment

from tests.archive import Archive
from tests.effect_tools import agent, refund, send
from tests.rig import Rig, RigFactory, open_rig, until
from tests.workers import Site, open_site
from turnkeeper import ToolContext, tool
from turnkeeper.client import AgentClient, AgentRunHandle
from turnkeeper.contract import RunResult
from turnkeeper.ledger import create_ledger, once_per_key
from turnkeeper.testing import EffectLedger, Exchange, call, calls, embedded, status, text
from turnkeeper.testing.embedded import EmbeddedServer
from turnkeeper.testing.provider import Reply

# Workers start slowly where much else is at work.
pytestmark = pytest.mark.timeout(300)

TOOL_MODULE = "tests.effect_tools"
BEAT = ("--heartbeat-seconds", "2")


def one_call(exchange: Exchange) -> Reply:
    """A prompt `TOOL ARGUMENT=SECONDS ...` is called as it is, and the result is the answer."""
    if exchange.turn:
        return text(exchange.last_results[0].text)
    name, *given = exchange.prompt.split()
    pairs = (item.split("=") for item in given)
    return call(name, {argument: float(value) for argument, value in pairs})


# --- keys -----------------------------------------------------------------------------------------


async def test_b29_the_tools_name_as_the_calls_id_makes_distinct_keys(
    rig: RigFactory, ledger: EffectLedger
) -> None:
    """Three turns, each call with the tool's name for an id, and two in one reply: every call has
    a key of its own and its effect, and every request is valid."""
    named = call("refund", id="refund")
    script = [named, named, calls([named, named]), text("Done.")]
    async with rig(script, tools=[refund]) as r:
        result = await r.run()
        assert (result.outcome, result.calls, result.errors) == ("completed", 4, 0)
        assert not r.provider.rejections
        ids = {e.value["call_id"] for e in (await r.transcript()).entries if e.kind == "result"}
    assert len({e.key for e in ledger.effects()}) == len(ledger.arrivals()) == 4
    assert len(ids) == 4


# --- attempts that are taken for lost -------------------------------------------------------------


async def test_b30_a_tool_longer_than_the_heartbeat_limit_is_not_begun_again(
    rig: RigFactory, ledger: EffectLedger
) -> None:
    """Twice the heartbeat timeout without a word of its own, then the effect: one attempt, under
    every effect, in the worker and in a process."""
    names = ["refund", "book", "send", "pay"]
    async with rig(one_call, agents=[agent], settings={"heartbeat_seconds": 2}) as r:
        slow = [r.run(f"{name} before=4", agent="effects") for name in names]
        results = await asyncio.gather(*slow)
    assert [(x.outcome, x.errors) for x in results] == [("completed", 0)] * 4
    assert {x.answer for x in results} == {a.receipt for a in ledger.arrivals()}
    assert sorted(a.name for a in ledger.arrivals()) == sorted(names)


@dataclasses.dataclass
class TakenOver:
    """A worker died with calls in flight, and two that started at one moment took over."""

    site: Site
    ledger: EffectLedger
    ids: dict[str, str]
    """Of the runs, by prompt."""
    results: dict[str, RunResult]

    def entries(self, prompt: str) -> list[int]:
        """The attempts in which the tool of a run was entered."""
        lines = self.site.calls("begin")
        return [line["attempt"] for line in lines if line["run"] == self.ids[prompt]]


LEFT = ["refund after=60", "book after=60", "send after=60"]
WAITING = [f"send before=0.{n}" for n in range(5, 9)]


@pytest.fixture(scope="module")
async def taken_over(
    client: Client, server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[TakenOver]:
    """SIGKILL after three tools' posts and before their returns; four runs nobody has begun."""
    folder = tmp_path_factory.mktemp("taken-over")
    with EffectLedger(folder / "effects.db") as oracle:
        known = {"LEDGER_URL": oracle.url}
        async with open_site(
            client, server.address, folder, one_call, module=TOOL_MODULE, environment=known
        ) as s:
            dead = await s.worker(*BEAT)
            runs = {prompt: await s.start(prompt, agent="effects") for prompt in LEFT}
            await until(lambda: len(s.calls("posted")) == len(LEFT))
            await s.kill(dead)
            runs |= {prompt: await s.start(prompt, agent="effects") for prompt in WAITING}
            await asyncio.gather(s.worker(*BEAT), s.worker(*BEAT))
            results = {prompt: await run.result(timeout=90) for prompt, run in runs.items()}
            ids = {prompt: run.id for prompt, run in runs.items()}
            yield TakenOver(s, oracle, ids, results)


@pytest.mark.long
@pytest.mark.crash
async def test_b30_the_receipt_comes_back_after_a_kill(taken_over: TakenOver) -> None:
    """SIGKILL after the post and before the return: one effect per call. The next attempt has the
    first one's receipt, by the key or from the probe; of `once` the outcome is unknown."""
    refund, book, send = LEFT
    arrivals = {
        name: [a for a in taken_over.ledger.arrivals() if a.name == name]
        for name in ("refund", "book")
    }
    assert [a.applied for a in arrivals["refund"]] == [True, False]
    assert [a.applied for a in arrivals["book"]] == [True]
    assert taken_over.results[refund].answer == arrivals["refund"][0].receipt
    assert taken_over.results[book].answer == arrivals["book"][0].receipt
    assert "may or may not have taken effect" in str(taken_over.results[send].answer)
    assert taken_over.entries(send) == [1]


@pytest.mark.crash
async def test_b20_an_open_call_gets_exactly_one_result_after_a_kill(
    taken_over: TakenOver,
) -> None:
    """SIGKILL after the reply was recorded and before its call had a result: every request of the
    next worker is valid, with one result for the call, recovered or of an unknown outcome."""
    s, receipts = taken_over.site, {a.receipt for a in taken_over.ledger.arrivals()}
    for prompt in LEFT:
        entries = (await s.agents.transcript(taken_over.ids[prompt])).entries
        assert [e.kind for e in entries] == ["message", "reply", "result", "reply"]
        told = entries[2].value["text"]
        assert told in receipts or "may or may not have taken effect" in told
        assert [r.turn for r in s.provider.requests if r.prompt == prompt] == [0, 1]
    assert not s.provider.rejections


@pytest.mark.crash
async def test_b30_a_stalled_worker_and_the_next_one_apply_one_effect(
    taken_over: TakenOver,
) -> None:
    """A tool holds up its whole worker for twice the heartbeat limit, then posts: meanwhile one
    more attempt is made, elsewhere, and both have one receipt."""
    s = taken_over.site
    run = await s.start("stall before=4", agent="effects")
    result = await run.result(timeout=60)
    await until(lambda: len(s.calls("posted", "stall")) == 2)
    effect, repeat = (a for a in taken_over.ledger.arrivals() if a.name == "stall")
    assert (effect.applied, repeat.applied) == (True, False)
    assert result.answer == effect.receipt
    assert [line["attempt"] for line in s.calls("begin", "stall")] == [1, 2]


@pytest.mark.crash
async def test_b33_two_workers_at_the_same_moment_are_one_owner(taken_over: TakenOver) -> None:
    """Two workers start at once on runs that wait. Those that nobody had begun are entered once,
    those that a dead worker left once more, or by the probe not at all."""
    assert {r.outcome for r in taken_over.results.values()} == {"completed"}
    assert [taken_over.entries(prompt) for prompt in LEFT] == [[1, 2], [1], [1]]
    assert [taken_over.entries(prompt) for prompt in WAITING] == [[1]] * len(WAITING)
    sent = [a for a in taken_over.ledger.arrivals() if a.name == "send"]
    assert len(sent) == len(WAITING) + 1


# --- whole runs -----------------------------------------------------------------------------------


async def test_b32_a_late_refusal_does_not_repeat_the_earlier_call(
    rig: RigFactory, ledger: EffectLedger
) -> None:
    """A 400 on turn 2 after a tool ran on turn 1 ends the run, which is executed once; a retry
    policy for the whole run is refused before anything happens, with the way to go."""
    script = [call("send"), status(400)]
    async with rig(script, tools=[send]) as r:
        assert (await r.run()).outcome == "model_rejected"
        assert len(await r.executions()) == 1
        assert len(ledger.arrivals()) == 1
        refused = await r.start_raw(
            {"agent": "tester", "prompt": "q"}, retry_policy=RetryPolicy(maximum_attempts=3)
        )
        result = await r.agents.result(refused.id, check=False)
        assert result.outcome == "invalid_request"
        assert "workflow retry policy" in (result.reason or "")
        assert "Schedule" in (result.reason or "")
    assert len(ledger.arrivals()) == 1


async def test_b32_a_rerun_keeps_what_was_recorded(rig: RigFactory, ledger: EffectLedger) -> None:
    """Asked for in so many words, by Temporal's reset to where the tool's result was recorded: a
    run of its own goes on from there, and the tool is not called again."""
    script: list[Any] = [call("send"), [status(400), text("Done.")]]
    async with rig(script, tools=[send]) as r:
        run = await r.start()
        assert (await run.result(check=False)).outcome == "model_rejected"
        await reset(r, run, after="send")
        assert (await run.result(check=False)).answer == "Done."
        assert [r.turn for r in r.provider.requests] == [0, 1, 1]
    assert len(ledger.arrivals()) == 1


async def reset(r: Rig, run: AgentRunHandle, *, after: str) -> None:
    """Have the server fork the run at the workflow task that took this tool's result."""
    events = await r.events(run.id)
    called = next(
        e.event_id
        for e in events
        if e.activity_task_scheduled_event_attributes.activity_type.name == after
    )
    completed = next(
        e.event_id
        for e in events
        if e.activity_task_completed_event_attributes.scheduled_event_id == called
    )
    task = next(
        e.event_id
        for e in events
        if e.event_id > completed and e.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
    )
    await r.reset(run, task)


def execution(run: AgentRunHandle) -> WorkflowExecution:
    """The last execution of a run, for the server."""
    return WorkflowExecution(workflow_id=run.id)


# --- ids that are used again ----------------------------------------------------------------------


async def delete(client: Client, run: AgentRunHandle) -> None:
    """Ask the server to delete a closed run."""
    await client.workflow_service.delete_workflow_execution(
        DeleteWorkflowExecutionRequest(
            namespace=client.namespace, workflow_execution=execution(run)
        )
    )


async def is_gone(client: Client, run: AgentRunHandle) -> bool:
    """Whether the server knows nothing of it any more."""
    try:
        await client.get_workflow_handle(run.id).describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return True
        raise
    return False


def keyed_tools(database: Path) -> tuple[Any, Any]:
    """An idempotent tool with the ledger's receipt, and one with a database of its own."""
    engine = sa.create_engine(f"sqlite:///{database}")
    create_ledger(engine)
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE refunds (key TEXT)"))

    @tool(effect="idempotent")
    def enter(ctx: ToolContext) -> Any:
        """Enter a refund."""
        with engine.begin() as connection, once_per_key(connection, ctx) as effect:
            if effect.is_new:
                key = {"key": ctx.idempotency_key}
                connection.execute(sa.text("INSERT INTO refunds VALUES (:key)"), key)
                effect.receipt = ctx.idempotency_key
        return effect.receipt

    return refund, enter


def entered(database: Path) -> int:
    """How many refunds the tool with its own database made."""
    with contextlib.closing(sqlite3.connect(database)) as reading:
        return int(reading.execute("SELECT count(*) FROM refunds").fetchone()[0])


BOTH: list[Any] = [
    calls([("refund", {}), ("enter", {})]),
    lambda x: text(" ".join(r.text for r in x.last_results)),
]


@contextlib.asynccontextmanager
async def served(folder: Path, tools: Any) -> AsyncIterator[tuple[Rig, EmbeddedServer]]:
    """A rig on a server of its own, over the database of the one before it."""
    server = await asyncio.to_thread(EmbeddedServer.start, folder / "server", port=0)
    try:
        client = (await AgentClient.connect(server.address)).client
        async with open_rig(client, folder, BOTH, tools=tools) as r:
            yield r, server
    finally:
        await asyncio.to_thread(server.stop)


def deletes_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server deletes once its queues have passed the run's end: by default, after 30 s."""
    tuned = embedded.dev_server_arguments
    soon = '--dynamic-config-value=history.transferProcessorUpdateAckInterval="200ms"'
    monkeypatch.setattr(embedded, "dev_server_arguments", lambda **o: [*tuned(**o), soon])


async def test_b34_a_deleted_runs_id_serves_no_stale_result(
    ledger: EffectLedger, tmp_path: Path, histories: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deleted, and started again with the same id: the work is done anew. Without a request key
    its effects are new ones; with the same one they are those that were, and applied once."""
    deletes_soon(monkeypatch)
    database = tmp_path / "orders.db"
    requests = [{"id": "order-1"}, {"id": "order-2", "request_key": "q-17"}]
    async with served(tmp_path, keyed_tools(database)) as (r, _):
        runs = [await r.start(**request) for request in requests]
        first = [(await run.result(timeout=30)).answer for run in runs]
        await histories.take(r.client)
        for run in runs:
            await delete(r.client, run)
        for run in runs:
            await until(functools.partial(is_gone, r.client, run))
        again = [await r.start(**request) for request in requests]
        assert not any(run.existed for run in again)
        second = [(await run.result(timeout=30)).answer for run in again]
        assert sorted(x.turn or 0 for x in r.provider.requests) == [0] * 4 + [1] * 4
        await histories.take(r.client)
    assert second[0] != first[0]
    assert second[1] == first[1]
    assert (len(ledger.effects()), len(ledger.arrivals()), entered(database)) == (3, 4, 3)


@pytest.mark.crash
async def test_b34_a_kill_during_the_deletion_leaves_nothing_stale(
    ledger: EffectLedger, tmp_path: Path, histories: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server dies while it deletes: deleting is asked for again without harm, and then the
    same id begins a run that is new."""
    database = tmp_path / "orders.db"
    tools, request = keyed_tools(database), {"id": "order-2", "request_key": "q-17"}
    async with served(tmp_path, tools) as (r, server):
        run = await r.start(**request)
        first = await run.result(timeout=30)
        await histories.take(r.client)
        await delete(r.client, run)
        assert not await is_gone(r.client, run)
        os.kill(server.pid, signal.SIGKILL)
    deletes_soon(monkeypatch)
    async with served(tmp_path, tools) as (r, _):
        run = AgentRunHandle(r.agents, run.id)
        with contextlib.suppress(RPCError):
            await delete(r.client, run)
        await until(lambda: is_gone(r.client, run))
        again = await r.start(**request)
        assert not again.existed
        assert (await again.result(timeout=30)).answer == first.answer
        assert [x.turn for x in r.provider.requests] == [0, 1]
        await histories.take(r.client)
    assert (len(ledger.effects()), len(ledger.arrivals()), entered(database)) == (1, 2, 1)


# --- model calls ----------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [500, 429])
async def test_b36_one_layer_retries(
    virtual: WorkflowEnvironment, tmp_path: Path, code: int
) -> None:
    """A provider that refuses everything: on the wire are as many requests as Temporal makes
    attempts, the eight that are configured; the SDK adds none."""
    sdk_retries = []

    def refuse(exchange: Exchange) -> Reply:
        sdk_retries.append(exchange.headers["x-stainless-retry-count"])
        return status(code)

    async with open_rig(virtual.client, tmp_path, refuse) as r:
        assert (await r.run()).outcome == "model_unavailable"
        started = [e.activity_task_started_event_attributes for e in await r.events()]
        assert max(s.attempt for s in started) == 8
    assert sdk_retries == ["0"] * 8


async def test_b37_a_slow_reply_that_keeps_coming_is_not_given_up(rig: RigFactory) -> None:
    """A reply of 1.5 times the limit, never silent for as long: one request, which is used."""
    slow = text("word " * 20, chunk=5, delay_between=0.1)
    async with rig([slow], silence=1) as r:
        result = await r.run()
        assert (result.outcome, len(r.provider.requests)) == ("completed", 1)
        assert result.seconds >= 1.5
        assert result.usage.estimated_tokens == 0


@pytest.mark.long
async def test_b37_calls_given_up_are_counted_as_spent(rig: RigFactory) -> None:
    """A provider that is silent for 1.5 times the limit finishes and bills what nobody reads: at
    most as many calls as there are attempts, and what was sent counts as spent."""
    late = text("Late.", delay=1.5)
    prompt = "p" * 4_000
    async with rig([[late, late, text("Done.")]], silence=1) as r:
        result = await r.run(prompt)
        assert (result.answer, len(r.provider.requests)) == ("Done.", 3)
        billed = [x.tokens or 0 for x in r.provider.requests if x.outcome == "client_gone"]
        assert len(billed) == 2
        assert result.usage.estimated_input_tokens >= 2_000
