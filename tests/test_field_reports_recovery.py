"""Failures that people met in public: what a crash left behind, and recovery that crashed itself.

The ids are those of the collected reports; B20 is in test_field_reports_effects.py, beside B33.
With TURNKEEPER_TESTS=full in the environment the numbers are those of the reports; otherwise they
are smaller where that saves minutes.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import shutil
import signal
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowExecutionStatus

from tests.archive import Archive
from tests.rig import open_rig, until
from tests.sizes import FULL
from tests.workers import SiteFactory, open_site
from turnkeeper.client import AgentClient
from turnkeeper.testing import EffectLedger, call, text
from turnkeeper.testing.embedded import EmbeddedServer

# Workers start slowly where much else is at work.
pytestmark = pytest.mark.timeout(300)

BEAT = ("--heartbeat-seconds", "2")
TOOLS = "tests.effect_tools"


def answers(exchange: Any) -> Any:
    """A refund, slow in its first attempt; then what it said."""
    if exchange.turn:
        return text(exchange.last_results[0].text)
    return call("refund", {"before": 5})


async def serve(folder: Path, *, port: int = 0) -> tuple[EmbeddedServer, Client]:
    """A server of its own on the folder's database, and a client of it."""
    server = await asyncio.to_thread(EmbeddedServer.start, folder, port=port)
    return server, (await AgentClient.connect(server.address)).client


def kill(server: EmbeddedServer) -> None:
    """SIGKILL."""
    os.kill(server.pid, signal.SIGKILL)
    server.stop()


# --- transcripts ----------------------------------------------------------------------------------


APPENDING = ("model.whole", "generation.completing", "reply.appended")
"""Crash points from a whole reply in the worker's hands to a transcript that has it."""


@pytest.mark.long
@pytest.mark.crash
async def test_b22_a_turn_is_in_the_transcript_or_it_is_not(
    site: SiteFactory, ledger: EffectLedger
) -> None:
    """A worker dies at each write on the way of a reply into the transcript, and the next goes on:
    whoever reads it meanwhile finds the beginning of what it is in the end, in whole entries."""
    environment = {"LEDGER_URL": ledger.url}
    script = [call("refund"), call("refund"), lambda x: text(x.last_results[0].text)]
    found = []
    async with site(script, module=TOOLS, environment=environment) as s:
        run = None
        for point in APPENDING:
            dying = await s.worker(*BEAT, crash_points=True, crash_at=f"{point}:1")
            run = run or await s.start(agent="effects")
            assert await until(lambda dying=dying: dying.status) == -signal.SIGKILL  # type: ignore[misc]
            found.append((await run.transcript()).entries)
        await s.worker(*BEAT)
        assert run is not None
        assert (await run.result(timeout=60)).outcome == "completed"
        final = [e.digest for e in (await run.transcript()).entries]
        assert not s.provider.rejections
    assert len(final) == 6
    for entries in found:
        assert [e.digest for e in entries] == final[: len(entries)]
    assert {len(entries) for entries in found} >= {1, 2}
    assert len(ledger.effects()) == 2


# --- recovery -------------------------------------------------------------------------------------


