"""Where the rows of a table end, whatever pieces it comes in."""

from __future__ import annotations

import random
import time

import pytest

from activities.excerpts import CHUNK_BYTES, Chunk, Finder
from activities.rows import Place


def by_bytes(table: bytes) -> list[int]:
    """Where rows end, by the rules of a table one after the other."""
    found, is_open, at = list[int](), False, 0
    while at < len(table):
        byte, before, after = table[at : at + 1], table[at - 1 : at], table[at + 1 : at + 2]
        if byte == b'"' and is_open and after == b'"':
            at += 1
        elif byte == b'"':
            is_open = not is_open and (not at or before in (b",", b";", b"\t", b"|", b"\n"))
        elif byte == b"\n" and not is_open:
            found.append(at + 1)
        at += 1
    return found


def test_rows_end_wherever_a_table_is_cut() -> None:
    """Also between two quotes that are one character, and before a quote that opens a field."""
    chosen = random.Random(1)
    for _ in range(5_000):
        table = bytes(chosen.choices(b'"",\nx;', k=chosen.randint(1, 14)))
        place, found, at = Place(), list[int](), 0
        while at < len(table):
            piece = table[at : at + chosen.randint(1, 6)]
            ends = [at + end for end in place.ends(piece)]
            assert place.count(piece) == len(ends)
            place, found, at = place.after(piece), found + ends, at + len(piece)
        assert found == by_bytes(table), table


@pytest.mark.parametrize("pattern", [b"\n", b'"', b'"",'])
def test_a_large_table_is_gone_through_in_time(pattern: bytes) -> None:
    """The largest artifact, eight times this one, within what `read_artifact` has."""
    finder, piece = Finder(10**9, rows=True), pattern * (CHUNK_BYTES // len(pattern))
    began = time.process_time()
    for number in range(8):
        assert finder.into(Chunk(piece, number * len(piece), 1)) is None
    assert time.process_time() - began < 15
