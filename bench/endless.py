"""Runs without end, at a flat cost: what `make endless` shows.

    python -m bench.endless [--only turns,history,waiting] [--turns 10000] [--results DIR]

turns    one run of --turns turns with results of 2 kB, in a window of 64,000 tokens. Milliseconds
         are those between two generations in the run's history. The worker's memory is sampled a
         hundred times, each after a garbage collection (`bench.sampled`) and the least of three, a
         few turns apart: what a single turn needs for itself is no growth. The peak is told, too.
history  bytes of history against a loop that passes the whole transcript (`bench.baseline`): 80
         turns of 10 kB, the same texts.
needles  `bench.needles`: early facts, asked for when they have left the view; `needles-bad` has no
         summary that could be used.
huge     `bench.huge`: results, arguments and replies that are far too large.
waiting  `bench.waiting`: 1,000 runs that wait.

Server, strict scripted provider and worker are processes of their own; the provider answers without
delay and keeps no bodies, so that what is measured is ours. Each case is kept as JSON in
bench/results/, the first with a picture. The exit code is 1 if a bound does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import baseline, huge, needles, waiting
from bench.agents import WINDOW
from bench.histories import Execution, executions
from bench.picture import Chart
from bench.place import Memory, Place, SampledWorker, opened
from bench.report import RESULTS, Check, Report, unharmed
from turnkeeper.client import AgentRunHandle
from turnkeeper.contract import GENERATE

_READINGS, _READING_SECONDS = 5, 0.5
_SAMPLES = 100
_RESULT_BYTES = 2_000
_EVENTS, _BYTES = 10_240, 10_000_000
"""Of one execution: Temporal warns there."""
_STATE_BYTES = 1_000_000
_LONG = 1_000
"""Turns from which on time and memory are held to bounds; of fewer they say nothing."""
_TELL_SECONDS = 15.0
_TURN_SECONDS = 3.0
"""A turn that takes longer is a run that hangs."""


# --- one long run -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Turn:
    """When its generation was first asked for, in seconds, and the execution's bytes by then."""

    number: int
    asked: float
    size: int


async def turns(folder: Path, options: argparse.Namespace) -> Report:
    """One run, however long."""
    count: int = options.turns
    report = Report("turns", {"turns": count, "bytes": _RESULT_BYTES, "window": WINDOW})
    environment = {"ENDLESS_TURNS": str(count), "ENDLESS_BYTES": str(_RESULT_BYTES)}
    async with opened(
        folder, "bench.agents:reads", window=WINDOW, environment=environment
    ) as place:
        worker = await place.worker()
        run = await place.agents.start("endless", "Read the report.", limits={"turns": count})
        memory = await _watched(run, worker, count)
        result = await run.result(check=False, timeout=60)
        links = await executions(place.client, run.id)
        requests = place.requests()
        await place.stop(worker)
    print(f"  {result.outcome}: {result.reason or result.answer}")
    completed = result.turns if result.outcome == "completed" else 0
    report.checks = [
        Check("turns of the run, if it completed", completed, least=count),
        *_times(report, _turns(links), count),
        *_memory(report, memory, count),
        *_bounds(links),
        *unharmed(requests, links),
    ]
    return report


