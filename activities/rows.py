"""Where the rows of a CSV table end: not at the line ends inside of a quoted field.

A table has megabytes and comes in pieces, so each piece is gone through by a few calls of `re`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

# Elsewhere than at a field's start a quote is a character like any other. No part of these patterns
# is ever gone back over, so no possessive groups: before 3.11.5 Python mistakes some of them.
_REST: Final = rb'[^"]*(?:""[^"]*)*("?)'
_LEFT: Final = re.compile(_REST)
_FIELD: Final = re.compile(rb'(?<![^,;\t|\n])"' + _REST)
"""A quoted field, and in a group the quote that ends it: empty if the field goes on."""


@dataclass(frozen=True)
class Place:
    """Between two pieces of a table; the first one is before all of it."""

    open: bool = False
    """In a quoted field."""
    closing: bool = False
    """After a quote that ends a field, unless one more makes it a character of it."""
    before: bytes = b","
    """What stands before, if no field is open: a separator, which a line end is too, or not."""

    def count(self, piece: bytes) -> int:
        """How many rows end in the piece that comes here."""
        outside, _ = self._outside(piece)
        ends = outside.count(b"\n")
        return ends - sum(field[0].count(b"\n") for field in _fields(outside)) if ends else 0

    def ends(self, piece: bytes) -> Iterator[int]:
        """Where in the piece that comes here rows end, after their line end."""
        outside, shift = self._outside(piece)
        at = 0
        for field in _fields(outside):
            yield from _line_ends(outside, at, field.start(), shift)
            at = field.end()
        yield from _line_ends(outside, at, len(outside), shift)

    def after(self, piece: bytes) -> Place:
        """The place after the piece that comes here."""
        if not piece:
            return self
        outside, _ = self._outside(piece)
        if not outside or _closed(outside) < len(outside):
            return Place(open=True)
        return Place(closing=_has_closed(outside), before=_before(outside))

    def _outside(self, piece: bytes) -> tuple[bytes, int]:
        """What follows the field that is open here, if one is, after what stands before that; and
        what to add to a place in it for that in the piece. Nothing if the field goes on."""
        further = self.closing and piece.startswith(b'"')
        if not self.open and not further:
            return self.before + piece, -1
        left = _LEFT.match(piece, 1 if further else 0)
        assert left is not None, "it matches anything"
        if not left[1]:
            return b"", 0
        return b"x" + piece[left.end() :], left.end() - 1


def _before(outside: bytes) -> bytes:
    last = outside[-1:]
    return {b'"': b"x", b"\n": b","}.get(last, last)


def _has_closed(outside: bytes) -> bool:
    """Whether a quoted field ends with the last byte, after which none goes on."""
    if len(outside) == 1:
        # Such a field was all of the piece.
        return True
    return outside.endswith(b'"') and _closed(outside[:-1]) < len(outside) - 1


def _closed(outside: bytes) -> int:
    """Where the quoted field begins that goes on at the end; the length if none does."""
    return next((f.start() for f in _fields(outside) if not f[1]), len(outside))


def _fields(outside: bytes) -> Iterator[re.Match[bytes]]:
    return _FIELD.finditer(outside) if b'"' in outside else iter(())


def _line_ends(outside: bytes, first: int, last: int, shift: int) -> Iterator[int]:
    at = first
    while (at := outside.find(b"\n", at, last) + 1) > 0:
        yield shift + at
