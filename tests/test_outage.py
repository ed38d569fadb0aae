"""A provider that is away for longer than the attempts of a generation."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from pathlib import Path

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.testing import WorkflowEnvironment

from tests.rig import Rig, RigFactory, open_rig, until
from tests.sizes import FULL
from turnkeeper.outage import MOST_SECONDS, Outage
from turnkeeper.testing import Exchange, Reply, status, text

ATTEMPTS = 8
"""Of one generation."""


def test_waits_grow_and_are_spread_and_bounded() -> None:
    """Each run's own: half as much before and after."""
    for spread in (0.0, 0.5, 1.0):
        outage, now, waits = Outage(), 1_000.0, []
        while outage.again(now, "HTTP 529", bound=7_200, spread=spread):
            waits.append(outage.until - now)
            now = outage.until
        assert now == 1_000 + 7_200
        factor = 0.5 + spread
        assert waits[:4] == [60 * factor, 120 * factor, 240 * factor, 480 * factor]
        assert max(waits) == MOST_SECONDS * factor
    outage.over()
    assert outage == Outage()


@pytest.mark.timeout(700 if FULL else 120)
async def test_runs_outlast_an_outage(virtual: WorkflowEnvironment, tmp_path: Path) -> None:
    """Half an hour long: all wait, visibly, and are completed afterwards; they do not come back at
    once."""
    runs = 200 if FULL else 4
    asked: Counter[str] = Counter()

    def script(exchange: Exchange) -> Reply:
        asked[exchange.prompt] += 1
        away = asked[exchange.prompt] <= 6 * ATTEMPTS
        return status(529) if away else text("Done.")

    async with open_rig(virtual.client, tmp_path, script, outage_seconds=7_200) as r:
        handles = [await r.start(f"run {n}") for n in range(runs)]
        results = await asyncio.gather(
            *(h.result(check=False, timeout=600 if FULL else 110) for h in handles)
        )
        assert {x.outcome for x in results} == {"completed"}
        assert min(x.seconds for x in results) > 1_800
        assert await r.task_failures() == 0
        returned = sorted([await _returned(r, h.id) for h in handles])
        spread = [after - before for before, after in itertools.pairwise(returned)]
        assert returned[-1] - returned[0] > 120
        assert sum(gap < 1 for gap in spread) < runs / 3


async def _returned(r: Rig, run: str) -> float:
    """Seconds from the run's start until it asked for the reply that it got."""
    events = await r.events(run)
    scheduled = [
        e.event_time.ToSeconds()
        for e in events
        if e.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
    ]
    return float(scheduled[-1] - events[0].event_time.ToSeconds())


async def test_it_waits_visibly_and_can_be_stopped(
    rig: RigFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The card, the lists and the status name the provider and the time; a stop is heard."""
    monkeypatch.setattr("workflows.options._GENERATE_ATTEMPTS", 1)
    async with rig(lambda _: status(529), outage_seconds=600) as r:
        run = await r.start()

        async def parked() -> bool:
            return (await run.status()).waiting_for.startswith("the provider until ")

        await until(parked)
        assert "529" in (await run.status()).waiting_for

        async def listed() -> list[str]:
            return [
                x.id async for x in r.agents.list_runs(waiting_for="provider") if x.id == run.id
            ]

        assert await until(listed) == [run.id]
        assert [
            x.id async for x in r.agents.list_runs(waiting_for="person") if x.id == run.id
        ] == []
        await run.stop("enough")
        assert (await run.result(check=False)).outcome == "stopped"


async def test_an_outage_is_waited_for_within_a_bound(
    virtual: WorkflowEnvironment, tmp_path: Path
) -> None:
    """Then the run ends by the name that it had without the wait."""
    async with open_rig(virtual.client, tmp_path, lambda _: status(529), outage_seconds=900) as r:
        result = await r.run(timeout=110)
        assert result.outcome == "model_unavailable"
        assert "529" in (result.reason or "")
        assert 900 < result.seconds < 900 + 300
        assert await r.task_failures() == 0
