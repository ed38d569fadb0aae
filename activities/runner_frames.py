"""Messages between a worker and a tool's process: a kind of one byte, a length, the content.

What the worker sends may be pickled: the process is its own child and knows less than the worker
does. What comes back is JSON, text and plain bytes, never a pickle: the worker holds the provider's
key, the tool's process does not, and whoever gets at that process should not get at the worker.
"""

from __future__ import annotations

import struct

HEAD = struct.Struct("!cI")
MAX_FRAME_BYTES = 100_000_000
"""The longest result, argument list or artifact that crosses."""

# From the worker.
SETUP = b"S"
JOB = b"J"
ARTIFACT = b"A"
NO_ARTIFACT = b"N"
NOT_NOW = b"O"
# From the tool's process.
BEGUN = b"B"
HEARTBEAT = b"H"
LOG = b"L"
WANTED = b"W"
RETURNED = b"R"
PARTS = b"P"
UNREADABLE = b"U"
RAISED = b"E"
DONE = b"D"


def packed(kind: bytes, content: bytes) -> bytes:
    """One message.

    Raises:
        ValueError: the content is too large.
    """
    if len(content) > MAX_FRAME_BYTES:
        raise ValueError(f"{len(content)} bytes are more than can be handed over")
    return HEAD.pack(kind, len(content)) + content


class Frames:
    """Messages out of a stream that arrives in pieces."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[bytes, bytes]]:
        """The messages that `data` completes, as (kind, content).

        Raises:
            ValueError: a message that is larger than allowed.
        """
        self._buffer += data
        found: list[tuple[bytes, bytes]] = []
        at = 0
        while len(self._buffer) - at >= HEAD.size:
            kind, length = HEAD.unpack_from(self._buffer, at)
            if length > MAX_FRAME_BYTES:
                raise ValueError(f"a message of {length} bytes from a tool's process")
            end = at + HEAD.size + length
            if len(self._buffer) < end:
                break
            with memoryview(self._buffer) as view:
                found.append((kind, bytes(view[at + HEAD.size : end])))
            at = end
        del self._buffer[:at]
        return found
