"""`starter.py switch` as people use it: real processes, a real server."""

from __future__ import annotations

import argparse
import getpass
import json
from pathlib import Path

import pytest

from tests.commands.test_unknown import Shell
from tests.rig import Rig, RigFactory, until
from turnkeeper import Agent, tool
from turnkeeper.commands.switches import _print
from turnkeeper.testing import call, text
from turnkeeper.testing.embedded import EmbeddedServer


@tool(effect="idempotent")
async def pay() -> str:
    """Pay."""
    return "paid"


PAYER = Agent(name="payer", model="claude-sonnet-5-5", instructions="Pay.", tools=[pay])


async def test_off_listed_and_on(rig: RigFactory, server: EmbeddedServer, tmp_path: Path) -> None:
    """An operator switches a tool off, sees it in the list, and on again; the run obeys."""
    script = [call("pay"), lambda x: text(x.last_results[0].text)]
    async with rig(script, tools=[pay]) as r:
        shell = Shell(server, tmp_path)
        queue = ("--task-queue", r.task_queue)
        done = await shell.starter("switch", "off", "tool", "pay", "--reason", "paid twice", *queue)
        assert done.returncode == 0, done.stderr
        there = f"on task queue {r.task_queue} alone"
        off = f"tool pay is switched off {there}: nothing of it begins from 2 s on\n"
        assert done.stdout == off
        again = await shell.starter("switch", "off", "tool", "pay", "--reason", "why not", *queue)
        assert again.stdout == f"tool pay was off already {there}\n"
        listed = await shell.starter("switch", "list", *queue)
        who = getpass.getuser()
        assert listed.stdout.startswith(f"tool pay: off {there} for ")
        assert listed.stdout.endswith(f" s by {who}: paid twice\n")
        answer = (await r.run()).answer
        assert answer == f"Tool pay was switched off by {who}: paid twice. The call was not run."
        on = await shell.starter("switch", "on", "tool", "pay", "--json", *queue)
        told = {"kind": "tool", "name": "pay", "task_queue": r.task_queue}
        assert json.loads(on.stdout) == {**told, "switch": "switched"}
        nothing = await shell.starter("switch", "list", "--json", *queue)
        assert json.loads(nothing.stdout) == {"switches": []}


async def test_it_says_where(rig: RigFactory, server: EmbeddedServer, tmp_path: Path) -> None:
    """Without a task queue it is off on all, and the list has both; who switches it on in one place
    reads where it is off still, with the command for that."""
    async with rig([], settings={"keeps_switches": True}) as r:
        shell = Shell(server, tmp_path)
        everywhere, queue = "in all of namespace default", ("--task-queue", r.task_queue)
        why = ("--reason", "twice", "--actor", "ann")
        done = await shell.starter("switch", "off", "tool", "say_where", *why)
        assert done.stdout.startswith(f"tool say_where is switched off {everywhere}: "), done.stderr
        await shell.starter("switch", "off", "tool", "say_where", *why, *queue)
        listed = (await shell.starter("switch", "list")).stdout
        assert f"tool say_where: off {everywhere} for " in listed
        on = await shell.starter("switch", "on", "tool", "say_where")
        assert on.stdout.startswith(f"tool say_where is switched on {everywhere}: it may be called")
        there = f"it is still off on task queue {r.task_queue} alone: "
        assert on.stderr.startswith(there)
        assert on.stderr.endswith(f"switch on tool say_where --task-queue {r.task_queue}\n")


async def test_a_name_that_nobody_has_is_doubted(
    rig: RigFactory, server: EmbeddedServer, tmp_path: Path
) -> None:
    """It is switched off all the same, since it may be deployed any moment; one that is known is
    not doubted."""
    async with rig([call("pay"), text("Done.")], agents=[PAYER]) as r:
        shell = Shell(server, tmp_path)
        await r.run(agent="payer")
        await until(lambda: _found(r))
        doubts = {
            ("tool", "paay"): "has a tool paay; did you mean pay?",
            ("tool", "payer.nosuch"): "agent payer has no tool nosuch: is it spelled so?",
            ("tool", "payer.pay"): "",
            ("agent", "payeer"): "no run yet is of agent payeer: is it spelled so?",
            ("agent", "payer"): "",
        }
        for (kind, name), doubt in doubts.items():
            at = ("--reason", "x", "--task-queue", r.task_queue)
            done = await shell.starter("switch", "off", kind, name, *at)
            assert (done.returncode, doubt in done.stderr) == (0, True), done.stderr
            assert bool(done.stderr) == bool(doubt)


async def _found(r: Rig) -> bool:
    return await r.agents.count_runs(f"WorkflowId = '{r.ids[-1]}' AND TurnkeeperOutcome != ''") == 1


async def test_a_reason_is_needed(server: EmbeddedServer, tmp_path: Path) -> None:
    """Without one, or with a blank one, nothing is sent."""
    shell = Shell(server, tmp_path)
    assert (await shell.starter("switch", "off", "tool", "pay")).returncode == 2
    blank = await shell.starter("switch", "off", "tool", "pay", "--reason", " ")
    assert (blank.returncode, "reason" in blank.stderr) == (2, True)


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("tool", "tool pay is switched on here: it may be called again from 2 s on\n"),
        ("agent", "agent pay is switched on here: its runs go on in a minute\n"),
    ],
)
def test_only_runs_of_agents_and_tenants_wait(
    capsys: pytest.CaptureFixture[str], kind: str, told: str
) -> None:
    """A run whose tool is off goes on, and reads that: nothing waits for the switch."""
    _print("here", argparse.Namespace(kind=kind, name="pay", json=False), "switched", "on")
    assert capsys.readouterr().out == told
