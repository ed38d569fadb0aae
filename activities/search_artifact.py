"""The built-in tool with which a model finds words in what was too large for a result."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterator
from typing import Annotated, NamedTuple

from pydantic import Field

from activities.excerpts import Chunk, chunks, excerpt, is_pdf, pages_of
from activities.media import Busy
from turnkeeper.errors import ToolFailed
from turnkeeper.text import one_line
from turnkeeper.tools import ToolContext, tool

_MAX_WORDS = 16
_SHOWN = 20
_PASSAGE_BYTES = 1_000
"""Longer lines are searched in passages, which overlap by as much as a word may be long."""
_OVERLAP_BYTES = 200
_SNIPPET = 240
_PAGES = 500
_PAGES_SECONDS = 25.0
"""A reading of pages that has begun may take 20 s more, of the tool's 60."""


class Match(NamedTuple):
    """A passage, better than another one if it is greater."""

    phrase: bool
    """Whether it has the query as it stands."""
    words: int
    """How many different words of the query it has."""
    before: int
    """The byte where it is met, negative: of equals the first one is better."""
    line: int
    """Or page."""
    snippet: str


@tool(effect="read", timeout=60, retries=5)
async def search_artifact(
    artifact: Annotated[str, Field(description="The artifact's id, from a result.")],
    query: Annotated[str, Field(min_length=1, max_length=400, description="Words, literally.")],
    ctx: ToolContext,
    *,
    page: Annotated[int, Field(ge=1, description="First page of a PDF.")] = 1,
) -> str:
    """Find words in an artifact; answers the lines and bytes, or pages, of the best matches."""
    search = Search(query)
    if await is_pdf(ctx, artifact):
        return await _pages(search, ctx, artifact, page)
    if page > 1:
        raise ToolFailed("It is no PDF and has no pages: search it without page.")
    async for chunk in chunks(ctx, artifact):
        await asyncio.to_thread(search.take, chunk)
    return search.told()


async def _pages(search: Search, ctx: ToolContext, artifact: str, first: int) -> str:
    """Search the text of as many pages as time allows."""
    loop = asyncio.get_running_loop()
    ends, last = loop.time() + _PAGES_SECONDS, first + _PAGES - 1
    start, number, count, blank = 0, first, first, True
    while number <= min(count, last) and (left := ends - loop.time()) > 0:
        try:
            pages = await pages_of(ctx, artifact, number, last, left)
        except Busy:
            if number == first:
                raise
            break
        for at, text in enumerate(pages.texts, start=number):
            # One line, whatever line ends the layout has: a match's line is then its page.
            line = " ".join(text.split()).encode() + b"\n"
            await asyncio.to_thread(search.take, Chunk(line, start, at))
            start, blank = start + len(line), blank and not text
        number, count = pages.last + 1, pages.count
    told = [f"Pages {first} to {number - 1} of {count} were searched."]
    if number <= count:
        told.append(f"page={number} searches on.")
    if blank:
        told.append("They have no text: perhaps it is a scan.")
    return f"{search.told(pages=True)}\n{' '.join(told)}"


class Search:
    """Keeps the best passages of what it is given."""

    def __init__(self, query: str) -> None:
        self._phrase = " ".join(query.split()).casefold()
        self._words = list(dict.fromkeys(self._phrase.split()))[:_MAX_WORDS]
        if not self._words:
            raise ToolFailed("Give at least one word to search for.")
        self._best: list[Match] = []
        self._matches = 0
        self._last = -1
        self._tail = b""

    def take(self, chunk: Chunk) -> None:
        """Search the next chunk."""
        if self._tail:
            start = chunk.start - len(self._tail)
            chunk = Chunk(self._tail + chunk.data, start, chunk.line)
        # Of a line that goes on: a word may stand at the cut.
        self._tail = b"" if chunk.data.endswith(b"\n") else chunk.data[-_OVERLAP_BYTES:]
        folded = chunk.data.decode("utf-8", "replace").casefold()
        words = [word for word in self._words if word in folded]
        if not words:
            return
        for line, start, passage in _passages(chunk):
            text = passage.decode("utf-8", "replace")
            match = self._match(text, words, start, line)
            # What overlaps is met twice.
            if match is not None and -match.before > self._last:
                self._last = -match.before
                self._matches += 1
                heapq.heappush(self._best, match)
                if len(self._best) > _SHOWN:
                    heapq.heappop(self._best)

    def _match(self, text: str, words: list[str], start: int, line: int) -> Match | None:
        folded = text.casefold()
        found = [at for word in words if (at := folded.find(word)) >= 0]
        if not found:
            return None
        whole = folded.find(self._phrase)
        # Folding may lengthen a text: the place is near enough.
        middle = whole if whole >= 0 else min(found)
        snippet = one_line(text[max(middle - _SNIPPET // 3, 0) :][:_SNIPPET], _SNIPPET)
        at = start + len(text[:middle].encode())
        return Match(whole >= 0, len(found), -at, line, snippet)

    def told(self, *, pages: bool = False) -> str:
        """For the model; `pages`: what was searched had pages for lines."""
        if not self._matches:
            return "No match. Words are searched for as they stand: try fewer, or others."
        shown = f"the best {_SHOWN} of " if self._matches > _SHOWN else ""
        found = "1 match" if self._matches == 1 else f"{shown}{self._matches} matches"
        place = "page" if pages else "line or byte"
        lines = [f"[{found}; read_artifact reads on from a {place}]"]
        for match in sorted(self._best, reverse=True):
            at = f"page {match.line}" if pages else f"line {match.line}, byte {-match.before}"
            lines.append(f"{at}: {match.snippet}")
        return "\n".join(lines)


def _passages(chunk: Chunk) -> Iterator[tuple[int, int, bytes]]:
    """Number, first byte and content of each line, or piece of a long line."""
    line, at, data = chunk.line, 0, chunk.data
    while at < len(data):
        end = data.find(b"\n", at) + 1 or len(data)
        while end - at > _PASSAGE_BYTES:
            piece = excerpt(data, at, at + _PASSAGE_BYTES)
            yield line, chunk.start + piece.start, data[piece.start : piece.end]
            at = piece.end - _OVERLAP_BYTES
        yield line, chunk.start + at, data[at:end]
        line, at = line + 1, end
