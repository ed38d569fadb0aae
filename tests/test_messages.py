"""Messages to a run: accepted once, in order, and read; or the run's end says how many were not."""

from __future__ import annotations

import asyncio
import functools
import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowUpdateFailedError
from temporalio.common import RawValue

from tests.fleet import Fleet, agent
from tests.rig import Rig, RigFactory, until
from tests.talking import echo, insistently, look, looks_first, read, sent
from tests.test_continue_as_new import OFTEN, PATIENT
from tests.test_malformed import deep, raw
from turnkeeper import Limits, ModelSpec, tool
from turnkeeper.artifacts import FolderStore
from turnkeeper.client import AgentClient, AgentRunHandle
from turnkeeper.contract import SEND, SendRequest
from turnkeeper.entries import message
from turnkeeper.errors import InvalidRequest
from turnkeeper.inbox import MAX_SEEN, MAX_UNREAD, MAX_UNREAD_BYTES, Duplicate, Inbox
from turnkeeper.messages import leave
from turnkeeper.spec import HistoryPolicy
from turnkeeper.testing import Exchange, Reply, ScriptedProvider, call, calls, text


def said(number: int, size: int = 0) -> SendRequest:
    """A message of its number's name."""
    return SendRequest(message_id=f"m{number}", text=f"{number}" + "x" * size)


class Gate:
    """A tool that waits until the test opens it."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.open = asyncio.Event()

        @tool(effect="read", timeout=60)
        async def hold() -> str:
            """Wait."""
            self.begun.set()
            await self.open.wait()
            return "released"

        self.tool = hold


def holds_first(x: Exchange) -> Reply:
    """The gate's tool, then echoes."""
    return call("hold") if x.turn == 0 else echo(x)


# --- when it is read ------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["update", "signal"])
async def test_it_is_read_after_the_turn(rig: RigFactory, way: str) -> None:
    """What comes while a tool runs stands behind its result, in the order of arrival."""
    gate = Gate()
    async with rig(holds_first, tools=[gate.tool]) as r:
        run = await r.start()
        await gate.begun.wait()
        for number in range(3):
            body = said(number).model_dump(exclude_none=True)
            handle = r.client.get_workflow_handle(run.id)
            await (handle.execute_update if way == "update" else handle.signal)(SEND, body)
        await until(lambda: _unread(run, 3))
        gate.open.set()
        result = await run.result()
        assert (result.answer, result.turns, result.unread) == ("re: 0\n1\n2", 2, 0)
        entries = (await r.transcript()).entries
        assert [e.kind for e in entries] == [
            *("message", "reply", "result", "message", "message", "message", "reply")
        ]
        assert sent(entries) == ["m0", "m1", "m2"]
        assert await r.task_failures() == 0


async def _unread(run: AgentRunHandle, count: int) -> bool:
    return (await run.status()).unread == count


async def test_an_answer_is_not_the_end_while_a_message_waits(rig: RigFactory) -> None:
    """A message that comes while the model answers is answered, too, in a turn of its own."""

    def script(x: Exchange) -> Reply:
        return text("The first.", delay=1) if x.turn == 0 else echo(x)

    async with rig(script) as r:
        run = await r.start()
        await until(lambda: r.provider.requests)
        assert await run.send("and?", message_id="m1", actor="ann") == "accepted"
        assert await run.reply("m1", timeout=20) == "re: and?"
        result = await run.result()
        assert (result.answer, result.turns) == ("re: and?", 2)
        entry = (await r.transcript()).entries[2]
        assert entry.value == {"text": "and?", "id": "m1", "actor": "ann"}


async def test_a_paused_reply_is_finished_first(rig: RigFactory) -> None:
    """What the provider has paused is asked on before a message is read: it would be lost."""

    def script(x: Exchange) -> Reply:
        if x.turn == 0:
            return text("Hm.", stop_reason="pause_turn", delay=1)
        return text("So.") if x.turn == 1 else echo(x)

    async with rig(script) as r:
        run = await r.start()
        await until(lambda: r.provider.requests)
        await run.send("now!", message_id="m1", interrupt=False)
        assert (await run.result()).answer == "re: now!"
        kinds = [e.kind for e in (await r.transcript()).entries]
        assert kinds == ["message", "reply", "reply", "message", "reply"]


