"""What an agent or a tenant may use in a day, over all its runs. Pure.

A limit lies beside the switches, in the memo of the namespace's list (`workflows/switches.py`).
What was used under it today is counted by a workflow of its own (`workflows/day.py`). Days are
those of UTC. What a request may cost is set aside before it is sent, and settled when it is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from turnkeeper.names import NAME_OF_KIND, Limited, check_name
from turnkeeper.spec import Strict
from turnkeeper.text import dollars, one_line

MAX_DAY_LIMITS = 200
"""In a namespace; the list travels whole."""
MAX_TOGETHER = 100
"""The most requests in one `reserve` or `settle`."""
_DAY = 86_400
_MOST_USD, _MOST_TOKENS = 1e9, 10**15


class DayLimitRequest(Strict):
    """The body of `day_limit`. It replaces what was set before; without a bound there is none."""

    model_config = ConfigDict(json_schema_extra={"allOf": [NAME_OF_KIND]})

    kind: Limited
    name: Annotated[str, Field(min_length=1, max_length=512)]
    cost_usd: Annotated[float, Field(gt=0, le=_MOST_USD)] | None = None
    tokens: Annotated[int, Field(ge=1, le=_MOST_TOKENS, strict=True)] | None = None
    actor: Annotated[str, Field(max_length=200)] | None = None

    @model_validator(mode="after")
    def _sound(self) -> Self:
        check_name(self.kind, self.name)
        return self

    @property
    def sets(self) -> bool:
        """Whether it sets a limit; if not, it takes one away."""
        return self.cost_usd is not None or self.tokens is not None


class Estimate(BaseModel):
    """What a request to a model, with its reply, is expected to use."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    tokens: Annotated[int, Field(ge=0, le=_MOST_TOKENS)] = 0
    usd: Annotated[float, Field(ge=0, le=_MOST_USD)] = 0

    @classmethod
    def bounded(cls, tokens: int, usd: float) -> Estimate:
        """As much as there can be, if it is more: runs make one, and must not fail by a price."""
        # In this order: what is no number is the most, too.
        return cls(tokens=min(tokens, _MOST_TOKENS), usd=min(_MOST_USD, usd))


class Used(BaseModel):
    """What was used in one day, or is set aside for requests that are under way."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    day: Annotated[int, Field(ge=0)] = 0
    """Days since 1970-01-01."""
    tokens: Annotated[int, Field(ge=0)] = 0
    usd: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0

    @classmethod
    def read(cls, published: Any) -> Used:
        """What a memo has; nothing is used if that is none of ours."""
        try:
            return cls.model_validate(published)
        except ValidationError:
            return cls()

    def at(self, now: float) -> Used:
        """Of the day that this moment is in, in seconds since 1970: nothing yet, if it is new."""
        today = int(now // _DAY)
        # A clock that goes back does not forget what was used; a day that is far off is none.
        return self if today <= self.day <= today + 1 else Used(day=today)

    def plus(self, tokens: int, usd: float) -> Used:
        """With so much more, or less."""
        return Used(
            day=self.day,
            tokens=max(0, self.tokens + tokens),
            usd=round(max(0.0, self.usd + usd), 9),
        )


class DayLimit(BaseModel):
    """A limit that is set."""

    model_config = ConfigDict(extra="ignore")

    kind: Limited
    name: str
    cost_usd: float | None = None
    tokens: int | None = None
    actor: str | None = None
    since: float = 0
    """Seconds since 1970."""

    @property
    def named(self) -> str:
        """`tenant acme`."""
        return f"{self.kind} {one_line(self.name, 130)}"

    @property
    def bounds(self) -> str:
        """`$5.00, 1,000,000 tokens`."""
        bounds = [] if self.cost_usd is None else [dollars(self.cost_usd)]
        return ", ".join(bounds + ([] if self.tokens is None else [f"{self.tokens:,} tokens"]))

    def allows(self, used: Used, estimate: Estimate) -> bool:
        """Whether a request of that size may be sent."""
        usd_fits = self.cost_usd is None or used.usd + estimate.usd <= self.cost_usd
        return usd_fits and (self.tokens is None or used.tokens + estimate.tokens <= self.tokens)

    def told(self, used: Used) -> str:
        """`$4.9950 of $5.00, 12,000 of 1,000,000 tokens`."""
        parts = []
        if self.cost_usd is not None:
            parts.append(f"{dollars(used.usd)} of {dollars(self.cost_usd)}")
        if self.tokens is not None:
            parts.append(f"{used.tokens:,} of {self.tokens:,} tokens")
        return ", ".join(parts)

    def awaited(self, used: Used, estimate: Estimate) -> str:
        """What a run waits for that may not ask its model."""
        needs = [f"about {dollars(estimate.usd)}"] if self.cost_usd is not None else []
        needs += [f"about {estimate.tokens:,} tokens"] if self.tokens is not None else []
        if self.allows(Used(), estimate):
            when = f"{datetime.fromtimestamp((used.day + 1) * _DAY, UTC):%Y-%m-%d %H:%M} UTC"
            until = f"until {when}, when a day begins"
        else:
            until = "which has to be raised, since one request needs more than a day has"
        # When it ends stands first: some readers cut it.
        return (
            f"the limit per day of {self.named} {until}: {self.told(used)} used or set aside, the "
            f"next request and its reply need {' and '.join(needs)}"
        )


class ReserveRequest(Strict):
    """The body of `reserve`: set these aside, one by one, as far as the limit allows it."""

    limit: DayLimit
    estimates: Annotated[list[Estimate], Field(min_length=1, max_length=MAX_TOGETHER)]


class Settled(Strict):
    """How much more a request has used than was set aside for it on that day; or less."""

    day: int
    tokens: Annotated[int, Field(ge=-_MOST_TOKENS, le=_MOST_TOKENS)]
    usd: Annotated[float, Field(ge=-_MOST_USD, le=_MOST_USD)]

    @classmethod
    def of(cls, day: int, estimate: Estimate, tokens: int, usd: float) -> Settled:
        """For a request that has used so much, or as much as there can be."""
        spent = Estimate.bounded(tokens, usd)
        more = round(spent.usd - estimate.usd, 9)
        return cls(day=day, tokens=spent.tokens - estimate.tokens, usd=more)


class SettleRequest(Strict):
    """The body of `settle`."""

    settled: Annotated[list[Settled], Field(max_length=MAX_TOGETHER)]


def take(limits: list[DayLimit], asked: DayLimitRequest, now: float) -> bool:
    """Make a change; False if there was nothing to do."""
    fields = {"kind", "name", "cost_usd", "tokens"}
    wanted = asked.model_dump(include=fields)
    known = _known(limits, asked)
    if known is None and not asked.sets:
        return False
    if known is not None and known.model_dump(include=fields) == wanted:
        return False
    if known is not None:
        limits.remove(known)
    if asked.sets:
        limits.append(DayLimit(**wanted, actor=asked.actor, since=now))
    return True


def refusal(limits: Sequence[DayLimit], asked: DayLimitRequest) -> str | None:
    """Why a change cannot be made; None if it can."""
    if asked.sets and len(limits) >= MAX_DAY_LIMITS and _known(limits, asked) is None:
        return f"{MAX_DAY_LIMITS} limits per day are set, which is the most: take one away first"
    return None


def _known(limits: Sequence[DayLimit], asked: DayLimitRequest) -> DayLimit | None:
    return next((x for x in limits if (x.kind, x.name) == (asked.kind, asked.name)), None)
