"""Just enough HTTP/2 to see, from the side, which request of a connection is which.

Many gRPC calls share one connection, their paths compressed (HPACK, RFC 7541) against a table that
both ends keep. So each byte from the connection's first on is to be read, whether or not anyone
wants to know. Nothing here writes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final

__all__ = ["PREFACE", "Frame", "FrameReader", "HeaderDecoder", "RequestReader"]

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA: Final = 0
HEADERS: Final = 1
RST_STREAM: Final = 3
CONTINUATION: Final = 9

_END_HEADERS: Final = 0x4
_PADDED: Final = 0x8
_PRIORITY: Final = 0x20
_FRAME_HEAD: Final = 9
_TABLE_BYTES: Final = 4096
_ENTRY_OVERHEAD: Final = 32

Header = tuple[bytes, bytes]


@dataclass(frozen=True)
class Frame:
    """One frame; `kind` is its type's number."""

    kind: int
    flags: int
    stream: int
    payload: bytes


class FrameReader:
    """Cuts one direction of a connection into frames."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that are complete with `data`."""
        self._rest += data
        while len(self._rest) >= _FRAME_HEAD:
            end = _FRAME_HEAD + int.from_bytes(self._rest[:3], "big")
            if len(self._rest) < end:
                return
            head, payload = self._rest[:_FRAME_HEAD], bytes(self._rest[_FRAME_HEAD:end])
            del self._rest[:end]
            # The first bit of a stream's number is reserved.
            stream = int.from_bytes(head[5:], "big") & 0x7FFFFFFF
            yield Frame(head[3], head[4], stream, payload)


class RequestReader:
    """Reads what a client sends after the preface."""

    def __init__(self) -> None:
        self._frames = FrameReader()
        self._decoder = HeaderDecoder()
        self._block = b""

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes | None]]:
        """(stream, head) of each request that begins with `data`, (stream, None) if it is given up.

        A head reads as in HTTP/1.1, `POST /path HTTP/2` and a line per header.

        Raises:
            ValueError: this is not HTTP/2.
        """
        for frame in self._frames.feed(data):
            if frame.kind == RST_STREAM:
                yield frame.stream, None
            elif frame.kind == HEADERS:
                self._block = _unpadded(frame)
            elif frame.kind == CONTINUATION:
                self._block += frame.payload
            if frame.kind in (HEADERS, CONTINUATION) and frame.flags & _END_HEADERS:
                yield frame.stream, _as_text(self._decoder.decode(self._block))


def _unpadded(frame: Frame) -> bytes:
    start, padding = 0, 0
    if frame.flags & _PADDED:
        start, padding = 1, frame.payload[0]
    if frame.flags & _PRIORITY:
        start += 5
    return frame.payload[start : len(frame.payload) - padding]


def _as_text(headers: list[Header]) -> bytes:
    named = dict(headers)
    first = b"%b %b HTTP/2" % (named.get(b":method", b""), named.get(b":path", b""))
    lines = [b"%b: %b" % header for header in headers if not header[0].startswith(b":")]
    return b"\r\n".join([first, *lines, b"", b""])


# --- HPACK ------------------------------------------------------------------------------------

_STATIC: Final[tuple[Header, ...]] = (
    (b":authority", b""),
    (b":method", b"GET"),
    (b":method", b"POST"),
    (b":path", b"/"),
    (b":path", b"/index.html"),
    (b":scheme", b"http"),
    (b":scheme", b"https"),
    *((b":status", status) for status in b"200 204 206 304 400 404 500".split()),
    (b"accept-charset", b""),
    (b"accept-encoding", b"gzip, deflate"),
    *(
        (name, b"")
        for name in (
            b"accept-language accept-ranges accept access-control-allow-origin age allow"
            b" authorization cache-control content-disposition content-encoding content-language"
            b" content-length content-location content-range content-type cookie date etag expect"
            b" expires from host if-match if-modified-since if-none-match if-range"
            b" if-unmodified-since last-modified link location max-forwards proxy-authenticate"
            b" proxy-authorization range referer refresh retry-after server set-cookie"
            b" strict-transport-security transfer-encoding user-agent vary via www-authenticate"
        ).split()
    ),
)

