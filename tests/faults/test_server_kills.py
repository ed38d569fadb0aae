"""A short `make server-kills`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import server_kills
from tests.faults.server_kills import Options, Told
from tests.rig import RigFactory
from turnkeeper.testing import text


@pytest.mark.crash
@pytest.mark.timeout(300)
async def test_a_server_that_is_killed_keeps_what_it_said(tmp_path: Path) -> None:
    """Each start, result and event that a client was told of is there after two kills."""
    options = Options(seed=1, times=2, down=(0, 1), up=(1, 2), at_once=3)
    report = await server_kills.run(options, tmp_path, print)
    assert (report.lost, report.violations) == ([], [])
    assert len(report.open_) == 2
    assert all(report.open_)
    assert report.told.results.keys() == report.told.starts.keys()
    assert sum(report.told.activities.values()) > 0


async def test_what_a_server_has_forgotten_is_noticed(rig: RigFactory) -> None:
    """A start, a result, an execution and an event that nobody knows any more, each by itself."""
    async with rig([text("Done.")]) as r:
        run = await r.start()
        result = await run.result()
        execution = run.run_id or ""
        told = Told(starts={run.id: execution}, results={run.id: result})

        async def lost(told: Told) -> list[str]:
            return await server_kills._lost(r.agents, told, set(told.starts))

        assert await lost(told) == []
        (never,) = await lost(Told(starts={"never": ""}))
        assert never.startswith("never was started: ")
        (other,) = await lost(Told(starts={run.id: "other"}))
        assert f"now begins with {execution}" in other
        told.results[run.id] = result.model_copy(update={"answer": "Never."})
        (answer,) = await lost(told)
        assert "had ended as" in answer
        told.results[run.id] = result
        told.read[run.id][execution] = ["0" * 64]
        (events,) = await lost(told)
        assert events == f"{run.id}: events of {execution} that were read are not there"
