"""Runs that stay open after their answer: conversations."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.testing import WorkflowEnvironment

from tests.rig import Rig, RigFactory, open_rig, until
from tests.talking import echo, look, looks_first, read
from tests.test_continue_as_new import OFTEN, PATIENT
from tests.test_render import call_of, state_of
from turnkeeper import Limits
from turnkeeper.client import AgentRunHandle
from turnkeeper.contract import SEND, RunRequest, read_public
from turnkeeper.errors import InvalidRequest, RunStopped, UnknownAgent
from turnkeeper.render import run_card
from turnkeeper.testing import text

DAY = 86_400


async def idle(run: AgentRunHandle) -> Any:
    """What an open run awaits, once it does."""

    async def awaited() -> Any:
        return (await run.status()).awaited

    (one,) = await until(awaited)
    return one


async def attribute(r: Rig, run: AgentRunHandle, name: str) -> Any:
    """One of a run's search attributes, as it is stored with the run."""
    described = await r.client.get_workflow_handle(run.id).describe()
    return {p.key.name: p.value for p in described.typed_search_attributes}.get(name)


# --- open -----------------------------------------------------------------------------------------


async def test_it_waits_for_the_next_message(rig: RigFactory) -> None:
    """After each answer; the status, its attribute, the list and the run card say for what, with
    the update that can be pasted."""
    async with rig(echo) as r:
        run = await r.start("hello", keep_open=True)
        one = await idle(run)
        assert (one.kind, one.update) == ("message", "send")
        assert await attribute(r, run, "TurnkeeperStatus") == "waiting"
        status = await run.status()
        assert (status.waiting_for, status.answer) == ("the next message", "re: hello")
        found = await r.client.get_workflow_handle(run.id).describe()
        assert (await found.memo_value("awaited"))[0]["body"] == one.body

        async def listed() -> bool:
            found = [s async for s in r.agents.list_runs(f"WorkflowId = '{run.id}'")]
            return [(s.status, s.waiting_for) for s in found] == [("waiting", status.waiting_for)]

        await until(listed)
        # Pasted as it is.
        await r.client.get_workflow_handle(run.id).execute_update(SEND, json.loads(one.body))
        assert await run.reply("turn-1", timeout=60) == "re: ..."
        assert (await idle(run)).body != one.body
        assert await run.chat("and you?", timeout=60) == "re: and you?"
        await run.stop()
        result = await run.result(check=False)
        assert (result.turns, result.answer) == (3, "re: and you?")
        assert await attribute(r, run, "TurnkeeperStatus") == "ended"
        assert await r.task_failures() == 0


async def test_a_conversation_may_begin_without_a_prompt(rig: RigFactory) -> None:
    """Then the first message is the first thing said; nothing is asked of the model before."""
    async with rig(echo) as r:
        run = await r.start("", keep_open=True)
        await idle(run)
        assert r.provider.requests == []
        assert await run.chat("hello", timeout=60) == "re: hello"
        assert [e.kind for e in (await r.transcript()).entries] == ["message", "reply"]
        await run.stop()
        assert (await run.result(check=False)).turns == 1


@pytest.mark.parametrize(
    ("fields", "refused"),
    [
        ({}, "prompt: is empty"),
        ({"prompt": ""}, "prompt: is empty"),
        ({"prompt": " ", "keep_open": True}, "prompt: is blank"),
        ({"prompt": "x", "keep_open": "yes"}, "keep_open"),
    ],
)
def test_only_one_that_is_kept_open_may(fields: dict[str, Any], refused: str) -> None:
    """A run without a task and without anybody to give it one is refused."""
    with pytest.raises(ValueError, match=refused):
        read_public(RunRequest, {"agent": "a", **fields})
    assert read_public(RunRequest, {"agent": "a", "keep_open": True}).prompt == ""


async def test_waiting_adds_one_timer(rig: RigFactory) -> None:
    """A wait is a timer, which ends with the message: nothing polls, and no other events come."""
    async with rig(echo) as r:
        run = await r.start("hello", keep_open=True, limits={"idle_seconds": 3_600})
        await idle(run)
        before = await r.events()
        await asyncio.sleep(1)
        assert len(await r.events()) == len(before)
        timers = [e for e in before if e.event_type == EventType.EVENT_TYPE_TIMER_STARTED]
        # The other one is the run's time limit.
        assert len(timers) == 2
        await run.stop()
        await run.result(check=False)


