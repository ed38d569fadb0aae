"""A short `make server-kills`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import server_kills
from tests.faults.server_kills import Options


@pytest.mark.crash
@pytest.mark.timeout(300)
async def test_a_server_that_is_killed_keeps_what_it_said(tmp_path: Path) -> None:
    """Each start, result and event that a client was told of is there after two kills."""
    options = Options(seed=1, times=2, down=(0, 2), up=(2, 3), at_once=4)
    report = await server_kills.run(options, tmp_path, print)
    assert (report.lost, report.violations) == ([], [])
    assert len(report.open_) == 2
    assert all(report.open_)
    assert report.told.results.keys() == report.told.starts.keys()
    assert sum(report.told.activities.values()) > 0
