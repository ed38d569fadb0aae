"""Real worker processes that come and go, and what surrounds them."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import dataclasses
import functools
import json
import os
import signal
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

from temporalio.client import Client

from tests.faults.crew import PRELOAD
from tests.faults.killable import read_notes
from turnkeeper.artifacts import FolderStore
from turnkeeper.client import AgentClient, AgentRunHandle
from turnkeeper.testing import ScriptedProvider
from turnkeeper.testing.nursery import ForkedProcess, Nursery

ROOT = Path(__file__).resolve().parent.parent


@functools.cache
def _nursery() -> Nursery:
    """One for all workers of this process of tests: what they import takes seconds."""
    started = Nursery.start(ROOT, PRELOAD)
    atexit.register(started.stop)
    return started


def alive(pid: int) -> bool:
    """Whether a process runs; one that is dead and not collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@dataclasses.dataclass
class Site:
    """A run's surroundings: a provider, a task queue, worker processes that come and go."""

    agents: AgentClient
    provider: ScriptedProvider
    folder: Path
    environment: dict[str, str]
    module: str
    """Of the agents that the workers serve."""
    workers: list[ForkedProcess] = dataclasses.field(default_factory=list)

    async def worker(
        self, *options: str, crash_points: bool = False, crash_at: str = ""
    ) -> ForkedProcess:
        """A further worker process, ready."""
        started = await asyncio.to_thread(
            _nursery().fork,
            f"worker-{len(self.workers)}",
            [
                *("worker.py", "--agents", self.module),
                *("--task-queue", self.agents.task_queue),
                *("--heartbeat-seconds", "4", "--sticky-seconds", "1", *options),
            ],
            folder=self.folder,
            environment={
                "CRASH_LOG": str(self.folder / "passings.jsonl"),
                **self.environment,
                "CRASH_AT": crash_at,
            },
            crash_points=crash_points,
        )
        self.workers.append(started)
        await asyncio.to_thread(started.wait_ready, 60)
        return started

    async def kill(self, process: ForkedProcess) -> None:
        """SIGKILL to its whole process group."""
        os.killpg(process.pid, signal.SIGKILL)
        assert await asyncio.to_thread(process.wait, 10) == -signal.SIGKILL

    async def start(
        self, prompt: str = "question", *, agent: str = "killable", **request: Any
    ) -> AgentRunHandle:
        """Start a run whose workflow tasks are given up early."""
        return await self.agents.start(agent, prompt, task_timeout=2, **request)

    def generations(self, prompt: str = "question") -> list[tuple[int | None, str | None]]:
        """Turn and end of every request of a run that reached the provider."""
        return [(r.turn, r.outcome) for r in self.provider.requests if r.prompt == prompt]

    def calls(self, event: str, tool: str = "") -> list[dict[str, Any]]:
        """What the tools left in their log."""
        return read_notes(event, tool, log=self.environment["CALL_LOG"])

    def logged(self, process: ForkedProcess) -> list[dict[str, Any]]:
        """The lines of a worker's log; without the last one while it is being written."""
        lines = process.log.read_text().splitlines(keepends=True)
        return [json.loads(x) for x in lines if x.startswith("{") and x.endswith("\n")]


SiteFactory = Callable[..., contextlib.AbstractAsyncContextManager[Site]]


@contextlib.asynccontextmanager
async def open_site(
    client: Client,
    address: str,
    folder: Path,
    steps: Any,
    *,
    module: str = "tests.faults.killable",
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[Site]:
    """A site whose worker processes end with it."""
    with ScriptedProvider(steps, log=folder / "provider.jsonl") as provider:
        made = Site(
            AgentClient(
                client,
                task_queue=f"kill-{uuid.uuid4()}",
                store=FolderStore(folder / "artifacts"),
            ),
            provider,
            folder,
            {
                "PATH": os.environ["PATH"],
                "ANTHROPIC_API_KEY": "test-key-0123456789",
                "ANTHROPIC_BASE_URL": provider.url,
                "TEMPORAL_ADDRESS": address,
                "TURNKEEPER_ARTIFACTS": str(folder / "artifacts"),
                "CALL_LOG": str(folder / "calls.jsonl"),
                **(environment or {}),
            },
            module,
        )
        try:
            yield made
        finally:
            for process in made.workers:
                if process.status is None:
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait(10)
