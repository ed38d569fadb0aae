"""The health check of the worker's image, against a real server."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from temporalio import workflow
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from turnkeeper.testing.embedded import dev_server_arguments, find_temporal

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "worker_polls.py"


@workflow.defn
class Idle:
    """A workflow that is never started: it gives its worker something to poll for."""

    @workflow.run
    async def run(self) -> None:
        """Nothing."""


async def check(address: str, task_queue: str) -> tuple[int | None, str]:
    """The health check's status and its line."""
    variables = {
        **os.environ,
        "TEMPORAL_ADDRESS": address,
        "TURNKEEPER_TASK_QUEUE": task_queue,
    }
    command = [sys.executable, str(SCRIPT)]
    process = await asyncio.create_subprocess_exec(
        *command, env=variables, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    return process.returncode, output.decode().strip()


async def test_health_is_a_recent_poll_of_this_machine() -> None:
    """Unhealthy while nobody polls the task queue, healthy once a worker does."""
    async with await WorkflowEnvironment.start_local(
        dev_server_existing_path=find_temporal(), dev_server_extra_args=dev_server_arguments()
    ) as environment:
        address = environment.client.service_client.config.target_host
        assert await check(address, "polled") == (1, "last poll of polled: never")
        worker = Worker(
            environment.client,
            task_queue="polled",
            workflows=[Idle],
            workflow_runner=UnsandboxedWorkflowRunner(),
        )
        async with worker:
            for _ in range(20):
                status, line = await check(address, "polled")
                if status == 0:
                    break
            assert status == 0, line
        assert (await check(address, "another"))[0] == 1
