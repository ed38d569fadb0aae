"""Failures that people met in public with products of this kind, each with its trigger.

The ids are those of the collected reports. B11 and B19 are about replay: tests/replay.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import dataclasses
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowFailureError
from temporalio.converter import PayloadCodec
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

import worker
from activities import readiness
from activities.execute import Execute
from activities.registry import Registry
from tests.codec import Masking
from tests.conftest import ROOT
from tests.fleet import Fleet, agent
from tests.probes import ClientInside
from tests.rig import Rig, RigFactory, open_rig, until
from turnkeeper import Limits, ModelSpec, ToolContext, ToolFailed, tool
from turnkeeper.artifacts import FolderStore
from turnkeeper.client import AgentClient
from turnkeeper.converter import data_converter
from turnkeeper.errors import DefinitionError
from turnkeeper.history import HistoryReader
from turnkeeper.testing import (
    Exchange,
    ScriptedProvider,
    call,
    calls,
    cut,
    no_stop,
    reply,
    status,
    text,
)
from turnkeeper.testing.embedded import EmbeddedServer


class Later(BaseModel):
    """A model that is built at its first use."""

    model_config = ConfigDict(defer_build=True)
    n: int


TOLD: list[Any] = [call("work"), lambda x: text(x.last_results[0].text)]
"""One call of the tool `work`, and an answer that repeats what the model was told."""


@tool(effect="read")
def look_up(q: str) -> str:
    """Look something up."""
    return f"found {q}"


@tool(effect="read")
async def after(seconds: float) -> str:
    """Answer after a while."""
    await asyncio.sleep(seconds)
    return f"after {seconds}"


def commands(events: Sequence[Any]) -> list[str]:
    """What the workflow asked the server for, in order."""
    found = []
    for event in events:
        if event.HasField("activity_task_scheduled_event_attributes"):
            scheduled = event.activity_task_scheduled_event_attributes
            found.append(f"{scheduled.activity_type.name} {scheduled.activity_id}")
        elif event.HasField("timer_started_event_attributes"):
            found.append("timer")
        elif event.HasField("marker_recorded_event_attributes"):
            found.append("marker")
    return found


def failures(events: Sequence[Any]) -> list[Any]:
    """The failures of activities, as recorded."""
    return [
        e.activity_task_failed_event_attributes.failure
        for e in events
        if e.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED
    ]


# --- non-determinism ------------------------------------------------------------------------------


async def test_b08_a_later_run_on_a_warm_worker_schedules_the_same(
    client: Client, tmp_path: Path
) -> None:
    """No cache of a process decides a command: the second run of a worker, taken over half-way by
    a fresh one, asks for what the first did. (All replay cold at the session's end.)"""
    served = agent(look_up)
    script: list[Any] = [call("look_up", {"q": "a"}), [text("Done.", delay=0.5)]]
    async with ScriptedProvider(script, fsync=False) as provider:
        agents = AgentClient(client, task_queue=f"test-{uuid.uuid4()}", store=FolderStore(tmp_path))
        fleet = Fleet(agents, provider, tmp_path)
        async with fleet.worker(served):
            first = await agents.start("tester", "one")
            await first.result(timeout=60)
            second = await agents.start("tester", "two", task_timeout=2)
            await until(lambda: len(provider.requests) == 4)
        async with fleet.worker(served):
            await second.result(timeout=60)
    histories = [
        [e async for e in client.get_workflow_handle(r.id).fetch_history_events()]
        for r in (first, second)
    ]
    assert commands(histories[0]) == commands(histories[1])


async def test_b09_the_order_in_which_tools_end_changes_nothing(rig: RigFactory) -> None:
    """Results are taken in call order: the same commands whichever call ends first."""
    seen = []
    for seconds in ((0.3, 0.2, 0.1), (0.1, 0.2, 0.3)):
        script = [
            calls([("after", {"seconds": s}) for s in seconds]),
            call("look_up", {"q": "then"}),
            text("Done."),
        ]
        async with rig(script, tools=[after, look_up]) as r:
            await r.run()
            entries = (await r.transcript()).entries
            results = [e.value["text"] for e in entries if e.kind == "result"]
            assert results == [*[f"after {s}" for s in seconds], "found then"]
            seen.append(commands(await r.events()))
    assert seen[0] == seen[1]


class _Unordered(ast.NodeVisitor):
    """Finds what has another order in a replay than in the first run."""

    CALLS = ("wait", "as_completed", "gather_unordered")

    def __init__(self) -> None:
        self.found: list[str] = []

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if (
            isinstance(node.value, ast.Name)
            and node.value.id == "asyncio"
            and node.attr in self.CALLS
        ):
            self.found.append(f"line {node.lineno}: asyncio.{node.attr}")
        self.generic_visit(node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.module == "asyncio":
            self.found += [
                f"line {node.lineno}: asyncio.{a.name}" for a in node.names if a.name in self.CALLS
            ]

    def visit_For(self, node: ast.For) -> None:
        self._iterated(node.iter)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        self._iterated(node.iter)
        self.generic_visit(node)

    def visit_Starred(self, node: ast.Starred) -> None:
        self._iterated(node.value)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        named = node.func.id if isinstance(node.func, ast.Name) else ""
        if named in ("list", "tuple", "enumerate", "iter", "next", "zip", "map", "filter"):
            for argument in node.args:
                self._iterated(argument)
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("join", "extend"):
            for argument in node.args:
                self._iterated(argument)
        self.generic_visit(node)

    def _iterated(self, node: ast.expr) -> None:
        if _is_set(node):
            self.found.append(f"line {node.lineno}: a set is iterated")


def _is_set(node: ast.expr) -> bool:
    if isinstance(node, (ast.Set, ast.SetComp)):
        return True
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id in ("set", "frozenset")
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.BitAnd, ast.BitOr, ast.Sub)):
        return _is_set(node.left) or _is_set(node.right)
    return False


