"""Where the rows of a CSV table end: not at the line ends inside of a quoted field.

A table has megabytes and comes in pieces, so each piece is gone through by a few calls of `re`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

# Elsewhere than at a field's start a quote is a character like any other.
_OPENS: Final = rb'(?<![^,;\t|\n])"'
_STRAY: Final = rb'(?<=[^,;\t|\n])"'
_REST: Final = rb'[^"]*+(?:""[^"]*+)*+'
_QUOTED: Final = _OPENS + _REST + rb'"'
_LEFT: Final = re.compile(_REST + rb'("?)')
_WHOLE: Final = re.compile(rb'(?:[^"]++|' + _QUOTED + rb"|" + _STRAY + rb")*+")
# Also what is left at the end: a search that met no line end would go on inside of a field.
_ROW: Final = re.compile(rb'(?!\Z)(?:[^"\n]++|' + _QUOTED + rb"|" + _STRAY + rb")*+(?:\n|\Z)")


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
        if b'"' not in outside:
            return outside.count(b"\n")
        closed = outside[: _closed(outside)]
        return _ROW.subn(b"", closed)[1] - (not closed.endswith(b"\n"))

    def ends(self, piece: bytes) -> Iterator[int]:
        """Where in the piece that comes here rows end, after their line end."""
        outside, shift = self._outside(piece)
        for row in _ROW.finditer(outside, 0, _closed(outside)):
            if row[0].endswith(b"\n"):
                yield shift + row.end()

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
        if left is None or not left[1]:
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
    whole = _WHOLE.match(outside) if b'"' in outside else None
    return whole.end() if whole else len(outside)
