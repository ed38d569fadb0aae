"""`starter.py watch`: one run, live: on the whole terminal, in plain lines, or as JSON."""

from __future__ import annotations

import argparse
import asyncio
import sys
import textwrap
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from turnkeeper.commands.place import Place, exit_code
from turnkeeper.commands.run import print_result
from turnkeeper.commands.show import followable
from turnkeeper.commands.terminal import Screen, has_colours, say, say_json, tell, width
from turnkeeper.text import age, one_line

if TYPE_CHECKING:
    from turnkeeper.commands.look import Look, Work
    from turnkeeper.contract import RunResult

_INDENT = 10
_LINE = 400
_WORK = 10
"""Calls that are shown."""


async def watch(place: Place, options: argparse.Namespace) -> int:
    """Show how a run stands until it ends; its exit code is that of `run`."""
    from turnkeeper.client import AgentRunHandle
    from turnkeeper.commands.look import looks

    async with place.reach(to_read=True) as (client, alone):
        status = await followable(place, client, options.id, alone=alone)
        seen = looks(client, options.id, status)
        try:
            if options.json:
                return exit_code((await _objects(place, seen)).outcome)
            if Screen.is_there(sys.stdout):
                result = await _drawn(place, seen)
            else:
                result = await _lines(seen)
        except asyncio.CancelledError:
            tell(f"\nThe run goes on without you. To see it: {place.again('watch', options.id)}")
            tell(f"To stop it: {place.again('stop', options.id)}")
            raise
        handle = AgentRunHandle(client, options.id, existed=True)
        return print_result(place, handle, result, as_json=False)


# --- the whole terminal -------------------------------------------------------------------------


async def _drawn(place: Place, seen: AsyncIterator[Look]) -> RunResult:
    colour = has_colours(sys.stdout)
    lines: list[str] = []
    with Screen(sys.stdout) as screen:
        async for look in seen:
            helps = look.waits or any(p.commands for p in look.problems)
            answering = place.again("why", look.id) if helps else ""
            lines = frame(look, answering, width=width(), colour=colour)
            leaving = "" if look.result else "Ctrl-C leaves; the run goes on."
            screen.draw([*lines, "", leaving])
    # What was seen last stays, now among the other lines of the terminal.
    for line in lines:
        say(line)
    return _result(look)


def frame(look: Look, answering: str, *, width: int, colour: bool = False) -> list[str]:
    """The run at one moment, a line for each thing; `answering` is the command that tells how."""
    status = look.status
    model = f" · {one_line(status.model, 80)}" if status.model else ""
    # Whatever answers under this id may say anything.
    lines = [
        _row("run", one_line(look.id, 200)),
        _row("agent", f"{one_line(status.agent, 64)}{model}"),
        _row("phase", f"{one_line(status.phase, 64)} · turn {status.turn:,}"),
    ]
    if status.waiting_for and look.result is None:
        lines += _rows("waiting", _wrapped(f"for {one_line(status.waiting_for, 500)}", width))
    if answering:
        # To be pasted whole: no margin cuts it.
        lines.append(_row("", f"to {'answer' if look.waits else 'mend it'}: {answering}"))
    lines += _rows("used", _wrapped(_used(look), width))
    for problem in look.problems:
        told = f"{problem.what}; {problem.mend}" if problem.mend else problem.what
        lines += _rows("problem", _wrapped(one_line(told, 1_000), width))
    room = width - _INDENT
    work = [_work(w, look.at, room, colour=colour) for w in look.work[:_WORK]]
    more = [f"and {len(look.work) - _WORK} more"] if len(look.work) > _WORK else []
    steps = [_step(s.turn, s.phase, s.text, room) for s in look.steps]
    return [*lines, *_rows("calls", [*work, *more]), *_rows("last", steps)]


def _row(name: str, text: str) -> str:
    return f"{name:<{_INDENT}}{text}".rstrip()


