"""A TCP proxy on loopback that breaks connections on demand, and keeps count.

    with FaultProxy("127.0.0.1", 7233) as proxy:
        client = await Client.connect(proxy.address)
        proxy.drop_reply(b"/StartWorkflowExecution")
        await client.start_workflow(...)            # answered at the second request
        proxy.injected["drop_reply"]                # 1: the witness that it happened

Any TCP protocol passes. HTTP/1.1 with keep-alive and HTTP/2 (gRPC) are understood as far as it
takes to tell whose answer comes back, which `drop_reply` needs.

Faults are switched on and off at any time, for the connections there are as for new ones, and
until `heal`. A call returns when the fault is in force. What the network's delay or loss would
do to an acknowledged byte, a proxy cannot do: it acknowledges what it holds back.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Final, Literal

from turnkeeper.errors import TurnkeeperError
from turnkeeper.testing.answers import Drop, Match, Requests
from turnkeeper.testing.loopback import LoopbackServer
from turnkeeper.testing.provider.http import reset

__all__ = ["FaultProxy", "Injection", "ProxyError"]

Direction = Literal["up", "down"]

_CHUNK: Final = 1 << 16
_QUEUE_CHUNKS: Final = 64
_PACE_SECONDS: Final = 0.05


class ProxyError(TurnkeeperError):
    """Raised when an injection does not happen in time, or a connection could not be read."""


@dataclass(frozen=True)
class Injection:
    """One fault that hit something.

    kind: the name of the method that asked for it. time: seconds since 1970. connection: its
    number, from 1; 0 is the listening port. detail: what was hit; of `drop_reply` the first line
    of the request.
    """

    kind: str
    time: float
    connection: int
    detail: str


@dataclass
class Cut:
    """A cut that is in force; `left` counts down, None is without end."""

    after: int
    how: str
    direction: Direction
    left: int | None


@dataclass(frozen=True)
class Faults:
    """What is in force; replaced, never changed, so that a connection sees each change once."""

    delay: float = 0.0
    rate: float | None = None
    cut: Cut | None = None
    held: tuple[Direction, ...] = ()
    black_hole: bool = False
    drops: tuple[Drop, ...] = ()


class FaultProxy(LoopbackServer):
    """Forwards each connection to `upstream_host:upstream_port`.

    `address` and `url` are where it listens, `port` 0 takes a free one. Every fault method can be
    called from any thread, but not from a `match`.

    Raises ValueError for a host that is not loopback, OSError if the port cannot be used.
    """

    def __init__(
        self, upstream_host: str, upstream_port: int, *, host: str = "127.0.0.1", port: int = 0
    ) -> None:
        super().__init__(host, port)
        self.upstream = (upstream_host, upstream_port)
        self.faults = Faults()
        self.changed = asyncio.Event()
        self.changes = 0
        self._links: set[Link] = set()
        self._news = threading.Condition()
        self._injections: list[Injection] = []
        self.connections = 0
        """How many were accepted."""
        self.bytes_up = 0
        """Bytes handed to the upstream."""
        self.bytes_down = 0
        """Bytes handed to the clients."""
        self.failures: list[str] = []
        """What went wrong in the proxy itself; the end of `with` raises it as ProxyError."""

    # --- the witness

    @property
    def injections(self) -> list[Injection]:
        """Every fault that hit something, in order."""
        with self._news:
            return list(self._injections)

    @property
    def injected(self) -> Counter[str]:
        """How often each kind of fault hit something.

        `drop_reply` and `cut` count each time; `delay`, `throttle`, `hold` and `black_hole` once
        per connection while the faults stay as they are; `refuse` once per switching on (what the
        kernel then refuses, nobody can count) and once per connection that was reset for it.
        """
        return Counter(injection.kind for injection in self.injections)

    def wait_for(self, kind: str, times: int = 1, *, timeout: float = 10) -> list[Injection]:
        """Wait until a kind of fault has hit so often; from a coroutine: `asyncio.to_thread`.

        Raises:
            ProxyError: it has not after `timeout` seconds.
        """
        with self._news:
            if not self._news.wait_for(lambda: len(self._of(kind)) >= times, timeout):
                found = len(self._of(kind))
                raise ProxyError(f"{kind} hit {found} of {times} times in {timeout:g} s")
            return self._of(kind)

    # --- the faults

    def heal(self) -> None:
        """End every fault. What is held or delayed goes on; what was swallowed is lost, so that
        a connection that lost bytes is reset."""
        self._in_loop(self._heal())

    def delay(self, ms: float) -> None:
        """Let each chunk arrive `ms` milliseconds later, each way; order and rate stay."""
        self._in_loop(self._change(delay=ms / 1000))

    def throttle(self, bytes_per_second: float) -> None:
        """Pass no more than that, per connection and direction."""
        if bytes_per_second <= 0:
            raise ValueError("throttle takes bytes per second, more than 0; see hold")
        self._in_loop(self._change(rate=bytes_per_second))

    def cut(
        self,
        after: int,
        *,
        how: Literal["close", "reset"] = "close",
        direction: Direction = "down",
        times: int | None = None,
    ) -> None:
        """End a connection, both ways, when `after` more bytes have passed in a direction.

        Of a connection there is, counted from now. `times` connections, None: until `heal`.
        """
        self._in_loop(self._change(cut=Cut(after, how, direction, times)))

    def hold(self, *directions: Direction) -> None:
        """Pass nothing, in one direction or (without an argument) both; `heal` lets it go on.

        As a network does that comes back before anyone gives up.
        """
        self._in_loop(self._change(held=directions or ("up", "down")))

    def black_hole(self) -> None:
        """Accept connections and swallow what comes, both ways, ends of connections too."""
        self._in_loop(self._change(black_hole=True))

    def refuse(self) -> None:
        """Reset all connections and refuse new ones: as if nobody listened on the port."""
        self._in_loop(self._refuse())

    def drop_reply(self, match: Match | None = None, *, times: int | None = 1) -> None:
        """Deliver a request, wait for the first byte of its answer, and reset the client's
        connection instead of answering.

        match: which requests. It sees a request from its first line on (in HTTP/2, `POST /path
        HTTP/2` and the headers; in anything else what was sent since the last answer): bytes
        that it contains, a pattern that is found in it, or a predicate. None: every request.
        times: how many; None: until `heal`.

        A gRPC connection carries many calls, and is reset with all of them, as by a network. The
        witness names the one whose answer was dropped. Of an HTTP/1.1 request the match may see
        the body, of an HTTP/2 one it does not.
        """
        self._in_loop(self._drop(match, times))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        if error is None and self.failures:
            raise ProxyError("; ".join(self.failures))

    # --- in the loop

    def _of(self, kind: str) -> list[Injection]:
        return [injection for injection in self._injections if injection.kind == kind]

    def note(self, kind: str, connection: int, detail: str) -> None:
        """Record that a fault hit something."""
        with self._news:
            self._injections.append(Injection(kind, time.time(), connection, detail))
            self._news.notify_all()

    async def _change(self, **changes: Any) -> None:
        self.faults = replace(self.faults, **changes)
        self.changes += 1
        self.changed.set()
        self.changed = asyncio.Event()

    async def _heal(self) -> None:
        await self._change(**vars(Faults()))
        for link in [link for link in self._links if link.lost]:
            link.end(hard=True)
        if self._server is None:
            await self._listen()

    async def _refuse(self) -> None:
        self._close_listener()
        self.note("refuse", 0, f"{self.address} refuses connections")
        for link in list(self._links):
            self.note("refuse", link.number, "reset")
            link.end(hard=True)

    async def _drop(self, match: Match | None, times: int | None) -> None:
        await self._change(drops=(*self.faults.drops, Drop(match, times)))

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        link = Link(self, self.connections, reader, writer)
        self._links.add(link)
        try:
            await link.run()
        finally:
            self._links.discard(link)


# --- one connection ---------------------------------------------------------------------------


class Link:
    """A client's connection and the upstream's, and the two flows between them."""

    def __init__(
        self,
        proxy: FaultProxy,
        number: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.proxy = proxy
        self.number = number
        self.lost = False
        """Whether bytes were swallowed: such a connection can only end."""
        self.requests = Requests(lambda: proxy.faults.drops)
        self._reader = reader
        self._writer = writer
        self._ended = asyncio.Event()
        self._hard = False
        self._noted: set[tuple[str, int]] = set()

    async def run(self) -> None:
        """Forward until an end of the connection or a fault ends it."""
        try:
            if self.proxy.faults.black_hole:
                await self._swallow()
            else:
                await self._forward()
        except OSError:
            # The upstream is not there; what a client sees of that is a connection that ends.
            self._hard = True
        finally:
            self.requests.forget()
            if self._hard:
                # It may be closed already.
                with contextlib.suppress(OSError):
                    reset(self._writer)

    def end(self, *, hard: bool) -> None:
        """End both connections; `hard`: with a reset of the client's."""
        self._hard = hard
        self._ended.set()

    def note_once(self, kind: str) -> None:
        """Record that a fault touches this connection, once while the faults stay as they are."""
        mark = (kind, self.proxy.changes)
        if mark not in self._noted:
            self._noted.add(mark)
            self.proxy.note(kind, self.number, "")

    async def _swallow(self) -> None:
        self.lost = True
        self.note_once("black_hole")
        swallowing = asyncio.ensure_future(_discard(self._reader))
        await self._ended.wait()
        swallowing.cancel()

    async def _forward(self) -> None:
        reader, writer = await asyncio.open_connection(*self.proxy.upstream)
        for each in (self._writer, writer):
            # drain() then returns when the kernel has taken every byte: a cut is exact.
            each.transport.set_write_buffer_limits(high=0)
        flows = [
            Flow(self, "up", self._reader, writer),
            Flow(self, "down", reader, self._writer),
        ]
        tasks = [asyncio.ensure_future(flow.read()) for flow in flows]
        sending = [asyncio.ensure_future(self._watched(flow)) for flow in flows]
        try:
            tasks += [*sending, asyncio.ensure_future(self._end_after(sending))]
            await self._ended.wait()
        finally:
            for task in tasks:
                task.cancel()
            writer.close()

    async def _end_after(self, sending: list[asyncio.Task[None]]) -> None:
        await asyncio.wait(sending)
        self._ended.set()

    async def _watched(self, flow: Flow) -> None:
        try:
            await flow.send()
        except Exception as error:  # noqa: BLE001 a `match` of anyone's, bytes of anyone's
            self.proxy.failures.append(f"connection {self.number}: {error!r}")
            self.end(hard=True)


