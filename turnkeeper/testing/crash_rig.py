"""Kill a worker at a crash point, let another finish, and hold the end against what was promised.

    rig = CrashRig(
        ["worker.py", "--agents", "my_agents"], root=checkout, folder=tmp_path,
        address=server.address, agent="refunder", script=[call("refund", {...}), text("Done.")],
    )
    case = await rig.run("tool.done:1")
    assert case.reached and not case.violations

A case is one run with surroundings of its own: task queue, scripted provider, effect ledger,
artifacts, and worker processes: one to be killed for each crash point asked for, and one that
finishes. Those that wait are up already, and ask for work only when it is their turn. The first
case of a rig is preceded by the control, the same run without faults.

The workers get, by their environment, `EFFECTS_URL` (the ledger's), `CASE_FOLDER` (for databases of
the tools' own), all that `worker.py` reads, and quick recovery: the sticky queue is given up after
1 s, a silent activity after 2 s, a workflow task after 2 s. Their command gets `--ready-file FILE`
and has to write it when it takes work.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError

from turnkeeper.artifacts import FolderStore
from turnkeeper.client import AgentClient, AgentRunHandle
from turnkeeper.contract import RunResult
from turnkeeper.errors import StateLost, TurnkeeperError
from turnkeeper.history import read_transcript
from turnkeeper.testing import crash_points, recorded
from turnkeeper.testing.checker import SETTLED_SECONDS, Observed, Violation, check
from turnkeeper.testing.crash_points import Passing, orders, read_passings
from turnkeeper.testing.effects import Arrival, read_arrivals, start_ledger
from turnkeeper.testing.embedded import NAMESPACE
from turnkeeper.testing.nursery import ForkedProcess, Nursery
from turnkeeper.testing.process import ChildProcess, processes_with
from turnkeeper.testing.provider import Script, ScriptedProvider
from turnkeeper.testing.stack import worker_environment

__all__ = ["Case", "CrashRig", "Meanwhile", "Stuck"]

READY_SECONDS: Final = 90.0
STUCK_SECONDS: Final = 60.0
"""Without any progress, until a case is given up."""
_TASK_SECONDS: Final = 2.0
_PROFILE: Final = {"TURNKEEPER_HEARTBEAT_SECONDS": "2", "TURNKEEPER_STICKY_SECONDS": "1"}
_LATE_SECONDS: Final = 1.5
_POLL_SECONDS: Final = 0.05
_LOOK_SECONDS: Final = 0.3
_LONGEST_NAME: Final = 80

Meanwhile = Callable[[AgentRunHandle], Awaitable[None]]
"""What a person does while the run goes on; cancelled at its end."""
Replay = Callable[[Path], Awaitable[Mapping[str, str]]]
"""Replays a folder of histories in a cold process; what fails, by file, and why."""


class Stuck(TurnkeeperError):
    """Raised when a run makes no progress, or a worker ends otherwise than by a crash point.

    The message says where histories, logs and the ledger are.
    """


@dataclass
class Case:
    """One run and what came of it.

    reached: each crash point asked for has ended a worker by SIGKILL; otherwise the case is void.
    in_flight: kills at which an attempt of a mutating call was under way and was lost, by history.
    """

    crash_at: str
    folder: Path
    seen: Observed
    kills: list[Passing]
    reached: bool
    violations: list[Violation] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def result(self) -> RunResult | None:
        """How the run ended."""
        return self.seen.run.result

    @property
    def in_flight(self) -> int:
        """See the class."""
        calls = [c for c in self.seen.run.calls if c.mutates]
        return sum(any(c.lost_at(k.time) for c in calls) for k in self.kills)

    @property
    def passings(self) -> list[Passing]:
        """Every passing of every point."""
        return read_passings(self.folder / "passings.jsonl")


@dataclass(kw_only=True)
class CrashRig:
    """Cases of one agent with one prompt and one script.

    worker: the program that `turnkeeper.testing.crashing` runs, `[SCRIPT, ARGUMENT...]` or
    `["-m", MODULE, ARGUMENT...]`. root: the workers' working directory. folder: gets a folder for
    each case, with all logs and histories. address: of a Temporal server, `host:port`. script: of
    the provider, see `turnkeeper.testing.provider.script`. environment: more for the workers.
    compare: whether a run with faults has to say what the control says. unwitnessed: mutating tools
    whose effects no ledger sees. effects: called with the case's folder, the rows of another ledger
    than the rig's. replay: see `Replay`; I9 is checked only if there is one. nursery: forks the
    workers, where there are many cases, instead of starting each anew; its root is theirs, too.
    """

    worker: Sequence[str]
    root: Path
    folder: Path
    address: str
    agent: str
    script: Script
    prompt: str = "question"
    environment: Mapping[str, str] = field(default_factory=dict)
    meanwhile: Meanwhile | None = None
    compare: bool = True
    unwitnessed: Sequence[str] = ()
    effects: Callable[[Path], Sequence[Arrival]] | None = None
    replay: Replay | None = None
    nursery: Nursery | None = None
    _control: asyncio.Task[Case] | None = field(default=None, init=False, repr=False)

    async def control(self) -> Case:
        """The run without faults; made once."""
        if self._control is None:
            self._control = asyncio.create_task(self._case("", None))
        return await asyncio.shield(self._control)

    async def run(self, crash_at: str) -> Case:
        """A run whose workers are killed: `"tool.done:1"`, or several of them by commas.

        Cases may run side by side.

        Raises:
            UnknownPoint: there is no such crash point.
            Stuck: the run does not end.
            ProcessError: a worker or the ledger does not start.
        """
        orders({crash_points.AT: crash_at})
        control = await self.control()
        return await self._case(crash_at, control.seen if self.compare else None)

    async def _case(self, crash_at: str, control: Observed | None) -> Case:
        began = time.monotonic()
        name = crash_at.replace(":", "-").replace(",", "+")[:_LONGEST_NAME] or "control"
        folder = self.folder / name
        folder.mkdir(parents=True)
        ledger, url = await asyncio.to_thread(start_ledger, folder)
        try:
            with ScriptedProvider(
                self.script, log=folder / "provider.jsonl", fsync=False
            ) as provider:
                environment = {
                    **self.environment,
                    "EFFECTS_URL": url,
                    "CASE_FOLDER": str(folder),
                }
                site = _Site(self, folder, crash_at, provider, environment)
                case = await site.play()
        finally:
            await asyncio.to_thread(ledger.end)
        if self.replay is not None:
            case.seen.unreplayable = await self.replay(folder / "histories")
        case.violations = check(case.seen, control)
        case.seconds = time.monotonic() - began
        return case


class _Site:
    """The surroundings of one case."""

    def __init__(
        self,
        rig: CrashRig,
        folder: Path,
        crash_at: str,
        provider: ScriptedProvider,
        environment: Mapping[str, str],
    ) -> None:
        self._rig = rig
        self._folder = folder
        self._orders = orders({crash_points.AT: crash_at})
        self._crash_at = crash_at
        self._provider = provider
        self._environment = environment
        self._task_queue = f"crash-{uuid.uuid4()}"
        self._workers: list[ChildProcess | ForkedProcess] = []
        self._on_duty = 0

    async def play(self) -> Case:
        """Run to the end, and gather what is known of it."""
        store = FolderStore(self._folder / "artifacts")
        connected = await AgentClient.connect(self._rig.address, namespace=NAMESPACE, settings={})
        agents = AgentClient(connected.client, task_queue=self._task_queue, store=store)
        try:
            for number in range(len(self._orders) + 1):
                await asyncio.to_thread(self._start, number)
            for worker in self._workers:
                await asyncio.to_thread(worker.wait_ready, READY_SECONDS)
            run = await agents.start(
                self._rig.agent, self._rig.prompt, id=self._task_queue, task_timeout=_TASK_SECONDS
            )
            async with _alongside(self._rig.meanwhile, run):
                await self._to_the_end(run)
            statuses = [w.status for w in self._workers]
            # Longer than what is forgiven: what comes late has to have the time to come.
            await asyncio.sleep(SETTLED_SECONDS + _LATE_SECONDS)
        finally:
            self._kill_the_rest()
        living = await self._living()
        return await self._gather(agents, run.id, statuses, living)

    def _start(self, number: int) -> None:
        environment = {
            **worker_environment(os.environ, self._folder, self._provider.url),
            **_PROFILE,
            "TEMPORAL_ADDRESS": self._rig.address,
            "TURNKEEPER_TASK_QUEUE": self._task_queue,
            "TURNKEEPER_ARTIFACTS": str(self._folder / "artifacts"),
            **self._environment,
            crash_points.AT: self._crash_at,
            crash_points.LOG: str(self._passings),
        }
        if number:
            environment[crash_points.HOLD] = str(self._released(number))
        name, folder = f"worker-{number}", self._folder
        if self._rig.nursery is not None:
            forked = self._rig.nursery.fork(
                name, self._rig.worker, folder=folder, environment=environment
            )
            self._workers.append(forked)
            return
        command = [sys.executable, "-m", "turnkeeper.testing.crashing", *self._rig.worker]
        root = self._rig.root
        started = ChildProcess.start(
            name, command, folder=folder, cwd=root, environment=environment
        )
        self._workers.append(started)

    @property
    def _passings(self) -> Path:
        return self._folder / "passings.jsonl"

    def _released(self, number: int) -> Path:
        return self._folder / f"worker-{number}.released"

    async def _to_the_end(self, run: AgentRunHandle) -> None:
        watching = asyncio.create_task(self._watch(run))
        try:
            while not watching.done():
                self._relieve()
                await asyncio.wait([watching], timeout=_POLL_SECONDS)
            await watching
        finally:
            await _cancelled(watching)
        self._relieve()

    async def _watch(self, run: AgentRunHandle) -> None:
        """Until the run has ended; raise Stuck once nothing has changed for a while."""
        handle = run.client.client.get_workflow_handle(run.id)
        seen, since = "", time.monotonic()
        while time.monotonic() - since < STUCK_SECONDS:
            # A server that is too busy answers later.
            with contextlib.suppress(RPCError):
                described = await handle.describe()
                if described.status is not WorkflowExecutionStatus.RUNNING:
                    return
                pending = described.raw_description.pending_activities
                now = f"{described.run_id} {described.history_length} {self._on_duty} "
                now += " ".join(f"{p.activity_id}:{p.attempt}" for p in pending)
                if now != seen:
                    seen, since = now, time.monotonic()
            await asyncio.sleep(_LOOK_SECONDS)
        histories = await recorded.fetch(run.client.client, run.id)
        recorded.save(self._folder / "histories", histories)
        raise Stuck(f"no progress for {STUCK_SECONDS:g} s: see {self._folder}")

    def _relieve(self) -> None:
        """Have the next worker take over from one that died."""
        worker = self._workers[self._on_duty]
        if worker.status is None:
            return
        if worker.status != -signal.SIGKILL or self._on_duty + 1 == len(self._workers):
            raise Stuck(f"{worker.name} ended with status {worker.status}{worker.tail()}")
        self._on_duty += 1
        self._released(self._on_duty).touch()

    def _kill_the_rest(self) -> None:
        for worker in self._workers:
            if worker.status is None:
                worker.kill()
            worker.wait(10)

    async def _living(self) -> list[str]:
        """Processes of this case that outlived their worker: what it started dies with it."""
        deadline = time.monotonic() + SETTLED_SECONDS
        while True:
            found = processes_with(f"{crash_points.LOG}={self._passings}")
            if not found or time.monotonic() > deadline:
                return found
            await asyncio.sleep(_POLL_SECONDS)

    async def _gather(
        self, agents: AgentClient, run: str, statuses: Sequence[int | None], living: list[str]
    ) -> Case:
        histories = await recorded.fetch(agents.client, run)
        recorded.save(self._folder / "histories", histories)
        kills = [p for p in read_passings(self._passings) if p.killed]
        seen = Observed(
            run=recorded.read(run, histories),
            entries=None,
            arrivals=read_arrivals(self._folder / "effects.db"),
            requests=[r for r in self._provider.requests if r.asks_model],
            living=living,
            unwitnessed=frozenset(self._rig.unwitnessed),
        )
        if self._rig.effects is not None:
            seen.arrivals = [*seen.arrivals, *self._rig.effects(self._folder)]
        try:
            store = FolderStore(self._folder / "artifacts")
            seen.entries = (await read_transcript(agents.client, store, run)).entries
        except (StateLost, OSError) as error:
            seen.unreadable = str(error)
        died = [s for s in statuses if s is not None]
        return Case(
            crash_at=self._crash_at,
            folder=self._folder,
            seen=seen,
            kills=kills,
            reached=sorted((k.name, k.number) for k in kills) == sorted(self._orders)
            and died == [-signal.SIGKILL] * len(kills),
        )


@contextlib.asynccontextmanager
async def _alongside(meanwhile: Meanwhile | None, run: AgentRunHandle) -> AsyncIterator[None]:
    if meanwhile is None:
        yield
        return
    task = asyncio.ensure_future(meanwhile(run))
    try:
        yield
    finally:
        await _cancelled(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            raise Stuck(f"what was to be done meanwhile has failed: {error!r}") from error


async def _cancelled(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
