"""The crash demo: a run whose worker is killed twice ends as if nothing had happened.

Another process (`turnkeeper.testing.killer`) sends SIGKILL to the worker while a tool runs, and to
the next worker in the middle of a generation. A new worker takes over each time. Afterwards the
history, the provider's request log and the tools' own log must agree that nothing that had finished
was repeated.

Always with the scripted provider: its log is one of the witnesses.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from turnkeeper.client import AgentClient, AgentRunHandle
from turnkeeper.contract import GENERATE, RunResult
from turnkeeper.errors import TurnkeeperError
from turnkeeper.follow import Step
from turnkeeper.testing.embedded import EmbeddedServer
from turnkeeper.testing.evidence import Activity, Evidence, read_lines
from turnkeeper.testing.killer import Kill, Order
from turnkeeper.testing.process import ChildProcess
from turnkeeper.testing.stack import (
    READY_SECONDS,
    DemoAgent,
    claim,
    connect,
    living_dev,
    provider_url,
    start_provider,
    worker_command,
    worker_environment,
)

__all__ = ["CrashDemo", "CrashReport"]

# Long enough to be met in the middle on a busy machine; the killed search costs nothing more.
_SEARCH_SECONDS = 6
_REPLY_SECONDS = 1.0
# How soon the server gives up a dead worker: these make up most of the time to recover.
_RECOVERY = {"TURNKEEPER_HEARTBEAT_SECONDS": "3", "TURNKEEPER_STICKY_SECONDS": "1"}
_TASK_SECONDS = 2.0
_RUN_SECONDS = 180.0


class CrashDemoError(TurnkeeperError):
    """Raised when the demo could not do what it wanted to show."""


@dataclass(frozen=True)
class CrashReport:
    """What came out; `checks` are (what was checked, what is wrong or None)."""

    id: str
    result: RunResult
    kills: list[Kill]
    wait_statuses: list[int]
    checks: list[tuple[str, str | None]]

    @property
    def passed(self) -> bool:
        """Whether every check holds."""
        return all(problem is None for _, problem in self.checks)

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "id": self.id,
            "passed": self.passed,
            "wait_statuses": self.wait_statuses,
            "kills": [asdict(k) for k in self.kills],
            "checks": [{"check": what, "problem": problem} for what, problem in self.checks],
            "result": self.result.model_dump(mode="json"),
        }


@dataclass(frozen=True)
class CrashDemo:
    """`say` prints a line, `show` a run's steps until its end."""

    root: Path
    state_dir: Path
    question: str
    agent: str
    say: Callable[[str], None]
    show: Callable[[AsyncIterator[Step]], Awaitable[None]]

    def run(self) -> CrashReport:
        """Take about 25 seconds.

        Raises:
            CrashDemoError: a worker could not be killed at the point, or the run did not end.
            TurnkeeperError: a part of the stack does not start.
        """
        folder = self.state_dir / "crash"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        with contextlib.ExitStack() as parts:
            slowed = os.environ | {"FINANCE_REPLY_DELAY": str(_REPLY_SECONDS)}
            provider = start_provider(self.root, folder, DemoAgent().script, slowed)
            parts.callback(provider.end)
            address = parts.enter_context(self._server())
            scene = _Scene(self, folder, address, provider_url(provider), parts)
            self.say(f"provider  pid {provider.pid}, scripted, {scene.provider}")
            return asyncio.run(scene.play())

    @contextlib.contextmanager
    def _server(self) -> Iterator[str]:
        """That of `dev` in another terminal, or one of our own; the task queue is always ours."""
        if dev := living_dev(self.state_dir):
            yield dev.address
            return
        with (
            claim(self.state_dir, self.say),
            EmbeddedServer.start(self.state_dir, announce=self.say) as server,
        ):
            yield server.address


