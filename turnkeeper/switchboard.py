"""What is switched off, on the server: read without a worker, changed by an update.

One list holds for the whole namespace, and one for each task queue that has things of its own
switched off. A run heeds both. The namespace's has the limits per day, too.
"""

from __future__ import annotations

import asyncio
from typing import Any, Literal

from temporalio.client import Client, WorkflowExecution
from temporalio.service import RPCError, RPCStatusCode

from turnkeeper.contract import DAY_LIMIT, SWITCH, SWITCHES
from turnkeeper.day_limits import DayLimitRequest
from turnkeeper.messages import ask_or_start, leave_or_start
from turnkeeper.switches import EVERYWHERE, Switch, SwitchList, SwitchRequest

__all__ = [
    "EVERYWHERE",
    "MEMO",
    "PREFIX",
    "Changed",
    "Switched",
    "change",
    "everywhere",
    "in_force",
    "limit_days",
    "read",
    "workflow_id",
]

Switched = Literal["switched", "unchanged", "queued"]
Changed = Literal["changed", "unchanged", "queued"]

PREFIX = EVERYWHERE
"""With which the ids of these workflows begin; no run may have such a one."""
MEMO, LIMITS_MEMO = "switches", "day_limits"
_SUMMARY = "What is switched off, and limits per day"
_QUEUES = 1_000
"""Task queues whose lists are looked at."""


def workflow_id(task_queue: str | None) -> str:
    """Of the workflow that keeps the list of a task queue, or the namespace's for None."""
    return PREFIX if task_queue is None else f"{PREFIX}:{task_queue}"


async def read(client: Client, task_queue: str | None) -> SwitchList:
    """What is switched off now for a task queue alone, or for the namespace.

    A workflow that was terminated counts as it was, for as long as the server keeps it.

    Raises:
        RPCError: the server cannot be reached, or does not tell.
    """
    try:
        described = await client.get_workflow_handle(workflow_id(task_queue)).describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND and "namespace" not in error.message.lower():
            return SwitchList()
        raise
    return await _published(described, task_queue)


async def in_force(client: Client, task_queue: str) -> SwitchList:
    """What is switched off now for the runs of a task queue.

    Raises:
        RPCError: the server cannot be reached, or does not tell.
    """
    everywhere, here = await asyncio.gather(read(client, None), read(client, task_queue))
    return SwitchList(
        switches=[*everywhere.switches, *here.switches], day_limits=everywhere.day_limits
    )


async def everywhere(client: Client, task_queue: str) -> list[Switch]:
    """What is switched off in the namespace: for all of it, for a task queue, for the others.

    The others are found by visibility, which is some seconds late.

    Raises:
        RPCError: the server cannot be reached, or does not tell.
    """
    found = (await in_force(client, task_queue)).switches
    seen = {workflow_id(None), workflow_id(task_queue)}
    query = f"WorkflowType = '{SWITCHES}' AND ExecutionStatus != 'ContinuedAsNew'"
    async for execution in client.list_workflows(query, limit=_QUEUES):
        # Of those with the same id the first one is the last that was started.
        if execution.id not in seen and execution.id.startswith(f"{PREFIX}:"):
            seen.add(execution.id)
            _, _, other = execution.id.partition(":")
            found += (await _published(execution, other)).switches
    return found


async def _published(execution: WorkflowExecution, task_queue: str | None) -> SwitchList:
    if execution.workflow_type != SWITCHES:
        return SwitchList()
    memo = await execution.memo()
    listed = SwitchList.read(memo.get(MEMO), memo.get(LIMITS_MEMO))
    here = {"task_queue": task_queue}
    switches = [s.model_copy(update=here) for s in listed.switches]
    return listed.model_copy(update={"switches": switches})


async def change(
    client: Client, task_queue: str | None, asked: SwitchRequest, timeout: float
) -> Switched:
    """Switch something off or on, for a task queue alone, or for the namespace.

    Answers `unchanged` if it was so already, and `queued` if no worker has answered within
    `timeout` seconds: the next one is told.

    Raises:
        WorkflowUpdateFailedError: it was refused.
        RPCError: the server cannot be reached.
    """
    body = asked.model_dump(mode="json", exclude_none=True)
    return await _tell(client, task_queue, SWITCH, body, timeout)


async def limit_days(client: Client, asked: DayLimitRequest, timeout: float) -> Changed:
    """Set or take away a limit per day; errors are those of `change`."""
    body = asked.model_dump(mode="json", exclude_none=True)
    told = await _tell(client, None, DAY_LIMIT, body, timeout)
    return "changed" if told == "switched" else told


async def _tell(
    client: Client, task_queue: str | None, name: str, body: dict[str, Any], timeout: float
) -> Switched:
    # One that was terminated goes on with what it had.
    known = await read(client, task_queue)
    start: dict[str, Any] = {
        "workflow": SWITCHES,
        "arg": known,
        "id": workflow_id(task_queue),
        "task_queue": EVERYWHERE if task_queue is None else task_queue,
        # So that there is no moment without it until a worker has begun.
        "memo": known.memo(),
        "static_summary": _SUMMARY,
    }
    answer = await ask_or_start(client, start, name, body, timeout)
    if answer is not None:
        return "switched" if answer.get("changed", True) else "unchanged"
    # Kept by the server until a worker comes.
    await leave_or_start(client, start, name, body)
    return "queued"