async def _watched(run: AgentRunHandle, worker: SampledWorker, count: int) -> dict[int, Memory]:
    """Tell the progress until the run has ended; memory at some of its turns."""
    found: dict[int, Memory] = {}
    every, told, began = max(1, count // _SAMPLES), 0.0, time.monotonic()
    async with asyncio.timeout(60 + count * _TURN_SECONDS):
        while (status := await run.status()).outcome is None:
            if status.turn >= every * (len(found) + 1):
                found[status.turn] = await _between_turns(worker)
            if (passed := time.monotonic() - began) - told >= _TELL_SECONDS:
                told = passed
                last = f", {list(found.values())[-1].own / 1e6:.0f} MB" if found else ""
                print(f"  turn {status.turn} after {passed:.0f} s{last}", flush=True)
            await asyncio.sleep(0.2)
    return found


async def _between_turns(worker: SampledWorker) -> Memory:
    """What the worker keeps, whatever the turn at hand needs: a summary reads the whole view."""
    readings = []
    for _ in range(_READINGS):
        readings.append(await worker.memory())
        await asyncio.sleep(_READING_SECONDS)
    return min(readings, key=lambda m: m.own)


def _turns(links: Sequence[Execution]) -> list[Turn]:
    found: dict[int, Turn] = {}
    for link in links:
        size = 0
        for event in link.events:
            size += event.ByteSize()
            scheduled = event.activity_task_scheduled_event_attributes
            if scheduled.activity_type.name == GENERATE:
                number = int(scheduled.activity_id.removeprefix("turn-"))
                asked = event.event_time.ToMicroseconds() / 1e6
                found.setdefault(number, Turn(number, asked, size))
    return list(found.values())


def _times(report: Report, course: Sequence[Turn], count: int) -> list[Check]:
    """The last turns against early ones."""
    took = [1000 * (after.asked - turn.asked) for turn, after in itertools.pairwise(course)]
    tenth = max(1, count // 10)
    early = statistics.median(took[tenth : 2 * tenth])
    late = statistics.median(took[-tenth:])
    numbers = [t.number for t in course]
    sizes = [t.size / 1e6 for t in course]
    report.charts += [
        Chart("Time of a turn", numbers[:-1], took, "ms", bound=1.5 * early),
        Chart("History of its execution", numbers, sizes, "MB", bound=_BYTES / 1e6),
    ]
    return [
        Check(f"median of turns {tenth} to {2 * tenth}", round(early, 1), unit="ms"),
        Check(f"median of the last {tenth} turns", round(late, 1), unit="ms"),
        Check("late against early", round(late / early, 3), most=_bound(1.5, count)),
    ]


def _memory(report: Report, memory: Mapping[int, Memory], count: int) -> list[Check]:
    """The worker's, from a fifth of the run on: it has warmed up by then."""
    late = [m.own / 1e6 for turn, m in memory.items() if turn >= count // 5]
    if not late:
        return [Check("samples of memory", len(memory), least=1)]
    every = [m.own / 1e6 for m in memory.values()]
    report.charts.append(Chart("Memory of the worker", list(memory), every, "MB"))
    return [
        Check("samples of memory", len(memory)),
        Check("least memory from a fifth of the run on", round(min(late), 1), unit="MB"),
        Check("peak", round(max(m.peak for m in memory.values()) / 1e6, 1), unit="MB"),
        Check("most against least", round(max(late) / min(late), 3), most=_bound(1.1, count)),
    ]


def _bound(most: float, count: int) -> float | None:
    return most if count >= _LONG else None


def _bounds(links: Sequence[Execution]) -> list[Check]:
    """Of each execution in the chain; and what it did beside turns."""
    done = Counter(
        e.activity_task_scheduled_event_attributes.activity_type.name
        for link in links
        for e in link.events
    )
    states = [link.carried for link in links if link.carried is not None]
    return [
        Check("executions", len(links)),
        Check("most events of one", max(len(x.events) for x in links), most=_EVENTS),
        Check("largest history", max(x.size for x in links), most=_BYTES, unit="bytes"),
        Check("largest state carried on", max(states, default=0), most=_STATE_BYTES, unit="bytes"),
        *(Check(f"activities {n}", done[n]) for n in sorted(done) if n.startswith("run.")),
    ]


# --- history against passing everything ---------------------------------------------------------


async def history(folder: Path, options: argparse.Namespace) -> Report:
    """The same conversation both ways."""
    count, size = options.history_turns, 10_000
    report = Report("history", {"turns": count, "bytes": size})
    environment = {"ENDLESS_TURNS": str(count), "ENDLESS_BYTES": str(size)}
    async with opened(folder, "bench.agents:reads", environment=environment) as place:
        ours = await _our_history(place, count)
        name = await baseline.run(place.client, count, size)
        theirs = sum(x.size for x in await executions(place.client, name))
    report.checks += [
        Check("history of the run", ours, unit="bytes"),
        Check("history of the loop that passes everything", theirs, unit="bytes"),
        Check("times less", round(theirs / ours, 2), least=15 if count >= 80 else None),
    ]
    return report


async def _our_history(place: Place, count: int) -> int:
    worker = await place.worker()
    run = await place.agents.start("reader", "Read the report.", limits={"turns": count})
    result = await run.result(check=False, timeout=60 + count * _TURN_SECONDS)
    if result.outcome != "completed":
        raise RuntimeError(f"{run.id}: {result.outcome}: {result.reason}")
    size = sum(x.size for x in await executions(place.client, run.id))
    await place.stop(worker)
    return size


# --- all of it ------------------------------------------------------------------------------------


async def _waiting(folder: Path, options: argparse.Namespace) -> Report:
    return await waiting.case(folder, runs=options.runs)


CASES: Mapping[str, Callable[[Path, argparse.Namespace], Awaitable[Report]]] = {
    "turns": turns,
    "history": history,
    "needles": needles.case,
    "needles-bad": needles.bad_summaries,
    "huge": huge.case,
    "waiting": _waiting,
}


async def run(names: Sequence[str], options: argparse.Namespace) -> bool:
    """Run cases one after another, and say whether all their bounds hold."""
    holds = True
    for name in names:
        print(f"--- {name}", flush=True)
        with tempfile.TemporaryDirectory(prefix=f"endless-{name}-") as folder:
            report = await CASES[name](Path(folder), options)
        report.show()
        report.write(options.results)
        holds = holds and report.holds
    return holds


def _names(given: str) -> list[str]:
    names = [n.strip() for n in given.split(",")]
    if unknown := [n for n in names if n not in CASES]:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: known are {', '.join(CASES)}")
    return names


def main(argv: list[str] | None = None) -> int:
    """0, or 1 if a bound does not hold."""
    import structlog

    parser = argparse.ArgumentParser(prog="python -m bench.endless", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", type=_names, default=list(CASES), metavar="CASE,...")
    parser.add_argument("--turns", type=int, default=10_000, metavar="N")
    parser.add_argument("--history-turns", type=int, default=80, metavar="N")
    parser.add_argument("--runs", type=int, default=1_000, metavar="N", help="that wait")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR")
    options = parser.parse_args(argv)
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    return 0 if asyncio.run(run(options.only, options)) else 1


if __name__ == "__main__":
    sys.exit(main())
