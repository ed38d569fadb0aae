"""`ask_person`, `sleep` and `wait_until`: calls that the run itself serves, for days if need be."""

from __future__ import annotations

import asyncio
import json
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowUpdateFailedError
from temporalio.testing import WorkflowEnvironment

from tests.rig import Rig, RigFactory, open_rig, until
from tests.talking import echo
from tests.test_continue_as_new import PATIENT, page
from tests.test_conversations_open import attribute
from tests.test_unknown_outcomes import send
from turnkeeper import Limits, ask_person, sleep, tool, wait_until
from turnkeeper.client import AgentRunHandle
from turnkeeper.contract import ANSWER, SEND, RunResult
from turnkeeper.errors import InvalidRequest, ToolFailed
from turnkeeper.spec import HistoryPolicy
from turnkeeper.testing import Exchange, Reply, call, calls, text

DAY = 86_400
LONG = Limits(wall_seconds=30 * DAY)
WAITS = (ask_person, sleep, wait_until)


def told(x: Exchange) -> Reply:
    """Answer with the results."""
    return text(" | ".join(r.text for r in x.last_results))


ASKS = [call("ask_person", {"question": "Which one?"}, id="c1"), told]


async def asks(run: AgentRunHandle, count: int = 1) -> list[Any]:
    """What a run awaits, once there are so many of it."""

    async def awaited() -> Any:
        found = (await run.status()).awaited
        return found if len(found) == count else None

    return await until(awaited)  # type: ignore[no-any-return]


# --- ask_person -----------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["client", "pasted", "signal"])
async def test_a_question_is_answered(rig: RigFactory, way: str) -> None:
    """By the client, by the update that the run card has, or by a signal; the model reads it."""
    async with rig(ASKS, tools=WAITS) as r:
        run = await r.start()
        (one,) = await asks(run)
        assert (one.kind, one.call_id, one.question) == ("answer", "c1", "Which one?")
        status = await run.status()
        assert status.waiting_for.startswith('an answer to "Which one?" (call c1)')
        assert [c.status for c in status.calls] == ["waiting"]
        handle = r.client.get_workflow_handle(run.id)
        assert await (await handle.describe()).memo_value("awaited")
        body = {"call_id": "c1", "text": "the blue one", "actor": "ann"}
        if way == "client":
            assert await run.answer("c1", "the blue one", actor="ann") == "answered"
        elif way == "pasted":
            await handle.execute_update(one.update, json.loads(one.body) | body)
        else:
            await handle.signal(ANSWER, body)
        result = await run.result()
        assert (result.answer, result.calls, result.errors) == ("the blue one", 1, 0)
        entry = (await r.transcript()).entries[2]
        assert entry.value["actor"] == "ann"
        steps = [(s.phase, s.text) async for s in run.follow()]
        assert [text for phase, text in steps if phase == "WAITING"] == [
            f"for {status.waiting_for}"
        ]
        assert not any("not run" in text for _, text in steps)
        assert await r.task_failures() == 0


async def test_only_a_question_that_waits_is_answered(rig: RigFactory) -> None:
    """Another call, a second answer, a call whose outcome is unknown: refused, saying which wait;
    and an answer settles no unknown outcome."""

    def script(x: Exchange) -> Reply:
        if x.turn:
            return told(x)
        return calls([("ask_person", {"question": "Which?"}), ("send", {})])

    async with rig(script, tools=[*WAITS, send], on_unknown="wait") as r:
        run = await r.start()
        (one,) = await asks(run)
        with pytest.raises(InvalidRequest, match=f"waiting: {one.call_id}"):
            await run.answer("c9", "x")
        with pytest.raises(InvalidRequest, match="waits to be resolved; waiting: none"):
            await run.resolve(one.call_id, landed=True)
        await run.answer(one.call_id, "this one")
        (unknown,) = await until(lambda: _unknown(run))
        with pytest.raises(InvalidRequest, match="waits for an answer; waiting: none"):
            await run.answer(unknown.call_id, "x")
        await run.resolve(unknown.call_id, landed=True, result="sent")
        assert (await run.result()).answer == "this one | sent"
        assert await r.task_failures() == 0


async def _unknown(run: AgentRunHandle) -> Any:
    return (await run.status()).unknown


@pytest.mark.parametrize(
    "body",
    [{}, {"call_id": "c1"}, {"call_id": "c1", "text": ""}, {"call_id": 1, "text": "x"}, [], "c1"],
    ids=str,
)
async def test_a_malformed_answer_is_refused(rig: RigFactory, body: Any) -> None:
    """As an update with a reason, as a signal without a word; the question waits on."""
    async with rig(ASKS, tools=WAITS) as r:
        run = await r.start()
        await asks(run)
        handle = r.client.get_workflow_handle(run.id)
        with pytest.raises(WorkflowUpdateFailedError):
            await handle.execute_update(ANSWER, body)
        await handle.signal(ANSWER, body)
        await run.answer("c1", "good")
        assert (await run.result()).answer == "good"


