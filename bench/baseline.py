"""The loop that Turnkeeper is compared with: each model call is given the whole transcript.

It keeps the messages in the workflow and passes them to an activity, as the usual examples do; the
activities do nothing but return texts of the same sizes as the scripted model and tool.
"""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

_PATIENCE = timedelta(minutes=1)
Message = dict[str, Any]


@activity.defn
async def baseline_model(messages: list[Message]) -> Message:
    """A reply that asks for the next page."""
    number = len(messages) // 2 + 1
    called = {"type": "tool_use", "id": f"toolu_{number:05d}_000", "name": "page"}
    content = [{"type": "text", "text": f"On to page {number}."}, called | {"input": [number]}]
    return {"role": "assistant", "content": content}


@activity.defn
async def baseline_tool(number: int, size: int) -> str:
    """A page."""
    from tests.prose import prose

    return f"Page {number}. {prose(number, size)}"


@workflow.defn
class Baseline:
    """The whole of it."""

    @workflow.run
    async def run(self, turns: int, size: int) -> int:
        """So many turns with results of so many bytes; the number of messages."""
        messages: list[Message] = [{"role": "user", "content": "Read the report."}]
        for number in range(1, turns + 1):
            reply: Message = await workflow.execute_activity(
                baseline_model, messages, start_to_close_timeout=_PATIENCE
            )
            read = await workflow.execute_activity(
                baseline_tool, args=[number, size], start_to_close_timeout=_PATIENCE
            )
            called = reply["content"][-1]["id"]
            result = {"type": "tool_result", "tool_use_id": called, "content": read}
            messages += [reply, {"role": "user", "content": [result]}]
        return len(messages)


async def run(client: Client, turns: int, size: int) -> str:
    """Run it; its workflow id."""
    name = f"baseline-{uuid.uuid4()}"
    async with Worker(
        client,
        task_queue=name,
        workflows=[Baseline],
        activities=[baseline_model, baseline_tool],
        workflow_runner=UnsandboxedWorkflowRunner(),
    ):
        await client.execute_workflow(Baseline.run, args=[turns, size], id=name, task_queue=name)
    return name
