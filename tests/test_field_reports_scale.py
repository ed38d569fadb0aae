"""Failures that people met in public: runs that wait, caches that grow, continue-as-new in a burst.

The ids are those of the collected reports. With TURNKEEPER_TESTS=full in the environment the
numbers are those of the reports; otherwise they are smaller where that saves minutes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import urllib.request
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client
from temporalio.runtime import PrometheusConfig, Runtime, TelemetryConfig
from temporalio.testing import WorkflowEnvironment

import bench.agents
import worker
from activities import capacity
from activities.capacity import Caches
from bench.place import opened
from bench.waiting import added_by_the_run, begin
from tests.namespaces import bare_namespace
from tests.rig import Rig, RigFactory, open_rig, until
from tests.scale_runs import HearingRun, SlowHandlerRun, UnwillingRun
from tests.sizes import FULL
from tests.test_continue_as_new import OFTEN, PATIENT, page, pages
from tests.test_unknown_outcomes import TELL, send, waiting
from tests.workers import SiteFactory
from turnkeeper import Limits, ToolContext, tool
from turnkeeper.artifacts import FolderStore
from turnkeeper.client import AgentRunHandle
from turnkeeper.contract import RESOLVE
from turnkeeper.outside import unknown_of
from turnkeeper.testing import Exchange, Reply, call, text

pytestmark = pytest.mark.timeout(300)

DAYS = 86_400


async def settle(client: Client, run: str, call_id: str, said: str) -> None:
    """Tell a waiting run that its call took effect."""
    body = {"call_id": call_id, "landed": True, "result": said}
    await client.get_workflow_handle(run).signal(RESOLVE, body)


# --- history growth -------------------------------------------------------------------------------


async def test_b06_a_run_that_waits_adds_no_events(
    virtual: WorkflowEnvironment, tmp_path: Path
) -> None:
    """Three days of waiting for a person leave nothing in history: no polling, no timer but the one
    for the run's end. Then the run goes on."""
    limits = Limits(wall_seconds=30 * DAYS)
    with virtual.with_time_skipping_disabled():
        async with open_rig(
            virtual.client, tmp_path, TELL, tools=[send], on_unknown="wait", limits=limits
        ) as r:
            run, called = await waiting(r)
            before = len(await r.events())
            handle = virtual.client.get_workflow_handle(run.id)
            assert await virtual.fast_forward(handle, timedelta(days=3))
            assert added_by_the_run((await r.events())[before:]) == []
            await settle(virtual.client, run.id, called, "seen in the log")
            result = await run.result()
            assert result.answer == "seen in the log"
            assert 3 * DAYS <= result.seconds < 4 * DAYS


# --- continue-as-new ------------------------------------------------------------------------------


def sends_when_history_is_long(turns: int) -> Any:
    """A script that reads until the run is about to continue as new, then waits for a person."""

    def script(x: Exchange) -> Reply:
        if x.turn < turns:
            return call("page", {"number": x.turn})
        if x.turn == turns:
            return call("send")
        return text(f"{x.last_results[0].text}")

    return script


@pytest.mark.long
@pytest.mark.parametrize("times", [100 if FULL else 10])
async def test_b65_an_update_in_the_task_that_continues_as_new_is_answered(
    rig: RigFactory, times: int
) -> None:
    """The answer to the person that settles the last call, and the decision to continue as new,
    are made in one task: both arrive."""

    async def one(r: Rig) -> int:
        run, called = await waiting(r)
        answer = await run.resolve(called, landed=True, result=f"receipt of {run.id}")
        result = await run.result()
        assert (answer, result.answer) == ("resolved", f"receipt of {run.id}")
        return len(await r.executions(run.id))

    script = sends_when_history_is_long(3)
    async with rig(
        script, tools=[page, send], on_unknown="wait", limits=PATIENT, history=OFTEN
    ) as r:
        executions = await asyncio.gather(*(one(r) for _ in range(times)))
        assert set(executions) == {2}
        assert await r.task_failures() == 0