def test_the_run_card_says_how_to_go_on() -> None:
    """The command and the update, with a body that can be pasted, for a message and an answer."""
    idle_ = run_card(state_of(inbox={"idle_since": 5.0}), "c-7")
    assert "waiting for the next message" in idle_
    assert "`starter.py send c-7 '...'`" in idle_
    assert '"message_id": "turn-1",' in idle_
    held = {"since": 5.0, "question": "Which *one*?"}
    waits = call_of("ask_person", status="waiting", awaits="answer", held=held)
    asked = run_card(state_of(phase="EXECUTE", calls=[waits]), "c-7")
    assert "**Asked:** Which \\*one\\*?" in asked
    assert "`starter.py answer c-7 c '...'`" in asked
    assert '\n  "call_id": "c",\n  "text": "...",\n' in asked


# --- its end --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "seconds"),
    [
        (Limits(wall_seconds=9 * DAY), DAY),
        (Limits(wall_seconds=9 * DAY, idle_seconds=3 * DAY), 3 * DAY),
        (Limits(wall_seconds=DAY / 2), DAY / 2),
    ],
    ids=["a day", "as asked", "the run's own time"],
)
async def test_it_completes_when_nobody_says_anything(
    virtual: WorkflowEnvironment, tmp_path: Path, limits: Limits, seconds: float
) -> None:
    """With its last answer, when the time to wait is over, or the run's own time."""
    async with open_rig(virtual.client, tmp_path, echo, limits=limits) as r:
        result = await r.run("hello", keep_open=True)
        assert (result.outcome, result.answer, result.unread) == ("completed", "re: hello", 0)
        assert seconds <= result.seconds < seconds + 60
        assert result.turns == 1


async def test_each_message_begins_the_wait_anew(
    virtual: WorkflowEnvironment, tmp_path: Path
) -> None:
    """A day after the last answer, not after the first."""
    limits = Limits(wall_seconds=9 * DAY)
    with virtual.with_time_skipping_disabled():
        async with open_rig(virtual.client, tmp_path, echo, limits=limits) as r:
            run = await r.start("hello", keep_open=True)
            await idle(run)
            handle = virtual.client.get_workflow_handle(run.id)
            assert await virtual.fast_forward(handle, timedelta(hours=20))
            assert await run.chat("still here?", timeout=60) == "re: still here?"
            await idle(run)
            assert await virtual.fast_forward(handle, timedelta(hours=20))
            assert (await run.status()).outcome is None
            await virtual.fast_forward(handle, timedelta(hours=5))
            result = await run.result(timeout=60)
            assert (result.outcome, result.answer) == ("completed", "re: still here?")


async def test_without_a_turn_left_it_completes_at_once(rig: RigFactory) -> None:
    """What nobody could answer any more is not waited for."""
    async with rig(echo, limits=Limits(turns=1)) as r:
        result = await r.run("hello", keep_open=True)
        assert (result.outcome, result.answer) == ("completed", "re: hello")


async def test_who_awaits_an_answer_hears_of_the_end(rig: RigFactory) -> None:
    """By the outcome's error; and of a message that was never sent, that nobody has read it."""
    async with rig([text("Hm.", delay=20)]) as r:
        run = await r.start("hello", keep_open=True)
        await until(lambda: r.provider.requests)
        await run.send("quick", message_id="m1")
        awaited = asyncio.create_task(run.reply("m1"))
        await run.stop("enough")
        with pytest.raises(RunStopped, match="1 message was not read"):
            await asyncio.wait_for(awaited, 60)
    async with rig(echo) as r:
        run = await r.start("", keep_open=True)
        with pytest.raises(TimeoutError):
            await run.reply("m1", timeout=0.5)
        await run.stop()
        run = await r.start("hello")
        await run.result()
        with pytest.raises(LookupError, match="has read no message 'm1'"):
            await run.reply("m1", timeout=60)


# --- continue-as-new ------------------------------------------------------------------------------


async def test_a_conversation_of_many_executions(rig: RigFactory) -> None:
    """Each message gets its own answer; one of long ago is found again in the execution that read
    it."""
    async with rig(looks_first, tools=[look], limits=PATIENT, history=OFTEN) as r:
        run = await r.start("", keep_open=True)
        for number in range(12):
            named = f"m{number}"
            assert await run.send(f"message {number}", message_id=named) == "accepted"
            assert await run.reply(named, timeout=60) == f"re: message {number}"
        await idle(run)
        executions = await r.executions()
        assert len(executions) >= 3
        for number in (0, 6, 11):
            assert await run.reply(f"m{number}", timeout=60) == f"re: message {number}"
        assert await run.send("message 0", message_id="m0") == "duplicate"
        assert await read(r, run) == [f"m{n}" for n in range(12)]
        await run.stop()
        await run.result(check=False)
        assert await r.task_failures() == 0


