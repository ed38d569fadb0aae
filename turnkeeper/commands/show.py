"""`starter.py show`: a run's transcript, open or closed, with or without a worker."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from turnkeeper.commands.approvals import until_words
from turnkeeper.commands.files import draft, keep, name_of
from turnkeeper.commands.place import USAGE, Complaint, Place
from turnkeeper.commands.run import print_result, wait
from turnkeeper.commands.terminal import (
    say,
    say_json,
    tell,
    tell_commands,
    tell_deciding,
    tell_settling,
)
from turnkeeper.suggestion import ending_waits

if TYPE_CHECKING:
    from turnkeeper.client import AgentClient
    from turnkeeper.contract import RunResult, RunStatus
    from turnkeeper.history import ToolRun, Transcript

# Of the worker, for the status: the transcript needs none.
_PATIENCE = 2.0
_FOLDED_LINES = 20


async def show(place: Place, options: argparse.Namespace) -> int:
    """Print the transcript; with `--follow` the steps until the end, then the answer; with `--html`
    write it as a page."""
    if options.html is not None:
        return await _write_page(place, options)
    async with place.reach(to_read=True) as (client, alone):
        if options.follow:
            from turnkeeper.client import AgentRunHandle

            await followable(place, client, options.id, alone=alone)
            result = await wait(place, client, options.id)
            handle = AgentRunHandle(client, options.id, existed=True)
            return print_result(place, handle, result, as_json=options.json)
        status, transcript = await asyncio.gather(
            client.status(options.id, timeout=_PATIENCE), client.transcript(options.id)
        )
        ended = await client.result(options.id, check=False) if status.outcome else None
    if options.json:
        say_json(_as_json(options.id, status, transcript, ended))
    else:
        fold = folding(sys.stdout, full=options.full)
        _print(options.id, status, transcript, ended, fold)
        _advise(place, options.id, status)
    return 0


async def _write_page(place: Place, options: argparse.Namespace) -> int:
    """Its one line of output is the file's path, or it is the page itself."""
    if options.follow or options.json:
        raise Complaint("a page is neither followed nor JSON: --html stands alone", USAGE)
    async with place.client(to_read=True) as client:
        written = await client.page(options.id, timeout=_PATIENCE)
    if options.html == "-":
        say(written.rstrip())
        return 0
    path = Path(options.html or f"{name_of(options.id)}.html")
    with draft(path.parent) as file:
        file.write(written.encode())
        keep(file, path)
    say(str(path))
    return 0


async def followable(place: Place, client: AgentClient, run: str, *, alone: bool) -> RunStatus:
    """The status of a run that may go on, or has ended.

    Raises:
        Complaint: it cannot go on, since its server runs for this command `alone`.
    """
    status = await client.status(run, timeout=0.1 if alone else _PATIENCE)
    if alone and status.outcome is None:
        raise Complaint(
            f"run {run} is open, and no server runs that its worker could use: "
            f"`make dev` ({place.command('dev')}) goes on with it"
        )
    return status


def folding(stream: TextIO, *, full: bool) -> int | None:
    """Lines of a result that are shown: a few to a person, all to a pipe or a file."""
    return _FOLDED_LINES if stream.isatty() and not full else None


