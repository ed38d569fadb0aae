"""What Temporal recorded of a run, execution by execution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from temporalio.client import Client

from tests.rig import is_failed_task


@dataclass(frozen=True)
class Execution:
    """One link of a run's chain. size: bytes of its events; carried: of the state it began with,
    None for the first."""

    events: Sequence[Any]
    size: int
    carried: int | None

    @property
    def failed_tasks(self) -> int:
        """Workflow tasks that a worker failed, or that the server refused."""
        return sum(map(is_failed_task, self.events))


async def executions(client: Client, workflow_id: str) -> list[Execution]:
    """Of a run, the first one first."""
    run_id = (await client.get_workflow_handle(workflow_id).describe()).run_id
    found: list[Execution] = []
    while run_id:
        handle = client.get_workflow_handle(workflow_id, run_id=run_id)
        events = [e async for e in handle.fetch_history_events()]
        started = events[0].workflow_execution_started_event_attributes
        run_id = started.continued_execution_run_id
        carried = len(started.input.payloads[0].data) if run_id else None
        found.insert(0, Execution(events, sum(e.ByteSize() for e in events), carried))
    return found
