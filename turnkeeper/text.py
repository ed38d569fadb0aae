"""Foreign text made fit to store, to send and to show. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

_ARGUMENT_CHARACTERS = 120

_SURROGATE = re.compile("[\ud800-\udfff]")
# C0 and C1 controls but tab and newline, and what turns the direction of writing: escape sequences
# and letters shown in another order could forge what an operator reads.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")

WHITE = r"\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
"""What `str.strip` takes off: for patterns in schemas, to mean the same in every language."""

# Those, and what nobody sees: Unicode's format characters and what it lets a font leave out. In
# ranges of code points, since Python's own table differs between its versions.
_UNSEEN_RANGES = (
    (0x00AD, 0x00AD),
    (0x034F, 0x034F),
    (0x0600, 0x0605),
    (0x061C, 0x061C),
    (0x06DD, 0x06DD),
    (0x070F, 0x070F),
    (0x0890, 0x0891),
    (0x08E2, 0x08E2),
    (0x115F, 0x1160),
    (0x17B4, 0x17B5),
    (0x180B, 0x180F),
    (0x200B, 0x200F),
    (0x2028, 0x202E),
    (0x2060, 0x206F),
    (0x3164, 0x3164),
    (0xFE00, 0xFE0F),
    (0xFEFF, 0xFEFF),
    (0xFFA0, 0xFFA0),
    (0xFFF0, 0xFFFB),
    (0x110BD, 0x110BD),
    (0x110CD, 0x110CD),
    (0x13430, 0x1343F),
    (0x1BCA0, 0x1BCA3),
    (0x1D173, 0x1D17A),
    (0xE0000, 0xE0FFF),
)
_UNSEEN = re.compile(
    f"{_CONTROL.pattern}|[{''.join(f'{chr(a)}-{chr(z)}' for a, z in _UNSEEN_RANGES)}]"
)


def well_formed(text: str) -> str:
    """`text` with each lone surrogate replaced by U+FFFD: such text has no UTF-8 form."""
    # ASCII is known at once; the search takes 0.2 s for the largest text.
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def is_well_formed(text: str) -> bool:
    """Whether `text` can be written as UTF-8."""
    return text.isascii() or not _SURROGATE.search(text)


def printable(text: str) -> str:
    """`text` without control characters (escapes, directions), for terminals and the UI."""
    return _CONTROL.sub("\ufffd", text)


def escaped(text: str) -> str:
    """`text` with control characters and what nobody sees as JSON writes them: `\\u200b`.

    JSON stays the JSON of an equal value.
    """
    return _UNSEEN.sub(lambda found: json.dumps(found[0])[1:-1], text)


def one_line(text: str, limit: int) -> str:
    """`text` on one line of at most `limit` characters, ended with an ellipsis when it was cut."""
    # Cut before the whitespace is folded: the text may be megabytes long.
    line = " ".join(printable(well_formed(text[: limit * 8])).split())
    return line if len(line) <= limit and len(text) <= limit * 8 else line[: limit - 1] + "…"


def seen_line(text: str, limit: int) -> str:
    """As `one_line`, with what nobody sees escaped: for what a person decides about."""
    # One more than `one_line` looks at, so that it knows of the rest.
    return one_line(escaped(text[: limit * 8 + 1]), limit)


def utf8_size(text: str) -> int:
    """Bytes of `text` in UTF-8; lone surrogates count as three."""
    return len(text.encode("utf-8", "surrogatepass"))


def json_size(text: str) -> int:
    """Bytes of well-formed `text` inside JSON, where a control character takes six."""
    return len(json.dumps(text, ensure_ascii=False).encode()) - 2


def fits_json(text: str, limit: int) -> bool:
    """Whether well-formed `text` has at most `limit` bytes inside JSON; at once if far from it."""
    return len(text) <= limit and json_size(text) <= limit


def clip(text: str, limit: int) -> str:
    """The head and tail of `text` within `limit` bytes of UTF-8, saying how much was left out."""
    data = well_formed(text).encode()
    if len(data) <= limit:
        return data.decode()
    # 64 bytes hold the notice for any length that fits in memory.
    keep = max(limit - 64, 0)
    head = data[: keep * 2 // 3].decode("utf-8", "ignore")
    tail = data[len(data) - keep // 3 :].decode("utf-8", "ignore") if keep >= 3 else ""
    return f"{head}\n[... {len(data) - keep} bytes left out ...]\n{tail}"


def clip_json(text: str, limit: int) -> str:
    """As `clip`, but within `limit` bytes of JSON: what history and requests are made of."""
    room = limit
    shown = clip(text, room)
    while room > 0 and (size := json_size(shown)) > limit:
        # Plain text fits at once; where escapes are dense the room shrinks a few times.
        room = room * limit // size
        shown = clip(text, room)
    return shown


def arguments_line(arguments: Mapping[str, Any], limit: int) -> str:
    """Arguments as `q="annual revenue 2025" limit=3`, on one line of at most `limit` characters."""
    told: list[str] = []
    room = limit
    for name, value in arguments.items():
        if room <= 0:
            break
        told.append(f"{seen_line(name, 64)}={_value(value)}")
        room -= len(told[-1]) + 1
    return one_line(" ".join(told), limit)


def _value(value: Any) -> str:
    if isinstance(value, str):
        # Escaped last: a text in which `\u200b` is spelled out has its backslash doubled.
        return escaped(json.dumps(one_line(value, _ARGUMENT_CHARACTERS), ensure_ascii=False))
    return seen_line(json.dumps(value, ensure_ascii=False), _ARGUMENT_CHARACTERS)


def clock(moment: float) -> str:
    """A time, in seconds since 1970, for models and people: `2026-11-30 15:20:00 UTC`."""
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def two_units(seconds: float) -> str:
    """In its two largest units, rounded down: `2 d 23 h`, for what is still to come."""
    units = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
    for (unit, size), (smaller, part) in pairwise(units):
        if seconds >= size:
            rest = int(seconds % size // part)
            return f"{seconds // size:,.0f} {unit}" + (f" {rest} {smaller}" if rest else "")
    return age(seconds)


def age(seconds: float) -> str:
    """In the largest unit of which there are two."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def dollars(amount: float) -> str:
    """`$0.0123`: cents, or as many digits as a small sum needs."""
    return f"${amount:.2f}" if amount >= 1 else f"${amount:.4f}"
