"""A worker that another one follows, as on a deploy.

The next one takes work before the last is told to end, and one that cannot start changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from turnkeeper.testing.process import ChildProcess

__all__ = ["Succession"]


class Succession:
    """The workers of a stack, one after the other. Nothing here waits but `end`.

    Args:
        start: starts a worker under a name of its own.
        ready_seconds: for one to come up.
        end_seconds: for one to finish its calls after it was told to end; then it is killed.
    """

    def __init__(
        self, start: Callable[[str], ChildProcess], *, ready_seconds: float, end_seconds: float
    ) -> None:
        self._start = start
        self._ready_seconds = ready_seconds
        self._end_seconds = end_seconds
        self._started = 1
        self._next: ChildProcess | None = None
        self._leaving: list[ChildProcess] = []
        self._deadlines: dict[int, float] = {}
        self.current = start("worker")
        """The one that serves."""

    def renew(self) -> None:
        """Start the next one; one that was on its way is given up for it."""
        if self._next is not None:
            self._leave(self._next)
        self._started += 1
        self._next = self._start(f"worker-{self._started}")
        self._deadlines[self._next.pid] = time.monotonic() + self._ready_seconds

    def look(self) -> bool | None:
        """Whether the next one has taken over, or cannot; None if there is no news."""
        self._see_off()
        following = self._next
        if following is None:
            return None
        if following.is_ready:
            self._next, last, self.current = None, self.current, following
            self._leave(last)
            return True
        if following.status is None and time.monotonic() < self._deadlines[following.pid]:
            return None
        self._next = None
        self._leave(following)
        return False

    def kill(self) -> None:
        """SIGKILL for all, for who does not want to wait; `end` still has to be called."""
        for worker in self._all():
            worker.kill()

    def end(self) -> None:
        """Tell all to end; wait for it."""
        workers = self._all()
        for worker in workers:
            worker.ask_to_end()
        deadline = time.monotonic() + self._end_seconds
        for worker in workers:
            worker.end(max(0.0, deadline - time.monotonic()))

    def _all(self) -> list[ChildProcess]:
        return [self.current, *([self._next] if self._next else []), *self._leaving]

    def _leave(self, worker: ChildProcess) -> None:
        worker.ask_to_end()
        self._deadlines[worker.pid] = time.monotonic() + self._end_seconds
        self._leaving.append(worker)

    def _see_off(self) -> None:
        now = time.monotonic()
        for worker in list(self._leaving):
            if worker.status is not None or now >= self._deadlines[worker.pid]:
                worker.end(0)
                self._leaving.remove(worker)
                del self._deadlines[worker.pid]
