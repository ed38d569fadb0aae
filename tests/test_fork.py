"""A fork begins with a part of another run's transcript, and has keys of its own."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from activities.views import Views
from tests.prose import prose
from tests.rig import RigFactory
from tests.test_pause import Gate, card
from turnkeeper import Agent, Limits, ToolContext, tool
from turnkeeper.entries import Entry, admit, message, result
from turnkeeper.errors import InvalidRequest
from turnkeeper.fork import prefix_of
from turnkeeper.spec import ContextPolicy, HistoryPolicy, ModelSpec
from turnkeeper.state import EMPTY_REPLY, LAST_ANSWER
from turnkeeper.testing import AsyncEffects, EffectLedger, Exchange, Reply, call, calls, text


def reply_of(*call_ids: str) -> Entry:
    """A reply, with calls of these ids."""
    blocks: list[dict[str, Any]] = [{"type": "text", "text": "Well."}]
    blocks += [{"type": "tool_use", "id": c, "name": "look", "input": {}} for c in call_ids]
    return admit("reply", {"role": "assistant", "content": blocks}, dialect="anthropic-messages")


ASKED = message("question")
FIRST, SECOND = reply_of("a", "b"), reply_of("c")
A, B, C = (result(c, "look", f"saw {c}") for c in "abc")
SAID = [ASKED, FIRST, A, B, SECOND]


# --- which part ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("turn", "read", "unread"),
    [(1, [], [ASKED]), (2, [ASKED, FIRST], [A, B]), (3, SAID, [C])],
)
def test_a_call_and_its_result_stay_together(
    turn: int, read: list[Entry], unread: list[Entry]
) -> None:
    """Cut before a reply; after the last one stand its results, which no model has read."""
    assert prefix_of(SAID, turn, results={"c": C}) == (read, unread)


def test_an_edit_stands_for_an_unread_message_or_comes_after_the_results() -> None:
    """The prompt is replaced, results never are."""
    edit = message("another")
    assert prefix_of(SAID, 1, edit="another").unread == [edit]
    assert prefix_of(SAID, 2, edit="another").unread == [A, B, edit]
    answered = [ASKED, reply_of()]
    assert prefix_of(answered, 2, edit="another", ended=True) == (answered, [edit])


def test_what_the_runtime_said_of_a_limit_is_left_out() -> None:
    """A fork of a run at its limit is not at its own; a reply that was empty was not its own."""
    limit = message(LAST_ANSWER.format(limit="8 of 8 turns used"))
    assert prefix_of([*SAID, C, limit, reply_of()], 3).unread == [C]
    assert prefix_of([ASKED, message(EMPTY_REPLY), reply_of()], 1, edit="x").unread == [
        message("x")
    ]


def test_calls_that_brought_nothing_are_answered_in_a_run_that_has_ended() -> None:
    """One that was begun may have taken effect, one that was not begun has not."""
    _, (begun, unbegun) = prefix_of([ASKED, FIRST], 2, results={"a": None}, ended=True)
    assert "may or may not have taken effect" in begun.value["text"]
    assert unbegun.value["text"] == "Not run: the run was ended."


@pytest.mark.parametrize(
    ("entries", "turn", "why"),
    [
        ([], 1, "nothing was said"),
        (SAID, 0, "1 to 3 can be forked"),
        (SAID, 4, "1 to 3 can be forked"),
        (SAID, 3, "turn 2 is not finished yet"),
        ([ASKED, reply_of()], 2, "turn 1 is not finished yet"),
        ([ASKED, reply_of(), reply_of()], 2, "goes on with a reply that was paused"),
    ],
)
def test_where_a_run_cannot_be_forked(entries: list[Entry], turn: int, why: str) -> None:
    """Refused with the reason; of an open run nothing is guessed."""
    with pytest.raises(ValueError, match=why):
        prefix_of(entries, turn)


def test_an_answer_needs_something_to_go_on_with() -> None:
    """A run that completed has nothing for the model to read unless a person says it."""
    with pytest.raises(ValueError, match="say what the model is to read"):
        prefix_of([ASKED, reply_of()], 2, ended=True)


# --- forks of real runs -------------------------------------------------------------------------


@tool(effect="idempotent")
async def refund(order: str, ctx: ToolContext) -> str:
    """Refund an order."""
    effects = AsyncEffects(os.environ["LEDGER_URL"])
    receipt = await effects.keyed("refund", ctx.idempotency_key, {"order": order})
    return receipt.receipt


@tool(effect="read")
def look(n: int, size: int = 300) -> str:
    """Look at a page."""
    return prose(n, size)


def refunds(x: Exchange) -> Reply:
    """Looks, refunds, answers; another order if somebody says so."""
    if x.turn == 0:
        return call("look", {"n": 7})
    if x.turn == 1:
        return call("refund", {"order": "o-8" if "o-8" in str(x.body) else "o-7"})
    return text(f"Refunded: {x.last_results[0].text}")


async def test_a_fork_refunds_under_a_key_of_its_own(rig: RigFactory, ledger: EffectLedger) -> None:
    """The model is asked again, and answers differently: what it does then is done, and the first
    refund stays as it was."""
    async with rig(refunds, tools=[look, refund]) as r:
        run = await r.start(metadata={"tenant": "acme"}, request_key="q-7")
        first = await run.result()
        fork = await r.agents.fork(run.id, 2, "It is order o-8, not o-7.")
        r.ids.append(fork.id)
        second = await fork.result(timeout=60)
        one, other = ledger.effects()
        assert [(e.name, e.applied) for e in (one, other)] == [("refund", True)] * 2
        assert one.key != other.key
        assert (first.turns, second.turns, second.calls) == (3, 3, 1)
        assert len(r.provider.requests) == 5
        said, forked = await r.transcript(run.id), await r.transcript(fork.id)
        assert forked.entries[:3] == said.entries[:3]
        assert forked.entries[3] == message("It is order o-8, not o-7.")
        assert second.transcript.entries == len(forked.entries)
        assert f"A fork of `{run.id}` before turn 2." in await card(r, fork)
        assert r.provider.rejections == {}
        assert await r.task_failures() == 0


async def test_a_run_at_its_limit_is_gone_on_with(rig: RigFactory) -> None:
    """The results that its model never read are read by the fork, which may have more turns."""

    def script(x: Exchange) -> Reply:
        return calls([("look", {"n": x.turn})] * 2) if x.turn < 3 else text("Read.")

    async with rig(script, tools=[look], limits=Limits(turns=3)) as r:
        run = await r.start()
        assert (await run.result(check=False)).outcome == "turn_limit"
        fork = await run.fork(4, limits={"turns": 9})
        r.ids.append(fork.id)
        result = await fork.result(timeout=60)
        assert (result.answer, result.turns) == ("Read.", 4)
        assert r.provider.rejections == {}


async def test_a_fork_of_a_fork_of_a_long_run(rig: RigFactory) -> None:
    """Of a run that continued as new, forked before what it has sealed; each has all that was said,
    also cold, and goes on over switches of its own."""

    def script(x: Exchange) -> Reply:
        return call("look", {"n": x.turn}) if x.turn < 12 else text(f"Read {x.turn}.")

    async with rig(
        script, tools=[look], limits=Limits(repetition=100), history=HistoryPolicy(events=50)
    ) as r:
        run = await r.start()
        await run.result()
        assert await r.carried(run.id)
        said = (await r.transcript(run.id)).entries
        fork = await run.fork(3, "Go on.")
        r.ids.append(fork.id)
        assert (await fork.result(timeout=30)).answer == "Read 12."
        assert len(await r.carried(fork.id)) >= 1
        forked = (await r.transcript(fork.id)).entries
        assert forked[:5] == said[:5]
        assert len(forked) == len(said) + 1
        again = await fork.fork(8)
        r.ids.append(again.id)
        assert (await again.result(timeout=30)).answer == "Read 12."
        assert (await r.transcript(again.id)).entries == forked
        assert await r.task_failures() == 0


async def test_a_cold_worker_reads_a_forks_beginning(
    rig: RigFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a fork began with comes from its own segments, not from a worker's memory."""
    monkeypatch.setattr(Views, "keep", lambda *_: None)
    async with rig(looks, tools=[look]) as r:
        run = await r.start()
        await run.result()
        fork = await run.fork(2)
        r.ids.append(fork.id)
        assert (await fork.result(timeout=60)).outcome == "completed"
        assert (await r.transcript(fork.id)).entries == (await r.transcript(run.id)).entries


