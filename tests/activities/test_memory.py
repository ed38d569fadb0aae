"""What was said in a run, as the model finds it again."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from activities import memory
from activities.memory import Memories, Memory
from activities.notes import note, read_notes
from activities.recall import recall
from tests.rig import until
from turnkeeper.entries import Entry, Position, admit, message, result
from turnkeeper.errors import StateLost, ToolFailed
from turnkeeper.history import Place, Transcript
from turnkeeper.tools import ToolContext


def reply(*blocks: Any) -> Entry:
    """The model's: texts, and calls as (id, tool, arguments)."""
    content = [
        {"type": "text", "text": b}
        if isinstance(b, str)
        else {"type": "tool_use", "id": b[0], "name": b[1], "input": b[2]}
        for b in blocks
    ]
    return admit("reply", {"role": "assistant", "content": content}, dialect="anthropic-messages")


SAID = [
    message("The vault's code is heliotrope-4711."),
    reply("I look it up.", ("c1", "search", {"q": "refunds of Zürich"})),
    result("c1", "search", "Three customers were refunded in Bern. 東京都の天気は晴れ。"),
    reply(("c2", "recall", {"query": "heliotrope"})),
    result("c2", "recall", "entry 1, message: The vault's code is heliotrope-4711."),
    reply("It is done."),
]


def remembered(entries: Sequence[Entry] = SAID) -> Memory:
    """A memory of these entries."""
    made = Memory()
    assert made.grow(Transcript(list(entries)))
    return made


def numbers(query: str, entries: Sequence[Entry] = SAID) -> list[int]:
    """Of the entries that match, the best first."""
    return [f.number for f in remembered(entries).search(query, 8)]


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("heliotrope", 1),
        ("HELIOTROPE-4711", 1),
        ("vault code", 1),
        ("zurich", 2),
        ("customer refund", 3),
        ("東京", 3),
        ("天気", 3),
        ("done", 6),
    ],
)
def test_words_are_found(query: str, first: int) -> None:
    """Messages, replies, arguments and results; any case, accents or English form, any writing."""
    assert numbers(query)[0] == first


def test_what_recall_said_is_not_found_again() -> None:
    """Neither its calls nor its results: they would hide where a thing was said."""
    assert numbers("heliotrope") == [1]


def test_entries_are_told_with_who_said_them() -> None:
    """And where in them the words stand."""
    long = result("c1", "search", "words " * 5_000 + "the needle is here" + " words" * 5_000)
    (found,) = remembered([long]).search("needle", 8)
    assert (found.number, found.who) == (1, "result of search")
    assert "the needle is here" in found.snippet
    assert len(found.snippet) <= 400
    (found,) = remembered().search("天気", 8)
    assert "東京都の天気は晴れ" in found.snippet


@pytest.mark.parametrize("before", ["\0", "words \0 and ", "天\0"])
def test_a_nul_ends_no_text(before: str) -> None:
    """What is said after it is found, and shown where it stands."""
    (found,) = remembered([message(f"{before}the needle is here")]).search("needle", 8)
    assert found.snippet.endswith("the needle is here")


@pytest.mark.parametrize(
    "query",
    [
        '"',
        "'",
        "a OR",
        "NEAR(a b",
        "text:",
        "*",
        "-",
        "(",
        "^a",
        "a AND NOT",
        "_",
        "\x00",
        '"a" "',
        "",
    ],
)
def test_nothing_in_a_query_is_syntax(query: str) -> None:
    """Whatever a model writes is words, or nothing is found."""
    remembered().search(query, 8)
    assert numbers(query + " heliotrope") == [1]


def test_a_query_has_a_bound() -> None:
    """The first words count."""
    assert numbers(" ".join(f"w{i}" for i in range(100)) + " heliotrope") == []


# --- through the tools ----------------------------------------------------------------------------


def context(entries: Sequence[Entry]) -> ToolContext:
    """Of a run in which this was said."""

    async def said() -> Memory:
        return remembered(entries)

    return ToolContext(_memory=said)


async def recalled(entries: Sequence[Entry] = SAID, **asked: Any) -> str:
    """The tool's answer."""
    return str(await recall(**recall.bind(asked, context(entries))))


async def test_an_entry_is_read_whole() -> None:
    """By its number, in parts where it is long; parts read one after another are the text."""
    text = "ä€" * 5_000
    entries = [message("a"), result("c1", "search", text)]
    found, offset = "", 0
    while offset < len(text.encode()):
        told, _, part = (await recalled(entries, entry=2, offset=offset)).partition("\n")
        assert told.startswith(f"[entry 2, result of search, bytes {offset} to ")
        found, offset = found + part, offset + len(part.encode())
    assert found == text
    assert (await recalled(entries, entry=2, offset=10**9)).endswith("of 25000]\n")
    with pytest.raises(ToolFailed, match="There is no entry 3: they are numbered 1 to 2"):
        await recalled(entries, entry=3)