def _print(
    run_id: str,
    status: RunStatus,
    transcript: Transcript,
    ended: RunResult | None,
    fold: int | None,
) -> None:
    from turnkeeper.render import approval_text, result_lines, transcript_text, unknown_text
    from turnkeeper.text import one_line, seen_line

    say(f"run       {run_id}")
    _print_origin(status, transcript)
    if ended is not None:
        outcome, *reason = result_lines(ended)
        say(f"outcome   {outcome}")
        for line in reason:
            say(f"          {line}")
    else:
        # Whatever answers a query under this id may say anything.
        phase, awaited = one_line(status.phase, 64), one_line(status.waiting_for, 500)
        say(f"phase     {phase} · turn {status.turn} · waiting for {awaited}")
        if status.usage.total:
            say(f"used      {_used(status)}")
    if "limits" in status.model_fields_set:
        say(f"limits    {_limits(status, ended)}")
    for asked in status.approvals:
        say(f"approval  {approval_text(asked)}")
        if asked.status == "waiting":
            say(f"          {until_words(asked)}")
    for call in status.unknown:
        say(f"unknown   turn {call.turn} · {unknown_text(call)}")
        say(f"          {seen_line(call.what, 500)}")
        say(f"          arguments {seen_line(call.arguments, 500)}; key {one_line(call.key, 100)}")
    if not transcript.entries and isinstance(transcript.start, dict):
        say(f"prompt    {one_line(str(transcript.start.get('prompt')), 1_000)}")
    tail = [f"{t.input.tool}: {_how_far(t, ended)}" for t in transcript.tail]
    if transcript.entries or tail:
        say()
        told = transcript_text(
            transcript.entries,
            unanswered=tail,
            ended=ended is not None,
            epochs=transcript.epochs,
            fold=fold,
        )
        say(told)


def _print_origin(status: RunStatus, transcript: Transcript) -> None:
    from turnkeeper.text import one_line, seen_line

    model = f" · {one_line(status.model, 80)}" if status.model else ""
    say(f"agent     {one_line(status.agent, 64)}{model}")
    if transcript.tenant:
        say(f"tenant    {seen_line(transcript.tenant, 200)}")


def _limits(status: RunStatus, ended: RunResult | None) -> str:
    from turnkeeper.page.ink import span

    limits = status.limits
    used = [f"turns {status.turn:,} of {limits.turns:,}"]
    if (seconds := _seconds(status, ended)) is not None:
        used.append(f"time {span(seconds)} of {span(limits.wall_seconds)}")
    if limits.tokens is not None:
        used.append(f"tokens {status.usage.total:,} of {limits.tokens:,}")
    return " · ".join(used)


def _seconds(status: RunStatus, ended: RunResult | None) -> float | None:
    """How long it took, or has been open; None where that is not known."""
    if ended is not None:
        return ended.seconds
    return max(time.time() - status.started, 0) if status.started else None


def _used(status: RunStatus) -> str:
    from turnkeeper.render import usage_text, window_text

    if (context := status.context) is None:
        return usage_text(status.usage)
    window = window_text(context.tokens, context.window, context.epoch)
    return f"{usage_text(status.usage)} · window {window}"


def _advise(place: Place, run_id: str, status: RunStatus) -> None:
    for call in status.unknown:
        if call.status == "waiting":
            tell()
            tell_settling(place, run_id, call.call_id)
    for asked in status.approvals:
        if asked.status == "waiting":
            tell()
            tell_deciding(place, run_id, asked.id)
    if others := ending_waits(run_id, status.awaited, paused=status.paused is not None):
        tell()
        tell_commands(place, others)


def _how_far(call: ToolRun, ended: RunResult | None) -> str:
    if call.failure is not None:
        return call.failure
    if call.output is not None and call.output.asks is not None:
        return "waits for a person to allow it" if ended is None else "not run: nobody decided"
    if call.output is not None:
        read = "has not read it yet" if ended is None else "did not read it"
        return f"returned, and the model {read}"
    return "not returned yet" if ended is None else f"not finished: the run was {ended.outcome}"


def _as_json(
    run_id: str, status: RunStatus, transcript: Transcript, ended: RunResult | None
) -> dict[str, object]:
    return {
        "id": run_id,
        # A run that ended before it had an agent had no limits, either.
        "status": status.model_dump(
            mode="json", exclude=None if "limits" in status.model_fields_set else {"limits"}
        ),
        "result": ended.model_dump(mode="json") if ended else None,
        "entries": [e.model_dump(mode="json", exclude_none=True) for e in transcript.entries],
        "unanswered": [
            {"tool": t.input.tool, "call_id": t.input.call_id, "arguments": t.input.arguments}
            for t in transcript.tail
        ],
    }
