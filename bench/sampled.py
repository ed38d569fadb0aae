"""A worker that says how much memory it takes: `worker.py`, and on SIGUSR1 a line of JSON.

    BENCH_SAMPLES=samples.jsonl python -m bench.sampled --agents bench.agents

takes the options of `worker.py`. Each line is written after a full garbage collection, and when the
C library has given back what is free (it may keep a hundred megabytes for later), in bytes: `own`
(pages that no other process shares: of shared ones, a part would depend on who else is at work),
`rss`, and `peak`, the largest `rss` since the start.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import re
import signal
import sys
from pathlib import Path

import worker

_KILOBYTE = 1_024


def memory() -> dict[str, int]:
    """Of this process, from the operating system."""
    rollup = Path("/proc/self/smaps_rollup").read_text()
    status = Path("/proc/self/status").read_text()
    return {
        "own": sum(_kilobytes(rollup, f"Private_{k}") for k in ("Clean", "Dirty")) * _KILOBYTE,
        "rss": _kilobytes(status, "VmRSS") * _KILOBYTE,
        "peak": _kilobytes(status, "VmHWM") * _KILOBYTE,
    }


def _kilobytes(text: str, name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)
    if found is None:
        raise ValueError(f"/proc does not tell {name}")
    return int(found[1])


def _sample(_number: int, _frame: object) -> None:
    gc.collect()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)
    with Path(os.environ["BENCH_SAMPLES"]).open("a") as samples:
        samples.write(json.dumps(memory()) + "\n")


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, _sample)
    status = worker.main()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    # As worker.py does, and for its reason.
    os._exit(status)
