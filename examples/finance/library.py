"""Full-text search over a folder of markdown documents.

A document is cut into passages: the paragraphs under one heading of one page, at most
`PASSAGE_CHARACTERS` of them. Passages go into an in-memory SQLite FTS5 index and are ranked by BM25
over three columns: the document's title, the heading, the text. Nothing is tuned to a question.

The index follows the folder: it is rebuilt when a file appears, vanishes or changes.
"""

from __future__ import annotations

import re
import sqlite3
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Final

__all__ = ["Hit", "Library", "LibraryError", "open_library"]

PASSAGE_CHARACTERS: Final = 900

_MAX_FILES: Final = 1000
_MAX_FILE_CHARACTERS: Final = 2_000_000
_MAX_TERMS: Final = 32

# A heading or title that has the word is likelier to be about it than a text that mentions it.
_WEIGHTS: Final = (2.0, 2.0, 1.0)

# Words that every question has and no passage is about. Without them a question in a whole
# sentence would be ranked by its grammar.
_STOP_WORDS: Final = frozenset(
    re.findall(
        "[a-z]+",
        "a an and are as at be by did do does for from had has have how in is it its many much of "
        "on or our s that the their there these this to was we were what when where which who why "
        "will with",
    )
)


class LibraryError(Exception):
    """The search cannot be made. The message, meant for a model, says why in a sentence."""


@dataclass(frozen=True)
class Hit:
    """A passage that was found, best first.

    `page` is the number of the document's `## Page n` heading above the passage, 0 where it has
    none; `heading` the nearest other heading, "" where there is none.
    """

    document: str
    title: str
    page: int
    heading: str
    text: str


@lru_cache(maxsize=8)
def open_library(folder: Path) -> Library:
    """The library of `folder`, the same one for every caller in this process."""
    return Library(folder)


class Library:
    """The `*.md` files of one folder, searchable from any thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._index: sqlite3.Connection | None = None
        self._indexed: _Signature = ()

    def search(self, query: str, limit: int = 3) -> list[Hit]:
        """At most `limit` passages that have a word of `query`, best first; none if there are none.

        Raises `LibraryError` when `query` has no word to search for, or the folder no document,
        and `OSError` when a document cannot be read, perhaps because it vanished just now.
        """
        match = _match_expression(query)
        with self._lock:
            # The lock spans the query: SQLite's connection is not for two threads at once, and
            # a rebuild must not pull the index from under a search.
            rows = self._fresh_index().execute(
                "SELECT document, title, page, heading, text FROM passage WHERE passage MATCH ?"
                " ORDER BY bm25(passage, ?, ?, ?), rowid LIMIT ?",
                (match, *_WEIGHTS, max(0, limit)),
            )
            return [Hit(*row) for row in rows]

    def _fresh_index(self) -> sqlite3.Connection:
        # Taken before the files are read: a file that changes meanwhile is read again next time.
        signature = _signature(self._folder)
        if self._index is None or signature != self._indexed:
            if not signature:
                raise LibraryError("There are no documents to search.")
            index = _build([self._folder / name for name, _, _ in signature])
            if self._index is not None:
                self._index.close()
            self._index, self._indexed = index, signature
        return self._index


_Signature = tuple[tuple[str, int, int], ...]


def _signature(folder: Path) -> _Signature:
    """Name, time of change in ns and size of every document: what tells one state from another."""
    paths = sorted(folder.glob("*.md"))[:_MAX_FILES]
    stats = [(path.name, path.stat()) for path in paths]
    return tuple((name, stat.st_mtime_ns, stat.st_size) for name, stat in stats)


def _match_expression(query: str) -> str:
    """The query as FTS5 reads it: words alone, each quoted, so nothing in it is an operator.

    Two neighbours of the query that stand close together in a passage, in either order, count on
    top of the two words: "revenue" and "2025" in one line are more than both on one page.
    """
    words = dict.fromkeys(re.findall(r"[^\W_]+", query.lower()))
    terms = [word for word in words if word not in _STOP_WORDS] or list(words)
    if not terms:
        raise LibraryError("The query has no word to search for.")
    quoted = [f'"{term}"' for term in terms[:_MAX_TERMS]]
    close = [f"NEAR({one} {other}, 2)" for one, other in pairwise(quoted)]
    return " OR ".join(quoted + close)


def _build(paths: list[Path]) -> sqlite3.Connection:
    index = sqlite3.connect(":memory:", check_same_thread=False)
    # Porter stems the words, so that "employee" finds "employees".
    index.execute(
        "CREATE VIRTUAL TABLE passage USING fts5("
        "title, heading, text, document UNINDEXED, page UNINDEXED, tokenize='porter unicode61')"
    )
    for path in paths:
        with path.open(encoding="utf-8", errors="replace") as file:
            markdown = file.read(_MAX_FILE_CHARACTERS)
        index.executemany(
            "INSERT INTO passage (document, title, page, heading, text) VALUES (?, ?, ?, ?, ?)",
            [
                (hit.document, hit.title, hit.page, hit.heading, hit.text)
                for hit in _passages(path.stem, markdown)
            ],
        )
    return index


_HEADING: Final = re.compile(r"(#{1,6})\s+(.+)")
_PAGE: Final = re.compile(r"page\s+([0-9]{1,6})", re.IGNORECASE)


def _passages(document: str, markdown: str) -> Iterator[Hit]:
    title, page, heading = document, 0, ""
    blocks: list[str] = []
    for block in _blocks(markdown):
        mark = _HEADING.fullmatch(block)
        if mark is None:
            blocks.append(block)
            continue
        for text in _packed(blocks):
            yield Hit(document, title, page, heading, text)
        blocks = []
        level, words = len(mark[1]), mark[2]
        if level == 1:
            title, heading = words, ""
        elif number := _PAGE.fullmatch(words):
            page = int(number[1])
        else:
            heading = words
    for text in _packed(blocks):
        yield Hit(document, title, page, heading, text)


def _blocks(markdown: str) -> Iterator[str]:
    """The headings, each alone, and what stands between empty lines; all of bounded length."""
    block = ""
    for line in _lines(markdown):
        heading = _HEADING.fullmatch(line) is not None
        if block and (heading or not line or len(block) + len(line) >= PASSAGE_CHARACTERS):
            yield block
            block = ""
        if heading:
            yield line
        else:
            block = f"{block}\n{line}" if block else line
    if block:
        yield block


def _lines(markdown: str) -> Iterator[str]:
    for whole in markdown.splitlines():
        line = whole.rstrip()
        yield line[:PASSAGE_CHARACTERS]
        for start in range(PASSAGE_CHARACTERS, len(line), PASSAGE_CHARACTERS):
            yield line[start : start + PASSAGE_CHARACTERS]


def _packed(blocks: list[str]) -> Iterator[str]:
    """Neighbouring blocks joined while they fit into one passage."""
    text = ""
    for block in blocks:
        if text and len(text) + len(block) + 2 > PASSAGE_CHARACTERS:
            yield text
            text = ""
        text = f"{text}\n\n{block}" if text else block
    if text:
        yield text