def looks(x: Exchange) -> Reply:
    """Looks three times, then answers."""
    return call("look", {"n": x.turn}) if x.turn < 3 else text("Seen.")


async def test_a_fork_has_the_artifacts_that_stand_in_it(rig: RigFactory) -> None:
    """A result too large to show is read on in the fork, though no run reads another's."""

    def script(x: Exchange) -> Reply:
        if x.turn == 0:
            return call("look", {"n": 1, "size": 60_000})
        if x.turn == 1:
            told = x.last_results[0].text
            artifact = told.partition("whole text is artifact ")[2][:64]
            return call("read_artifact", {"artifact": artifact})
        return text(x.last_results[0].text)

    async with rig(script, tools=[look]) as r:
        run = await r.start()
        first = await run.result()
        fork = await run.fork(2)
        r.ids.append(fork.id)
        second = await fork.result(timeout=60)
        assert (second.answer, second.errors) == (first.answer, 0)


async def test_a_long_fork_makes_room(rig: RigFactory) -> None:
    """Forked for a model with a smaller window, a conversation is shortened before it is sent."""

    def script(x: Exchange) -> Reply:
        if x.wants_summary:
            return text("## Decisions\nNone.\n## Unresolved work\nNone.\n## Evidence\nNone.")
        if "Go on." in str(x.body) or x.turn > 7:
            return text("Read.")
        return call("look", {"n": x.turn, "size": 2_000})

    large, small = (
        Agent(
            name="tester",
            model=ModelSpec(name="claude-sonnet-5-5", window=window, max_output_tokens=500),
            instructions="You are a test.",
            tools=[look],
            context=ContextPolicy(),
        )
        for window in (200_000, 4_500)
    )
    async with rig(script, agents=[large]) as r:
        run = await r.start()
        await run.result()
    async with rig(script, agents=[small], provider={"window": 4_500}) as r:
        fork = await r.agents.fork(run.id, 8, "Go on.", task_queue=r.task_queue)
        r.ids.append(fork.id)
        result = await fork.result(check=False, timeout=30)
        assert (result.outcome, result.epochs) == ("completed", 2)
        assert len((await r.transcript(fork.id)).entries) == 17
        assert await r.task_failures() == 0


