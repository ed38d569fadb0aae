"""Images in a request: what they are, by their first bytes, and what they cost."""

from __future__ import annotations

import binascii
import struct
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

PIXELS_PER_TOKEN: Final = 750
# Of base64; a photograph's measures stand behind its metadata.
_HEADS: Final = (4_096, 1_048_576)
_START_OF_FRAME: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


class Measures(NamedTuple):
    """What an image's own bytes say."""

    media_type: str
    width: int
    height: int

    @property
    def tokens(self) -> int:
        """What it costs."""
        return -(-self.width * self.height // PIXELS_PER_TOKEN)


def image_blocks(block: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The images of a block of a message, itself or inside a tool result, each with its path."""
    if block.get("type") == "image":
        yield "", block
    elif block.get("type") == "tool_result" and isinstance(block.get("content"), list):
        for number, inner in enumerate(block["content"]):
            if isinstance(inner, Mapping) and inner.get("type") == "image":
                yield f".tool_result.content.{number}", inner


def base64_of(image: Mapping[str, Any]) -> str | None:
    """The data of an image that is sent along; None for one that is named by URL or file."""
    source = image.get("source")
    if not isinstance(source, Mapping) or source.get("type") != "base64":
        return None
    data = source.get("data")
    return data if isinstance(data, str) else None


def measures(data: str) -> Measures | None:
    """Of an image in base64; None if it is not one that the API takes."""
    for length in _HEADS:
        try:
            head = binascii.a2b_base64(data[:length], strict_mode=True)
        except binascii.Error:
            return None
        if found := _measured(head):
            return found
    return None


def surplus(block: Mapping[str, Any]) -> int:
    """Bytes by which the JSON of a block is longer than what its images cost, at four a token."""
    found = 0
    for _, image in image_blocks(block):
        data = base64_of(image)
        if data is not None and (measured := measures(data)):
            found += len(data) - 4 * measured.tokens
    return found


def _measured(head: bytes) -> Measures | None:
    try:
        if head.startswith(b"\x89PNG\r\n\x1a\n"):
            return Measures("image/png", *struct.unpack_from(">II", head, 16))
        if head[:6] in (b"GIF87a", b"GIF89a"):
            return Measures("image/gif", *struct.unpack_from("<HH", head, 6))
        if head.startswith(b"\xff\xd8\xff"):
            return _jpeg(head)
        if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
            return _webp(head)
    except (struct.error, IndexError):
        pass
    return None


def _jpeg(head: bytes) -> Measures:
    at = 2
    while head[at + 1] not in _START_OF_FRAME:
        at += 2 + int(struct.unpack_from(">H", head, at + 2)[0])
    height, width = struct.unpack_from(">HH", head, at + 5)
    return Measures("image/jpeg", width, height)


def _webp(head: bytes) -> Measures:
    if head[12:16] == b"VP8X":
        sides = [int.from_bytes(head[at : at + 3], "little") + 1 for at in (24, 27)]
    elif head[12:16] == b"VP8L":
        bits = int(struct.unpack_from("<I", head, 21)[0])
        sides = [(bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1]
    else:
        sides = [side & 0x3FFF for side in struct.unpack_from("<HH", head, 26)]
    return Measures("image/webp", *sides)
