"""Random kills of workers that serve the refunds agent: `make random`.

    python -m tests.faults.random_kills --seed N --minutes 10 --runs 200

Three workers, of which one is killed every 5 to 10 s, serve a run for each order of a shop: a real
order database, mail server and carrier, all some way off. When the kills are over every run has to
end within two minutes; then the shop's own databases are asked what has happened. The seed fixes
the orders, when they come, and which worker dies when. A machine that is too slow for it has fewer
runs open than come, and kills go on until the last one has begun.

Where nobody can tell whether a call took effect, a person is asked: here one who waits some seconds
and looks into the shop. Ends with `random: N runs, K kills (M with a mutating call in flight), 0
violations` and exit code 0, or with 1.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from temporalio.api.enums.v1 import PendingActivityState
from temporalio.service import RPCError

from tests.faults.crew import (
    PRELOAD,
    ROOT,
    TASK_SECONDS,
    Crew,
    hired,
    surroundings,
)
from tests.faults.observe import Witness, judged, witness
from tests.faults.patience import patiently, result_of
from tests.faults.shop import Request, Shop, opened, usual_database
from turnkeeper.artifacts import FolderStore
from turnkeeper.client import AgentClient, AgentRunHandle
from turnkeeper.contract import UnknownCall
from turnkeeper.errors import InvalidRequest
from turnkeeper.testing import Record, read_log
from turnkeeper.testing.checker import SETTLED_SECONDS, UNKNOWN, Violation
from turnkeeper.testing.effects import Arrival
from turnkeeper.testing.embedded import NAMESPACE, EmbeddedServer
from turnkeeper.testing.nursery import Nursery
from turnkeeper.testing.process import processes_with
from turnkeeper.testing.stack import provider_url, start_provider

_MUTATING = ("issue_refund", "book_pickup", "send_email")
_STARTS_UNTIL = 0.95
"""Of the time with kills: every run sees some of it."""
_HESITATION_SECONDS = 6.0
"""Of the person: by then nothing that was sent can still arrive."""
_PROGRESS_SECONDS = 10.0
_PATIENCE = 3
"""Times the seconds that were asked for, until runs that have not begun are left out."""
_CALLS_AT_ONCE = 2
"""Of a worker. Each synchronous tool begins with a process that imports a database driver: on two
cores a dozen of them at once would use up the tools' timeouts."""


@dataclass(frozen=True)
class Options:
    """seconds: with kills, at least. gap: seconds from one to the next. at_once: open runs, at
    most. heartbeat: seconds of silence after which a call is given to another worker. latency:
    milliseconds to the shop, and as many back. finish: seconds that the runs have after the last
    kill."""

    seed: int
    seconds: float = 600
    runs: int = 200
    workers: int = 3
    gap: tuple[float, float] = (5, 10)
    at_once: int = 12
    heartbeat: float = 5
    latency: float = 50
    database: str = "postgresql"
    finish: float = 120


def orders(options: Options) -> list[tuple[float, Request]]:
    """What customers ask for, and how many seconds after the beginning; the same for a seed."""
    chance = random.Random(f"orders {options.seed}")
    times = sorted(chance.uniform(0, options.seconds * _STARTS_UNTIL) for _ in range(options.runs))
    return [(at, Request.drawn(number, chance)) for number, at in enumerate(times)]


def deaths(options: Options) -> Iterator[tuple[float, int]]:
    """Without end: when, and at which worker's place; the same for a seed."""
    chance, at = random.Random(f"deaths {options.seed}"), 0.0
    while True:
        at += chance.uniform(*options.gap)
        yield at, chance.randrange(options.workers)


@dataclass(frozen=True)
class Kill:
    """calls: the mutating ones that the server had with the worker then, as (run, turn, index)."""

    time: float
    pid: int
    calls: frozenset[tuple[str, int, int]]


@dataclass
class Served:
    """A customer's run. left: what had happened of it two seconds after its end."""

    request: Request
    run: AgentRunHandle
    ended: float | None = None
    left: list[Arrival] = field(default_factory=list)


