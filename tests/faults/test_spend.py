"""A few runs under a limit on cost; `make spend` plays a hundred."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.spend import play
from turnkeeper.testing.embedded import EmbeddedServer


@pytest.mark.crash
@pytest.mark.long
@pytest.mark.timeout(300)
async def test_runs_cost_what_they_may(server: EmbeddedServer, tmp_path: Path) -> None:
    """By the provider's count, while workers are killed and replies are cut off."""
    report = await play(tmp_path, server.address, seed=1, runs=4, at_once=4, gap=3.0)
    assert report.wrong == []
    assert len(report.spent) == 4
    assert report.kills
