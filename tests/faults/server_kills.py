"""SIGKILL to the Temporal server on its file database, again and again: `make server-kills`.

    python -m tests.faults.server_kills [--seed N] [--times 20] [--folder DIR]

Runs go on and new ones are started, while the server dies and is back after 0, 2 or 10 s. What it
had told its clients has to be there afterwards: each start, each result, each event that was read,
among them the activities' results. The database has to be sound, and in the end every run says what
it says without faults. SIGKILL keeps what the kernel has: this is the death of a process, not a
loss of power.

Ends with `server kills: K/K, S acknowledged starts and R results all there, 0 violations` and exit
code 0, or with 1.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import hashlib
import os
import random
import signal
import socket
import sqlite3
import sys
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.runtime import Runtime, TelemetryConfig
from temporalio.service import RPCError

from tests.faults.crew import PRELOAD, ROOT, TASK_SECONDS, hired, surroundings
from tests.faults.observe import Witness, judged, witness
from tests.faults.patience import ATTEMPT_SECONDS, patiently, result_of
from tests.workers import alive
from turnkeeper.artifacts import FolderStore
from turnkeeper.client import AgentClient
from turnkeeper.contract import RunResult
from turnkeeper.testing import Exchange, Reply, ScriptedProvider, call, recorded, text
from turnkeeper.testing.checker import SETTLED_SECONDS, Observed, Violation
from turnkeeper.testing.effects import read_arrivals, start_ledger
from turnkeeper.testing.embedded import NAMESPACE, EmbeddedServer
from turnkeeper.testing.nursery import Nursery

_AGENT = "teller"
_TOOLS = ("inquire", "charge", "book", "mail")
_REPLY_SECONDS = 0.15
"""Of the provider: a run is to last a while."""
_WORKERS = 2
_PORTS = range(20_000, 32_000)
"""Below those that the kernel gives to clients: the server's own has to be free when it is back."""


@dataclasses.dataclass(frozen=True)
class Options:
    """down: seconds until the server is back, in turn. up: from then to the next kill, at least and
    at most. pace: from one start of a run to the next. at_once: open runs, at most. finish: seconds
    that they have in the end."""

    seed: int
    times: int = 20
    down: tuple[float, ...] = (0, 2, 10)
    up: tuple[float, float] = (4, 8)
    pace: float = 1.0
    at_once: int = 10
    finish: float = 120


@dataclasses.dataclass
class Told:
    """What the server has told its clients. starts: the first execution's id by run, empty where it
    only said that the run exists. read: digests of events by run and execution."""

    starts: dict[str, str] = dataclasses.field(default_factory=dict)
    results: dict[str, RunResult] = dataclasses.field(default_factory=dict)
    read: dict[str, dict[str, list[str]]] = dataclasses.field(
        default_factory=lambda: defaultdict(dict)
    )
    activities: dict[str, int] = dataclasses.field(default_factory=dict)
    """Completed ones among the events that were read, by execution."""


@dataclasses.dataclass
class Report:
    """All that was found. open_: runs at each kill. lost: what the server has forgotten."""

    told: Told
    open_: list[int]
    lost: list[str]
    violations: list[Violation]
    seconds: float


def script(exchange: Exchange) -> Reply:
    """Each effect class twice, whatever the prompt is."""
    if exchange.turn == 2 * len(_TOOLS):
        return text("Done.", delay=_REPLY_SECONDS)
    order = {"order": f"o-{exchange.turn // len(_TOOLS)}"}
    return call(_TOOLS[exchange.turn % len(_TOOLS)], order, delay=_REPLY_SECONDS)


# --- the server -------------------------------------------------------------------------------