def unordered(source: str) -> list[str]:
    """Places of a module whose order a replay does not keep."""
    visitor = _Unordered()
    visitor.visit(ast.parse(source))
    return visitor.found


REPLAYED = [
    *sorted((ROOT / "workflows").glob("*.py")),
    *[
        ROOT / "turnkeeper" / f"{name}.py"
        for name in ("contract", "entries", "parse", "render", "spec", "state", "text", "view")
    ],
]
"""Modules whose code runs in a workflow task."""


@pytest.mark.parametrize("path", REPLAYED, ids=lambda p: p.stem)
def test_b10_nothing_unordered_is_iterated_where_code_is_replayed(path: Path) -> None:
    """asyncio.wait, asyncio.as_completed and sets have another order in each process."""
    assert unordered(path.read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        "import asyncio\nasync def f(x): await asyncio.wait(x)",
        "from asyncio import as_completed",
        "for x in {1, 2}: print(x)",
        "y = [x for x in set(z)]",
        "y = list({x for x in z})",
        "', '.join(set(a) & set(b))",
        "f(*frozenset(a))",
    ],
)
def test_b10_a_planted_violation_is_found(source: str) -> None:
    """The check is not blind."""
    assert unordered(source)


def test_b10_membership_in_a_set_is_allowed() -> None:
    """Asking whether something is in a set has no order."""
    assert not unordered("ok = x in {1, 2}\nn = len(set(y))\nz = sorted(set(y))")


async def test_b13_no_local_activity_is_used(rig: RigFactory) -> None:
    """Local activities resume in clock order first and in another order in a replay: there are
    none, in the code or in a history."""
    for path in (ROOT / "workflows").glob("*.py"):
        assert "local_activity" not in path.read_text(), path.name
    async with rig(
        [calls([("look_up", {"q": q}) for q in "ab"]), text("Done.")], tools=[look_up]
    ) as r:
        await r.run()
        assert "marker" not in commands(await r.events())


# --- serialisation --------------------------------------------------------------------------------


