"""`starter.py why`: what a run waits for."""

from __future__ import annotations

import argparse
import dataclasses
import textwrap
from typing import TYPE_CHECKING

from turnkeeper.commands.approvals import asked_lines, whose_words
from turnkeeper.commands.place import Place
from turnkeeper.commands.terminal import (
    say,
    say_json,
    tell,
    tell_commands,
    tell_deciding,
    tell_settling,
    width,
)
from turnkeeper.text import age, escaped, one_line

if TYPE_CHECKING:
    from turnkeeper.diagnosis import Diagnosis


async def why(place: Place, options: argparse.Namespace) -> int:
    """Print what is pending of a run, and how to mend it."""
    async with place.reach(to_read=True) as (client, alone):
        found = await client.why(options.id)
    if options.json:
        say_json(_as_json(place, found))
    elif found.findings:
        _print(found)
        if alone:
            tell(f"No server runs. To start one, first: {place.command('dev')}")
        for finding in found.findings:
            tell_commands(place, finding.commands)
        for call in found.waiting:
            tell_settling(place, found.id, call.call_id)
        for asked in found.approvals:
            tell_deciding(place, found.id, asked.id)
    else:
        say(f"run {found.id} waits for nothing: it has ended ({found.status})")
        tell(f"To see how: {place.again('show', found.id)}")
    return 0


def _print(found: Diagnosis) -> None:
    say(f"run       {found.id}")
    say(f"agent     {escaped(found.origin.agent)}{whose_words(found.origin)}")
    if found.origin.prompt:
        _paragraph("prompt", one_line(found.origin.prompt, 300))
    say(f"status    {found.status}")
    polled = (f"{name} (polled {age(ago)} ago)" for name, ago in found.polled.items())
    workers = ", ".join(polled) or "none"
    _paragraph("workers", f"{workers} (task queue {found.task_queue})")
    for finding in found.findings:
        _paragraph("why", finding.what)
        if finding.mend:
            _paragraph("mend", finding.mend)
    for asked in found.approvals:
        for line in asked_lines(asked):
            _paragraph("asked", line)


def _paragraph(name: str, text: str) -> None:
    indent, text = " " * 10, escaped(text)
    for line in textwrap.wrap(
        text,
        width(),
        initial_indent=f"{name:<10}",
        subsequent_indent=indent,
        break_on_hyphens=False,
    ):
        say(line)


def _as_json(place: Place, found: Diagnosis) -> dict[str, object]:
    told = dataclasses.asdict(dataclasses.replace(found, waiting=(), approvals=()))
    return told | {
        "findings": [
            {"what": f.what, "mend": f.mend, "commands": [place.write(c) for c in f.commands]}
            for f in found.findings
        ],
        "waiting": [c.model_dump(mode="json") for c in found.waiting],
        "approvals": [a.model_dump(mode="json") for a in found.approvals],
    }
