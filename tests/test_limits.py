"""Every limit of `Limits`: reached at the stated number, not before, and named in the outcome."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from tests.rig import RigFactory, until
from turnkeeper import Limits, ToolFailed, tool
from turnkeeper.prices import MIN_REPLY_TOKENS
from turnkeeper.testing import Exchange, call, calls, text
from turnkeeper.testing.provider import Reply


@tool(effect="read")
def look_up(q: str) -> str:
    """Look something up."""
    return f"found {q}"


@tool(effect="read")
def broken(q: str) -> str:
    """Fail in words for the model."""
    raise ToolFailed(f"no such thing: {q}")


@tool(effect="read")
async def hang() -> str:
    """Do not end."""
    await asyncio.sleep(3600)
    return "never"


def ever_on(exchange: Exchange) -> Reply:
    """A model that asks for another look-up each turn, and answers only where it must."""
    if exchange.body.get("tool_choice") == {"type": "none"}:
        return text(f"The last answer. {exchange.last_text}")
    return call("look_up", {"q": str(exchange.turn)})


def failing(pattern: str) -> Any:
    """Calls that fail (x) or not (.), one a turn, then an answer."""
    steps: list[Any] = [
        call("broken" if c == "x" else "look_up", {"q": str(i)}) for i, c in enumerate(pattern)
    ]
    return [*steps, text("Done.")]


async def test_turns_bounds_the_generations(rig: RigFactory) -> None:
    """turns=3: the third turn's calls are answered, a fourth generation is not asked for."""
    async with rig(ever_on, tools=[look_up], limits=Limits(turns=3)) as r:
        result = await r.run()
        assert (result.outcome, result.turns, result.calls) == ("turn_limit", 3, 3)
        assert result.reason == "3 of 3 turns used"
        assert len(r.provider.requests) == 3


async def test_an_answer_in_the_last_turn_completes(rig: RigFactory) -> None:
    """turns=2: an answer in the second turn is an answer, not a limit."""
    script = [call("look_up", {"q": "x"}), text("Done.")]
    async with rig(script, tools=[look_up], limits=Limits(turns=2)) as r:
        assert (await r.run()).outcome == "completed"


async def test_a_request_may_set_its_own_limits(rig: RigFactory) -> None:
    """The start request's limits replace the agent's, the others stay."""
    async with rig(ever_on, tools=[look_up], limits=Limits(turns=9, repetition=7)) as r:
        handle = await r.start(limits={"turns": 2})
        assert (await handle.result(check=False)).turns == 2


async def test_tokens_bounds_what_is_spent(rig: RigFactory) -> None:
    """tokens: no further generation if it does not fit with what was used, in and out."""
    async with rig(ever_on, tools=[look_up], limits=Limits(tokens=2_000)) as r:
        result = await r.run()
        assert result.outcome == "token_limit"
        last = r.provider.requests[-1].tokens or 0
        assert 2_000 - last - 2 * MIN_REPLY_TOKENS < result.usage.total <= 2_000


async def test_wall_seconds_bounds_the_time(rig: RigFactory) -> None:
    """wall_seconds: a tool that hangs is cancelled and the run ends by name, in time."""
    async with rig(
        [call("hang")],
        tools=[hang],
        limits=Limits(wall_seconds=1),
        settings={"heartbeat_seconds": 1},
    ) as r:
        result = await r.run()
        assert (result.outcome, result.reason) == ("time_limit", "1 seconds are over")
        assert result.seconds < 15


async def test_calls_per_turn_bounds_one_reply(rig: RigFactory) -> None:
    """calls_per_turn=2: later calls of the reply are answered, not run."""
    script = [
        calls([("look_up", {"q": str(i)}) for i in range(4)]),
        lambda x: text(" | ".join(t for _, t, _ in x.last_results)),
    ]
    async with rig(script, tools=[look_up], limits=Limits(calls_per_turn=2)) as r:
        result = await r.run()
        not_run = "Not run: at most 2 calls in one reply."
        assert result.answer == f"found 0 | found 1 | {not_run} | {not_run}"


