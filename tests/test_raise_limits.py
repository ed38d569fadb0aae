"""Limits that persons raise while a run goes on: they count at once, and never become narrower."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from temporalio.client import WorkflowUpdateFailedError

from tests.rig import Rig, RigFactory, until
from tests.test_pause import Gate, card
from turnkeeper import Limits, tool
from turnkeeper.client import AgentRunHandle
from turnkeeper.contract import RAISE_LIMITS
from turnkeeper.control import changes, wider
from turnkeeper.errors import InvalidRequest
from turnkeeper.spec import HistoryPolicy
from turnkeeper.testing import Exchange, Reply, call, text


async def begun(r: Rig, gate: Gate, **start: Any) -> AgentRunHandle:
    """A run in its first tool call."""
    run = await r.start(**start)
    async with asyncio.timeout(60):
        await gate.reached.wait()
    return run


def three_calls(x: Exchange) -> Reply:
    """Three turns with a call, then the answer."""
    return call("work") if x.turn < 3 else text("Done.")


# --- pure -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"turns": 50}, ""),
        ({"turns": 60, "tokens": None}, "turns 50 → 60, tokens 5,000 → no limit"),
        ({"wall_seconds": 90_000}, "wall_seconds 86,400 → 90,000"),
        ({"recent_errors": 7}, "recent_errors 3 → 7"),
        ({"tokens": 10**400}, f"tokens 5,000 → {10**400:,}"),
        ({"recent_calls": 20, "on_limit": "stop"}, ""),
    ],
)
def test_wider_limits_are_taken_and_said(asked: dict[str, Any], said: str) -> None:
    """What is asked for counts, None as no limit; the same value again changes nothing."""
    present = Limits(tokens=5_000, recent_errors=3)
    after = wider(present, asked)
    assert all(getattr(after, name) == value for name, value in asked.items())
    assert changes(present, after) == said


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"turns": 49}, "limits.turns: 49 is less than the present 50"),
        ({"tokens": 10**9}, "limits.tokens: 1,000,000,000 is less than the present no limit"),
        ({"recent_errors": 2}, "limits.recent_errors: 2 is less than the present 3"),
        ({"recent_errors": 21}, "limits: recent_errors can't be more than recent_calls"),
        ({"recent_calls": 30}, "limits.recent_calls: it stays 20 for the whole run"),
        ({"on_limit": "answer"}, "limits.on_limit: it stays stop for the whole run"),
        ({"turns": 60, "wall_seconds": 1}, "limits.wall_seconds: 1 is less than the present"),
    ],
)
def test_narrower_limits_are_refused_with_the_present_value(
    asked: dict[str, Any], said: str
) -> None:
    """Each by its name, also beside others that could be raised."""
    with pytest.raises(ValueError, match=r"^limits") as caught:
        wider(Limits(recent_errors=3), asked)
    assert said in str(caught.value)


# --- in a run -------------------------------------------------------------------------------------


async def test_more_turns_let_a_run_go_on(rig: RigFactory) -> None:
    """Raised in its last turn, a run is not at its limit; who did it stands in the card."""
    gate = Gate()
    async with rig(three_calls, tools=[gate.tool], limits=Limits(turns=1)) as r:
        run = await begun(r, gate)
        assert await run.raise_limits({"turns": 9}, "it is worth it", "ann") == "raised"
        assert (await run.status()).limits.turns == 9
        assert "- turns 1 → 9 by ann: it is worth it" in await card(r, run)
        gate.go.set()
        result = await run.result(timeout=60)
        assert (result.outcome, result.turns) == ("completed", 4)
        assert result.limits is not None
        assert (await run.status()).limits.turns == 9
        assert await r.task_failures() == 0


async def test_the_deadline_moves(rig: RigFactory) -> None:
    """A run whose time is raised lives on past the first limit, and ends at the second."""
    gate = Gate()
    options: dict[str, Any] = {
        "limits": Limits(wall_seconds=2),
        "settings": {"heartbeat_seconds": 1},
    }
    async with rig(three_calls, tools=[gate.tool], **options) as r:
        run = await begun(r, gate)
        await run.raise_limits({"wall_seconds": 4})
        result = await run.result(check=False, timeout=60)
        assert (result.outcome, result.reason) == ("time_limit", "4 seconds are over")
        assert 4 <= result.seconds < 6
        assert await r.task_failures() == 0


async def test_what_cannot_be_raised_is_refused(rig: RigFactory) -> None:
    """Named with the present value; a run that has ended says so."""
    gate = Gate()
    async with rig(three_calls, tools=[gate.tool], limits=Limits(turns=4)) as r:
        run = await begun(r, gate)
        for limits, said in (
            ({"turns": 3}, "limits.turns: 3 is less than the present 4"),
            ({"cost_usd_per_day": 3}, "limits per day are those of an agent"),
            ({"turns": "many"}, "'many' is not a whole number"),
            ({}, "limits"),
        ):
            with pytest.raises(InvalidRequest, match=said.replace(".", r"\.")):
                await run.raise_limits(limits)
        handle = r.client.get_workflow_handle(run.id)
        await handle.signal(RAISE_LIMITS, {"limits": {"turns": 3}})
        answer = await handle.execute_update(RAISE_LIMITS, {"limits": {"turns": 4}})
        assert answer["note"] == "they were so already"
        assert (await run.status()).limits.turns == 4
        gate.go.set()
        assert (await run.result(timeout=60)).limits is None
        assert await run.raise_limits({"turns": 30}) == "ended"
        assert await r.task_failures() == 0


async def test_a_run_that_answers_at_its_limit_is_past_it(rig: RigFactory) -> None:
    """While the last answer is made, it is too late: the refusal says so."""

    @tool(effect="read")
    def work() -> str:
        """Work."""
        return "worked"

    def script(x: Exchange) -> Reply:
        last = x.body.get("tool_choice") == {"type": "none"}
        return text("All I know.", delay=3) if last else call("work")

    limits = Limits(turns=1, on_limit="answer")
    async with rig(script, tools=[work], limits=limits) as r:
        run = await r.start()
        await until(lambda: len(r.provider.requests) == 2)
        handle = r.client.get_workflow_handle(run.id)
        with pytest.raises(WorkflowUpdateFailedError) as caught:
            await handle.execute_update(RAISE_LIMITS, {"limits": {"turns": 30}})
        assert "the run ends (turn_limit); they can be raised only before" in str(
            caught.value.cause
        )
        assert (await run.result(check=False, timeout=60)).outcome == "turn_limit"


async def test_raised_before_the_agent_was_loaded(rig: RigFactory) -> None:
    """What comes with the start is compared with the agent's own limits, and never lost."""
    gate = Gate()
    gate.go.set()
    async with rig(three_calls, tools=[gate.tool], limits=Limits(turns=2)) as r:
        for turns, outcome, noted in (
            (9, "completed", "turns 2 → 9"),
            (1, "turn_limit", "not raised: limits.turns: 1 is less than the present 2"),
        ):
            started = await r.start_raw(
                {"agent": "tester", "prompt": "q"},
                start_signal=RAISE_LIMITS,
                start_signal_args=[{"limits": {"turns": turns}}],
            )
            run = AgentRunHandle(r.agents, started.id)
            assert (await run.result(check=False, timeout=60)).outcome == outcome
            assert noted in (await card(r, run)).replace("\\", "")


