"""The Python files that agents are made of, and when one of them has changed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import PathFinder
from pathlib import Path

__all__ = ["MOST_FILES", "Sources"]

MOST_FILES = 1_000
"""That are looked at; of a larger package the rest is not."""
LOOK_SECONDS = 0.5
"""Between two looks: a change counts once it has stayed the same over one."""
_PASSED_OVER = {"__pycache__", "node_modules", "site-packages"}

Snapshot = dict[str, tuple[int, int]]
"""Time of change and size, by path."""


class Sources:
    """The files of modules: of a package all below it, of a module those beside it, but no tests.

    By polling: what tells of changes by itself differs from system to system, and says nothing on
    network and container mounts.

    Args:
        modules: as `--agents` names them.
        path: folders that they are searched in, first to last.
        clock: seconds.
    """

    def __init__(
        self,
        modules: Sequence[str],
        path: Sequence[Path],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        tops = dict.fromkeys(module.partition(".")[0] for module in modules)
        searched = [str(folder) for folder in path]
        self._places = [place for top in tops for place in _places(top, searched)]
        self._clock = clock
        self._known = self._last = self._snapshot()
        self._due = clock() + LOOK_SECONDS

    @property
    def folders(self) -> list[Path]:
        """Where they are; none if the modules are not in any of the folders."""
        return [Path(folder) for folder, _ in self._places]

    def changed(self) -> Path | None:
        """A file that was changed, added or removed since the last one that was told.

        It is told when nothing has changed any further for `LOOK_SECONDS`; in between it answers
        without a look.
        """
        if self._clock() < self._due:
            return None
        self._due = self._clock() + LOOK_SECONDS
        seen, self._last = self._last, self._snapshot()
        if seen != self._last or seen == self._known:
            return None
        before, self._known = self._known, seen
        return next(Path(p) for p in [*seen, *before] if seen.get(p) != before.get(p))

    def _snapshot(self) -> Snapshot:
        found: Snapshot = {}
        for folder, whole in self._places:
            for entry in _python_files(folder, whole=whole):
                if len(found) >= MOST_FILES:
                    return found
                stat = _stat(entry)
                if stat is not None:
                    found[entry.path] = (stat.st_mtime_ns, stat.st_size)
        return found


def _places(top: str, path: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """Folders, each with whether all below it counts."""
    found = PathFinder.find_spec(top, path)
    if found is None:
        return
    if found.submodule_search_locations is not None:
        yield from ((folder, True) for folder in found.submodule_search_locations)
    elif found.origin is not None:
        yield os.path.dirname(found.origin), False  # noqa: PTH120 - scandir goes on with text


def _python_files(folder: str, *, whole: bool) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            listed = sorted(entries, key=lambda e: e.name)
    except OSError:
        return  # Removed meanwhile.
    for entry in listed:
        name = entry.name
        if name.startswith(".") or name in _PASSED_OVER:
            continue
        if entry.is_dir(follow_symlinks=False):
            if whole:
                yield from _python_files(entry.path, whole=True)
        elif name.endswith(".py") and not _is_test(name):
            yield entry


def _is_test(name: str) -> bool:
    return name.startswith("test_") or name.endswith("_test.py") or name == "conftest.py"


def _stat(entry: os.DirEntry[str]) -> os.stat_result | None:
    try:
        return entry.stat()
    except OSError:
        return None
