"""AgentClient: against a real server, with and without a worker."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from temporalio import workflow
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.client import Client, WorkflowFailureError
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

import worker
from activities.load_agent import registered_attributes
from activities.providers.anthropic import AnthropicProvider
from activities.registry import Registry
from tests.rig import Rig, RigFactory, until
from turnkeeper import Agent, Limits, ToolFailed, errors, tool
from turnkeeper.artifacts import FolderStore
from turnkeeper.client import AgentClient, RunSummary
from turnkeeper.contract import WORKFLOW
from turnkeeper.follow import Step
from turnkeeper.spec import HistoryPolicy
from turnkeeper.testing import Exchange, ScriptedProvider, call, status, text
from turnkeeper.testing.embedded import EmbeddedServer
from turnkeeper.testing.provider import Reply

# A tool learns that it is cancelled by its next heartbeat.
QUICK = {"heartbeat_seconds": 1.0}


@tool(effect="read")
async def wait_for(seconds: float) -> str:
    """Wait."""
    await asyncio.sleep(seconds)
    return f"waited {seconds}"


@tool(effect="read")
def fail() -> str:
    """Fail."""
    raise ToolFailed("no")


@pytest.fixture
def unserved(client: Client, tmp_path: Path) -> AgentClient:
    """A client whose task queue has no worker."""
    store = FolderStore(tmp_path)
    return AgentClient(client, task_queue=f"unserved-{uuid.uuid4()}", store=store)


@pytest.fixture(scope="module")
async def other(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Client]:
    """A server for workflows that are not ours: those of the session's are all replayed as ours."""
    with EmbeddedServer.start(tmp_path_factory.mktemp("other"), port=0) as running:
        yield (await AgentClient.connect(running.address)).client


@pytest.fixture
async def ended(client: Client, unserved: AgentClient) -> AsyncIterator[list[str]]:
    """Ids of runs to terminate after the test, so that none stays open."""
    ids: list[str] = []
    yield ids
    for run in ids:
        await client.get_workflow_handle(run).terminate(reason="the test is over")


# --- start --------------------------------------------------------------------------------------


async def test_a_start_returns_a_handle_with_a_short_readable_id(rig: RigFactory) -> None:
    """Without an id of the caller's the run is named after its agent."""
    async with rig([text("Hello.")]) as r:
        run = await r.start("Hi")
        assert run.id.startswith("tester-")
        assert len(run.id) < 20
        assert not run.existed
        assert (await run.result()).answer == "Hello."


async def test_a_repeated_start_gives_the_run_that_exists(rig: RigFactory) -> None:
    """The same id never runs an agent twice, neither while it runs nor after it ended."""
    async with rig([call("wait_for", {"seconds": 0.5}), text("Once.")], tools=[wait_for]) as r:
        name = f"twice-{uuid.uuid4()}"
        first = await r.start(id=name)
        during = await r.start(id=name)
        assert (await first.result()).answer == "Once."
        after = await r.start(id=name)
        assert [h.existed for h in (first, during, after)] == [False, True, True]
        assert (await after.result()).answer == (await during.result()).answer == "Once."
        assert len(r.provider.requests) == 2


async def test_an_id_is_not_shared_by_two_requests(unserved: AgentClient, ended: list[str]) -> None:
    """The answer to another question is never given for one's own: what differs is named."""
    name = f"taken-{uuid.uuid4()}"
    asked: dict[str, Any] = {
        "limits": {"turns": 3, "wall_seconds": 60},
        "request_key": "k",
        "metadata": {"tenant": "acme"},
    }
    await unserved.start("tester", "question", id=name, **asked)
    ended.append(name)
    assert (await unserved.start("tester", "question", id=name, **asked)).existed
    for other, told in (
        ({"prompt": "another"}, "another prompt;"),
        ({"agent": "else", "limits": {"turns": 4}}, "another agent and limits;"),
        ({"request_key": None}, "another request_key;"),
        ({"metadata": {}}, "another metadata;"),
    ):
        request: dict[str, Any] = {"agent": "tester", "prompt": "question"} | asked | other
        with pytest.raises(errors.InvalidRequest, match=f"run {name} exists already, with {told}"):
            await unserved.start(id=name, **request)


