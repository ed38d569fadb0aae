"""Text on a page, bounded: what is left out is counted and said. Pure."""

from __future__ import annotations

import re
from datetime import datetime

from turnkeeper.page.markup import Html, join, tag
from turnkeeper.text import one_line, two_units

__all__ = ["Ink", "clock_of", "count", "span"]

PAGE_CHARACTERS = 3_000_000
"""Foreign text of a page."""
TEXT_CHARACTERS = 40_000
"""Of one text."""
_LEAST = 300
"""Of one text when the page is full."""
_SHORT_LINES, _SHORT = 14, 1_200
"""Lines and characters of a text that is not folded."""
_COLUMNS = re.compile(r"\S(?: {2,}|\t)\S|\|[^\n|]*\|")
"""What a table has: its lines are not broken, it is moved sideways in itself."""
_WIDE = 1_000
"""Characters of a line that no table has."""
_PREVIEW = 80


class Ink:
    """Writes foreign text, as long as there is room for it."""

    def __init__(self, room: int = PAGE_CHARACTERS) -> None:
        self._room = room

    def prose(self, text: str) -> Html:
        """Text as it was said, its lines broken where they are too wide."""
        shown, rest = self._cut(text)
        return tag("div", shown, rest, class_="prose")

    def plain(self, text: str) -> Html:
        """Text of a machine; lines that are too wide are broken unless they are a table's."""
        shown, rest = self._cut(text)
        table = (
            "\n" in shown and _COLUMNS.search(shown) and max(map(len, shown.split("\n"))) < _WIDE
        )
        return join([tag("pre", shown, class_=None if table else "wrap"), rest])

    def folded(self, text: str, *, open_: bool = False) -> Html:
        """As `plain`, to be unfolded if it is long, unless it is to be `open_`."""
        if len(text) <= _SHORT and text.count("\n") < _SHORT_LINES:
            return self.plain(text)
        return self.fold(one_line(text, _PREVIEW), size(text), self.plain(text), open_=open_)

    @staticmethod
    def fold(title: str, note: str, content: Html, *, open_: bool = False) -> Html:
        """Something that is shown when its title is clicked."""
        summary = tag("summary", tag("span", title), " ", tag("small", note) if note else None)
        return tag("details", summary, content, open=open_)

    def _cut(self, text: str) -> tuple[str, Html | None]:
        shown = text[: max(min(TEXT_CHARACTERS, self._room), _LEAST)]
        self._room -= len(shown)
        if not (rest := len(text) - len(shown)):
            return shown, None
        return shown, tag("p", f"{rest:,} characters more are not on this page.", class_="cut")


def size(text: str) -> str:
    """`1,234 characters, 56 lines`."""
    lines = text.count("\n") + 1
    return f"{len(text):,} characters" + (f", {lines:,} lines" if lines > 1 else "")


def count(number: int, thing: str) -> str:
    """`1 turn`, `2 turns`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def span(seconds: float) -> str:
    """A time in its two largest units: `0.42 s`, `4.2 s`, `3 min 20 s`, `2 d 5 h`."""
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s"
    return two_units(round(seconds))


def clock_of(moment: datetime, day: datetime | None = None) -> str:
    """A time in UTC, without its date if that is the `day` that its reader knows."""
    same = day is not None and moment.date() == day.date()
    return moment.strftime("%H:%M:%S" if same else "%Y-%m-%d %H:%M:%S")