# RFC 7541, appendix B: the code of each of the 256 bytes and of the end of a string. The code is
# canonical, so that the lengths in bits say it all.
_CODE_LENGTHS: Final = bytes.fromhex(
    "0d171c1c1c1c1c1c1c181e1c1c1e1c1c1c1c1c1c1c1c1e1c1c1c1c1c1c1c1c1c"
    "060a0a0c0d06080b0a0a080b080606060505050606060606060607080f060c0a"
    "0d06070707070707070707070707070707070707070707070807080d130d0e06"
    "0f05060506050606060507070606060506070605050607070707070f0b0e0d1c"
    "1416141416161617161717171717181718181617181717171715161716171718"
    "1615141616171715171616181516171715151615171617171416161617161617"
    "1a1a1413161716191a1a1a1b1b1a181913151a1b1b1a1b1815151a1a1c1b1b1b"
    "14181415161515171616191918181a171a1b1a1a1b1b1b1b1b1c1b1b1b1b1b1a"
    "1e"
)


class HeaderDecoder:
    """Decodes header blocks, which must come complete and in order."""

    def __init__(self) -> None:
        self._table: deque[Header] = deque()
        self._bytes = 0
        self._limit = _TABLE_BYTES

    def decode(self, block: bytes) -> list[Header]:
        """The headers of a block, names in lower case as they were sent.

        Raises:
            ValueError: it is not HPACK, or an earlier block is missing.
        """
        headers: list[Header] = []
        try:
            at = 0
            while at < len(block):
                header, at = self._next(block, at)
                if header is not None:
                    headers.append(header)
        except IndexError:
            raise ValueError("the header block ends too early") from None
        return headers

    def _next(self, block: bytes, at: int) -> tuple[Header | None, int]:
        first = block[at]
        if first & 0x80:
            index, at = _integer(block, at, 7)
            return self._entry(index), at
        if first & 0x60 == 0x20:
            self._limit, at = _integer(block, at, 5)
            self._evict()
            return None, at
        kept = bool(first & 0x40)
        index, at = _integer(block, at, 6 if kept else 4)
        if index:
            name = self._entry(index)[0]
        else:
            name, at = _string(block, at)
        value, at = _string(block, at)
        if kept:
            self._table.appendleft((name, value))
            self._bytes += _size((name, value))
            self._evict()
        return (name, value), at

    def _entry(self, index: int) -> Header:
        if 1 <= index <= len(_STATIC):
            return _STATIC[index - 1]
        if index and index - len(_STATIC) <= len(self._table):
            return self._table[index - len(_STATIC) - 1]
        raise ValueError(f"the header table has no entry {index}")

    def _evict(self) -> None:
        while self._bytes > self._limit:
            self._bytes -= _size(self._table.pop())


def _size(header: Header) -> int:
    return len(header[0]) + len(header[1]) + _ENTRY_OVERHEAD


def _integer(block: bytes, at: int, bits: int) -> tuple[int, int]:
    full = (1 << bits) - 1
    value = block[at] & full
    at += 1
    shift = 0
    while value >= full or shift:
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            break
    return value, at


def _string(block: bytes, at: int) -> tuple[bytes, int]:
    huffman = block[at] & 0x80
    length, at = _integer(block, at, 7)
    data = block[at : at + length]
    if len(data) < length:
        raise ValueError("the header block ends too early")
    return (_plain(data) if huffman else data), at + length


def _plain(data: bytes) -> bytes:
    """Decode a Huffman-coded string; what is left at its end is padding, of ones."""
    codes, found = _codes(), bytearray()
    code, length = 0, 0
    for byte in data:
        for bit in range(7, -1, -1):
            code, length = code << 1 | byte >> bit & 1, length + 1
            symbol = codes.get((length, code))
            if symbol is not None:
                found.append(symbol)
                code, length = 0, 0
    if length > 7 or code != (1 << length) - 1:
        raise ValueError("the Huffman code of a header does not end")
    return bytes(found)


@cache
def _codes() -> dict[tuple[int, int], int]:
    """(length, code) of each byte. A canonical code counts up, in order of length and value."""
    codes: dict[tuple[int, int], int] = {}
    code, before = 0, 0
    for length, symbol in sorted((n, s) for s, n in enumerate(_CODE_LENGTHS)):
        code <<= length - before
        # The end of a string is never sent.
        if symbol < 256:
            codes[length, code] = symbol
        code, before = code + 1, length
    return codes
