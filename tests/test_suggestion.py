"""Commands that people are told: whole, and fit for a shell whatever stands in them."""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import starter
import worker
from turnkeeper.commands.place import Place
from turnkeeper.suggestion import (
    Suggestion,
    deciding,
    ending_waits,
    replying,
    resuming,
    serving,
    settling,
)

ODD = '-it\'s "$(touch x)"; `x` !'
FORGED = "x\nrm -r .\x1b[2J"


def place(state: Path) -> Place:
    """All that can be named is named."""
    return Place(starter.ROOT, state, "[::1]:7233", "the team's", "q")


@pytest.mark.parametrize(
    "suggested",
    [
        deciding(ODD, ODD, allow=True),
        deciding(ODD, ODD, allow=False),
        resuming(ODD),
        settling(ODD, ODD, landed=True),
        replying(ODD, ODD),
        replying(ODD, ""),
        Suggestion("chat", (ODD,), (("--id", ODD), ("--task-queue", ODD))),
        Suggestion("stop", (FORGED,)),
    ],
)
def test_a_shell_and_the_parser_read_what_was_meant(suggested: Suggestion, tmp_path: Path) -> None:
    """Ids with dashes, quotes, dollars and newlines are one word each, and no option."""
    told = place(tmp_path / "the state's").write(suggested)
    assert "\n" not in told
    read = subprocess.run(
        ["/bin/sh", "-c", f"printf '%s\\0' {told}"], capture_output=True, text=True, check=True
    )
    interpreter, program, *arguments = read.stdout.split("\0")[:-1]
    assert [interpreter, program] == [sys.executable, str(starter.ROOT / "starter.py")]
    options = starter._parser().parse_args(arguments)
    assert (options.state, options.address) == (tmp_path / "the state's", "[::1]:7233")
    assert options.namespace == "the team's"
    found = {v for k, v in vars(options).items() if k in ("id", "run", "agent", "call", "approval")}
    assert found - {None} in ({ODD}, {" ".join(FORGED.replace("\x1b", "\ufffd").split())})


def test_a_worker_is_started_with_its_queue(tmp_path: Path) -> None:
    """On the server and with the state folder of the command that tells it."""
    told = shlex.split(place(tmp_path).write(serving("the queue", "finance")))
    options: argparse.Namespace = worker._parser().parse_args(told[2:])
    assert told[1] == str(starter.ROOT / "worker.py")
    assert (options.address, options.state) == ("[::1]:7233", tmp_path)
    assert (options.task_queue, options.agents) == ("the queue", ["MODULE"])


def test_what_is_to_be_written_stands_in_quotes() -> None:
    """Whoever replaces the dots by several words has one word still."""
    assert str(deciding("r", "a", allow=False)) == "deny r a --reason '...'"
    assert str(replying("r", "c")) == "answer r c '...'"
    assert str(Suggestion("run", ("What's 7%?",))) == 'run "What\'s 7%?"'
    assert ending_waits("r", [], paused=False) == []


def test_another_python_is_named_by_its_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`python` alone may be one without the packages, or none at all."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "my python"))
    told = Place(tmp_path / "checkout", tmp_path / "checkout" / ".turnkeeper").again("list")
    assert shlex.split(told)[0].endswith("my python")