class _Scene:
    """One performance of the demo."""

    def __init__(
        self,
        demo: CrashDemo,
        folder: Path,
        address: str,
        provider: str,
        parts: contextlib.ExitStack,
    ) -> None:
        self.demo = demo
        self.say = demo.say
        self.folder = folder
        self.address = address
        self.provider = provider
        self.id = f"{demo.agent}-crash-{secrets.token_hex(4)}"
        self.task_queue = f"turnkeeper-{self.id}"
        self.tool_log = folder / "tools.jsonl"
        self.request_log = folder / "provider-requests.jsonl"
        self._parts = parts
        self._workers = 0

    async def play(self) -> CrashReport:
        killer = _Killer(self.demo.root, self.address)
        try:
            return await self._play(killer)
        finally:
            # Here and not with the other parts: a thread may be waiting for its answer.
            killer.end()

    async def _play(self, killer: _Killer) -> CrashReport:
        worker = await self._worker(search_seconds=_SEARCH_SECONDS)
        client = await connect(self.address, self.demo.state_dir, task_queue=self.task_queue)
        self.say(f"killer    pid {killer.pid}, reads the run's history and sends SIGKILL")
        run = await client.start(
            self.demo.agent, self.demo.question, id=self.id, task_timeout=_TASK_SECONDS
        )
        async with _ended_with_us(client, run.id):
            self.say(f"question  {self.demo.question}\nrun       {run.id}\n")
            return await self._finish(client, run, killer, worker)

    async def _finish(
        self, client: AgentClient, run: AgentRunHandle, killer: _Killer, worker: ChildProcess
    ) -> CrashReport:
        steps = asyncio.ensure_future(self.demo.show(run.follow()))
        first, status_1 = await self._kill(killer, worker, "search", "turn-1/call-0", self.tool_log)
        worker = await self._worker()
        second, status_2 = await self._kill(killer, worker, GENERATE, "turn-2", self.request_log)
        await self._worker()
        result = await run.result(check=False, timeout=_RUN_SECONDS)
        await steps
        evidence = await self._evidence(client)
        undisturbed = await self._undisturbed(client)
        report = CrashReport(
            id=self.id,
            result=result,
            kills=[first, second],
            wait_statuses=[status_1, status_2],
            checks=_checks(evidence, result, undisturbed, [status_1, status_2]),
        )
        self._tell(report, evidence)
        return report

    async def _worker(self, *, search_seconds: float = 0) -> ChildProcess:
        """Start the next worker and wait until it takes work."""
        self._workers += 1
        environment = worker_environment(os.environ, self.demo.state_dir, self.provider)
        environment |= _RECOVERY
        environment["TURNKEEPER_TOOL_LOG"] = str(self.tool_log)
        environment["FINANCE_SEARCH_DELAY"] = str(search_seconds)
        worker = ChildProcess.start(
            f"worker-{self._workers}",
            worker_command(DemoAgent().agents, self.address, self.task_queue),
            folder=self.folder,
            cwd=self.demo.root,
            environment=environment,
        )
        self._parts.callback(worker.end)
        await asyncio.to_thread(worker.wait_ready, READY_SECONDS)
        self.say(f"worker {self._workers}  pid {worker.pid}")
        return worker

    async def _kill(
        self,
        killer: _Killer,
        worker: ChildProcess,
        activity: str,
        activity_id: str,
        log: Path,
    ) -> tuple[Kill, int]:
        """Have the worker killed while it runs the activity; the kill and the wait status."""
        order = Order(
            run=self.id,
            activity=activity,
            activity_id=activity_id,
            pid=worker.pid,
            log=str(log),
        )
        kill = await asyncio.to_thread(killer.obey, order)
        if kill.problem is not None:
            raise CrashDemoError(f"the worker was not killed: {kill.problem}{worker.tail()}")
        status = await asyncio.to_thread(worker.wait, 10)
        begun = f"request {kill.begun}" if activity == GENERATE else f"call {kill.begun[:8]}"
        self.say(f"\nhistory   ends with event {kill.last_event_id}: {activity} is not completed")
        self.say(f"          event {kill.event_id} scheduled it, {kill.identity} started it")
        self.say(f"log       {log.name} has begun {begun}, and not ended it")
        self.say(f"SIGKILL   to {worker.name}, pid {worker.pid}: wait status {status}\n")
        return kill, status

    async def _evidence(self, client: AgentClient) -> Evidence:
        handle = client.client.get_workflow_handle(self.id)
        events = [e async for e in handle.fetch_history_events()]
        return Evidence.of(events, read_lines(self.request_log), read_lines(self.tool_log))

    async def _undisturbed(self, client: AgentClient) -> str | None:
        """The answer to the same question when nobody is killed."""
        name = f"{self.id}-undisturbed"
        self.say(f"\nundisturbed  run {name}: the same question when nobody is killed, to compare")
        run = await client.start(self.demo.agent, self.demo.question, id=name)
        async with _ended_with_us(client, run.id):
            return (await run.result(check=False, timeout=_RUN_SECONDS)).answer

    def _tell(self, report: CrashReport, evidence: Evidence) -> None:
        self.say("\nWhat was kept and what was repeated")
        for done in evidence.activities:
            kept = any(done.completed and done.completed <= k.last_event_id for k in report.kills)
            self.say(f"  {_fate(done, evidence, report.kills, kept=kept)}")
            events = f"recorded once, in events {done.scheduled} to {done.completed}"
            self.say(f"            {events}, by {done.identity} (attempt {done.attempt})")
        self.say(f"\nanswer    {report.result.answer}\noutcome   {report.result.outcome}")
        self.say("\nChecks")
        for what, problem in report.checks:
            self.say(
                f"  {'ok  ' if problem is None else 'FAIL'}  {what}"
                + (f": {problem}" if problem else "")
            )