async def test_an_answer_is_bounded() -> None:
    """Many long matches are eight snippets."""
    entries = [result(f"c{n}", "search", "word " * 4_000) for n in range(50)]
    answer = await recalled(entries, query="word")
    assert answer.count("\n") == 8
    assert len(answer) < 4_000
    assert (
        await recalled(entries, query="absent")
        == "Nothing found among 50 entries. Try other words."
    )


async def test_what_was_lost_is_told_by_name() -> None:
    """The model reads that it cannot be read; nothing is answered in its place."""

    async def lost() -> Memory:
        raise StateLost("artifact 0123456789ab is not what was stored (3 bytes)")

    with pytest.raises(ToolFailed, match="artifact 0123456789ab is not what was stored"):
        await recall(ctx=ToolContext(_memory=lost), query="a")


def noted(number: int, title: str, text: str, *, error: bool = False) -> list[Entry]:
    """A note's call and result."""
    call = reply((f"n{number}", "note", {"title": title, "text": text}))
    return [call, result(f"n{number}", "note", "Noted", error=error)]


async def notes(entries: Sequence[Entry], **asked: Any) -> str:
    """The tool's answer."""
    return str(await read_notes(**read_notes.bind(asked, context(entries))))


async def test_notes_are_those_that_were_taken() -> None:
    """One of the same title replaces, an empty one removes, a refused or unanswered one is none."""
    entries = [
        *noted(1, "plan", "first"),
        *noted(2, "who", "Ann"),
        *noted(3, "plan", "second"),
        *noted(4, "gone", "x"),
        *noted(5, "gone", ""),
        *noted(6, "who", "Bob", error=True),
        reply(("n7", "note", {"title": "open", "text": "y"})),
    ]
    assert await notes(entries) == "# plan\nsecond\n\n# who\nAnn"
    assert await notes(entries, title="who") == "Ann"
    assert await notes(entries, title="gone") == "There is no note 'gone'. Titles: who, plan"
    assert await notes([]) == "There are no notes."


async def test_the_last_notes_are_shown_where_not_all_fit() -> None:
    """The others by title; each can be read."""
    entries = [e for n in range(20) for e in noted(n, f"t{n}", f"{n} " + "x" * 3_000)]
    shown = await notes(entries)
    assert len(shown) < 20_000
    assert "# t19\n" in shown
    assert "# t3\n" not in shown
    assert "Read by title: t0, t1," in shown
    assert (await notes(entries, title="t0")).startswith("0 x")


@pytest.mark.parametrize(
    "arguments", [{"title": "", "text": "a"}, {"title": "a", "text": "x" * 4_001}]
)
def test_a_note_has_a_bound(arguments: dict[str, str]) -> None:
    """What is beyond it is refused by name."""
    with pytest.raises(ValueError, match="Invalid arguments for note"):
        note.bind(arguments, ToolContext())


# --- kept from turn to turn -----------------------------------------------------------------------


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Entry]]:
    """What was said by now, by run; each reading of it is noted under `""`."""
    said: dict[str, list[Entry]] = {"": []}

    async def read(_client: Any, _store: Any, workflow_id: str, _run: str, known: Place) -> Any:
        said[""].append(message(workflow_id))
        return following(said[workflow_id], known)

    monkeypatch.setattr(memory, "read_transcript", read)
    return said


def following(said: Sequence[Entry], known: Place) -> Transcript:
    """What the reader answers: the rest, if the known place is one of it, else all of it."""
    count, end = known.said.entries, Position().after(said)
    if Position().after(said[:count]) != known.said:
        return Transcript(list(said), view=end)
    return Transcript(list(said[count:]), since=known.said, view=end)


def memories() -> Memories:
    """Without a server."""
    nothing: Any = None
    return Memories(nothing, nothing)