async def test_several_questions_are_answered_in_any_order(rig: RigFactory) -> None:
    """Each result stands where its call does; reads beside them run meanwhile."""
    seen: list[int] = []

    @tool(effect="read")
    def look() -> str:
        """Look."""
        seen.append(1)
        return "looked"

    def script(x: Exchange) -> Reply:
        if x.turn:
            return told(x)
        asked = [("ask_person", {"question": q}) for q in "ab"]
        return calls([*asked, ("look", {})])

    async with rig(script, tools=[*WAITS, look]) as r:
        run = await r.start()
        first, second = await asks(run, 2)
        await until(lambda: seen)
        await run.answer(second.call_id, "B")
        await asks(run, 1)
        await run.answer(first.call_id, "A")
        assert (await run.result()).answer == "A | B | looked"


async def test_a_change_behind_a_question_waits_for_the_answer(rig: RigFactory) -> None:
    """A mutating call waits for everything before it, and for a question as well."""
    seen: list[int] = []

    @tool(effect="idempotent")
    def change() -> str:
        """Change something."""
        seen.append(1)
        return "changed"

    def script(x: Exchange) -> Reply:
        if x.turn:
            return told(x)
        return calls([("ask_person", {"question": "May I?"}), ("change", {})])

    async with rig(script, tools=[*WAITS, change]) as r:
        run = await r.start()
        (one,) = await asks(run)
        await asyncio.sleep(0.3)
        assert seen == []
        await run.answer(one.call_id, "yes")
        assert (await run.result()).answer == "yes | changed"


async def test_a_message_that_interrupts_ends_the_wait(rig: RigFactory) -> None:
    """Without interrupting it is read after the answer; with it, the question is given up."""

    def script(x: Exchange) -> Reply:
        return ASKS[0] if x.turn == 0 else echo(x)  # type: ignore[return-value]

    async with rig(script, tools=WAITS) as r:
        run = await r.start()
        await asks(run)
        await r.client.get_workflow_handle(run.id).execute_update(
            SEND, {"message_id": "m1", "text": "never mind"}
        )
        assert (await run.status()).unread == 1
        await run.send("now", message_id="m2", interrupt=True)
        assert await run.reply("m2", timeout=60) == "re: never mind\nnow"
        result = await run.result()
        assert (result.calls, result.errors) == (1, 0)
        texts = [e.value["text"] for e in (await r.transcript()).entries if e.kind == "result"]
        assert texts == ["Not answered: a message came first."]
        assert await r.task_failures() == 0


async def test_a_stop_ends_the_wait(rig: RigFactory) -> None:
    """The run ends as stopped; it has no unknown outcome."""
    async with rig(ASKS, tools=WAITS) as r:
        run = await r.start()
        await asks(run)
        await run.stop("enough")
        result = await run.result(check=False)
        assert (result.outcome, result.unknown, result.errors) == ("stopped", [], 0)
        assert await attribute(r, run, "TurnkeeperUnknown") is None
        with pytest.raises(InvalidRequest):
            await run.answer("c1", "")
        assert await run.answer("c1", "late") == "ended"


async def test_a_run_continues_as_new_while_it_asks(rig: RigFactory) -> None:
    """The question goes along, and is answered in another execution than the one that asked."""

    def script(x: Exchange) -> Reply:
        if x.turn:
            return text(x.last_results[0].text)
        # Its result fills the history while the question waits.
        return calls(
            [("ask_person", {"question": "And?"}), ("page", {"number": 1, "size": 20_000})]
        )

    history = HistoryPolicy(bytes=20_000)
    async with rig(script, tools=[*WAITS, page], limits=PATIENT, history=history) as r:
        run = await r.start()
        await until(lambda: _executions(r, 2))
        (one,) = await asks(run)
        await run.answer(one.call_id, "yes")
        assert (await run.result()).answer == "yes"
        assert any(s.waiting("answer") for _, s in await r.carried())
        assert await r.task_failures() == 0


async def _executions(r: Rig, count: int) -> bool:
    return len(await r.executions()) >= count


# --- time -----------------------------------------------------------------------------------------