async def test_b65_a_switch_waits_for_an_update_that_is_being_handled(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler that takes a while, begun while the run seals what was said: it is answered by the
    execution that took it on, and the run goes on in the next one."""
    asked: asyncio.Task[str] | None = None
    put = FolderStore.put

    async def put_while_asked(store: FolderStore, owner: str, data: bytes) -> str:
        nonlocal asked
        if asked is None:
            handle = own.get_workflow_handle(owner)
            asked = asyncio.create_task(handle.execute_update("ponder", args=[1.0]))
            # Until the run has taken it on.
            await asyncio.sleep(0.5)
        return await put(store, owner, data)

    monkeypatch.setattr(FolderStore, "put", put_while_asked)
    # Its histories have an update that the product does not know: they are not replayed with it.
    own = await bare_namespace(client)
    async with open_rig(
        own,
        tmp_path,
        pages(9),
        tools=[page],
        limits=PATIENT,
        history=OFTEN,
        workflow=SlowHandlerRun,
    ) as r:
        run = await r.start()
        result = await run.result(timeout=60)
        assert asked is not None
        assert await asyncio.wait_for(asked, 5) == run.run_id
        assert result.outcome == "completed"
        assert len(await r.executions()) >= 2
        assert await r.task_failures() == 0


BURSTS = 3
"""At least, of each run."""


@pytest.mark.parametrize("runs", [34 if FULL else 3])
@pytest.mark.long
async def test_b66_a_burst_of_signals_around_a_switch_is_heard_once_and_in_order(
    rig: RigFactory, monkeypatch: pytest.MonkeyPatch, runs: int
) -> None:
    """Twenty signals while a run seals and continues as new, at the first switches of each run."""
    sent: dict[str, list[str]] = {}
    bursts: dict[str, list[asyncio.Task[None]]] = {}
    quiet: set[str] = set()
    put = FolderStore.put

    async def burst(owner: str) -> None:
        handle = r.client.get_workflow_handle(owner)
        numbers = sent.setdefault(owner, [])
        for _ in range(20):
            numbers.append(str(len(numbers)))
            await handle.signal("note", numbers[-1])

    async def put_in_a_burst(store: FolderStore, owner: str, data: bytes) -> str:
        begun = bursts.setdefault(owner, [])
        if owner not in quiet and all(b.done() for b in begun):
            begun.append(asyncio.create_task(burst(owner)))
            # They come before, with and after the end of this activity.
            await asyncio.sleep(0.02 * (len(begun) % 5))
        return await put(store, owner, data)

    @tool(effect="read")
    async def heard(ctx: ToolContext) -> str:
        """End the bursts, and wait for the last one."""
        quiet.add(ctx.workflow_id)
        await asyncio.gather(*bursts[ctx.workflow_id])
        return "heard"

    def script(x: Exchange) -> Reply:
        return call("heard") if x.turn == 16 else pages(17)(x)

    monkeypatch.setattr(FolderStore, "put", put_in_a_burst)
    async with rig(
        script, tools=[page, heard], limits=PATIENT, history=OFTEN, workflow=HearingRun
    ) as r:
        started = [await r.start() for _ in range(runs)]
        results = await asyncio.gather(*(run.result(timeout=120) for run in started))
        assert {x.outcome for x in results} == {"completed"}
        for run in started:
            assert len(sent[run.id]) >= 20 * BURSTS
            handle = r.client.get_workflow_handle(run.id)
            assert await handle.query("noted") == sent[run.id]
        assert await r.task_failures() == 0


# --- memory ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("evictions", [100 if FULL else 3])
@pytest.mark.long
async def test_b85_an_eviction_that_fails_loses_no_slot(
    client: Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    evictions: int,
) -> None:
    """Runs that cannot be evicted at the first try are at the second, each with an error in the
    log that names it; then all slots are free again, and every run goes on."""
    cached = 5
    monkeypatch.setattr(capacity, "caches", lambda *_: Caches(runs=cached, view_bytes=10**7))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        where = f"127.0.0.1:{free.getsockname()[1]}"
    runtime = Runtime(telemetry=TelemetryConfig(metrics=PrometheusConfig(bind_address=where)))
    address = client.service_client.config.target_host
    own = await Client.connect(address, data_converter=client.data_converter, runtime=runtime)
    with caplog.at_level(logging.ERROR, logger="temporalio.worker"):
        async with open_rig(
            own, tmp_path, TELL, tools=[send], on_unknown="wait", workflow=UnwillingRun
        ) as r:
            started = await asyncio.gather(*(r.start() for _ in range(evictions + cached)))
            waits = [await _call_of(own, run) for run in started]
            failed = [x for x in caplog.records if "Failed running eviction job" in x.message]
            assert len(failed) >= evictions
            for run, called in zip(started, waits, strict=True):
                await settle(own, run.id, called, "seen")
            results = await asyncio.gather(*(run.result(timeout=120) for run in started))
            assert {x.answer for x in results} == {"seen"}
            await until(lambda: _free_slots(where) == worker.WORKFLOW_TASKS)
            assert await r.task_failures() == 0


async def _call_of(client: Client, run: AgentRunHandle) -> str:
    """The call that a run waits with; by what lists read, which needs no worker."""
    handle = client.get_workflow_handle(run.id)

    async def waiting_calls() -> list[str]:
        calls = await unknown_of(await handle.describe())
        return [c.call_id for c in calls if c.status == "waiting"]

    found: list[str] = await until(waiting_calls, timeout=120)
    return found[0]


def _free_slots(where: str) -> int:
    """Of workflow tasks, as the worker's metrics tell."""
    with urllib.request.urlopen(f"http://{where}/metrics", timeout=10) as told:
        lines = told.read().decode().splitlines()
    (line,) = [
        x
        for x in lines
        if x.startswith("temporal_worker_task_slots_available") and "WorkflowWorker" in x
    ]
    return int(float(line.split()[-1]))


@pytest.mark.parametrize("runs", [50 if FULL else 15])
@pytest.mark.long
async def test_b86_a_worker_that_stops_leaves_its_waiting_runs_whole(
    site: SiteFactory, tmp_path: Path, runs: int
) -> None:
    """SIGTERM with waiting runs at hand: the process ends with status 0 and without a word of
    coroutines that would not go; the next worker goes on with every one of them."""
    async with site(bench.agents.waits, module="bench.agents") as s:
        first = await s.worker("--log-format", "json")
        started = [await s.start(f"customer {n}", agent="waiting") for n in range(runs)]
        calls = [await _call_of(s.agents.client, run) for run in started]
        os.kill(first.pid, signal.SIGTERM)
        assert await asyncio.to_thread(first.wait, 60) == 0
        await s.worker("--log-format", "json")
        for run, called in zip(started, calls, strict=True):
            await settle(s.agents.client, run.id, called, f"seen by {run.id}")
        for run in started:
            result = await run.result(timeout=60)
            assert result.answer == f"seen by {run.id}"
        assert first.log is not None
        _, _, told = first.log.read_text().partition("worker stops")
        assert told
        for word in ("GeneratorExit", "ignored", "Traceback", "never awaited"):
            assert word not in told, told[-3_000:]


@pytest.mark.parametrize(
    ("runs", "options", "limit"),
    [
        pytest.param(
            *((500, (), 4_000_000_000) if FULL else (16, ("--cache-mb", "1"), None)),
            marks=pytest.mark.timeout(1_800),
        )
    ],
)
@pytest.mark.long
async def test_b84_bursts_of_large_runs_leave_memory_flat(
    tmp_path: Path, runs: int, options: tuple[str, ...], limit: int | None
) -> None:
    """Three bursts of runs that wait with a large state each: what the cache has no room
    for is evicted, and from the second burst on the worker grows no more."""
    much = {} if FULL else {"HEAVY_CALLS": "3"}
    async with opened(tmp_path, "bench.agents:waits_with_much", environment=much) as place:
        process = await place.worker(*options, address_space=limit)
        sizes = []
        for burst in range(3):
            await begin(place, f"burst-{burst}", runs, agent="heavy")
            sizes.append((await process.memory()).own)
        assert process.process.status is None
        assert sizes[2] < 1.1 * sizes[1], sizes