async def test_a_flood_that_is_dropped_does_not_fill_history(rig: RigFactory) -> None:
    """Repeated signals leave events without any turn: the run continues as new while it waits."""
    async with rig(echo, limits=PATIENT, history=OFTEN) as r:
        run = await r.start("", keep_open=True)
        handle = r.client.get_workflow_handle(run.id)
        assert await run.chat("hello", timeout=60) == "re: hello"
        for _ in range(60):
            await handle.signal(SEND, {"message_id": "m1", "text": "again"})
            await asyncio.sleep(0.02)
        await until(lambda: _has_continued(r))
        assert any(state.inbox.idle_since is not None for _, state in await r.carried())
        assert await run.chat("still there?", timeout=60) == "re: still there?"
        await run.stop()
        await run.result(check=False)
        assert await r.task_failures() == 0


async def _has_continued(r: Rig) -> bool:
    return len(await r.executions()) >= 2


# --- start it if need be --------------------------------------------------------------------------


async def test_send_or_start(rig: RigFactory) -> None:
    """The first message starts the conversation, the next ones go to it; a repeated one is not
    read twice, and one that has ended stays so unless another is asked for."""
    async with rig(echo) as r:
        r.ids.append("customer-7")

        async def say(said: str, named: str, **more: Any) -> tuple[AgentRunHandle, str]:
            return await r.agents.send_or_start(
                "tester", said, id="customer-7", message_id=named, **more
            )

        run, became = await say("hello", "m1")
        assert became == "accepted"
        assert await run.reply("m1", timeout=60) == "re: hello"
        assert (await say("and?", "m2"))[1] == "accepted"
        assert await run.reply("m2", timeout=60) == "re: and?"
        assert (await say("and?", "m2"))[1] == "duplicate"
        assert await read(r, run) == ["m1", "m2"]
        await run.stop()
        await run.result(check=False)
        assert (await say("are you there?", "m3"))[1] == "ended"
        assert (await say("are you there?", "m3", anew=True))[1] == "accepted"
        assert await run.reply("m3", timeout=60) == "re: are you there?"
        assert await read(r, run) == ["m3"]
        await run.stop()
        await run.result(check=False)
        assert await r.task_failures() == 0


async def test_many_start_one_conversation(rig: RigFactory) -> None:
    """Ten senders at once: one run, which reads each message once."""
    async with rig(echo) as r:
        r.ids.append("crowd")
        became = await asyncio.gather(
            *(
                r.agents.send_or_start("tester", f"{n}", id="crowd", message_id=f"m{n}")
                for n in range(10)
            )
        )
        assert {sent for _, sent in became} <= {"accepted", "queued"}
        run = became[0][0]
        await asyncio.gather(*(run.reply(f"m{n}", timeout=30) for n in range(10)))
        assert sorted(await read(r, run)) == sorted(f"m{n}" for n in range(10))
        await run.stop()
        await run.result(check=False)


async def test_it_is_started_also_while_no_worker_is_up(rig: RigFactory) -> None:
    """The message is kept with the start, in one step."""
    async with rig(echo) as r:
        lone = type(r.agents)(r.client, task_queue=f"{r.task_queue}-nobody", store=r.store)
        run, sent = await lone.send_or_start(
            "tester", "hello", id=f"lone-{r.task_queue}", message_id="m1", timeout=0.5
        )
        assert sent == "queued"
        handle = r.client.get_workflow_handle(run.id)
        first = [e async for e in handle.fetch_history_events()]
        names = [e.workflow_execution_signaled_event_attributes.signal_name for e in first]
        assert "send" in names
        await handle.terminate("no worker comes here")


async def test_a_wrong_start_is_told(rig: RigFactory) -> None:
    """Of an agent that nobody serves by whoever awaits the answer; a malformed one at once."""
    async with rig(echo) as r:
        run, sent = await r.agents.send_or_start("nobody", "hi", id="wrong", message_id="m1")
        assert sent in ("accepted", "ended")
        with pytest.raises(UnknownAgent, match="1 message was not read"):
            await run.reply("m1", timeout=30)
        for wrong in ({"id": "with space"}, {"text": " "}, {"message_id": ""}):
            asked: dict[str, Any] = {"text": "hi", "id": "wrong-2", "message_id": "m1", **wrong}
            with pytest.raises(InvalidRequest):
                await r.agents.send_or_start("tester", asked.pop("text"), **asked)
