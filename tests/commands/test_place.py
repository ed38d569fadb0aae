"""Commands that are printed for people can be typed where they are read."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from turnkeeper.commands.place import Place


@pytest.mark.parametrize("below", ["mine", "my agents", "far/away"])
def test_a_printed_command_can_be_typed_in_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, below: str
) -> None:
    """Whichever environment runs it, and whatever is in the names of folders: paths are whole."""
    python = tmp_path / below / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    checkout = tmp_path / "the checkout"
    monkeypatch.chdir(tmp_path / below)
    monkeypatch.setattr(sys, "executable", str(python))
    place = Place(root=checkout, state=checkout / ".turnkeeper")
    typed = shlex.split(place.command("run", "a b"))
    assert typed == [str(python), str(checkout / "starter.py"), "run", "a b"]
    elsewhere = Place(root=checkout, state=tmp_path / below / "a state")
    named = ["--state", str(tmp_path / below / "a state")]
    assert shlex.split(elsewhere.command("list"))[2:4] == named
