"""A message to a run: an update while a worker answers, else a signal, which the server keeps."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from temporalio.client import WorkflowHandle, WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.service import RPCError, RPCStatusCode

__all__ = ["ask", "leave"]


async def ask(
    handle: WorkflowHandle[Any, Any], name: str, body: Mapping[str, Any], timeout: float
) -> dict[str, str] | None:
    """Send an update; what the run answers, or None if no worker does within `timeout` seconds.

    A run may take an update all the same after that.

    Raises:
        WorkflowUpdateFailedError: the run refuses it, or has just ended.
    """
    try:
        async with asyncio.timeout(timeout):
            answer: dict[str, str] = await handle.execute_update(name, dict(body))
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
