"""A few recorded conversations; `make recorded` plays all of them, twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.recorded import conversations
from tests.faults.recorded_conversations import play
from turnkeeper.testing.embedded import EmbeddedServer


@pytest.mark.long
@pytest.mark.crash
@pytest.mark.timeout(240)
async def test_recorded_conversations_are_said_again(
    server: EmbeddedServer, shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While workers are killed, each is said as it was recorded, and the same each time."""
    path = shared / "workloads" / "airline.jsonl"
    monkeypatch.setenv("RECORDED", str(path))
    shortest = sorted(conversations(path).values(), key=lambda c: len(c.steps))[:4]
    chosen = [(one, number) for number in range(2) for one in shortest]
    report = await play(tmp_path, server.address, path, chosen, at_once=8, gap=2.0)
    assert report.violations == []
    assert report.played == len(chosen)
    assert report.kills
