"""`starter.py stop`, `pause`, `resume` and `raise-limits`: what persons tell runs that go on."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from turnkeeper.commands.place import FAILED, USAGE, Complaint, Place
from turnkeeper.commands.run import limits_of
from turnkeeper.commands.runs import OPEN, chosen_runs, person, print_runs
from turnkeeper.commands.selection import query_of
from turnkeeper.commands.terminal import say, say_json, tell
from turnkeeper.control import limits_words
from turnkeeper.errors import TurnkeeperError
from turnkeeper.text import one_line

if TYPE_CHECKING:
    from turnkeeper.client import AgentClient

_CELL = 200
_AT_ONCE = 10
_ENDED = "ended"


@dataclass(frozen=True)
class _Verb:
    """Something that one run, or all that are chosen, can be told."""

    name: str
    done: str
    """What becomes of a run by it: `stopped`."""
    call: Callable[[AgentClient, str, str, str], Awaitable[str]]
    """With the run, the reason and the actor."""
    told: Mapping[str, str]
    """By the client's answer, what a person reads after the run's name."""
    ends: bool = False
    """Whether a run that has ended already is as it was asked for."""


async def stop(place: Place, options: argparse.Namespace) -> int:
    """Ask a run to stop; or all that are chosen, once they have been shown."""
    told = {"stopping": "is stopping", "queued": "stops"}
    verb = _Verb("stop", "stopped", lambda c, run, why, who: c.stop(run, why, who), told, True)
    return await _tell(place, options, verb)


async def pause(place: Place, options: argparse.Namespace) -> int:
    """Ask a run to wait before its next turn; or all that are chosen."""
    told = {
        "pausing": "pauses before its next turn; its time limit goes on",
        "paused": "is paused already, by somebody else's word",
        "queued": "pauses",
    }
    verb = _Verb("pause", "paused", lambda c, run, why, who: c.pause(run, why, who), told)
    return await _tell(place, options, verb)


async def resume(place: Place, options: argparse.Namespace) -> int:
    """Let a paused run go on; or all that are chosen."""
    told = {"resuming": "goes on", "running": "was not paused", "queued": "goes on"}
    verb = _Verb("resume", "resumed", lambda c, run, _why, who: c.resume(run, who), told)
    return await _tell(place, options, verb)


async def raise_limits(place: Place, options: argparse.Namespace) -> int:
    """Raise limits of a run that has not reached them."""
    limits = limits_of(options.limits, "raise-limits ID")
    async with place.client(to_read=True) as client:
        actor = options.actor or person()
        raised = await client.raise_limits(options.id, limits, options.reason, actor)
    shown = one_line(options.id, _CELL)
    if options.json:
        say_json({"id": options.id, "raise_limits": raised})
    elif raised == "raised":
        say(f"run {shown} has other limits now: {limits_words(limits)}")
    elif raised == "queued":
        say(f"no worker answers: run {shown} is told as soon as one does")
    else:
        fork = place.again("fork", options.id, options=[("--turn", "N")])
        raise Complaint(
            f"run {shown} has ended, its limits cannot be raised any more\n"
            f"A fork goes on from where it was: {fork}"
        )
    return FAILED if raised == _ENDED else 0


# --- one run, or several ------------------------------------------------------------------------


async def _tell(place: Place, options: argparse.Namespace, verb: _Verb) -> int:
    chosen = query_of(options) or options.waiting_for
    if options.id and chosen:
        raise Complaint("name a run, or choose several, not both", USAGE)
    if not options.id and not chosen:
        raise Complaint(
            f"name a run, or choose several: {verb.name} --agent NAME, --where QUERY, ... "
            "(see --help)",
            USAGE,
        )
    return await (_tell_one if options.id else _tell_chosen)(place, options, verb)


async def _tell_one(place: Place, options: argparse.Namespace, verb: _Verb) -> int:
    # Also where no server runs: the message is kept there until the next worker.
    async with place.client(to_read=True) as client:
        reason, actor = getattr(options, "reason", ""), options.actor or person()
        became = await verb.call(client, options.id, reason, actor)
    late = became == _ENDED and not verb.ends
    if options.json:
        say_json({"id": options.id, verb.name: became})
    elif late:
        raise Complaint(_told(place, verb, options.id, became))
    else:
        say(_told(place, verb, options.id, became))
    return FAILED if late else 0


async def _tell_chosen(place: Place, options: argparse.Namespace, verb: _Verb) -> int:
    would = f"would be {verb.done}"
    async with place.client(to_read=True) as client:
        # One more, to know whether there are more.
        found = await chosen_runs(client, options, open_only=True, limit=options.count + 1)
        runs, left_out = found[: options.count], len(found) > options.count
        ids = [r.id for r in runs]
        number = await _how_many(client, options, len(runs))
        became = await _tell_all(client, options, verb, ids) if options.yes else {}
    if options.json:
        rows = [{"id": run, verb.name: became.get(run, would)} for run in ids]
        say_json({"runs": rows, "left_out": left_out})
    elif options.yes:
        for run, what in became.items():
            say(_told(place, verb, run, what))
    elif runs:
        print_runs(runs)
        tell(f"{number} {would}: the same command with --yes does it")
    else:
        tell("no open runs")
    if left_out:
        tell(f"More runs were chosen than {options.count:,} (--count).")
    known = {*verb.told, _ENDED}
    failed = any(what not in known for what in became.values())
    return FAILED if failed or left_out else 0


async def _how_many(client: AgentClient, options: argparse.Namespace, found: int) -> str:
    """How many open runs were found, and of how many if `--count` cut them off."""
    if found == options.count:
        query = " AND ".join(filter(None, [query_of(options), OPEN]))
        everything = await client.count_runs(query, waiting_for=options.waiting_for)
        if everything > found:
            return f"{found:,} of {everything:,} open runs (--count)"
    return f"{found:,} open run{'' if found == 1 else 's'}"


async def _tell_all(
    client: AgentClient, options: argparse.Namespace, verb: _Verb, runs: Sequence[str]
) -> dict[str, str]:
    """What became of each, by its id: one that fails does not keep the others from it."""
    reason, actor = getattr(options, "reason", ""), options.actor or person()
    some = asyncio.Semaphore(_AT_ONCE)

    async def one(run: str) -> str:
        async with some:
            try:
                return await verb.call(client, run, reason, actor)
            except (LookupError, ConnectionError, TurnkeeperError) as error:
                return one_line(f"not {verb.done}: {error}", _CELL)

    return dict(zip(runs, await asyncio.gather(*map(one, runs)), strict=True))


def _told(place: Place, verb: _Verb, run: str, became: str) -> str:
    shown = one_line(run, _CELL)
    if became == "queued":
        return f"no worker answers: run {shown} {verb.told[became]} as soon as one does"
    if became == _ENDED:
        return f"run {shown} has ended already: {place.again('show', run)}"
    return f"run {shown} {verb.told[became]}" if became in verb.told else f"run {shown}: {became}"