async def virtually(
    virtual: WorkflowEnvironment, folder: Path, script: Any, **options: Any
) -> tuple[RunResult, list[Any]]:
    """A run on a virtual clock, and its events."""
    async with open_rig(virtual.client, folder, script, tools=WAITS, **options) as r:
        result = await r.run()
        events = await r.events()
        assert await r.task_failures() == 0
    return result, events


async def test_it_sleeps_for_days(virtual: WorkflowEnvironment, tmp_path: Path) -> None:
    """On one timer; the model reads what time it is then."""
    script = [call("sleep", {"seconds": 3 * DAY}), told]
    result, events = await virtually(virtual, tmp_path, script, limits=LONG)
    assert 3 * DAY <= result.seconds < 3 * DAY + 60
    assert str(result.answer).startswith("The wait is over: it is 2")
    timers = [e for e in events if e.event_type == EventType.EVENT_TYPE_TIMER_STARTED]
    assert len(timers) == 2


async def test_several_sleepers_share_the_nearest_timer(
    virtual: WorkflowEnvironment, tmp_path: Path
) -> None:
    """Each ends at its own time, one timer after the other."""

    def script(x: Exchange) -> Reply:
        if x.turn:
            return told(x)
        return calls([("sleep", {"seconds": n * 100}) for n in (3, 1, 2, 1)])

    result, events = await virtually(virtual, tmp_path, script, limits=LONG)
    assert 300 <= result.seconds < 360
    timers = [e for e in events if e.event_type == EventType.EVENT_TYPE_TIMER_STARTED]
    # One for the run's time limit, and for each of three times; a cancelled one is none.
    assert len(timers) <= 5


async def test_it_waits_until_a_time(virtual: WorkflowEnvironment, tmp_path: Path) -> None:
    """As it is named in the call, with its offset; one that is past is over at once."""
    asked: dict[str, str] = {}

    def script(x: Exchange) -> Reply:
        if x.turn == 0:
            return call("sleep", {"seconds": 1})
        if x.turn == 1:
            stamp = x.last_results[0].text.removeprefix("The wait is over: it is ")[:10]
            asked["day"] = stamp
            return calls(
                [
                    ("wait_until", {"time": f"{stamp}T00:00:00+00:00"}),
                    ("wait_until", {"time": _tomorrow(stamp)}),
                ]
            )
        return told(x)

    result, _ = await virtually(virtual, tmp_path, script, limits=LONG)
    first, second = str(result.answer).split(" | ")
    assert asked["day"] in first
    assert f"{_tomorrow(asked['day'])[:10]} 12:00" in second


def _tomorrow(day: str) -> str:
    return f"{date.fromisoformat(day) + timedelta(days=1)}T14:00:00+02:00"


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("sleep", {"seconds": 0}, "seconds"),
        ("sleep", {"seconds": "a while"}, "seconds"),
        ("sleep", {}, "seconds"),
        ("sleep", {"seconds": 2 * DAY}, "This run ends at "),
        ("wait_until", {"time": "tomorrow"}, "time"),
        ("wait_until", {"time": "2026-12-01T09:00:00"}, "time"),
        ("wait_until", {"time": "2999-12-01T09:00:00Z"}, "This run ends at "),
        ("ask_person", {"question": ""}, "question"),
        ("ask_person", {"question": "x" * 4_001}, "question"),
    ],
)
async def test_what_cannot_be_waited_for_is_told_to_the_model(
    rig: RigFactory, name: str, arguments: dict[str, Any], said: str
) -> None:
    """At once and in words; and what stands behind it in the reply goes on."""

    @tool(effect="idempotent")
    def change() -> str:
        """Change something."""
        return "changed"

    def script(x: Exchange) -> Reply:
        return told(x) if x.turn else calls([(name, arguments), ("change", {})])

    async with rig(script, tools=[*WAITS, change]) as r:
        result = await r.run()
        problem, changed = str(result.answer).rsplit(" | ", 1)
        assert said in problem
        assert changed == "changed"
        assert await r.task_failures() == 0


def test_outside_of_a_run_they_say_that_only_a_run_can_wait() -> None:
    """Called as the functions that they are, in a test of one's own."""
    for made, argument in ((ask_person, "Which?"), (sleep, 3.0), (wait_until, "now")):
        with pytest.raises(ToolFailed, match="Only a run can wait"):
            made(argument)


async def test_an_agent_may_have_tools_of_these_names(rig: RigFactory) -> None:
    """They are served by a worker like any other: only the listed ones are the run's."""

    @tool(effect="read", name="sleep")
    def own(seconds: float) -> str:
        """Not sleep at all."""
        return "wide awake"

    async with rig([call("sleep", {"seconds": 5_000}), told], tools=[own]) as r:
        assert (await r.run()).answer == "wide awake"
