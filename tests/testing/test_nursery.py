"""The nursery: workers that are forked are processes of their own."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from turnkeeper.testing.nursery import Nursery
from turnkeeper.testing.process import ProcessError

ROOT = Path(__file__).resolve().parents[2]
_SCRIPT = """
import json, os, sys, time
told = os.getpid(), os.getsid(0), dict(os.environ), "decimal" in sys.modules
with open(sys.argv[-1] + ".new", "w") as ready:
    json.dump(told, ready)
os.replace(sys.argv[-1] + ".new", sys.argv[-1])
print("at work")
if sys.argv[1] == "wait":
    time.sleep(60)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    """One that has imported a module."""
    with Nursery.start(ROOT, ["decimal"]) as started:
        yield started


@pytest.fixture
def script(tmp_path: Path) -> str:
    """A program that tells who it is, then waits or ends."""
    path = tmp_path / "program.py"
    path.write_text(_SCRIPT)
    return str(path)


def test_a_fork_is_a_process_of_its_own(nursery: Nursery, script: str, tmp_path: Path) -> None:
    """With a session, an environment and a log of its own, and what was imported before."""
    worker = nursery.fork("w", [script, "wait"], folder=tmp_path, environment={"WHOSE": "mine"})
    told = json.loads(worker.wait_ready(30))
    # Crash points know by it whom to kill.
    environment = {"WHOSE": "mine", "CRASH_PID": str(worker.pid)}
    assert told == [worker.pid, worker.pid, environment, True]
    assert worker.status is None
    worker.kill()
    assert worker.wait(30) == -signal.SIGKILL


def test_its_exit_code_is_known(nursery: Nursery, script: str, tmp_path: Path) -> None:
    """And what it has said last."""
    worker = nursery.fork("w", [script, "3"], folder=tmp_path, environment={})
    assert worker.wait(30) == 3
    assert worker.tail().endswith("at work")


def test_many_at_once(nursery: Nursery, script: str, tmp_path: Path) -> None:
    """Each one's end is its own."""
    workers = [
        nursery.fork(f"w{n}", [script, str(n)], folder=tmp_path, environment={}) for n in range(8)
    ]
    assert [w.wait(30) for w in workers] == list(range(8))


def test_one_that_ends_before_it_is_ready(nursery: Nursery, tmp_path: Path) -> None:
    """It is told at once, with the log."""
    worker = nursery.fork("w", [str(tmp_path / "none.py")], folder=tmp_path, environment={})
    with pytest.raises(ProcessError, match=r"status 1(?s:.*)No such file"):
        worker.wait_ready(30)


def test_all_end_with_the_nursery(script: str, tmp_path: Path) -> None:
    """Also when the process that started it is killed."""
    code = (
        "import sys, time; from pathlib import Path\n"
        "from turnkeeper.testing.nursery import Nursery\n"
        f"worker = Nursery.start(Path({str(ROOT)!r}), []).fork(\n"
        f"    'w', [{script!r}, 'wait'], folder=Path({str(tmp_path)!r}), environment={{}})\n"
        "worker.wait_ready(30); print(worker.pid, flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        # Of another's child only its end can be seen.
        ended = os.pidfd_open(pid)
        parent.kill()
    assert select.select([ended], [], [], 10)[0]
    os.close(ended)


@pytest.mark.timeout(60)
def test_a_nursery_that_cannot_start_says_so(tmp_path: Path) -> None:
    """At once: a module does not exist, say."""
    with (
        Nursery.start(ROOT, ["no_such_module"]) as broken,
        pytest.raises(ProcessError, match="nursery"),
    ):
        broken.fork("w", ["x.py"], folder=tmp_path, environment={})