class _Server:
    """One that dies and comes back, over one database and at one address."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running = EmbeddedServer.start(folder, port=_free_port())
        self.address = self._running.address

    async def kill(self) -> None:
        """SIGKILL."""
        dying = self._running
        os.kill(dying.pid, signal.SIGKILL)
        await asyncio.to_thread(dying.stop)
        assert not alive(dying.pid)

    async def restart(self) -> None:
        """Be there again."""
        port = int(self.address.rpartition(":")[2])
        self._running = await asyncio.to_thread(EmbeddedServer.start, self._folder, port=port)
        assert self._running.address == self.address, "somebody has taken the port"
        assert not self._running.reused

    def is_sound(self) -> str:
        """What SQLite says of the database: `ok`."""
        where = f"{(self._folder / 'temporal.db').as_uri()}?mode=ro"
        with contextlib.closing(sqlite3.connect(where, uri=True, timeout=30)) as database:
            return str(database.execute("PRAGMA integrity_check").fetchone()[0])

    def stop(self) -> None:
        """End it."""
        self._running.stop()


def _free_port() -> int:
    for port in random.sample(_PORTS, 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError("no free port for the Temporal server")


# --- clients ----------------------------------------------------------------------------------


class _Clients:
    """Whoever starts runs, waits for them and reads them, and remembers what it was told."""

    def __init__(self, agents: AgentClient, options: Options) -> None:
        self.agents = agents
        self._options = options
        self._room = asyncio.Semaphore(options.at_once)
        self._customers: list[asyncio.Task[None]] = []
        self.told = Told()

    @property
    def open(self) -> list[str]:
        """Runs that were started and have not ended."""
        return [run for run in self.told.starts if run not in self.told.results]

    @contextlib.asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """Start runs and read them until the end of the block."""
        working = [asyncio.create_task(self._start()), asyncio.create_task(self._read())]
        try:
            yield
        finally:
            for task in working:
                task.cancel()
            ends = await asyncio.gather(*working, return_exceptions=True)
        for end in ends:
            if isinstance(end, Exception):
                raise end

    async def finished(self) -> None:
        """Wait for the runs that are open."""
        _, late = await asyncio.wait(self._customers, timeout=self._options.finish)
        for task in late:
            # The checker has the word: it has not ended.
            task.cancel()
        await asyncio.gather(*self._customers, return_exceptions=True)

    async def customer(self, run: str) -> None:
        """Start a run, and wait for its end."""
        started = await patiently(
            lambda: self.agents.start(_AGENT, run, id=run, task_timeout=TASK_SECONDS)
        )
        self.told.starts[run] = started.run_id or ""
        self.told.results[run] = await result_of(self.agents, run)

    async def _start(self) -> None:
        number = 0
        while True:
            number += 1
            await self._room.acquire()
            task = asyncio.create_task(self.customer(f"run-{number}"))
            task.add_done_callback(lambda _: self._room.release())
            self._customers.append(task)
            await asyncio.sleep(self._options.pace)

    async def _read(self) -> None:
        while True:
            for run in self.open:
                with contextlib.suppress(ConnectionError, RPCError, TimeoutError):
                    async with asyncio.timeout(ATTEMPT_SECONDS):
                        await self._read_one(run)
            await asyncio.sleep(0.3)

    async def _read_one(self, run: str) -> None:
        handle = self.agents.client.get_workflow_handle(run)
        execution = (await handle.describe()).run_id
        handle = self.agents.client.get_workflow_handle(run, run_id=execution)
        # A workflow task that is tried again is shown before it is recorded, with another time at
        # each try: such events have no task id.
        events = [event async for event in handle.fetch_history_events() if event.task_id]
        self.told.read[run][execution] = [_digest(event) for event in events]
        self.told.activities[execution] = sum(map(_is_result, events))


def _digest(event: HistoryEvent) -> str:
    return hashlib.sha256(event.SerializeToString(deterministic=True)).hexdigest()


def _is_result(event: HistoryEvent) -> bool:
    return event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED


async def _lost(agents: AgentClient, told: Told, runs: set[str]) -> list[str]:
    """What was told of these runs and is not there."""
    found: list[str] = []
    for run in runs & told.starts.keys():
        # Before asking: clients go on.
        read, ended = dict(told.read[run]), told.results.get(run)
        try:
            histories = await patiently(lambda run=run: recorded.fetch(agents.client, run))  # type: ignore[misc]
            result = await agents.result(run, check=False) if ended is not None else None
        except LookupError as error:
            found.append(f"{run} was started: {error}")
            continue
        known = {_execution(h.events): [_digest(e) for e in h.events] for h in histories}
        first = told.starts[run]
        if first and first != next(iter(known)):
            found.append(f"{run} was started as {first}, and now begins with {next(iter(known))}")
        if result != ended:
            found.append(f"{run} had ended as {ended}, and now {result}")
        for execution, digests in read.items():
            if known.get(execution, [])[: len(digests)] != digests:
                found.append(f"{run}: events of {execution} that were read are not there")
    return found


def _execution(events: Any) -> str:
    started = events[0].workflow_execution_started_event_attributes
    return str(started.original_execution_run_id)


# --- the whole --------------------------------------------------------------------------------


async def run(options: Options, folder: Path, say: Callable[[str], None]) -> Report:
    """Kill and judge; `folder` keeps the database, logs and histories."""
    began = time.monotonic()
    server = await asyncio.to_thread(_Server, folder / "server")
    async with contextlib.AsyncExitStack() as parts:
        parts.callback(server.stop)
        ledger, url = await asyncio.to_thread(start_ledger, folder)
        parts.callback(ledger.end)
        provider = parts.enter_context(ScriptedProvider(script, fsync=False))
        nursery = parts.enter_context(Nursery.start(ROOT, PRELOAD))
        task_queue = f"server-kills-{uuid.uuid4()}"
        environment = surroundings(
            folder,
            address=server.address,
            task_queue=task_queue,
            provider=provider.url,
            EFFECTS_URL=url,
        )
        hiring = hired(nursery, "tests.faults.teller", folder, environment, size=_WORKERS)
        crew = await parts.enter_async_context(hiring)
        connected = await AgentClient.connect(server.address, namespace=NAMESPACE, settings={})
        store = FolderStore(folder / "artifacts")
        agents = AgentClient(connected.client, task_queue=task_queue, store=store)
        clients = _Clients(agents, options)
        await clients.customer("control")
        async with clients.at_work():
            open_, lost = await _killed(server, clients, options, look=crew.check, say=say)
        say(f"{options.times} kills; waiting for the runs that are open")
        await clients.finished()
        crew.check()
        lost += await _lost(agents, clients.told, set(clients.told.starts))
        await asyncio.sleep(SETTLED_SECONDS)
        violations = await _judge(agents, clients.told, provider, folder)
    # What is lost is lost each time that it is looked for.
    lost = list(dict.fromkeys(lost))
    violations += [Violation("I3", "(server)", None, what) for what in lost]
    return Report(clients.told, open_, lost, violations, time.monotonic() - began)


async def _killed(
    server: _Server,
    clients: _Clients,
    options: Options,
    *,
    look: Callable[[], None],
    say: Callable[[str], None],
) -> tuple[list[int], list[str]]:
    """Kill as often as asked, and look for what is lost each time; how many runs were open.

    `look` raises if a worker has ended by itself.
    """
    chance = random.Random(options.seed)
    open_: list[int] = []
    lost: list[str] = []
    sure: set[str] = set()
    for number in range(options.times):
        await asyncio.sleep(chance.uniform(*options.up))
        look()
        open_.append(len(clients.open))
        ended = set(clients.told.results)
        await server.kill()
        down = options.down[number % len(options.down)]
        await asyncio.sleep(down)
        await server.restart()
        sound = await asyncio.to_thread(server.is_sound)
        if sound != "ok":
            lost.append(f"after kill {number + 1} the database says {sound}")
        # Those that had ended before the last kill were looked at after it.
        found = await _lost(clients.agents, clients.told, set(clients.told.starts) - sure)
        sure |= ended
        lost += found
        for what in found:
            say(f"LOST {what}")
        say(
            f"kill {number + 1:>2}/{options.times}  {open_[-1]:>2} runs open, back after "
            f"{down:g} s, database {sound}, {len(clients.told.starts)} starts and "
            f"{len(ended)} results acknowledged, {len(found)} lost"
        )
    return open_, lost


async def _judge(
    agents: AgentClient, told: Told, provider: ScriptedProvider, folder: Path
) -> list[Violation]:
    witnesses = {run: await witness(agents, run, folder / "histories") for run in told.starts}
    keys = {c.input.key: run for run, w in witnesses.items() for c in w.seen.run.calls}
    violations: list[Violation] = []
    for row in read_arrivals(folder / "effects.db"):
        key = row.key or row.body["key"]
        if key in keys:
            seen = witnesses[keys[key]].seen
            seen.arrivals = [*seen.arrivals, row]
        else:
            violations.append(Violation("I1", "(ledger)", key, "a key that no call has"))
    control = witnesses["control"].seen
    for run, each in witnesses.items():
        each.seen.requests = [r for r in provider.requests if r.prompt == run]
        each.control = _as_asked(control, each) if run != "control" else None
    return violations + await judged(witnesses.values(), folder / "histories")


def _as_asked(control: Observed, other: Witness) -> Observed:
    """The control as if it had been asked the other's question, which is all that differs."""
    entries = [*(other.seen.entries or ())[:1], *(control.entries or ())[1:]]
    return dataclasses.replace(control, entries=entries)


