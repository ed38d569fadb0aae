"""What a run has used: tokens, and what they cost. Pure."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Usage(BaseModel):
    """Tokens, as the provider counted them."""

    model_config = ConfigDict(extra="ignore")

    input_tokens: int = 0
    """Read by the model and not from its cache."""
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    output_tokens: int = 0
    estimated_tokens: int = 0
    """Output charged for generations that were cut off, whose count never came."""
    estimated_input_tokens: int = 0
    """Input charged for them."""
    cost_usd: float | None = None
    """By the prices that are pinned into the run; None while no priced model was asked."""

    @property
    def total(self) -> int:
        """All of them."""
        return self.all_input + self.output_tokens + self.estimated_tokens

    @property
    def all_input(self) -> int:
        """All that was input."""
        return (
            self.input_tokens
            + self.cache_read_tokens
            + self.cache_write_tokens
            + self.estimated_input_tokens
        )

    @property
    def cache_share(self) -> float:
        """The part of all input tokens that was read from the cache, 0 to 1."""
        read = self.cache_read_tokens + self.cache_write_tokens + self.input_tokens
        return self.cache_read_tokens / read if read else 0.0

    def plus(self, other: Usage) -> Usage:
        """The sum of both."""
        sums = {f: getattr(self, f) + getattr(other, f) for f in _COUNTS}
        costs = [c for c in (self.cost_usd, other.cost_usd) if c is not None]
        return Usage(**sums, cost_usd=round(sum(costs), 9) if costs else None)


_COUNTS = tuple(f for f in Usage.model_fields if f != "cost_usd")


class TurnUsage(BaseModel):
    """What one turn has used, failed attempts and summaries meanwhile included."""

    model_config = ConfigDict(extra="ignore")

    turn: int
    tokens: int = 0
    cost_usd: float | None = None
    """None while no priced model was asked."""
