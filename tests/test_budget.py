"""Runs with a limit on what they may cost."""

from __future__ import annotations

import pytest

from tests.rig import RigFactory, until
from turnkeeper import ModelSpec, Price, tool
from turnkeeper.testing import Exchange, Reply, call, cut, reply, text

CHEAP = ModelSpec(name="my-own-model", prices=[Price(input=1, output=10)], window=200_000)


@tool(effect="read")
async def look(n: int) -> str:
    """Look."""
    return f"seen {n}"


def works(exchange: Exchange) -> Reply:
    """A call, 1,000 tokens long, for ever; shorter if the request does not allow them."""
    allowed = min(1_000, exchange.body["max_tokens"])
    if allowed < 1_000:
        return text("x" * allowed, stop_reason="max_tokens", usage={"output_tokens": allowed})
    return reply([call("look", {"n": exchange.turn})], usage={"output_tokens": 1_000})


async def test_a_run_ends_at_its_limit_on_cost(rig: RigFactory) -> None:
    """What does not fit is not begun, and the last reply has only as many tokens as fit."""
    async with rig(works, tools=[look], model=CHEAP) as r:
        result = await r.run(limits={"cost_usd": 0.05, "turns": 100})
        assert result.outcome == "cost_limit"
        assert "cut off where the limit allowed no more" in (result.reason or "")
        assert result.usage.cost_usd is not None
        assert 0.8 * 0.05 < result.usage.cost_usd <= 0.05
        assert r.provider.requests[-1].status == 200
        status = await r.agents.status(r.ids[0])
        assert status.usage == result.usage
        assert await r.task_failures() == 0


@pytest.mark.parametrize("on_limit", ["stop", "answer"])
async def test_what_does_not_fit_is_not_begun(rig: RigFactory, on_limit: str) -> None:
    """A request that alone costs more than is left is not sent, but for one last answer."""
    limits = {"cost_usd": 0.0005, "on_limit": on_limit}
    async with rig([text("Done.")], tools=[look], model=CHEAP) as r:
        result = await r.run("word " * 2_000, limits=limits)
        assert result.outcome == "cost_limit"
        assert "the next request alone costs about" in (result.reason or "")
        assert len(r.provider.requests) == (on_limit == "answer")
        assert result.answer == ("Done." if on_limit == "answer" else None)


async def test_a_limit_on_tokens_admits_only_what_fits(rig: RigFactory) -> None:
    """As one on cost does."""
    async with rig(works, tools=[look], model=CHEAP) as r:
        result = await r.run(limits={"tokens": 9_000, "turns": 100})
        assert result.outcome == "token_limit"
        assert 0.8 * 9_000 < result.usage.total <= 9_000 * 1.05


async def test_failed_attempts_are_paid_for(rig: RigFactory) -> None:
    """What was cut off counts: its request as the provider told it, and what it had said."""
    whole = text("word " * 400)
    async with rig([[cut(whole, 0.5), cut(whole, 0.5), text("Done.")]], model=CHEAP) as r:
        result = await r.run()
        usage = result.usage
        assert usage.input_tokens == 3 * (r.provider.requests[-1].tokens or 0)
        assert 200 < usage.estimated_tokens < 1_000
        told = usage.input_tokens * 1 + (usage.estimated_tokens + usage.output_tokens) * 10
        assert usage.cost_usd == pytest.approx(told / 1e6)


async def test_each_of_the_last_turns_tells_what_it_has_used(rig: RigFactory) -> None:
    """Failed attempts included; together they are the sum."""
    script = [cut(text("word " * 400), 0.5), call("look", {"n": 1}), text("Done.")]
    async with rig([[script[0], script[1]], script[2]], tools=[look], model=CHEAP) as r:
        result = await r.run()
        assert [u.turn for u in result.turn_usage] == [1, 2]
        assert sum(u.tokens for u in result.turn_usage) == result.usage.total
        costs = [u.cost_usd or 0 for u in result.turn_usage]
        assert sum(costs) == pytest.approx(result.usage.cost_usd)
        assert costs[0] > 2 * costs[1]


async def test_failed_attempts_end_a_run_at_its_limit(rig: RigFactory) -> None:
    """No attempt is begun that does not fit any more."""
    whole = text("word " * 2_000)
    async with rig([[*[cut(whole, 0.9)] * 8, text("Done.")]], model=CHEAP) as r:
        result = await r.run(limits={"cost_usd": 0.05})
        assert result.outcome == "cost_limit"
        assert "attempts that failed have used up what was left" in (result.reason or "")
        assert 1 < len(r.provider.requests) < 8
        assert (result.usage.cost_usd or 0) > 0.04


async def test_a_cost_that_nobody_knows_cannot_be_limited(rig: RigFactory) -> None:
    """It is refused by name; a run without such a limit has no cost, either."""
    unknown = ModelSpec(name="my-own-model", window=200_000)
    async with rig([text("Done.")], model=unknown) as r:
        refused = await r.run(limits={"cost_usd": 1})
        assert refused.outcome == "invalid_request"
        assert "no price of the model my-own-model is known" in (refused.reason or "")
        assert (await r.run()).usage.cost_usd is None


async def test_a_person_is_asked_for_more(rig: RigFactory) -> None:
    """At a share of the limit the run waits, once; raised, it goes on to the next limit."""
    limits = {"cost_usd": 0.05, "pause_at": 0.5, "turns": 100}
    async with rig(works, tools=[look], model=CHEAP) as r:
        run = await r.start(limits=limits)

        async def pauses() -> bool:
            return "used; raise its limits" in (await run.status()).waiting_for

        await until(pauses)
        assert 0.025 <= ((await run.status()).usage.cost_usd or 0) < 0.05
        await run.raise_limits({"cost_usd": 0.1}, "worth it", "ann")
        await run.resume("ann")
        await until(pauses)
        assert 0.05 <= ((await run.status()).usage.cost_usd or 0) < 0.1
        await run.resume("ann")
        result = await run.result(check=False)
        assert result.outcome == "cost_limit"
        assert 0.08 < (result.usage.cost_usd or 0) <= 0.1
