"""Parts of large texts: cut between characters, found by line and by row of a table."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from itertools import islice

from activities.media import PDF_TYPE, WAIT_SECONDS, Pages, pdf_pages, pdf_turn, sniff
from activities.rows import Place
from turnkeeper.errors import ToolFailed
from turnkeeper.tools import ToolContext

CHUNK_BYTES = 1_000_000
"""What is in memory at once of an artifact that is gone through."""
_LONGEST_CHARACTER = 4
_HEAD_BYTES = 65_536


@dataclass(frozen=True)
class Excerpt:
    """Text and where it was cut out of, in bytes."""

    text: str
    start: int
    end: int


def excerpt(window: bytes, start: int, end: int, *, first: int = 0) -> Excerpt:
    """The bytes from `start` to `end`, both moved back to where a character begins.

    `window` begins with byte `first` and should reach 3 bytes farther on both sides.
    """
    begin = _boundary(window, max(start - first, 0))
    stop = _boundary(window, min(end - first, len(window)))
    if stop <= begin < len(window):
        # The first character alone is longer than what was asked for.
        ends = range(begin + 1, begin + 1 + _LONGEST_CHARACTER)
        stop = next((i for i in ends if _begins(window, i)), begin + 1)
    text = window[begin:stop].decode("utf-8", "replace")
    return Excerpt(text, first + begin, first + stop)


def _boundary(window: bytes, at: int) -> int:
    back = range(at, max(at - _LONGEST_CHARACTER, -1), -1)
    # Where no character begins near by it is no text, and any place is as good.
    return next((i for i in back if _begins(window, i)), at)


def _begins(window: bytes, at: int) -> bool:
    return at >= len(window) or window[at] & 0xC0 != 0x80


async def is_pdf(ctx: ToolContext, artifact: str) -> bool:
    """Whether an artifact is a PDF, whose pages have text; else it is text itself.

    Raises:
        ToolFailed: it is neither.
    """
    part = await ctx.artifact_part(artifact, 0, _HEAD_BYTES)
    whole = part.size <= len(part.data)
    # A character that is cut would make text look binary.
    head = part.data if whole else part.data[: _boundary(part.data, len(part.data) - 1)]
    found = sniff(head)
    if found != PDF_TYPE and not found.startswith("text/"):
        raise ToolFailed(f"It is binary ({found}): give its id to a tool that takes one.")
    return found == PDF_TYPE


async def pages_of(
    ctx: ToolContext, artifact: str, first: int, last: int, wait: float = WAIT_SECONDS
) -> Pages:
    """Pages of a PDF, which is whole in memory only while it is its run's turn.

    Raises:
        Busy: that turn did not come within `wait` seconds.
        ToolFailed: see `pdf_pages`.
    """
    async with pdf_turn(ctx.workflow_id, wait):
        return await pdf_pages(await ctx.artifact(artifact), first, last)


async def bytes_of(
    ctx: ToolContext, artifact: str, offset: int, length: int
) -> tuple[Excerpt, int]:
    """Text from about `offset` on, and the size of the whole."""
    first = max(offset - 3, 0)
    part = await ctx.artifact_part(artifact, first, offset - first + length + 3)
    if offset >= part.size:
        return Excerpt("", part.size, part.size), part.size
    return excerpt(part.data, offset, offset + length, first=first), part.size


@dataclass(frozen=True)
class Chunk:
    """Whole lines of an artifact; one that is longer than a chunk comes in pieces."""

    data: bytes
    start: int
    """Offset of its first byte."""
    line: int
    """Number, from 1, of the line that it begins in."""


async def chunks(ctx: ToolContext, artifact: str) -> AsyncIterator[Chunk]:
    """The whole of an artifact, in order."""
    rest, start, line, offset, size = b"", 0, 1, 0, 1
    while offset < size:
        part = await ctx.artifact_part(artifact, offset, CHUNK_BYTES)
        size, offset = part.size, offset + len(part.data)
        data = rest + part.data
        cut = len(data) if offset >= size else data.rfind(b"\n") + 1 or len(data)
        yield Chunk(data[:cut], start, line)
        line += data.count(b"\n", 0, cut)
        rest, start = data[cut:], start + cut


class Finder:
    """Finds the byte at which the `wanted`th line or row, from 0, begins."""

    def __init__(self, wanted: int, *, rows: bool = False) -> None:
        self.seen = 0
        """Lines or rows that have ended."""
        self._wanted = wanted
        self._place = Place() if rows else None

    def into(self, chunk: Chunk) -> int | None:
        """The offset, if it begins in this chunk, the next one in order."""
        data, place = chunk.data, self._place
        left = self._wanted - self.seen
        count = place.count(data) if place else data.count(b"\n")
        if count < left:
            self.seen += count
            self._place = place and place.after(data)
            return None
        self.seen = self._wanted
        at = next(islice(ends(data, place), left - 1, None)) if left else 0
        return chunk.start + at if at < len(data) else None


def ends(data: bytes, place: Place | None) -> Iterator[int]:
    """Where lines end, or rows at that place of a table, after their line end."""
    if place:
        yield from place.ends(data)
        return
    at = 0
    while at := data.find(b"\n", at) + 1:
        yield at


async def find(
    ctx: ToolContext, artifact: str, wanted: int, *, rows: bool
) -> tuple[int | None, int]:
    """Where a line or row, counted from 0, begins; None if there are fewer. And how many ended."""
    finder = Finder(wanted, rows=rows)
    async for chunk in chunks(ctx, artifact):
        at = await asyncio.to_thread(finder.into, chunk)
        if at is not None:
            return at, finder.seen
    return None, finder.seen


def whole_lines(data: bytes, most: int, *, rows: bool) -> tuple[int, int]:
    """The length of the whole lines or rows that `data` begins with, up to `most`; their number."""
    found = list(islice(ends(data, Place() if rows else None), most))
    return (found[-1], len(found)) if found else (0, 0)
