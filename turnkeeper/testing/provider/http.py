"""Just enough HTTP/1.1 to serve, and to misbehave to the byte.

A library that frames replies correctly cannot be told to end one in the middle, so requests are
read and replies written here by hand: keep-alive, chunked in both directions, and
`Expect: 100-continue`.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

_DISCARD_LIMIT: Final = 8
_REASONS: Final = {code.value: code.phrase for code in HTTPStatus} | {529: "Overloaded"}


class BadRequest(ValueError):
    """What was sent is not an HTTP/1.1 request; the connection is answered 400 and closed."""


@dataclass(frozen=True)
class HttpRequest:
    """A request; header names are in lower case, `body` is None if it was over the limit."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes | None

    @property
    def keep_alive(self) -> bool:
        """Whether the client may send another request on this connection."""
        return self.headers.get("connection", "").lower() != "close"


async def read_request(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, max_body: int
) -> HttpRequest | None:
    """The next request of a connection, or None at its end.

    Raises BadRequest for anything else than HTTP/1.1, and ConnectionError if the client goes away
    in the middle of a request.
    """
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as end:
        if end.partial:
            raise ConnectionResetError("the request ended in its head") from end
        return None
    except asyncio.LimitOverrunError as error:
        raise BadRequest("the head of the request is too long") from error
    method, path, headers = _parse_head(head)
    if headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    try:
        body = await _read_body(reader, headers, max_body)
    except asyncio.IncompleteReadError as error:
        raise ConnectionResetError("the request ended in its body") from error
    return HttpRequest(method, path, headers, body)


def _parse_head(head: bytes) -> tuple[str, str, dict[str, str]]:
    first, *lines = head.decode("latin-1")[:-4].split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or words[2] != "HTTP/1.1":
        raise BadRequest("an HTTP/1.1 request line is required")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise BadRequest("malformed header")
        # Repeated headers are one list, as anthropic-beta may be.
        name, value = name.lower(), value.strip()
        headers[name] = f"{headers[name]},{value}" if name in headers else value
    return words[0], words[1].partition("?")[0], headers


async def _read_body(
    reader: asyncio.StreamReader, headers: Mapping[str, str], max_body: int
) -> bytes | None:
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return await _read_chunks(reader, max_body)
    length = headers.get("content-length", "0")
    if not length.isascii() or not length.isdigit():
        raise BadRequest("malformed content-length")
    if int(length) <= max_body:
        return await reader.readexactly(int(length))
    # Read to its end, so that the client gets to see the answer; but not without end.
    if int(length) > max_body * _DISCARD_LIMIT:
        raise BadRequest("content-length far over the limit")
    rest = int(length)
    while rest:
        piece = await reader.read(min(rest, 1 << 20))
        if not piece:
            raise ConnectionResetError("the request ended in its body")
        rest -= len(piece)
    return None


async def _read_chunks(reader: asyncio.StreamReader, max_body: int) -> bytes | None:
    body = bytearray()
    total = 0
    while True:
        try:
            size = int((await reader.readuntil(b"\r\n")).split(b";")[0], 16)
        except ValueError as error:
            raise BadRequest("malformed chunk") from error
        total += size
        if size < 0 or total > max_body * _DISCARD_LIMIT:
            raise BadRequest("malformed chunk, or far over the limit")
        data = await reader.readexactly(size + 2)
        if size == 0:
            return bytes(body) if total <= max_body else None
        if total <= max_body:
            body += data[:-2]


def response_head(status: int, headers: Mapping[str, str]) -> bytes:
    """The status line and the headers."""
    lines = [
        f"HTTP/1.1 {status} {_REASONS.get(status, 'Unknown')}",
        *(f"{k}: {v}" for k, v in headers.items()),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body; an empty one ends the body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def reset(writer: asyncio.StreamWriter) -> None:
    """End the connection with a TCP RST."""
    raw = writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
