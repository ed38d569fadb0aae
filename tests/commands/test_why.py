"""`starter.py why`: what a run waits for, told without its worker."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import json
import re
import shlex
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from tests.commands.test_unknown import Shell, waiting
from tests.namespaces import bare_namespace
from tests.rig import Rig, RigFactory, open_rig, until
from tests.scale_runs import FaultyRun
from tests.test_starter import ROOT, environment
from turnkeeper import tool
from turnkeeper.client import AgentClient, AgentRunHandle
from turnkeeper.commands import why
from turnkeeper.commands.place import Place
from turnkeeper.diagnosis import Diagnosis, _untaken
from turnkeeper.suggestion import serving
from turnkeeper.testing import call, status, text
from turnkeeper.testing.embedded import EmbeddedServer


async def told(rig: Rig, run: AgentRunHandle, has: Callable[[Diagnosis], Any]) -> Diagnosis:
    """A diagnosis, as soon as there is something in it."""

    async def found() -> Diagnosis | None:
        diagnosis = await AgentClient(rig.client).why(run.id)
        return diagnosis if has(diagnosis) else None

    diagnosis: Diagnosis = await until(found)
    return diagnosis


@contextlib.asynccontextmanager
async def pasted(command: str, folder: Path) -> AsyncIterator[None]:
    """A worker that was started by a command as a shell reads it, and takes work."""
    ready = folder / "ready"
    line = f"exec {command} --ready-file {shlex.quote(str(ready))}"
    # Nothing answers there: the run is taken, and goes no further.
    env = environment(ANTHROPIC_API_KEY="x" * 20, ANTHROPIC_BASE_URL="http://127.0.0.1:1")
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            "/bin/sh", "-c", line, cwd=ROOT, env=env, stderr=log
        )
    try:
        await until(lambda: ready.exists() or process.returncode is not None)
        assert ready.exists(), (folder / "log").read_text()
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def says(words: str) -> Callable[[Diagnosis], bool]:
    """Whether a finding has the words."""
    return lambda diagnosis: any(words in f.what for f in diagnosis.findings)


async def test_a_call_that_is_at_work(rig: RigFactory) -> None:
    """Since when, and on which worker."""
    go = asyncio.Event()

    @tool(effect="read", timeout=60)
    async def wait() -> str:
        """Wait."""
        await go.wait()
        return "done"

    async with rig([call("wait"), text("Done.")], tools=[wait]) as r:
        run = await r.start()
        found = await told(r, run, says("wait: "))
        (finding,) = found.findings
        assert finding.what.startswith("wait: attempt 1 of 3, ")
        assert (found.status, len(found.workers)) == ("running", 1)
        assert f" on {found.workers[0]}" in finding.what
        go.set()
        assert (await run.result()).outcome == "completed"
        ended = await AgentClient(r.client).why(run.id)
        assert (ended.status, ended.findings) == ("completed", ())


async def test_a_reply_that_fails_and_is_tried_again(rig: RigFactory) -> None:
    """The attempt, of how many, the error, and when the next one is."""
    async with rig([status(529)] * 4 + [text("Done.")]) as r:
        run = await r.start()
        found = await told(r, run, says("tried again in"))
        (finding,) = found.findings
        assert finding.what.startswith("a reply: attempt ")
        assert "the last one failed: " in finding.what
        assert "overloaded" in finding.what


def test_workers_that_take_nothing_may_have_died() -> None:
    """One that was killed is listed for a while: when it polled last tells it from a busy one."""
    another = serving("q", "finance")
    one = _untaken(55, {"a": 58.2}, another)
    assert one.what == "a workflow task waits 55 s for 1 worker that polled 58 s ago"
    assert one.mend.startswith("it is busy, hangs or has died")
    both = _untaken(55, {"a": 58.2, "b": 3.1}, another)
    assert both.what == "a workflow task waits 55 s for 2 workers, of which one polled 3 s ago"
    assert both.mend.startswith("they are busy, hang or have died")
    assert (one.commands, both.commands) == ([another], [another])


async def test_a_person_who_is_awaited(
    rig: RigFactory, server: EmbeddedServer, tmp_path: Path
) -> None:
    """At the terminal, with the commands that settle it."""
    async with waiting(rig) as (r, run):
        shown = await Shell(server, tmp_path).starter("why", run.id)
        assert shown.returncode == 0, shown.stderr
        assert "it waits for a person to say whether send (call c1) took effect" in " ".join(
            shown.stdout.split()
        )
        assert "To settle it, if it took effect: " in shown.stderr
        assert re.search(r"^workers +\S.* \(polled \d+ s ago\)", shown.stdout, re.MULTILINE)
        found = await AgentClient(r.client).why(run.id)
        assert [c.call_id for c in found.waiting] == ["c1"]


async def test_no_worker(client: Client, server: EmbeddedServer, tmp_path: Path) -> None:
    """Which task queue nobody polls, and how to start one; as JSON too."""
    queue = f"nobody's {uuid.uuid4()}"
    run = await AgentClient(client, task_queue=queue).start("finance", "Hello?")
    shell = Shell(server, tmp_path / "the state's")
    shown = await shell.starter("why", run.id)
    assert f"workers   none (task queue {queue})" in shown.stdout
    assert f"no worker polls task queue {queue}" in shown.stdout
    (told,) = re.findall(
        r"^To start a worker \(.*agent finance\): (.+)$", shown.stderr, re.MULTILINE
    )
    as_json = json.loads((await shell.starter("why", run.id, "--json")).stdout)
    assert (as_json["workers"], as_json["findings"][0]["commands"]) == ([], [told])
    async with pasted(told.replace("MODULE", "examples.finance"), tmp_path):
        # The server lists a worker a moment after it has begun to ask for work.
        workers = await until(functools.partial(_workers, client, run.id))
        assert len(workers) == 1
    await client.get_workflow_handle(run.id).terminate("test")
    ended = await shell.starter("why", run.id)
    assert "waits for nothing: it has ended (terminated)" in ended.stdout
    unknown = await shell.starter("why", "no-such-run")
    assert unknown.returncode == 2


async def _workers(client: Client, run: str) -> Any:
    return (await AgentClient(client).why(run)).workers


async def test_without_a_server_it_says_how_to_start_one(
    client: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The one that answers is gone with the command: a worker would not find it."""
    agents = AgentClient(client, task_queue=f"nobody-{uuid.uuid4()}")
    run = await agents.start("finance", "Hello?")

    class Alone(Place):
        @contextlib.asynccontextmanager
        async def reach(self, *, to_read: bool) -> AsyncIterator[tuple[AgentClient, bool]]:
            assert to_read
            yield agents, True

    place = Alone(root=ROOT, state=tmp_path)
    assert await why.why(place, argparse.Namespace(id=run.id, json=False)) == 0
    said = capsys.readouterr().err
    assert f"No server runs. To start one, first: {place.command('dev')}\n" in said
    await client.get_workflow_handle(run.id).terminate("test")


async def test_a_workflow_task_that_fails(client: Client, tmp_path: Path) -> None:
    """A bug is told in its own words, and who mends it."""
    # Its history replays with no good loop.
    own = await bare_namespace(client)
    async with open_rig(own, tmp_path, [], workflow=FaultyRun) as r:
        run = await r.start()
        found = await told(r, run, says("its workflow task fails, attempt "))
        assert "a bug in the loop" in found.findings[0].what
        assert "deploy code that replays" in found.findings[0].mend
        await own.get_workflow_handle(run.id).terminate("test")
