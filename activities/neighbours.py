"""Who else takes work from this worker's task queue: one task queue serves one application."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from turnkeeper.connection import readable
from turnkeeper.text import one_line

# A poll waits for a task for up to a minute before the next one is seen.
_RECENT = timedelta(seconds=75)


def identity(agents: Iterable[str]) -> str:
    """A worker's identity as the server shows it: `<pid>@<host> <agents>`."""
    return f"{os.getpid()}@{socket.gethostname()} {one_line(', '.join(sorted(agents)), 200)}"


async def of_another_application(client: Client, task_queue: str, own: str) -> list[str]:
    """Workers that poll the task queue and serve other agents; none if the server does not say.

    Raises:
        ConnectionError: the server has no such namespace.
    """
    found = await _polling(client, task_queue)
    return sorted(i for i in found if i.partition(" ")[2] != own.partition(" ")[2])


async def hosts(client: Client, task_queue: str) -> set[str]:
    """Hosts of the workers that poll the task queue, this one's left out.

    Raises:
        ConnectionError: the server has no such namespace.
    """
    found = {_host(identity) for identity in await _polling(client, task_queue)}
    return found - {"", socket.gethostname()}


async def _polling(client: Client, task_queue: str) -> list[str]:
    """Identities of the workers that poll the task queue; none if the server does not say."""
    request = DescribeTaskQueueRequest(
        namespace=client.namespace,
        task_queue=TaskQueue(name=task_queue),
        task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
    )
    try:
        described = await client.workflow_service.describe_task_queue(request)
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            raise readable(error, "", client) from error
        return []
    since = datetime.now(UTC) - _RECENT
    return [
        poller.identity
        for poller in described.pollers
        if poller.last_access_time.ToDatetime(UTC) > since and not _has_ended(poller.identity)
    ]


def _host(other: str) -> str:
    return other.partition(" ")[0].partition("@")[2]


def _has_ended(other: str) -> bool:
    """Whether it was a process of this machine: the server remembers its polls for a while."""
    pid, _, host = other.partition(" ")[0].partition("@")
    if host != socket.gethostname() or not pid.isdecimal():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False
