"""Whether an attempt is still ours: the server's word, and how old it may get.

The server gives a call to another worker when it has heard nothing for the heartbeat timeout. A
worker that was stopped and woken (SIGSTOP, a suspended machine), whose loop was blocked, or that is
cut off from the server, does not know of that. So each attempt holds a lease: it lasts from the
moment at which a heartbeat was sent that the server accepted, for the heartbeat timeout. When two
thirds of it are over it is in doubt, and nothing more is begun in its name until the server has
been asked (`fence.py`; a process has `until` instead, and is killed then: `runner_process.py`).

An attempt is also stopped here when its tool no longer answers: declared by `@tool(heartbeat=...)`,
or because its process stands still. A heartbeat tells that the tool lives, not that a timer ticks.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from typing import Any, Literal, Protocol

import structlog
from temporalio import activity
from temporalio.client import AsyncActivityCancelledError
from temporalio.service import RPCError, RPCStatusCode

Loss = Literal["superseded", "silent"]
"""The server has given the attempt up; or its tool no longer answers, which the server is told."""
SUPERSEDED = "its time was over, or its worker was not heard of in time"

CLEAN_UP_SECONDS = 5.0
"""What a tool whose attempt was lost has for its `finally` blocks until it is interrupted again."""

_IN_DOUBT = 2 / 3
# Of the timeout: one answer that is lost must leave time for the next, before anything is stopped.
_ANSWERS = 1 / 3
# Of the lease: a tool's process is dead before another worker can begin.
_PROCESS_ENDS = 0.9
# Signs of life that a process may owe, one each third of the timeout, before it stands still.
_MOST_OWED = 3
# Counts on while the machine sleeps, where there is such a clock.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

log = structlog.get_logger("turnkeeper.lease")


def clock() -> float:
    """Seconds on the clock that leases are told in, the same in every process of the machine."""
    return time.clock_gettime(_CLOCK)


class Carrier(Protocol):
    """Who runs the tool where that is not this process."""

    begun: bool
    """Whether it has reached the tool: it may take long to start."""
    owed: int
    """Extensions since it last showed that it runs."""

    def extend(self, until: float) -> None:
        """It may run until then, by `clock`, and says so if it does run."""


class Lease:
    """An attempt's claim on its call; made within the activity's own task.

    Args:
        details: makes the heartbeats' details.
        silence: seconds after which a tool that gave no word is stopped; None for never.
        sure: whether it holds at first, though the server has not been asked.
    """

    def __init__(
        self,
        details: Callable[[], Any],
        *,
        silence: float | None = None,
        sure: bool = False,
    ) -> None:
        info = activity.info()
        self.loss: Loss | None = None
        """Why the attempt is not to go on; None while it is."""
        self.why = ""
        """The same, for the model."""
        self._carrier: Carrier | None = None
        self._timeout = (info.heartbeat_timeout or timedelta(minutes=1)).total_seconds()
        self._details = details
        self._silence = silence
        self._server = activity.client().get_async_activity_handle(task_token=info.task_token)
        self._asking = asyncio.Lock()
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._since: tuple[float, float] | None = (clock(), time.time()) if sure else None
        self._told = False
        self._last_word: float | None = None
        self.over = False
        """Whether the tool's own code has ended."""
        self.children: set[asyncio.Future[Any]] = set()
        """Tasks that the tool has made, and that go on."""

    @property
    def in_doubt(self) -> bool:
        """Whether the server has to be asked before anything more is done."""
        if self._since is None:
            return True
        # Wall time, too: a virtual machine may be stopped together with all its other clocks.
        age = max(clock() - self._since[0], time.time() - self._since[1])
        return age > self._timeout * _IN_DOUBT

    @property
    def _until(self) -> float:
        since = self._since[0] if self._since else clock()
        return since + self._timeout * _PROCESS_ENDS

    async def assured(self) -> bool:
        """Whether the attempt is still ours; if in doubt, as the server says.

        Waits for a server that does not answer. The attempt's own timeout is the bound.
        """
        while self._is_open():
            await self.ask()
            if self._is_open():
                await asyncio.sleep(min(1, self._timeout / 10))
        return self.loss is None

    def _is_open(self) -> bool:
        return self.in_doubt and self.loss is None

    async def ask(self) -> bool:
        """Heartbeat, and learn from the answer; False if there is none, which changes nothing."""
        patience = self._timeout * _ANSWERS
        try:
            # One at a time: older details must not overtake newer ones.
            async with self._asking, asyncio.timeout(patience):
                now = clock(), time.time()
                await self._server.heartbeat(
                    self._details(), rpc_timeout=timedelta(seconds=patience)
                )
        except AsyncActivityCancelledError:
            # It is ours until we have ended it. The SDK learns the same by its own heartbeat, and
            # cancels in order.
            activity.heartbeat(self._details())
        except asyncio.CancelledError:
            if not self.given_up():
                raise
            return False
        except Exception as error:  # noqa: BLE001  also the converter's: it must not cost a result
            self._unanswered(error)
            return False
        self._since, self._told = now, False
        return True

    def _unanswered(self, error: Exception) -> None:
        if isinstance(error, RPCError) and error.status is RPCStatusCode.NOT_FOUND:
            self.lose("superseded", SUPERSEDED)
        elif not self._told:
            # The first one of an outage.
            self._told = True
            log.warning("heartbeat without an answer", error=f"{type(error).__name__}: {error}")

    def given_up(self) -> bool:
        """Whether the SDK cancels the attempt because the server knows it no longer."""
        details = activity.cancellation_details()
        if details is None or not (details.not_found or details.timed_out):
            return False
        self.lose("superseded", SUPERSEDED)
        return True

    def word(self) -> None:
        """The tool says that it lives."""
        if self._last_word is not None:
            self._last_word = clock()

    @contextlib.contextmanager
    def tool_runs(self) -> Iterator[None]:
        """For as long as the tool's own code runs, which a loss cancels."""
        self._last_word = clock()
        try:
            yield
        finally:
            self._last_word = None
            self.over = True

    @contextlib.contextmanager
    def carried_by(self, carrier: Carrier) -> Iterator[None]:
        """While a process runs the tool, it has to end with the lease, and to show that it runs."""
        carrier.extend(self._until)
        self._carrier = carrier
        try:
            yield
        finally:
            self._carrier = None

    def lose(self, loss: Loss, why: str) -> None:
        """Not to go on; the first reason counts."""
        if self.loss is None:
            self.loss, self.why = loss, why

    @contextlib.asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Heartbeat while the block runs; when the lease is lost, the tool is cancelled."""
        keeping = asyncio.create_task(self._keep())
        try:
            yield
        finally:
            keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeping

    async def _keep(self) -> None:
        while self.loss is None:
            # The SDK's own as well: it would cancel an attempt that it hears nothing of.
            activity.heartbeat(self._details())
            answered = await self.ask()
            if answered and self._carrier is not None:
                self._look_after(self._carrier)
            if self.loss is None:
                await self._pause(self._timeout / (3 if answered else 10))
        while self._last_word is not None:
            # Again, since a `finally` may wait for what never comes.
            self._task.cancel(self.why)
            await asyncio.sleep(CLEAN_UP_SECONDS)

    def _look_after(self, carrier: Carrier) -> None:
        if not carrier.begun:
            self.word()
        # Counted, not timed: were we away ourselves, its answers have not been read yet.
        elif carrier.owed >= _MOST_OWED:
            self.lose("silent", "its process stands still")
        carrier.extend(self._until)

    async def _pause(self, left: float) -> None:
        """So many seconds, or until the tool has been silent for too long."""
        if self._silence is not None:
            since = clock() if self._last_word is None else self._last_word
            left = min(left, since + self._silence - clock())
        due = clock() + max(left, 0.01)
        await asyncio.sleep(due - clock())
        if self._silence is None or self._last_word is None:
            return
        if self._carrier is not None and not self._carrier.begun:
            return
        # The time that we were away ourselves does not count: its words have not been read yet.
        self._last_word += clock() - due
        if clock() - self._last_word >= self._silence:
            self.lose("silent", f"it gave no sign of life for {self._silence:g} s")
