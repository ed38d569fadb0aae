"""How long an attempt's lease lasts when the server does not answer."""

from __future__ import annotations

import asyncio
import dataclasses
from datetime import timedelta
from typing import Any, cast

import pytest
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from activities.lease import Lease, clock

TIMEOUT = 3.0


class Server:
    """Answers every heartbeat but one, of which the answer is lost."""

    def __init__(self, lost: int) -> None:
        self.lost = lost
        self.heartbeats = 0

    def get_async_activity_handle(self, *, task_token: bytes) -> Server:  # noqa: ARG002
        """As a client does."""
        return self

    async def heartbeat(self, *_details: Any, rpc_timeout: timedelta) -> None:  # noqa: ARG002
        """As the handle does."""
        self.heartbeats += 1
        if self.heartbeats == self.lost:
            await asyncio.sleep(60)


class Process:
    """What runs the tool, until its lease is over."""

    begun = True
    owed = 0
    until = 0.0

    def extend(self, until: float) -> None:
        """As a handle does."""
        self.until = until


@pytest.mark.parametrize("lost", [1, 2, 3])
async def test_one_lost_answer_ends_no_process(lost: int) -> None:
    """The server is asked again in time: the lease is extended before it is over."""
    server, process = Server(lost), Process()
    environment = ActivityEnvironment(client=cast(Client, server))
    environment.info = dataclasses.replace(
        environment.info, heartbeat_timeout=timedelta(seconds=TIMEOUT)
    )

    async def attempt() -> float:
        lease, left = Lease(lambda: None), TIMEOUT
        ends = clock() + 2 * TIMEOUT
        async with lease.kept():
            with lease.tool_runs(), lease.carried_by(process):
                while clock() < ends:
                    left = min(left, process.until - clock())
                    await asyncio.sleep(0.01)
        return left

    assert await environment.run(attempt) > 0
    assert server.heartbeats > lost