@dataclass
class Report:
    """All that was found. settled: by a person, (tool, landed). finish: seconds after the kills."""

    served: list[Served]
    kills: list[Kill]
    witnesses: list[Witness]
    settled: list[tuple[str, bool]]
    happened: list[Arrival]
    violations: list[Violation]
    finish: float

    @property
    def in_flight(self) -> int:
        """Kills that met a mutating call: the server had it with the worker, and history says that
        the attempt was lost."""
        lost = {
            (w.seen.run.id, c.input.turn, c.input.index): c
            for w in self.witnesses
            for c in w.seen.run.calls
        }
        return sum(
            any(c in lost and lost[c].lost_at(kill.time) for c in kill.calls) for kill in self.kills
        )


# --- the ten minutes --------------------------------------------------------------------------


class _Play:
    def __init__(
        self,
        options: Options,
        agents: AgentClient,
        shop: Shop,
        crew: Crew,
        say: Callable[[str], None],
    ) -> None:
        self._options = options
        self._room = asyncio.Semaphore(options.at_once)
        self._agents = agents
        self._shop = shop
        self._crew = crew
        self._say = say
        self._began = time.monotonic()
        self.served: list[Served] = []
        self.kills: list[Kill] = []
        self.settled: list[tuple[str, bool]] = []

    async def run(self) -> None:
        """Until every run has ended, or its time is over."""
        customers = [asyncio.create_task(self._customer(*o)) for o in orders(self._options)]
        others = [asyncio.create_task(self._person()), asyncio.create_task(self._tell())]
        tasks = [*customers, *others]
        try:
            for at, place in deaths(self._options):
                if self._is_over(at):
                    break
                await self._until(at)
                await self._kill(place)
                _check(tasks)
            # The checker has the word on those that have not ended then.
            await asyncio.wait(customers, timeout=self._options.finish)
            self._crew.check()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        _check(tasks)

    def _is_over(self, at: float) -> bool:
        """Whether nobody is to die at that time or later."""
        seconds, all_began = self._options.seconds, len(self.served) == self._options.runs
        return at > seconds and (all_began or at > seconds * _PATIENCE)

    async def _until(self, at: float) -> None:
        await asyncio.sleep(self._began + at - time.monotonic())

    async def _customer(self, at: float, request: Request) -> None:
        await self._until(at)
        async with self._room:
            name = f"order-{request.order.id}"
            run = await patiently(
                lambda: self._agents.start(
                    "refunds", request.prompt, id=name, task_timeout=TASK_SECONDS
                )
            )
            served = Served(request, run)
            self.served.append(served)
            await result_of(self._agents, name)
            served.ended = time.time()
        await asyncio.sleep(SETTLED_SECONDS)
        happened = await asyncio.to_thread(self._shop.look)
        served.left = [row for row in happened if _is_of(row, request)]

    async def _kill(self, place: int) -> None:
        victim = self._crew.on_duty[place].pid
        open_ = [s.run for s in self.served if s.ended is None]
        calls = await asyncio.gather(*(self._with(victim, run) for run in open_))
        now = time.time()
        pid = await self._crew.replace(place)
        self.kills.append(Kill(now, pid, frozenset(c for found in calls for c in found)))

    async def _with(self, pid: int, run: AgentRunHandle) -> list[tuple[str, int, int]]:
        """The mutating calls of a run that the server has given to this worker."""
        handle = self._agents.client.get_workflow_handle(run.id)
        described = await patiently(handle.describe)
        found = []
        for pending in described.raw_description.pending_activities:
            started = pending.state == PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
            its = pending.last_worker_identity.startswith(f"{pid}@")
            if started and its and pending.activity_type.name in _MUTATING:
                turn, index = pending.activity_id.removeprefix("turn-").split("/call-")
                found.append((run.id, int(turn), int(index)))
        return found

    async def _person(self) -> None:
        """Look into the shop for calls that wait for a person."""
        while True:
            # The server may be too busy: the person asks again.
            with contextlib.suppress(ConnectionError, RPCError):
                async for doubt in self._agents.unknown_calls(waiting_only=True):
                    if time.time() - doubt.call.since > _HESITATION_SECONDS:
                        await self._settle(doubt.id, doubt.call)
            await asyncio.sleep(1)

    async def _settle(self, run: str, call: UnknownCall) -> None:
        receipt = await asyncio.to_thread(self._shop.receipt, call.tool, call.key)
        said = receipt or "There is nothing of it in the shop's databases."
        # It may have been settled a moment ago: the list is late.
        with contextlib.suppress(InvalidRequest):
            await self._agents.resolve(
                run, call.call_id, landed=receipt is not None, result=said, actor="ann"
            )
            self.settled.append((call.tool, receipt is not None))

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(_PROGRESS_SECONDS)
            ended = sum(s.ended is not None for s in self.served)
            self._say(
                f"{time.monotonic() - self._began:4.0f} s  {len(self.served)} runs started, "
                f"{ended} ended, {len(self.kills)} kills, {len(self.settled)} settled by a person"
            )


