"""Which scenario reaches which crash point, at its first and second passing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from turnkeeper.testing.crash_points import POINTS, CrashPoint

MECHANISMS = ("key", "probe", "one-attempt", "ledger", "pairing")
"""What the controls switch off, see `without.py`."""

_SCENARIOS = {
    "probe": "doubt",
    "message": "asked",
    "ledger": "story",
    "artifact": "story",
    "epoch": "long",
}
_ASYNCHRONOUS = 3
"""Mutating calls before the first that runs in a process of its own, in the story."""
_MUTATING = ("tool.polled", "tool.marked", "tool.done", "tool.completing", "tool.completed")


@dataclass(frozen=True)
class Planned:
    """A case. number: of the passing of `point` that ends a worker; `crash_at` may end more."""

    scenario: str
    point: str
    number: int
    crash_at: str


def plan() -> list[Planned]:
    """Every case of the suite."""
    return [
        Planned(_scenario(point, number), point.name, number, _crash_at(point, number))
        for point in POINTS
        for number in _numbers(point)
    ]


def _scenario(point: CrashPoint, number: int) -> str:
    if point.name.startswith("cancel."):
        return "cancelled"
    if number > _ASYNCHRONOUS:
        return "story"
    return _SCENARIOS.get(point.group, "talk")


def _numbers(point: CrashPoint) -> Iterable[int]:
    if point.name in _MUTATING:
        # The story's first mutating calls are one of each effect class and way to run.
        return range(1, 6)
    return range(1, 5) if point.name == "effect.sent" else (1, 2)


def _crash_at(point: CrashPoint, number: int) -> str:
    if point.group == "recovery":
        # A worker reads the view from history once another has died; the second time, two.
        deaths = ["model.half:2", "model.half:4"][:number]
        return ",".join([*deaths, f"{point.name}:{number}"])
    if point.name in ("end.commands", "cancel.polled"):
        # A run has one of these; the second is that of the worker that takes over.
        return ",".join(f"{point.name}:{n}" for n in range(1, number + 1))
    return f"{point.name}:{number}"


_CAUGHT_AT = {
    # Where a lost attempt is made again, and a mechanism alone keeps it from doing harm.
    "key": ("tool.done:1", "effect.sent:1"),
    "probe": ("tool.done:2", "effect.sent:2", "tool.completing:2"),
    "one-attempt": ("tool.done:3", "effect.sent:3"),
    "ledger": ("tool.done:4", "tool.completing:4"),
    "pairing": ("results.appended:1",),
}


def relevant(mechanism: str) -> Iterator[Planned]:
    """The cases that show that a mechanism is switched off."""
    return (p for p in plan() if p.crash_at in _CAUGHT_AT[mechanism])
