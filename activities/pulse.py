"""An activity at work: its heartbeats, from a timer, and how long it takes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from temporalio import activity

from turnkeeper.contract import Timing


@contextlib.asynccontextmanager
async def pulse(details: Callable[[], Any] | None = None) -> AsyncIterator[None]:
    """Heartbeat, with `details()` if given, at a third of the heartbeat timeout until the block
    ends.

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


async def _beat(interval: float, details: Callable[[], Any] | None) -> None:
    while True:
        activity.heartbeat(*([details()] if details else []))
        await asyncio.sleep(interval)


def timing(began: float) -> Timing:
    """How long this attempt waited for a worker, and how long it has run since `began`, a time of
    `time.monotonic()`."""
    info = activity.info()
    waited = info.started_time - info.current_attempt_scheduled_time
    return Timing(
        queue_ms=max(0, round(waited.total_seconds() * 1000)),
        run_ms=round((time.monotonic() - began) * 1000),
    )
