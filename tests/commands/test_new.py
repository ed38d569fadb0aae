"""`starter.py new`: what it writes, and what it refuses to write."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

import starter

FILES = {"kettles.py", "kettles_script.py", "test_kettles.py"}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the command is called in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_agent_script_and_test_are_written(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Into a folder of the agent's name, or into one that is there already."""
    assert starter.main(["--state", "the state", "new", "kettles"]) == 0
    assert {p.name for p in (here / "kettles").iterdir()} == FILES
    told = capsys.readouterr().out
    assert "\n  cd kettles\n" in told
    # To be typed in the new folder.
    (serving,) = [shlex.split(line) for line in told.splitlines() if " dev " in line]
    typed = [sys.executable, str(starter.ROOT / "starter.py"), "--state", str(here / "the state")]
    assert serving == [*typed, "dev", "--agents", "kettles", "--script", "kettles_script:script"]
    (here / "README.md").write_text("mine")
    assert starter.main(["new", "kettles", "--folder", "."]) == 0
    assert {p.name for p in here.iterdir()} == {*FILES, "README.md", "kettles"}
    assert "  cd " not in capsys.readouterr().out


def test_nothing_is_overwritten(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One file that is there keeps all from being written."""
    (here / "kettles").mkdir()
    mine = here / "kettles" / "test_kettles.py"
    mine.write_text("mine")
    assert starter.main(["new", "kettles"]) == 2
    assert list(mine.parent.iterdir()) == [mine]
    assert mine.read_text() == "mine"
    assert "there already: kettles/test_kettles.py. Nothing was" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("my-agent", "my_agent"),
        ("Kettles", "kettles"),
        ("9lives", "agent_9lives"),
        ("class", "class_agent"),
        ("json", "json_agent"),
        ("pytest", "pytest_agent"),
        ("worker", "worker_agent"),
        ("../Über uns", "uber_uns"),
        ("k" * 50, "k" * 34),
        ("?", "my_agent"),
        ("", "my_agent"),
    ],
)
def test_a_bad_name_is_refused_with_one_that_will_do(
    here: Path, name: str, instead: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """No module's name, or one that hides another module; the one that is told is taken."""
    assert starter.main(["new", name]) == 2
    assert not list(here.iterdir())
    told = re.search(r"write (\w+)", capsys.readouterr().err)
    assert told
    assert told[1] == instead
    assert starter.main(["new", instead]) == 0
