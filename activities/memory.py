"""What was said in a run, for the model itself: found again by words, and its notes.

The transcript is the source; of it this keeps an index, SQLite's full-text search in memory, that
grows as the transcript does. It is as large as the texts, and bounded over all runs of a worker.
"""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from temporalio.client import Client

from turnkeeper import replies
from turnkeeper.artifacts import ArtifactStore
from turnkeeper.entries import Entry, Position
from turnkeeper.history import Place, Transcript, read_transcript
from turnkeeper.text import one_line

_CACHE_BYTES = 64_000_000
"""Texts of all runs whose index is kept; the run that was asked last is kept whatever its size."""
_READS = 8
"""Transcripts read at once; what is new in one is at most what its run has said between two calls,
but a worker that was started anew needs the whole, which may be some ten megabytes."""
_MAX_WORDS = 32
_SNIPPET_WORDS = 40
_SNIPPET = 400
_SILENT = frozenset({"recall", "read_notes"})
"""Tools whose calls and results repeat what was said: found, they would hide where it was said."""
# A writing without spaces is one word to SQLite: a mark between its characters makes each a word.
_MARK = "\u200b"
_UNSPACED = re.compile(
    "([\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff])"
)
_WORD = re.compile(rf"[\w{_MARK}]+")
_TABLE = "CREATE VIRTUAL TABLE said USING fts5(text, tokenize='porter unicode61'{})"


class Said(NamedTuple):
    """One entry of the transcript as text."""

    who: str
    text: str


class Found(NamedTuple):
    """An entry that matches."""

    number: int
    who: str
    snippet: str


class Memory:
    """What was said in one run up to the reply whose calls are at work."""

    def __init__(self) -> None:
        self.place = Place()
        """Up to where it has what was said."""
        self.bytes = 0
        """Of the texts."""
        self.notes: dict[str, str] = {}
        """By title, the last one written at the end."""
        self._said: list[Said] = []
        self._noted: dict[str, tuple[str, str]] = {}
        # Attempts of one call may be in several threads; without the texts, which are here already.
        self._lock = threading.Lock()
        self._index = sqlite3.connect(":memory:", check_same_thread=False)
        self._index.execute(_TABLE.format(", content=''"))

    def grow(self, told: Transcript) -> bool:
        """Take over what it lacks of `told`; False if that does not continue what it has.

        A call that was cancelled leaves its thread at work: whatever that has taken over meanwhile
        is not taken over again.
        """
        with self._lock:
            had = len(self._said) - told.since.entries
            if had < 0 or told.since.after(told.entries[:had]) != self.place.said:
                return False
            self._take(told.entries[had:])
            said = self.place.said.after(told.entries[had:])
            self.place = Place(said=said, view=told.view)
            return True

    def _take(self, entries: Sequence[Entry]) -> None:
        said = [_said(entry) for entry in entries]
        rows: list[tuple[int, str]] = []
        first = len(self._said) + 1
        for number, (entry, (_, text)) in enumerate(zip(entries, said, strict=True), first):
            self._note(entry)
            if text and not (entry.kind == "result" and _tool(entry) in _SILENT):
                rows.append((number, _spaced(text)))
        with self._index:
            self._index.executemany("INSERT INTO said(rowid, text) VALUES (?, ?)", rows)
        self._said += said
        self.bytes += sum(len(text) for _, text in said)

    def entry(self, number: int) -> Said | None:
        """The entry of this number, from 1 as `starter.py show` counts them."""
        return self._said[number - 1] if 0 < number <= len(self._said) else None

    def __len__(self) -> int:
        return len(self._said)

    def search(self, query: str, most: int) -> list[Found]:
        """The entries that match best, by BM25: any of the words, in any of their English forms."""
        wanted = _expression(query)
        if not wanted:
            return []
        with self._lock:
            rows = self._index.execute(
                "SELECT rowid FROM said WHERE said MATCH ? ORDER BY rank LIMIT ?", (wanted, most)
            ).fetchall()
        numbers = [int(number) for (number,) in rows]
        snippets = _snippets([self._said[n - 1].text for n in numbers], wanted)
        return [
            Found(n, self._said[n - 1].who, snippet)
            for n, snippet in zip(numbers, snippets, strict=True)
        ]

    def _note(self, entry: Entry) -> None:
        """A note counts once its result says that it was taken."""
        if entry.kind == "reply":
            calls = replies.calls(entry.value)
            self._noted = {
                c.call_id: _written(c.arguments or {}) for c in calls if c.tool == "note"
            }
        elif entry.kind == "result" and not entry.value.get("error"):
            title, text = self._noted.pop(str(entry.value.get("call_id")), ("", ""))
            self.notes.pop(title, None)
            if text:
                self.notes[title] = text