@pytest.mark.crash
@pytest.mark.long
async def test_b97_a_server_that_dies_during_recovery_strands_no_run(
    ledger: EffectLedger, tmp_path: Path, histories: Archive
) -> None:
    """A worker dies with its runs, the server 0.2 s after the next worker has started, and is back
    2 s later: every run completes, and none has more than one effect. (8 runs; in full 100.)"""
    server, client = await serve(tmp_path / "server")
    port = int(server.address.rpartition(":")[2])
    environment = {"LEDGER_URL": ledger.url}
    number = 100 if FULL else 8
    try:
        async with open_site(
            client, server.address, tmp_path, answers, module=TOOLS, environment=environment
        ) as s:
            first = await s.worker(*BEAT)
            prompts = (f"run {n}" for n in range(number))
            runs = await asyncio.gather(*(s.start(p, agent="effects") for p in prompts))
            await until(lambda: len(s.calls("begin")) >= number // 2, timeout=60)
            await s.kill(first)
            await s.worker(*BEAT)
            await asyncio.sleep(0.2)
            kill(server)
            await asyncio.sleep(2)
            server, _ = await serve(tmp_path / "server", port=port)
            results = [await run.result(check=False, timeout=120) for run in runs]
        assert Counter(r.outcome for r in results) == {"completed": number}
        described = [await client.get_workflow_handle(run.id).describe() for run in runs]
        assert {d.status for d in described} == {WorkflowExecutionStatus.COMPLETED}
        assert len(ledger.effects()) == number
        await histories.take(client)
    finally:
        await asyncio.to_thread(server.stop)


# --- the rig itself -------------------------------------------------------------------------------


@pytest.mark.crash
@pytest.mark.long
async def test_b99_the_server_serves_after_each_of_many_kills(
    tmp_path: Path, histories: Archive
) -> None:
    """SIGKILL and a new start over the same database, again and again: each time a run is started
    and completes, and those of before are there. (3 times; in full 20.)"""
    for number in range(20 if FULL else 3):
        server, client = await serve(tmp_path / "server")
        async with open_rig(client, tmp_path, [text("Done.")]) as r:
            assert (await r.run(id=f"run-{number}")).outcome == "completed"
            for earlier in range(number):
                assert (await r.agents.result(f"run-{earlier}")).answer == "Done."
        kill(server)
    server, client = await serve(tmp_path / "server")
    await histories.take(client)
    server.stop()


@pytest.mark.crash
@pytest.mark.long
async def test_b100_every_run_is_read_after_a_kill(tmp_path: Path, histories: Archive) -> None:
    """Short runs, then SIGKILL: over the same database, and over a copy of it that was made with
    SQLite's own files beside it, all are listed and read, whole. (25 runs; in full 500.)"""
    number = 500 if FULL else 25
    folder, copy = tmp_path / "server", tmp_path / "copy"
    server, client = await serve(folder)
    async with open_rig(client, tmp_path, [text("Done.")]) as r:
        results = await asyncio.gather(*(r.run(id=f"run-{n}", timeout=200) for n in range(number)))
    assert {x.answer for x in results} == {"Done."}
    kill(server)
    copy.mkdir()
    for file in folder.glob("temporal.db*"):
        shutil.copy(file, copy)
    # The last writes lie in it: a copy without it would be older.
    assert (copy / "temporal.db-wal").stat().st_size > 0
    with sqlite3.connect(copy / "temporal.db") as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    for place in (copy, folder):
        server, client = await serve(place)
        assert {f"run-{n}" for n in range(number)} == {x.id async for x in client.list_workflows()}
        agents = AgentClient(client)
        for n in range(number):
            transcript = await agents.transcript(f"run-{n}")
            assert [e.kind for e in transcript.entries] == ["message", "reply"]
        if place is folder:
            await histories.take(client)
        server.stop()


def is_on_a_file(server: EmbeddedServer) -> bool:
    """Whether the process has a database file of its folder open, with content."""
    held = {os.path.realpath(p) for p in Path(f"/proc/{server.pid}/fd").iterdir()}
    file = server.state_dir / "temporal.db"
    return str(file.resolve()) in held and file.stat().st_size > 0


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks at /proc")
def test_b101_servers_are_on_files(server: EmbeddedServer, tmp_path: Path) -> None:
    """The server of the session, and any embedded one: SQLite's name of a database in memory is
    the name of a file."""
    assert is_on_a_file(server)
    named = tmp_path / ":memory:"
    with EmbeddedServer.start(tmp_path, port=0, database=named) as odd:
        assert str(named) in {os.path.realpath(p) for p in Path(f"/proc/{odd.pid}/fd").iterdir()}
        assert named.stat().st_size > 0


def test_b101_what_kills_or_soaks_uses_no_server_in_memory(request: pytest.FixtureRequest) -> None:
    """Temporal's own test environments keep their data in memory: no test that kills or takes long
    has one, be it by the fixture `virtual` or made by itself."""
    hard = [
        item
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and (item.get_closest_marker("crash") or item.get_closest_marker("slow"))
    ]
    assert hard
    assert [i.nodeid for i in hard if "virtual" in i.fixturenames] == []
    own = [i.nodeid for i in hard if "WorkflowEnvironment.start" in inspect.getsource(i.function)]
    assert own == []
