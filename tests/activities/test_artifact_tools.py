"""`read_artifact` and `search_artifact`: parts and places of a text that is in no request."""

from __future__ import annotations

import asyncio
import csv
import dataclasses
import io
import random
import re
import tracemalloc
from collections import Counter
from typing import Any

import pytest

from activities import decoding, excerpts
from activities import search_artifact as search_module
from activities.media import pdf_turn
from activities.read_artifact import read_artifact
from activities.search_artifact import search_artifact
from tests.media_samples import pdf, plain
from turnkeeper.artifacts import Part
from turnkeeper.errors import ToolFailed
from turnkeeper.text import json_size
from turnkeeper.tools import ToolContext

LINES = [f"line {n} says {'é' * (n % 5)}" for n in range(1, 2_001)]
TEXT = "\n".join(LINES) + "\n"
ROWS = [["id", "name", "note"], *([str(n), f'"n{n}"', f"a\nb, {n}"] for n in range(1, 301))]


def context(data: bytes) -> ToolContext:
    """Of a run with this artifact."""

    async def part(_artifact: str, offset: int, length: int) -> Part:
        return Part(data[offset : offset + length], len(data))

    async def whole(_artifact: str) -> bytes:
        return data

    return ToolContext(_part=part, _artifact=whole)


async def read(data: bytes, **asked: Any) -> tuple[str, str]:
    """What is told of the part, and the part."""
    bound = read_artifact.bind({"artifact": "a", **asked}, context(data))
    told, _, text = str(await read_artifact(**bound)).partition("\n")
    return told, text


async def search(data: bytes, query: str, **asked: Any) -> list[str]:
    """The head and the matches."""
    bound = search_artifact.bind({"artifact": "a", "query": query, **asked}, context(data))
    return str(await search_artifact(**bound)).split("\n")


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts that come in many pieces, cut anywhere."""
    monkeypatch.setattr(excerpts, "CHUNK_BYTES", 97)


# --- by pages -------------------------------------------------------------------------------------


async def test_pages_of_a_pdf_are_read_as_text() -> None:
    """Five of them, or as many as are asked for."""
    book = pdf([f"number {n}" for n in range(1, 9)])
    told, text = await read(book, page=3)
    assert (told, text.split()[-1]) == ("[pages 3 to 7 of 8]", "7")
    assert (await read(book, page=8, count=2))[0] == "[pages 8 to 8 of 8]"
    assert (await read(book))[0] == "[pages 1 to 5 of 8]"
    with pytest.raises(ToolFailed, match="9"):
        await read(book, page=9)
    with pytest.raises(ToolFailed, match="no PDF"):
        await read(b"text", page=1)


async def test_words_are_found_in_the_pages_of_a_pdf(monkeypatch: pytest.MonkeyPatch) -> None:
    """By page, not in the file's own bytes; a bound on pages is told, with how to search on."""
    book = pdf([f"Catalog of year {n}" for n in range(2001, 2009)])
    assert await search(book, "YEAR 2003") == [
        "[8 matches; read_artifact reads on from a page]",
        "page 3: Catalog of year 2003",
        *(f"page {n}: Catalog of year {2000 + n}" for n in (1, 2, 4, 5, 6, 7, 8)),
        "Pages 1 to 8 of 8 were searched.",
    ]
    assert (await search(book, "2006"))[0].startswith("[1 match; ")
    assert (await search(pdf([""]), "FlateDecode"))[1].endswith("perhaps it is a scan.")
    monkeypatch.setattr(search_module, "_PAGES", 2)
    assert (await search(book, "2003"))[1:] == [
        "Pages 1 to 2 of 8 were searched. page=3 searches on."
    ]
    assert (await search(book, "2003", page=3))[1] == "page 3: Catalog of year 2003"
    with pytest.raises(ToolFailed, match="no PDF"):
        await search(b"text", "text", page=2)


@pytest.mark.parametrize(
    "ask", [read_artifact.bind, lambda a, c: search_artifact.bind({**a, "query": "a"}, c)]
)
async def test_few_pdfs_are_whole_in_memory_at_once(ask: Any) -> None:
    """Over all runs as many as are decoded, of one run one: others wait before they are loaded."""
    held, most = Counter[str](), Counter[str]()

    class Whole(bytes):
        run: str

        def __del__(self) -> None:
            held[self.run] -= 1

    async def reading(run: str) -> None:
        async def whole(_artifact: str) -> bytes:
            made = Whole(pdf(["a"]))
            made.run = run
            held[run] += 1
            most["all"] = max(most["all"], held.total())
            most["of a run"] = max(most["of a run"], held[run])
            return made

        made = dataclasses.replace(context(pdf(["a"])), workflow_id=run, _artifact=whole)
        bound = ask({"artifact": "a"}, made)
        await (search_artifact if "query" in bound else read_artifact)(**bound)

    await asyncio.gather(*map(reading, "aaabbc"))
    assert most == {"all": decoding.AT_ONCE, "of a run": 1}


