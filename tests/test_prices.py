"""What tokens cost, and what a limit still allows."""

from __future__ import annotations

import pytest
from genai_prices import Usage as TheirUsage
from genai_prices import calc_price

from activities.pricing import of, pinned, unpriced
from turnkeeper import Agent, ContextPolicy, Limits, ModelSpec, Price
from turnkeeper.budget import Budget, share_used
from turnkeeper.prices import MIN_REPLY_TOKENS, Allowance, cost
from turnkeeper.usage import Usage

SONNET = (Price(input=2, output=10, cache_read=0.1, cache_write=2.5),)


@pytest.mark.parametrize(
    ("read", "cached", "written", "out"),
    [(0, 0, 0, 0), (1_000, 0, 0, 500), (10, 90_000, 9_000, 1), (10, 90_000, 20_000, 700)],
)
@pytest.mark.parametrize("model", ["claude-sonnet-5-5", "claude-haiku-5-5", "claude-sonnet-4-5"])
def test_a_request_costs_what_the_price_list_says(
    model: str, read: int, cached: int, written: int, out: int
) -> None:
    """Also over the threshold of a tier, which makes the whole request dearer."""
    ours = Usage(
        input_tokens=read, cache_read_tokens=cached, cache_write_tokens=written, output_tokens=out
    )
    theirs = calc_price(
        TheirUsage(
            input_tokens=read + cached + written,
            cache_read_tokens=cached,
            cache_write_tokens=written,
            output_tokens=out,
        ),
        model_ref=model,
        provider_id="anthropic",
    )
    assert cost(ours, of("anthropic", model, "5m")) == pytest.approx(float(theirs.total_price))


def test_an_hour_in_the_cache_is_dearer() -> None:
    """As the model's `cache_ttl` asks for it."""
    (five,), (hour,) = (of("anthropic", "claude-sonnet-5-5", ttl) for ttl in ("5m", "1h"))
    assert (five.written, hour.written) == (2.5, 4)


def test_what_is_not_known_costs_nothing_that_could_be_summed() -> None:
    """Never 0: a sum of an unknown price would be taken for the whole."""
    assert of("anthropic", "my-own-model", "5m") == ()
    assert of("ollama-of-mine", "llama", "5m") == ()
    assert cost(Usage(input_tokens=5), ()) is None
    assert Usage().plus(Usage()).cost_usd is None
    assert Usage(cost_usd=0.1).plus(Usage(cost_usd=0.2)).cost_usd == 0.3


def test_prices_are_pinned_but_for_those_that_the_agent_says() -> None:
    """Of both its models."""
    own = ModelSpec(name="my-own-model", prices=[Price(input=1, output=2)])
    context = ContextPolicy(summariser=ModelSpec(name="claude-haiku-5-5"))
    spec = Agent(name="a", model=own, instructions="", context=context).spec()
    found = pinned(spec)
    assert found.model.prices == (Price(input=1, output=2),)
    assert unpriced(found.models) == []
    assert unpriced(spec.models) == ["claude-haiku-5-5"]


@pytest.mark.parametrize(
    ("allowance", "lost", "allowed"),
    [
        ({}, Usage(), (8_192, None)),
        ({"tokens": 100_000}, Usage(), (8_192, None)),
        ({"tokens": 5_000}, Usage(), (4_000, "token_limit")),
        ({"tokens": 5_000}, Usage(estimated_tokens=3_700), (300, "token_limit")),
        ({"tokens": 1_255}, Usage(), (0, "token_limit")),
        ({"tokens": -7}, Usage(), (0, "token_limit")),
        ({"usd": 1.0, "input_usd": 0.01}, Usage(), (8_192, None)),
        ({"usd": 0.02, "input_usd": 0.01}, Usage(), (1_000, "cost_limit")),
        ({"usd": 0.02, "input_usd": 0.01}, Usage(cost_usd=0.005), (500, "cost_limit")),
        ({"usd": 0.02, "input_usd": 0.01}, Usage(cost_usd=0.009), (0, "cost_limit")),
        ({"tokens": 5_000, "usd": 0.02, "input_usd": 0.01}, Usage(), (1_000, "cost_limit")),
    ],
)
def test_a_reply_has_what_is_left(
    allowance: dict[str, float], lost: Usage, allowed: tuple[int, str | None]
) -> None:
    """The limit that leaves least says how long it may be; too little is none."""
    made = Allowance.model_validate({"request_tokens": 1_000} | allowance)
    assert made.reply_tokens(8_192, SONNET, lost) == allowed


def test_a_short_reply_that_is_wanted_may_be_short() -> None:
    """What is not worth asking for counts only where a longer one was wanted."""
    assert Allowance(request_tokens=1, tokens=51).reply_tokens(50, SONNET, Usage()) == (50, None)
    assert MIN_REPLY_TOKENS > 50


def test_an_estimate_knows_what_the_cache_saves() -> None:
    """By the last request; without one the whole is dear."""
    budget, limits = Budget(), Limits(cost_usd=1)

    def estimate() -> float:
        made = budget.allowance(limits, Usage(cost_usd=0.25), SONNET, tokens=100_000, new=1_000)
        assert made is not None
        assert made.usd == 0.75
        return made.input_usd

    assert estimate() == pytest.approx(0.099 * 2 + 0.001 * 2.5)
    budget.heard(Usage(cache_read_tokens=98_000, cache_write_tokens=2_000), SONNET)
    assert estimate() == pytest.approx(0.099 * 0.148 + 0.001 * 2.5)
    assert budget.allowance(Limits(), Usage(), SONNET, tokens=1, new=1) is None


def test_the_share_used_is_that_of_the_nearest_limit() -> None:
    """Of tokens or of cost."""
    used = Usage(output_tokens=50, cost_usd=0.9)
    assert share_used(Limits(), used) == 0
    assert share_used(Limits(tokens=100), used) == 0.5
    assert share_used(Limits(tokens=100, cost_usd=1), used) == 0.9
