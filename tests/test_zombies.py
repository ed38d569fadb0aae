"""SIGSTOP of a worker for longer than its timeouts, then SIGCONT: it adds nothing to a run."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
from temporalio.api.enums.v1 import EventType

from tests.rig import until
from tests.workers import Site, SiteFactory
from tests.zombie_tools import TOOLS
from turnkeeper.client import AgentRunHandle
from turnkeeper.contract import RunResult
from turnkeeper.testing import EffectLedger, Exchange, call, text
from turnkeeper.testing.nursery import ForkedProcess
from turnkeeper.testing.provider import Reply

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]

NAMES = [tool.name for tool in TOOLS]
HEARTBEAT = 4.0
OPTIONS = (
    "--heartbeat-seconds",
    f"{HEARTBEAT:g}",
    "--log-format",
    "json",
    "--blocked-seconds",
    "0",
)
ENDS = (
    EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED,
    EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED,
    EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT,
    EventType.EVENT_TYPE_ACTIVITY_TASK_CANCELED,
)


def steps(exchange: Exchange) -> Reply:
    """The prompt names the tool and the moment; the answer repeats the result."""
    if exchange.turn:
        return text(exchange.last_results[0].text)
    name, _, moment = exchange.prompt.partition(" ")
    return call(name, {"moment": moment})


@pytest.fixture
async def zombies(site: SiteFactory, ledger: EffectLedger, tmp_path: Path) -> AsyncIterator[Site]:
    """Where a worker with such tools can be stopped."""
    environment = {"LEDGER_URL": ledger.url, "GATE": str(tmp_path / "gate")}
    async with site(steps, module="tests.zombie_tools", environment=environment) as s:
        yield s


def open_gate(s: Site) -> None:
    """Let the tools go on, if they still can."""
    Path(s.environment["GATE"]).touch()


async def begun(s: Site, moment: str, names: list[str]) -> tuple[ForkedProcess, Runs]:
    """A worker with a run of each tool, all at their moment."""
    first = await s.worker(*OPTIONS)
    runs = {name: await s.start(f"{name} {moment}", agent="zombie") for name in names}
    await until(lambda: len(s.calls("here")) == len(names), timeout=90)
    return first, runs


async def ended_by_another(s: Site, stopped: ForkedProcess, runs: Runs) -> dict[str, RunResult]:
    """What becomes of the runs while the first worker stands still; then it is woken."""
    await asyncio.sleep(HEARTBEAT + 0.5)
    open_gate(s)
    await s.worker(*OPTIONS)
    results = {name: await run.result(timeout=120) for name, run in runs.items()}
    os.kill(stopped.pid, signal.SIGCONT)
    return results


def effects(ledger: EffectLedger) -> Counter[str]:
    """How often each tool changed the world."""
    return Counter(row.name for row in ledger.effects())


def refusals(s: Site, process: ForkedProcess) -> set[tuple[str, str]]:
    """Event and tool of the lines by which a worker tells what it did not go on with."""
    lines = [x for x in s.logged(process) if x["event"] in ("attempt stopped", "late result")]
    assert all(line["run_id"] and line["key"] and line["attempt"] for line in lines)
    return {(line["event"], line["tool"]) for line in lines}


async def ends(s: Site, runs: Runs) -> dict[str, int]:
    """How many ends of a call's activity each history has; GENERATE has one each time."""
    found = {}
    for name, run in runs.items():
        handle = s.agents.client.get_workflow_handle(run.id)
        events = [e async for e in handle.fetch_history_events()]
        began = {
            e.event_id
            for e in events
            if e.activity_task_scheduled_event_attributes.activity_type.name == name
        }
        scheduled = [
            getattr(e, str(e.WhichOneof("attributes"))).scheduled_event_id
            for e in events
            if e.event_type in ENDS
        ]
        found[name] = len(began.intersection(scheduled))
        assert len(scheduled) == len(set(scheduled))
    return found


Runs = Mapping[str, AgentRunHandle]


@pytest.mark.parametrize("moment", ["before", pytest.param("after", marks=pytest.mark.long)])
async def test_a_woken_worker_adds_nothing(
    zombies: Site, ledger: EffectLedger, moment: str
) -> None:
    """Each class, as a coroutine and in a process: one result per call, effects as promised."""
    s = zombies
    first, runs = await begun(s, moment, NAMES)
    os.kill(first.pid, signal.SIGSTOP)
    results = await ended_by_another(s, first, runs)
    wanted = {("attempt stopped", name) for name in NAMES}
    await until(lambda: wanted <= refusals(s, first), timeout=60)
    settled = effects(ledger)
    await asyncio.sleep(2)
    assert effects(ledger) == settled
    once = {"send", "send_in_process"}
    assert set(settled) == (set(NAMES) - once if moment == "before" else set(NAMES))
    again = {"peek"} if moment == "after" else set()
    assert {name for name, times in settled.items() if times > 1} == again
    for name, result in results.items():
        assert result.answer is not None
        unknown = "may or may not have taken effect" in result.answer
        assert unknown == (name in once), (name, result.answer)
    assert await ends(s, runs) == dict.fromkeys(NAMES, 1)


@pytest.mark.long
async def test_a_worker_stopped_in_the_middle_of_a_step(
    zombies: Site, ledger: EffectLedger
) -> None:
    """Just before its request: it is woken, connects, and learns that the call is not its own."""
    s = zombies
    first, runs = await begun(s, "freeze", ["book"])
    results = await ended_by_another(s, first, runs)
    await until(lambda: ("attempt stopped", "book") in refusals(s, first), timeout=60)
    await asyncio.sleep(1)
    assert effects(ledger) == {"book": 1}
    assert results["book"].answer == ledger.effects()[0].receipt


@pytest.mark.long
async def test_a_woken_worker_goes_on_with_what_is_its_own(
    zombies: Site, ledger: EffectLedger
) -> None:
    """Stopped for less than the timeout, it asks, and finishes; so it does with a new run."""
    s = zombies
    first, runs = await begun(s, "before", ["refund", "send_in_process"])
    os.kill(first.pid, signal.SIGSTOP)
    await asyncio.sleep(HEARTBEAT * 0.3)
    open_gate(s)
    os.kill(first.pid, signal.SIGCONT)
    for name, run in runs.items():
        assert (await run.result(timeout=60)).answer == next(
            row.receipt for row in ledger.effects() if row.name == name
        )
    assert not refusals(s, first)
    assert [x["attempt"] for x in s.calls("begin")] == [1, 1]
