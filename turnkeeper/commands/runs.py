"""`starter.py list`, `count` and `stop`."""

from __future__ import annotations

import argparse
import asyncio
import getpass
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from turnkeeper.commands.place import FAILED, USAGE, Complaint, Place
from turnkeeper.commands.selection import query_of
from turnkeeper.commands.terminal import say, say_json, tell
from turnkeeper.errors import TurnkeeperError
from turnkeeper.text import one_line

if TYPE_CHECKING:
    from turnkeeper.client import AgentClient, RunSummary

_HEADINGS = ("RUN", "AGENT", "STATUS", "OUTCOME", "TURNS", "TOKENS", "STARTED")
_NUMBERS = ("TURNS", "TOKENS")
_CELL = 200
_AT_ONCE = 10
_STOPPED = ("stopping", "queued", "ended", "would be stopped")


async def list_runs(place: Place, options: argparse.Namespace) -> int:
    """Print a table of runs: the open ones and the last to close, the newest first."""
    async with place.client(to_read=True) as client:
        runs = await _chosen(client, options)
    if options.json:
        say_json({"runs": [_as_json(r) for r in runs]})
    elif runs:
        _print(runs)
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


async def stop(place: Place, options: argparse.Namespace) -> int:
    """Ask a run to stop; or all that are chosen, once they have been shown."""
    chosen = query_of(options) or options.waiting_for
    if options.id and chosen:
        raise Complaint("name a run, or choose several, not both", USAGE)
    if not options.id and not chosen:
        raise Complaint(
            "name a run, or choose several: stop --agent NAME, --where QUERY, ... (see --help)",
            USAGE,
        )
    return await (_stop_one if options.id else _stop_chosen)(place, options)


async def _stop_one(place: Place, options: argparse.Namespace) -> int:
    # Also where no server runs: the stop is kept there until the next worker.
    async with place.client(to_read=True) as client:
        stopped = await client.stop(options.id, options.reason, options.actor or person())
    if options.json:
        say_json({"id": options.id, "stop": stopped})
    else:
        say(_told(place, options.id, stopped))
    return 0


async def _stop_chosen(place: Place, options: argparse.Namespace) -> int:
    async with place.client(to_read=True) as client:
        runs = await _chosen(client, options, open_only=True)
        actor = options.actor or person()
        if options.yes:
            stopped = await _stop_all(client, [r.id for r in runs], options.reason, actor)
        else:
            stopped = dict.fromkeys([r.id for r in runs], "would be stopped")
    if options.json:
        say_json({"runs": [{"id": name, "stop": what} for name, what in stopped.items()]})
    elif options.yes:
        for name, what in stopped.items():
            say(_told(place, name, what))
    elif runs:
        _print(runs)
        tell(f"{len(runs)} open runs would be stopped: the same command with --yes stops them")
    else:
        tell("no open runs")
    return FAILED if any(what not in _STOPPED for what in stopped.values()) else 0


async def _stop_all(
    client: AgentClient, runs: Sequence[str], reason: str, actor: str
) -> dict[str, str]:
    """What became of each, by its id: one that fails does not keep the others from it."""
    some = asyncio.Semaphore(_AT_ONCE)

    async def one(run: str) -> str:
        async with some:
            try:
                return await client.stop(run, reason, actor)
            except (LookupError, ConnectionError, TurnkeeperError) as error:
                return one_line(f"not stopped: {error}", _CELL)

    return dict(zip(runs, await asyncio.gather(*map(one, runs)), strict=True))


def _told(place: Place, run: str, stopped: str) -> str:
    shown = one_line(run, _CELL)
    if stopped == "stopping":
        return f"run {shown} is stopping"
    if stopped == "queued":
        return f"no worker answers: run {shown} stops as soon as one does"
    if stopped == "ended":
        return f"run {shown} has ended already: {place.again(f'show {shown}')}"
    return f"run {shown}: {stopped}"


async def _chosen(
    client: AgentClient, options: argparse.Namespace, *, open_only: bool = False
) -> list[RunSummary]:
    query = query_of(options)
    if open_only:
        query = " AND ".join(filter(None, [query, "ExecutionStatus = 'Running'"]))
    try:
        found = client.list_runs(query, waiting_for=options.waiting_for, limit=options.count)
        runs = [r async for r in found]
    except ValueError as error:
        raise Complaint(str(error), USAGE) from error
    # The server gives the open ones first.
    return sorted(runs, key=lambda r: r.started, reverse=True)


def _print(runs: Sequence[RunSummary]) -> None:
    heading, *rows = _table([_HEADINGS, *(_row(r) for r in runs)])
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
        "waits": list(run.waits),
        "started": run.started.isoformat(),
        "closed": run.closed.isoformat() if run.closed else None,
    }