async def test_it_is_kept_while_no_worker_is_up(client: Client, tmp_path: Path) -> None:
    """As a signal then; the worker that comes reads it once, also if it was sent twice."""
    with ScriptedProvider(echo) as provider:
        agents = AgentClient(client, task_queue=f"late-{uuid.uuid4()}", store=FolderStore(tmp_path))
        run = await agents.start("tester", "hello")
        for _ in range(2):
            queued = await agents.send(run.id, "you?", message_id="m1", timeout=0.3)
            assert queued == "queued"
        async with Fleet(agents, provider, tmp_path).worker(agent()):
            assert (await run.result(timeout=30)).answer == "re: hello\nyou?"
            assert sent((await run.transcript()).entries) == ["m1"]


# --- once -----------------------------------------------------------------------------------------


async def test_the_same_id_is_refused_in_words(rig: RigFactory) -> None:
    """As an update with a reason; a client's own resend is told that it was accepted before."""
    gate = Gate()
    async with rig(holds_first, tools=[gate.tool]) as r:
        run = await r.start()
        await gate.begun.wait()
        assert await run.send("one", message_id="m1") == "accepted"
        handle = r.client.get_workflow_handle(run.id)
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await handle.execute_update(SEND, {"message_id": "m1", "text": "another"})
        assert "'m1' was accepted already" in str(refused.value.cause)
        assert await run.send("one", message_id="m1") == "duplicate"
        gate.open.set()
        assert (await run.result()).answer == "re: one"
        assert await run.send("one", message_id="m2") == "ended"


