"""How a run keeps within its limits on tokens and cost. Pure.

Before each generation its estimate is held against what is left: if a reply of `MIN_REPLY_TOKENS`
does not fit any more, it is not asked for; a reply that might not fit is allowed fewer tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel

from turnkeeper.prices import Allowance, LimitName, cost
from turnkeeper.spec import Limits, Price
from turnkeeper.usage import Usage

LAST_ANSWER_TOKENS = 1_000
"""Of an answer that is asked for when the limit on cost is reached: it is over the limit."""


class Budget(BaseModel):
    """What a run has learnt of what it spends."""

    input_rate: float | None = None
    """US dollars per million tokens of the last request, as the provider's cache made it."""
    paused: bool = False
    """Whether it has paused at `Limits.pause_at`."""

    def heard(self, usage: Usage, prices: Sequence[Price]) -> None:
        """A reply came, with what its request has cost."""
        asked = Usage(
            input_tokens=usage.input_tokens,
            cache_read_tokens=usage.cache_read_tokens,
            cache_write_tokens=usage.cache_write_tokens,
        )
        paid = cost(asked, prices)
        if paid is not None and asked.all_input:
            self.input_rate = round(paid * 1e6 / asked.all_input, 6)

    def allowance(
        self, limits: Limits, used: Usage, prices: Sequence[Price], *, tokens: int, new: int
    ) -> Allowance | None:
        """For a request of `tokens` tokens, `new` of which the model has not read before; None
        without a limit."""
        if limits.tokens is None and limits.cost_usd is None:
            return None
        return Allowance(
            request_tokens=tokens,
            input_usd=self._input_usd(prices, tokens, new),
            tokens=None if limits.tokens is None else limits.tokens - used.total,
            usd=None if limits.cost_usd is None else limits.cost_usd - (used.cost_usd or 0),
        )

    def _input_usd(self, prices: Sequence[Price], tokens: int, new: int) -> float:
        unread = cost(Usage(cache_write_tokens=new), prices) or 0
        read = cost(Usage(input_tokens=tokens - new), prices) or 0
        if self.input_rate is not None:
            # Most of it is in the provider's cache; if not, it is one request that costs more.
            read = min(read, (tokens - new) * self.input_rate / 1e6)
        return round(read + unread, 9)


def reason(limit: LimitName, limits: Limits, used: Usage, allowance: Allowance) -> str:
    """Why no further reply is asked for."""
    if limit == "cost_limit":
        return (
            f"{dollars(used.cost_usd or 0)} of {dollars(limits.cost_usd or 0)} used, and the next "
            f"request alone costs about {dollars(allowance.input_usd)}"
        )
    return (
        f"{used.total:,} of {limits.tokens or 0:,} tokens used, and the next request alone has "
        f"about {allowance.request_tokens:,}"
    )


def share_used(limits: Limits, used: Usage) -> float:
    """Of the limit that is nearest, 0 to 1 and more."""
    shares = [0.0]
    if limits.tokens is not None:
        shares.append(used.total / limits.tokens)
    if limits.cost_usd is not None:
        shares.append((used.cost_usd or 0) / limits.cost_usd)
    return max(shares)


def dollars(amount: float) -> str:
    """`$0.0123`: cents, or as many digits as a small sum needs."""
    return f"${amount:.2f}" if amount >= 1 else f"${amount:.4f}"
