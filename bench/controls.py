"""The controls of the benchmarks: `make endless-controls`.

Leaks and a growing delay are planted; a bound that holds all the same would prove nothing. (A lost
prompt cache is the control of `bench.prompt_cache` itself.)
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from bench import endless, waiting
from bench.place import opened
from bench.report import Check

TURNS, RUNS = 1_000, 200
_LEAKED_A_CALL, _LEAKED_A_RUN = 40_000, 10_000
_SLOWER_SECONDS = 0.0001


async def long_run(folder: Path) -> list[Check]:
    """Memory that grows by a tenth and more, and turns that take ever longer."""
    os.environ |= {"BENCH_LEAK": str(_LEAKED_A_CALL), "BENCH_SLOWER": str(_SLOWER_SECONDS)}
    report = await endless.turns(folder, argparse.Namespace(turns=TURNS))
    return [c for c in report.checks if c.name in ("late against early", "most against least")]


async def evicted_runs(folder: Path) -> list[Check]:
    """Twice the bytes that an evicted run may keep."""
    os.environ |= {"BENCH_LEAK": str(_LEAKED_A_RUN), "BENCH_SLOWER": "0"}
    async with (
        opened(folder, "bench.agents:waits") as place,
        waiting.serving(place, "--cache-mb", "1") as worker,
    ):
        kept = await waiting.growth(place, worker, "evicted", RUNS)
    name = "memory of an evicted run"
    return [Check(name, round(kept), most=waiting.EVICTED_BYTES, unit="bytes")]


CONTROLS: Mapping[str, Callable[[Path], Awaitable[list[Check]]]] = {
    "a leak and a delay": long_run,
    "a leak of waiting runs": evicted_runs,
}


async def _caught(name: str) -> bool:
    print(f"--- {name}", flush=True)
    with tempfile.TemporaryDirectory(prefix="controls-") as folder:
        checks = await CONTROLS[name](Path(folder))
    for check in checks:
        told = "NOT CAUGHT" if check.holds else "caught"
        print(f"  {told:<10} {check.name}: {check.value:g}, at most {check.most:g}", flush=True)
    return bool(checks) and not any(check.holds for check in checks)


def main() -> int:
    """0 if each fault was caught."""
    import structlog

    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    caught = [asyncio.run(_caught(name)) for name in CONTROLS]
    return 0 if all(caught) else 1


if __name__ == "__main__":
    sys.exit(main())
