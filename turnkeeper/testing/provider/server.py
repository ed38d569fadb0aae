"""The provider as a server: its thread, its connections, and the faults on the wire."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, cast

from turnkeeper.testing.provider.api import Answer, Api
from turnkeeper.testing.provider.http import (
    BadRequest,
    HttpRequest,
    chunk,
    read_request,
    reset,
    response_head,
)
from turnkeeper.testing.provider.journal import Journal, Record
from turnkeeper.testing.provider.models import Model, Models
from turnkeeper.testing.provider.replies import Cut
from turnkeeper.testing.provider.script import Script

_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
_HEAD_LIMIT: Final = 1 << 18
_STOP_SECONDS: Final = 10
_WATCH_SECONDS: Final = 0.02


class ScriptedProvider:
    """A strict, scripted stand-in for Anthropic's Messages API, on a loopback port.

        async with ScriptedProvider([call("search", {"q": "x"}), text("Done.")]) as provider:
            client = AsyncAnthropic(base_url=provider.url, api_key="any", max_retries=0)

    It runs in a thread with an event loop of its own, so it answers while the caller's loop is
    busy; `with` works as well as `async with`. The script runs in that thread.

    script: see `turnkeeper.testing.provider.script`.
    models: model id -> `Model` or its fields; other models are answered 404. Without it, the
        default ids are listed and every model is accepted.
    window: overrides every model's `max_input_tokens`.
    api_key: the only key accepted; without it any non-empty key is.
    log: file to which each request is appended before it is answered, see `read_log`. A file that
        exists is continued: arrivals and repeats count on, and what was emitted is still known.
    log_bodies: keep request bodies in the records and the log.
    fsync: make each log line durable before the answer; off, it survives a killed process only.
    clock: seconds, for the time to live of the prompt cache.
    max_body_bytes: larger requests are answered 413.

    Raises ValueError for a host that is not loopback, OSError if the port or log cannot be used.
    """

    def __init__(
        self,
        script: Script,
        *,
        models: Mapping[str, Model | Mapping[str, Any]] | None = None,
        window: int | None = None,
        api_key: str | None = None,
        log: str | os.PathLike[str] | None = None,
        log_bodies: bool = False,
        fsync: bool = True,
        host: str = "127.0.0.1",
        port: int = 0,
        clock: Callable[[], float] = time.time,
        max_body_bytes: int = 32 * 1024 * 1024,
    ) -> None:
        if host not in _LOOPBACK:
            raise ValueError(f"the scripted provider serves loopback only, not {host!r}")
        self.host = host
        self.port = port
        self._max_body = max_body_bytes
        self._journal = Journal(log, fsync=fsync)
        self._api = Api(
            script,
            models=Models(models, window),
            api_key=api_key,
            clock=clock,
            journal=self._journal,
            log_bodies=log_bodies,
        )
        self._thread: threading.Thread | None = None
        self._listening = threading.Event()
        self._failure: BaseException | None = None
        self._stop: Callable[[], object] | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """The base URL for clients."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    @property
    def requests(self) -> list[Record]:
        """Every request so far, in order of arrival; `Record` says what is known of each. The end
        of a reply is noted a moment after the client has read it."""
        return list(self._journal.records)

    @property
    def rejections(self) -> Counter[str]:
        """How often each rule was broken, by the rule's name."""
        return Counter(self._api.rejections)

    def start(self) -> Self:
        """Listen; returns when connections are accepted. Raises OSError if the port is taken."""
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve()), name="scripted-provider", daemon=True
        )
        self._thread.start()
        self._listening.wait()
        if self._failure is not None:
            self._journal.close()
            raise self._failure
        return self

    def stop(self) -> None:
        """End all connections, and close the log. Does nothing the second time."""
        if self._stop is not None and self._thread is not None:
            self._stop()
            self._thread.join(_STOP_SECONDS)
            self._stop = None
        self._journal.close()

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
        self.stop()

    async def _serve(self) -> None:
        loop, stopping = asyncio.get_running_loop(), asyncio.Event()
        try:
            server = await asyncio.start_server(
                self._connection, self.host, self.port, limit=_HEAD_LIMIT, backlog=512
            )
        except OSError as error:
            self._failure = error
            self._listening.set()
            return
        self.port = server.sockets[0].getsockname()[1]
        self._stop = partial(loop.call_soon_threadsafe, stopping.set)
        self._listening.set()
        await stopping.wait()
        server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = cast("asyncio.Task[None]", asyncio.current_task())
        self._connections.add(task)
        # With no room in the buffer, drain() returns when the kernel has taken every byte: a cut
        # then ends exactly where it should, and "sent" means sent.
        writer.transport.set_write_buffer_limits(high=0)
        try:
            while await self._exchange(reader, writer):
                pass
        except BadRequest:
            with contextlib.suppress(ConnectionError):
                writer.write(response_head(400, {"content-length": "0", "connection": "close"}))
                await writer.drain()
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._connections.discard(task)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Serve one request; whether the connection can be used for another."""
        http = await read_request(reader, writer, self._max_body)
        if http is None:
            return False
        answer = self._api.answer(http)
        sending = _Sending(reader, writer, answer)
        try:
            await sending.run(http)
        except asyncio.CancelledError:
            sending.outcome = sending.outcome or "stopped"
            raise
        except ConnectionError:
            sending.outcome = sending.outcome or "client_gone"
            raise
        finally:
            answer.record.sent, answer.record.outcome = sending.sent, sending.outcome
            self._journal.reply(answer.record)
        return sending.outcome == "sent" and http.keep_alive


class _Sending:
    """One answer on its way to the client."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: Answer
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._answer = answer
        self.sent = 0
        self.outcome: str | None = None

    async def run(self, http: HttpRequest) -> None:
        """Send the answer as its reply asks. Raises ConnectionError if the client goes away."""
        reply = self._answer.reply
        cut = reply.cut if reply is not None else None
        pieces = self._answer.pieces
        if cut is not None:
            pieces = _first_bytes(pieces, cut.offset(sum(map(len, pieces))))
        await self._wait(reply.delay if reply is not None else 0)
        if cut is None or cut.at is not None:
            self._writer.write(self._head(http, cut))
            await self._body(pieces, reply.delay_between if reply is not None else 0)
            if cut is None and self._answer.chunked:
                self._writer.write(chunk(b""))
            await self._writer.drain()
        self.outcome = "sent" if cut is None else f"cut:{cut.how}"
        if cut is not None:
            await self._end(cut)

    def _head(self, http: HttpRequest, cut: Cut | None) -> bytes:
        record = self._answer.record
        headers = {
            "content-type": self._answer.content_type,
            "request-id": record.request_id or "",
        }
        if self._answer.chunked:
            headers |= {"cache-control": "no-cache", "transfer-encoding": "chunked"}
        else:
            headers["content-length"] = str(sum(map(len, self._answer.pieces)))
        if not http.keep_alive or (cut is not None and cut.how == "stall"):
            # A whole reply that then stalls would let the client send its next request into it.
            headers["connection"] = "close"
        own = {name.lower(): value for name, value in self._answer.headers.items()}
        return response_head(self._answer.status, headers | own)

    async def _body(self, pieces: list[bytes], delay_between: float) -> None:
        if not delay_between:
            pieces = [b"".join(pieces)]
        for number, piece in enumerate(pieces):
            if number:
                await self._wait(delay_between)
            if piece:
                self._writer.write(chunk(piece) if self._answer.chunked else piece)
                await self._writer.drain()
                self.sent += len(piece)

    async def _end(self, cut: Cut) -> None:
        if cut.how == "reset":
            reset(self._writer)
        elif cut.how == "stall":
            await self._wait(float("inf"))

    async def _wait(self, seconds: float) -> None:
        """Sleep, but notice a client that goes away."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if self._reader.at_eof():
                raise ConnectionResetError("the client went away")
            await asyncio.sleep(min(left, _WATCH_SECONDS))


def _first_bytes(pieces: list[bytes], size: int) -> list[bytes]:
    kept: list[bytes] = []
    for piece in pieces:
        kept.append(piece[:size])
        size -= len(kept[-1])
    return kept
