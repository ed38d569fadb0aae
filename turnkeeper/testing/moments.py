"""The moments at which a tool's worker is killed: which there are, and how a run comes to them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from turnkeeper.testing.crash_points import POINTS, UnknownPoint

if TYPE_CHECKING:
    from turnkeeper.testing.crash_rig import Case

__all__ = ["Moment", "chosen", "way_to"]

_OF_A_CALL: Final = ("tool", "ledger", "probe", "artifact")
"""Groups of points that a tool call meets."""
_TIMES: Final = ("first", "second", "third")


@dataclass(frozen=True)
class Moment:
    """The passing of a crash point, counted from 1."""

    point: str
    number: int

    def __str__(self) -> str:
        return f"{self.point}-{self.number}"

    @property
    def text(self) -> str:
        """In words."""
        (meaning,) = (p.text for p in POINTS if p.name == self.point)
        number = self.number
        time = _TIMES[number - 1] if number <= len(_TIMES) else f"{number}th"
        return f"{self.point}, {time} time ({meaning})"


def chosen(names: str = "") -> list[Moment]:
    """The moments that are asked for by `NAME` (first and second passing) or `NAME:N`, by commas.

    Nothing asks for every point that a tool call meets.

    Raises:
        UnknownPoint: there is no such point, or N is not a number from 1.
    """
    known = [p.name for p in POINTS]
    wanted = [part.strip() for part in names.split(",") if part.strip()]
    found = []
    for part in wanted or [p.name for p in POINTS if p.group in _OF_A_CALL]:
        name, colon, number = part.partition(":")
        if name not in known:
            show = "`python -m turnkeeper.testing.crashing --list` shows all"
            raise UnknownPoint(f"there is no crash point {name!r}; {show}")
        if colon and (not number.isdecimal() or int(number) < 1):
            raise UnknownPoint(f"{part!r} is not NAME:N with N from 1")
        found += [Moment(name, n) for n in ([int(number)] if colon else [1, 2])]
    return list(dict.fromkeys(found))


def way_to(moment: Moment, control: Case) -> str | None:
    """CRASH_AT of a run that comes to this moment; None if the run of `control` cannot.

    Where the run without kills does not come to it, an earlier kill may lead there: a lost attempt
    is probed, or is made again and passes the point once more.
    """
    passed = Counter(p.name for p in control.passings)
    point, number = moment.point, moment.number
    if passed[point] >= number:
        return f"{point}:{number}"
    every = ",".join(f"{point}:{n}" for n in range(1, number + 1))
    if point.startswith("probe."):
        lost = _first_return(control, "reconcilable")
        return None if lost is None else f"tool.done:{lost},{every}"
    again = _first_return(control, "idempotent", "reconcilable")
    return every if again is not None and passed[point] == number - 1 > 0 else None


def _first_return(control: Case, *effects: str) -> int | None:
    """Which return of a mutating tool is the first one of these effect classes."""
    returned = [
        call.input.effect
        for call in control.seen.run.calls
        if call.mutates and call.output is not None and call.output.status == "ok"
    ]
    return next((n for n, effect in enumerate(returned, 1) if effect in effects), None)