async def test_a_limit_that_no_float_holds_harms_no_run(rig: RigFactory) -> None:
    """It is refused by name: as an update, as a signal, with the start; the run hears on."""
    gate = Gate()
    huge = {"limits": {"tokens": 10**400}}
    async with rig(three_calls, tools=[gate.tool], limits=Limits(tokens=10**6)) as r:
        refused = await r.start_raw({"agent": "tester", "prompt": "q", **huge})
        assert "tokens is at most 1,000,000,000,000,000" in str(
            (await r.agents.result(refused.id, check=False)).reason
        )
        started = await r.start_raw(
            {"agent": "tester", "prompt": "q"}, start_signal=RAISE_LIMITS, start_signal_args=[huge]
        )
        run = AgentRunHandle(r.agents, started.id)
        await until(lambda: r.provider.requests)
        await started.signal(RAISE_LIMITS, huge)
        with pytest.raises(InvalidRequest, match="tokens is at most"):
            await run.raise_limits(huge["limits"])
        await run.stop("enough")
        assert (await run.result(check=False)).outcome == "stopped"
        assert await r.task_failures() == 0


async def test_raised_limits_are_carried_over(rig: RigFactory) -> None:
    """A run that continues as new keeps them, and their record."""

    gate = Gate()

    @tool(effect="read")
    def more() -> str:
        """Work on."""
        return "worked on"

    def script(x: Exchange) -> Reply:
        if x.turn == 0:
            return call("work")
        return call("more") if x.turn < 12 else text("Done.")

    limits = Limits(turns=2, repetition=100)
    history = HistoryPolicy(events=50)
    async with rig(script, tools=[gate.tool, more], limits=limits, history=history) as r:
        run = await begun(r, gate)
        await run.raise_limits({"turns": 40}, actor="ann")
        gate.go.set()
        assert (await run.result(timeout=30)).outcome == "completed"
        (_, state), *_ = await r.carried(run.id)
        assert (state.limits.turns, state.control.raised[0].actor) == (40, "ann")
        assert await r.task_failures() == 0
