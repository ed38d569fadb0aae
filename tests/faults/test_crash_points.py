"""A part of the crash suite that is quick enough for every day; `make crash` runs all of it."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter, defaultdict
from collections.abc import AsyncIterator

import pytest

from tests.faults import suite
from tests.faults.crew import PRELOAD
from tests.faults.plan import plan
from turnkeeper.testing.crash_points import POINTS
from turnkeeper.testing.embedded import EmbeddedServer
from turnkeeper.testing.nursery import Nursery

SMOKE = (
    *("tool.done:1", "effect.sent:2", "tool.done:3", "ledger.committed:1"),
    *("results.appended:1", "continue.commands:1"),
)
"""An idempotent call, a reconcilable one, one that is tried once, one with a database of its own;
then a workflow task, and the end of an execution."""


def test_the_plan_has_every_point_twice() -> None:
    """What is not planned is not proved, and nothing says so."""
    planned = defaultdict(set)
    for case in plan():
        planned[case.point].add(case.number)
        assert f"{case.point}:{case.number}" in case.crash_at.split(",")
    assert planned.keys() == {p.name for p in POINTS}
    assert all(numbers >= {1, 2} for numbers in planned.values())


def test_no_case_is_planned_twice() -> None:
    """Each has a folder of its own."""
    assert not [c for c, n in Counter((c.scenario, c.crash_at) for c in plan()).items() if n > 1]


@dataclasses.dataclass
class Reports:
    """Of the smoke, and of the control."""

    smoke: suite.Report
    control: suite.Report


@pytest.fixture(scope="module")
async def reports(
    server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Reports]:
    """Both at once: most of a case is waiting."""
    folder = tmp_path_factory.mktemp("crash")
    cases = [c for c in plan() if c.crash_at in SMOKE]
    doubtful = [c for c in plan() if c.crash_at == "tool.done:2"]
    with Nursery.start(suite.ROOT, PRELOAD) as nursery:
        yield Reports(
            *await asyncio.gather(
                suite.run(cases, server.address, nursery, folder / "smoke", print),
                suite.run(
                    doubtful, server.address, nursery, folder / "control", print, without="probe"
                ),
            )
        )


@pytest.mark.crash
@pytest.mark.timeout(300)
async def test_workers_killed_at_some_points(reports: Reports) -> None:
    """One for each effect class and for each kind of place: all are reached, nothing is broken."""
    report = reports.smoke
    assert [o.planned.crash_at for o in report.outcomes if not o.reached] == []
    assert report.violations == []
    assert report.kills == len(SMOKE)
    assert report.in_flight == 4


@pytest.mark.long
@pytest.mark.crash
@pytest.mark.timeout(300)
async def test_without_its_probe_a_call_is_applied_twice(reports: Reports) -> None:
    """The control: a suite that does not notice would prove nothing."""
    found = [(v.invariant, v.text) for v in reports.control.violations]
    assert found == [("I1", "book was applied 2 times")]
