"""`starter.py list` and `count`, and the choice of runs that other commands share."""

from __future__ import annotations

import argparse
import getpass
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from turnkeeper.commands.place import USAGE, Complaint, Place
from turnkeeper.commands.selection import query_of
from turnkeeper.commands.terminal import say, say_json, table, tell
from turnkeeper.text import one_line
from turnkeeper.waiting import PROVIDER, TIME

if TYPE_CHECKING:
    from turnkeeper.client import AgentClient, RunSummary

_HEADINGS = ("RUN", "AGENT", "STATUS", "OUTCOME", "TURNS", "TOKENS", "STARTED")
_NUMBERS = tuple(map(_HEADINGS.index, ("TURNS", "TOKENS")))
OPEN = "ExecutionStatus = 'Running'"
_CELL = 200


async def list_runs(place: Place, options: argparse.Namespace) -> int:
    """Print a table of runs: the open ones and the last to close, the newest first."""
    async with place.client(to_read=True) as client:
        runs = await chosen_runs(client, options)
    if options.json:
        say_json({"runs": [_as_json(r) for r in runs]})
    elif runs:
        print_runs(runs)
        for first in [r for r in runs if set(r.waits) - {TIME, PROVIDER}][:1]:
            tell()
            tell(f"To see what the first that waits needs: {place.again('why', first.id)}")
    else:
        tell("no runs")
    return 0


async def count(place: Place, options: argparse.Namespace) -> int:
    """Print how many runs there are."""
    async with place.client(to_read=True) as client:
        try:
            number = await client.count_runs(query_of(options), waiting_for=options.waiting_for)
        except ValueError as error:
            raise Complaint(str(error), USAGE) from error
    if options.json:
        say_json({"count": number})
    else:
        say(str(number))
    return 0


async def chosen_runs(
    client: AgentClient,
    options: argparse.Namespace,
    *,
    open_only: bool = False,
    limit: int | None = None,
) -> list[RunSummary]:
    """The runs that the options of `add_selection` choose, the newest first.

    `limit` is how many there are at most, if not `--count`.

    Raises:
        Complaint: the server does not understand the query.
    """
    query = query_of(options)
    if open_only:
        query = " AND ".join(filter(None, [query, OPEN]))
    try:
        found = client.list_runs(
            query, waiting_for=options.waiting_for, limit=limit or options.count
        )
        runs = [r async for r in found]
    except ValueError as error:
        raise Complaint(str(error), USAGE) from error
    # The server gives the open ones first.
    return sorted(runs, key=lambda r: r.started, reverse=True)


def print_runs(runs: Sequence[RunSummary]) -> None:
    """A table, and what each that waits for a person waits for."""
    heading, *rows = table([_HEADINGS, *map(_row, runs)], _NUMBERS)
    say(heading)
    for run, row in zip(runs, rows, strict=True):
        say(row)
        if run.waiting_for:
            say(f"    waiting for {one_line(run.waiting_for, _CELL)}")


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


def _local(moment: datetime) -> str:
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


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
        "waits": list(run.waits),
        "started": run.started.isoformat(),
        "closed": run.closed.isoformat() if run.closed else None,
    }
