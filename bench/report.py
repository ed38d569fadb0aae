"""What a benchmark found: checked against its bounds, printed, and kept as JSON and a picture."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.histories import Execution
from bench.picture import Chart, draw
from turnkeeper.testing.provider.journal import Record

RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True)
class Check:
    """A measured value and what it has to be: at most `most`, at least `least`."""

    name: str
    value: float
    most: float | None = None
    least: float | None = None
    unit: str = ""

    @property
    def holds(self) -> bool:
        """Whether it is what it has to be."""
        return (self.most is None or self.value <= self.most) and (
            self.least is None or self.value >= self.least
        )

    def line(self) -> str:
        """For people."""
        bounds = [
            f"{word} {bound:g}"
            for word, bound in (("at most", self.most), ("at least", self.least))
            if bound is not None
        ]
        told = f"{self.name:<58} {self.value:>12,.10g} {self.unit:<6}"
        if not bounds:
            return f"  {'':<4} {told}".rstrip()
        return f"  {'ok' if self.holds else 'FAIL':<4} {told} ({' and '.join(bounds)})"


def unharmed(requests: Iterable[Record], links: Iterable[Execution]) -> list[Check]:
    """What always holds: the provider refused no request, no workflow task failed."""
    refused = sum(r.rule is not None for r in requests)
    return [
        Check("requests that the provider refused", refused, most=0),
        Check("failed workflow tasks", sum(x.failed_tasks for x in links), most=0),
    ]


@dataclass
class Report:
    """Of one case. setting: what it was run with; charts: over its turns."""

    name: str
    setting: Mapping[str, Any]
    checks: list[Check] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether all checks do."""
        return all(check.holds for check in self.checks)

    def show(self) -> None:
        """Print the table."""
        print(f"{self.name}: {', '.join(f'{k} {v}' for k, v in self.setting.items())}")
        for check in self.checks:
            print(check.line(), flush=True)

    def write(self, folder: Path = RESULTS) -> None:
        """Keep it as `NAME.json`, and its charts as `NAME.svg`."""
        folder.mkdir(parents=True, exist_ok=True)
        told = {
            "name": self.name,
            "holds": self.holds,
            "setting": dict(self.setting) | {"python": platform.python_version()},
            "checks": [asdict(c) | {"holds": c.holds} for c in self.checks],
        }
        written = [folder / f"{self.name}.json"]
        written[0].write_text(json.dumps(told, indent=1) + "\n")
        if self.charts:
            written.append(folder / f"{self.name}.svg")
            draw(written[1], self.charts, x_title="turn")
        print(*written, flush=True)
