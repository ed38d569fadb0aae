"""The watchdog: what is said of a loop that does not turn, and what ends its process."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import asyncio, ctypes, re, sys, time
from activities import logs
from activities.redact import Redactor
from activities.watchdog import Watchdog

def hold_the_lock(seconds):
    ctypes.PyDLL(None).sleep(int(seconds))

def sleep_in_the_loop(seconds):
    time.sleep(seconds)

async def wait(seconds):
    await asyncio.sleep(seconds)

async def main(how, seconds, end_after, leave_after):
    watchdog = Watchdog(tell_after=0.5, end_after=end_after)
    async with watchdog.watching():
        await asyncio.sleep(0.2)
        if leave_after:
            watchdog.leave_after(leave_after)
        if how == "wait":
            await wait(seconds)
        else:
            {"hold": hold_the_lock, "sleep": sleep_in_the_loop}[how](seconds)
            await asyncio.sleep(0.5)
    print("ended in order")

logs.configure("info", json=True, redactor=Redactor.from_environment())
asyncio.run(main(sys.argv[1], *map(float, sys.argv[2:])))
"""


def run(how: str, seconds: float, *, end_after: float = 0, leave_after: float = 0) -> Any:
    """A process whose loop is blocked in a way; its end, what it logged and wrote, seconds."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how, str(seconds), str(end_after), str(leave_after)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    lines = [json.loads(x) for x in done.stderr.splitlines() if x.startswith("{")]
    return done, lines, time.monotonic() - began


def test_a_loop_that_turns_is_left_alone() -> None:
    """Longer than either time: nothing is said, and the process ends in order."""
    done, lines, _ = run("wait", 2, end_after=1.5)
    assert (done.returncode, done.stdout, lines) == (0, "ended in order\n", [])


def test_a_blocked_loop_is_told_once_with_its_place() -> None:
    """While it is blocked, by the line that blocks it."""
    done, lines, _ = run("sleep", 3)
    (line,) = lines
    assert line["event"] == "event loop blocked"
    assert "in sleep_in_the_loop" in line["stack"]
    assert line["seconds"] < 2.5
    assert done.stdout == "ended in order\n"


def test_a_process_that_stood_still_says_so_afterwards() -> None:
    """Native code that held the interpreter stopped the watching thread as well."""
    done, lines, _ = run("hold", 3)
    (line,) = lines
    assert line["event"] == "the process stood still"
    assert line["seconds"] > 1.5
    assert done.stdout == "ended in order\n"


@pytest.mark.parametrize("how", ["hold", "sleep"])
def test_a_loop_that_never_turns_again_ends_the_process(how: str) -> None:
    """Whether or not the interpreter's lock is held; where it was stands in the output."""
    done, _, took = run(how, 50, end_after=2)
    assert done.returncode == 1
    assert "ended in order" not in done.stdout
    assert f"in {'hold_the_lock' if how == 'hold' else 'sleep_in_the_loop'}" in done.stderr
    assert took < 30


def test_a_shutdown_that_does_not_end_is_ended() -> None:
    """After its time the process leaves, and says where it was."""
    done, lines, took = run("wait", 50, leave_after=1)
    assert done.returncode == 1
    (line,) = lines
    assert line["event"] == "does not end, and is ended"
    assert took < 30