async def test_only_what_is_new_is_indexed(
    told: dict[str, list[Entry]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transcript is read once a turn; what a memory has of it is not taken in again."""
    grown: list[int] = []
    take = Memory._take

    def taking(self: Memory, entries: Sequence[Entry]) -> None:
        grown.append(len(entries))
        take(self, entries)

    monkeypatch.setattr(Memory, "_take", taking)
    made = memories()
    told["a"] = SAID[:3]
    first = await made.of("a", "r1", 1)
    assert await made.of("a", "r1", 1) is first
    told["a"] = SAID
    assert await made.of("a", "r1", 2) is first
    assert [f.number for f in first.search("done", 8)] == [6]
    assert (grown, len(told[""])) == ([3, 3], 2)


async def test_a_transcript_that_became_another_is_taken_in_anew(
    told: dict[str, list[Entry]],
) -> None:
    """After a reset the same workflow id may have said other things."""
    made = memories()
    told["a"] = SAID
    assert (await made.of("a", "r1", 3)).search("done", 8)
    told["a"] = [*SAID[:1], reply("Something else.")]
    again = await made.of("a", "r2", 1)
    assert len(again) == 2
    assert again.search("done", 8) == []
    assert [f.number for f in again.search("something", 8)] == [2]


async def test_memories_have_a_bound(
    told: dict[str, list[Entry]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that was not asked for longest goes first; one alone is kept whatever its size."""
    monkeypatch.setattr(memory, "_CACHE_BYTES", 5_000)
    made = memories()
    for name in ("a", "b", "a", "c", "a", "b"):
        told[name] = [message(name * 2_000)]
        await made.of(name, "r", 1)
    assert [e.value["text"] for e in told[""]] == ["a", "b", "c", "b"]
    told["d"] = [message("d" * 9_000)]
    kept = await made.of("d", "r", 1)
    assert await made.of("d", "r", 1) is kept


def slowly(monkeypatch: pytest.MonkeyPatch, entered: threading.Event, go: threading.Event) -> None:
    """The first thread that takes something over waits in the midst of it."""
    said_of, waits = memory._said, [True]

    def said(entry: Entry) -> memory.Said:
        if waits:
            waits.clear()
            entered.set()
            assert go.wait(30)
        return said_of(entry)

    monkeypatch.setattr(memory, "_said", said)


async def cancelled(call: asyncio.Future[Memory]) -> None:
    """Cancel a call and await that."""
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_a_cancelled_call_takes_nothing_over_twice(
    told: dict[str, list[Entry]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread goes on; the call that comes after it finds each entry once, under its number."""
    made = memories()
    told["a"] = SAID[:1]
    await made.of("a", "r", 1)
    entered, go = threading.Event(), threading.Event()
    slowly(monkeypatch, entered, go)
    told["a"] = SAID
    first = asyncio.ensure_future(made.of("a", "r", 2))
    assert await asyncio.to_thread(entered.wait, 20)
    await cancelled(first)
    second = asyncio.ensure_future(made.of("a", "r", 2))
    await until(lambda: len(told[""]) == 3)
    go.set()
    found = await second
    assert (len(found), found.place.said) == (len(SAID), Position().after(SAID))
    assert [f.number for f in found.search("done", 8)] == [6]


async def test_a_growth_that_fails_leaves_no_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it had taken over of an entry is not there twice once it is tried again."""
    made = remembered(SAID[:1])
    spaced, fails = memory._spaced, [True]

    def failing(text: str) -> str:
        if fails and "done" in text:
            fails.clear()
            raise MemoryError
        return spaced(text)

    monkeypatch.setattr(memory, "_spaced", failing)
    with pytest.raises(MemoryError):
        made.grow(Transcript(SAID))
    assert made.grow(Transcript(SAID))
    assert [f.number for f in made.search("done", 8)] == [6]
    assert len(made) == len(SAID)


async def test_a_late_thread_adds_nothing_of_before() -> None:
    """Where another call has gone further meanwhile, what an earlier one had read is no news."""
    made = remembered(SAID[:1])
    early, late = following(SAID[:3], made.place), following(SAID, made.place)
    assert made.grow(late)
    assert not made.grow(early)
    assert (len(made), made.place.said) == (len(SAID), Position().after(SAID))


async def test_a_store_that_hangs_for_one_run_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor do many calls of that run; the transcripts that are read at once have a bound."""
    gone, reading = asyncio.Event(), list[str]()

    async def read(_client: Any, _store: Any, workflow_id: str, _run: str, _known: Place) -> Any:
        reading.append(workflow_id)
        if workflow_id.startswith("hangs"):
            await gone.wait()
        return Transcript(SAID)

    monkeypatch.setattr(memory, "read_transcript", read)
    made = memories()
    stuck = [asyncio.ensure_future(made.of("hangs", "r", turn)) for turn in range(20)]
    await until(lambda: reading)
    async with asyncio.timeout(60):
        assert len(await made.of("well", "r", 1)) == len(SAID)
    more = [asyncio.ensure_future(made.of(f"hangs-{n}", "r", 1)) for n in range(20)]
    await until(lambda: len(reading) > memory._READS)
    await asyncio.sleep(0.05)
    assert len(reading) == memory._READS + 1
    gone.set()
    await asyncio.gather(*stuck, *more)
    assert not made._locks


def test_sqlite_has_full_text_search() -> None:
    """Every build of Python that we support comes with it."""
    sqlite3.connect(":memory:").execute("CREATE VIRTUAL TABLE t USING fts5(x)")
