"""Runs in a table, counted and stopped: what others chose cannot steer the terminal."""

from __future__ import annotations

import argparse
import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from tests.commands.test_unknown import Shell
from tests.rig import RigFactory, until
from turnkeeper import tool
from turnkeeper.client import AgentClient, RunSummary
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
        query="",
        where="",
        count=1,
        json=False,
    )
    assert await runs.list_runs(place, options) == 0
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) == 2
    assert not {"\x1b", "\x9b", "\u202e"} & set(shown)
    assert len(shown.splitlines()[1]) < 400


@pytest.fixture
def shell(server: EmbeddedServer, tmp_path: Path) -> Shell:
    """The command line."""
    return Shell(server, tmp_path)


async def test_open_runs_are_stopped_together(rig: RigFactory, shell: Shell) -> None:
    """Chosen by agent and tenant: shown first, stopped with `--yes`, and no other."""
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


async def test_a_run_that_no_worker_has_taken_is_running(shell: Shell, client: Client) -> None:
    """Until then it has not said so itself: lists, counts and bulk commands find it all the same,
    and one that was terminated has ended."""
    queue = f"nobody-{uuid.uuid4()}"
    run = await AgentClient(client, task_queue=queue).start("tester", "question")
    there = f"TaskQueue = '{queue}'"
    await until(lambda: _found(client, there))
    assert run.id in (await shell.starter("list", there, "--status", "running")).stdout
    assert (await shell.starter("count", there, "--status", "running")).stdout == "1\n"
    stopped = await shell.starter("stop", "--where", there, "--status", "running")
    assert run.id in stopped.stdout
    assert (await shell.starter("count", there, "--status", "ended")).stdout == "0\n"
    await client.get_workflow_handle(run.id).terminate("test")
    await until(lambda: _found(client, f"{there} AND ExecutionStatus = 'Terminated'"))
    assert (await shell.starter("count", "--where", there, "--status", "running")).stdout == "0\n"
    assert (await shell.starter("count", "--where", there, "--status", "ended")).stdout == "1\n"


async def _found(client: Client, query: str) -> bool:
    return await AgentClient(client).count_runs(query) == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--outcome", "nosuch"], "'token_limit'"),
        (["finance"], "a query compares something, such as"),
        (["StartTime >"], "syntax error, in: (StartTime >)"),
        (["--where", "Nosuch = 1", "StartTime > 'x'"], "in: (StartTime > 'x') AND (Nosuch = 1)"),
    ],
)
async def test_what_is_no_choice_is_refused(shell: Shell, arguments: list[str], told: str) -> None:
    """With what could be meant: an unknown outcome with those that there are, and a query in the
    words in which it was given."""
    for command in ("list", "count"):
        refused = await shell.starter(command, *arguments)
        assert (refused.returncode, told in refused.stderr) == (2, True), refused.stderr
        assert "position" not in refused.stderr
