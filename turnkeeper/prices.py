"""What tokens cost, and what a limit still allows. Pure.

Prices are pinned into a run: a table that is updated meanwhile does not change what it counts. Sums
are in US dollars, rounded to a billionth after every step, so that they print as they are meant.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from turnkeeper.spec import Price
from turnkeeper.usage import Usage

MIN_REPLY_TOKENS = 256
"""A reply that may have fewer is not asked for."""
LimitName = Literal["token_limit", "cost_limit"]


def cost(usage: Usage, prices: Sequence[Price]) -> float | None:
    """Of one request, in US dollars; None if no price is known.

    Input over a tier's threshold makes the whole request as dear as that tier, as providers bill.
    """
    price = _tier(usage.all_input, prices)
    if price is None:
        return None
    millionths = (
        (usage.input_tokens + usage.estimated_input_tokens) * price.input
        + usage.cache_read_tokens * price.cached
        + usage.cache_write_tokens * price.written
        + (usage.output_tokens + usage.estimated_tokens) * price.output
    )
    return round(millionths / 1e6, 9)


def no_price(model: str) -> str:
    """Why its cost cannot be bounded."""
    return (
        f"no price of the model {model} is known; say it in the agent: "
        "ModelSpec(prices=[Price(input=2, output=10)]), in US dollars per million tokens"
    )


def priced(usage: Usage, prices: Sequence[Price]) -> Usage:
    """The usage of one request with its cost."""
    return usage.model_copy(update={"cost_usd": cost(usage, prices)})


def _tier(tokens: int, prices: Sequence[Price]) -> Price | None:
    reached = [p for p in prices if tokens >= p.from_tokens]
    return max(reached, key=lambda p: p.from_tokens, default=None)


class Allowance(BaseModel):
    """What a run may still spend, and what its next request is about to cost.

    The workflow makes it; each attempt takes what earlier ones have lost from it.
    """

    model_config = ConfigDict(frozen=True)

    request_tokens: int
    """Of the next request, estimated."""
    input_usd: Annotated[float, Field(ge=0)] = 0
    """What reading it costs, estimated."""
    tokens: int | None = None
    """Left of `Limits.tokens`."""
    usd: float | None = None
    """Left of `Limits.cost_usd`."""

    def reply_tokens(
        self, wanted: int, prices: Sequence[Price], lost: Usage
    ) -> tuple[int, LimitName | None]:
        """Tokens that the reply may have, and which limit makes them fewer than `wanted`.

        0 if it may have fewer than `MIN_REPLY_TOKENS`: the request is not to be sent.
        """
        allowed = wanted
        by: LimitName | None = None
        if self.tokens is not None:
            left = self.tokens - lost.total - self.request_tokens
            if left < allowed:
                allowed, by = left, "token_limit"
        price = _tier(self.request_tokens, prices)
        if self.usd is not None and price is not None and price.output:
            usd = self.usd - (lost.cost_usd or 0) - self.input_usd
            left = math.floor(round(usd * 1e6 / price.output, 3))
            if left < allowed:
                allowed, by = left, "cost_limit"
        return (allowed if allowed >= min(MIN_REPLY_TOKENS, wanted) else 0), by