async def test_parallel_calls_bounds_what_is_in_flight(rig: RigFactory) -> None:
    """parallel_calls=2: six reads side by side are never more than two at once."""
    now: list[int] = [0, 0]

    @tool(effect="read")
    async def busy(n: int) -> str:
        """Count who else is here."""
        now[0] += 1
        now[1] = max(now)
        await asyncio.sleep(0.05)
        now[0] -= 1
        return str(n)

    script = [calls([("busy", {"n": n}) for n in range(6)]), text("Done.")]
    async with rig(script, tools=[busy], limits=Limits(parallel_calls=2)) as r:
        assert (await r.run()).outcome == "completed"
    assert now[1] == 2


async def test_consecutive_errors_bounds_errors_in_a_row(rig: RigFactory) -> None:
    """consecutive_errors=3: three errors in a row end the run; a success in between counts anew."""
    async with rig(
        failing("xx.xxx.."), tools=[look_up, broken], limits=Limits(consecutive_errors=3)
    ) as r:
        result = await r.run()
        assert (result.outcome, result.turns) == ("error_limit", 6)
        assert result.reason == "3 tool errors in a row"


async def test_recent_errors_bounds_errors_in_a_window(rig: RigFactory) -> None:
    """recent_errors=3 of recent_calls=4: errors that never stand in a row end the run, too."""
    limits = Limits(recent_errors=3, recent_calls=4)
    async with rig(failing("x..x.xx.."), tools=[look_up, broken], limits=limits) as r:
        result = await r.run()
        assert (result.outcome, result.turns) == ("error_limit", 7)
        assert result.reason == "3 of the last 4 tool calls failed"


async def test_repetition_bounds_the_same_call_with_the_same_result(rig: RigFactory) -> None:
    """repetition=3: the third time in a row ends the run, in whatever key order it is written."""
    arguments = itertools.cycle([{"a": 1, "b": 2}, {"b": 2, "a": 1.0}])

    @tool(effect="read")
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    def script(exchange: Exchange) -> Reply:
        return call("add", next(arguments))

    async with rig(script, tools=[add], limits=Limits(repetition=3)) as r:
        result = await r.run()
        assert (result.outcome, result.turns) == ("repetition", 3)


async def test_the_same_call_with_another_result_is_no_repetition(rig: RigFactory) -> None:
    """Polling is allowed: a result that changes counts anew."""
    seen = itertools.count()

    @tool(effect="read")
    def poll() -> str:
        """Poll."""
        return f"{next(seen)} of 3"

    script = [*[call("poll")] * 4, text("Done.")]
    async with rig(script, tools=[poll], limits=Limits(repetition=2)) as r:
        assert (await r.run()).outcome == "completed"


@pytest.mark.parametrize(
    ("limits", "outcome"),
    [
        ({"turns": 2}, "turn_limit"),
        ({"tokens": 1_000}, "token_limit"),
    ],
)
async def test_on_limit_answer_asks_for_one_last_answer(
    rig: RigFactory, limits: dict[str, Any], outcome: str
) -> None:
    """on_limit="answer": one more generation, in which no tool may be called; the outcome stays
    the limit's."""
    async with rig(
        ever_on, tools=[look_up], limits=Limits.model_validate({**limits, "on_limit": "answer"})
    ) as r:
        result = await r.run()
        assert result.outcome == outcome
        assert result.answer is not None
        assert result.answer.startswith("The last answer. This run has reached a limit")
        assert not r.provider.rejections


async def test_a_last_answer_that_calls_tools_anyway_runs_none(rig: RigFactory) -> None:
    """on_limit="answer" against a model that does not obey: nothing runs, the run ends."""
    ran: list[str] = []

    @tool(effect="once")
    def act(q: str) -> str:
        """Act."""
        ran.append(q)
        return "done"

    script = [call("act", {"q": "0"}), call("act", {"q": "1"}), text("Never asked.")]
    async with rig(script, tools=[act], limits=Limits(turns=1, on_limit="answer")) as r:
        result = await r.run()
        assert (result.outcome, ran) == ("turn_limit", ["0"])


async def test_the_time_limit_asks_for_no_last_answer(rig: RigFactory) -> None:
    """on_limit="answer" at the time limit: the time is over, so it is not asked for."""
    limits = Limits(wall_seconds=0.5, on_limit="answer")
    async with rig(
        [text("Late.", delay=30)], limits=limits, settings={"heartbeat_seconds": 1}
    ) as r:
        result = await r.run()
        assert (result.outcome, result.answer) == ("time_limit", None)
        await until(lambda: r.provider.requests[-1].outcome == "client_gone")
        assert len(r.provider.requests) == 1
