"""A short `make random`."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.faults import random_kills
from tests.faults.random_kills import Options, deaths, orders
from turnkeeper.testing.embedded import EmbeddedServer

_OPTIONS = Options(
    seed=3, seconds=11, runs=6, gap=(2.5, 3.5), heartbeat=3, latency=20, database="sqlite"
)


@pytest.mark.crash
@pytest.mark.timeout(300)
async def test_workers_of_a_shop_die_at_random(server: EmbeddedServer, tmp_path: Path) -> None:
    """Orders are refunded once, items picked up once, mails sent once, or it is said that not."""
    report = await random_kills.run(_OPTIONS, tmp_path, print, address=server.address)
    assert report.violations == []
    assert len(report.kills) >= 3
    assert len(report.witnesses) == _OPTIONS.runs
    assert {row.name for row in report.happened} == {"issue_refund", "book_pickup", "send_email"}


def test_a_seed_is_a_schedule() -> None:
    """The same seed brings the same orders and deaths, another seed others; a gap is a gap."""
    options, other = Options(seed=1), Options(seed=2)
    kills = list(itertools.islice(deaths(options), 100))
    assert list(itertools.islice(deaths(options), 100)) == kills
    assert orders(options) == orders(options)
    assert orders(other) != orders(options)
    assert list(itertools.islice(deaths(other), 100)) != kills
    gaps = [after - before for (before, _), (after, _) in itertools.pairwise(kills)]
    assert all(options.gap[0] <= gap <= options.gap[1] for gap in gaps)
    assert {place for _, place in kills} == set(range(options.workers))
    assert len({request.order.id for _, request in orders(options)}) == options.runs
