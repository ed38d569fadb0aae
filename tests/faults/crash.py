"""The crash suite: `make crash`.

    python -m tests.faults.crash [--only NAME...] [--without MECHANISM] [--folder DIR]

Ends with `crash points: N/N reached, K kills, 0 violations` and exit code 0, or with 1.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from pathlib import Path

from tests.faults import suite
from tests.faults.crew import PRELOAD
from tests.faults.plan import MECHANISMS, Planned, plan, relevant
from turnkeeper.testing.embedded import EmbeddedServer
from turnkeeper.testing.nursery import Nursery

LEAST_IN_FLIGHT = 30
"""Kills of the whole suite that meet a mutating call under way."""


def main(argv: list[str] | None = None) -> int:
    """Run it; the exit code."""
    options = _parser().parse_args(argv)
    cases = _chosen(options)
    if not cases:
        say("no case has such a name")
        return 2
    folder = options.folder or Path(tempfile.mkdtemp(prefix="crash-"))
    say(f"{len(cases)} cases; logs, ledgers and histories in {folder}")
    with (
        EmbeddedServer.start(folder / "server", announce=say) as server,
        Nursery.start(suite.ROOT, PRELOAD) as nursery,
    ):
        report = asyncio.run(
            suite.run(cases, server.address, nursery, folder, say, without=options.without)
        )
    if not options.without:
        report.violations += asyncio.run(suite.replayed(folder, say))
    return _tell(report, whole=len(cases) == len(plan()))


def _tell(report: suite.Report, *, whole: bool) -> int:
    for violation in report.violations:
        say(f"VIOLATION {violation}")
    for outcome in report.outcomes:
        if not outcome.reached:
            say(f"NOT REACHED {outcome.planned.crash_at} {outcome.problem}")
    points = report.points
    reached = sum(points.values())
    say(f"{report.seconds:.0f} s, {len(report.outcomes)} cases")
    say(f"kills with a mutating call in flight: {report.in_flight}, by history")
    say(
        f"crash points: {reached}/{len(points)} reached, {report.kills} kills, "
        f"{len(report.violations)} violations"
    )
    enough = report.in_flight >= LEAST_IN_FLIGHT or not whole
    return 0 if reached == len(points) and not report.violations and enough else 1


def _chosen(options: argparse.Namespace) -> list[Planned]:
    cases = list(relevant(options.without)) if options.without and not options.only else plan()
    names = options.only or []
    return [c for c in cases if not names or c.point in names or c.crash_at in names]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Kill workers at every crash point.")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="points, or NAME:N")
    parser.add_argument(
        "--without", choices=MECHANISMS, default="", help="a control: switch a mechanism off"
    )
    parser.add_argument("--folder", type=Path, metavar="DIR", help="new; default a temporary one")
    return parser


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    code = main()
    # Not sys.exit: a process that used temporalio may abort while the interpreter is taken down.
    os._exit(code)
