"""Heartbeats from a timer, while an activity is at work."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from temporalio import activity


@contextlib.asynccontextmanager
async def pulse(details: Callable[[], Any]) -> AsyncIterator[None]:
    """Heartbeat with `details()` at a third of the heartbeat timeout until the block ends.

    From a timer, not from the work: a stream may be silent for a while and still live.
    """
    timeout = activity.info().heartbeat_timeout
    if timeout is None:
        yield
        return
    task = asyncio.create_task(_beat(timeout.total_seconds() / 3, details))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _beat(interval: float, details: Callable[[], Any]) -> None:
    while True:
        activity.heartbeat(details())
        await asyncio.sleep(interval)


def queue_ms() -> int:
    """How long this attempt waited for a worker."""
    info = activity.info()
    waited = info.started_time - info.current_attempt_scheduled_time
    return max(0, round(waited.total_seconds() * 1000))
