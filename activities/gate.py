"""Whether a run may ask its model now: what is switched off forbids it, and limits per day.

Under a limit, what a request may cost is set aside before it is sent, and settled after it.

An attempt that dies is never settled: what was set aside for it stays counted, since it may have
been spent.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

import structlog
from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from activities.asking import Attempt
from activities.switched import Switched
from activities.together import Together
from turnkeeper import days, replies
from turnkeeper.contract import DAY_IS_SPENT, SWITCHED_OFF
from turnkeeper.day_limits import MAX_TOGETHER, DayLimit, Estimate, Settled
from turnkeeper.days import Reserved
from turnkeeper.entries import Entry
from turnkeeper.prices import no_price
from turnkeeper.spec import AgentSpec, ModelSpec
from turnkeeper.usage import Usage

ANSWER_SECONDS = 10.0
"""How long whoever counts is waited for. Then nothing is asked of a model: the run waits."""

log = structlog.get_logger("turnkeeper.gate")


class Closed(NamedTuple):
    """Why a run may not ask its model."""

    kind: str
    """Type of the failure."""
    awaited: str
    """What it waits for, in words."""


class _SetAside(NamedTuple):
    limit: DayLimit
    day: int


class Gate:
    """Asks what is allowed, and tells what was used."""

    def __init__(self, client: Client, switched: Switched) -> None:
        self._client = client
        self._switched = switched
        self._lanes: dict[tuple[str, str], _Lane] = {}

    @asynccontextmanager
    async def within(
        self,
        agent: str,
        tenant: str | None,
        model: ModelSpec,
        estimate: Estimate,
        attempt: Attempt,
    ) -> AsyncIterator[None]:
        """For one request to a model; `attempt` knows what it has cost in the end.

        Raises:
            ApplicationError: of type `SwitchedOff` or `DayIsSpent`, and the run waits; or of type
                `cost_limit`, if the price of the model is not known.
        """
        if off := await self._switched.check_agent(agent, tenant):
            raise _held_back(SWITCHED_OFF, off.awaited, attempt)
        limits = (await self._switched.now()).limits_of(agent, tenant)
        _check_price(limits, model, attempt)
        set_aside: list[_SetAside] = []
        try:
            for limit in limits:
                set_aside += [await self._reserve(limit, estimate, attempt)]
            yield
        finally:
            # Nothing was spent on what was not sent; of what was, but came to no end, all may be.
            if attempt.spent is not None or not attempt.progress.sent_bytes:
                await self._settle(set_aside, estimate, attempt.spent or Usage())

    async def served_off(self, spec: AgentSpec, tenant: str | None, reply: Entry) -> dict[str, str]:
        """What the model reads of tools that are off; of those alone that the run serves itself,
        and the reply calls: no worker sees their calls."""
        called = {call.tool for call in replies.calls(reply.value)}
        found = {}
        for tool in spec.tools:
            if tool.awaits is not None and tool.name in called:
                off = await self._switched.check_tool(spec.name, tool.name, tenant)
                if off is not None:
                    found[tool.name] = f"{off.told}. The call was not run."
        return found

    async def closed(
        self, agent: str, tenant: str | None, estimate: Estimate, *, just_refused: bool
    ) -> Closed | None:
        """Why no such request may be sent; None if it may.

        One that was refused just now waits under any limit per day: what is used goes up and down
        while others ask, and each of these moments would call back all runs that wait, to be
        refused again, with more events in the history of each.
        """
        known = await self._switched.now()
        if off := known.agent_off(agent, tenant):
            return Closed(SWITCHED_OFF, off.awaited)
        for limit in known.limits_of(agent, tenant):
            if awaited := await self._awaited(limit, estimate, just_refused=just_refused):
                return Closed(DAY_IS_SPENT, awaited)
        return None

    async def _awaited(
        self, limit: DayLimit, estimate: Estimate, *, just_refused: bool
    ) -> str | None:
        now = activity.info().current_attempt_scheduled_time.timestamp()
        try:
            used = await days.used(self._client, limit, now)
            if just_refused or not limit.allows(used, estimate):
                return limit.awaited(used, estimate)
            # Whoever counts has the last word, and has to be there: the run would be back at once.
            used = (await self._lane(limit).reserve.send((limit, Estimate()))).used
        except (days.NotCounted, RPCError):
            return _unknown(limit)
        return None if limit.allows(used, estimate) else limit.awaited(used, estimate)

    async def _reserve(self, limit: DayLimit, estimate: Estimate, attempt: Attempt) -> _SetAside:
        try:
            answer = await self._lane(limit).reserve.send((limit, estimate))
        except days.NotCounted as error:
            log.error("what was used today is not known", limit=limit.named, error=str(error))
            raise _held_back(DAY_IS_SPENT, _unknown(limit), attempt, estimate) from None
        if answer.admitted:
            return _SetAside(limit, answer.used.day)
        log.warning("limit per day", limit=limit.named, used=limit.told(answer.used))
        awaited = limit.awaited(answer.used, estimate)
        raise _held_back(DAY_IS_SPENT, awaited, attempt, estimate)

    async def _settle(
        self, set_aside: Sequence[_SetAside], estimate: Estimate, spent: Usage
    ) -> None:
        for limit, day in set_aside:
            settled = Settled.of(day, estimate, spent.total, spent.cost_usd or 0)
            try:
                await self._lane(limit).settle.send((limit, settled))
            except RPCError as error:
                # The reply is here, and paid for: what was set aside stays counted in its place.
                log.error("not settled", limit=limit.named, error=str(error))

    def _lane(self, limit: DayLimit) -> _Lane:
        return self._lanes.setdefault((limit.kind, limit.name), _Lane(self._client))


class _Lane:
    """To whoever counts for an agent or a tenant. The server takes ten updates of a workflow at a
    time, and a burst of runs has more to say."""

    def __init__(self, client: Client) -> None:
        async def reserve(asked: Sequence[tuple[DayLimit, Estimate]]) -> list[Reserved]:
            limit, estimates = asked[-1][0], [estimate for _, estimate in asked]
            return await days.reserve(client, limit, estimates, ANSWER_SECONDS)

        async def settle(told: Sequence[tuple[DayLimit, Settled]]) -> list[None]:
            await days.settle(client, told[-1][0], [settled for _, settled in told])
            return [None] * len(told)

        self.reserve = Together(reserve, MAX_TOGETHER)
        self.settle = Together(settle, MAX_TOGETHER)


def _check_price(limits: Sequence[DayLimit], model: ModelSpec, attempt: Attempt) -> None:
    costly = [x for x in limits if x.cost_usd is not None]
    if costly and not model.prices:
        why = f"the limit per day of {costly[0].named} is one on cost, and {no_price(model.name)}"
        raise _held_back("cost_limit", why, attempt)


def _unknown(limit: DayLimit) -> str:
    return f"what {limit.named} has used today to be known: it was not counted in time"


def _held_back(
    kind: str, why: str, attempt: Attempt, estimate: Estimate | None = None
) -> ApplicationError:
    """With what was asked for: the run waits until that much is allowed."""
    details = {"lost": attempt.lost().model_dump(exclude_defaults=True)}
    if estimate is not None:
        details["estimate"] = estimate.model_dump()
    return ApplicationError(why, details, type=kind, non_retryable=True)
