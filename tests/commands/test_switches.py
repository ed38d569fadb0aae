"""`starter.py switch` as people use it: real processes, a real server."""

from __future__ import annotations

import argparse
import getpass
import json
from pathlib import Path

import pytest

from tests.commands.test_unknown import Shell
from tests.rig import RigFactory
from turnkeeper import tool
from turnkeeper.commands.switches import _print
from turnkeeper.testing import call, text
from turnkeeper.testing.embedded import EmbeddedServer


@tool(effect="idempotent")
async def pay() -> str:
    """Pay."""
    return "paid"


async def test_off_listed_and_on(rig: RigFactory, server: EmbeddedServer, tmp_path: Path) -> None:
    """An operator switches a tool off, sees it in the list, and on again; the run obeys."""
    script = [call("pay"), lambda x: text(x.last_results[0].text)]
    async with rig(script, tools=[pay]) as r:
        shell = Shell(server, tmp_path)
        queue = ("--task-queue", r.task_queue)
        done = await shell.starter("switch", "off", "tool", "pay", "--reason", "paid twice", *queue)
        assert done.returncode == 0, done.stderr
        assert done.stdout == "tool pay is switched off: nothing of it begins from 2 s on\n"
        again = await shell.starter("switch", "off", "tool", "pay", "--reason", "why not", *queue)
        assert again.stdout == "tool pay was off already\n"
        listed = await shell.starter("switch", "list", *queue)
        who = getpass.getuser()
        assert listed.stdout.startswith("tool pay: off for ")
        assert listed.stdout.endswith(f" s by {who}: paid twice\n")
        answer = (await r.run()).answer
        assert answer == f"Tool pay was switched off by {who}: paid twice. The call was not run."
        on = await shell.starter("switch", "on", "tool", "pay", "--json", *queue)
        assert json.loads(on.stdout) == {"kind": "tool", "name": "pay", "switch": "switched"}
        nothing = await shell.starter("switch", "list", "--json", *queue)
        assert json.loads(nothing.stdout) == {"switches": []}


async def test_a_reason_is_needed(server: EmbeddedServer, tmp_path: Path) -> None:
    """Without one, or with a blank one, nothing is sent."""
    shell = Shell(server, tmp_path)
    assert (await shell.starter("switch", "off", "tool", "pay")).returncode == 2
    blank = await shell.starter("switch", "off", "tool", "pay", "--reason", " ")
    assert (blank.returncode, "reason" in blank.stderr) == (2, True)


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("tool", "tool pay is switched on: calls of it are run again\n"),
        ("agent", "agent pay is switched on: runs that wait for it go on within a minute\n"),
    ],
)
def test_only_runs_of_agents_and_tenants_wait(
    capsys: pytest.CaptureFixture[str], kind: str, told: str
) -> None:
    """A run whose tool is off goes on, and reads that: nothing waits for the switch."""
    _print(argparse.Namespace(kind=kind, name="pay", json=False), "switched", "on")
    assert capsys.readouterr().out == told