async def test_a_turn_that_does_not_come_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search goes on to the pages that it could read, a reading asks to be made again."""
    monkeypatch.setattr(search_module, "_PAGES_SECONDS", 0.2)
    async with pdf_turn(""):
        with pytest.raises(ToolFailed, match="Other PDFs were being read for 0 s: ask again"):
            await search(pdf(["a"]), "a")


async def test_what_is_binary_is_not_shown() -> None:
    """Its bytes mean nothing to a model: it reads what else to do, as in the result's line."""
    for data in (plain(20, 20), bytes(range(256)) * 300):
        for asked in (read(data, offset=9), search(data, "abc")):
            with pytest.raises(ToolFailed, match=r"It is binary \(.+/.+\): give its id to a tool"):
                await asked
    assert (await read("漢字かな交じり".encode() * 9_000, length=9))[1] == "漢字か"


# --- by bytes -------------------------------------------------------------------------------------


async def test_bytes_are_read_as_before() -> None:
    """The arguments that recorded runs have: offset and length."""
    assert await read(b"0123456789") == ("[bytes 0 to 10 of 10]", "0123456789")
    assert await read(b"0123456789", offset=4, length=3) == ("[bytes 4 to 7 of 10]", "456")
    assert await read(b"0123456789", offset=10) == ("[bytes 10 to 10 of 10]", "")
    with pytest.raises(ToolFailed, match="There is no byte 40: the artifact has 10"):
        await read(b"0123456789", offset=40)
    assert await read(b"", offset=0) == ("[bytes 0 to 0 of 0]", "")


@pytest.mark.parametrize("length", range(1, 9))
async def test_no_character_is_cut(length: int) -> None:
    """Read on from where the last part ended, the parts are the text, whatever their length."""
    text = "aé€😀" * 20
    data, offset, found = text.encode(), 0, ""
    for _ in range(len(text)):
        told, part = await read(data, offset=offset, length=length)
        start, end = map(int, re.findall(r"\d+", told)[:2])
        assert start == offset
        found, offset = found + part, end
    assert found == text
    for offset in range(len(data)):
        assert "\ufffd" not in (await read(data, offset=offset, length=length))[1]


async def test_text_in_another_encoding_is_read_all_the_same() -> None:
    """Every byte is in some part: nothing hangs, nothing is left out."""
    data, offset = bytes(random.Random(3).choices(b"abcdef \n\x80\xbf\xe9", k=2_000)), 0
    while offset < len(data):
        told, _ = await read(data, offset=offset, length=7)
        start, end = map(int, re.findall(r"\d+", told)[:2])
        assert start <= offset < end
        offset = end


@pytest.mark.parametrize("asked", [{}, {"line": 1}, {"row": 1}])
async def test_as_much_is_read_as_the_result_has_room_for(asked: dict[str, int]) -> None:
    """In JSON, where a line end takes two bytes; what is left out is told by its place."""
    made = dataclasses.replace(context(b"a\n" * 30_000), result_bytes=5_000)
    bound = read_artifact.bind({"artifact": "a", "length": 20_000, "count": 10_000, **asked}, made)
    shown = str(await read_artifact(**bound))
    assert 3_500 < json_size(shown) <= 5_000
    told, _, text = shown.partition("\n")
    first, last = map(int, re.findall(r"bytes (\d+) to (\d+) of 60000", told)[0])
    assert last - first <= len(text) <= last - first + len("a\n")


# --- by lines -------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [1, 2, 700, 1_999, 2_000])
@pytest.mark.usefixtures("small_chunks")
async def test_lines_are_read_whole(first: int) -> None:
    """From the one that is asked for, as many as were asked for or fit."""
    told, text = await read(TEXT.encode(), line=first, count=3)
    wanted = LINES[first - 1 : first + 2]
    assert text == "\n".join(wanted) + "\n"
    assert told.startswith(f"[lines {first} to {first + len(wanted) - 1}, bytes ")
    told, text = await read(TEXT.encode(), line=first, length=60)
    assert len(text.encode()) <= 60
    assert TEXT.split("\n")[first - 1 :][: text.count("\n")] == text.split("\n")[:-1]