class Memories:
    """The memories of the runs that asked last."""

    def __init__(self, client: Client, store: ArtifactStore) -> None:
        self._client = client
        self._store = store
        self._known: OrderedDict[str, tuple[tuple[str, int], Memory]] = OrderedDict()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By run, while a call of it is here: a store that hangs for one holds up no other."""
        self._reads = asyncio.Semaphore(_READS)

    async def of(self, workflow_id: str, run_id: str, turn: int) -> Memory:
        """What was said in a run up to the reply of a turn.

        Raises:
            StateLost: a part is missing or was changed.
            OSError: the store cannot be read now.
            RPCError: Temporal cannot be reached.
        """
        async with self._locks.setdefault(workflow_id, asyncio.Lock()):
            when, memory = self._known.get(workflow_id, (("", 0), Memory()))
            if when != (run_id, turn):
                async with self._reads:
                    memory = await self._grown(memory, workflow_id, run_id)
            self._keep(workflow_id, (run_id, turn), memory)
            return memory

    async def _grown(self, memory: Memory, workflow_id: str, run_id: str) -> Memory:
        """A memory of all that was said: the given one if the run goes on from what it has, as it
        does but after a reset or a change in what a release keeps."""
        told = await self._read(workflow_id, run_id, memory.place)
        if await asyncio.to_thread(memory.grow, told):
            return memory
        if told.since != Position():
            told = await self._read(workflow_id, run_id, Place())
        memory = Memory()
        await asyncio.to_thread(memory.grow, told)
        return memory

    async def _read(self, workflow_id: str, run_id: str, known: Place) -> Transcript:
        return await read_transcript(self._client, self._store, workflow_id, run_id, known)

    def _keep(self, workflow_id: str, when: tuple[str, int], memory: Memory) -> None:
        self._known[workflow_id] = when, memory
        self._known.move_to_end(workflow_id)
        total = sum(kept.bytes for _, kept in self._known.values())
        while len(self._known) > 1 and total > _CACHE_BYTES:
            _, (_, oldest) = self._known.popitem(last=False)
            total -= oldest.bytes


# --- entries as text ------------------------------------------------------------------------------


def _said(entry: Entry) -> Said:
    value = entry.value if isinstance(entry.value, dict) else {}
    if entry.kind == "message":
        return Said("message", str(value.get("text") or ""))
    if entry.kind == "result":
        return Said(f"result of {_tool(entry)}", str(value.get("text") or ""))
    calls = [
        f"{call.tool} {json.dumps(call.arguments or {}, ensure_ascii=False)}"
        for call in replies.calls(value)
        if call.tool not in _SILENT
    ]
    return Said("you", "\n".join(t for t in (replies.text(value), *calls) if t))


def _tool(entry: Entry) -> str:
    return one_line(str(entry.value.get("tool")), 64)


def _written(arguments: dict[str, Any]) -> tuple[str, str]:
    return str(arguments.get("title", "")), str(arguments.get("text", ""))


# --- words ----------------------------------------------------------------------------------------


def _spaced(text: str) -> str:
    # Where a NUL stands a text may end for SQLite.
    text = text.replace("\0", " ")
    return text if text.isascii() else _UNSPACED.sub(rf"\1{_MARK}", text)


def _expression(query: str) -> str:
    """What SQLite is asked: the words alone, each quoted; nothing in a query is its syntax."""
    words = dict.fromkeys(_WORD.findall(_spaced(query)))
    return " OR ".join(f'"{word}"' for word in list(words)[:_MAX_WORDS])


def _snippets(texts: Sequence[str], wanted: str) -> list[str]:
    """Where in each text the words stand, by the rules that found it."""
    shown = sqlite3.connect(":memory:")
    try:
        shown.execute(_TABLE.format(""))
        rows = [(i, _spaced(text)) for i, text in enumerate(texts)]
        shown.executemany("INSERT INTO said(rowid, text) VALUES (?, ?)", rows)
        found = shown.execute(
            "SELECT snippet(said, 0, '', '', '…', ?) FROM said WHERE said MATCH ? ORDER BY rowid",
            (_SNIPPET_WORDS, wanted),
        ).fetchall()
    finally:
        shown.close()
    return [one_line(text.replace(_MARK, ""), _SNIPPET) for (text,) in found]