def _tell(report: Report, options: Options, say: Callable[[str], None]) -> int:
    for violation in report.violations:
        say(f"VIOLATION {violation}")
    told = report.told
    outcomes: Mapping[str, int] = _counted([r.outcome for r in told.results.values()])
    say(", ".join(f"{n} {outcome}" for outcome, n in outcomes.items()))
    events = sum(len(d) for found in told.read.values() for d in found.values())
    say(
        f"{report.seconds:.0f} s; {events} events were read, {sum(told.activities.values())} of "
        f"them results of activities; {sum(map(bool, report.open_))} kills met open runs"
    )
    there = "all there" if not report.lost else f"{len(report.lost)} LOST"
    say(
        f"server kills: {len(report.open_)}/{options.times}, {len(told.starts)} acknowledged "
        f"starts and {len(told.results)} results {there}, {len(report.violations)} violations"
    )
    return 0 if all(report.open_) and not report.violations else 1


def _counted(words: list[str]) -> dict[str, int]:
    return {word: words.count(word) for word in dict.fromkeys(words)}


def main(argv: list[str] | None = None) -> int:
    """Run it; the exit code."""
    parser = argparse.ArgumentParser(description="Kill the Temporal server, again and again.")
    parser.add_argument("--seed", type=int, help="default: a new one")
    parser.add_argument("--times", type=int, default=Options.times)
    parser.add_argument("--folder", type=Path, metavar="DIR", help="new; default a temporary one")
    given = parser.parse_args(argv)
    seed = random.randrange(1_000_000) if given.seed is None else given.seed
    options = Options(seed, given.times)
    folder = given.folder or Path(tempfile.mkdtemp(prefix="server-kills-"))
    folder.mkdir(exist_ok=True, parents=True)
    say(" ".join(f"{k}={v}" for k, v in dataclasses.asdict(options).items()))
    say(f"database, logs and histories in {folder}")
    # Of each request that was made again while the server was away.
    Runtime.set_default(Runtime(telemetry=TelemetryConfig(logging=None)))
    return _tell(asyncio.run(run(options, folder, say)), options, say)


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    code = main()
    # Not sys.exit: a process that used temporalio may abort while the interpreter is taken down.
    os._exit(code)
