"""Exit with 0 if Temporal has seen this machine's worker poll in the last two minutes.

The health check of the worker's image: a worker that lives but lost its connection, or hangs,
is as useless as a dead one. Its task queue is TURNKEEPER_TASK_QUEUE, as for `worker.py`; the
connection's settings are Temporal's own (TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE, ...).
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from datetime import UTC, datetime, timedelta

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client
from temporalio.envconfig import ClientConfig

TASK_QUEUE = os.environ.get("TURNKEEPER_TASK_QUEUE", "turnkeeper")
# A poll waits for a task for up to a minute before the next one is seen.
RECENT = timedelta(minutes=2)


async def last_poll(host: str) -> datetime | None:
    """When a worker of this host last polled for workflow tasks; None if it is not known."""
    settings = ClientConfig.load_client_connect_config()
    settings.setdefault("target_host", "127.0.0.1:7233")
    client = await Client.connect(**settings)
    request = DescribeTaskQueueRequest(
        namespace=client.namespace,
        task_queue=TaskQueue(name=TASK_QUEUE),
        task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
    )
    described = await client.workflow_service.describe_task_queue(
        request, timeout=timedelta(seconds=5)
    )
    # A worker's identity is `<pid>@<host>`, a space and what it serves.
    polls = [
        p.last_access_time
        for p in described.pollers
        if p.identity.partition(" ")[0].endswith(f"@{host}")
    ]
    return max((poll.ToDatetime(UTC) for poll in polls), default=None)


def main() -> int:
    """The exit status, and one line that `docker inspect` shows."""
    poll = asyncio.run(last_poll(socket.gethostname()))
    print(f"last poll of {TASK_QUEUE}: {poll.isoformat() if poll else 'never'}")
    return 0 if poll and datetime.now(UTC) - poll < RECENT else 1


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    # The SDK's threads may abort the interpreter's own shutdown (temporalio/sdk-python#300).
    os._exit(status)
