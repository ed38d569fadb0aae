"""A run's steps for a person who waits, and a word about what is pending when none comes.

Attempts that fail and are retried are not in history while they go on: without that word a provider
that is down, or a missing worker, would look like a slow one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from turnkeeper.follow import Step
from turnkeeper.text import one_line

if TYPE_CHECKING:
    from temporalio.api.workflow.v1 import PendingActivityInfo

    from turnkeeper.client import AgentClient

_SILENCE_SECONDS = 5.0


async def progress(client: AgentClient, run_id: str) -> AsyncIterator[Step]:
    """The steps of `AgentClient.follow`, and steps of phase WAITING in between."""
    steps = client.follow(run_id)
    coming = asyncio.ensure_future(anext(steps, None))
    said = ""
    try:
        while True:
            done, _ = await asyncio.wait([coming], timeout=_SILENCE_SECONDS)
            if done:
                step = coming.result()
                if step is None:
                    return
                coming = asyncio.ensure_future(anext(steps, None))
                said = ""
                yield step
            elif (word := await _pending(client, run_id)) not in ("", said):
                said = word
                yield Step(0, "WAITING", 0, word)
    finally:
        coming.cancel()


async def _pending(client: AgentClient, run_id: str) -> str:
    """What the server waits for."""
    described = await client.client.get_workflow_handle(run_id).describe()
    raw = described.raw_description
    if raw.HasField("pending_workflow_task"):
        queue = described.task_queue
        return f"no worker takes the next step from task queue {queue} (`make dev` runs one)"
    return "; ".join(_activity(p) for p in raw.pending_activities)


def _activity(pending: PendingActivityInfo) -> str:
    name = one_line(pending.activity_type.name, 80)
    if pending.HasField("last_failure"):
        why = one_line(pending.last_failure.message, 300)
        return f"{name}: attempt {pending.attempt} after a failure: {why}"
    if pending.HasField("last_started_time"):
        return f"{name} is running"
    return f"{name} waits for a worker"