async def test_b14_a_result_that_is_not_json_is_told_to_the_model(rig: RigFactory) -> None:
    """A lock in a result: one attempt, and the model reads which type it was, within 5 s."""

    @tool(effect="once")
    def work() -> Any:
        """Return what has no text."""
        return {"a": threading.Lock()}

    async with rig(TOLD, tools=[work]) as r:
        result = await r.run(timeout=60)
        assert result.answer is not None
        assert "returned a dict" in result.answer
        assert await r.task_failures() == 0


@pytest.mark.parametrize("effect", ["idempotent", "once"])
async def test_b14_heartbeat_details_that_are_not_json_are_told(
    rig: RigFactory, effect: str
) -> None:
    """A lock in heartbeat details: the tool's own error, named, within 5 s, begun once."""
    begun: list[int] = []

    async def work(ctx: ToolContext) -> str:
        """Heartbeat with what has no text."""
        begun.append(1)
        ctx.heartbeat({"a": threading.Lock()})
        await asyncio.sleep(0.5)
        return "done"

    made = tool(effect=effect)(work)  # type: ignore[call-overload]
    async with rig(TOLD, tools=[made]) as r:
        result = await r.run(timeout=60)
        assert result.answer is not None
        assert "TypeError: heartbeat details cannot be sent" in result.answer
        assert "lock" in result.answer
        assert len(begun) == 1


@pytest.mark.parametrize(
    ("options", "named"),
    [({"a": {"b": threading.Lock()}}, "model_options.a.b: lock"), ({"a": float("nan")}, "NaN")],
)
def test_b14_an_agent_that_is_not_json_is_refused_at_start(
    options: dict[str, Any], named: str
) -> None:
    """Model options are checked before the worker polls: the error names field and type."""
    with pytest.raises(DefinitionError, match=named):
        readiness.check(Registry([agent(model_options=options)]), data_converter)


@pytest.mark.parametrize("metadata", [{"a": 1}, {"a": {"b": "c"}}, {"a": None}])
async def test_b14_metadata_that_is_no_text_is_refused(
    rig: RigFactory, metadata: dict[str, Any]
) -> None:
    """The start ends by name, without a worker having tried to carry it."""
    async with rig([]) as r:
        handle = await r.start_raw({"agent": "tester", "prompt": "q", "metadata": metadata})
        result = await r.agents.result(handle.id, check=False, timeout=60)
        assert result.outcome == "invalid_request"
        assert "metadata" in (result.reason or "")


class Moody(PayloadCodec):
    """Cannot encode what holds a certain word, while it is in that mood."""

    def __init__(self) -> None:
        self.refuses = True

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """As they are."""
        if self.refuses and any(b"forbidden word" in p.data for p in payloads):
            raise ValueError("the key service refuses this payload")
        return list(payloads)

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """As they are."""
        return list(payloads)


def with_codec(client: Client, codec: PayloadCodec) -> Client:
    """The client of another team, that encrypts."""
    settings = client.config()
    settings["data_converter"] = dataclasses.replace(client.data_converter, payload_codec=codec)
    return Client(**settings)


async def test_b15_an_encoder_that_raises_is_seen_at_once(client: Client, tmp_path: Path) -> None:
    """The encoder's own error stands in history within 5 s, not after a timeout; the run waits for
    the repair and then goes on, with nothing repeated."""
    codec = Moody()
    script = [call("look_up", {"q": "a forbidden word"}), text("Done.")]
    async with open_rig(with_codec(client, codec), tmp_path, script, tools=[look_up]) as r:
        # The reply itself has to be recorded: only what is made of it is refused.
        codec.refuses = False
        run = await r.start(task_timeout=2)
        await until(lambda: r.provider.requests)
        codec.refuses = True

        async def told() -> list[Any]:
            return [
                e.workflow_task_failed_event_attributes.failure.message
                for e in await r.events()
                if e.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED
            ] + [
                p.last_failure.message
                for p in (
                    await r.client.get_workflow_handle(run.id).describe()
                ).raw_description.pending_activities
                if p.HasField("last_failure")
            ]

        messages = await until(told, timeout=30)
        assert "the key service refuses this payload" in str(messages)
        codec.refuses = False
        assert (await run.result(timeout=30)).outcome == "completed"