@contextlib.asynccontextmanager
async def _ended_with_us(client: AgentClient, run_id: str) -> AsyncIterator[None]:
    """End the run if we do not come to our end: no worker asks for its task queue ever again.

    That is so when we are interrupted, and when who reads us has gone (`| head`).
    """
    try:
        yield
    except BaseException:
        with contextlib.suppress(Exception):
            handle = client.client.get_workflow_handle(run_id)
            await handle.terminate(reason="the crash demo did not come to its end")
        raise


def _fate(done: Activity, evidence: Evidence, kills: Sequence[Kill], *, kept: bool) -> str:
    # Requests have numbers and calls keys: what a kill found open is one or the other.
    open_at_a_kill = {k.begun for k in kills}
    if done.name == GENERATE:
        requests = evidence.requests_of(done.turn)
        begun, names = len(requests), {str(r["arrival"]) for r in requests}
        told = _times(begun, "request") + " at the provider"
    else:
        begun, ended = evidence.attempts_of(done.name)
        names = {c["key"] for c in evidence.calls if c["tool"] == done.name}
        told = f"begun {_times(begun, 'time')}, ended {ended}"
    fate = "repeated" if begun > 1 else "kept" if kept else "new"
    how = "by a kill" if names & open_at_a_kill else "(connection lost)"
    return f"{fate:<8}  turn {done.turn} {done.name}: {told}" + (
        f", {_often(begun - 1)} cut off {how}" if begun > 1 else ""
    )


def _often(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _times(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _checks(
    evidence: Evidence, result: RunResult, undisturbed: str | None, statuses: list[int]
) -> list[tuple[str, str | None]]:
    turns = [g.turn for g in evidence.generations]
    begun = [a for a in evidence.activities if a.completed is None]
    same = result.answer == undisturbed and result.answer is not None
    return [
        ("both workers died of SIGKILL", _unless(statuses == [-9, -9], f"{statuses}")),
        ("the run completed", _unless(result.outcome == "completed", f"{result.reason}")),
        ("3 generations are recorded", _unless(turns == [1, 2, 3], f"turns {turns}")),
        ("no generation was repeated once recorded", _first(evidence.repeated_generations())),
        ("no finished tool call ran again", _first(evidence.repeated_calls())),
        ("every call that was scheduled has one result", _unless(not begun, f"{begun}")),
        ("the killed search ran again and ended once", _attempts(evidence, "search", 2)),
        ("the calculator ended once", _attempts(evidence, "calculator", 1)),
        ("no workflow task failed", _unless(not evidence.failed_tasks, f"{evidence.failed_tasks}")),
        ("the answer is that of an undisturbed run", _unless(same, f"there: {undisturbed!r}")),
    ]


def _attempts(evidence: Evidence, tool: str, least: int) -> str | None:
    begun, ended = evidence.attempts_of(tool)
    return _unless(begun >= least and ended == 1, f"begun {begun}, ended {ended}")


def _unless(holds: bool, problem: str) -> str | None:
    return None if holds else problem


def _first(problems: list[str]) -> str | None:
    return problems[0] if problems else None


class _Killer:
    """The other process."""

    def __init__(self, root: Path, address: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "turnkeeper.testing.killer", "--address", address],
            cwd=root,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def obey(self, order: Order) -> Kill:
        """Send an order and wait for what came of it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asdict(order)) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise CrashDemoError(f"the killer ended with status {self._process.wait()}")
        told: dict[str, Any] = json.loads(line)
        return Kill(**told)

    def end(self) -> None:
        """It ends with its input, also with ours."""
        self._process.kill()
        self._process.wait()