def _rows(name: str, texts: Sequence[str]) -> list[str]:
    return [_row(name if i == 0 else "", text) for i, text in enumerate(texts)]


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width - _INDENT, break_on_hyphens=False)


def _used(look: Look) -> str:
    from turnkeeper.render import usage_text, window_text

    status, limits = look.status, look.status.limits
    told = [f"{status.turn:,} of {limits.turns:,} turns"]
    if status.usage.total:
        bound = f" of {limits.tokens:,}" if limits.tokens else ""
        told.append(f"{usage_text(status.usage)}{bound}")
    if (context := status.context) is not None:
        told.append(f"window {window_text(context.tokens, context.window, context.epoch)}")
    seconds = look.result.seconds if look.result else (look.at - look.started).total_seconds()
    told.append(f"{age(seconds)} of {age(limits.wall_seconds)}")
    return " · ".join(told)


def _work(work: Work, now: datetime, room: int, *, colour: bool) -> str:
    status = f"{one_line(work.status, 9):<9}"
    note = f" ({work.note})" if work.note else ""
    told = one_line(f"{work.what} {one_line(work.arguments, 60)}{note}", room - 19)
    if colour and work.status in _COLOURS:
        status = f"\x1b[{_COLOURS[work.status]}m{status}\x1b[0m"
    return f"{status} {_taken(work, now):>7}  {told}"


_COLOURS = {"running": "33", "waiting": "35", "done": "32"}


def _taken(work: Work, now: datetime) -> str:
    if work.since is None:
        return ""
    # The server's clock may be ahead of ours.
    seconds = max(((work.until or now) - work.since).total_seconds(), 0.0)
    return f"{seconds:.1f} s" if work.until and seconds < 10 else age(seconds)


def _step(turn: int, phase: str, text: str, room: int) -> str:
    start = f"{f'turn {turn}' if turn else '':<8}  {one_line(phase, 8):<8}  "
    return start + one_line(text, room - len(start))


# --- plain lines, and JSON ----------------------------------------------------------------------


async def _lines(seen: AsyncIterator[Look]) -> RunResult:
    """A line whenever the run stands elsewhere."""
    before = ""
    async for look in seen:
        status = look.status
        calls = ", ".join(f"{w.what} {w.status}" for w in look.work[:_WORK])
        parts = [
            f"waiting for {status.waiting_for}" if status.waiting_for else "",
            calls,
            *(f.mend or f.what for f in look.problems),
        ]
        told = "; ".join(one_line(p, 300) for p in parts if p)
        line = _step(status.turn, status.phase, told, _LINE)
        if line != before and look.result is None:
            say(f"{look.at.astimezone():%H:%M:%S}  {line}".rstrip())
            before = line
    return _result(look)


async def _objects(place: Place, seen: AsyncIterator[Look]) -> RunResult:
    """An object whenever something has changed, the last one with the result."""
    before: dict[str, object] = {}
    async for look in seen:
        told = _as_json(place, look)
        # What a problem is tells its age, too: that is no change.
        change = told | {"problems": [f.mend for f in look.problems]}
        if change != before:
            say_json({"at": look.at.isoformat(), **told})
            before = change
    return _result(look)


def _result(last: Look) -> RunResult:
    assert last.result is not None
    return last.result


def _as_json(place: Place, look: Look) -> dict[str, object]:
    return {
        "id": look.id,
        "status": look.status.model_dump(mode="json", exclude={"calls"}),
        "calls": [
            {
                "call_id": w.call_id or None,
                "what": w.what,
                "status": w.status,
                "arguments": w.arguments,
                "since": w.since.isoformat() if w.since else None,
                "until": w.until.isoformat() if w.until else None,
                "note": w.note or None,
            }
            for w in look.work
        ],
        "waits": list(look.waits),
        "workers": list(look.workers),
        "problems": [
            {"what": f.what, "mend": f.mend, "commands": [place.write(c) for c in f.commands]}
            for f in look.problems
        ],
        "started": look.started.isoformat(),
        "result": look.result.model_dump(mode="json") if look.result else None,
    }