async def test_an_open_run_is_forked_where_it_stands(rig: RigFactory) -> None:
    """While a call of its last turn runs, an earlier turn can be forked, the last one not yet."""
    gate = Gate()

    def script(x: Exchange) -> Reply:
        if x.turn == 0:
            return call("look", {"n": 1})
        return call("work") if x.turn == 1 and "quickly" not in str(x.body) else text("Done.")

    async with rig(script, tools=[look, gate.tool]) as r:
        run = await r.start()
        async with asyncio.timeout(60):
            await gate.reached.wait()
        with pytest.raises(InvalidRequest, match="turn 2 is not finished yet"):
            await run.fork(3)
        fork = await run.fork(2, "Do it quickly.")
        r.ids.append(fork.id)
        assert (await fork.result(timeout=60)).answer == "Done."
        assert (await run.status()).phase == "EXECUTE"
        gate.go.set()
        assert (await run.result(timeout=60)).answer == "Done."


# --- requests -----------------------------------------------------------------------------------


async def test_the_same_fork_again_is_the_run_that_exists(rig: RigFactory) -> None:
    """Asked for twice under one id it is started once; another fork may not have that id."""
    async with rig(looks, tools=[look]) as r:
        run = await r.start()
        await run.result()
        name = f"{run.id}-again"
        one = await run.fork(2, new_id=name)
        other = await run.fork(2, new_id=name)
        r.ids.append(one.id)
        assert (one.existed, other.existed) == (False, True)
        with pytest.raises(InvalidRequest, match="another fork"):
            await run.fork(3, new_id=name)
        await one.result(timeout=60)


async def test_a_service_of_any_language_forks_by_plain_json(rig: RigFactory) -> None:
    """The start field is checked as the rest is; what cannot be forked ends by name."""
    async with rig(looks, tools=[look]) as r:
        run = await r.start()
        await run.result()
        plain = {"agent": "tester", "prompt": "again"}
        good = await r.start_raw({**plain, "fork": {"workflow_id": run.id, "turn": 2}})
        assert (await good.result())["outcome"] == "completed"
        for fork, why in (
            ({"workflow_id": run.id}, "fork.turn"),
            ({"workflow_id": run.id, "turn": 2, "from": 1}, "fork.from: there is no such field"),
            ({"workflow_id": run.id, "turn": 9}, "fork.turn: the run has replies of 4 turns"),
            ({"workflow_id": "nobody", "turn": 1}, "fork.workflow_id: there is no run nobody"),
            ({"workflow_id": run.id, "turn": 5}, "fork.edit"),
        ):
            bad = await r.start_raw({**plain, "fork": fork})
            ended = await r.agents.result(bad.id, check=False)
            assert (ended.outcome, why in str(ended.reason)) == ("invalid_request", True), why
        assert await r.task_failures() == 0


async def test_a_fork_that_is_stopped_before_it_has_begun(
    rig: RigFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the other run is read, a stop is heard."""
    reached = asyncio.Event()

    async def hang(*_: Any) -> None:
        reached.set()
        await asyncio.sleep(3600)

    async with rig(looks, tools=[look], settings={"heartbeat_seconds": 1}) as r:
        run = await r.start()
        await run.result()
        monkeypatch.setattr("activities.fork.forkable", hang)
        fork = await run.fork(2)
        r.ids.append(fork.id)
        async with asyncio.timeout(60):
            await reached.wait()
        assert await fork.stop("enough") == "stopping"
        assert (await fork.result(check=False, timeout=60)).outcome == "stopped"
        assert (await r.transcript(fork.id)).entries == []


async def test_what_is_no_run_cannot_be_forked(rig: RigFactory) -> None:
    """Refused before anything is started."""
    async with rig(looks, tools=[look]) as r:
        with pytest.raises(LookupError, match="nobody"):
            await r.agents.fork("nobody", 1)
        with pytest.raises(InvalidRequest, match="turn"):
            await r.agents.fork("nobody", 0)
        with pytest.raises(InvalidRequest, match="edit: is blank"):
            await r.agents.fork("nobody", 1, "  ")


async def test_steps_of_a_fork(rig: RigFactory) -> None:
    """Who follows it reads that it is one, and its turns with their own numbers."""
    async with rig(looks, tools=[look]) as r:
        run = await r.start()
        await run.result()
        fork = await run.fork(3)
        r.ids.append(fork.id)
        steps = [s async for s in fork.follow()]
        assert "a fork: 5 entries of another run" in [s.text for s in steps if s.phase == "START"]
        assert {s.turn for s in steps if s.phase == "GENERATE"} == {3, 4}
