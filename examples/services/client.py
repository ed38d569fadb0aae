"""A service that calls an agent with `AgentClient`.

    python -m examples.services.client q-17

`q-17` is the service's own name of its request; the server is TEMPORAL_ADDRESS, or 127.0.0.1:7233.
"""

from __future__ import annotations

import asyncio
import os
import sys

from turnkeeper import AgentClient
from turnkeeper.client import AgentRunHandle
from turnkeeper.contract import TASK_QUEUE
from turnkeeper.errors import RunError, RunFailed, UnknownAgent


async def start(
    client: AgentClient, run: str, agent: str, prompt: str, key: str, *, keep_open: bool = False
) -> AgentRunHandle:
    """Start a run, or get the one that an earlier call has started."""
    started = await client.start(agent, prompt, id=run, request_key=key, keep_open=keep_open)
    if started.existed:
        print(f"{run}: was started before")
    return started


async def approve(run: AgentRunHandle) -> None:
    """Allow what waits for a person, until the run has ended."""
    while (status := await run.status()).outcome is None:
        for asked in status.approvals:
            if asked.status == "waiting":
                await run.approve(asked.id, actor="ann")
        await asyncio.sleep(0.2)


async def converse(run: AgentRunHandle, key: str) -> None:
    """Say something, print the answer, end the conversation."""
    if await run.send("Hello?", message_id=f"{key}-1", actor="ann") == "ended":
        return
    print(f"{run.id}: answer: {await run.reply(f'{key}-1')}")
    await run.stop("that was all", actor="ann")


async def report(run: AgentRunHandle) -> None:
    """Wait for the end of a run, and print how it ended."""
    try:
        result = await run.result()
    except RunError as error:  # by its class: `LimitReached`, `RunStopped`, ...
        assert error.result is not None
        result = error.result
        if isinstance(error, UnknownAgent | RunFailed):  # it could not go on
            print(f"{run.id}: failed: {result.outcome}: {result.reason}")
            return
    print(f"{run.id}: {result.outcome}: {result.answer}")


async def main(key: str) -> None:
    """A refund that is allowed, a conversation that is stopped, a run that fails."""
    task_queue = os.environ.get("TURNKEEPER_TASK_QUEUE", TASK_QUEUE)
    client = await AgentClient.connect(task_queue=task_queue)
    async with asyncio.timeout(120):
        refund = await start(client, f"refund-{key}", "desk", "Refund order 1007.", key)
        await approve(refund)
        await report(refund)

        chat = await start(client, f"chat-{key}", "desk", "", key, keep_open=True)
        await converse(chat, key)
        await report(chat)

        await report(await start(client, f"nobody-{key}", "nobody", "Hello?", key))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
    sys.stdout.flush()
    # The SDK's threads may abort the interpreter's own shutdown (temporalio/sdk-python#300).
    os._exit(0)
