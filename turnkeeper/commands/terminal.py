"""What commands print: results on stdout, progress and complaints on stderr."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from collections.abc import AsyncIterator, Container, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Self, TextIO

from turnkeeper.suggestion import Suggestion, deciding, settling
from turnkeeper.text import escaped, printable, well_formed

if TYPE_CHECKING:
    from turnkeeper.commands.place import Place
    from turnkeeper.follow import Step

_BELOW = " " * 4
_WIDTH = 100


def say(text: str = "") -> None:
    """A result, on stdout."""
    _write(sys.stdout, text)


def tell(text: str = "") -> None:
    """Progress or a message, on stderr."""
    _write(sys.stderr, text)


def say_json(value: Any) -> None:
    """A result as one JSON object on one line, on stdout; what steers a terminal is escaped."""
    _write(sys.stdout, escaped(json.dumps(value, ensure_ascii=False)))


def _write(stream: TextIO, text: str, end: str = "\n") -> None:
    # A terminal that is not UTF-8 gets question marks, never a traceback.
    encoding = stream.encoding or "utf-8"
    fit = well_formed(text).encode(encoding, "replace").decode(encoding)
    stream.write(fit + end)
    stream.flush()


def tell_settling(place: Place, run_id: str, call_id: str, which: str = "it") -> None:
    """The two commands of which one settles a call that waits, each on a line that can be pasted
    whole: no margin cuts it."""
    landed, not_landed = (
        place.write(settling(run_id, call_id, landed=verdict)) for verdict in (True, False)
    )
    tell(f"To settle {which}, if it took effect: {landed}")
    tell(f"{'':<{len(which) + 12}}if it did not: {not_landed}")


def tell_deciding(place: Place, run_id: str, approval: str, which: str = "it") -> None:
    """The two commands of which one decides a call that waits for a person's word."""
    allow, deny = (place.write(deciding(run_id, approval, allow=word)) for word in (True, False))
    tell(f"To allow {which}: {allow}")
    tell(f"To deny {which}:  {deny}")


def tell_commands(place: Place, suggested: Iterable[Suggestion]) -> None:
    """Commands that a person may give next, each with what it is for."""
    for one in suggested:
        tell(f"To {one.aim}: {place.write(one)}")


def quiet_sdk() -> None:
    """Keep the SDK's own log from stdout, where answers are; what it warns of is told in steps."""
    from temporalio.runtime import Runtime, TelemetryConfig

    Runtime.set_default(
        Runtime(telemetry=TelemetryConfig(logging=None)), error_if_already_set=False
    )


def safe(text: str) -> str:
    """Foreign text of several lines, without control characters."""
    return printable(well_formed(text))


def has_colours(stream: TextIO) -> bool:
    """Whether a person who wants colours reads `stream`."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def width() -> int:
    """Columns of the terminal; a default where there is none."""
    return max(shutil.get_terminal_size((_WIDTH, 24)).columns, 60)


def table(rows: Sequence[Sequence[str]], right: Container[int] = ()) -> list[str]:
    """Rows in columns, of which those at `right` are aligned there."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(w) if i in right else cell.ljust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def below(texts: Iterable[str]) -> list[str]:
    """What is told of a row, in lines that stand below it."""
    return [
        line
        for text in texts
        for line in textwrap.wrap(
            text,
            width(),
            initial_indent=_BELOW,
            subsequent_indent=_BELOW * 2,
            break_on_hyphens=False,
        )
    ]


class Screen:
    """The whole terminal, drawn again and again; as it was once the `with` block ends."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    @staticmethod
    def is_there(stream: TextIO) -> bool:
        """Whether `stream` is a terminal that can be drawn on."""
        return stream.isatty() and os.environ.get("TERM") not in (None, "", "dumb")

    def __enter__(self) -> Self:
        # A screen of its own, no cursor, and lines that end at the margin: a line that wraps, with
        # wide characters or after the window was made narrower, would push the others down.
        _write(self._stream, "\x1b[?1049h\x1b[?25l\x1b[?7l", end="")
        return self

    def __exit__(self, *_: object) -> None:
        _write(self._stream, "\x1b[?7h\x1b[?25h\x1b[?1049l", end="")

    def draw(self, lines: Sequence[str]) -> None:
        """Show these lines and no others, as many as there is room for."""
        rows = shutil.get_terminal_size((_WIDTH, 24)).lines
        shown = lines if len(lines) <= rows else [*lines[: rows - 1], "…"]
        _write(self._stream, "\x1b[H" + "\x1b[K\n".join(shown) + "\x1b[K\x1b[J", end="")


class StepPrinter:
    """Prints steps as they come, each turn's number once."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._turn = 0

    async def print(self, steps: AsyncIterator[Step]) -> None:
        """Print until the run ends."""
        from turnkeeper.render import step_line

        async for step in steps:
            if step.phase == "END":
                continue
            new = step.turn not in (0, self._turn)
            line = step_line(
                f"turn {step.turn}" if new else "",
                step.phase,
                step.text,
                colour=has_colours(self._stream),
                width=width(),
            )
            if new:
                self._turn = step.turn
            _write(self._stream, line)
