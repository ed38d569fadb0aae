"""`starter.py fork` and `retry`: from a turn on, in another run or in the same one."""

from __future__ import annotations

import argparse

from turnkeeper.commands.place import Place
from turnkeeper.commands.run import limits_of
from turnkeeper.commands.runs import person
from turnkeeper.commands.terminal import say, say_json, tell


async def fork(place: Place, options: argparse.Namespace) -> int:
    """Start a run that begins with a part of another one; its id on stdout."""
    async with place.client() as client:
        handle = await client.fork(
            options.id,
            options.turn,
            options.edit,
            new_id=options.new_id,
            limits=limits_of(options.limit),
            task_queue=options.task_queue,
        )
    if options.json:
        say_json({"id": handle.id, "run_id": handle.run_id, "existed": handle.existed})
        return 0
    if handle.existed:
        tell(f"run {handle.id} exists already: nothing new was started")
    say(handle.id)
    tell(f"To see it: {place.again('watch', handle.id)}")
    return 0


async def retry(place: Place, options: argparse.Namespace) -> int:
    """Run a run again from a turn on, under its own id."""
    async with place.client() as client:
        handle = await client.retry_from(
            options.id,
            options.turn,
            again=options.again,
            reason=options.reason,
            actor=options.actor or person(),
        )
    if options.json:
        say_json({"id": handle.id, "run_id": handle.run_id})
        return 0
    say(f"run {handle.id} goes on from turn {options.turn}")
    tell(f"To see it: {place.again('watch', handle.id)}")
    return 0