def _check(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Raise what one of them has raised."""
    for task in tasks:
        if task.done() and not task.cancelled():
            task.result()


async def run(
    options: Options, folder: Path, say: Callable[[str], None], *, address: str
) -> Report:
    """Play it and judge; `folder` keeps logs and histories, `address` is the server's."""
    task_queue = f"random-{uuid.uuid4()}"
    client = (await AgentClient.connect(address, namespace=NAMESPACE, settings={})).client
    agents = AgentClient(client, task_queue=task_queue, store=FolderStore(folder / "artifacts"))
    requests = [request for _, request in orders(options)]
    async with contextlib.AsyncExitStack() as parts:
        shop = parts.enter_context(
            opened(folder / "shop", requests, database=options.database, latency=options.latency)
        )
        provider = start_provider(ROOT, folder, "examples.refunds.script:script")
        parts.callback(provider.end)
        environment = surroundings(
            folder,
            address=address,
            task_queue=task_queue,
            provider=provider_url(provider),
            heartbeat=options.heartbeat,
            **shop.environment,
        )
        nursery = parts.enter_context(Nursery.start(ROOT, PRELOAD))
        async with hired(
            *(nursery, "examples.refunds", folder, environment),
            size=options.workers,
            reserve=True,
            calls_at_once=_CALLS_AT_ONCE,
        ) as crew:
            play = _Play(options, agents, shop, crew, say)
            await play.run()
        living = await _living(f"TURNKEEPER_TASK_QUEUE={task_queue}")
        say("all runs are over; reading what has happened")
        return await _judge(play, folder, shop, living)


async def _living(setting: str) -> Sequence[str]:
    """What outlives the workers: nothing may."""
    for _ in range(int(SETTLED_SECONDS * 10)):
        if not processes_with(setting):
            break
        await asyncio.sleep(0.1)
    return processes_with(setting)


# --- afterwards -------------------------------------------------------------------------------


async def _judge(play: _Play, folder: Path, shop: Shop, living: Sequence[str]) -> Report:
    happened = shop.look()
    log = read_log(folder / "provider-requests.jsonl")
    witnesses = []
    for served in play.served:
        found = await witness(served.run.client, served.run.id, folder / "histories")
        _complete(found, served, happened, log)
        witnesses.append(found)
    violations = await judged(witnesses, folder / "histories")
    for served, found in zip(play.served, witnesses, strict=True):
        violations += [
            Violation(invariant, served.run.id, None, text)
            for invariant, text in _wrongs(served, found, shop.refunded())
        ]
    violations += [Violation("I11", "(none)", None, f"there lives {p}") for p in living]
    ends = [s.ended for s in play.served if s.ended is not None]
    last = play.kills[-1].time if play.kills else 0
    return Report(
        play.served,
        play.kills,
        witnesses,
        play.settled,
        happened,
        violations,
        finish=max(0.0, max(ends, default=0) - last),
    )


def _complete(
    found: Witness,
    served: Served,
    happened: Sequence[Arrival],
    log: Sequence[Record],
) -> None:
    """Add what is known of a run from elsewhere."""
    found.seen.arrivals = [row for row in happened if _is_of(row, served.request)]
    found.seen.requests = [r for r in log if r.prompt == served.request.prompt]


def _is_of(row: Arrival, request: Request) -> bool:
    return bool(row.body["order_id"] == request.order.id)


def _wrongs(served: Served, found: Witness, refunded: dict[int, Any]) -> Iterator[tuple[str, str]]:
    """What the shop's databases say against the run, beyond what holds for every agent."""
    request, rows = served.request, found.seen.arrivals
    of = {tool: [row for row in rows if row.name == tool] for tool in _MUTATING}
    amounts = [row.body["amount"] for row in of["issue_refund"]]
    if amounts != [str(request.amount)] or refunded[request.order.id] != request.amount:
        yield "I1", f"{request.amount} is to be refunded, and {amounts} is"
    wanted = [t for t in _MUTATING if t != "book_pickup" or request.comes_back]
    called = [c.input.tool for c in found.seen.run.calls]
    # The agent gives up at a call that failed: what would have followed was never asked for.
    gave_up = len(called) <= len(wanted) and _admits(found, called[-1])
    for tool in ("book_pickup", "send_email"):
        times, right = len(of[tool]), int(tool in wanted)
        told = _admits(found, tool) or (gave_up and tool not in called)
        if times > right or (times < right and not told):
            yield "I1" if tool == "book_pickup" else "I2", f"{tool} {times} times, {right} is right"
    in_order = ["find_order", *wanted][: len(called)]
    if called != in_order or (len(called) <= len(wanted) and not gave_up):
        yield "I3", f"its calls are {called}"
    if served.ended is not None and len(served.left) != len(rows):
        yield "I11", f"{len(rows) - len(served.left)} effects came after its end"


def _admits(found: Witness, tool: str) -> bool:
    """Whether the transcript says of a call that it did not happen, or that nobody knows."""
    result = found.seen.run.result
    settled = {u.tool for u in result.unknown if u.status == "not_landed"} if result else set()
    told = [
        e.value["text"]
        for e in found.seen.entries or ()
        if e.kind == "result" and e.value["tool"] == tool
    ]
    return tool in settled or any(UNKNOWN in t or "did not take effect" in t for t in told)


def _tell(report: Report, options: Options, say: Callable[[str], None]) -> int:
    for violation in report.violations:
        say(f"VIOLATION {violation}")
    results = (w.seen.run.result for w in report.witnesses)
    outcomes = Counter(r.outcome if r else "(none)" for r in results)
    say(", ".join(f"{n} {outcome}" for outcome, n in outcomes.items()))
    effects = Counter(row.name for row in report.happened)
    say(", ".join(f"{tool} {effects[tool]}" for tool in _MUTATING) + " times, by the databases")
    found = Counter(f"{tool} {'' if landed else 'not '}landed" for tool, landed in report.settled)
    say("settled by a person: " + (", ".join(f"{n} {w}" for w, n in found.items()) or "nothing"))
    say(f"the last run ended {report.finish:.0f} s after the last kill")
    say(
        f"random: {len(report.served)} runs, {len(report.kills)} kills ({report.in_flight} with a "
        f"mutating call in flight), {len(report.violations)} violations"
    )
    whole = len(report.served) == options.runs and report.kills
    return 0 if whole and not report.violations else 1


def main(argv: list[str] | None = None) -> int:
    """Run it; the exit code."""
    parser = argparse.ArgumentParser(description="Kill workers of the refunds agent at random.")
    parser.add_argument("--seed", type=int, help="default: a new one")
    parser.add_argument("--minutes", type=float, default=Options.seconds / 60)
    parser.add_argument("--runs", type=int, default=Options.runs)
    parser.add_argument("--latency", type=float, default=Options.latency, help="milliseconds")
    parser.add_argument("--database", choices=["postgresql", "sqlite"], default=usual_database())
    parser.add_argument("--folder", type=Path, metavar="DIR", help="new; default a temporary one")
    given = parser.parse_args(argv)
    options = Options(
        seed=random.randrange(1_000_000) if given.seed is None else given.seed,
        seconds=given.minutes * 60,
        runs=given.runs,
        latency=given.latency,
        database=given.database,
    )
    folder = given.folder or Path(tempfile.mkdtemp(prefix="random-"))
    say(" ".join(f"{name}={value}" for name, value in asdict(options).items()))
    say(f"logs, databases and histories in {folder}")
    with EmbeddedServer.start(folder / "server", port=0, announce=say) as server:
        report = asyncio.run(run(options, folder, say, address=server.address))
    return _tell(report, options, say)


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    code = main()
    # Not sys.exit: a process that used temporalio may abort while the interpreter is taken down.
    os._exit(code)
