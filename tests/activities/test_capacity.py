"""The share of memory that a worker's caches take."""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from activities import capacity
from activities.capacity import MAX_RUNS, MIN_RUNS, Caches, available, caches
from tests.conftest import ROOT

MACHINE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def root(folder: Path, groups: str, **limits: str) -> Path:
    """A machine's root folder: the process's control groups, and files below the mount."""
    (folder / "proc/self").mkdir(parents=True)
    (folder / "proc/self/cgroup").write_text(groups)
    for path, text in limits.items():
        file = folder / "sys/fs/cgroup" / path.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    return folder


@pytest.mark.parametrize(
    ("groups", "limits", "found"),
    [
        pytest.param("0::/\n", {"memory.max": "500000"}, 500_000, id="container"),
        pytest.param("0::/a/b\n", {"a__b__memory.max": "max"}, MACHINE, id="no limit"),
        pytest.param(
            "0::/a/b\n",
            {"a__b__memory.max": "max", "a__memory.max": "300000"},
            300_000,
            id="of a group above",
        ),
        pytest.param(
            "7:cpu:/\n4:memory:/docker/1\n0::/\n",
            {"memory__docker__1__memory.limit_in_bytes": "400000"},
            400_000,
            id="version 1",
        ),
        pytest.param(
            # The path is the host's, and not to be seen from inside.
            "4:memory:/docker/1\n",
            {"memory__memory.limit_in_bytes": "400000"},
            400_000,
            id="version 1 in a container",
        ),
        pytest.param(
            "4:memory:/\n",
            {"memory__memory.limit_in_bytes": "9223372036854771712"},
            MACHINE,
            id="version 1 without a limit",
        ),
    ],
)
def test_a_control_groups_limit_counts(
    tmp_path: Path, groups: str, limits: dict[str, str], found: int
) -> None:
    """Its own, that of a group above, or the machine's memory, whichever is least."""
    assert available(root(tmp_path, groups, **limits)) == found


def test_a_machine_without_control_groups_has_its_memory(tmp_path: Path) -> None:
    """Nothing to read is no limit."""
    assert available(tmp_path) == MACHINE


def test_a_limited_address_space_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a shell's `ulimit -v` sets it."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (700_000, 700_000))
    assert available(tmp_path) == 700_000


@pytest.mark.parametrize(
    ("megabytes", "history_bytes", "runs", "view_megabytes"),
    [
        (1, 3_500_000, MIN_RUNS, 32),
        (1_000, 3_500_000, 125, 500),
        (1_000, 500_000, 500, 500),
        (1_000_000, 3_500_000, MAX_RUNS, 500_000),
    ],
)
def test_half_is_for_runs_and_half_for_views(
    megabytes: float, history_bytes: int, runs: int, view_megabytes: int
) -> None:
    """However long the runs' histories, so many take no more than the half; never fewer than a
    few."""
    found = caches(megabytes, history_bytes)
    assert (found.runs, found.view_bytes) == (runs, view_megabytes * 1_000_000)


def test_a_quarter_of_the_memory_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest is for calls in flight, synchronous tools' processes, and what else there is."""
    monkeypatch.setattr(capacity, "available", lambda: 4_000_000_000)
    assert caches(None, 3_500_000) == Caches(runs=125, view_bytes=500_000_000)


HEAPS = """
import re, threading
from activities.capacity import give_memory_back
KEEP
go = threading.Barrier(9)
def work():
    kept = [bytes(1_000) for _ in range(1_000)]
    go.wait(); go.wait()
threads = [threading.Thread(target=work) for _ in range(8)]
[t.start() for t in threads]
go.wait()
ranges = re.findall(r"^([0-9a-f]+)-([0-9a-f]+) (....)", open("/proc/self/maps").read(), re.M)
spans = [(int(a, 16), int(b, 16), kind) for a, b, kind in ranges]
print(sum(b == c and (d - a) == 1 << 26 and kind == "---p"
          for (a, b, _), (c, d, kind) in zip(spans, spans[1:])))
go.wait()
"""


MAPPED = """
import ctypes
from activities.capacity import give_memory_back
KEEP
libc = ctypes.CDLL(None)
libc.malloc.argtypes, libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
Fields = ctypes.c_size_t * 10
class Info(ctypes.Structure):
    _fields_ = [("all", Fields)]
libc.mallinfo2.restype = Info
libc.free(libc.malloc(8_000_000))
before = libc.mallinfo2().all[3]
libc.malloc(1_000_000)
print(libc.mallinfo2().all[3] - before)
"""


glibc = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="how glibc allocates memory"
)


def _printed(program: str, keep: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", program.replace("KEEP", keep)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


@glibc
@pytest.mark.parametrize(("keep", "least", "most"), [("give_memory_back()", 0, 1), ("pass", 4, 9)])
def test_threads_share_few_heaps(keep: str, least: int, most: int) -> None:
    """One beside the process's own, however many threads; without it, one each (the control)."""
    assert least <= _printed(HEAPS, keep) <= most


@glibc
@pytest.mark.parametrize(("keep", "mapped"), [("give_memory_back()", 1), ("pass", 0)])
def test_a_large_block_goes_back_when_it_is_freed(keep: str, mapped: int) -> None:
    """It has a mapping of its own, also after a larger one was freed; without it, it is a part of
    the heap (the control)."""
    assert _printed(MAPPED, keep) == mapped
