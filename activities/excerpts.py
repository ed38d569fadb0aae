"""Parts of large texts: cut between characters, found by line and by row of a table."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from activities.media import PDF_TYPE, WAIT_SECONDS, Pages, pdf_pages, pdf_turn, sniff
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
        self._rows = Rows() if rows else None

    def into(self, chunk: Chunk) -> int | None:
        """The offset, if it begins in this chunk, the next one in order."""
        data, at = chunk.data, 0
        if self._rows is None and self.seen + (count := data.count(b"\n")) < self._wanted:
            self.seen += count
            return None
        while self.seen < self._wanted:
            end = data.find(b"\n", at) + 1
            if self._rows is None or not self._rows.open_after(data[at : end or len(data)]):
                self.seen += bool(end)
            if not end:
                return None
            at = end
        return chunk.start + at if at < len(data) else None


class Rows:
    """Tells which lines of a CSV table end a row: not those inside of a quoted field."""

    def __init__(self) -> None:
        self._open = False

    def open_after(self, line: bytes) -> bool:
        """Whether a quoted field goes on after this line, the next one in order."""
        at = line.find(b'"')
        while at >= 0:
            if not self._open:
                # Elsewhere than at a field's start a quote is a character like any other.
                self._open = at == 0 or line[at - 1 : at] in (b",", b";", b"\t", b"|")
            elif line[at + 1 : at + 2] == b'"':
                at += 1
            else:
                self._open = False
            at = line.find(b'"', at + 1)
        return self._open


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
    end = number = at = 0
    table = Rows() if rows else None
    while number < most and (at := data.find(b"\n", at) + 1):
        if table is None or not table.open_after(data[end:at]):
            end, number = at, number + 1
    return end, number
