"""The built-in tool with which a model finds words in what was too large for a result."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterator
from typing import Annotated, NamedTuple

from pydantic import Field

from activities.excerpts import Chunk, chunks, excerpt
from turnkeeper.errors import ToolFailed
from turnkeeper.text import one_line
from turnkeeper.tools import ToolContext, tool

_MAX_WORDS = 16
_SHOWN = 20
_PASSAGE_BYTES = 1_000
"""Longer lines are searched in passages, which overlap by as much as a word may be long."""
_OVERLAP_BYTES = 200
_SNIPPET = 240


class Match(NamedTuple):
    """A passage, better than another one if it is greater."""

    phrase: bool
    """Whether it has the query as it stands."""
    words: int
    """How many different words of the query it has."""
    before: int
    """The byte where it is met, negative: of equals the first one is better."""
    line: int
    snippet: str


@tool(effect="read", timeout=60, retries=5)
async def search_artifact(
    artifact: Annotated[str, Field(description="The artifact's id, from a result.")],
    query: Annotated[str, Field(min_length=1, max_length=400, description="Words, literally.")],
    ctx: ToolContext,
) -> str:
    """Find words in an artifact; answers the lines and bytes where they stand, the best matches."""
    search = Search(query)
    async for chunk in chunks(ctx, artifact):
        await asyncio.to_thread(search.take, chunk)
    return search.told()


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

    def told(self) -> str:
        """For the model."""
        if not self._matches:
            return "No match. Words are searched for as they stand: try fewer, or others."
        shown = f"the best {_SHOWN} of " if self._matches > _SHOWN else ""
        head = f"[{shown}{self._matches} matches; read_artifact reads on from a line or byte]"
        best = sorted(self._best, reverse=True)
        return "\n".join([head, *(f"line {m.line}, byte {-m.before}: {m.snippet}" for m in best)])


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
