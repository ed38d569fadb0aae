"""A script that follows its file."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from turnkeeper.testing import Exchange
from turnkeeper.testing.provider.reload import Reloaded
from turnkeeper.testing.provider.replies import HttpReply, MessageReply
from turnkeeper.testing.provider.script import answer


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of the module `followed_script`."""
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "followed_script.py"
    sys.modules.pop("followed_script", None)


def write(path: Path, said: str, *, then: str = "") -> None:
    """A script that says one thing; each version later than the one before by seconds."""
    later = path.stat().st_mtime + 2 if path.exists() else 1_000_000_000
    path.write_text(f"from turnkeeper.testing import text\nscript = [text({said!r})]\n{then}")
    os.utime(path, (later, later))


def said(script: Reloaded) -> str:
    """The text of the reply, or of the error."""
    exchange = Exchange(body={"messages": []}, headers={}, repeat=0, arrival=1)
    reply = answer(script, exchange)
    if isinstance(reply, HttpReply):
        return str(reply.content)
    assert isinstance(reply, MessageReply)
    return str(reply.blocks[0].data["text"])


def test_a_changed_file_is_what_answers_next(script: Path) -> None:
    """A broken one answers with what is wrong with it, until it is mended."""
    write(script, "one")
    played = Reloaded("followed_script:script")
    assert said(played) == "one"
    write(script, "two")
    assert said(played) == "two"
    write(script, "three", then="1/0\n")
    assert "the script raised ZeroDivisionError" in said(played)
    assert "the script raised ZeroDivisionError" in said(played)
    write(script, "four")
    assert said(played) == "four"


def test_a_script_that_is_not_there_is_refused_at_once() -> None:
    """As without following."""
    with pytest.raises(ValueError, match="there is no module nowhere"):
        Reloaded("nowhere:script")
