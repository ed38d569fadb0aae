"""`starter.py unknown`: tool calls that may or may not have taken effect, listed and settled."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from turnkeeper.commands.place import FAILED, USAGE, Complaint, Place
from turnkeeper.commands.runs import person
from turnkeeper.commands.terminal import below, say, say_json, table, tell, tell_settling
from turnkeeper.text import age, one_line, seen_line

if TYPE_CHECKING:
    from turnkeeper.outside import UnknownOutcome

_RUNS = 1_000
_HEADINGS = ("STATUS", "AGE", "RUN", "CALL", "TOOL")
_CELL = 300


async def unknown(place: Place, options: argparse.Namespace) -> int:
    """List what nobody has settled, or all calls of one run, or settle one call."""
    if problem := _misuse(place, options):
        raise Complaint(problem, USAGE)
    if options.call is not None:
        return await _settle(place, options)
    return await (_list if options.run is None else _list_of)(place, options)


def _misuse(place: Place, options: argparse.Namespace) -> str:
    """What is wrong with options that each by itself is right; else empty."""
    settles = (options.landed, options.result, options.actor) != (None, None, None)
    lists = options.waiting or options.count is not None
    settling = f"{place.again('unknown', 'RUN', 'CALL', options=['--landed'])} (or --not-landed)"
    if options.run is None and settles:
        return f"name the run and the call: {settling}; without options all of them are listed"
    if options.run is not None and lists:
        return "--waiting and --count are for the list: leave out RUN and CALL"
    if options.run is not None and options.call is None and settles:
        return f"name the call, too: {settling}; without options its calls are listed"
    if options.call is not None and options.landed is None:
        return f"say whether the call took effect: {settling}"
    return ""


# --- the list -----------------------------------------------------------------------------------


async def _list(place: Place, options: argparse.Namespace) -> int:
    from turnkeeper.outside import has_attribute

    count = options.count or _RUNS
    async with place.client(to_read=True) as client:
        found = [o async for o in client.unknown_calls(waiting_only=options.waiting, limit=count)]
        searchable = await has_attribute(client.client, "TurnkeeperUnknown")
    _print(place, found, "no unknown outcomes", as_json=options.json)
    if not searchable:
        tell(
            "This namespace has no search attribute TurnkeeperUnknown: "
            f"only the last {count:,} runs were looked at (--count)."
        )
    elif len({o.run_id for o in found}) >= count:
        tell(f"Only {count:,} runs were looked at (--count).")
    return 0


async def _list_of(place: Place, options: argparse.Namespace) -> int:
    """What became of the calls of one run, those that were settled among them."""
    async with place.client(to_read=True) as client:
        found = await client.unknown_calls_of(options.run)
    nothing = f"run {one_line(options.run, _CELL)} has no unknown outcomes"
    _print(place, found, nothing, as_json=options.json)
    return 0


def _print(place: Place, found: list[UnknownOutcome], nothing: str, *, as_json: bool) -> None:
    # What has waited longest is looked at first; of what is past, the last.
    found.sort(
        key=lambda o: (0, o.call.since) if o.call.status == "waiting" else (1, -o.call.since)
    )
    if as_json:
        say_json({"unknown": [_as_json(o) for o in found]})
    elif not found:
        tell(nothing)
    else:
        for line in _table(found):
            say(line)
        first = found[0]
        if first.call.status == "waiting":
            tell()
            tell_settling(place, first.id, first.call.call_id, "the first")
            tell("With --result TEXT the model reads more than that.")


def _table(found: list[UnknownOutcome]) -> list[str]:
    """Two lines and more for each: what it is called, then what is known of it."""
    lines = table([_HEADINGS, *map(_row, found)])
    told = lines[:1]
    for line, outcome in zip(lines[1:], found, strict=True):
        told += [line, *_details(outcome)]
    return told


def _row(outcome: UnknownOutcome) -> tuple[str, ...]:
    # Callers choose the ids of runs, models those of calls.
    call = outcome.call
    return (
        call.status.replace("_", " "),
        age(time.time() - call.since),
        one_line(outcome.id, _CELL),
        one_line(call.call_id, _CELL),
        one_line(call.tool, 64),
    )


def _details(outcome: UnknownOutcome) -> list[str]:
    call = outcome.call
    return below(
        (
            f"agent {one_line(outcome.agent, 64)}, turn {call.turn}, the run is {outcome.status}",
            f"arguments {seen_line(call.arguments, 300)}",
            seen_line(call.what, 500),
            f"key {one_line(call.key, 100)}",
        )
    )


def _as_json(outcome: UnknownOutcome) -> dict[str, object]:
    return {
        "id": outcome.id,
        "run_id": outcome.run_id,
        "agent": outcome.agent,
        "status": outcome.status,
        "call": outcome.call.model_dump(mode="json"),
    }


# --- one call -----------------------------------------------------------------------------------


async def _settle(place: Place, options: argparse.Namespace) -> int:
    # Also where no server runs: it is kept there until the next worker.
    async with place.client(to_read=True) as client:
        resolved = await client.resolve(
            options.run,
            options.call,
            landed=options.landed,
            result=options.result or "",
            actor=options.actor or person(),
        )
    if options.json:
        say_json({"id": options.run, "call_id": options.call, "resolve": resolved})
    elif resolved == "resolved":
        verdict = "took effect" if options.landed else "did not take effect"
        say(f"run {options.run} goes on: call {options.call} {verdict}")
    elif resolved == "queued":
        say(f"no worker answers: run {options.run} is told as soon as one does")
    else:
        raise Complaint(
            f"run {options.run} has ended, nothing can be settled any more: "
            f"{place.again('show', options.run)}"
        )
    return FAILED if resolved == "ended" else 0
