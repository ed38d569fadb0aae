"""What is used under limits per day, on the server: one workflow counts for each agent or tenant.

All of them are served where the list of switches is, by every worker of the namespace.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pydantic import BaseModel
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from turnkeeper import switchboard
from turnkeeper.contract import DAY, DAY_MEMO, RESERVE, SETTLE
from turnkeeper.day_limits import DayLimit, Estimate, ReserveRequest, Settled, SettleRequest, Used
from turnkeeper.messages import ask_or_start, leave_or_start
from turnkeeper.switches import EVERYWHERE

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

PREFIX = "turnkeeper-day"
"""With which the ids of these workflows begin; no run may have such a one."""


class NotCounted(Exception):
    """No worker has answered in time."""


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
    return f"{PREFIX}:{limit.kind}:{limit.name}"


async def reserve(
    client: Client, limit: DayLimit, estimates: Sequence[Estimate], timeout: float
) -> list[Reserved]:
    """Set aside what requests may cost, one by one, as far as the limit allows it.

    Raises:
        NotCounted: no worker has answered within `timeout` seconds. What was set aside all the same
            is not given back before the day is over.
    """
    body = ReserveRequest(limit=limit, estimates=list(estimates)).model_dump(mode="json")
    answer = await ask_or_start(client, _start(limit), RESERVE, body, timeout)
    if answer is None:
        raise NotCounted
    now_used = Used.read(answer["used"])
    return [Reserved(admitted, now_used) for admitted in answer["admitted"]]


async def settle(client: Client, limit: DayLimit, settled: Sequence[Settled]) -> None:
    """Say what requests have used. Needs no worker.

    Raises:
        RPCError: the server cannot be reached.
    """
    body = SettleRequest(settled=list(settled)).model_dump(mode="json")
    await leave_or_start(client, _start(limit), SETTLE, body)


async def used(client: Client, limit: DayLimit, now: float) -> Used:
    """What is used on the day of `now`, or set aside. Needs no worker.

    Raises:
        RPCError: the server cannot be reached.
    """
    try:
        described = await client.get_workflow_handle(workflow_id(limit)).describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return Used().at(now)
        raise
    return Used.read(await described.memo_value(DAY_MEMO, None)).at(now)


async def in_use(client: Client, now: float) -> list[DayUse]:
    """All limits, each with what is used on the day of `now`.

    Raises:
        RPCError: the server cannot be reached.
    """
    limits = (await switchboard.read(client, None)).day_limits
    return [DayUse(limit=x, used=await used(client, x, now)) for x in limits]


def _start(limit: DayLimit) -> dict[str, Any]:
    return {
        "workflow": DAY,
        "arg": Used(),
        "id": workflow_id(limit),
        "task_queue": EVERYWHERE,
        "static_summary": f"What {limit.named} uses in a day",
    }
