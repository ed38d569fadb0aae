"""Worker processes of one task queue: some on duty, and a warm one to take a dead one's place."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from turnkeeper.testing import crash_points
from turnkeeper.testing.nursery import ForkedProcess, Nursery
from turnkeeper.testing.process import ProcessError
from turnkeeper.testing.stack import worker_environment

ROOT = Path(__file__).resolve().parents[2]
TASK_SECONDS = 2.0
"""For `AgentClient.start`: until a workflow task of a dead worker is given to another."""
PRELOAD = (
    "anthropic",
    "docstring_parser",
    "httpx2",
    "sqlalchemy",
    "structlog",
    "temporalio.worker",
    "turnkeeper.client",
    "turnkeeper.ledger",
    "activities.execute",
    "activities.generate",
    "activities.load_agent",
    "activities.logs",
    "activities.readiness",
    "activities.seal",
    "activities.startup",
    "workflows.agent_run",
)
"""What every worker imports, but for agents."""
_READY_SECONDS = 90.0
_DEATH_SECONDS = 10.0


def surroundings(
    folder: Path,
    *,
    address: str,
    task_queue: str,
    provider: str,
    heartbeat: float = 2,
    **more: str,
) -> dict[str, str]:
    """The environment of a crew's workers, which are given up after `heartbeat` seconds."""
    return {
        **worker_environment(os.environ, folder, provider),
        "TURNKEEPER_HEARTBEAT_SECONDS": str(heartbeat),
        "TURNKEEPER_STICKY_SECONDS": "1",
        "TEMPORAL_ADDRESS": address,
        "TURNKEEPER_TASK_QUEUE": task_queue,
        "TURNKEEPER_ARTIFACTS": str(folder / "artifacts"),
        **more,
    }


@dataclass
class Crew:
    """Made by `hired`. arguments: of `worker.py`."""

    nursery: Nursery
    arguments: Sequence[str]
    folder: Path
    environment: Mapping[str, str]
    on_duty: list[ForkedProcess] = field(default_factory=list)
    _all: list[ForkedProcess] = field(default_factory=list)
    _reserve: asyncio.Task[ForkedProcess] | None = None

    async def replace(self, place: int) -> int:
        """SIGKILL to a worker on duty, and another takes over at once; the dead one's process id.

        Raises:
            ProcessError: a worker has ended by itself, or the next one does not come up.
        """
        assert self._reserve is not None, "this crew has no reserve"
        taking_over = await self._reserve
        self.check()
        dying, self.on_duty[place] = self.on_duty[place], taking_over
        dying.kill()
        self._released(taking_over).touch()
        self._reserve = asyncio.create_task(self._start(held=True))
        status = await asyncio.to_thread(dying.wait, _DEATH_SECONDS)
        if status != -signal.SIGKILL:
            raise ProcessError(f"{dying.name} ended with status {status}{dying.tail()}")
        return dying.pid

    def check(self) -> None:
        """Raise ProcessError if a worker on duty has ended by itself."""
        for worker in self.on_duty:
            if worker.status is not None:
                raise ProcessError(f"{worker.name} ended by itself: {worker.status}{worker.tail()}")

    async def _open(self, size: int, *, reserve: bool) -> None:
        self.on_duty += await asyncio.gather(*(self._start(held=False) for _ in range(size)))
        if reserve:
            self._reserve = asyncio.create_task(self._start(held=True))

    async def _start(self, *, held: bool) -> ForkedProcess:
        name = f"worker-{len(self._all)}"
        hold = {crash_points.HOLD: str(self.folder / f"{name}.released")} if held else {}
        worker = self.nursery.fork(
            name,
            ["worker.py", *self.arguments],
            folder=self.folder,
            environment={**self.environment, **hold},
        )
        self._all.append(worker)
        await asyncio.to_thread(worker.wait_ready, _READY_SECONDS)
        return worker

    def _released(self, worker: ForkedProcess) -> Path:
        return self.folder / f"{worker.name}.released"

    async def _dismiss(self) -> None:
        if self._reserve is not None:
            self._reserve.cancel()
            with contextlib.suppress(asyncio.CancelledError, ProcessError):
                await self._reserve
        for worker in self._all:
            if worker.status is None:
                worker.kill()
            await asyncio.to_thread(worker.wait, _DEATH_SECONDS)


@contextlib.asynccontextmanager
async def hired(
    nursery: Nursery,
    agents: str,
    folder: Path,
    environment: Mapping[str, str],
    *,
    size: int,
    reserve: bool = False,
    calls_at_once: int = 100,
) -> AsyncIterator[Crew]:
    """A crew of `size` that serves a module of agents; killed at the end.

    `folder` gets a log for each worker, `reserve` has another one wait for a death, and a worker
    takes `calls_at_once`.

    Raises:
        ProcessError: a worker does not come up.
    """
    arguments = ["--agents", agents, "--max-activities", str(calls_at_once)]
    crew = Crew(nursery, arguments, folder, environment)
    try:
        await crew._open(size, reserve=reserve)
        yield crew
    finally:
        await crew._dismiss()