async def test_b15_a_result_that_cannot_be_encoded_is_not_made_twice(
    client: Client, tmp_path: Path
) -> None:
    """The effect has happened when its result meets the encoder: `once` is not begun again."""
    begun: list[int] = []

    @tool(effect="once")
    def work() -> str:
        """Answer what the encoder refuses."""
        begun.append(1)
        return "a forbidden word"

    async with open_rig(with_codec(client, Moody()), tmp_path, TOLD, tools=[work]) as r:
        result = await r.run()
        assert (result.outcome, result.errors, len(begun)) == ("completed", 1, 1)


async def test_b15_a_heartbeat_that_cannot_be_encoded_ends_a_once_tool(
    client: Client, tmp_path: Path
) -> None:
    """The SDK cancels a tool whose heartbeat it cannot send; `once` is not begun again."""
    begun: list[int] = []

    @tool(effect="once")
    async def work(ctx: ToolContext) -> str:
        """Heartbeat what the encoder refuses."""
        begun.append(1)
        ctx.heartbeat("a forbidden word")
        await asyncio.sleep(5)
        return "done"

    async with open_rig(with_codec(client, Moody()), tmp_path, TOLD, tools=[work]) as r:
        result = await r.run()
        assert (result.outcome, result.errors, len(begun)) == ("completed", 1, 1)
        assert "may or may not have taken effect" in (result.answer or "")


async def test_b16_errors_pass_an_encrypting_codec(client: Client, tmp_path: Path) -> None:
    """The whole product with a codec: a tool's error with details and a chain of causes is told to
    the model, and transcript and view are read out of the encrypted history."""

    @tool(effect="once")
    def work() -> str:
        """Fail with details and causes."""
        try:
            try:
                raise KeyError("inner")
            except KeyError as error:
                raise ValueError("middle") from error
        except ValueError as error:
            raise ApplicationError("outer", {"a": [1]}, type="Custom") from error

    script = [call("work"), lambda x: call("look_up", {"q": x.last_results[0].text}), text("Done.")]
    encrypting = with_codec(client, Masking())
    async with open_rig(encrypting, tmp_path, script, tools=[work, look_up]) as r:
        result = await r.run()
        assert (result.outcome, result.errors) == ("completed", 1)
        transcript = await r.transcript()
        assert "outer" in transcript.entries[2].value["text"]
        view = await HistoryReader(encrypting, r.store, r.ids[-1]).view(result.transcript)
        assert [e.digest for e in view.entries] == [e.digest for e in transcript.entries]
        recorded = str(await r.events())
        assert "found" not in recorded
        assert await r.task_failures() == 0


async def test_b16_a_worker_without_memory_reads_an_encrypted_history(
    client: Client, tmp_path: Path
) -> None:
    """The second worker finds the view in a history that only the codec can read."""
    script: list[Any] = [call("look_up", {"q": "a"}, delay=0.3), text("Done.")]
    async with ScriptedProvider(script, fsync=False) as provider:
        agents = AgentClient(
            with_codec(client, Masking()),
            task_queue=f"test-{uuid.uuid4()}",
            store=FolderStore(tmp_path),
        )
        fleet = Fleet(agents, provider, tmp_path)
        async with fleet.worker(agent(look_up)):
            run = await agents.start("tester", "q", task_timeout=2)
            await until(lambda: provider.requests)
        async with fleet.worker(agent(look_up)):
            assert (await run.result(timeout=60)).answer == "Done."


UNBUILT = '''
from pydantic import BaseModel, ConfigDict
from turnkeeper import Agent, tool

class Order(BaseModel):
    model_config = ConfigDict(defer_build=True)
    parts: "list[Part]"

@tool(effect="read")
def buy(order: Order) -> str:
    """Buy."""
    return ""

agent = Agent(name="shop", model="m", instructions="", tools=[buy])
'''


