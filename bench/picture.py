"""Line charts as SVG, with nothing but the standard library."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

_WIDTH, _HEIGHT = 760, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 20, 34, 30
_LINE, _BOUND, _TEXT, _GRID = "#1f5fa8", "#b3261e", "#333333", "#dddddd"
_MAX_POINTS = 1_500
"""Of a line; where there are more, each is the median of several."""


@dataclass(frozen=True)
class Chart:
    """One line over x. bound: a level that the line has to stay below."""

    title: str
    x: Sequence[float]
    y: Sequence[float]
    unit: str = ""
    bound: float | None = None


def draw(path: Path, charts: Sequence[Chart], *, x_title: str) -> None:
    """Write the charts one below the other.

    Raises:
        ValueError: a chart has no points, or not one y for each x.
    """
    height = _HEIGHT * len(charts)
    box = f'viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {box}>',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
    ]
    for number, chart in enumerate(charts):
        parts += [f'<g transform="translate(0 {number * _HEIGHT})">', *_chart(chart, x_title)]
        parts.append("</g>")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*parts, "</svg>"]) + "\n")


def _chart(chart: Chart, x_title: str) -> list[str]:
    if not chart.x or len(chart.x) != len(chart.y):
        raise ValueError(f"{chart.title}: {len(chart.x)} x and {len(chart.y)} y")
    top = max(*chart.y, chart.bound or 0, 1e-9) * 1.05
    first, last = min(chart.x), max(chart.x)
    wide = (last - first) or 1

    def at(x: float, y: float) -> tuple[float, float]:
        inner = _HEIGHT - _TOP - _BOTTOM
        across = _LEFT + (x - first) / wide * (_WIDTH - _LEFT - _RIGHT)
        return across, _TOP + inner * (1 - y / top)

    parts = [_text(_LEFT, 18, chart.title, size=13)]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = at(first, top * share)[1]
        parts.append(_path([(_LEFT, y), (_WIDTH - _RIGHT, y)], _GRID, 1))
        parts.append(_text(_LEFT - 6, y + 4, _number(top * share, chart.unit), anchor="end"))
        x, _ = at(first + wide * share, 0)
        parts.append(_text(x, _HEIGHT - 12, f"{first + wide * share:,.0f}", anchor="middle"))
    parts.append(_text(_WIDTH - _RIGHT, _HEIGHT - 1, x_title, anchor="end"))
    step = -(-len(chart.x) // _MAX_POINTS)
    points = [
        at(chart.x[i], statistics.median(chart.y[i : i + step]))
        for i in range(0, len(chart.x), step)
    ]
    parts.append(_path(points, _LINE, 1.2))
    if chart.bound is not None:
        level = [at(first, chart.bound), at(last, chart.bound)]
        parts.append(_path(level, _BOUND, 1.2, dashed=True))
    return parts


def _path(
    points: Sequence[tuple[float, float]], colour: str, width: float, *, dashed: bool = False
) -> str:
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dashes = ' stroke-dasharray="6 4"' if dashed else ""
    return (
        f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="{width}"{dashes}/>'
    )


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 11) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
        f'fill="{_TEXT}">{escape(text)}</text>'
    )


def _number(value: float, unit: str) -> str:
    told = f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.2g}"
    return f"{told} {unit}".strip()
