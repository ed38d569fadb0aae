"""What models cost: asked of the package genai-prices once, and pinned into each run.

The table is the one in the package: nothing is fetched. It counts cached tokens into the input; our
`Usage` keeps them apart, so its rates are taken and its arithmetic is not.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from turnkeeper.spec import AgentSpec, ModelSpec, Price

if TYPE_CHECKING:
    from genai_prices.types import ModelPrice, TieredPrices

MAX_MODELS = 1_000
"""Of which the prices are remembered."""


def pinned(spec: AgentSpec) -> AgentSpec:
    """The spec with the prices of its models, where they are known."""
    context = spec.context
    if context is not None and context.summariser is not None:
        summariser = _priced(context.summariser)
        context = context.model_copy(update={"summariser": summariser})
    return spec.model_copy(update={"model": _priced(spec.model), "context": context})


def unpriced(models: Iterable[ModelSpec]) -> list[str]:
    """Names of the models of which no price is known."""
    return [m.name for m in models if not m.prices]


def _priced(model: ModelSpec) -> ModelSpec:
    if model.prices:
        return model
    prices = of(model.provider, model.name, model.cache_ttl)
    return model.model_copy(update={"prices": prices})


@lru_cache(MAX_MODELS)
def of(provider: str, name: str, cache_ttl: Literal["5m", "1h"]) -> tuple[Price, ...]:
    """The model's prices, one for each tier; none if the package does not know it."""
    # Imported late: a worker that begins has no use for it yet.
    from genai_prices.data_snapshot import get_snapshot

    try:
        _, model = get_snapshot().find_provider_model(name, None, provider, None)
    except LookupError:
        return ()
    rates = model.get_prices(datetime.now(UTC))
    if rates.input_mtok is None or rates.output_mtok is None:
        return ()
    return tuple(_at(rates, start, cache_ttl) for start in _starts(rates))


def _starts(rates: ModelPrice) -> list[int]:
    starts = {t.start for rate in vars(rates).values() for t in getattr(rate, "tiers", ())}
    return sorted(starts | {0})


def _at(rates: ModelPrice, tokens: int, cache_ttl: str) -> Price:
    def rate(name: str) -> float | None:
        return _rate(getattr(rates, name, None), tokens)

    hour = rate("cache_write_1h_mtok") if cache_ttl == "1h" else None
    return Price(
        input=rate("input_mtok") or 0,
        output=rate("output_mtok") or 0,
        cache_read=rate("cache_read_mtok"),
        cache_write=hour if hour is not None else rate("cache_write_mtok"),
        from_tokens=tokens,
    )


def _rate(price: Decimal | TieredPrices | None, tokens: int) -> float | None:
    if price is None or isinstance(price, Decimal):
        return None if price is None else float(price)
    reached = [t.price for t in price.tiers if tokens >= t.start]
    return float(reached[-1] if reached else price.base)
