"""JSON off the wire, read so that one bad value does not cost the whole reply.

`turnkeeper.entries.strict_json` refuses what cannot be stored. A reply has been paid for, so it is
read first, with its defects still visible in the value, and mended by admission:

    the same key twice            a `RepeatedKeys` object, the last value kept
    NaN, Infinity, 1e400          floats that are not finite
    an integer of 5,000 digits    another integer that is as much too large
    nested 4,000 levels deep      cut off at `KEPT_DEPTH`, still deeper than an entry may be
    a lone surrogate              as it is
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from turnkeeper.entries import MAX_DEPTH, MAX_INT_DIGITS

KEPT_DEPTH: Final = 2 * MAX_DEPTH
"""Levels of nesting that are read where the reader could not read them all."""

# Any value over the limit will do: reading so many digits is quadratic, and refused by Python.
_TOO_LARGE: Final = 1 << (4 * MAX_INT_DIGITS)
# Possessive: a string that never ends is one token, not a try from each quote in it.
_TOKEN = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{}]', re.DOTALL)


class RepeatedKeys(dict[str, Any]):
    """An object in which a key stood twice."""


def read_json(text: str) -> Any:
    """Read JSON of any depth.

    Raises:
        ValueError: not JSON.
    """
    try:
        return _DECODER.decode(text)
    except RecursionError:
        return _DECODER.decode(_shallow(text))


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    return found if len(found) == len(pairs) else RepeatedKeys(found)


def _integer(digits: str) -> int:
    return int(digits) if len(digits) <= MAX_INT_DIGITS else _TOO_LARGE


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_object, parse_int=_integer)


def _shallow(text: str) -> str:
    """`text` with everything below `KEPT_DEPTH` levels left out."""
    kept: list[str] = []
    depth = start = 0
    for token in _TOKEN.finditer(text):
        mark = text[token.start()]
        if mark in "[{":
            depth += 1
            if depth == KEPT_DEPTH:
                kept.append(text[start : token.end()])
        elif mark in "]}":
            if depth == KEPT_DEPTH:
                start = token.start()
            depth -= 1
    if depth < KEPT_DEPTH:
        kept.append(text[start:])
    return "".join(kept)
