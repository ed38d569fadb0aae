"""Runs in a table, counted and stopped: what others chose cannot steer the terminal."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.commands.test_unknown import Shell
from tests.rig import RigFactory, until
from turnkeeper import tool
from turnkeeper.client import RunSummary
from turnkeeper.commands import runs
from turnkeeper.testing import Exchange, Reply, call, text
from turnkeeper.testing.embedded import EmbeddedServer

FORGED = "x\x1b[2J\x9b31m\nrun-2  finance  completed\u202e"


class Place:
    """A place whose server has one run, started by somebody else's program."""

    @asynccontextmanager
    async def client(self, **_: Any) -> AsyncIterator[Place]:
        """Itself."""
        yield self

    async def list_runs(self, _query: str, **_: Any) -> AsyncIterator[RunSummary]:
        """The one run."""
        yield RunSummary(
            id=FORGED * 50,
            run_id="r",
            agent=FORGED,
            status="completed",
            outcome=FORGED,
            turns=1,
            tokens=2,
            started=datetime(2026, 1, 1, tzinfo=UTC),
            closed=None,
        )


async def test_foreign_cells_stay_in_their_line(capsys: pytest.CaptureFixture[str]) -> None:
    """An id, an agent or an outcome with escapes and newlines is one bounded cell."""
    place: Any = Place()
    options = argparse.Namespace(
        **dict.fromkeys(("agent", "status", "outcome", "tenant", "unknown", "waiting_for")),
        where="",
        count=1,
        json=False,
    )
    assert await runs.list_runs(place, options) == 0
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) == 2
    assert not {"\x1b", "\x9b", "\u202e"} & set(shown)
    assert len(shown.splitlines()[1]) < 400


async def test_open_runs_are_stopped_together(
    rig: RigFactory, server: EmbeddedServer, tmp_path: Path
) -> None:
    """Chosen by agent and tenant: shown first, stopped with `--yes`, and no other."""
    shell = Shell(server, tmp_path)
    go = asyncio.Event()

    @tool(effect="read", timeout=60)
    async def wait() -> str:
        """Wait."""
        await go.wait()
        return "done"

    def script(x: Exchange) -> Reply:
        return call("wait") if x.turn == 0 else text("Done.")

    async with rig(script, tools=[wait]) as r:
        own = {"tenant": f"tenant-of-{r.agents.task_queue}"}
        ours = [await r.start(metadata=own) for _ in range(3)]
        other = await r.start()
        chosen = ["--tenant", own["tenant"], "--agent", "tester"]
        query = f"TurnkeeperTenant = '{own['tenant']}'"

        async def found() -> bool:
            return await r.agents.count_runs(query) == 3

        await until(found)
        assert (await shell.starter("count", *chosen)).stdout == "3\n"
        assert (await shell.starter("count", *chosen, "--status", "ended")).stdout == "0\n"
        shown = await shell.starter("stop", *chosen)
        assert shown.returncode == 0
        assert {line.split()[0] for line in shown.stdout.splitlines()[1:]} == {x.id for x in ours}
        assert "3 open runs would be stopped: the same command with --yes" in shown.stderr
        assert (await ours[0].status()).outcome is None
        stopped = await shell.starter("stop", *chosen, "--yes", "--reason", "enough", "--json")
        told = json.loads(stopped.stdout)["runs"]
        assert {(x["id"], x["stop"]) for x in told} == {(x.id, "stopping") for x in ours}
        for run in ours:
            result = await run.result(check=False, timeout=30)
            assert result.outcome == "stopped"
            assert result.reason is not None
            assert result.reason.endswith("enough")
        assert (await other.status()).outcome is None
        go.set()
        assert (await other.result()).outcome == "completed"
