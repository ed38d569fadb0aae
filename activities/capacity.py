"""How much memory a worker's caches may take: a share of what the machine allows it.

Temporal's cache of workflows is bounded by a number of runs alone. A cached run takes about as much
memory as its history has bytes, and its history has no more than its agent's `HistoryPolicy.bytes`
before the run continues as new: each is counted at that, so that the bound holds whatever the runs
are like. A run that is evicted is replayed from its history when something happens to it.
"""

from __future__ import annotations

import ctypes
import os
import resource
from dataclasses import dataclass
from pathlib import Path

BARE_RUN_BYTES = 500_000
"""What a run takes beside its history: measured at a third of it (`make endless`)."""
SHARE = 4
"""The caches take one part in so many of the memory, unless told otherwise."""
_M_ARENA_MAX, _ARENAS = -8, 2
_M_MMAP_THRESHOLD, _MAPPED_BYTES = -3, 128 * 1024
MIN_BYTES = 64_000_000
MIN_RUNS, MAX_RUNS = 50, 10_000
"""With fewer, runs that are at work would be replayed at every step; more are not watched over by
one process."""


@dataclass(frozen=True)
class Caches:
    """What a worker keeps at most."""

    runs: int
    """Workflows, and views."""
    view_bytes: int
    """Of the views together."""


def caches(megabytes: float | None, history_bytes: int) -> Caches:
    """The caches for so many megabytes, or for a share of `available()`: half for workflows, whose
    histories have at most `history_bytes`, and half for views."""
    budget = available() // SHARE if megabytes is None else int(megabytes * 1_000_000)
    half = max(budget, MIN_BYTES) // 2
    runs = half // (history_bytes + BARE_RUN_BYTES)
    return Caches(runs=min(max(runs, MIN_RUNS), MAX_RUNS), view_bytes=half)


def give_memory_back() -> None:
    """Have the C library return what a large task took, where it can be told so.

    By default each of a worker's many threads gets a heap of its own, and each keeps what its
    largest task once took; and a block that was freed raises the size up to which blocks come from
    a heap, to 32 MB in the end. Memory then grows for days in steps that nothing gives back.
    """
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(_M_ARENA_MAX, _ARENAS)
        # Its initial value; that it is set keeps it from growing.
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)


def available(root: Path = Path("/")) -> int:
    """Bytes of memory that this process may use: the machine's, its control group's limit, or that
    of its address space, whichever is least."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *_group_limits(root)]
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if space != resource.RLIM_INFINITY:
        limits.append(space)
    return min(limits)


def _group_limits(root: Path) -> list[int]:
    """Of the control group that this process is in, and of all above it."""
    found = []
    for folder, name in _groups(root):
        for place in (folder, *folder.parents):
            try:
                found.append(int((place / name).read_text()))
            except (OSError, ValueError):
                # No such group in this container, or "max".
                continue
    return found


def _groups(root: Path) -> list[tuple[Path, str]]:
    """Folders of this process's groups, and the file there that has the limit."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    files = []
    mount = root / "sys/fs/cgroup"
    for line in lines:
        _, controllers, path = line.split(":", 2)
        inside = path.strip("/")
        if not controllers:
            files.append((mount / inside, "memory.max"))
        elif "memory" in controllers.split(","):
            files.append((mount / "memory" / inside, "memory.limit_in_bytes"))
    return files
