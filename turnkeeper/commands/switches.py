"""`starter.py switch`: kill switches for tools, agents and tenants."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from turnkeeper.commands.place import Place
from turnkeeper.commands.runs import person
from turnkeeper.commands.terminal import say, say_json, tell
from turnkeeper.text import age, one_line

if TYPE_CHECKING:
    from turnkeeper.switchboard import Switched

_CELL = 200


async def off(place: Place, options: argparse.Namespace) -> int:
    """Switch something off."""
    # Also where no server runs: it is kept there until the next worker.
    async with place.client(to_read=True) as client:
        switched = await client.switch_off(
            options.kind, options.name, options.reason, options.actor or person()
        )
    _print(options, switched, "off")
    return 0


async def on(place: Place, options: argparse.Namespace) -> int:
    """Switch something on again."""
    async with place.client(to_read=True) as client:
        switched = await client.switch_on(
            options.kind, options.name, options.reason, options.actor or person()
        )
    _print(options, switched, "on")
    return 0


async def list_switches(place: Place, options: argparse.Namespace) -> int:
    """Print what is switched off."""
    async with place.client(to_read=True) as client:
        switches = await client.switches()
    if options.json:
        say_json({"switches": [s.model_dump(mode="json") for s in switches]})
    elif not switches:
        tell("nothing is switched off")
    for switch in [] if options.json else switches:
        by = f" by {one_line(switch.actor, _CELL)}" if switch.actor else ""
        since = age(time.time() - switch.since)
        named, why = one_line(switch.name, _CELL), one_line(switch.reason, 300)
        say(f"{switch.kind} {named}: off for {since}{by}: {why}")
    return 0


def _print(options: argparse.Namespace, switched: Switched, state: str) -> None:
    named = f"{options.kind} {one_line(options.name, _CELL)}"
    if options.json:
        say_json({"kind": options.kind, "name": options.name, "switch": switched})
    elif switched == "switched":
        waits = "runs that wait for it go on within a minute"
        on = "calls of it are run again" if options.kind == "tool" else waits
        since = "nothing of it begins from 2 s on" if state == "off" else on
        say(f"{named} is switched {state}: {since}")
    elif switched == "unchanged":
        say(f"{named} was {state} already")
    else:
        say(f"no worker answers: {named} is switched {state} as soon as one does")
