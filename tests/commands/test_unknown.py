"""`starter.py unknown` as people use it: real processes, a real server and worker."""

from __future__ import annotations

import argparse
import asyncio
import getpass
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from tests.archive import Archive
from tests.namespaces import bare_namespace
from tests.rig import Rig, RigFactory, open_rig, until
from tests.test_starter import NOWHERE, ROOT, environment, read_until, starter
from turnkeeper import tool
from turnkeeper.client import AgentRunHandle, UnknownOutcome
from turnkeeper.commands import unknown
from turnkeeper.commands.place import Place
from turnkeeper.contract import UnknownCall
from turnkeeper.testing import Exchange, Reply, call, text
from turnkeeper.testing.embedded import EmbeddedServer

ODD = "--landed"
"""A call id that a model may choose, and a shell or an option parser may mistake."""


@tool
async def send(to: str) -> str:
    """Send."""
    raise OSError(f"connection to {to} lost")


def script(exchange: Exchange) -> Reply:
    """One call whose id is the prompt, then its result as the answer."""
    if exchange.turn == 0:
        return call("send", {"to": "ann@example.com"}, id=exchange.prompt)
    return text(exchange.last_results[0].text)


@asynccontextmanager
async def waiting(
    rig: RigFactory, call_id: str = "c1", **options: Any
) -> AsyncIterator[tuple[Rig, AgentRunHandle]]:
    """A run that waits for a person."""
    async with rig(script, tools=[send], on_unknown="wait", **options) as r:
        run = await r.start(call_id)

        async def waits() -> bool:
            found = await r.client.get_workflow_handle(run.id).describe()
            return bool(await found.memo_value("unknown", None))

        await until(waits)
        yield r, run


