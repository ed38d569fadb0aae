"""A service that calls an agent with Temporal's Python SDK alone: bodies are plain JSON.

    python bare.py q-17

`q-17` is the service's own name of its request; the server is TEMPORAL_ADDRESS, or 127.0.0.1:7233.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from temporalio.client import (
    Client,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowUpdateFailedError,
)
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError, WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

Run = WorkflowHandle[Any, Any]


async def start(client: Client, run: str, request: dict[str, Any]) -> Run:
    """Start a run, or get the one that an earlier call has started."""
    try:
        await client.start_workflow(
            "AgentRun",
            request,
            id=run,
            task_queue=os.environ.get("TURNKEEPER_TASK_QUEUE", "turnkeeper"),
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
        )
    except WorkflowAlreadyStartedError:
        print(f"{run}: was started before")
    return client.get_workflow_handle(run)


async def tell(run: Run, update: str, body: dict[str, Any]) -> bool:
    """Whether the run has taken it, now or before; False if it has ended."""
    try:
        await run.execute_update(update, body)
    except WorkflowUpdateFailedError as error:
        refusal = error.cause.type if isinstance(error.cause, ApplicationError) else None
        if refusal not in ("duplicate_message", "run_ended"):
            raise
        return refusal == "duplicate_message"
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return False
        raise
    return True


async def approve(run: Run) -> None:
    """Allow what waits for a person, until the run has ended."""
    while "outcome" not in (status := await run.query("status")):
        for asked in status["approvals"]:
            if asked["status"] == "waiting":
                await tell(run, "approve", {"approval": asked["id"], "actor": "ann"})
        await asyncio.sleep(0.2)


async def converse(run: Run, key: str) -> None:
    """Say something, print the answer, end the conversation."""
    body = {"message_id": f"{key}-1", "text": "Hello?", "actor": "ann"}
    if not await tell(run, "send", body):
        return
    while not {"answer", "outcome"} & (status := await run.query("status")).keys():
        await asyncio.sleep(0.2)
    print(f"{run.id}: answer: {status.get('answer')}")
    await tell(run, "stop", {"reason": "that was all", "actor": "ann"})


async def report(run: Run) -> None:
    """Wait for the end of a run, and print how it ended."""
    try:
        result = await run.result()
    except WorkflowFailureError as error:
        if not isinstance(error.cause, ApplicationError):  # cancelled, terminated
            raise
        # `error.cause.details[0]` is the result as far as it went.
        print(f"{run.id}: failed: {error.cause.type}: {error.cause.message}")
        return
    print(f"{run.id}: {result['outcome']}: {result.get('answer')}")


async def main(key: str) -> None:
    """A refund that is allowed, a conversation that is stopped, a run that fails."""
    client = await Client.connect(os.environ.get("TEMPORAL_ADDRESS", "127.0.0.1:7233"))
    async with asyncio.timeout(120):
        refund = {"agent": "desk", "prompt": "Refund order 1007.", "request_key": key}
        run = await start(client, f"refund-{key}", refund)
        await approve(run)
        await report(run)

        chat = {"agent": "desk", "keep_open": True, "request_key": key}
        run = await start(client, f"chat-{key}", chat)
        await converse(run, key)
        await report(run)

        failing = {"agent": "nobody", "prompt": "Hello?", "request_key": key}
        await report(await start(client, f"nobody-{key}", failing))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
    sys.stdout.flush()
    # The SDK's threads may abort the interpreter's own shutdown (temporalio/sdk-python#300).
    os._exit(0)
