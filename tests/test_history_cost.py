"""What a turn costs in history, and that a run may be as long as it likes. Figures: pytest -s."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.prose import prose
from tests.rig import Rig, RigFactory
from turnkeeper import Limits, tool
from turnkeeper.entries import Position
from turnkeeper.spec import HistoryPolicy
from turnkeeper.testing import Exchange, Reply, call, text

MANY = Limits(turns=5_000, consecutive_errors=100, repetition=100)


@tool(effect="read")
def page(number: int, size: int) -> str:
    """Read a page of a long report."""
    return prose(number, size)


def one_call_a_turn(turns: int, size: int) -> Any:
    """A script that reads one page a turn, then answers."""

    def script(exchange: Exchange) -> Reply:
        if exchange.turn >= turns:
            return text("Read.")
        return call("page", {"number": exchange.turn, "size": size})

    return script


def size_of(events: list[Any]) -> int:
    """Bytes of a history."""
    return sum(e.ByteSize() for e in events)


async def test_a_turn_costs_12_events_and_14_kb(rig: RigFactory) -> None:
    """History grows by a constant for each call of 5 kB, whatever came before it."""
    cost: dict[int, tuple[int, int]] = {}
    for turns in (15, 30):
        async with rig(
            one_call_a_turn(turns, 5_000), tools=[page], limits=MANY, provider={"window": 10**7}
        ) as r:
            assert (await r.run()).outcome == "completed"
            events = await r.events()
            cost[turns] = len(events), size_of(events)
            described = await r.client.get_workflow_handle(r.ids[-1]).describe()
            info = described.raw_description.workflow_execution_info
            assert info.history_length == len(events)
            # The server counts a little more than the events alone.
            assert 0.98 < info.history_size_bytes / size_of(events) < 1.05
            assert not r.provider.rejections
    events_per_turn = (cost[30][0] - cost[15][0]) / 15
    bytes_per_turn = (cost[30][1] - cost[15][1]) / 15
    print(f"5 kB a call, a turn: {events_per_turn:.2f} events, {bytes_per_turn:.0f} B")  # noqa: T201
    assert events_per_turn <= 12
    assert bytes_per_turn <= 14_000


@pytest.mark.slow
async def test_90_turns_cross_continue_as_new_and_lose_nothing(
    rig: RigFactory, tmp_path: Path
) -> None:
    """A long run completes over several executions; its state stays small, its transcript whole."""
    began, cpu_before = time.monotonic(), time.process_time()
    async with rig(
        one_call_a_turn(90, 2_000),
        tools=[page],
        limits=MANY,
        history=HistoryPolicy(events=400),
        provider={"window": 10**7},
    ) as r:
        result = await r.run(timeout=110)
        took, cpu = time.monotonic() - began, time.process_time() - cpu_before
        assert (result.outcome, result.turns, result.calls) == ("completed", 91, 90)
        carried = await r.carried()
        sizes = [size for size, _ in carried]
        print(f"90 turns: {took:.1f} s, {cpu:.1f} s of CPU, carried {sizes}")  # noqa: T201
        assert len(carried) >= 2
        assert max(sizes) < 1_000_000
        entries = (await r.transcript()).entries
        assert len(entries) == 1 + 2 * 90 + 1
        assert Position().after(entries) == result.transcript
        assert [e.value["text"] for e in entries if e.kind == "result"] == [
            prose(number, 2_000) for number in range(90)
        ]
        assert not r.provider.rejections
        shown = show(r, tmp_path)
        assert f"{len(entries)}  reply" in shown
        assert all(prose(number, 2_000).rstrip() in shown for number in range(90))


def show(r: Rig, folder: Path) -> str:
    """What the command line prints of the last run."""
    address = r.client.service_client.config.target_host
    done = subprocess.run(
        [sys.executable, "starter.py", "--address", address, "show", r.ids[-1]],
        cwd=Path(__file__).resolve().parent.parent,
        env=os.environ | {"TURNKEEPER_ARTIFACTS": str(folder / "artifacts")},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout
