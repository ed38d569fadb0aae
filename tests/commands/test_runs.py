"""The table of runs: what others chose is shown, and cannot steer the terminal."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from turnkeeper.client import RunSummary
from turnkeeper.commands import runs

FORGED = "x\x1b[2J\x9b31m\nrun-2  finance  completed\u202e"


class Place:
    """A place whose server has one run, started by somebody else's program."""

    @asynccontextmanager
    async def client(self, **_: Any) -> AsyncIterator[Place]:
        """Itself."""
        yield self

    async def list_runs(self, _query: str, **_: Any) -> AsyncIterator[RunSummary]:
        """The one run."""
        yield RunSummary(
            id=FORGED * 50,
            run_id="r",
            agent=FORGED,
            status="completed",
            outcome=FORGED,
            turns=1,
            tokens=2,
            started=datetime(2026, 1, 1, tzinfo=UTC),
            closed=None,
        )


async def test_foreign_cells_stay_in_their_line(capsys: pytest.CaptureFixture[str]) -> None:
    """An id, an agent or an outcome with escapes and newlines is one bounded cell."""
    place: Any = Place()
    options = argparse.Namespace(query="", count=1, json=False)
    assert await runs.list_runs(place, options) == 0
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) == 2
    assert not {"\x1b", "\x9b", "\u202e"} & set(shown)
    assert len(shown.splitlines()[1]) < 400
