"""Watches that the event loop turns: in the loop there is nobody to do it.

A tool that blocks the loop (`time.sleep` in a coroutine) keeps the worker from heartbeating, and
from seeing SIGTERM. A thread says so, and where. Native code that holds the interpreter's lock
stops that thread as well; what then ends the process is `faulthandler`'s own thread, which needs no
lock: it writes where each thread is, and leaves. By then every call of this worker has long been
given to another.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator

import structlog

TOLD_SECONDS = 60.0
"""Between two lines about a loop that does not turn."""
LAST_SECONDS = 30.0
"""What calls that were cancelled at the end of the grace time have to end."""
_STDERR = 2
_LONGEST_TURN = 1.0
_MAX_STACK = 3_500

log = structlog.get_logger("turnkeeper.worker")


class Watchdog:
    """Watches the loop that runs `watching`.

    Args:
        tell_after: seconds without a turn after which it says so.
        end_after: seconds without a turn after which it ends the process; 0 for never. A process
            that was itself stopped for that long (SIGSTOP) ends when it is woken.
    """

    def __init__(self, *, tell_after: float, end_after: float) -> None:
        self._tell_after = tell_after
        self._end_after = end_after
        self._interval = min(_LONGEST_TURN, tell_after / 3, (end_after or tell_after) / 3)
        self._turned = time.monotonic()
        self._done = threading.Event()
        self._watched = 0

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Watch until the block ends."""
        self._watched = threading.get_ident()
        turning = asyncio.create_task(self._turn())
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()
        try:
            yield
        finally:
            self._done.set()
            turning.cancel()
            faulthandler.cancel_dump_traceback_later()

    def leave_after(self, seconds: float) -> None:
        """End the process then, should it not have ended in order."""

        def leave() -> None:
            log.error("does not end, and is ended", seconds=seconds, stack=self._stack())
            sys.stderr.flush()
            os._exit(1)

        timer = threading.Timer(seconds, leave)
        timer.daemon = True
        timer.start()

    async def _turn(self) -> None:
        while True:
            self._turned = time.monotonic()
            if self._end_after:
                faulthandler.dump_traceback_later(self._end_after, exit=True, file=_STDERR)
            await asyncio.sleep(self._interval)

    def _watch(self) -> None:
        told = -TOLD_SECONDS
        before = time.monotonic()
        while not self._done.wait(self._interval):
            now = time.monotonic()
            away, blocked = now - before - self._interval, now - self._turned
            before = now
            if now - told < TOLD_SECONDS:
                continue
            if away > self._tell_after:
                told = now
                log.warning(
                    "the process stood still",
                    seconds=round(away, 1),
                    why="it was stopped, or native code held the interpreter",
                )
            elif blocked > self._tell_after:
                told = now
                log.error("event loop blocked", seconds=round(blocked, 1), stack=self._stack())

    def _stack(self) -> str:
        frame = sys._current_frames().get(self._watched)  # noqa: SLF001  documented, for debuggers
        return "".join(traceback.format_stack(frame))[-_MAX_STACK:] if frame else ""
