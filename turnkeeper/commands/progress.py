"""A run's steps for a person who waits, and a word about what is pending when none comes.

Attempts that fail and are retried are not in history while they go on: without that word a provider
that is down, or a missing worker, would look like a slow one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from turnkeeper.follow import Step

if TYPE_CHECKING:
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
    from temporalio.service import RPCError

    from turnkeeper.outside import pending_line

    try:
        described = await client.client.get_workflow_handle(run_id).describe()
    except RPCError:
        return "for the Temporal server, which does not answer; the run goes on when it is back"
    raw = described.raw_description
    if raw.HasField("pending_workflow_task"):
        queue = described.task_queue
        return f"no worker takes the next step from task queue {queue} (`make dev` runs one)"
    told = "; ".join(pending_line(p) for p in raw.pending_activities)
    return f"for {told}" if told else ""
