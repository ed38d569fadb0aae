"""The two demos, each as one command in a checkout that has nothing running."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.test_starter import ROOT, environment, processes_of, starter
from turnkeeper.contract import GENERATE
from turnkeeper.testing.crash import _fate
from turnkeeper.testing.evidence import Activity, Evidence
from turnkeeper.testing.killer import Kill
from turnkeeper.testing.stack import claim, living_dev


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state directory that several commands share, one after the other."""
    return tmp_path_factory.mktemp("demo") / "state"


def test_the_demo_answers_and_says_where_to_look(state: Path) -> None:
    """Three turns of four phases, two calls, the answer, the outcome, three places to look."""
    done = starter("--state", str(state), "demo", "--id", "first")
    assert done.returncode == 0, done.stderr
    shown = done.stdout
    assert re.findall(r"^turn (\d)", shown, re.MULTILINE) == ["1", "2", "3"]
    for phase in ("GENERATE", "PARSE", "EXECUTE", "RESUME"):
        assert len(re.findall(rf"\b{phase}\b", shown)) >= 3
    assert "Revenue 2025: $412.0M" in " ".join(shown.split())
    assert "-> 28840000" in shown
    assert "answer    About $28.84M." in shown
    assert "outcome   completed · 3 turns · 2 tool calls" in shown
    assert re.search(r"starter\.py --state \S+ show first", shown)
    assert "/namespaces/default/workflows/first" in shown
    assert "scripted provider" in done.stderr
    assert not processes_of(state)


@pytest.mark.long
def test_the_second_demo_is_quick_and_the_first_is_still_there(state: Path) -> None:
    """Seconds, also beside other tests; runs that are over are read without starting anything."""
    began = time.monotonic()
    done = starter("--state", str(state), "demo", "--json")
    assert time.monotonic() - began < 40
    assert json.loads(done.stdout)["answer"] == "About $28.84M."
    shown = starter("--state", str(state), "show", "first")
    assert shown.returncode == 0, shown.stderr
    assert "About $28.84M." in shown.stdout
    listed = starter("--state", str(state), "list", "--json")
    assert len(json.loads(listed.stdout)["runs"]) == 2
    assert not processes_of(state)


def in_a_search(state: Path, run: str) -> subprocess.Popen[str]:
    """A demo whose tool is at work."""
    demo = subprocess.Popen(
        [sys.executable, "starter.py", "--state", str(state), "demo", "--id", run],
        cwd=ROOT,
        env=environment(FINANCE_SEARCH_DELAY="8"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert demo.stdout is not None
    assert any("EXECUTE" in line for line in demo.stdout)
    return demo


@pytest.mark.crash
@pytest.mark.long
def test_a_demo_whose_worker_falls_says_so(state: Path) -> None:
    """The end of the worker's log is shown instead of waiting for ever."""
    demo = in_a_search(state, "fallen")
    listed = subprocess.run(
        ["ps", "-ww", "-eo", "pid,args"], capture_output=True, text=True, check=True
    )
    worker = next(n for n in listed.stdout.splitlines() if "worker.py" in n and str(state) in n)
    os.kill(int(worker.split()[0]), signal.SIGKILL)
    _, told = demo.communicate(timeout=30)
    assert demo.returncode == 1
    assert "the worker ended with status -9" in told
    assert "worker takes work" in told
    assert not processes_of(state)


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.long
def test_a_killed_demo_leaves_nothing_behind_and_loses_nothing(state: Path) -> None:
    """SIGKILL ends server, provider and worker too; the next demo's worker ends the run."""
    demo = in_a_search(state, "cut-off")
    demo.kill()
    demo.wait()
    deadline = time.monotonic() + 15
    while processes_of(state) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not processes_of(state)
    shown = starter("--state", str(state), "show", "cut-off")
    assert "search: not returned yet" in shown.stdout, shown.stderr
    again = starter("--state", str(state), "demo", "--id", "cut-off")
    assert again.returncode == 0, again.stderr
    assert "About $28.84M." in again.stdout


@pytest.mark.long
@pytest.mark.crash
@pytest.mark.slow
def test_the_crash_demo_repeats_nothing_that_had_finished(state: Path) -> None:
    """Two SIGKILLs by another process, both witnessed; every check of the demo holds."""
    done = starter("--state", str(state), "demo", "--crash", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert told["wait_statuses"] == [-signal.SIGKILL, -signal.SIGKILL]
    assert told["passed"]
    assert [c["problem"] for c in told["checks"]] == [None] * len(told["checks"])
    assert told["result"]["turns"] == 3
    assert not processes_of(state)


def test_evidence_of_repetition_is_found() -> None:
    """The witnesses do tell: a second request after the record, a second begin after the end."""
    lines = [
        {"tool": "search", "event": event, "key": "k1", "pid": 1, "attempt": 1}
        for event in ("begin", "end", "begin")
    ]
    recorded = Activity(5, GENERATE, "turn-1", completed=7, completed_at=10.0)
    requests = [{"turn": 0, "time": 9.0}, {"turn": 0, "time": 11.0}, {"turn": 1, "time": 12.0}]
    evidence = Evidence([recorded], requests, lines)
    assert evidence.repeated_generations() == [
        "turn 1 was asked for again after event 7 had recorded it"
    ]
    assert evidence.repeated_calls() == ["search (key k1) ran again"]
    assert evidence.attempts_of("search") == (2, 1)


@pytest.mark.parametrize(
    ("begun", "told"),
    [("7", "once cut off by a kill"), ("3", "once cut off (connection lost)")],
)
def test_only_what_was_open_at_a_kill_was_cut_off_by_it(begun: str, told: str) -> None:
    """A request may be repeated for other reasons: the report does not guess."""
    done = Activity(5, GENERATE, "turn-2", completed=7)
    evidence = Evidence([done], [{"turn": 1, "arrival": n} for n in (7, 8)], [])
    line = _fate(done, evidence, [Kill(begun=begun)], kept=False)
    assert line == f"repeated  turn 2 {GENERATE}: 2 requests at the provider, {told}"


def test_one_stack_at_a_time(tmp_path: Path) -> None:
    """A state directory that is claimed is not claimed twice, and what a kill left is cleared."""
    tmp_path.joinpath("dev.json").write_text(
        '{"pid": 1, "address": "a", "ui_url": null, "agents": "m", "provider": null}'
    )
    assert living_dev(tmp_path) is None
    with claim(tmp_path, print):
        assert living_dev(tmp_path) is None
        assert not tmp_path.joinpath("dev.json").exists()
