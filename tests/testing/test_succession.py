"""One worker follows another: with real processes, which do nothing but come up and end."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rig import until
from turnkeeper.testing.process import ChildProcess
from turnkeeper.testing.succession import Succession

# It comes up once there is a file `up`, fails if there is a file `down`, and with a file `busy`
# does not heed SIGTERM. `$2` is the ready file.
WORKER = """
[ -e busy ] && trap '' TERM || trap 'exit 0' TERM
while [ ! -e up ]; do [ -e down ] && exit 2; sleep 0.02; done
touch "$2"
while :; do sleep 0.02; done
"""


class Workers:
    """A succession of them, in a folder."""

    def __init__(self, folder: Path, **files: bool) -> None:
        self.folder = folder
        self.started: list[ChildProcess] = []
        self.set(up=True, **files)
        self.succession = Succession(self._start, ready_seconds=60, end_seconds=1)

    def _start(self, name: str) -> ChildProcess:
        command = ["/bin/sh", "-c", WORKER, "worker"]
        child = ChildProcess.start(
            name, command, folder=self.folder, cwd=self.folder, environment=dict(os.environ)
        )
        self.started.append(child)
        return child

    def set(self, **files: bool) -> None:
        """What becomes of those that are started now."""
        for name in ("up", "down", "busy"):
            path = self.folder / name
            if files.get(name):
                path.touch()
            else:
                path.unlink(missing_ok=True)

    async def news(self) -> bool:
        """The next answer of `look`."""
        seen: list[bool] = []

        def look() -> bool:
            if (news := self.succession.look()) is not None:
                seen.append(news)
            return bool(seen)

        await until(look)
        return seen[0]


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    """One serves; in the end none is left."""
    made = Workers(tmp_path)
    made.started[0].wait_ready(60)
    yield made
    made.succession.end()
    assert all(worker.status is not None for worker in made.started)


async def test_the_next_one_is_ready_before_the_last_is_told_to_end(workers: Workers) -> None:
    """While it comes up the last one serves."""
    first = workers.succession.current
    workers.set()
    workers.succession.renew()
    assert (workers.succession.look(), workers.succession.current) == (None, first)
    assert first.status is None
    workers.set(up=True)
    assert await workers.news() is True
    assert workers.succession.current is workers.started[1]
    await until(lambda: first.status is not None)
    assert workers.started[1].status is None


async def test_one_that_cannot_start_changes_nothing(workers: Workers) -> None:
    """The last one goes on, and another may follow it later."""
    first = workers.succession.current
    workers.set(down=True)
    workers.succession.renew()
    assert await workers.news() is False
    assert (workers.succession.current, first.status) == (first, None)
    workers.set(up=True)
    workers.succession.renew()
    assert await workers.news() is True


async def test_a_change_on_the_way_starts_anew(workers: Workers) -> None:
    """What was coming up has the old code: it is told to end, and never serves."""
    workers.set()
    workers.succession.renew()
    workers.set(up=True)
    workers.succession.renew()
    assert await workers.news() is True
    assert workers.succession.current is workers.started[2]
    await until(lambda: workers.succession.look() or workers.started[1].status is not None)


async def test_one_that_does_not_end_is_killed(tmp_path: Path) -> None:
    """After its time."""
    made = Workers(tmp_path, busy=True)
    busy = made.started[0]
    busy.wait_ready(60)
    made.set(up=True)
    made.succession.renew()
    assert await made.news() is True
    await until(lambda: made.succession.look() or busy.status is not None)
    made.succession.end()
    assert busy.status == -signal.SIGKILL
