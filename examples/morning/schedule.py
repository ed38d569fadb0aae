"""The schedule that starts the morning agent; the server keeps it and needs no process of ours.

    python -m examples.morning.schedule apply --hour 7 --zone Europe/Berlin
    python -m examples.morning.schedule trigger     # one run now
    python -m examples.morning.schedule delete

`apply` makes the schedule, or changes the one that is there. It connects as every program does, by
TEMPORAL_ADDRESS and Temporal's other settings.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import sys
from datetime import timedelta
from pathlib import Path

from temporalio.client import (
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleCalendarSpec,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleRange,
    ScheduleSpec,
    ScheduleUpdate,
    ScheduleUpdateInput,
)
from temporalio.service import RPCError, RPCStatusCode

from turnkeeper import AgentClient
from turnkeeper.commands.place import Place
from turnkeeper.contract import WORKFLOW

__all__ = ["SCHEDULE", "apply", "delete", "trigger"]

SCHEDULE = "morning"
_ROOT = Path(__file__).resolve().parents[2]
_PROMPT = "Brief the team on the open tickets."


async def apply(client: AgentClient, *, hour: int = 7, zone: str = "UTC") -> str:
    """Make the schedule, or change it; answers which.

    Raises:
        RPCError: the server cannot be reached, or knows no such time zone.
    """
    wanted = _schedule(client.task_queue, hour, zone)

    def change(found: ScheduleUpdateInput) -> ScheduleUpdate:
        # One that was paused stays paused.
        state = found.description.schedule.state
        return ScheduleUpdate(dataclasses.replace(wanted, state=state))

    try:
        await client.client.create_schedule(SCHEDULE, wanted)
    except ScheduleAlreadyRunningError:
        await client.client.get_schedule_handle(SCHEDULE).update(change)
        return "changed"
    return "made"


async def trigger(client: AgentClient) -> None:
    """Start a run now, unless one is going on.

    Raises:
        RPCError: there is no schedule, or the server cannot be reached.
    """
    await client.client.get_schedule_handle(SCHEDULE).trigger()


async def delete(client: AgentClient) -> bool:
    """Remove the schedule; runs that it has started go on. False if there was none.

    Raises:
        RPCError: the server cannot be reached.
    """
    try:
        await client.client.get_schedule_handle(SCHEDULE).delete()
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return False
    return True


def _schedule(task_queue: str, hour: int, zone: str) -> Schedule:
    return Schedule(
        action=ScheduleActionStartWorkflow(
            WORKFLOW,
            {"agent": "morning", "prompt": _PROMPT, "metadata": {"tenant": "support"}},
            # The server appends the firing's time: a run of its own each day, with its own
            # idempotency keys, that `starter.py show morning-2026-11-30T06:00:00Z` finds.
            id=SCHEDULE,
            task_queue=task_queue,
            static_summary=_PROMPT,
        ),
        spec=ScheduleSpec(
            calendars=[
                ScheduleCalendarSpec(hour=[ScheduleRange(hour)], day_of_week=[ScheduleRange(1, 5)])
            ],
            time_zone_name=zone,
        ),
        policy=SchedulePolicy(
            # A briefing that still runs, or waits for somebody, is not joined by a second one.
            overlap=ScheduleOverlapPolicy.SKIP,
            # If the server was down at seven, it is made up for until ten; the default is a year,
            # and would start a run for each day that was missed.
            catchup_window=timedelta(hours=3),
        ),
    )


async def _main(options: argparse.Namespace) -> str:
    client = await AgentClient.connect()
    if options.action == "apply":
        done = await apply(client, hour=options.hour, zone=options.zone)
        described = await client.client.get_schedule_handle(SCHEDULE).describe()
        times = described.info.next_action_times
        return f"schedule {SCHEDULE} {done}; next: {times[0] if times else 'never'}"
    if options.action == "trigger":
        await trigger(client)
        place = Place(_ROOT, _ROOT / ".turnkeeper")
        return f"triggered: {place.again('list', options=[('--agent', 'morning')])}"
    return f"schedule {SCHEDULE} removed" if await delete(client) else "there is no such schedule"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m examples.morning.schedule")
    parser.add_argument("action", choices=("apply", "trigger", "delete"))
    parser.add_argument("--hour", type=int, choices=range(24), default=7, metavar="0-23")
    parser.add_argument("--zone", default="UTC", help="such as Europe/Berlin")
    try:
        print(asyncio.run(_main(parser.parse_args())))  # noqa: T201 - a program for a terminal
    except (ConnectionError, RPCError) as error:
        sys.exit(str(error))