@pytest.mark.parametrize(
    ("request_", "named"),
    [
        ({"agent": ""}, "agent"),
        ({"prompt": "  \n"}, "prompt"),
        ({"prompt": "x\ud800"}, "surrogate"),
        ({"id": "with space"}, "id"),
        ({"id": "x" * 201}, "id"),
        ({"id": "-option"}, "id"),
        ({"id": ""}, "id"),
        ({"prompt": ""}, "^prompt: is empty$"),
        ({"limits": {"turns": 0}}, r"^limits\.turns: Input should be"),
        ({"limits": {"turns": "abc"}}, r"^limits\.turns: 'abc' is not a whole number$"),
        ({"limits": {"wall_seconds": "x"}}, r"^limits\.wall_seconds: 'x' is not a number$"),
        ({"limits": {"cost_usd_per_day": 1}}, "limits per day are those of an agent"),
        ({"limits": {"tunrs": 3}}, "tunrs"),
        ({"metadata": {"tenant": "x" * 513}}, "metadata"),
        ({"metadata": {"tenant": 7}}, "metadata.tenant"),
        ({"request_key": ""}, "request_key"),
    ],
)
async def test_a_malformed_start_is_refused_before_anything_runs(
    unserved: AgentClient, request_: dict[str, object], named: str
) -> None:
    """The caller reads which field is wrong; no workflow is started."""
    asked = {"agent": "tester", "prompt": "question"} | request_
    agent, prompt = str(asked.pop("agent")), str(asked.pop("prompt"))
    with pytest.raises(errors.InvalidRequest, match=named) as raised:
        await unserved.start(agent, prompt, **asked)  # type: ignore[arg-type]
    assert raised.value.outcome == "invalid_request"


async def test_an_id_of_another_workflow_is_not_taken_for_a_run(other: Client) -> None:
    """A foreign workflow under the id is named as such, not returned as if it were ours."""
    await other.start_workflow("Other", id="other", task_queue="nobody")
    agents = AgentClient(other)
    with pytest.raises(errors.InvalidRequest, match="workflow of type Other"):
        await agents.start("tester", "question", id="other")
    with pytest.raises(errors.InvalidRequest, match="workflow of type Other"):
        await agents.status("other")


# --- result -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "limits", "error", "outcome"),
    [
        ([call("fail", {})] * 3, {"consecutive_errors": 2}, errors.LimitReached, "error_limit"),
        ([call("fail", {})], {"turns": 1}, errors.LimitReached, "turn_limit"),
        ([text("No.", stop_reason="refusal")], {}, errors.AnswerRefused, "refused"),
    ],
)
async def test_every_end_but_completed_is_a_typed_error(
    rig: RigFactory,
    script: list[object],
    limits: dict[str, int],
    error: type[errors.RunError],
    outcome: str,
) -> None:
    """The error carries outcome and result; `check=False` returns the same result instead."""
    async with rig(script, tools=[fail]) as r:
        run = await r.start(limits=limits)
        with pytest.raises(error) as raised:
            await run.result()
        assert raised.value.outcome == outcome
        assert raised.value.result == await run.result(check=False)
        assert run.id in str(raised.value)


async def test_an_unknown_agent_is_the_callers_error(rig: RigFactory) -> None:
    """A failed workflow brings its RunResult back out of the failure's details."""
    async with rig([text("x")]) as r:
        run = await r.start(agent="nobody")
        with pytest.raises(errors.UnknownAgent, match="nobody") as raised:
            await run.result()
        assert raised.value.result is not None
        assert raised.value.result.agent == "nobody"
        # Limits of nobody are not shown as if they had been its own.
        assert "limits" not in (await run.status()).model_fields_set


