"""A server on loopback in a thread of its own, with an event loop of its own.

It answers while the caller's loop is busy, so a test may block, and `with` works as well as
`async with`.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, TypeVar, cast

__all__ = ["LoopbackServer"]

T = TypeVar("T")

_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
_HEAD_LIMIT: Final = 1 << 18
_BACKLOG: Final = 512
_SECONDS: Final = 10


class LoopbackServer:
    """Serves each connection with `_connection`, which a subclass defines.

    `port` 0 takes a free one; it is known after `start`. A server is started once.

    Raises ValueError for a host that is not loopback.
    """

    def __init__(self, host: str, port: int) -> None:
        if host not in _LOOPBACK:
            raise ValueError(f"this serves loopback only, not {host!r}")
        self.host = host
        self.port = port
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listening = threading.Event()
        self._failure: BaseException | None = None
        self._stop: Callable[[], object] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._reserved: socket.socket | None = None
        self._server: asyncio.Server | None = None

    @property
    def address(self) -> str:
        """`host:port`, as a Temporal client takes it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The base URL for HTTP clients."""
        return f"http://{self.address}"

    def start(self) -> Self:
        """Listen; returns when connections are accepted. Raises OSError if the port is taken."""
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve()), name=type(self).__name__, daemon=True
        )
        self._thread.start()
        self._listening.wait()
        if self._failure is not None:
            raise self._failure
        return self

    def stop(self) -> None:
        """End all connections. Does nothing the second time."""
        if self._stop is not None and self._thread is not None:
            self._stop()
            self._thread.join(_SECONDS)
            self._stop = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        return self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.__exit__(kind, error, trace)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection; it is closed afterwards."""
        raise NotImplementedError

    def _in_loop(self, do: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the server's loop, where no lock is needed; its result.

        Raises:
            RuntimeError: the server does not run.
        """
        if self._stop is None or self._loop is None:
            do.close()
            raise RuntimeError(f"the {type(self).__name__} does not run")
        return asyncio.run_coroutine_threadsafe(do, self._loop).result(_SECONDS)

    async def _serve(self) -> None:
        self._loop, stopping = asyncio.get_running_loop(), asyncio.Event()
        try:
            self._reserve()
            await self._listen()
        except OSError as error:
            self._failure = error
            self._listening.set()
            return
        self._stop = partial(self._loop.call_soon_threadsafe, stopping.set)
        self._listening.set()
        await stopping.wait()
        self._close_listener()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        assert self._reserved is not None
        self._reserved.close()

    def _reserve(self) -> None:
        if self.port:
            # Asked without sharing: sharing alone would not notice another server of this kind.
            self._bound(shared=False).close()
        # Bound but never listening: the port stays ours while nobody listens there, and the
        # kernel refuses a connection to it.
        self._reserved = self._bound(shared=True)
        self.port = self._reserved.getsockname()[1]

    def _bound(self, *, shared: bool) -> socket.socket:
        bound = socket.socket(socket.AF_INET6 if ":" in self.host else socket.AF_INET)
        try:
            # Closed connections wait out their time on the port; they do not keep us from it.
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared:
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            bound.bind((self.host, self.port))
        except OSError:
            bound.close()
            raise
        return bound

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(
            self._accept, sock=self._bound(shared=True), limit=_HEAD_LIMIT, backlog=_BACKLOG
        )

    def _close_listener(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = cast("asyncio.Task[None]", asyncio.current_task())
        self._tasks.add(task)
        try:
            await self._connection(reader, writer)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()
