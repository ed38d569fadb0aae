"""Bars over the turns of a run, as SVG in HTML: they are drawn at any width. Pure.

The drawing is stretched to the width that there is, so it holds no text; names and numbers are HTML
around it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from turnkeeper.page.markup import Html, join, tag

__all__ = ["Column", "Panel", "Series", "chart"]

_MOST = 150
"""Columns; of more turns several share one."""
_LEAST = 24
"""Columns that there is room for, so that those of a short run are no walls."""
_STEP, _BAR, _HEIGHT = 10, 7.4, 100
_MANY = 20
"""Bars from which on one may be called unusual."""
_OUTLIER = 2
"""Times the usual largest value that are drawn."""
_CUT = 8
"""The gap in a bar that is longer than drawn."""


@dataclass(frozen=True)
class Column:
    """One turn, and where it stands on the page."""

    number: int
    anchor: str
    tone: str = ""
    """`bad` or `warn`, of a turn to be looked at."""


@dataclass(frozen=True)
class Series:
    """A part of each bar, by turn; `tone` names its colour."""

    name: str
    tone: str
    values: Sequence[float]


@dataclass(frozen=True)
class Panel:
    """A row of bars, each of its series on top of each other."""

    name: str
    series: Sequence[Series]
    words: Callable[[float], str]
    """A value for people."""


def chart(columns: Sequence[Column], panels: Sequence[Panel]) -> Html:
    """The panels below each other over the same columns."""
    size = -(-len(columns) // _MOST)
    groups = [columns[i : i + size] for i in range(0, len(columns), size)]
    rows = [_panel(panel, groups, size) for panel in panels]
    return tag("div", *rows, _flags(groups), _axis(columns, size), class_="chart")


def _axis(columns: Sequence[Column], size: int) -> Html:
    first, last = columns[0].number, columns[-1].number
    if len(columns) < _LEAST:
        # Its bars end before the page does.
        return tag("p", _named(columns), class_="axis")
    shared = f"{size:,} turns a bar" if size > 1 else ""
    ends = (f"Turn {first:,}", shared, f"Turn {last:,}")
    return tag("p", *(tag("span", end) for end in ends), class_="axis")


def _panel(panel: Panel, groups: Sequence[Sequence[Column]], size: int) -> Html:
    sums = [
        [sum(s.values[i * size : (i + 1) * size]) for i in range(len(groups))] for s in panel.series
    ]
    totals = [sum(column) for column in zip(*sums, strict=True)]
    most, scale = max(totals), _scale(totals)
    bars = [
        _bars(panel, groups[i], i, [column[i] for column in sums], scale)
        for i in range(len(groups))
    ]
    legend = [
        tag("span", tag("i", class_=f"key {s.tone}"), f"{s.name} {panel.words(sum(s.values))}")
        for s in panel.series
    ]
    head = tag(
        "p",
        tag("b", panel.name),
        *legend,
        tag("span", f"most {panel.words(most)}{' (cut)' if most > scale else ''}", class_="most"),
        class_="legend",
    )
    return tag("div", head, _drawing(bars, len(groups), _HEIGHT, panel.name), class_="panel")


def _scale(totals: Sequence[float]) -> float:
    """What the height stands for: the largest value, unless beside it all others would vanish."""
    found = sorted(total for total in totals if total > 0)
    most = found[-1] if found else 0.0
    if len(found) < _MANY:
        return most
    usual = found[(len(found) - 1) * 19 // 20]
    return usual * _OUTLIER if most > usual * 2 * _OUTLIER else most


def _bars(
    panel: Panel, group: Sequence[Column], index: int, parts: Sequence[float], scale: float
) -> Html:
    """One column: a link to its turn, that says what it stands for."""
    top, drawn = float(_HEIGHT), []
    for series, value in zip(panel.series, parts, strict=True):
        height = min(value / scale * _HEIGHT, top) if scale else 0
        top -= height
        drawn.append(_rect(index, top, height, series.tone))
    if sum(parts) > scale:
        drawn.append(_rect(index, _CUT, _CUT, "gap"))
    said = ", ".join(f"{s.name} {panel.words(v)}" for s, v in zip(panel.series, parts, strict=True))
    title = tag("title", f"{_named(group)}: {said}")
    return tag(
        "a",
        title,
        _rect(index, 0, _HEIGHT, "hit", _STEP),
        *drawn,
        href=group[0].anchor,
        tabindex=-1,
    )


def _flags(groups: Sequence[Sequence[Column]]) -> Html | None:
    """A strip below that marks the turns to be looked at."""
    flags = []
    for index, group in enumerate(groups):
        tones = {c.tone for c in group}
        if tone := next((t for t in ("bad", "warn") if t in tones), ""):
            title = tag("title", f"{_named(group)}: {_FLAGS[tone]}")
            at = next(c for c in group if c.tone == tone).anchor
            flags.append(tag("a", title, _rect(index, 0, _HEIGHT, tone), href=at, tabindex=-1))
    return _drawing(flags, len(groups), _HEIGHT, "Turns to look at", "flags") if flags else None


_FLAGS = {"bad": "an error", "warn": "a person was asked, or the outcome was unknown"}


def _named(group: Sequence[Column]) -> str:
    first, last = group[0].number, group[-1].number
    return f"Turn {first:,}" if first == last else f"Turns {first:,} to {last:,}"


def _rect(index: int, top: float, height: float, tone: str, width: float = _BAR) -> Html | None:
    if not height:
        return None
    x = index * _STEP + (_STEP - width) / 2
    return tag(
        "rect", x=f"{x:g}", y=f"{top:.2f}", width=f"{width:g}", height=f"{height:.2f}", class_=tone
    )


def _drawing(
    parts: Sequence[Html], columns: int, height: int, name: str, kind: str = "bars"
) -> Html:
    return tag(
        "svg",
        join(parts),
        viewBox=f"0 0 {max(columns, _LEAST) * _STEP} {height}",
        preserveAspectRatio="none",
        role="group",
        aria_label=name,
        class_=kind,
    )
