"""What commands print of foreign text: as JSON, and in paragraphs."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.test_render import CONTROLS
from turnkeeper.commands import why
from turnkeeper.commands.terminal import say_json
from turnkeeper.diagnosis import Diagnosis, Finding

TEXT = st.text(st.characters(codec="utf-8") | st.sampled_from(sorted(CONTROLS)))
STEERING = "ok \x9b2J \x7f \u202egnp.exe \x1b[2J \u200b\U000e0041"


@given(st.dictionaries(TEXT, TEXT | st.lists(TEXT)))
def test_json_steers_no_terminal(value: dict[str, Any]) -> None:
    """It is one line without controls, DEL and directions, of a value that is the same."""
    with redirect_stdout(io.StringIO()) as out:
        say_json(value | {"answer": STEERING})
    line = out.getvalue().removesuffix("\n")
    assert not CONTROLS & set(line)
    assert "\n" not in line
    assert json.loads(line) == value | {"answer": STEERING}


def test_why_shows_what_nobody_sees(capsys: pytest.CaptureFixture[str]) -> None:
    """What is found out about a run repeats what a model has written."""
    found = Diagnosis("r", "r-1", "running", "q", (), (Finding(f"a word on o-1{STEERING}"),))
    why._print(found)
    out = capsys.readouterr().out
    assert not {"\u200b", "\U000e0041"} & set(out)
    assert r"\u200b" in out
