"""Crash points: what may be asked for, how passings are counted, and who dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from turnkeeper.testing.crash_points import POINTS, Passing, UnknownPoint, orders, read_passings

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A program under `crashing`."""
    return subprocess.run(
        [sys.executable, "-m", "turnkeeper.testing.crashing", *arguments],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def program(folder: Path, text: str) -> str:
    """A script that passes points."""
    script = folder / "program.py"
    script.write_text(f"from turnkeeper.testing.crash_points import passing\n{text}")
    return str(script)


def told(log: Path) -> list[tuple[str, int, bool]]:
    """The passings in a log, without their processes and times."""
    return [(p.name, p.number, p.killed) for p in read_passings(log)]


def test_the_points_are_listed() -> None:
    """By name, each with its place."""
    listed = run("--list").stdout.splitlines()
    assert [line.split()[0] for line in listed] == [p.name for p in POINTS]
    assert all(p.text in line for p, line in zip(POINTS, listed, strict=True))


def test_several_points_may_be_asked_for() -> None:
    """Each with its number, in order."""
    asked = {"CRASH_AT": "tool.done:2, task.polled:11"}
    assert orders(asked) == [("tool.done", 2), ("task.polled", 11)]
    assert orders({}) == orders({"CRASH_AT": ""}) == []


@pytest.mark.parametrize("wrong", ["tool.dome:1", "tool.done", "tool.done:0", "tool.done:x", ":1"])
def test_a_point_that_nobody_passes_is_refused(wrong: str) -> None:
    """At once: a test with a spelling mistake would pass without its fault."""
    with pytest.raises(UnknownPoint, match="CRASH_AT"):
        orders({"CRASH_AT": wrong})
    ended = run("-m", "this", CRASH_AT=wrong)
    assert ended.returncode == 1
    assert "CRASH_AT" in ended.stderr


def test_the_worker_dies_at_the_passing_that_was_asked_for(tmp_path: Path) -> None:
    """Not before and not after; the log has every passing, and the kill itself."""
    log = tmp_path / "passings.jsonl"
    script = program(tmp_path, "passing('turn.next')\n" * 3 + "passing('tool.done')\nprint('on')\n")
    ended = run(script, CRASH_AT="turn.next:3", CRASH_LOG=str(log))
    assert (ended.returncode, ended.stdout) == (-signal.SIGKILL, "")
    assert told(log) == [
        ("turn.next", 1, False),
        ("turn.next", 2, False),
        ("turn.next", 3, False),
        ("turn.next", 3, True),
    ]


def test_passings_are_counted_over_workers(tmp_path: Path) -> None:
    """Those that share a log: the second worker goes on counting where the first one died."""
    log = tmp_path / "passings.jsonl"
    script = program(tmp_path, "passing('turn.next')\n" * 2)
    asked = {"CRASH_AT": "turn.next:1,turn.next:3", "CRASH_LOG": str(log)}
    assert [run(script, **asked).returncode for _ in range(3)] == [-9, -9, 0]
    assert [(n, killed) for _, n, killed in told(log)] == [
        *((1, False), (1, True), (2, False), (3, False), (3, True), (4, False), (5, False))
    ]


def test_a_process_that_the_worker_started_kills_the_worker(tmp_path: Path) -> None:
    """And does nothing more itself: what it would do now, it would do after the crash."""
    log, done = tmp_path / "passings.jsonl", tmp_path / "done"
    child = tmp_path / "child.py"
    child.write_text(
        "from turnkeeper.testing.crash_points import passing\n"
        f"passing('tool.done')\nopen({str(done)!r}, 'w')\n"
    )
    script = program(
        tmp_path,
        "import subprocess, sys\n"
        "code = 'import runpy, sys; runpy.run_path(sys.argv[1])'\n"
        "none = subprocess.DEVNULL\n"
        f"child = subprocess.Popen([sys.executable, '-c', code, {str(child)!r}], "
        "stdout=none, stderr=none)\n"
        "child.wait()\nprint('on')\n",
    )
    ended = run(script, CRASH_AT="tool.done:1", CRASH_LOG=str(log))
    assert (ended.returncode, ended.stdout) == (-signal.SIGKILL, "")
    time.sleep(0.5)
    assert not done.exists()
    (killed,) = [p for p in read_passings(log) if p.killed]
    # It waits for the supervisor to end it; here there is none.
    os.kill(killed.pid, signal.SIGKILL)


def test_without_a_log_nobody_dies(tmp_path: Path) -> None:
    """A death without a witness would prove nothing."""
    script = program(tmp_path, "passing('turn.next')\nprint('on')\n")
    assert run(script, CRASH_AT="turn.next:1").stdout == "on\n"


def test_a_program_runs_as_it_would_alone(tmp_path: Path) -> None:
    """With its own arguments, name and folder; a module, too."""
    (tmp_path / "beside.py").write_text("HERE = 'beside'\n")
    script = program(
        tmp_path, "import sys, beside\nprint(__name__, beside.HERE, sys.argv[1:])\nsys.exit(7)\n"
    )
    ended = run(script, "--a", "b")
    assert (ended.stdout, ended.returncode) == ("__main__ beside ['--a', 'b']\n", 7)
    listed = run("-m", "json.tool", "--help")
    assert "json.tool" in listed.stdout


def test_a_passing_tells_its_process_and_time(tmp_path: Path) -> None:
    """What a kill is held against in history."""
    log = tmp_path / "passings.jsonl"
    before = time.time()
    run(program(tmp_path, "passing('turn.next')\n"), CRASH_LOG=str(log))
    (passed,) = read_passings(log)
    assert passed == Passing("turn.next", 1, passed.pid, passed.time, killed=False)
    assert before <= passed.time <= time.time()
    assert passed.pid != os.getpid()