async def test_a_terminated_run_is_told_as_terminated(
    client: Client, unserved: AgentClient
) -> None:
    """An end in which no worker had a word has a name and its reason, too."""
    run = await unserved.start("tester", "question")
    await client.get_workflow_handle(run.id).terminate(reason="by hand")
    with pytest.raises(errors.RunFailed, match="by hand") as raised:
        await run.result()
    assert raised.value.outcome == "terminated"


async def test_a_cancelled_run_is_told_as_cancelled(rig: RigFactory) -> None:
    """Cancelling through Temporal ends in RunCancelled."""
    script = [call("wait_for", {"seconds": 30})]
    async with rig(script, tools=[wait_for], settings=QUICK) as r:
        run = await r.start()
        await until(lambda: len(r.provider.requests) == 1)
        await r.client.get_workflow_handle(run.id).cancel(reason="enough")
        with pytest.raises(errors.RunCancelled):
            await run.result(timeout=60)


async def test_waiting_for_a_result_is_bounded(unserved: AgentClient, ended: list[str]) -> None:
    """After `timeout` seconds the caller gets TimeoutError, and the run goes on."""
    run = await unserved.start("tester", "question")
    ended.append(run.id)
    with pytest.raises(TimeoutError):
        await run.result(timeout=0.3)


async def test_a_run_that_does_not_exist_is_a_lookup_error(unserved: AgentClient) -> None:
    """Every call names the run that is missing."""
    for asked in (unserved.result, unserved.status, unserved.transcript, unserved.stop):
        with pytest.raises(LookupError, match=r"no run nowhere at .*:\d+ \(namespace default\)"):
            await asked("nowhere")
    with pytest.raises(LookupError, match="there is no run nowhere"):
        await anext(unserved.follow("nowhere"))


async def test_a_namespace_that_does_not_exist_is_named_with_its_server(client: Client) -> None:
    """And how to use the one that every server has."""
    host = client.service_client.config.target_host
    agents = await AgentClient.connect(host, namespace="nope")
    told = f"namespace nope is not on {host}; it was named by --namespace, "
    with pytest.raises(ConnectionError, match=told):
        await agents.status("any")


# --- status, transcript, stop, list --------------------------------------------------------------


async def test_the_status_comes_from_the_run_itself(rig: RigFactory) -> None:
    """Phase, turn, calls and limits of a run that waits for a tool."""
    async with rig([call("wait_for", {"seconds": 1}), text("Done.")], tools=[wait_for]) as r:
        run = await r.start(limits={"turns": 9})
        status = await until(lambda: _in_phase(r, run.id, "EXECUTE"))
        assert (status.turn, status.waiting_for) == (1, "results of wait_for")
        assert status.answer is None
        assert [(c.tool, c.status) for c in status.calls] == [("wait_for", "running")]
        assert status.limits.turns == 9
        await run.result()
        status = await run.status()
        assert (status.phase, status.outcome, status.turn) == ("ended", "completed", 2)
        assert status.answer == "Done."
        assert status.limits.turns == 9


async def test_status_and_transcript_need_no_worker(rig: RigFactory) -> None:
    """What the server knows is told within the bound when the worker is gone."""
    async with rig([call("wait_for", {"seconds": 60})], tools=[wait_for]) as r:
        run = await r.start("Wait!", limits={"consecutive_errors": 4})
        await until(lambda: _in_phase(r, run.id, "EXECUTE"))
        agents = r.agents
    status = await agents.status(run.id, timeout=0.5)
    assert (status.agent, status.turn) == ("tester", 1)
    assert status.waiting_for.startswith("a worker: none answers (attempt 2; last: Tool wait_for")
    assert [c.tool for c in status.calls] == ["wait_for"]
    assert status.limits.consecutive_errors == 4
    transcript = await agents.transcript(run.id)
    assert [e.kind for e in transcript.entries] == ["message", "reply"]
    await agents.client.get_workflow_handle(run.id).terminate()


