"""What a turn costs: history events and bytes, milliseconds, tokens.

    python -m bench.turn_cost [--turns 20,50,100] [--calls 1,4] [--bytes 2000] [--repeats 3]

Method. A real development server on a file database, one worker and the scripted provider, both in
this process, over real HTTP. A run of N turns makes K parallel calls a turn; each call returns
`--bytes` of prose (not one repeated letter, which is compressed to nothing on the way) and is made
of a few words, and the provider answers without delay: what is measured is ours, not a model's.

Events and bytes are those of the fetched history (`ByteSize` of each event) of a run that does not
continue as new, divided by N; `slope` is their growth between this N and the one before it, which
leaves out what a run costs once. Milliseconds are from start to result, the median of `--repeats`
runs that follow an unmeasured one, divided by N. Tokens are the provider's estimate (a quarter of
the bytes of JSON) over the whole run, divided by N: the whole conversation is read in each turn, so
they grow with N, nearly all of them from the prompt cache.

Absolute times say as much about the machine as about the product; compare only what was measured
in turns on one machine. Nothing is asserted here: tests/test_history_cost.py does that.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.prose import prose
from tests.rig import open_rig
from turnkeeper import Limits, tool
from turnkeeper.client import AgentClient
from turnkeeper.spec import HistoryPolicy
from turnkeeper.testing import Exchange, Reply, calls, text
from turnkeeper.testing.embedded import EmbeddedServer

_NEVER = HistoryPolicy(events=8_000, bytes=8_000_000)
_PATIENT = Limits(turns=10_000, consecutive_errors=100, repetition=100)


@tool(effect="read")
def page(number: int, size: int) -> str:
    """Read a page of a long report."""
    return prose(number, size)


@dataclass(frozen=True)
class Cost:
    """Of one run, or of several on average."""

    turns: int
    events: int
    size: int
    seconds: float
    tokens: int
    cached: int


async def measure(client: Any, folder: Path, *, turns: int, parallel: int, size: int) -> Cost:
    """Run once."""

    def script(x: Exchange) -> Reply:
        if x.turn >= turns:
            return text("Read.")
        first = x.turn * parallel
        return calls([("page", {"number": first + i, "size": size}) for i in range(parallel)])

    options: dict[str, Any] = {
        "tools": [page],
        "limits": _PATIENT,
        "history": _NEVER,
        "provider": {"window": 10**8},
    }
    async with open_rig(client, folder, script, **options) as rig:
        began = time.perf_counter()
        result = await rig.run(timeout=600)
        seconds = time.perf_counter() - began
        executions = await rig.executions()
    if result.outcome != "completed" or len(executions) > 1:
        raise SystemExit(f"{result.outcome} in {len(executions)} executions: {result.reason}")
    (events,) = executions
    return Cost(
        turns=turns,
        events=len(events),
        size=sum(e.ByteSize() for e in events),
        seconds=seconds,
        tokens=result.usage.total,
        cached=result.usage.cache_read_tokens,
    )


async def table(client: Any, folder: Path, options: argparse.Namespace) -> None:
    """Measure and print line by line."""
    print(f"{options.bytes} bytes a call, {options.repeats} runs each; per turn:")
    print("  K    N   events  (slope)    bytes   (slope)      ms   tokens  (cached)")
    for parallel in options.calls:
        earlier: Cost | None = None
        for turns in options.turns:
            costs = [
                await measure(client, folder, turns=turns, parallel=parallel, size=options.bytes)
                for _ in range(options.repeats + 1)
            ]
            print(_line(parallel, costs[1:], earlier), flush=True)
            earlier = costs[-1]


def _line(parallel: int, costs: list[Cost], earlier: Cost | None) -> str:
    last, turns = costs[-1], costs[-1].turns
    slopes = ("", "")
    if earlier is not None and turns > earlier.turns:
        more = turns - earlier.turns
        slopes = (
            f"({(last.events - earlier.events) / more:.2f})",
            f"({(last.size - earlier.size) / more:.0f})",
        )
    milliseconds = statistics.median(c.seconds for c in costs) * 1000 / turns
    return (
        f"{parallel:>3} {turns:>4} {last.events / turns:>8.2f} {slopes[0]:>8} "
        f"{last.size / turns:>8.0f} {slopes[1]:>9} {milliseconds:>7.1f} "
        f"{last.tokens / turns:>8.0f}  ({last.cached / turns:.0f})"
    )


def _numbers(given: str) -> list[int]:
    numbers = [int(n) for n in given.split(",")]
    if not all(1 <= n <= 10_000 for n in numbers):
        raise argparse.ArgumentTypeError(f"{given!r}: numbers from 1 to 10000, with commas")
    return numbers


async def _main(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="turn-cost-") as folder:
        place = Path(folder)
        with EmbeddedServer.start(place / "temporal", ui=False) as server:
            connected = await AgentClient.connect(server.address)
            await table(connected.client, place, options)


def main(argv: list[str] | None = None) -> int:
    """Print the table."""
    import structlog

    parser = argparse.ArgumentParser(prog="python -m bench.turn_cost", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--turns", type=_numbers, default=[20, 50, 100], metavar="N,N,...")
    parser.add_argument("--calls", type=_numbers, default=[1, 4], metavar="K,K,...")
    parser.add_argument("--bytes", type=int, default=2_000, metavar="B")
    parser.add_argument("--repeats", type=int, default=3, metavar="R")
    # Log lines cost as much as they would in production, and are not looked at.
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    asyncio.run(_main(parser.parse_args(argv)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