async def _discard(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(ConnectionError):
        while await reader.read(_CHUNK):
            pass


class Flow:
    """One direction of a connection, from a reader to a writer."""

    def __init__(
        self,
        link: Link,
        direction: Direction,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._link = link
        self._proxy = link.proxy
        self._direction = direction
        self._reader = reader
        self._writer = writer
        # When each chunk is due; b"" is the end, None an end by reset.
        self._queue: asyncio.Queue[tuple[float, bytes | None]] = asyncio.Queue(_QUEUE_CHUNKS)
        self._cut: Cut | None = None
        self._room = 0

    async def read(self) -> None:
        """Take what comes, until the end."""
        clock = asyncio.get_running_loop().time
        chunk: bytes | None = b"-"
        while chunk:
            try:
                chunk = await self._reader.read(_CHUNK)
            except ConnectionError:
                chunk = None
            if delay := self._proxy.faults.delay:
                self._link.note_once("delay")
            await self._queue.put((clock() + delay, chunk))

    async def send(self) -> None:
        """Pass it on, as the faults have it, until the end."""
        clock = asyncio.get_running_loop().time
        while True:
            due, chunk = await self._queue.get()
            await asyncio.sleep(due - clock())
            if await self._swallowed():
                continue
            try:
                if not chunk:
                    await self._finish(chunk)
                    return
                if self._dropped(chunk):
                    return
                await self._pass(chunk)
            except OSError:
                # Nobody hears this direction any more. What is on its way in the other one still
                # arrives, and its end ends the link.
                return

    async def _finish(self, chunk: bytes | None) -> None:
        if chunk is None:
            self._link.end(hard=True)
        elif self._writer.can_write_eof():
            self._writer.write_eof()

    def _dropped(self, chunk: bytes) -> bool:
        """Let the requests be read; whether an answer begins here that is to be dropped."""
        if self._direction == "up":
            self._link.requests.sent(chunk)
            return False
        dropped = self._link.requests.answered(chunk)
        if dropped is None:
            return False
        self._proxy.note("drop_reply", self._link.number, dropped)
        self._link.end(hard=True)
        return True

    async def _pass(self, chunk: bytes) -> None:
        while chunk:
            if await self._swallowed():
                return
            rate = self._proxy.faults.rate
            size = len(chunk) if rate is None else max(1, int(rate * _PACE_SECONDS))
            piece, chunk = chunk[:size], chunk[size:]
            cut = self._reached(piece)
            if cut is not None:
                piece = piece[: self._room]
            if piece:
                # First: whoever has read the bytes finds them counted.
                self._count(len(piece))
                self._writer.write(piece)
                await self._writer.drain()
            if cut is not None:
                cut.left = None if cut.left is None else cut.left - 1
                self._proxy.note("cut", self._link.number, f"{cut.how} {cut.direction}")
                self._link.end(hard=cut.how == "reset")
                # The link cancels this.
                await asyncio.Event().wait()
            self._room -= len(piece)
            if rate is not None:
                self._link.note_once("throttle")
                await asyncio.sleep(len(piece) / rate)

    def _reached(self, piece: bytes) -> Cut | None:
        """The cut that this piece reaches."""
        cut = self._proxy.faults.cut
        if cut is None or cut.direction != self._direction or cut.left == 0:
            return None
        if self._cut is not cut:
            self._cut, self._room = cut, cut.after
        return cut if len(piece) >= self._room else None

    async def _swallowed(self) -> bool:
        """Wait while this direction is held; whether what comes now is swallowed."""
        while self._direction in self._proxy.faults.held:
            changed = self._proxy.changed
            self._link.note_once("hold")
            await changed.wait()
        if self._proxy.faults.black_hole:
            self._link.lost = True
            self._link.note_once("black_hole")
        # Also after the black hole: a stream with a gap must not go on.
        return self._link.lost

    def _count(self, size: int) -> None:
        if self._direction == "up":
            self._proxy.bytes_up += size
        else:
            self._proxy.bytes_down += size
