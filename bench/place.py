"""Where a benchmark runs: server, scripted provider and worker, each a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from temporalio.client import Client

from tests.rig import until
from turnkeeper.artifacts import FolderStore
from turnkeeper.client import AgentClient
from turnkeeper.testing.embedded import EmbeddedServer
from turnkeeper.testing.process import ChildProcess, ProcessError
from turnkeeper.testing.provider.journal import Record, read_log
from turnkeeper.testing.stack import READY_SECONDS, worker_environment

ROOT = Path(__file__).resolve().parent.parent
QUEUE = "bench"
_SAMPLE_SECONDS = 60.0
_END_SECONDS = 90.0


@dataclass(frozen=True)
class Memory:
    """Of a worker process after a garbage collection, in bytes; see `bench.sampled`."""

    own: int
    rss: int
    peak: int


@dataclass
class SampledWorker:
    """A worker process that tells its memory."""

    process: ChildProcess
    samples: Path

    async def memory(self) -> Memory:
        """Ask for it.

        Raises:
            TimeoutError: the process does not answer.
        """
        before = len(self._lines())
        os.kill(self.process.pid, signal.SIGUSR1)
        lines = await until(lambda: self._lines()[before:], timeout=_SAMPLE_SECONDS)
        return Memory(**json.loads(lines[0]))

    def _lines(self) -> list[str]:
        # Without one that is being written.
        return self.samples.read_text().split("\n")[:-1] if self.samples.exists() else []


@dataclass
class Place:
    """Made by `opened`."""

    folder: Path
    agents: AgentClient
    provider: ChildProcess
    environment: Mapping[str, str]
    _parts: contextlib.ExitStack
    _workers: list[ChildProcess] = field(default_factory=list)

    @property
    def client(self) -> Client:
        """The bare Temporal client."""
        return self.agents.client

    async def worker(self, *options: str, address_space: int | None = None) -> SampledWorker:
        """A worker of `bench.agents` that takes work; `address_space` limits it, in bytes.

        Raises:
            ProcessError: it does not start; the message has the end of its log.
        """
        name = f"worker-{len(self._workers)}"
        samples = self.folder / f"{name}.samples"
        process = ChildProcess.start(
            name,
            [
                *(_limited(address_space) if address_space else ()),
                *(sys.executable, "-m", "bench.sampled", "--agents", "bench.agents"),
                *("--task-queue", QUEUE, "--log-format", "json", *options),
            ],
            folder=self.folder,
            cwd=ROOT,
            environment={**self.environment, "BENCH_SAMPLES": str(samples)},
        )
        self._workers.append(process)
        self._parts.callback(_ended, process)
        await asyncio.to_thread(process.wait_ready, READY_SECONDS)
        return SampledWorker(process, samples)

    async def stop(self, worker: SampledWorker) -> None:
        """As a deploy does.

        Raises:
            ProcessError: it does not end, or not with status 0.
        """
        os.kill(worker.process.pid, signal.SIGTERM)
        status = await asyncio.to_thread(worker.process.wait, _END_SECONDS)
        if status != 0:
            raise ProcessError(f"the worker ended with status {status}{worker.process.tail()}")

    def requests(self) -> list[Record]:
        """What the provider was asked so far."""
        return read_log(self.folder / "provider.jsonl")


def _limited(size: int) -> tuple[str, ...]:
    """The beginning of a command whose process gets no more; it keeps its id."""
    return ("sh", "-c", 'ulimit -v "$0" && exec "$@"', str(size // 1_024))


def _ended(process: ChildProcess) -> None:
    if process.status is None:
        process.end()


@contextlib.asynccontextmanager
async def opened(
    folder: Path,
    script: str,
    *,
    window: int | None = None,
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[Place]:
    """A place in `folder`, which exists; its parts end with it.

    script: MODULE:NAME. window: of the provider's models, in tokens. environment: added to that of
    all processes.
    """
    given = {**os.environ, **(environment or {})}
    with contextlib.ExitStack() as parts:
        command = [
            *(sys.executable, "-m", "turnkeeper.testing.provider", "--script", script),
            *("--no-fsync", "--log", str(folder / "provider.jsonl")),
            *(("--window", str(window)) if window else ()),
        ]
        provider = ChildProcess.start(
            "provider", command, folder=folder, cwd=ROOT, environment=given
        )
        parts.callback(_ended, provider)
        server = EmbeddedServer.start(folder / "temporal", port=0)
        parts.callback(server.stop)
        ready = await asyncio.to_thread(provider.wait_ready, READY_SECONDS)
        connected = await AgentClient.connect(server.address, settings={})
        store = FolderStore(folder / "artifacts")
        yield Place(
            folder,
            AgentClient(connected.client, task_queue=QUEUE, store=store),
            provider,
            {
                **worker_environment(given, folder, json.loads(ready)["url"]),
                "TEMPORAL_ADDRESS": server.address,
                "TURNKEEPER_ARTIFACTS": str(folder / "artifacts"),
            },
            parts,
        )
