"""Runs a coroutine for as long as its lease holds, step by step."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any

from activities.lease import CLEAN_UP_SECONDS, Lease, clock

# Of the tool in whose context a task is made.
_LEASE: contextvars.ContextVar[Lease | None] = contextvars.ContextVar("lease", default=None)


async def fenced(coroutine: Coroutine[Any, Any, Any], lease: Lease) -> Any:
    """Await a tool's coroutine under its lease, in this task; its child tasks are under it, too.

    Between the wake-up of a task and its next step lies the one moment at which a worker that was
    stopped can find out that it has been away. If the lease is in doubt then, the server is asked
    first; if it is lost, the step is a CancelledError instead of what was waited for. What a tool
    does within one step, without an `await`, cannot be fenced: that is what idempotency keys are
    for.
    """
    _fence_children(asyncio.get_running_loop())
    token = _LEASE.set(lease)
    try:
        return await _Steps(coroutine, lease)
    except GeneratorExit:
        raise
    except BaseException:
        # A gather leaves the others running: they would write beside the next attempt.
        await _end(lease.children)
        raise
    finally:
        _LEASE.reset(token)


async def _end(children: set[asyncio.Future[Any]]) -> None:
    """Cancel what a failed call has left running, and wait for it, within a bound."""
    left = list(children)
    for child in left:
        child.cancel("the call that made it has failed")
    if left:
        await asyncio.wait(left, timeout=CLEAN_UP_SECONDS)


class _Steps(Coroutine[Any, Any, Any]):
    """The coroutine, with a look at the lease before each step."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], lease: Lease) -> None:
        self._coroutine = coroutine
        self._lease = lease
        self._steps = self._drive()
        self._begun = False

    def __await__(self) -> Generator[Any, Any, Any]:
        self._begun = True
        return self._steps

    def send(self, value: Any) -> Any:
        self._begun = True
        return self._steps.send(value)

    def throw(self, *error: Any) -> Any:
        # A generator that has not begun would leave the coroutine unawaited.
        return (self._steps if self._begun else self._coroutine).throw(*error)

    def close(self) -> None:
        self._steps.close()
        self._coroutine.close()

    def __getattr__(self, name: str) -> Any:
        # What inspects tasks (anyio, asyncio's debugging) looks for cr_frame and the like.
        return getattr(self._coroutine, name)

    def _drive(self) -> Generator[Any, Any, Any]:
        step: Callable[[], Any] = partial(self._coroutine.send, None)
        interrupt_at = 0.0
        try:
            while True:
                if not self._lease.over and self._lease.in_doubt:
                    step = (yield from self._assured()) or step
                if self._is_lost() and clock() >= interrupt_at:
                    step = partial(self._coroutine.throw, asyncio.CancelledError(self._lease.why))
                    interrupt_at = clock() + CLEAN_UP_SECONDS
                try:
                    waits_for = step()
                except StopIteration as end:
                    return end.value
                step = yield from self._woken(waits_for)
        finally:
            self._coroutine.close()

    def _is_lost(self) -> bool:
        # A client that calls share may have been made in this one: its tasks serve the others.
        return self._lease.loss is not None and not self._lease.over

    def _assured(self) -> Generator[Any, Any, Callable[[], Any] | None]:
        """Ask the server; what to go on with if we are cancelled meanwhile."""
        try:
            yield from self._lease.assured().__await__()
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: BLE001  a cancel, or a timeout that the tool set
            return partial(self._coroutine.throw, error)
        return None

    def _woken(self, waits_for: Any) -> Generator[Any, Any, Callable[[], Any]]:
        """Wait as the coroutine does; what it goes on with."""
        try:
            yield waits_for
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: BLE001  whatever it is, it is the coroutine's
            return partial(self._coroutine.throw, error)
        return partial(self._coroutine.send, None)


def _fence_children(loop: asyncio.AbstractEventLoop) -> None:
    """Have the loop's tasks that are made in a tool's context share its lease.

    One that goes on when the call has ended well, of a client that calls share, is on its own then.
    """
    before = loop.get_task_factory()
    if getattr(before, "fences", False):
        return

    def make(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> Any:
        context = options.get("context")
        lease = _LEASE.get() if context is None else context.get(_LEASE)
        if lease is not None and lease.over:
            lease = None
        if lease is not None:
            coroutine = _Steps(coroutine, lease)
        task = (before or _plain)(loop, coroutine, **options)
        if lease is not None:
            lease.children.add(task)
            task.add_done_callback(lease.children.discard)
        return task

    make.fences = True  # type: ignore[attr-defined]
    loop.set_task_factory(make)


def _plain(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
    return asyncio.Task(coroutine, loop=loop, **options)
