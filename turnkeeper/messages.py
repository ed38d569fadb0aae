"""A message to a run: an update while a worker answers, else a signal, which the server keeps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any

from temporalio.client import (
    Client,
    WithStartWorkflowOperation,
    WorkflowHandle,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError, RPCStatusCode

__all__ = ["ask", "ask_or_start", "leave", "leave_or_start", "update_or_start"]


async def ask(
    handle: WorkflowHandle[Any, Any], name: str, body: Mapping[str, Any], timeout: float
) -> dict[str, Any] | None:
    """Send an update; what the run answers, or None if no worker does within `timeout` seconds.

    A run may take an update all the same after that.

    Raises:
        WorkflowUpdateFailedError: the run refuses it, or has just ended.
    """
    return await _answered(handle.execute_update(name, dict(body)), timeout)


async def ask_or_start(
    client: Client, run: Mapping[str, Any], name: str, body: Mapping[str, Any], timeout: float
) -> dict[str, Any] | None:
    """As `ask`, and the run is started if it is not there; `run` as for `start_workflow`.

    Raises:
        WorkflowUpdateFailedError: the run refuses it.
        WorkflowAlreadyStartedError: a run of that id has ended.
    """
    return await _answered(update_or_start(client, run, name, body), timeout)


async def update_or_start(
    client: Client, run: Mapping[str, Any], name: str, body: Mapping[str, Any]
) -> dict[str, Any]:
    """As `ask_or_start`, for as long as it takes.

    Raises:
        RPCError: the server cannot be reached, or has given it back; of status FAILED_PRECONDITION:
            nothing of it has happened, since the workflow task that took it was thrown away.
    """
    started: WithStartWorkflowOperation[Any, Any] = WithStartWorkflowOperation(
        **run, id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING
    )
    answer: dict[str, Any] = await client.execute_update_with_start_workflow(
        name, dict(body), start_workflow_operation=started
    )
    return answer


async def leave_or_start(
    client: Client, run: Mapping[str, Any], name: str, body: Mapping[str, Any]
) -> None:
    """As `leave`, and the run is started if it is not there; `run` as for `start_workflow`.

    Raises:
        WorkflowAlreadyStartedError: a run of that id has ended.
        RPCError: the server cannot be reached.
    """
    await client.start_workflow(
        **run,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        start_signal=name,
        start_signal_args=[dict(body)],
    )


async def _answered(update: Awaitable[Any], timeout: float) -> dict[str, Any] | None:
    """Await an update; None if no worker answers within `timeout` seconds."""
    try:
        async with asyncio.timeout(timeout):
            answer: dict[str, Any] = await update
    except (TimeoutError, RPCError, WorkflowUpdateRPCTimeoutOrCancelledError):
        # The SDK turns a cancellation of this task into that last error, too.
        if (task := asyncio.current_task()) is not None and task.cancelling():
            raise asyncio.CancelledError from None
        return None
    return answer


async def leave(handle: WorkflowHandle[Any, Any], name: str, body: Mapping[str, Any]) -> bool:
    """Leave a signal for the next worker; False if the run has ended.

    Raises:
        RPCError: the server cannot be reached.
    """
    try:
        await handle.signal(name, dict(body))
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return False
        raise
    return True
