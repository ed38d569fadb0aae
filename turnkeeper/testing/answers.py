"""Whose answer comes back on a connection: the requests that are to go without one.

A connection is read from the side, from its first byte on, both ways. Its protocol is found out
from what the client says first: HTTP/2, or one in which requests and answers take turns.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from turnkeeper.testing.http2 import (
    DATA,
    HEADERS,
    PREFACE,
    RST_STREAM,
    FrameReader,
    RequestReader,
)

__all__ = ["Drop", "Match", "Requests"]

Match = bytes | re.Pattern[bytes] | Callable[[bytes], bool]

_REQUEST_BYTES: Final = 1 << 20
_FIRST_LINE: Final = 200


@dataclass
class Drop:
    """Answers to drop; `left` counts down, None is without end."""

    match: Match | None
    left: int | None

    def hits(self, request: bytes) -> bool:
        """Whether this request is meant."""
        if self.left == 0:
            return False
        if self.match is None:
            return True
        if isinstance(self.match, bytes):
            return self.match in request
        if isinstance(self.match, re.Pattern):
            return self.match.search(request) is not None
        return self.match(request)

    def count(self, by: int) -> None:
        """Count down, or up again."""
        if self.left is not None:
            self.left += by


class _Protocol:
    """The requests of a connection that are to go without an answer."""

    def __init__(self, drops: Callable[[], tuple[Drop, ...]]) -> None:
        self._drops = drops
        self._doomed: dict[int, tuple[Drop, str]] = {}

    def sent(self, data: bytes) -> None:
        """Read what the client sends."""
        raise NotImplementedError

    def answered(self, data: bytes) -> str | None:
        """Read what the upstream sends; a doomed request whose answer begins there."""
        raise NotImplementedError

    def forget(self, *streams: int) -> None:
        """Give back the drops of requests (by default all) that nobody will answer."""
        for stream in streams or list(self._doomed):
            if stream in self._doomed:
                self._doomed.pop(stream)[0].count(1)

    def _consider(self, stream: int, request: bytes) -> None:
        drop = next((drop for drop in self._drops() if drop.hits(request)), None)
        if drop is not None and stream not in self._doomed:
            # Now and not with the answer: of two requests at once, one is meant by `times=1`.
            drop.count(-1)
            first = request.partition(b"\r\n")[0][:_FIRST_LINE]
            self._doomed[stream] = (drop, first.decode("latin-1"))

    def _doom(self, stream: int) -> str | None:
        drop, first = self._doomed.get(stream, (None, ""))
        if drop is None:
            return None
        del self._doomed[stream]
        # Healed in between.
        return first if any(drop is each for each in self._drops()) else None


class _Turns(_Protocol):
    """HTTP/1.1, and what else takes turns: a request, its answer, the next request."""

    def __init__(self, drops: Callable[[], tuple[Drop, ...]]) -> None:
        super().__init__(drops)
        self._request = bytearray()
        self._over = False

    def sent(self, data: bytes) -> None:
        if self._over:
            self._request.clear()
            self._over = False
        if data and len(self._request) < _REQUEST_BYTES:
            self._request += data
            self._consider(0, bytes(self._request))

    def answered(self, data: bytes) -> str | None:
        # `100 Continue` asks for the rest of the request.
        if not data or data.startswith(b"HTTP/1.1 100"):
            return None
        self._over = True
        return self._doom(0)


class _Streams(_Protocol):
    """HTTP/2: many requests at once, a stream each."""

    def __init__(self, drops: Callable[[], tuple[Drop, ...]]) -> None:
        super().__init__(drops)
        self._heads = RequestReader()
        self._frames = FrameReader()

    def sent(self, data: bytes) -> None:
        for stream, head in self._heads.feed(data):
            if head is None:
                self.forget(stream)
            else:
                self._consider(stream, head)

    def answered(self, data: bytes) -> str | None:
        for frame in self._frames.feed(data):
            if frame.kind == RST_STREAM:
                self.forget(frame.stream)
            # Others, as a window update, only say that the request is arriving.
            elif frame.kind in (HEADERS, DATA) and (found := self._doom(frame.stream)):
                return found
        return None


class Requests(_Protocol):
    """The requests of a connection of either protocol.

    drops: what is to be dropped at this moment.

    Reading raises ValueError for what is no HTTP/2 after its preface, and what a `match` raises.
    """

    def __init__(self, drops: Callable[[], tuple[Drop, ...]]) -> None:
        super().__init__(drops)
        self._known: _Protocol | None = None
        self._sent = b""
        self._answered = b""

    def sent(self, data: bytes) -> None:
        """See _Protocol."""
        if self._known is not None:
            self._known.sent(data)
            return
        self._sent += data
        if len(self._sent) < len(PREFACE) and PREFACE.startswith(self._sent):
            return
        http2 = self._sent.startswith(PREFACE)
        self._known = _Streams(self._drops) if http2 else _Turns(self._drops)
        # An HTTP/2 server may speak first, one of SMTP does: that answers no request.
        self._known.answered(self._answered)
        self._known.sent(self._sent.removeprefix(PREFACE))

    def answered(self, data: bytes) -> str | None:
        """See _Protocol."""
        if self._known is not None:
            return self._known.answered(data)
        self._answered += data
        return None

    def forget(self, *streams: int) -> None:
        """See _Protocol."""
        if self._known is not None:
            self._known.forget(*streams)
