"""The share of memory that a worker's caches take."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from activities import capacity
from activities.capacity import MAX_RUNS, MIN_RUNS, Caches, available, caches

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