async def test_a_status_tells_of_attempts_that_fail(rig: RigFactory) -> None:
    """A provider that is down is seen while the run waits for it: the attempt, and why the last."""
    async with rig([status(529)], limits=Limits(wall_seconds=5)) as r:
        run = await r.start()

        async def told() -> str:
            said = (await run.status()).waiting_for
            return said if "attempt" in said else ""

        said = await until(told)
        assert said.startswith("a reply of claude-sonnet-5-5 (attempt 2; last: ")
        assert "529" in said or "overloaded" in said.lower()
        await run.stop()
        await run.result(check=False)


async def test_stop_ends_a_run_by_name(rig: RigFactory) -> None:
    """The reason and who gave it are in the result; a run that is over says so."""
    script = [call("wait_for", {"seconds": 60})]
    async with rig(script, tools=[wait_for], settings=QUICK) as r:
        run = await r.start()
        await until(lambda: _in_phase(r, run.id, "EXECUTE"))
        assert await run.stop("too slow", "ada") == "stopping"
        with pytest.raises(errors.RunStopped) as raised:
            await run.result(timeout=60)
        assert raised.value.result is not None
        assert raised.value.result.reason == "stopped by ada: too slow"
        assert await run.stop() == "ended"


@pytest.mark.parametrize("prompt", ["question", ""])
async def test_stop_waits_in_the_server_while_no_worker_is_up(
    client: Client, unserved: AgentClient, tmp_path: Path, prompt: str
) -> None:
    """The request is delivered to the next worker, and the caller is told; a conversation that
    nobody has begun ends by it before its agent is loaded."""
    run = await unserved.start("tester", prompt, keep_open=not prompt)
    assert await unserved.stop(run.id, "changed my mind", timeout=0.3) == "queued"
    script = [text("never said")]
    async with _serving(client, unserved.task_queue, tmp_path, script) as provider:
        result = await run.result(check=False, timeout=30)
        assert result.outcome == "stopped"
        assert not provider.requests


async def test_stop_refuses_a_reason_that_is_too_long(unserved: AgentClient) -> None:
    """Checked here, before the run is asked."""
    with pytest.raises(errors.InvalidRequest, match="reason"):
        await unserved.stop("any", "x" * 2_001)


async def test_runs_are_listed_with_how_they_ended(rig: RigFactory) -> None:
    """Agent, status, outcome, turns and tokens of open and closed runs, by any query."""

    def script(exchange: Exchange) -> Reply:
        return call("wait_for", {"seconds": 60}) if exchange.prompt == "wait" else text("Hello.")

    async with rig(script, tools=[wait_for]) as r:
        closed = await r.start()
        await closed.result()
        running = await r.start("wait")
        await until(lambda: len(r.provider.requests) == 2)
        query = f"TaskQueue = '{r.task_queue}'"

        async def listed() -> bool:
            return len([x async for x in r.agents.list_runs(query)]) == 2

        await until(listed)
        found = {x.id: x async for x in r.agents.list_runs(query)}
        assert found[closed.id].agent == found[running.id].agent == "tester"
        assert (found[closed.id].status, found[closed.id].outcome) == ("completed", "completed")
        assert found[closed.id].turns == 1
        assert (found[closed.id].tokens or 0) > 0
        assert (found[running.id].status, found[running.id].outcome) == ("running", None)
        with pytest.raises(ValueError, match="query"):
            [x async for x in r.agents.list_runs("nonsense = 'x'")]
        await running.stop()
        await running.result(check=False)