class Shell:
    """The command line, pointed at the session's server and a rig's folder."""

    def __init__(self, server: EmbeddedServer, folder: Path) -> None:
        self.place = ["--address", server.address, "--state", str(folder)]

    async def starter(self, *arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
        """Run `starter.py` while this process goes on serving the rig."""
        env = {"COLUMNS": "100"}
        return await asyncio.to_thread(starter, *self.place, *arguments, env=env, **more)

    def popen(self, *arguments: str) -> subprocess.Popen[str]:
        """A command that is looked at while it runs."""
        return subprocess.Popen(
            [sys.executable, "starter.py", *self.place, *arguments],
            cwd=ROOT,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    async def paste(
        self, told: str, verdict: str = "took effect"
    ) -> subprocess.CompletedProcess[str]:
        """Run the command that a line told, as a shell reads it."""
        (line,) = [x for x in told.splitlines() if f"if it {verdict}: " in x]
        return await asyncio.to_thread(
            subprocess.run,
            ["/bin/sh", "-c", line.partition(f"if it {verdict}: ")[2]],
            cwd=ROOT,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@pytest.fixture
def shell(server: EmbeddedServer, tmp_path: Path) -> Shell:
    """See `Shell`."""
    return Shell(server, tmp_path)


@pytest.fixture
async def alone(client: Client, histories: Archive, shell: Shell) -> AsyncIterator[Client]:
    """A namespace where no other test leaves its calls; `shell` is pointed at it."""
    bare = histories.watched(await bare_namespace(client))
    shell.place += ["--namespace", bare.namespace]
    yield bare
    await histories.take(bare)


# --- the list -----------------------------------------------------------------------------------


async def test_what_waits_comes_first_with_all_that_it_may_be_looked_up_by(
    alone: Client, shell: Shell, tmp_path: Path
) -> None:
    """Run, call, tool, age, agent, arguments, key and what happened, within 100 columns."""
    nothing = await shell.starter("unknown")
    assert (nothing.returncode, nothing.stdout) == (0, "")
    assert nothing.stderr.startswith("no unknown outcomes\n")

    async with waiting(lambda *a, **k: open_rig(alone, tmp_path, *a, **k)) as (r, run):
        key = (await run.status()).unknown[0].key
        async with open_rig(alone, tmp_path, script, tools=[send]) as other:
            told = await other.start("c2")
            await told.result()

        async def listed() -> Any:
            done = await shell.starter("unknown")
            return done if told.id in done.stdout and run.id in done.stdout else None

        done = await until(listed)
        heading, *lines = done.stdout.splitlines()
        assert heading.split() == ["STATUS", "AGE", "RUN", "CALL", "TOOL"]
        rows = [line.split() for line in lines if not line.startswith(" ")]
        assert [(row[0], *row[3:]) for row in rows] == [
            ("waiting", run.id, "c1", "send"),
            ("open", told.id, "c2", "send"),
        ]
        assert all(row[1].isdigit() and row[2] == "s" for row in rows)
        assert max(map(len, done.stdout.splitlines())) <= 100
        assert "agent tester, turn 1, the run is waiting" in done.stdout
        assert "agent tester, turn 1, the run is completed" in done.stdout
        assert 'arguments to="ann@example.com"' in done.stdout
        assert "connection to ann@example.com lost" in done.stdout
        assert f"key {key}" in done.stdout
        assert "only the last 1,000 runs were looked at" in done.stderr
        only = json.loads((await shell.starter("unknown", "--waiting", "--json")).stdout)
        (one,) = only["unknown"]
        assert (one["id"], one["agent"], one["status"]) == (run.id, "tester", "waiting")
        assert one["call"]["key"] == key
        assert one["call"]["status"] == "waiting"

        pasted = await shell.paste(done.stderr)
        assert (pasted.returncode, pasted.stdout) == (
            0,
            f"run {run.id} goes on: call c1 took effect\n",
        )
        assert (await r.agents.result(run.id, timeout=60)).outcome == "completed"


async def test_what_has_waited_longest_leads(rig: RigFactory, shell: Shell) -> None:
    """With the commands for both verdicts, each whole on its line."""
    async with waiting(rig, "c1") as (r, first):
        second = await r.start("c2")
        query = f"TurnkeeperStatus = 'waiting' AND WorkflowId IN ('{first.id}', '{second.id}')"

        async def both() -> bool:
            return len([x async for x in r.agents.list_runs(query)]) == 2

        await until(both)
        done = await shell.starter("unknown", "--waiting")
        mine = [line for line in done.stdout.splitlines() if first.id in line or second.id in line]
        assert [line.split()[4] for line in mine] == ["c1", "c2"]
        shown = await shell.starter("unknown", first.id)
        pasted = await shell.paste(shown.stderr, "did not")
        assert pasted.stdout == f"run {first.id} goes on: call c1 did not take effect\n"
        await first.result(timeout=60)
        await second.stop()
        await second.result(check=False, timeout=60)


async def test_the_calls_of_one_run_are_listed(rig: RigFactory, shell: Shell) -> None:
    """Also those that were settled, by the run's id alone; and a run that has none says so."""
    async with waiting(rig) as (r, run):
        listed = await shell.starter("unknown", run.id)
        assert listed.stdout.splitlines()[1].split()[0] == "waiting"
        await run.resolve("c1", landed=False)
        await run.result(timeout=60)
        listed = await shell.starter("unknown", run.id, "--json")
        (one,) = json.loads(listed.stdout)["unknown"]
        assert (one["id"], one["call"]["call_id"], one["call"]["status"]) == (
            run.id,
            "c1",
            "not_landed",
        )
        missing = await shell.starter("unknown", "nowhere")
        assert (missing.returncode, missing.stdout) == (2, "")
        assert "there is no run nowhere" in missing.stderr
    async with rig([text("Hello.")]) as r:
        await r.run()
        nothing = await shell.starter("unknown", r.ids[-1])
        assert (nothing.returncode, nothing.stdout) == (0, "")
        assert nothing.stderr == f"run {r.ids[-1]} has no unknown outcomes\n"


FORGED = "x\x1b[2J\x9b31m\nwaiting  1 s  run-2\u202e"


class Agents:
    """A client of a server that has one call, of somebody else's program."""

    @property
    def client(self) -> Agents:
        """Temporal's own client."""
        return self

    async def count_workflows(self, _query: str) -> None:
        """The search attribute is there."""

    async def unknown_calls(self, **_: Any) -> AsyncIterator[UnknownOutcome]:
        """The one call."""
        told = UnknownCall(
            turn=1,
            call_id=FORGED * 50,
            tool=FORGED,
            key=FORGED,
            arguments=FORGED,
            what=FORGED * 100,
            since=time.time() - 7_200,
            status="waiting",
        )
        yield UnknownOutcome(FORGED, "r", FORGED, "running", told)


async def test_foreign_words_stay_in_their_place(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Ids, arguments and errors with escapes and newlines forge no line and steer no terminal."""

    class Elsewhere(Place):
        @asynccontextmanager
        async def client(self, *, to_read: bool = False) -> AsyncIterator[Any]:  # noqa: ARG002
            yield Agents()

    options = argparse.Namespace(
        run=None, call=None, landed=None, result=None, actor=None, waiting=False, count=None
    )
    options.json = False
    assert await unknown.unknown(Elsewhere(root=ROOT, state=tmp_path), options) == 0
    shown, told = capsys.readouterr()
    assert not {"\x1b", "\x9b", "\u202e"} & set(shown + told)
    assert [line for line in shown.splitlines() if line.startswith("waiting")][1:] == []
    assert "2 h" in shown


# --- one call -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verdict", "told", "answer"),
    [
        ("--landed", "took effect", "receipt 7"),
        ("--not-landed", "did not take effect", "send did not take effect: ann has checked."),
    ],
)
async def test_a_call_is_settled(
    rig: RigFactory, shell: Shell, verdict: str, told: str, answer: str
) -> None:
    """The run goes on with what was said; a second time there is nothing to settle."""
    async with waiting(rig) as (r, run):
        settle = ("unknown", run.id, "c1", verdict, "--result", "receipt 7", "--actor", "ann")
        done = await shell.starter(*settle)
        assert (done.returncode, done.stdout) == (0, f"run {run.id} goes on: call c1 {told}\n")
        result = await run.result(timeout=60)
        assert (result.answer or "").startswith(answer)
        again = await shell.starter(*settle, "--json")
        assert again.returncode == 1
        assert json.loads(again.stdout) == {"id": run.id, "call_id": "c1", "resolve": "ended"}
        assert await r.task_failures() == 0


async def test_who_settles_is_you_unless_named(rig: RigFactory, shell: Shell) -> None:
    """As in `stop`."""
    async with waiting(rig) as (_, run):
        assert (await shell.starter("unknown", run.id, "c1", "--landed")).returncode == 0
        (settled,) = (await run.result(timeout=60)).unknown
        assert settled.actor == getpass.getuser()


async def test_another_call_is_refused_and_what_waits_is_named(
    rig: RigFactory, shell: Shell
) -> None:
    """Exit 2, in a sentence; so is a run that does not exist."""
    async with waiting(rig) as (_, run):
        done = await shell.starter("unknown", run.id, "c2", "--landed")
        assert done.returncode == 2
        assert "no call 'c2' waits to be resolved; waiting: c1" in done.stderr
        missing = await shell.starter("unknown", "nowhere", "c1", "--landed")
        assert missing.returncode == 2
        assert "there is no run nowhere" in missing.stderr
        await run.stop()
        await run.result(check=False, timeout=60)


async def test_without_a_worker_it_is_kept(rig: RigFactory, shell: Shell) -> None:
    """And said so; the next worker takes it."""
    async with waiting(rig) as (first, run):
        pass
    done = await shell.starter("unknown", run.id, "c1", "--landed", "--result", "receipt 7")
    assert (done.returncode, done.stdout) == (
        0,
        f"no worker answers: run {run.id} is told as soon as one does\n",
    )
    queue = {"task_queue": first.task_queue}
    async with rig(script, tools=[send], on_unknown="wait", settings=queue):
        assert (await run.result(timeout=60)).answer == "receipt 7"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--landed"], "unknown RUN CALL --landed (or --not-landed); without options all of them"),
        (["--result", "x"], "name the run and the call"),
        (["--actor", "ann"], "name the run and the call"),
        (["run-1", "--landed"], "name the call, too"),
        (["run-1", "--waiting"], "--waiting and --count are for the list"),
        (["run-1", "c1"], "say whether the call took effect"),
        (["run-1", "c1", "--result", "x"], "say whether the call took effect"),
        (["run-1", "c1", "--landed", "--not-landed"], "not allowed with"),
        (["run-1", "c1", "--landed", "--waiting"], "--waiting and --count are for the list"),
        (["run-1", "c1", "--landed", "--count", "5"], "--waiting and --count are for the list"),
        (["--count", "0"], "at least 1"),
    ],
)
def test_options_at_odds_are_refused(arguments: list[str], told: str) -> None:
    """Exit 2 before a server is asked, with the way to write it."""
    done = starter(*NOWHERE, "unknown", *arguments)
    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr


# --- the other commands -------------------------------------------------------------------------


async def test_run_tells_how_to_settle_and_goes_on(rig: RigFactory, shell: Shell) -> None:
    """The command it prints can be pasted while it waits."""
    async with rig(script, tools=[send], on_unknown="wait") as r:
        asking = shell.popen("run", "c1", "--agent", "tester", "--task-queue", r.task_queue)
        told = await asyncio.to_thread(read_until, asking, "if it did not")
        r.ids.append(told.split()[1])
        assert "EXECUTE   outcome unknown: send: Tool send failed after 1 attempt" in told
        assert "WAITING   for a person to say whether send (call c1) took effect" in told
        pasted = await shell.paste(told)
        assert pasted.returncode == 0, pasted.stderr
        answer, rest = await asyncio.to_thread(asking.communicate, timeout=30)
        assert asking.returncode == 0
        assert answer.startswith("It took effect: ")
        assert f"-> send (call c1) took effect, says {getpass.getuser()} (unverified)" in rest
        later = await shell.starter("show", r.ids[-1], "--follow")
        assert "WAITING" in later.stderr
        assert "To settle" not in later.stderr


async def test_an_odd_call_id_can_be_pasted(rig: RigFactory, shell: Shell) -> None:
    """Ids that look like options: `show` prints the command for them, and it works."""
    async with waiting(rig, ODD) as (_, run):
        shown = await shell.starter("show", run.id)
        assert f"waiting for a person to say whether send (call {ODD}) took effect" in shown.stdout
        pasted = await shell.paste(shown.stderr)
        assert (pasted.returncode, pasted.stderr) == (0, "")
        assert (await run.result(timeout=60)).outcome == "completed"
        later = await shell.starter("show", run.id)
        assert f"unknown   turn 1 · send (call {ODD}) took effect, says " in later.stdout
        assert "To settle" not in later.stderr


async def test_show_and_list_need_no_worker_for_it(rig: RigFactory, shell: Shell) -> None:
    """The run that waits says so in both."""
    async with waiting(rig) as (_, run):
        pass
    shown = await shell.starter("show", run.id)
    assert "a person to say whether send (call c1) took effect; no worker answers" in shown.stdout
    assert f"unknown {run.id} c1 --landed" in shown.stderr

    async def listed() -> Any:
        done = await shell.starter("list", f"WorkflowId = '{run.id}'")
        return done.stdout if " waiting " in done.stdout else None

    row, awaited = (await until(listed)).splitlines()[1:]
    _, agent, status, outcome, turns, tokens, *_ = row.split()
    assert (agent, status, outcome, turns) == ("tester", "waiting", "-", "1")
    assert int(tokens) > 0
    assert awaited == "    waiting for a person to say whether send (call c1) took effect"
    await run.client.client.get_workflow_handle(run.id).terminate()


async def test_an_end_by_an_unknown_outcome_is_exit_1(rig: RigFactory, shell: Shell) -> None:
    """The call is named, with its key and how to look at it."""
    async with rig(script, tools=[send], on_unknown="stop") as r:
        asked = (
            "run",
            "c1",
            "--agent",
            "tester",
            "--task-queue",
            r.task_queue,
            "--id",
            r.task_queue,
        )
        done = await shell.starter(*asked)
        r.ids.append(r.task_queue)
        assert (done.returncode, done.stdout) == (1, "")
        (call_,) = (await r.agents.result(r.task_queue, check=False)).unknown
        assert "reason: turn 1, call c1: " in done.stderr
        unsure = (
            f"unknown: turn 1, send (call c1) may or may not have taken effect; key {call_.key}"
        )
        assert unsure in done.stderr
        assert f"show {r.task_queue}" in done.stderr
