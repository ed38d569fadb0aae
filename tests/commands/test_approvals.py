"""`starter.py approvals`, `approve` and `deny` as people use them: real processes, real server."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from tests.commands.test_unknown import FORGED, Shell
from tests.rig import RigFactory, open_rig, until
from tests.test_approvals import asked, told
from tests.test_starter import ROOT
from turnkeeper import tool
from turnkeeper.client import PendingApproval
from turnkeeper.commands import approvals
from turnkeeper.commands.place import Place
from turnkeeper.contract import ApprovalAsked
from turnkeeper.testing import call, calls
from turnkeeper.testing.embedded import EmbeddedServer
from turnkeeper.text import clock


@tool(effect="idempotent", approval=lambda args: f"{args['amount']} is a lot")
async def pay(to: str, amount: int = 300) -> str:
    """Pay."""
    return f"paid {amount} to {to}"


SCRIPT = [calls([("pay", {"to": "ann"}), ("pay", {"to": "bob"})]), told]


@pytest.fixture
def shell(server: EmbeddedServer, tmp_path: Path) -> Shell:
    """See `Shell`."""
    return Shell(server, tmp_path)


async def paste(line: str) -> subprocess.CompletedProcess[str]:
    """Run a command that was told, as a shell reads it."""
    return await asyncio.to_thread(
        subprocess.run,
        ["/bin/sh", "-c", line],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


async def test_what_waits_is_listed_and_decided(
    client: Client, shell: Shell, tmp_path: Path
) -> None:
    """Over all runs, with all that a decision needs, and the commands for it, ready to paste."""
    async with open_rig(client, tmp_path, SCRIPT, tools=[pay]) as r:
        run = await r.start(metadata={"tenant": "acme", "principal": "eve"})
        # Both wait until the run's time is over.
        first, second = await asked(run, 2)
        allowed_to = "ann"
        mine = ("approvals", "--where", f"WorkflowId = '{run.id}'")

        async def listed() -> Any:
            done = await shell.starter(*mine)
            return done if second.id in done.stdout else None

        done = await until(listed)
        heading, *lines = done.stdout.splitlines()
        assert heading.split() == ["APPROVAL", "TOOL", "EFFECT", "AGE", "EXPIRES", "RUN"]
        rows = [line.split() for line in lines if not line.startswith(" ")]
        assert [(row[0], row[1], row[2], row[-1]) for row in rows] == [
            (a.id, "pay", "idempotent", run.id) for a in (first, second)
        ]
        assert f'    {{"to":"{allowed_to}","amount":300}}' in lines
        assert "asked because 300 is a lot; agent tester, turn 1" in done.stdout
        # Minutes of the last hour: what is left is not rounded down to hours.
        left = r"in 23 h \d+ min"
        until_then = (
            f" until {clock(first.until)}, {left}, when the run's time is over; "
            "tenant acme, on behalf of eve"
        )
        assert re.search(until_then, " ".join(done.stdout.split()))
        assert re.search(f"^{first.id} .* {left}  ", done.stdout, re.MULTILINE)
        assert max(map(len, done.stdout.splitlines())) <= 100
        (allow,) = re.findall(r"^To allow the first: (.+)$", done.stderr, re.MULTILINE)
        allowed = await paste(allow)
        assert (allowed.returncode, allowed.stdout) == (
            0,
            f"run {run.id} goes on: the call is run\n",
        )
        again = await paste(allow)
        assert again.returncode == 0
        assert again.stdout.startswith("the call was allowed already, nothing has changed: ")
        denied = await shell.starter("deny", run.id, second.id, "--reason", "No.", "--json")
        assert json.loads(denied.stdout) == {
            "id": run.id,
            "approval": second.id,
            "deny": "decided",
        }
        result = await run.result(timeout=60)
        assert f"paid 300 to {allowed_to}" in (result.answer or "")
        assert (result.answer or "").count("Denied by ") == 1
        late = await shell.starter("approve", run.id, second.id)
        assert (late.returncode, late.stdout) == (1, "")
        assert late.stderr.startswith(f"starter.py: run {run.id} has ended")
        nothing = await shell.starter(*mine)
        assert (nothing.stdout, nothing.stderr) == ("", "nothing waits for a person to allow it\n")


async def test_what_cannot_be_decided_is_refused(rig: RigFactory, shell: Shell) -> None:
    """Exit 2, in a sentence, with what waits; and what is decided stays so."""
    async with rig(SCRIPT, tools=[pay]) as r:
        run = await r.start(metadata={"tenant": "acme"})
        first, second = await asked(run, 2)
        unasked = await shell.starter("approve", run.id, "0" * 16)
        assert unasked.stderr.startswith(f"starter.py: approval: '{'0' * 16}' is none of this run")
        for wrong in (("approve", run.id, "0" * 16), ("deny", run.id, "x" * 5_000)):
            done = await shell.starter(*wrong)
            assert done.returncode == 2
            assert done.stderr.startswith("starter.py: ")
            assert "Traceback" not in done.stderr
        await run.approve(first.id, actor="ann")
        done = await shell.starter("deny", run.id, first.id)
        assert done.returncode == 2
        assert f"{first.id} is decided: it was approved by ann" in done.stderr
        missing = await shell.starter("approve", "nowhere", first.id)
        assert (missing.returncode, "there is no run nowhere" in missing.stderr) == (2, True)
        why = await shell.starter("why", run.id)
        assert f"it waits for a person to allow pay (approval {second.id})" in why.stdout
        shown = await shell.starter("show", run.id)
        assert f"          until {clock(second.until)}, in " in shown.stdout
        assert re.search(r"^limits    turns 1 of \d+ · time .+ of 1 d$", shown.stdout, re.MULTILINE)
        lines = why.stdout.splitlines()
        assert {
            "agent     tester; tenant acme",
            "prompt    question",
            f"asked     pay {second.arguments}",
            "asked     because 300 is a lot; effect idempotent, turn 1",
        } <= set(lines)
        assert f"asked     until {clock(second.until)}, in " in why.stdout
        assert f"deny {run.id} {second.id} --reason" in why.stderr
        await run.stop()
        await run.result(check=False, timeout=60)


async def test_without_a_worker_it_is_kept(rig: RigFactory, shell: Shell) -> None:
    """It is shown and decided all the same; the next worker takes it."""
    script = [call("pay", {"to": "ann"}), told]
    async with rig(script, tools=[pay]) as first:
        run = await first.start()
        (waiting,) = await asked(run)
    shown = await shell.starter("show", run.id)
    assert f"waiting for a person to allow pay (approval {waiting.id}); no worker" in shown.stdout
    done = await shell.starter("approve", run.id, waiting.id)
    assert done.stdout == f"no worker answers: run {run.id} is told as soon as one does\n"
    async with rig(script, tools=[pay], settings={"task_queue": first.task_queue}):
        assert (await run.result(timeout=60)).answer == "paid 300 to ann"


class Agents:
    """A client of a server that has one call, of somebody else's program."""

    async def approvals(self, *_: Any, **__: Any) -> AsyncIterator[PendingApproval]:
        """The one call."""
        now = time.time()
        odd = ApprovalAsked(
            id=FORGED,
            turn=1,
            call_id=FORGED,
            tool=FORGED,
            effect="once",
            arguments=FORGED * 50,
            why=FORGED * 50,
            since=now - 7_200,
            expires=now - 1,
        )
        yield PendingApproval(FORGED, "r", FORGED, odd)


async def test_foreign_words_stay_in_their_place(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Ids, arguments and reasons with escapes and newlines forge no line and steer no terminal."""

    class Elsewhere(Place):
        @asynccontextmanager
        async def client(self, *, to_read: bool = False) -> AsyncIterator[Any]:  # noqa: ARG002
            yield Agents()

    chosen = dict.fromkeys(("agent", "status", "outcome", "tenant", "unknown"))
    options = argparse.Namespace(**chosen, query="", where="", count=10, json=False)
    assert await approvals.approvals(Elsewhere(root=ROOT, state=tmp_path), options) == 0
    shown, said = capsys.readouterr()
    assert not {"\x1b", "\x9b", "\u202e"} & set(shown + said)
    assert [x for x in shown.splitlines() if x.startswith(("waiting", "run-2"))] == []
    assert "2 h" in shown