async def test_a_list_tells_each_run_of_an_id_by_itself(
    client: Client, unserved: AgentClient
) -> None:
    """Of an id that was used twice: the first keeps its end, the second is not waited for."""
    chosen = f"twice-{uuid.uuid4()}"
    for last in (False, True):
        started = await client.start_workflow(
            WORKFLOW,
            {"agent": "tester", "prompt": "q"},
            id=chosen,
            task_queue=unserved.task_queue,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
        )
        if not last:
            await started.terminate()

    async def listed() -> list[RunSummary]:
        async with asyncio.timeout(60):
            found = [x async for x in unserved.list_runs(f"WorkflowId = '{chosen}'")]
        return found if [x.status for x in found] == ["running", "terminated"] else []

    assert [x.outcome for x in await until(listed)] == [None, "terminated"]
    await client.get_workflow_handle(chosen).terminate()


async def test_runs_are_listed_without_our_search_attributes(other: Client, tmp_path: Path) -> None:
    """A namespace that lacks them costs some calls more; nothing of the list is missing."""
    bare = "bare"
    await other.workflow_service.register_namespace(
        RegisterNamespaceRequest(
            namespace=bare, workflow_execution_retention_period=Duration(seconds=86_400)
        )
    )
    address = other.service_client.config.target_host
    agents = await until(lambda: _connected(address, bare), timeout=30)
    assert await registered_attributes(agents.client) == []
    waiting = AgentClient(agents.client, task_queue="nobody")
    async with _serving(agents.client, agents.task_queue, tmp_path, [text("Hello.")]):
        ended = await agents.start("tester", "question")
        await ended.result(timeout=30)
        waits = await waiting.start("tester", "question")

        async def listed() -> dict[str, RunSummary] | None:
            found = {x.id: x async for x in agents.list_runs()}
            return found if len(found) == 2 and found[ended.id].status == "completed" else None

        found = await until(listed)
    assert (found[ended.id].agent, found[ended.id].outcome) == ("tester", "completed")
    assert found[ended.id].turns == 1
    assert (found[ended.id].tokens or 0) > 0
    assert (found[waits.id].agent, found[waits.id].status) == ("tester", "running")
    with pytest.raises(ValueError, match="namespace bare has no search attribute TurnkeeperTenant"):
        [x async for x in agents.list_runs("TurnkeeperTenant = 'acme'")]


# --- steps --------------------------------------------------------------------------------------


async def test_the_steps_of_a_run_are_its_four_phases(rig: RigFactory) -> None:
    """Read while it runs and once more when it is over: the same steps, each exactly once."""
    script = [call("wait_for", {"seconds": 0.2}), text("Done.")]
    async with rig(script, tools=[wait_for]) as r:
        run = await r.start()
        live = [step async for step in run.follow()]
        later = [step async for step in run.follow()]
        assert live == later
        assert [(s.turn, s.phase) for s in _distinct(live)] == [
            (0, "START"),
            *((1, p) for p in ("GENERATE", "PARSE", "EXECUTE", "RESUME")),
            *((2, p) for p in ("GENERATE", "PARSE", "EXECUTE", "RESUME")),
            (0, "END"),
        ]
        assert "wait_for seconds=0.2" in [s.text for s in live]
        assert "wait_for -> waited 0.2" in [s.text for s in live]
        assert live[-1].text == "completed"


async def test_a_call_that_is_not_run_is_a_step_as_well(rig: RigFactory) -> None:
    """A tool that does not exist is answered without an activity, and all the same told."""
    script = [call("nowhere", {}), text("Done.")]
    async with rig(script, tools=[fail]) as r:
        run = await r.start()
        said = [s.text for s in [s async for s in run.follow()] if s.phase == "EXECUTE"]
        assert len(said) == 2
        assert said[0].startswith("nowhere: not run: There is no tool 'nowhere'. Tools: fail")
        assert said[1] == "nothing to run"


async def test_the_steps_go_on_over_continue_as_new(rig: RigFactory) -> None:
    """A run that began a new history is followed to its end, and its transcript is whole."""
    script = [call("wait_for", {"seconds": 0})] * 12 + [text("Done.")]
    async with rig(script, tools=[wait_for], history=HistoryPolicy(events=50)) as r:
        run = await r.start(limits={"repetition": 100})
        steps = [step async for step in run.follow()]
        assert steps[-1].text == "completed"
        assert [s.turn for s in _distinct(steps) if s.phase == "PARSE"] == list(range(1, 14))
        assert any("sealed" in s.text for s in steps)
        assert len((await run.transcript()).entries) == 1 + 2 * 12 + 1


