"""Runs a coroutine for as long as its lease holds, step by step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any

from activities.lease import Lease, clock

CLEAN_UP_SECONDS = 5.0
"""What a tool whose attempt was lost has for its `finally` blocks until it is interrupted again."""


class Fenced:
    """Awaits a tool's coroutine in the task that awaits this, so that the tool notices nothing.

    Between the wake-up of the task and the next step of the coroutine lies the one moment at which
    a worker that was stopped can find out that it has been away. If the lease is in doubt then, the
    server is asked first; if it is lost, the coroutine gets a CancelledError instead of what it
    waited for. What it does within one step, without an `await`, cannot be fenced: that is what
    idempotency keys are for.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, Any], lease: Lease) -> None:
        self._coroutine = coroutine
        self._lease = lease

    def __await__(self) -> Generator[Any, Any, Any]:
        step: Callable[[], Any] = partial(self._coroutine.send, None)
        interrupt_at = 0.0
        try:
            while True:
                try:
                    waits_for = step()
                except StopIteration as end:
                    return end.value
                step = yield from self._woken(waits_for)
                if self._lease.in_doubt:
                    step = (yield from self._assured()) or step
                if self._lease.loss is not None and clock() >= interrupt_at:
                    error = asyncio.CancelledError(self._lease.why)
                    step = partial(self._coroutine.throw, error)
                    interrupt_at = clock() + CLEAN_UP_SECONDS
        finally:
            self._coroutine.close()

    def _woken(self, waits_for: Any) -> Generator[Any, Any, Callable[[], Any]]:
        """Wait as the coroutine does; what it would go on with."""
        try:
            yield waits_for
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: BLE001  whatever it is, it is the coroutine's
            return partial(self._coroutine.throw, error)
        return partial(self._coroutine.send, None)

    def _assured(self) -> Generator[Any, Any, Callable[[], Any] | None]:
        """Ask the server; what to go on with if we are cancelled meanwhile."""
        try:
            yield from self._lease.assured().__await__()
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: BLE001  a cancel, or a timeout that the tool set
            return partial(self._coroutine.throw, error)
        return None
