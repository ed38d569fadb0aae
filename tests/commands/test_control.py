"""`starter.py pause`, `resume` and `raise-limits` as people use them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.commands.test_unknown import Shell
from tests.rig import RigFactory, until
from tests.test_pause import Gate, held, one_call
from turnkeeper.testing.embedded import EmbeddedServer


@pytest.fixture
def shell(server: EmbeddedServer, tmp_path: Path) -> Shell:
    """See `Shell`."""
    return Shell(server, tmp_path)


async def test_one_run_is_paused_and_resumed(rig: RigFactory, shell: Shell) -> None:
    """Each command says what became of the run; `show` has the command that goes on."""
    gate = Gate()
    async with rig(one_call, tools=[gate.tool]) as r:
        run = await r.start()
        async with asyncio.timeout(60):
            await gate.reached.wait()
        paused = await shell.starter("pause", run.id, "--reason", "lunch", "--actor", "ann")
        assert paused.stdout == (
            f"run {run.id} pauses before its next turn; its time limit goes on\n"
        )
        again = await shell.starter("pause", run.id, "--json")
        assert json.loads(again.stdout) == {"id": run.id, "pause": "paused"}
        gate.go.set()
        await held(r, run)
        shown = await shell.starter("show", run.id)
        assert "waiting for a person to resume it, paused by ann: lunch" in shown.stdout
        assert f"resume {run.id}" in shown.stderr
        resumed = await shell.starter("resume", run.id)
        assert resumed.stdout == f"run {run.id} goes on\n"
        assert (await run.result(timeout=60)).outcome == "completed"
        # As asked for, or not to be had any more.
        for verb, code in (("stop", 0), ("pause", 1), ("resume", 1)):
            ended = await shell.starter(verb, run.id)
            told = (ended.stdout, ended.stderr)[code]
            assert (ended.returncode, "has ended already" in told) == (code, True)
            assert (ended.stderr, ended.stdout)[code] == ""


async def test_several_runs_are_paused_and_resumed_together(rig: RigFactory, shell: Shell) -> None:
    """Chosen as for `stop`: shown first, paused with `--yes`, resumed in one go; if more are chosen
    than `--count`, it says so and fails."""
    gate = Gate()
    async with rig(one_call, tools=[gate.tool]) as r:
        tenant = f"tenant-of-{r.agents.task_queue}"
        runs = [await r.start(metadata={"tenant": tenant}) for _ in range(3)]
        chosen = ["--tenant", tenant]

        async def found() -> bool:
            return await r.agents.count_runs(f"TurnkeeperTenant = '{tenant}'") == 3

        await until(found)
        some = await shell.starter("pause", *chosen, "--count", "2")
        assert (some.returncode, len(some.stdout.splitlines())) == (1, 3)
        assert "More runs were chosen than 2 (--count)." in some.stderr
        shown = await shell.starter("pause", *chosen)
        assert (shown.returncode, "More runs" in shown.stderr) == (0, False)
        assert "3 open runs would be paused: the same command with --yes" in shown.stderr
        some = await shell.starter("pause", *chosen, "--count", "2")
        assert "2 of 3 open runs (--count) would be paused: the same" in some.stderr
        assert [(await run.status()).paused for run in runs] == [None] * 3
        paused = await shell.starter("pause", *chosen, "--yes", "--reason", "a recall", "--json")
        told = json.loads(paused.stdout)["runs"]
        assert {(x["id"], x["pause"]) for x in told} == {(run.id, "pausing") for run in runs}
        gate.go.set()
        for run in runs:
            assert (await held(r, run)).waiting_for.endswith(": a recall")
        resume = ["resume", *chosen, "--status", "waiting", "--yes"]
        some = await shell.starter(*resume, "--count", "1", "--json")
        (first,) = json.loads(some.stdout)["runs"]
        assert (some.returncode, json.loads(some.stdout)["left_out"]) == (1, True)
        others = [run.id for run in runs if run.id != first["id"]]

        async def rest() -> bool:
            query = f"TurnkeeperTenant = '{tenant}' AND ExecutionStatus = 'Running'"
            return await r.agents.count_runs(query) == len(others)

        await until(rest)
        resumed = await shell.starter(*resume)
        assert sorted(resumed.stdout.splitlines()) == sorted(f"run {x} goes on" for x in others)
        assert (resumed.returncode, "More runs" in resumed.stderr) == (0, False)
        for run in runs:
            assert (await run.result(timeout=60)).outcome == "completed"


async def test_limits_are_raised(rig: RigFactory, shell: Shell) -> None:
    """By name and value; what is narrower, or no pair, is a wrong request."""
    gate = Gate()
    async with rig(one_call, tools=[gate.tool]) as r:
        run = await r.start(limits={"turns": 5})
        async with asyncio.timeout(60):
            await gate.reached.wait()
        done = await shell.starter("raise-limits", run.id, "turns=100", "tokens=null")
        assert (done.returncode, done.stdout) == (
            0,
            f"run {run.id} has other limits now: turns 100, tokens no limit\n",
        )
        assert (await run.status()).limits.turns == 100
        less = await shell.starter("raise-limits", run.id, "turns=99")
        assert less.returncode == 2
        assert "limits.turns: 99 is less than the present 100" in less.stderr
        wrong = await shell.starter("raise-limits", run.id, "turns")
        assert (wrong.returncode, "turns=100" in wrong.stderr) == (2, True)
        gate.go.set()
        await run.result(timeout=60)
        late = await shell.starter("raise-limits", run.id, "turns=101")
        assert (late.returncode, "has ended" in late.stderr, late.stdout) == (1, True, "")
        assert f"fork {run.id} --turn N" in late.stderr
