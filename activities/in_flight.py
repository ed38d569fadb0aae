"""The tool calls that a worker is at, for who waits for its end."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Iterator

import structlog
from temporalio import activity

TELL_SECONDS = 60.0
"""How often a worker that stops says what it still waits for."""

log = structlog.get_logger("turnkeeper.worker")


@dataclasses.dataclass(eq=False)
class _Call:
    tool: str
    effect: str
    workflow_id: str | None
    run_id: str | None
    ends: float
    """When its time is over, by the monotonic clock."""


class InFlight:
    """Calls that have begun here and have not ended."""

    def __init__(self) -> None:
        self._calls: set[_Call] = set()

    @contextlib.contextmanager
    def entered(self, tool: str, effect: str) -> Iterator[None]:
        """One more, within its activity."""
        info = activity.info()
        limit = info.start_to_close_timeout
        ends = time.monotonic() + (limit.total_seconds() if limit else 0)
        call = _Call(tool, effect, info.workflow_id, info.workflow_run_id, ends)
        self._calls.add(call)
        try:
            yield
        finally:
            self._calls.discard(call)

    async def tell(self, grace: float) -> None:
        """Log what a stopping worker waits for, now and then, until nothing is left."""
        ends = time.monotonic() + grace
        while self._calls:
            now = time.monotonic()
            for call in sorted(self._calls, key=lambda c: c.ends):
                log.info(
                    "waits for a call",
                    tool=call.tool,
                    effect=call.effect,
                    workflow_id=call.workflow_id,
                    run_id=call.run_id,
                    seconds_left=round(max(0, min(call.ends, ends) - now)),
                )
            await asyncio.sleep(TELL_SECONDS)
