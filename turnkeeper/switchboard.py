"""The list of what is switched off, on the server: read without a worker, changed by an update."""

from __future__ import annotations

from typing import Any, Literal

from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from turnkeeper.contract import SWITCH, SWITCHES
from turnkeeper.messages import ask_or_start, leave_or_start
from turnkeeper.switches import SwitchList, SwitchRequest

__all__ = ["MEMO", "PREFIX", "Switched", "change", "read", "workflow_id"]

Switched = Literal["switched", "unchanged", "queued"]

PREFIX = "turnkeeper-switches"
"""With which the ids of these workflows begin; no run may have such a one."""
MEMO = "switches"
_SUMMARY = "What is switched off: tools, agents, tenants"


def workflow_id(task_queue: str) -> str:
    """Of the workflow that keeps the list of a task queue."""
    return f"{PREFIX}:{task_queue}"


async def read(client: Client, task_queue: str) -> SwitchList:
    """What is switched off now.

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
    if described.workflow_type != SWITCHES:
        return SwitchList()
    return SwitchList.read(await described.memo_value(MEMO, None))


async def change(client: Client, task_queue: str, asked: SwitchRequest, timeout: float) -> Switched:
    """Switch something off or on.

    Answers `unchanged` if it was so already, and `queued` if no worker has answered within
    `timeout` seconds: the next one is told.

    Raises:
        WorkflowUpdateFailedError: it was refused.
        RPCError: the server cannot be reached.
    """
    # One that was terminated goes on with what it had.
    known = await read(client, task_queue)
    body = asked.model_dump(mode="json", exclude_none=True)
    start: dict[str, Any] = {
        "workflow": SWITCHES,
        "arg": known,
        "id": workflow_id(task_queue),
        "task_queue": task_queue,
        # So that there is no moment without it until a worker has begun.
        "memo": {MEMO: known.published()},
        "static_summary": _SUMMARY,
    }
    answer = await ask_or_start(client, start, SWITCH, body, timeout)
    if answer is not None:
        return "switched" if answer.get("changed", True) else "unchanged"
    # Kept by the server until a worker comes.
    await leave_or_start(client, start, SWITCH, body)
    return "queued"
