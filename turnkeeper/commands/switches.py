"""`starter.py switch`: kill switches for tools, agents and tenants."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from turnkeeper.commands.place import Place
from turnkeeper.commands.runs import person
from turnkeeper.commands.spelling import doubt
from turnkeeper.commands.terminal import say, say_json, tell
from turnkeeper.text import age, one_line

if TYPE_CHECKING:
    from turnkeeper.client import AgentClient
    from turnkeeper.switchboard import Switched

_CELL = 200
_ON = {
    "tool": "it may be called again from 2 s on",
    "agent": "its runs go on in a minute",
    "tenant": "its runs go on in a minute",
}


async def off(place: Place, options: argparse.Namespace) -> int:
    """Switch something off."""
    # Also where no server runs: it is kept there until the next worker.
    async with place.client(to_read=True) as client:
        await _switch(client, options, "off")
        if doubtful := await doubt(place, client, options.kind, options.name):
            tell(doubtful)
    return 0


async def on(place: Place, options: argparse.Namespace) -> int:
    """Switch something on again."""
    async with place.client(to_read=True) as client:
        await _switch(client, options, "on")
        await _tell_where_off(place, client, options)
    return 0


async def list_switches(place: Place, options: argparse.Namespace) -> int:
    """Print what is switched off: in the whole namespace, or for the runs of one task queue."""
    async with place.client(to_read=True) as client:
        switches = await client.switches(task_queue=options.task_queue)
    if options.json:
        say_json({"switches": [s.model_dump(mode="json") for s in switches]})
    elif not switches:
        tell("nothing is switched off")
    for switch in [] if options.json else switches:
        by = f" by {one_line(switch.actor, _CELL)}" if switch.actor else ""
        since = age(time.time() - switch.since)
        named, why = one_line(switch.name, _CELL), one_line(switch.reason, 300)
        where = _where(client, switch.task_queue)
        say(f"{switch.kind} {named}: off {where} for {since}{by}: {why}")
    return 0


async def _switch(client: AgentClient, options: argparse.Namespace, state: str) -> None:
    ask = client.switch_off if state == "off" else client.switch_on
    actor, queue = options.actor or person(), options.task_queue
    switched = await ask(options.kind, options.name, options.reason, actor, task_queue=queue)
    _print(_where(client, queue), options, switched, state)


def _print(where: str, options: argparse.Namespace, switched: Switched, state: str) -> None:
    named = f"{options.kind} {one_line(options.name, _CELL)}"
    if options.json:
        told = {"kind": options.kind, "name": options.name, "task_queue": options.task_queue}
        say_json({**told, "switch": switched})
    elif switched == "switched":
        since = "nothing of it begins from 2 s on" if state == "off" else _ON[options.kind]
        say(f"{named} is switched {state} {where}: {since}")
    elif switched == "unchanged":
        say(f"{named} was {state} already {where}")
    else:
        say(f"no worker answers: {named} is switched {state} {where} as soon as one does")


async def _tell_where_off(place: Place, client: AgentClient, options: argparse.Namespace) -> None:
    """It may be off in two places: a word about one leaves the other."""
    for switch in await client.switches():
        if (switch.kind, switch.name) != (options.kind, options.name):
            continue
        queue = switch.task_queue
        if queue == options.task_queue:
            # Just a moment ago, or not heard yet.
            continue
        there = [("--task-queue", queue)] if queue else []
        command = place.again("switch on", switch.kind, switch.name, options=there)
        tell(f"it is still off {_where(client, queue)}: {command}")


def _where(client: AgentClient, task_queue: str | None) -> str:
    if task_queue is None:
        return f"in all of namespace {client.client.namespace}"
    return f"on task queue {one_line(task_queue, _CELL)} alone"
