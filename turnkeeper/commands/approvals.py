"""`starter.py approvals`, `approve` and `deny`: calls that wait for a person's word."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from turnkeeper.commands.place import FAILED, USAGE, Complaint, Place
from turnkeeper.commands.runs import person
from turnkeeper.commands.selection import query_of
from turnkeeper.commands.terminal import below, say, say_json, table, tell, tell_deciding
from turnkeeper.text import age, clock, escaped, one_line, seen_line, two_units

if TYPE_CHECKING:
    from turnkeeper.client import PendingApproval
    from turnkeeper.contract import ApprovalAsked
    from turnkeeper.outside import Origin

_HEADINGS = ("APPROVAL", "TOOL", "EFFECT", "AGE", "EXPIRES", "RUN")
_CELL = 300


async def approvals(place: Place, options: argparse.Namespace) -> int:
    """List the calls that wait, over all runs, the most urgent at the top."""
    async with place.client(to_read=True) as client:
        try:
            found = [a async for a in client.approvals(query_of(options), limit=options.count)]
        except ValueError as error:
            raise Complaint(str(error), USAGE) from error
    found.sort(key=lambda a: (a.asked.until, a.asked.turn, a.asked.call_id))
    if options.json:
        say_json({"approvals": [_as_json(a) for a in found]})
    elif not found:
        tell("nothing waits for a person to allow it")
    else:
        _print(found)
        tell()
        tell_deciding(place, found[0].id, found[0].asked.id, "the first")
    return 0


async def approve(place: Place, options: argparse.Namespace) -> int:
    """Let one be run."""
    async with place.client(to_read=True) as client:
        decided = await client.approve(
            options.run,
            options.approval,
            actor=options.actor or person(),
            proof=options.proof,
            remember=options.remember,
        )
    return _told(place, options, "approve", decided)


async def deny(place: Place, options: argparse.Namespace) -> int:
    """Have one not run."""
    async with place.client(to_read=True) as client:
        decided = await client.deny(
            options.run,
            options.approval,
            reason=options.reason,
            actor=options.actor or person(),
            proof=options.proof,
        )
    return _told(place, options, "deny", decided)


def _told(place: Place, options: argparse.Namespace, verb: str, decided: str) -> int:
    run = one_line(options.run, _CELL)
    if options.json:
        say_json({"id": options.run, "approval": options.approval, verb: decided})
    elif decided == "decided":
        word = "is run" if verb == "approve" else "is not run"
        say(f"run {run} goes on: the call {word}")
    elif decided == "unchanged":
        word = "allowed" if verb == "approve" else "denied"
        showing = place.again("show", options.run)
        say(f"the call was {word} already, nothing has changed: {showing}")
    elif decided == "queued":
        say(f"no worker answers: run {run} is told as soon as one does")
    else:
        showing = place.again("show", options.run)
        raise Complaint(f"run {run} has ended, nothing is decided any more: {showing}")
    return FAILED if decided == "ended" else 0


def _print(found: list[PendingApproval]) -> None:
    heading, *lines = table([_HEADINGS, *map(_row, found)])
    say(heading)
    for line, pending in zip(lines, found, strict=True):
        say(line)
        for detail in _details(pending):
            say(detail)


def _row(pending: PendingApproval) -> tuple[str, ...]:
    asked, now = pending.asked, time.time()
    left = asked.until - now
    return (
        one_line(asked.id, 64),
        one_line(asked.tool, 64),
        asked.effect,
        age(now - asked.since),
        f"in {two_units(left)}" if left > 0 else "now",
        one_line(pending.id, _CELL),
    )


def _details(pending: PendingApproval) -> list[str]:
    from turnkeeper.approvals import arguments_of

    asked = pending.asked
    where = f"agent {one_line(pending.agent, 64)}, turn {asked.turn}"
    because = f"asked because {seen_line(asked.why, _CELL)}; {where}"
    until = f"{until_words(asked)}{whose_words(pending.origin)}"
    return below((arguments_of(asked, 1_000), because, until))


def asked_lines(asked: ApprovalAsked) -> list[str]:
    """One that waits, by itself: what is to be allowed, why that is asked, and until when."""
    from turnkeeper.approvals import arguments_of

    return [
        f"{one_line(asked.tool, 64)} {arguments_of(asked, 1_000)}",
        f"because {seen_line(asked.why, _CELL)}; effect {asked.effect}, turn {asked.turn}",
        f"{until_words(asked)} (approval {one_line(asked.id, 64)})",
    ]


def until_words(asked: ApprovalAsked) -> str:
    """Until when it can be decided, and why then; whether that is the second time."""
    late = ", nobody decided in time before" if asked.escalated else ""
    left = asked.until - time.time()
    then = f"in {two_units(left)}" if left > 0 else "now"
    return f"until {clock(asked.until)}, {then}, {asked.until_why}{late}"


def whose_words(origin: Origin) -> str:
    """`; tenant acme, on behalf of ann`, of what was told at the start."""
    told = [f"tenant {escaped(origin.tenant)}"] if origin.tenant else []
    told += [f"on behalf of {escaped(origin.principal)}"] if origin.principal else []
    return f"; {', '.join(told)}" if told else ""


def _as_json(pending: PendingApproval) -> dict[str, object]:
    return {
        "id": pending.id,
        "run_id": pending.run_id,
        "agent": pending.agent,
        "tenant": pending.origin.tenant or None,
        "principal": pending.origin.principal or None,
        "approval": pending.asked.model_dump(mode="json"),
    }
