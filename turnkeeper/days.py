"""What is used under limits per day, on the server: one workflow counts for each agent or tenant.

All of them are served where the list of switches is, by every worker of the namespace.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel
from temporalio.client import (
    Client,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from turnkeeper import switchboard
from turnkeeper.contract import DAY, DAY_MEMO, RESERVE, SETTLE
from turnkeeper.day_limits import DayLimit, Estimate, ReserveRequest, Settled, SettleRequest, Used
from turnkeeper.messages import leave_or_start, update_or_start
from turnkeeper.switches import EVERYWHERE
from turnkeeper.text import one_line, utf8_size

__all__ = [
    "PREFIX",
    "DayUse",
    "NotCounted",
    "Reserved",
    "in_use",
    "reserve",
    "settle",
    "used",
    "workflow_id",
]

PREFIX = "turnkeeper-day:"
"""With which the ids of these workflows begin; no run may have such a one."""
_AGAIN_SECONDS = 0.05
_NAME_BYTES = 150
"""Of a name that stands in such an id as it is: servers take 255 characters, or 1,000 bytes."""

_Answer = TypeVar("_Answer")


# The last one is also how the SDK tells of a cancellation, by the timeout above it.
_UNANSWERED = (
    TimeoutError,
    RPCError,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)


class NotCounted(Exception):
    """Nobody has answered in time; the text says why."""


class Reserved(NamedTuple):
    """What the limit says to a request."""

    admitted: bool
    used: Used
    """With what was set aside for all of them."""


class DayUse(BaseModel):
    """A limit per day, and what is used under it."""

    limit: DayLimit
    used: Used
    """Today, or set aside."""


def workflow_id(limit: DayLimit) -> str:
    """Of the workflow that counts for it."""
    if utf8_size(limit.name) <= _NAME_BYTES:
        return f"{PREFIX}{limit.kind}:{limit.name}"
    digest = hashlib.sha256(limit.name.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{PREFIX}{limit.kind}#{digest}"


async def reserve(
    client: Client, limit: DayLimit, estimates: Sequence[Estimate], timeout: float
) -> list[Reserved]:
    """Set aside what requests may cost, one by one, as far as the limit allows it.

    Raises:
        NotCounted: no worker has answered within `timeout` seconds, or none that counts, or the
            server cannot be reached. What was set aside all the same is not given back before the
            day is over.
    """
    body = ReserveRequest(limit=limit, estimates=list(estimates)).model_dump(mode="json")

    async def ask(start: dict[str, Any]) -> dict[str, Any]:
        while True:
            try:
                return await update_or_start(client, start, RESERVE, body)
            except RPCError as error:
                if error.status is not RPCStatusCode.FAILED_PRECONDITION:
                    raise
                # Given back, since a signal came as the count continued as new.
                await asyncio.sleep(_AGAIN_SECONDS)

    try:
        async with asyncio.timeout(timeout):
            answer = await _counting(client, limit, ask)
    except _UNANSWERED as error:
        raise NotCounted(f"{type(error).__name__}: {error}") from error
    now_used = Used.read(answer["used"])
    return [Reserved(admitted, now_used) for admitted in answer["admitted"]]


async def settle(client: Client, limit: DayLimit, settled: Sequence[Settled]) -> None:
    """Say what requests have used. Needs no worker.

    Raises:
        RPCError: the server cannot be reached.
    """
    body = SettleRequest(settled=list(settled)).model_dump(mode="json")
    await _counting(client, limit, lambda start: leave_or_start(client, start, SETTLE, body))


async def used(client: Client, limit: DayLimit, now: float) -> Used:
    """What is used on the day of `now`, or set aside. Needs no worker.

    Raises:
        RPCError: the server cannot be reached.
    """
    return (await _published(client, limit)).at(now)


async def in_use(client: Client, now: float) -> list[DayUse]:
    """All limits, each with what is used on the day of `now`.

    Raises:
        RPCError: the server cannot be reached.
    """
    limits = (await switchboard.read(client, None)).day_limits
    return [DayUse(limit=x, used=await used(client, x, now)) for x in limits]


async def _published(client: Client, limit: DayLimit) -> Used:
    try:
        described = await client.get_workflow_handle(workflow_id(limit)).describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return Used()
        raise
    return Used.read(await described.memo_value(DAY_MEMO, None))


async def _counting(
    client: Client, limit: DayLimit, send: Callable[[dict[str, Any]], Awaitable[_Answer]]
) -> _Answer:
    """Send something to whoever counts, and have it begin if it is not there."""
    start = {
        "workflow": DAY,
        "arg": Used(),
        "id": workflow_id(limit),
        "task_queue": EVERYWHERE,
        "id_reuse_policy": WorkflowIDReusePolicy.REJECT_DUPLICATE,
        # At most 400 bytes, quotes included.
        "static_summary": f"What {limit.kind} {one_line(limit.name, 90)} uses in a day",
    }
    try:
        return await send(start)
    except WorkflowAlreadyStartedError:
        # One that was terminated goes on with what it had.
        known = await _published(client, limit)
    again = {"id_reuse_policy": WorkflowIDReusePolicy.ALLOW_DUPLICATE, "arg": known}
    return await send({**start, **again, "memo": {DAY_MEMO: known.model_dump()}})
