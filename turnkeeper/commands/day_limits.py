"""`starter.py day-limit`: what all runs of an agent or a tenant may use in a day."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from turnkeeper.commands.place import Complaint, Place
from turnkeeper.commands.runs import person
from turnkeeper.commands.spelling import doubt
from turnkeeper.commands.terminal import say, say_json, tell
from turnkeeper.text import one_line

if TYPE_CHECKING:
    from turnkeeper.client import AgentClient
    from turnkeeper.days import DayUse
    from turnkeeper.switchboard import Changed

_CELL = 200


async def set_limit(place: Place, options: argparse.Namespace) -> int:
    """Set a limit, or another one."""
    if options.cost_usd is None and options.tokens is None:
        raise Complaint("a limit on what? give --cost-usd, --tokens, or both", code=2)
    async with place.client(to_read=True) as client:
        before = await _of(client, options)
        done = await client.limit_day(
            options.kind,
            options.name,
            cost_usd=options.cost_usd,
            tokens=options.tokens,
            actor=options.actor or person(),
        )
        instead = f", in place of {before.limit.bounds}" if before and done == "changed" else ""
        _print(options, done, f"set{instead}", "it holds from 2 s on")
        if doubtful := await doubt(place, client, options.kind, options.name):
            tell(doubtful)
    return 0


async def remove(place: Place, options: argparse.Namespace) -> int:
    """Take a limit away."""
    async with place.client(to_read=True) as client:
        actor = options.actor or person()
        done = await client.remove_day_limit(options.kind, options.name, actor=actor)
        _print(options, done, "removed", "runs that wait for it go on within a minute")
    return 0


async def list_limits(place: Place, options: argparse.Namespace) -> int:
    """Print what is set, and what was used today."""
    async with place.client(to_read=True) as client:
        found = await client.day_limits()
    if options.json:
        say_json({"day_limits": [x.model_dump(mode="json") for x in found]})
    elif not found:
        tell("no limits per day are set")
    for each in [] if options.json else found:
        say(_line(each))
    return 0


async def _of(client: AgentClient, options: argparse.Namespace) -> DayUse | None:
    of = (options.kind, options.name)
    return next((x for x in await client.day_limits() if (x.limit.kind, x.limit.name) == of), None)


def _print(options: argparse.Namespace, done: Changed, what: str, then: str) -> None:
    named = f"the limit per day of {options.kind} {one_line(options.name, _CELL)}"
    if options.json:
        say_json({"kind": options.kind, "name": options.name, "day_limit": done})
    elif done == "changed":
        say(f"{named} is {what}: {then}")
    elif done == "unchanged":
        say(f"{named} was {what} already")
    else:
        say(f"no worker answers: {named} is {what} as soon as one does")


def _line(each: DayUse) -> str:
    limit = each.limit
    by = f" by {one_line(limit.actor, _CELL)}" if limit.actor else ""
    return f"{limit.named}: {limit.told(each.used)} used today, set{by}"
