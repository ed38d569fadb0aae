"""`starter.py why`: what a run waits for, told without its worker."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from temporalio.client import Client

from tests.commands.test_unknown import Shell, waiting
from tests.namespaces import bare_namespace
from tests.rig import Rig, RigFactory, open_rig, until
from tests.scale_runs import FaultyRun
from turnkeeper import tool
from turnkeeper.client import AgentClient, AgentRunHandle
from turnkeeper.diagnosis import Diagnosis, _untaken
from turnkeeper.testing import call, status, text
from turnkeeper.testing.embedded import EmbeddedServer


async def told(rig: Rig, run: AgentRunHandle, has: Callable[[Diagnosis], Any]) -> Diagnosis:
    """A diagnosis, as soon as there is something in it."""

    async def found() -> Diagnosis | None:
        diagnosis = await AgentClient(rig.client).why(run.id)
        return diagnosis if has(diagnosis) else None

    diagnosis: Diagnosis = await until(found)
    return diagnosis


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
        assert finding.what.startswith("wait: attempt 1 of ")
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
    one = _untaken(55, {"a": 58.2})
    assert one.what == "a workflow task waits 55 s for 1 worker that polled 58 s ago"
    assert one.mend.startswith("it is busy, hangs or has died")
    both = _untaken(55, {"a": 58.2, "b": 3.1})
    assert both.what == "a workflow task waits 55 s for 2 workers, of which one polled 3 s ago"
    assert both.mend.startswith("they are busy, hang or have died")


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
    run = await AgentClient(client, task_queue="nobody").start("finance", "Hello?")
    shell = Shell(server, tmp_path)
    shown = await shell.starter("why", run.id)
    assert "workers   none (task queue nobody)" in shown.stdout
    assert "no worker polls task queue nobody" in shown.stdout
    assert "mend      start one: worker.py --task-queue nobody" in shown.stdout
    as_json = await shell.starter("why", run.id, "--json")
    assert '"workers": []' in as_json.stdout
    await client.get_workflow_handle(run.id).terminate("test")
    ended = await shell.starter("why", run.id)
    assert "waits for nothing: it has ended (terminated)" in ended.stdout
    unknown = await shell.starter("why", "no-such-run")
    assert unknown.returncode == 2


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