# --- without a server, inside a workflow --------------------------------------------------------


async def test_b92_nothing_runs_without_a_server() -> None:
    """B92: no way to run an agent is not durable. Without a server the call raises, at once."""
    for address, told in (
        ("127.0.0.1:1", r"^no Temporal server at 127\.0\.0\.1:1 .*: connection refused$"),
        ("nowhere.invalid:7233", r": no such host$"),
        ("no where", r"^'no where' is no address: "),
    ):
        with pytest.raises(ConnectionError, match=told):
            await AgentClient.connect(address, timeout=2)
    agent = Agent(name="x", model="m", instructions="i")
    offers = {name for name in dir(agent) if not name.startswith("_")}
    assert offers == {"name", "output", "spec", "tools", "verify"}
    assert not callable(agent)


async def test_b93_a_call_inside_a_workflow_fails_it_at_once(other: Client) -> None:
    """B93: AgentClient in workflow code ends that workflow with a sentence, and hangs nobody."""
    runner = UnsandboxedWorkflowRunner()
    Misuse.made_outside = AgentClient(other)
    async with Worker(other, task_queue="misuse", workflows=[Misuse], workflow_runner=runner):
        for method in ("connect", "construct", "start", "stop", "list"):
            with pytest.raises(WorkflowFailureError) as raised:
                await other.execute_workflow(
                    Misuse.run,
                    method,
                    id=f"misuse-{method}",
                    task_queue="misuse",
                    run_timeout=timedelta(seconds=5),
                )
            cause = raised.value.cause
            assert isinstance(cause, ApplicationError)
            assert cause.non_retryable
            assert "cannot be used inside a workflow" in cause.message


@workflow.defn
class Misuse:
    """A workflow that takes AgentClient for something else."""

    made_outside: AgentClient

    @workflow.run
    async def run(self, method: str) -> None:
        """Call it the given way."""
        if method == "connect":
            await AgentClient.connect()
        elif method == "construct":
            AgentClient(None)  # type: ignore[arg-type]
        elif method == "start":
            # Malformed, which is not what matters here.
            await self.made_outside.start("", "")
        elif method == "stop":
            await self.made_outside.stop("a-run")
        else:
            self.made_outside.list_runs()


@contextlib.asynccontextmanager
async def _serving(
    client: Client, task_queue: str, folder: Path, script: list[Any]
) -> AsyncIterator[ScriptedProvider]:
    """A worker with the agent `tester` on a task queue that is given."""
    agent = Agent(name="tester", model="claude-sonnet-5-5", instructions="You are a test.")
    async with ScriptedProvider(script, fsync=False) as provider:
        model = AnthropicProvider(api_key="test-key-0123456789", base_url=provider.url)
        async with worker.build_worker(
            client,
            Registry([agent]),
            {"anthropic": model},
            FolderStore(folder),
            worker.Settings(task_queue=task_queue, grace_seconds=1),
        ):
            yield provider
        await model.close()


async def _connected(address: str, namespace: str) -> AgentClient | None:
    """A client once the frontend knows a new namespace."""
    try:
        agents = await AgentClient.connect(address, namespace=namespace)
        assert not [x async for x in agents.list_runs()]
    except ConnectionError:
        return None
    return agents


async def _in_phase(rig: Rig, run_id: str, phase: str) -> object:
    status = await rig.agents.status(run_id)
    return status if status.phase == phase else None


def _distinct(steps: list[Step]) -> Iterator[Step]:
    """The steps without those of the same turn and phase as the one before."""
    before = None
    for step in steps:
        if (step.turn, step.phase) != before:
            yield step
        before = (step.turn, step.phase)
