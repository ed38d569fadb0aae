"""How a run keeps within its limits on tokens and cost. Pure.

Before each generation its estimate is held against what is left: if a reply of `MIN_REPLY_TOKENS`
does not fit any more, it is not asked for; a reply that might not fit is allowed fewer tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel

from turnkeeper.day_limits import Estimate
from turnkeeper.prices import Allowance, LimitName, cost
from turnkeeper.spec import Limits, Price
from turnkeeper.text import dollars
from turnkeeper.usage import Usage

FIRST_REPLY_TOKENS = 1_000
"""Expected of the first reply of a run; of later ones what they had on average."""
LAST_ANSWER_TOKENS = 1_000
"""Of an answer that is asked for when the limit on cost is reached: it is over the limit."""


class Budget(BaseModel):
    """What a run has learnt of what it spends."""

    input_rate: float | None = None
    """US dollars per million tokens of the last request, as the provider's cache made it."""
    replies: int = 0
    reply_tokens: int = 0
    """Of all replies."""
    paused: bool = False
    """Whether it has paused at `Limits.pause_at`."""

    def heard(self, usage: Usage, prices: Sequence[Price]) -> None:
        """A reply came, with what its request has cost."""
        self.replies += 1
        self.reply_tokens += usage.output_tokens
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

    def estimate(self, prices: Sequence[Price], *, tokens: int, new: int, most: int) -> Estimate:
        """Of a request of so many tokens, `new` of which the model has not read before; its reply
        has at most `most`."""
        mean = self.reply_tokens // self.replies if self.replies else FIRST_REPLY_TOKENS
        reply = min(mean, most)
        # As a difference: which price a reply has depends on the length of its request.
        read, whole = (
            cost(Usage(input_tokens=tokens, output_tokens=n), prices) or 0 for n in (0, reply)
        )
        usd = self._input_usd(prices, tokens, new) + whole - read
        return Estimate.bounded(tokens + reply, round(usd, 9))

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
