"""A process that kills a worker at a chosen point of a run, and tells what it saw.

    python -m turnkeeper.testing.killer --address HOST:PORT

It reads orders from standard input and answers on standard output, one line of JSON each, and ends
with its input. It has no part in the run: it sees what anyone can read from the server. While an
activity runs its Started event is not in history yet; that it runs, and on which worker, is told by
the description of the run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from temporalio.api.enums.v1 import EventType, PendingActivityState
from temporalio.client import WorkflowExecutionStatus, WorkflowHandle

from turnkeeper.client import AgentClient
from turnkeeper.testing.embedded import NAMESPACE
from turnkeeper.testing.evidence import read_lines

__all__ = ["Kill", "Order"]

_POLL_SECONDS = 0.03


@dataclass(frozen=True)
class Order:
    """Kill process `pid` while it runs this activity of this run.

    `log`: also wait until this log, of the scripted provider or of the tools, has something that
    was begun and not ended: that an activity is started does not say that its work is.
    `patience`: seconds.
    """

    run: str
    activity: str
    activity_id: str
    pid: int
    log: str
    patience: float = 60


@dataclass(frozen=True)
class Kill:
    """What was seen at the moment of the kill; `problem` tells why there was none."""

    event_id: int = 0
    """Of the activity's Scheduled event."""
    last_event_id: int = 0
    """The end of the history, which has no end of the activity."""
    identity: str = ""
    attempt: int = 0
    begun: str = ""
    """What the log has begun and not ended: a request's number, or a tool call's key."""
    problem: str | None = None


async def kill(client: AgentClient, order: Order) -> Kill:
    """Watch, and kill at the point."""
    handle = client.client.get_workflow_handle(order.run)
    try:
        async with asyncio.timeout(order.patience):
            while True:
                found = await _look(handle, order)
                if found is not None:
                    if found.problem is None:
                        os.kill(order.pid, signal.SIGKILL)
                    return found
                await asyncio.sleep(_POLL_SECONDS)
    except TimeoutError:
        return Kill(problem=f"{order.activity} did not run in {order.patience:g} s")


async def _look(handle: WorkflowHandle[object, object], order: Order) -> Kill | None:
    described = await handle.describe()
    if described.status is not WorkflowExecutionStatus.RUNNING:
        return Kill(problem=f"the run ended before {order.activity} was seen")
    running = [
        p
        for p in described.raw_description.pending_activities
        if p.activity_id == order.activity_id
        and p.activity_type.name == order.activity
        and p.state == PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
        and p.last_worker_identity.startswith(f"{order.pid}@")
    ]
    begun = _open_work(Path(order.log))
    if not running or begun is None:
        return None
    scheduled, last = await _in_history(handle, order.activity_id)
    if scheduled is None:
        return None
    return Kill(
        event_id=scheduled,
        last_event_id=last,
        identity=running[0].last_worker_identity,
        attempt=running[0].attempt,
        begun=begun,
    )


async def _in_history(
    handle: WorkflowHandle[object, object], activity_id: str
) -> tuple[int | None, int]:
    """The activity's Scheduled event if history has no end of it, and the last event."""
    scheduled, last = None, 0
    async for event in handle.fetch_history_events():
        last = event.event_id
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            if event.activity_task_scheduled_event_attributes.activity_id == activity_id:
                scheduled = event.event_id
        elif event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
            ended = event.activity_task_completed_event_attributes.scheduled_event_id
            scheduled = None if ended == scheduled else scheduled
    return scheduled, last


def _open_work(log: Path) -> str | None:
    """What the log's last lines have begun and not ended."""
    begun: dict[str, None] = {}
    for line in read_lines(log):
        name = str(line["arrival"] if "arrival" in line else line["key"])
        if line["event"] in ("request", "begin"):
            begun[name] = None
        else:
            begun.pop(name, None)
    return next(reversed(begun), None)


async def _serve(address: str) -> None:
    client = await AgentClient.connect(address, namespace=NAMESPACE, settings={})
    while line := await asyncio.to_thread(sys.stdin.readline):
        done = await kill(client, Order(**json.loads(line)))
        sys.stdout.write(json.dumps(asdict(done)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Kill a worker at a chosen point of a run.")
    parser.add_argument("--address", required=True)
    asyncio.run(_serve(parser.parse_args().address))
    # A short-lived process that used temporalio may abort while the interpreter is taken down.
    os._exit(0)
