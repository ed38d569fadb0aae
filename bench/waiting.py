"""What a run that waits costs: memory while it is at hand and once it is evicted, events, and a
restart that has a message for each: `make endless BENCH="--only waiting"`.

Method. Server, scripted provider and worker are processes of their own. Each run makes one call
whose outcome nobody knows and waits for a person. Memory is what the worker shares with no other
process (`bench.sampled`): the growth over `--runs` further runs, divided by their number, once with
a cache that holds them all and once with the smallest cache there is, so that all but a few are
evicted. Both begin after some runs that are not counted.

Then all workers are stopped, a message is sent to each of the first batch, and a worker with its
default cache is started: how long until every run has ended with what its message says, and the
largest memory of that worker meanwhile. The histories say whether a workflow task failed, and
whether a run that waited had an event added in the meantime. An hour of virtual time is waited by
some runs on a server that skips time: only the clock differs there.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from temporalio.testing import WorkflowEnvironment

from activities.capacity import MIN_RUNS
from bench.agents import send, waits
from bench.histories import executions
from bench.place import Memory, Place, SampledWorker, opened
from bench.report import Check, Report
from tests.rig import open_rig, until
from turnkeeper import Limits
from turnkeeper.client import AgentRunHandle
from turnkeeper.contract import RESOLVE
from turnkeeper.converter import data_converter
from turnkeeper.outside import UnknownOutcome
from turnkeeper.testing.embedded import dev_server_arguments, find_temporal

CACHED_BYTES, EVICTED_BYTES = 300_000, 5_000
_AT_ONCE = 20
_SAMPLES = 10
"""Of memory, along a batch."""
_WARM = {"cached": 30, "grown": 2, "evicted": 3 * MIN_RUNS}
"""Runs before those that are counted; of the last, more than the smallest cache holds."""
_GROWN = 10
_PATIENCE_SECONDS = 900.0
_T = TypeVar("_T")


async def measure(place: Place, report: Report, runs: int) -> None:
    """Cached, evicted, restarted."""
    async with serving(place, "--cache-mb", "100000") as worker:
        cached = await growth(place, worker, "cached", runs)
        grown = await growth(place, worker, "grown", _GROWN, agent="grown")
    before = await lengths(place, "cached", runs)
    async with serving(place, "--cache-mb", "1") as worker:
        evicted = await growth(place, worker, "evicted", runs)
    after = await lengths(place, "cached", runs)
    added = sum(after[name] - length for name, length in before.items())
    ((_, size),) = (await sizes(place, "grown", 1)).items()
    report.checks += [
        Check("memory of a cached run", round(cached), most=CACHED_BYTES, unit="bytes"),
        Check("memory of an evicted run", round(evicted), most=EVICTED_BYTES, unit="bytes"),
        Check("history of a cached run that has read much", size, unit="bytes"),
        Check("memory of it, its view included", round(grown), unit="bytes"),
        Check("events added to runs that waited meanwhile", added, most=0),
    ]
    await restarted(place, report, runs)


@contextlib.asynccontextmanager
async def serving(place: Place, *options: str) -> AsyncIterator[SampledWorker]:
    """A worker that is stopped in the end, and has to end cleanly."""
    worker = await place.worker(*options)
    yield worker
    await place.stop(worker)


async def growth(
    place: Place, worker: SampledWorker, name: str, runs: int, *, agent: str = "waiting"
) -> float:
    """Bytes that a worker takes more for each further run: the slope of a line through samples,
    since a heap grows and shrinks by megabytes."""
    await begin(place, f"{name}-warm", _WARM[name], agent=agent)
    began, started = time.monotonic(), 0
    found = {0: await worker.memory()}
    for share in range(1, _SAMPLES + 1):
        wanted = runs * share // _SAMPLES
        await begin(place, name, wanted, first=started, agent=agent)
        found[wanted], started = await worker.memory(), wanted
    took, last = time.monotonic() - began, found[runs]
    print(
        f"  {name}: {runs} runs wait after {took:.0f} s, {_mb(found[0].own)} -> {_mb(last.own)}",
        flush=True,
    )
    return statistics.linear_regression(list(found), [m.own for m in found.values()]).slope


async def begin(
    place: Place, name: str, runs: int, *, first: int = 0, agent: str = "waiting"
) -> None:
    """Start runs `first` to `runs` of a batch, and wait until all of it wait for a person."""

    async def start(number: int) -> None:
        await place.agents.start(agent, f"customer {name} {number}", id=f"{name}-{number:05}")

    await _each(range(first, runs), start)
    await _until_counted(place, f"{_batch(name)} AND TurnkeeperStatus = 'waiting'", runs)


async def lengths(place: Place, name: str, runs: int) -> dict[str, int]:
    """Events of each run of a batch, by its id."""
    return {n: x.history_length for n, x in (await _described(place, name, runs)).items()}


async def sizes(place: Place, name: str, runs: int) -> dict[str, int]:
    """Bytes of history of each run of a batch, by its id."""
    return {n: x.history_size_bytes for n, x in (await _described(place, name, runs)).items()}


async def _described(place: Place, name: str, runs: int) -> dict[str, Any]:
    async def one(number: int) -> tuple[str, Any]:
        run = f"{name}-{number:05}"
        described = await place.client.get_workflow_handle(run).describe()
        return run, described.raw_description.workflow_execution_info

    return dict(await _each(range(runs), one))


async def restarted(place: Place, report: Report, runs: int) -> None:
    """A message to every waiting run while no worker is up; then one starts."""
    waiting = place.agents.unknown_calls(_batch("cached"), waiting_only=True, limit=2 * runs)
    found = [outcome async for outcome in waiting]
    told = [outcome.id for outcome in found]

    async def tell(outcome: UnknownOutcome) -> None:
        body = {"landed": True, "result": f"message to {outcome.id}"}
        handle = place.client.get_workflow_handle(outcome.id)
        await handle.signal(RESOLVE, {"call_id": outcome.call.call_id, **body})

    await _each(found, tell)
    began = time.monotonic()
    async with serving(place) as worker:
        ready = await worker.memory()
        await _until_counted(place, f"{_batch('cached')} AND TurnkeeperStatus = 'ended'", runs)
        took = time.monotonic() - began
        answered = await _each(told, lambda run: _answered(place, run))
        memory = await worker.memory()
    _tell_restart(report, took, ready, memory)
    report.checks += [
        Check("runs that had a message", len(told), least=runs),
        Check("of them answered", sum(answered), least=runs),
        Check("failed workflow tasks", await failed(place, told), most=0),
    ]


def _tell_restart(report: Report, took: float, ready: Memory, memory: Memory) -> None:
    report.checks += [
        Check("restart until every message is answered", round(took, 1), unit="s"),
        Check("worker, as it took its first run", ready.rss, unit="bytes"),
        Check("peak of the worker meanwhile", memory.peak, unit="bytes"),
        Check("worker afterwards", memory.rss, unit="bytes"),
    ]


async def _answered(place: Place, run: str) -> bool:
    result = await place.agents.result(run, check=False, timeout=60)
    return result.outcome == "completed" and result.answer == f"message to {run}"


async def failed(place: Place, runs: Sequence[str]) -> int:
    """Workflow tasks that failed in any of the runs."""

    async def count(run: str) -> int:
        return sum(e.failed_tasks for e in await executions(place.client, run))

    return sum(await _each(runs, count))


async def idle(folder: Path, report: Report, runs: int) -> None:
    """Events that an hour of virtual time adds."""
    environment = await WorkflowEnvironment.start_time_skipping_v2(
        data_converter=data_converter,
        dev_server_existing_path=find_temporal(),
        dev_server_extra_args=dev_server_arguments(time_skipping=True),
        dev_server_log_level="error",
    )
    with environment.with_time_skipping_disabled():
        async with (
            environment,
            open_rig(
                environment.client,
                folder,
                waits,
                tools=[send],
                on_unknown="wait",
                limits=Limits(wall_seconds=7_200),
            ) as rig,
        ):
            handles = [await rig.start(f"customer {n}") for n in range(runs)]
            added = [await _hour(environment, run) for run in handles]
    report.checks.append(Check(f"events {runs} runs add in a virtual hour", sum(added), most=0))


async def _hour(environment: WorkflowEnvironment, run: AgentRunHandle) -> int:
    """Events that it adds to a waiting run."""
    await until(functools.partial(_waits, run))
    handle = environment.client.get_workflow_handle(run.id)
    before = [e async for e in handle.fetch_history_events()]
    if not await environment.fast_forward(handle, timedelta(hours=1)):
        raise RuntimeError(f"{run.id} ended while it waited")
    after = [e async for e in handle.fetch_history_events()]
    return len(added_by_the_run(after[len(before) :]))


async def _waits(run: AgentRunHandle) -> bool:
    status = await run.status()
    return any(u.status == "waiting" for u in status.unknown)


def added_by_the_run(events: Sequence[Any]) -> list[Any]:
    """Without those by which a server that skips time notes that it did."""
    names = (
        "workflow_execution_options_updated_event_attributes",
        "workflow_execution_time_skipping_transitioned_event_attributes",
    )
    return [e for e in events if not any(map(e.HasField, names))]


async def _until_counted(place: Place, query: str, wanted: int) -> None:
    async def reached() -> bool:
        # The list of runs is not asked more often than a person would.
        await asyncio.sleep(0.3)
        return (await place.client.count_workflows(query)).count >= wanted

    await until(reached, timeout=_PATIENCE_SECONDS)


def _batch(name: str) -> str:
    return f"WorkflowId STARTS_WITH '{name}-0'"


async def _each(items: Iterable[Any], act: Callable[[Any], Awaitable[_T]]) -> list[_T]:
    """Some at a time."""
    found: list[_T] = []
    remaining = iter(items)
    while some := list(itertools.islice(remaining, _AT_ONCE)):
        found += await asyncio.gather(*map(act, some))
    return found


def _mb(size: int) -> str:
    return f"{size / 1e6:.0f} MB"


async def case(folder: Path, *, runs: int = 1_000, virtual: int = 20) -> Report:
    """All of it."""
    report = Report("waiting", {"runs": runs, "virtual": virtual})
    async with opened(folder, "bench.agents:waits") as place:
        await measure(place, report, runs)
    await idle(folder, report, virtual)
    return report
