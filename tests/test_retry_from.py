"""A run that is run again from a turn on: the same keys, nothing applied twice, nothing silent."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Any

import pytest

from tests.rig import RigFactory, until
from tests.test_pause import Gate, held
from turnkeeper import Landed, Limits, NotLanded, RetryTool, ToolContext, ToolFailed, tool
from turnkeeper.errors import EffectsRepeated, InvalidRequest
from turnkeeper.probe import Answer
from turnkeeper.retry import PastEffect, repeated_text
from turnkeeper.spec import HistoryPolicy
from turnkeeper.testing import AsyncEffects, EffectLedger, Exchange, Reply, call, calls, text
from turnkeeper.testing.effects import EffectConflict


def effects() -> AsyncEffects:
    """The ledger of this test."""
    return AsyncEffects(os.environ["LEDGER_URL"])


@tool(effect="read")
def look(n: int = 0) -> str:
    """Look."""
    return f"seen {n}"


@tool(effect="idempotent")
async def refund(order: str, ctx: ToolContext) -> str:
    """Refund an order."""
    try:
        receipt = await effects().keyed("refund", ctx.idempotency_key, {"order": order})
    except EffectConflict:
        raise ToolFailed("under this key something else was refunded") from None
    return receipt.receipt


async def find_booking(ctx: ToolContext, _args: Mapping[str, Any]) -> Answer:
    """Ask the ledger."""
    found = await effects().probe("book", ctx.idempotency_key)
    return NotLanded() if found is None else Landed(found.receipt)


@tool(effect="reconcilable", probe=find_booking)
async def book(ctx: ToolContext) -> str:
    """Book."""
    return (await effects().keyed("book", ctx.idempotency_key, {})).receipt


@tool(effect="once")
async def send(to: str, ctx: ToolContext) -> str:
    """Send."""
    return (await effects().plain("send", {"to": to, "key": ctx.idempotency_key})).receipt


TOOLS = [look, refund, book, send]


class Moody:
    """A model that changes its mind: what it answers the second time it is asked for a turn."""

    def __init__(self, first: Mapping[int, Reply], second: Mapping[int, Reply]) -> None:
        self.replies = (first, second)
        self.asked: dict[int, int] = {}

    def __call__(self, x: Exchange) -> Reply:
        """The reply of a turn; without one, the results that were read."""
        times = self.asked.get(x.turn, 0)
        self.asked[x.turn] = times + 1
        said = self.replies[min(times, 1)].get(x.turn)
        return said or text(" | ".join(r.text for r in x.last_results) or "Done.")


async def test_a_finished_refund_is_not_made_twice(rig: RigFactory, ledger: EffectLedger) -> None:
    """The retry refuses and says why; told to go on it asks the model again, which refunds another
    order: the target knows the key, and nothing is refunded a second time."""
    script = Moody(
        {0: call("look"), 1: call("refund", {"order": "o-7"})},
        {1: call("refund", {"order": "o-8"})},
    )
    async with rig(script, tools=TOOLS) as r:
        run = await r.start()
        await run.result()
        with pytest.raises(EffectsRepeated) as refused:
            await run.retry_from(2)
        (effect,) = refused.value.effects
        assert (effect.turn, effect.tool, effect.state) == (2, "refund", "done")
        assert effect.key == ledger.effects()[0].key
        assert 'refund order="o-7" (idempotent, key ' in str(refused.value)
        assert len(r.provider.requests) == 3
        again = await run.retry_from(2, again=True, reason="wrong order", actor="ann")
        result = await again.result(timeout=60)
        assert result.answer == "under this key something else was refunded"
        assert [e.name for e in ledger.effects()] == ["refund"]
        assert len({a.key for a in ledger.arrivals()}) == 1
        # The look-up, and the reply that asked for it, are kept.
        assert len(r.provider.requests) == 5
        said = await r.transcript(run.id)
        assert [e.kind for e in said.entries].count("reply") == 3
        assert r.provider.rejections == {}
        assert await r.task_failures() == 0


async def test_the_same_refund_again_gets_the_first_receipt(
    rig: RigFactory, ledger: EffectLedger
) -> None:
    """A model that asks for the same effect reads what it read the first time."""
    refunds = {0: call("refund", {"order": "o-7"})}
    async with rig(Moody(refunds, refunds), tools=TOOLS) as r:
        run = await r.start()
        first = await run.result()
        second = await (await run.retry_from(1, again=True)).result(timeout=60)
        assert first.answer == second.answer
        assert len(ledger.effects()) == 1
        assert len(ledger.arrivals()) == 2


async def test_a_probe_is_asked_first(rig: RigFactory, ledger: EffectLedger) -> None:
    """A booking that has landed is adopted, not sent again."""
    books = {0: call("book")}
    async with rig(Moody(books, books), tools=TOOLS) as r:
        run = await r.start()
        first = await run.result()
        second = await (await run.retry_from(1, again=True)).result(timeout=60)
        assert first.answer == second.answer
        assert len(ledger.arrivals()) == 1


@pytest.mark.parametrize("to", ["ann", "bob"])
async def test_what_was_sent_once_is_not_sent_again(
    rig: RigFactory, ledger: EffectLedger, to: str
) -> None:
    """The model reads the recorded result; with other arguments, that it was not run."""
    script = Moody({0: call("send", {"to": "ann"})}, {0: call("send", {"to": to})})
    async with rig(script, tools=TOOLS) as r:
        run = await r.start()
        first = await run.result()
        with pytest.raises(EffectsRepeated, match="not begun again"):
            await run.retry_from(1)
        second = await (await run.retry_from(1, again=True)).result(timeout=60)
        assert len(ledger.arrivals()) == 1
        if to == "ann":
            assert (second.answer, second.errors) == (first.answer, 0)
        else:
            assert second.answer is not None
            assert 'with other arguments (to="ann")' in second.answer
            assert (second.errors, second.unknown) == (1, [])
        assert await r.task_failures() == 0


async def test_what_is_unknown_stays_unknown(rig: RigFactory, ledger: EffectLedger) -> None:
    """A call that broke off before the reset is not begun again: it may have taken effect."""
    begun: list[str] = []

    @tool(effect="once")
    async def post(ctx: ToolContext) -> str:
        """Post."""
        begun.append(ctx.idempotency_key)
        raise OSError("reply lost")

    posts = {0: call("post")}
    async with rig(Moody(posts, posts), tools=[post]) as r:
        run = await r.start()
        await run.result()
        with pytest.raises(EffectsRepeated, match="unknown: turn 1, post"):
            await run.retry_from(1)
        result = await (await run.retry_from(1, again=True)).result(timeout=60)
        assert len(begun) == 1
        assert [u.tool for u in result.unknown] == ["post"]
        assert result.answer is not None
        assert "begun before the run was reset" in result.answer
        assert "may or may not have taken effect" in result.answer


async def test_a_new_call_after_a_reset_is_made(rig: RigFactory, ledger: EffectLedger) -> None:
    """Only what was begun before is held back: a turn that the run never had sends."""
    async with rig(Moody({0: call("look")}, {0: call("send", {"to": "ann"})}), tools=TOOLS) as r:
        run = await r.start()
        await run.result()
        await (await run.retry_from(1)).result(timeout=60)
        assert [a.name for a in ledger.arrivals()] == ["send"]


async def test_a_second_retry_knows_what_the_first_replaced(
    rig: RigFactory, ledger: EffectLedger
) -> None:
    """An effect of before the first retry is listed, and held back, also at the second."""
    times = 0

    def script(x: Exchange) -> Reply:
        nonlocal times
        times += x.turn == 0
        return call("send", {"to": "ann"}) if x.turn == 0 and times != 2 else text("Done.")

    async with rig(script, tools=TOOLS) as r:
        run = await r.start()
        await run.result()
        await (await run.retry_from(1, again=True)).result(timeout=60)
        with pytest.raises(EffectsRepeated, match="send"):
            await run.retry_from(1)
        result = await (await run.retry_from(1, again=True)).result(timeout=60)
        assert (result.calls, len(ledger.arrivals())) == (1, 1)


# --- where, and when ----------------------------------------------------------------------------


async def test_an_open_run_is_retried(rig: RigFactory) -> None:
    """It is ended where it is; its call at work was listed; the new execution goes on."""
    gate = Gate()

    @tool(effect="idempotent")
    async def slow() -> str:
        """Change something, slowly."""
        gate.reached.set()
        await gate.go.wait()
        return "changed"

    script = Moody({0: call("look"), 1: call("slow")}, {1: text("Done.")})
    async with rig(script, tools=[look, slow]) as r:
        run = await r.start()
        async with asyncio.timeout(60):
            await gate.reached.wait()
        with pytest.raises(EffectsRepeated, match="running: turn 2, slow"):
            await run.retry_from(2)
        assert (await run.status()).phase == "EXECUTE"
        awaited = asyncio.create_task(run.result(timeout=30))
        await asyncio.sleep(0.2)
        again = await run.retry_from(2, again=True)
        gate.go.set()
        result = await again.result(timeout=60)
        assert (result.answer, result.turns) == ("Done.", 2)
        # Who waited for the run waits for what it is now.
        assert await awaited == result


async def test_what_was_said_to_the_run_after_that_turn_is_forgotten(rig: RigFactory) -> None:
    """A run that was stopped goes on, and is not stopped again; nor is one that was cancelled."""
    for end in ("stop", "signal", "cancel"):
        gate = Gate()

        def script(x: Exchange, gate: Gate = gate) -> Reply:
            return call("work") if x.turn == 0 else text("Done.")

        async with rig(script, tools=[gate.tool], settings={"heartbeat_seconds": 1}) as r:
            run = await r.start()
            async with asyncio.timeout(60):
                await gate.reached.wait()
            if end == "stop":
                await run.stop("enough")
            elif end == "signal":
                await r.client.get_workflow_handle(run.id).signal("stop", {})
            else:
                await r.client.get_workflow_handle(run.id).cancel()
            await run.result(check=False)
            gate.go.set()
            again = await run.retry_from(1)
            assert (await again.result(timeout=60)).answer == "Done."


async def test_an_earlier_execution_is_retried(rig: RigFactory, ledger: EffectLedger) -> None:
    """A turn of before a switch: the later executions are replaced with it, and what they did is
    listed; the steps are those of the run as it is now."""

    def script(x: Exchange) -> Reply:
        if x.turn == 9:
            return call("refund", {"order": "o-7"})
        return call("look", {"n": x.turn}) if x.turn < 12 else text("Done.")

    limits = Limits(repetition=100)
    async with rig(script, tools=TOOLS, limits=limits, history=HistoryPolicy(events=50)) as r:
        run = await r.start()
        first = await run.result()
        before = len(await r.carried(run.id))
        assert before >= 2
        with pytest.raises(EffectsRepeated) as refused:
            await run.retry_from(2)
        assert [(e.turn, e.tool) for e in refused.value.effects] == [(10, "refund")]
        again = await run.retry_from(2, again=True)
        result = await again.result(timeout=30)
        assert result.transcript == first.transcript
        assert len(ledger.effects()) == 1
        assert len(r.provider.requests) == 13 + 12
        steps = [s async for s in run.follow()]
        assert [s.turn for s in steps if s.phase == "GENERATE" and "reads" in s.text] == [
            *range(1, 14)
        ]
        assert any("the run was reset: retry from turn 2" in s.text for s in steps)


async def test_a_run_that_was_paused_there_is_paused_again(rig: RigFactory) -> None:
    """Its resume came after that place in history, and is forgotten: it waits, and says so."""
    gate = Gate()
    gate.go.set()
    async with rig(
        lambda x: call("work", delay=0.5) if x.turn == 0 else text("Done."), tools=[gate.tool]
    ) as r:
        run = await r.start()
        await until(lambda: r.provider.requests)
        await run.pause()
        await held(r, run)
        await run.resume()
        await run.result(timeout=60)
        again = await run.retry_from(2)
        assert (await held(r, again)).status == "waiting"
        await again.resume()
        assert (await again.result(timeout=60)).answer == "Done."


async def test_what_cannot_be_retried_is_refused(rig: RigFactory) -> None:
    """Turns that it has not had, runs that are none, and one whose time is over."""
    async with rig(Moody({0: call("look")}, {}), tools=[look]) as r:
        run = await r.start(limits={"wall_seconds": 8})
        await run.result()
        for turn in (0, 3):
            with pytest.raises(
                InvalidRequest, match=f"{turn} is none of the run's: its turns are 1"
            ):
                await run.retry_from(turn)
        with pytest.raises(LookupError):
            await r.agents.retry_from("nobody", 1)
        await asyncio.sleep(8)
        with pytest.raises(InvalidRequest, match="wall_seconds are over"):
            await run.retry_from(1)


def test_a_long_list_of_effects_is_cut() -> None:
    """A refusal fits on a screen, whatever a run has done."""
    effect = PastEffect(1, "c", "send", "once", "k", "to=1", "done")
    told = repeated_text("run", 1, [effect] * 50)
    assert told.endswith("- and 30 more")
    assert told.count("not begun again") == 20


async def test_calls_that_changed_nothing_do_not_hold_up_a_retry(rig: RigFactory) -> None:
    """Reads, refused arguments and calls that say that nothing happened are no effects."""

    @tool(effect="once")
    def nothing() -> str:
        """Do nothing."""
        raise RetryTool("not now")

    once = {0: calls([("look", {}), ("nothing", {}), ("nothing", {"x": 1})])}
    async with rig(Moody(once, {}), tools=[look, nothing]) as r:
        run = await r.start()
        await run.result()
        assert (await (await run.retry_from(1)).result(timeout=60)).calls == 0