def test_b18_a_worker_that_cannot_build_a_model_does_not_poll(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    """A tool's type that is deferred and cannot be completed: exit code 2, and the tool's name."""
    (tmp_path / "shop.py").write_text(UNBUILT)
    done = subprocess.run(
        [sys.executable, "worker.py", "--agents", "shop", "--address", server.address],
        cwd=ROOT,
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(tmp_path),
            "ANTHROPIC_API_KEY": "test-key-0123456789",
        },
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 2
    assert "'buy'" in done.stderr
    assert "takes work" not in done.stderr


def test_b18_models_are_built_and_round_tripped_at_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Deferred building is done by the check, not by the first run; a model that cannot be built
    is named."""

    @tool(effect="read")
    def count(later: Later) -> int:
        """Count."""
        return later.n

    readiness.check(Registry([agent(count)]), data_converter)
    assert count.arguments.__pydantic_complete__

    class Broken(BaseModel):
        part: NoSuchType  # type: ignore[name-defined]  # noqa: F821

    monkeypatch.setattr(count, "arguments", Broken)
    with pytest.raises(DefinitionError, match="tool 'count': its types cannot be built"):
        readiness.check(Registry([agent(count)]), data_converter)


# --- bad model output -----------------------------------------------------------------------------


async def test_b45_an_unknown_tool_is_answered_with_the_known_ones(rig: RigFactory) -> None:
    """The model reads which tools there are and goes on; nothing ran."""
    script = [
        call("get_date"),
        lambda x: call("look_up", {"q": x.last_results[0].text}),
        text("Ok."),
    ]
    async with rig(script, tools=[look_up]) as r:
        assert (await r.run()).outcome == "completed"
        told = (await r.transcript()).entries[2].value
        assert told["error"] is True
        assert told["text"] == (
            "There is no tool 'get_date'. Tools: look_up, read_artifact, search_artifact, recall."
        )


async def test_b45_three_in_a_row_end_the_run_by_name(rig: RigFactory) -> None:
    """A model that does not learn meets the limit of errors in a row."""
    script = [call(f"get_date_{i}") for i in range(5)]
    async with rig(script, tools=[look_up], limits=Limits(consecutive_errors=3)) as r:
        result = await r.run()
        assert (result.outcome, result.turns) == ("error_limit", 3)


async def test_b47_a_call_that_was_cut_is_not_run(rig: RigFactory) -> None:
    """A valid but incomplete object at the output limit: not run, and the model is told to send
    less."""
    ran: list[str] = []

    @tool(effect="once")
    def write(path: str, content: str = "") -> str:
        """Write a file."""
        ran.append(path)
        return "written"

    script = [
        call("write", {"path": "a.txt"}, stop_reason="max_tokens"),
        lambda x: text(x.last_results[0].text),
    ]
    model = ModelSpec(name="claude-sonnet-5-5", max_output_tokens=64, ceiling=64)
    async with rig(script, tools=[write], model=model) as r:
        result = await r.run()
        assert ran == []
        assert result.answer is not None
        assert "Send fewer calls at once, or shorter arguments" in result.answer
        assert not r.provider.rejections


async def test_b49_an_empty_answer_is_asked_for_once_more(rig: RigFactory) -> None:
    """Nothing empty is stored: the next request is valid and asks for an answer."""

    def script(exchange: Exchange) -> Any:
        return text("An answer.") if "empty" in exchange.last_text else reply([])

    async with rig(script) as r:
        result = await r.run()
        assert (result.outcome, result.answer) == ("completed", "An answer.")
        assert not r.provider.rejections


@pytest.mark.parametrize("empty", [reply([]), text(""), text("  \n")])
async def test_b49_empty_answers_end_the_run_by_name(rig: RigFactory, empty: Any) -> None:
    """Twice empty is enough."""
    async with rig(lambda _: empty) as r:
        result = await r.run()
        assert (result.outcome, len(r.provider.requests)) == ("model_unavailable", 2)
        assert not r.provider.rejections


# --- provider errors ------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def virtual_rig(
    virtual: WorkflowEnvironment, folder: Path, script: Any, **options: Any
) -> AsyncIterator[Rig]:
    """A rig whose waits take no time."""
    async with open_rig(virtual.client, folder, script, **options) as r:
        yield r


async def test_b50_a_gateways_503_is_tried_again(
    virtual: WorkflowEnvironment, tmp_path: Path
) -> None:
    """Three times 503 without any header, then a reply: the fourth request succeeds, and the waits
    between them grow."""
    script = [[*[status(503, body=b"throttled")] * 3, text("Done.")]]
    async with virtual_rig(virtual, tmp_path, script) as r:
        result = await r.run()
        assert (result.answer, len(r.provider.requests)) == ("Done.", 4)
        assert result.seconds >= 1 + 2 + 4


@pytest.mark.parametrize("form", ["seconds", "date"])
async def test_b51_the_wait_that_a_provider_asks_for_is_kept(
    virtual: WorkflowEnvironment, tmp_path: Path, form: str
) -> None:
    """Retry-After in either form: the next request comes no earlier."""
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    header = {"Retry-After": "30" if form == "seconds" else date}
    script = [[status(429, headers=header), text("Done.")]]
    async with virtual_rig(virtual, tmp_path, script) as r:
        result = await r.run()
        assert result.answer == "Done."
        # The date was made some moments before it was read.
        assert 25 <= result.seconds < 35


async def test_b51_a_wait_beyond_the_deadline_is_not_begun(
    virtual: WorkflowEnvironment, tmp_path: Path
) -> None:
    """Retry-After of an hour in a run of ten minutes ends it at once, by name."""
    script = [status(429, headers={"Retry-After": "3600"})]
    async with virtual_rig(virtual, tmp_path, script, limits=Limits(wall_seconds=600)) as r:
        result = await r.run()
        assert (result.outcome, len(r.provider.requests)) == ("model_unavailable", 1)
        assert "asks to wait 3600 s" in (result.reason or "")
        assert result.seconds < 10


async def test_b51_the_time_that_earlier_waits_took_counts(
    virtual: WorkflowEnvironment, tmp_path: Path
) -> None:
    """Waits that fit one by one but not together: the one that no longer fits is not begun, by the
    server's clock, whatever this worker's clock says."""
    script = [
        [
            status(429, headers={"Retry-After": "1800"}),
            status(429, headers={"Retry-After": "2400"}),
            text("Late."),
        ]
    ]
    async with virtual_rig(virtual, tmp_path, script, limits=Limits(wall_seconds=3600)) as r:
        result = await r.run()
        assert (result.outcome, len(r.provider.requests)) == ("model_unavailable", 2)
        assert 1800 <= result.seconds < 1810


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(cut(call("look_up", {"q": "x" * 200}), at=0.5), id="half of a call"),
        pytest.param(no_stop(text("All of the text.")), id="all but the end"),
        pytest.param(cut(text("All of the text."), at=0.9, how="reset"), id="reset"),
    ],
)
async def test_b53_a_stream_without_its_end_is_no_turn(rig: RigFactory, broken: Any) -> None:
    """No terminator, no reply: the attempt failed, the reply is asked for again, and nothing of
    the broken one is recorded."""
    async with rig([[broken, text("Done.")]], tools=[look_up]) as r:
        result = await r.run()
        assert (result.answer, result.turns, len(r.provider.requests)) == ("Done.", 1, 2)
        entries = (await r.transcript()).entries
        assert [e.kind for e in entries] == ["message", "reply"]


# --- tools ----------------------------------------------------------------------------------------


async def test_b55_what_is_for_the_model_is_not_retried(rig: RigFactory) -> None:
    """ToolFailed on each call: one attempt each, its text is the result, the run goes on."""
    ran: list[int] = []

    @tool(effect="read", retries=5)
    def work() -> str:
        """Fetch a page."""
        ran.append(1)
        raise ToolFailed("404: try another address")

    async with rig([call("work"), call("work"), text("Done.")], tools=[work]) as r:
        assert (await r.run()).outcome == "completed"
        assert len(ran) == 2
        entries = (await r.transcript()).entries
        assert [e.value["text"] for e in entries if e.kind == "result"] == [
            "404: try another address"
        ] * 2


async def test_b76_a_recursion_error_is_tried_once_and_recorded_small(rig: RigFactory) -> None:
    """The same call would fail again; what is recorded of its 5,000 frames has a bound."""
    ran: list[int] = []

    def deep(n: int) -> int:
        return deep(n + 1) + 1

    @tool(effect="read", retries=5)
    def work() -> str:
        """Recurse."""
        ran.append(1)
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(5_000)
        try:
            return str(deep(0))
        finally:
            sys.setrecursionlimit(limit)

    async with rig(TOLD, tools=[work]) as r:
        result = await r.run()
        assert len(ran) == 1
        assert result.answer is not None
        assert result.answer.startswith("Tool work failed after 1 attempt: RecursionError")
        (failure,) = failures(await r.events())
        assert failure.ByteSize() < 10_000


async def test_b78_a_chain_of_errors_is_recorded_without_its_links(rig: RigFactory) -> None:
    """500 errors in a chain, one retry: what is recorded has no depth, and replays."""

    @tool(effect="read", retries=1)
    def work() -> str:
        """Fail for a long list of reasons."""
        error: Exception = OSError("first")
        for n in range(500):
            following = OSError(f"link {n}")
            following.__cause__ = error
            error = following
        raise error

    async with rig(TOLD, tools=[work]) as r:
        result = await r.run()
        assert result.answer is not None
        assert result.answer.startswith("Tool work failed after 2 attempts: OSError: link 499")
        (failure,) = failures(await r.events())
        assert failure.ByteSize() < 10_000
        assert not failure.HasField("cause")


async def test_b79_calls_do_not_wait_for_a_thread(rig: RigFactory) -> None:
    """As many threads as slots: 20 synchronous calls at once are none slower than one."""

    @tool(effect="once", timeout=15)
    def work(n: int) -> str:
        """Block a thread."""
        time.sleep(1)
        return str(n)

    @tool(effect="read", timeout=15)
    def read(n: int) -> str:
        """Block a thread."""
        time.sleep(1)
        return str(n)

    script = [calls([("read", {"n": n}) for n in range(20)]), text("Done.")]
    limits = Limits(parallel_calls=20)
    async with rig(script, tools=[work, read], limits=limits, settings={"max_activities": 20}) as r:
        result = await r.run()
        assert (result.outcome, result.errors) == ("completed", 0)
        # In turn they would take 20.
        assert result.seconds < 10


@pytest.mark.parametrize("slots", [1, 20, 300])
async def test_b79_the_pool_has_a_thread_for_each_slot(
    client: Client, tmp_path: Path, slots: int
) -> None:
    """Checked on the worker as it is built."""
    built = worker.build_worker(
        client,
        Registry([agent(look_up)]),
        {},
        FolderStore(tmp_path),
        worker.Settings(task_queue=f"test-{uuid.uuid4()}", max_activities=slots),
    )
    config = built.config()
    (execute,) = [a for a in config["activities"] if isinstance(a.__self__, Execute)]  # type: ignore[attr-defined]
    assert execute.__self__._threads._max_workers >= slots  # type: ignore[attr-defined]
    assert config["max_concurrent_activities"] == slots


# --- durable, or not at all -----------------------------------------------------------------------


async def test_b92_without_a_server_nothing_runs() -> None:
    """There is no other way to run an agent than durably: a plain process without a server gets
    an error, at once."""
    began = time.monotonic()
    with pytest.raises(ConnectionError):
        await AgentClient.connect("127.0.0.1:1", timeout=5)
    assert time.monotonic() - began < 15


async def test_b93_the_client_refuses_to_be_used_in_a_workflow(client: Client) -> None:
    """A clear failure that is not retried, in place of a wedged workflow."""
    task_queue = f"test-{uuid.uuid4()}"
    async with Worker(client, task_queue=task_queue, workflows=[ClientInside]):
        with pytest.raises(WorkflowFailureError) as caught:
            await client.execute_workflow(
                ClientInside.run, id=f"probe-{uuid.uuid4()}", task_queue=task_queue
            )
    cause = caught.value.cause
    assert isinstance(cause, ApplicationError)
    assert (cause.type, cause.non_retryable) == ("invalid_request", True)
    assert "cannot be used inside a workflow" in cause.message