async def test_a_last_line_needs_no_end() -> None:
    """And there is none behind it."""
    assert await read(b"one\ntwo", line=2) == ("[lines 2 to 2, bytes 4 to 7 of 7]", "two")
    told, text = await read(b"one\ntwo", line=2, offset=1)
    assert (told, text[-3:]) == ("[read by line; offset was not used]", "two")
    with pytest.raises(ToolFailed, match="There is no line 3"):
        await read(b"one\ntwo", line=3)
    with pytest.raises(ToolFailed, match="There is no line 3"):
        await read(b"one\ntwo\n", line=3)


async def test_a_line_that_is_too_long_is_read_on_by_bytes() -> None:
    """Where the part ends is told."""
    told, text = await read(b"short\n" + b"x" * 90 + b"\nend", line=2, length=50)
    assert told == "[line 2 is cut: bytes 6 to 56 of 100; read on by offset]"
    assert text == "x" * 50


# --- by rows --------------------------------------------------------------------------------------


def table(rows: list[list[str]]) -> bytes:
    """As CSV, quoted where it must be."""
    written = io.StringIO()
    csv.writer(written).writerows(rows)
    return written.getvalue().encode()


@pytest.mark.parametrize("first", [1, 2, 150, 300])
@pytest.mark.usefixtures("small_chunks")
async def test_rows_come_with_their_header(first: int) -> None:
    """What is inside of quotes, line ends too, belongs to its row."""
    told, text = await read(table(ROWS), row=first, count=2)
    assert list(csv.reader(io.StringIO(text))) == [ROWS[0], *ROWS[first : first + 2]]
    assert told.startswith(f"[rows {first} to {min(first + 1, 300)}, bytes ")


async def test_a_quote_inside_of_a_field_opens_nothing() -> None:
    """As in the length of a pipe."""
    data = b'id,size\n1,5" pipe\n2,6\n'
    assert (await read(data, row=2))[1] == "id,size\n2,6\n"
    with pytest.raises(ToolFailed, match="There is no row 3: the table has 2 whole rows"):
        await read(data, row=3)


# --- search ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_chunks")
async def test_words_are_found_with_their_place() -> None:
    """By line and byte, whatever the case; lines with more of the words come first."""
    text = "alpha\nnothing\nThe Éclair of Beta\nbeta\n" + "filler\n" * 50 + "ALPHA beta\n"
    data = text.encode()
    head, *found = await search(data, "alpha BETA")
    assert head.startswith("[4 matches")
    assert [f.split(":")[0].split(",")[0] for f in found] == [
        "line 55",
        "line 1",
        "line 3",
        "line 4",
    ]
    (eclair,) = (await search(data, "éclair"))[1:]
    place = int(re.findall(r"byte (\d+)", eclair)[0])
    assert data[place:].decode().startswith("Éclair")


async def test_a_query_is_no_pattern() -> None:
    """What means something elsewhere is a character here."""
    assert (await search(b"abc\na.c\n", "a.c"))[1].startswith("line 2,")
    assert (await search(b"abc\n", "(a+)+$ .*"))[0].startswith("No match.")
    with pytest.raises(ToolFailed, match="at least one word"):
        await search(b"abc\n", " \n ")


@pytest.mark.parametrize("before", [960, 990, 1_000, 1_950, 999_990, 1_000_000])
async def test_a_word_is_found_in_one_long_line(before: int) -> None:
    """Also where a line is cut into passages, and an artifact into chunks; once."""
    data = b"x " * (before // 2) + b"needle-4711" + b" y" * 700_000
    found = await search(data, "needle-4711")
    assert len(found) == 2
    assert found[1].startswith(f"line 1, byte {before}: ")


async def test_the_best_of_many_matches_are_shown() -> None:
    """The answer is bounded, and says how many there are."""
    data = b"\n".join(b"word %d %s" % (n, b"z" * 900) for n in range(5_000)) + b"\nword two\n"
    found = await search(data, "word two")
    assert found[0].startswith("[the best 20 of 5001 matches")
    assert found[1].startswith("line 5001,")
    assert len("\n".join(found)) < 8_000


async def test_a_large_artifact_is_never_whole_in_memory() -> None:
    """Read and searched in chunks."""
    data = b"some words in a line of text\n" * 1_000_000
    tracemalloc.start()
    try:
        await search(data, "absent")
        await read(data, line=999_999)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 12_000_000