def test_ids_and_texts_are_bounded() -> None:
    """A hundred messages wait, 200 kB of them, also while they are with the model; the last
    thousand ids are known, in 20 kB."""
    inbox, pending = Inbox(), [message("prompt")]
    for number in range(MAX_UNREAD):
        assert inbox.refusal(said(number), pending) is None
        inbox.accept(said(number))
    assert "100 messages wait" in str(inbox.refusal(said(-1), pending))
    pending += inbox.take()
    assert "100 messages wait" in str(inbox.refusal(said(-1), pending))
    assert len(inbox.unread(pending)) == 100
    inbox.accept(said(100, size=MAX_UNREAD_BYTES - 10))
    refused = str(inbox.refusal(said(101, size=100), []))
    assert "wait to be read" in refused
    assert inbox.refusal(said(101), []) is None
    swells = SendRequest(message_id="m1", text="\x01" * (MAX_UNREAD_BYTES // 4))
    assert "at most 200000" in str(Inbox().refusal(swells, []))
    for number in range(101, MAX_SEEN + 5):
        inbox.accept(said(number))
    with pytest.raises(Duplicate):
        inbox.refusal(said(5), [])
    assert "wait" in str(inbox.refusal(said(4), []))
    assert len(json.dumps(inbox.seen)) < 21_000


async def test_a_full_inbox_refuses_with_what_to_do(rig: RigFactory) -> None:
    """The run goes on with what it has taken; the sender sends the rest again."""
    gate = Gate()
    async with rig(holds_first, tools=[gate.tool]) as r:
        run = await r.start()
        await gate.begun.wait()
        big = "x" * (MAX_UNREAD_BYTES // 2)
        assert await run.send(big, message_id="m1") == "accepted"
        with pytest.raises(InvalidRequest, match="send it again when the run is further"):
            await run.send(big + "x", message_id="m2")
        gate.open.set()
        await run.result()
        assert await read(r, run) == ["m1"]
        assert await r.task_failures() == 0


async def test_a_message_that_does_not_fit_the_window_is_refused(rig: RigFactory) -> None:
    """Nobody can end a run by sending it too much at once."""
    model = ModelSpec(name="claude-sonnet-5-5", window=20_000, max_output_tokens=500)
    async with rig(echo, model=model) as r:
        run = await r.start("", keep_open=True)
        await until(lambda: _awaits(run))
        with pytest.raises(InvalidRequest, match="at most 20000 are taken"):
            await run.send("x" * 20_001, message_id="m1")
        assert "yyy" in await run.chat("y" * 19_000, timeout=20)
        await run.stop()


async def _awaits(run: AgentRunHandle) -> Any:
    return (await run.status()).awaited


# --- in order, over continue-as-new ---------------------------------------------------------------


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_a_burst_over_switches_is_read_once_and_in_order(rig: RigFactory) -> None:
    """A message every 20 ms, every tenth twice, while the run continues as new fifty times."""
    sent: list[str] = []

    def script(x: Exchange) -> Reply:
        return text("Done.") if "the last" in x.last_text and x.last_results else looks_first(x)

    async with rig(script, tools=[look], limits=PATIENT, history=OFTEN) as r:
        run = await r.start(keep_open=True, limits={"idle_seconds": 2})
        executions: set[str] = set()

        async def send(told: str) -> None:
            named = f"m{len(sent)}"
            assert await insistently(run, told, named) == "accepted"
            if len(sent) % 10 == 0:
                assert await run.send(told, message_id=named) == "duplicate"
            sent.append(named)

        while len(executions) <= 50:
            await send(f"message {len(sent)}")
            executions.add((await r.client.get_workflow_handle(run.id).describe()).run_id)
            await asyncio.sleep(0.02)
        await send("the last")
        result = await run.result(timeout=90)
        assert (result.outcome, result.unread) == ("completed", 0)
        assert await read(r, run) == sent
        assert await r.task_failures() == 0


async def test_signals_and_updates_of_a_burst_keep_their_order(rig: RigFactory) -> None:
    """Each sender's messages in its order, whichever way they went."""

    async def sender(run: AgentRunHandle, name: str) -> None:
        handle = r.client.get_workflow_handle(run.id)
        for number in range(20):
            body = {"message_id": f"{name}{number}", "text": f"{name} {number}"}
            if number % 2:
                await handle.signal(SEND, body)
            else:
                # Not the bare update: the server gives one back that was in a task which ends the
                # execution, if a signal comes meanwhile. The client then leaves a signal.
                assert await run.send(body["text"], message_id=body["message_id"]) != "ended"

    async with rig(looks_first, tools=[look], limits=PATIENT, history=OFTEN) as r:
        run = await r.start(keep_open=True, limits={"idle_seconds": 2})
        await asyncio.gather(sender(run, "a"), sender(run, "b"))
        await run.result(timeout=60)
        seen = await read(r, run)
        for name in "ab":
            assert [s for s in seen if s[0] == name] == [f"{name}{n}" for n in range(20)]
        assert len(await r.executions()) >= 2


# --- the end --------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("way", ["update", pytest.param("signal", marks=pytest.mark.long)])
async def test_at_the_moment_of_the_end_nothing_accepted_is_lost(rig: RigFactory, way: str) -> None:
    """Sent from some milliseconds before to some after the run's answer: what was accepted is
    read, and what was not is told to have come too late."""

    def script(x: Exchange) -> Reply:
        return text("Done.", delay=0.3) if x.turn == 0 else echo(x)

    async def one(number: int) -> str:
        run = await r.start(f"run {number}")
        await until(lambda: any(q.prompt == f"run {number}" for q in r.provider.requests))
        # Once it has answered an update, a run takes a moment to close.
        early = await run.send("early", message_id="m0")
        await asyncio.sleep(0.2 + number * 0.015 if number < 35 else 5)
        if way == "update":
            became: str = await run.send("late", message_id="m1")
        else:
            handle = r.client.get_workflow_handle(run.id)
            left = await leave(handle, SEND, {"message_id": "m1", "text": "late"})
            became = "queued" if left else "ended"
        result = await run.result()
        assert (result.outcome, result.unread) == ("completed", 0)
        taken = [n for n, what in (("m0", early), ("m1", became)) if what != "ended"]
        assert await read(r, run) == taken
        return became

    async with rig(script) as r:
        became = []
        for first in range(3):
            # A few at a time, so that they end at about the time that they should.
            became += await asyncio.gather(*(one(number) for number in range(first, 36, 3)))
        assert len(set(became)) >= 2, became
        assert await r.task_failures() == 0


async def test_an_end_says_how_many_were_not_read(rig: RigFactory) -> None:
    """Stopped with two messages in the queue: the result has their number, the reason says it."""
    gate = Gate()
    async with rig(holds_first, tools=[gate.tool]) as r:
        run = await r.start()
        await gate.begun.wait()
        for number in range(2):
            await run.send(f"{number}", message_id=f"m{number}")
        await run.stop("enough")
        result = await run.result(check=False)
        assert (result.outcome, result.unread) == ("stopped", 2)
        assert result.reason == "stopped: enough; 2 messages were not read"
        with pytest.raises(Exception, match="2 messages were not read"):
            await run.reply("m1", timeout=20)


async def test_a_limit_says_so_too(rig: RigFactory) -> None:
    """No turn is left for a message that was accepted during the last one."""

    def script(x: Exchange) -> Reply:
        return text("The only one.", delay=1)

    async with rig(script, limits=Limits(turns=1)) as r:
        run = await r.start()
        await until(lambda: r.provider.requests)
        await run.send("and?", message_id="m1")
        result = await run.result(check=False)
        assert (result.outcome, result.unread) == ("turn_limit", 1)
        assert result.reason == "1 of 1 turns used; 1 message was not read"
        assert result.answer == "The only one."


async def test_a_last_answer_reads_what_waits(rig: RigFactory) -> None:
    """Where a last answer is asked for at the limit, messages are read with it."""

    def script(x: Exchange) -> Reply:
        return call("look", {"what": "x"}, delay=1) if x.turn == 0 else echo(x)

    async with rig(script, tools=[look], limits=Limits(turns=1, on_limit="answer")) as r:
        run = await r.start()
        await until(lambda: r.provider.requests)
        await run.send("and?", message_id="m1")
        result = await run.result(check=False)
        assert (result.outcome, result.unread) == ("turn_limit", 0)
        assert "and?" in str(result.answer)


# --- malformed ------------------------------------------------------------------------------------


def body(**fields: Any) -> list[RawValue]:
    """A good message with some fields replaced; Ellipsis takes one out."""
    good = {"message_id": "m1", "text": "hello", **fields}
    return [raw(json.dumps({k: v for k, v in good.items() if v is not ...}))]


MALFORMED: dict[str, tuple[list[RawValue], str | None]] = {
    "no argument": ([], "0 arguments"),
    "two objects": ([*body(), *body()], "2 arguments"),
    "null": ([raw("null")], None),
    "a list": ([raw("[]")], None),
    "a text": ([raw('"hello"')], None),
    "an empty object": ([raw("{}")], "message_id"),
    "5,000 levels": ([raw(deep(5_000))], None),
    "no id": (body(message_id=...), "message_id"),
    "an empty id": (body(message_id=""), "message_id"),
    "an id of 201 characters": (body(message_id="x" * 201), "message_id"),
    "an id that is a number": (body(message_id=7), "message_id"),
    "an id that is null": (body(message_id=None), "message_id"),
    "no text": (body(text=...), "text"),
    "an empty text": (body(text=""), "text"),
    "a blank text": (body(text=" \n"), "text"),
    "a text that is a list": (body(text=["hello"]), "text"),
    "a text of 200,001 characters": (body(text="x" * 200_001), "text"),
    "a text that swells as JSON": (body(text="\x01" * 50_000), "text"),
    "a lone surrogate": ([raw('{"message_id": "m1", "text": "\\ud800"}')], None),
    "interrupt in a word": (body(interrupt="yes"), "interrupt"),
    "interrupt that is a number": (body(interrupt=1), "interrupt"),
    "an actor that is an object": (body(actor={"name": "ann"}), "actor"),
    "an actor of 201 characters": (body(actor="x" * 201), "actor"),
    "an extra field": (body(role="system"), "role"),
    "an unknown encoding": ([raw(b"\xff", b"binary/odd")], None),
}


async def test_malformed_messages_are_refused_and_dropped(rig: RigFactory) -> None:
    """Updates with a reason that names the field, signals without a word; the run goes on."""
    gate = Gate()
    async with rig(holds_first, tools=[gate.tool]) as r:
        run = await r.start()
        await gate.begun.wait()
        handle, problems = r.client.get_workflow_handle(run.id), {}
        for name, (args, named) in MALFORMED.items():
            try:
                await handle.execute_update(SEND, args=args)
                problems[name] = "accepted"
            except WorkflowUpdateFailedError as error:
                reason = str(error.cause)
                if not reason or (named or "") not in reason or len(reason) > 2_000:
                    problems[name] = reason[:500]
            await handle.signal(SEND, args=args)
        assert problems == {}
        # The canary: it is for their own faults that the others were not read.
        await handle.execute_update(SEND, args=body())
        gate.open.set()
        assert (await run.result()).answer == "re: hello"
        assert await r.task_failures() == 0


# --- a message that interrupts --------------------------------------------------------------------


async def test_it_ends_a_generation(rig: RigFactory) -> None:
    """At once: the provider's connection is closed, an estimate charged, and the message is read
    with what was to be read before."""

    def script(x: Exchange) -> Reply:
        return text("Never read.", delay=30) if x.last_text == "question" else echo(x)

    async with rig(script, settings={"heartbeat_seconds": 1}) as r:
        run = await r.start()
        await until(lambda: r.provider.requests)
        assert await run.send("stop that", message_id="m1", interrupt=True) == "accepted"
        assert await run.reply("m1", timeout=10) == "re: question\nstop that"
        result = await run.result()
        assert (result.outcome, result.turns) == ("completed", 2)
        assert result.usage.estimated_tokens > 0
        assert [e.kind for e in (await r.transcript()).entries] == ["message", "message", "reply"]
        await until(lambda: r.provider.requests[0].outcome == "client_gone")
        assert not r.provider.rejections
        assert await r.task_failures() == 0


async def test_interrupting_again_and_again_has_a_bound(rig: RigFactory) -> None:
    """Each generation that a message ends is a turn: the limit holds."""

    def script(x: Exchange) -> Reply:
        return text("Never read.", delay=30)

    async with rig(script, limits=Limits(turns=3), settings={"heartbeat_seconds": 1}) as r:
        run = await r.start()
        for number in range(3):
            await until(functools.partial(_asked, r, number + 1))
            await run.send("no", message_id=f"m{number}", interrupt=True)
        result = await run.result(check=False, timeout=60)
        assert (result.outcome, result.unread) == ("turn_limit", 3)


async def test_what_was_never_read_is_not_sealed(rig: RigFactory) -> None:
    """A history that is full before the first reply, whose generation a message has ended."""

    def script(x: Exchange) -> Reply:
        return text("Never read.", delay=30) if "m1" not in x.last_text else text("Fine.")

    history = HistoryPolicy(bytes=20_000)
    async with rig(script, history=history, settings={"heartbeat_seconds": 1}) as r:
        run = await r.start("x" * 30_000)
        await until(lambda: r.provider.requests)
        await run.send("m1", message_id="m1", interrupt=True)
        assert (await run.result(timeout=60)).answer == "Fine."
        assert await r.task_failures() == 0


def _asked(r: Rig, times: int) -> bool:
    return len(r.provider.requests) >= times


class Worked:
    """Tools that work for a while and note how that ended."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.tools = [self._tool(effect) for effect in ("read", "idempotent", "once")]

    def _tool(self, effect: Any) -> Any:
        async def work() -> str:
            self.seen.append(f"{effect} begins")
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                self.seen.append(f"{effect} cancelled")
                raise
            return "done"

        work.__doc__ = "Work."
        return tool(effect=effect, name=f"work_{effect}", timeout=90)(work)


async def interrupted(r: Rig, worked: Worked, begun: str) -> tuple[AgentRunHandle, dict[str, Any]]:
    """A run whose tools are interrupted by a message, and the results that the model reads."""
    run = await r.start()
    await until(lambda: begun in worked.seen)
    await run.send("stop that", message_id="m1", interrupt=True)
    await run.reply("m1", timeout=20)
    results = [e.value for e in (await r.transcript(run.id)).entries if e.kind == "result"]
    return run, {v["tool"]: v["text"] for v in results}


def calls_once(*names: str) -> Any:
    """These tools in one reply, then echoes."""
    return lambda x: calls([(name, {}) for name in names]) if x.turn == 0 else echo(x)


async def test_it_ends_the_calls_of_a_turn(rig: RigFactory) -> None:
    """A read is cancelled, what stands behind is not run; neither counts as a failure."""
    worked = Worked()
    script = calls_once("work_read", "work_once")
    async with rig(script, tools=worked.tools, settings={"heartbeat_seconds": 1}) as r:
        run, told = await interrupted(r, worked, "read begins")
        assert told == {
            "work_read": "Tool work_read was cancelled while it ran.",
            "work_once": "Not run: a message came first.",
        }
        assert worked.seen == ["read begins", "read cancelled"]
        result = await run.result()
        assert (result.calls, result.errors, result.unknown) == (2, 0, [])
        assert not r.provider.rejections
        assert await r.task_failures() == 0


@pytest.mark.parametrize("effect", ["idempotent", "once"])
async def test_a_change_that_it_cuts_off_is_an_unknown_outcome(
    rig: RigFactory, effect: str
) -> None:
    """The model reads that it may have taken effect, and it is on record."""
    worked = Worked()
    script = calls_once(f"work_{effect}")
    async with rig(script, tools=worked.tools, settings={"heartbeat_seconds": 1}) as r:
        run, told = await interrupted(r, worked, f"{effect} begins")
        assert "may or may not have taken effect" in told[f"work_{effect}"]
        assert [u.status for u in (await run.result()).unknown] == ["open"]


async def test_where_a_person_is_to_settle_it_the_message_waits(rig: RigFactory) -> None:
    """`on_unknown="wait"` is the agent's policy: the message is read when somebody has looked."""
    worked = Worked()
    script = calls_once("work_once")
    async with rig(
        script, tools=worked.tools, on_unknown="wait", settings={"heartbeat_seconds": 1}
    ) as r:
        run = await r.start()
        await until(lambda: worked.seen)
        await run.send("stop that", message_id="m1", interrupt=True)
        unknown = await until(lambda: _unknown(run))
        assert [u.status for u in unknown] == ["waiting"]
        assert (await run.status()).unread == 1
        await run.resolve(unknown[0].call_id, landed=True, result="sent all the same")
        assert await run.reply("m1", timeout=20) == "re: stop that"
        assert await r.task_failures() == 0


async def _unknown(run: AgentRunHandle) -> Any:
    return (await run.status()).unknown
