"""What commands print as JSON."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import starter
from tests.test_render import CONTROLS
from turnkeeper.commands.terminal import say_json

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


def test_an_error_as_json_steers_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """A complaint repeats what a run or a server has said."""
    starter._complain(LookupError(STEERING), as_json=True)
    out = capsys.readouterr().out.removesuffix("\n")
    assert not CONTROLS & set(out)
    assert json.loads(out) == {"error": STEERING}
