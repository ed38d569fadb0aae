"""`starter.py export`: runs as files, one each, that stay when Temporal has deleted the runs."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from turnkeeper.commands.files import draft, keep, name_of
from turnkeeper.commands.place import FAILED, USAGE, Complaint, Place
from turnkeeper.commands.selection import query_of
from turnkeeper.commands.terminal import say, say_json, tell
from turnkeeper.errors import TurnkeeperError
from turnkeeper.text import one_line

if TYPE_CHECKING:
    from turnkeeper.client import AgentClient, RunSummary

_CELL = 300
_WHOLE, _INCOMPLETE = ".json", ".incomplete.json"


@dataclass
class _Report:
    """What became of the runs."""

    written: list[dict[str, object]] = field(default_factory=list)
    kept: int = 0
    incomplete: int = 0
    """Of both."""
    failed: dict[str, str] = field(default_factory=dict)
    left_out: bool = False
    """More runs were chosen than are exported at once."""


async def export(place: Place, options: argparse.Namespace) -> int:
    """Write each run; exit 1 if one could not be written, or lacks something."""
    if options.waiting_for:
        raise Complaint("runs that wait have not ended: name those that you want", USAGE)
    chosen = query_of(options)
    if bool(options.id) == bool(chosen):
        raise Complaint(
            "name runs, or choose several, not both: export ID, export --agent NAME, "
            "--where QUERY, ... (see --help)",
            USAGE,
        )
    options.out.mkdir(parents=True, exist_ok=True)
    report = _Report()
    async with place.client(to_read=True) as client:
        if options.id:
            for run in options.id:
                await _export(client, run, None, options, report)
        else:
            async for run, run_id in _ended(client, chosen, options, report):
                await _export(client, run, run_id, options, report)
    return _tell(options, report)


async def _ended(
    client: AgentClient, chosen: str, options: argparse.Namespace, report: _Report
) -> AsyncIterator[tuple[str, str]]:
    """The chosen runs that have ended and have no file yet."""
    query = f"{chosen} AND ExecutionStatus != 'Running'"
    looked_at = 0
    try:
        async for run in client.list_runs(query, limit=options.count + 1):
            if (looked_at := looked_at + 1) > options.count:
                report.left_out = True
            elif file := _kept(options.out, run):
                report.kept += 1
                report.incomplete += file.name.endswith(_INCOMPLETE)
            else:
                yield run.id, run.run_id
    except ValueError as error:
        raise Complaint(str(error), USAGE) from error


async def _export(
    client: AgentClient,
    run: str,
    run_id: str | None,
    options: argparse.Namespace,
    report: _Report,
) -> None:
    try:
        with draft(options.out) as file:
            exported = await client.export_to(file, run, run_id=run_id)
            name = _name(run, exported.run_ids[-1])
            path = options.out / f"{name}{_INCOMPLETE if exported.missing else _WHOLE}"
            # By its date `_kept` tells it from one that was written while the run was open.
            keep(file, path, exported.closed)
    except (LookupError, TurnkeeperError) as error:
        # Deleted meanwhile, or no run of ours. A server or store that is away ends it all: what is
        # written stays, and the same command goes on from there.
        report.failed[run] = one_line(str(error), _CELL)
        tell(f"not exported: {report.failed[run]}")
        return
    report.written.append({"id": run, "file": str(path), "missing": exported.missing})
    if not options.json:
        say(str(path))
    report.incomplete += bool(exported.missing)
    for what in exported.missing:
        tell(f"    it lacks {one_line(what, _CELL)}")


def _name(run: str, run_id: str) -> str:
    """Of the file of a run: callers may use an id again."""
    return f"{name_of(run)}.{run_id}"


def _kept(folder: Path, run: RunSummary) -> Path | None:
    """The file that was written after the run had ended. One that is incomplete is not written
    again: as time goes by Temporal has less of the run, not more."""
    for suffix in (_WHOLE, _INCOMPLETE):
        path = folder / f"{_name(run.id, run.run_id)}{suffix}"
        with contextlib.suppress(FileNotFoundError):
            written = path.stat().st_mtime
            if run.closed and abs(written - run.closed.timestamp()) < 0.001:
                return path
    return None


def _tell(options: argparse.Namespace, report: _Report) -> int:
    if options.json:
        say_json(
            {
                "out": str(options.out),
                "written": report.written,
                "kept": report.kept,
                "failed": report.failed,
            }
        )
    counts = {
        "written": len(report.written),
        "there already": report.kept,
        "incomplete": report.incomplete,
        "not exported": len(report.failed),
    }
    told = ", ".join(f"{number:,} {what}" for what, number in counts.items() if number)
    tell(f"{told or 'no runs that have ended'} ({options.out})")
    if report.left_out:
        tell(f"More runs were chosen than {options.count:,} (--count).")
    return FAILED if report.failed or report.incomplete or report.left_out else 0
