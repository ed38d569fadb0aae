"""`starter.py list` and `starter.py stop`."""

from __future__ import annotations

import argparse
import getpass
from datetime import datetime
from typing import TYPE_CHECKING

from turnkeeper.commands.place import USAGE, Complaint, Place
from turnkeeper.commands.terminal import say, say_json, tell
from turnkeeper.text import one_line

if TYPE_CHECKING:
    from turnkeeper.client import RunSummary

_HEADINGS = ("RUN", "AGENT", "STATUS", "OUTCOME", "TURNS", "TOKENS", "STARTED")
_NUMBERS = ("TURNS", "TOKENS")
_CELL = 200


async def list_runs(place: Place, options: argparse.Namespace) -> int:
    """Print a table of runs: the open ones and the last to close, the newest first."""
    async with place.client(to_read=True) as client:
        try:
            runs = [r async for r in client.list_runs(options.query, limit=options.count)]
        except ValueError as error:
            raise Complaint(str(error), USAGE) from error
    # The server gives the open ones first.
    runs.sort(key=lambda r: r.started, reverse=True)
    if options.json:
        say_json({"runs": [_as_json(r) for r in runs]})
    elif runs:
        heading, *rows = _table([_HEADINGS, *(_row(r) for r in runs)])
        say(heading)
        for run, row in zip(runs, rows, strict=True):
            say(row)
            if run.waiting_for:
                say(f"    waiting for {one_line(run.waiting_for, _CELL)}")
    else:
        tell("no runs")
    return 0


async def stop(place: Place, options: argparse.Namespace) -> int:
    """Ask a run to stop."""
    # Also where no server runs: the stop is kept there until the next worker.
    async with place.client(to_read=True) as client:
        stopped = await client.stop(options.id, options.reason, options.actor or person())
    if options.json:
        say_json({"id": options.id, "stop": stopped})
    elif stopped == "stopping":
        say(f"run {options.id} is stopping")
    elif stopped == "queued":
        say(f"no worker answers: run {options.id} stops as soon as one does")
    else:
        say(f"run {options.id} has ended already: {place.again(f'show {options.id}')}")
    return 0


def person() -> str:
    """Who calls this command."""
    try:
        return getpass.getuser()
    except (OSError, KeyError) as error:
        raise Complaint("who are you? give --actor NAME") from error


def _row(run: RunSummary) -> tuple[str, ...]:
    # Any program may have started these runs, and chosen their ids and attributes.
    return (
        one_line(run.id, _CELL),
        one_line(run.agent, _CELL),
        run.status,
        one_line(run.outcome or "-", _CELL),
        "-" if run.turns is None else str(run.turns),
        "-" if run.tokens is None else f"{run.tokens:,}",
        _local(run.started),
    )


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEADINGS))]
    right = [heading in _NUMBERS for heading in _HEADINGS]
    return [
        "  ".join(
            cell.rjust(w) if r else cell.ljust(w)
            for cell, w, r in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in rows
    ]


def _local(moment: datetime) -> str:
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _as_json(run: RunSummary) -> dict[str, object]:
    return {
        "id": run.id,
        "run_id": run.run_id,
        "agent": run.agent,
        "status": run.status,
        "outcome": run.outcome,
        "turns": run.turns,
        "tokens": run.tokens,
        "waiting_for": run.waiting_for or None,
        "started": run.started.isoformat(),
        "closed": run.closed.isoformat() if run.closed else None,
    }
