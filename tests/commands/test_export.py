"""Runs as files: whole, resumable, with all that an audit asks for, and nothing of the worker's."""

from __future__ import annotations

import io
import json
import os
import re
import stat
import uuid
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from temporalio.client import Client

from tests.commands.test_unknown import Shell, script, send, waiting
from tests.rig import Rig, RigFactory, until
from turnkeeper import RetryTool, ToolFailed, errors, tool
from turnkeeper.artifacts import FolderStore
from turnkeeper.client import AgentClient
from turnkeeper.commands.files import draft, keep
from turnkeeper.export import (
    ExportedCall,
    ExportedEpoch,
    ExportedGeneration,
    ExportedMessage,
    ExportedSummary,
    RunExport,
)
from turnkeeper.spec import HistoryPolicy
from turnkeeper.testing import call, reply, text
from turnkeeper.testing.embedded import EmbeddedServer

PAGE = (Path(__file__).parents[2] / "docs" / "export.md").read_text()


@pytest.fixture
def shell(server: EmbeddedServer, tmp_path: Path) -> Shell:
    """The command line on the session's server."""
    return Shell(server, tmp_path)


def exported(folder: Path) -> list[dict[str, Any]]:
    """What is in the files of a folder, and nothing else lies there."""
    assert all(path.suffix == ".json" and path.name[0] != "." for path in folder.iterdir())
    return [json.loads(path.read_text()) for path in sorted(folder.iterdir())]


def names(folder: Path) -> set[str]:
    """Of all that lies in a folder, hidden files too."""
    return {path.name for path in folder.iterdir()}


# --- what it holds --------------------------------------------------------------------------------


async def test_everything_of_a_run(rig: RigFactory) -> None:
    """Request, outcome, transcript, calls with keys and attempts, messages; as one JSON object."""
    tries: list[int] = []

    @tool(effect="idempotent", timeout=10)
    async def pay(amount: int) -> str:
        """Pay."""
        tries.append(amount)
        if len(tries) == 1:
            raise RetryTool("busy")
        return f"paid {amount}"

    @tool(effect="read", timeout=10)
    async def look() -> str:
        """Look."""
        raise ToolFailed("nothing there")

    replies: list[Any] = [
        reply([call("pay", {"amount": 5}, id="c1"), call("look", id="c2")]),
        text("Paid."),
    ]
    async with rig(replies, tools=[pay, look]) as r:
        given = {"tenant": "acme", "note": "as given"}
        run = await r.start("Pay 5.", metadata=given, request_key="q-1", limits={"turns": 7})
        result = await run.result()
        found = await r.agents.export(run.id)
    assert RunExport.model_validate_json(found.model_dump_json()) == found
    assert (found.version, found.id, found.status) == (1, run.id, "completed")
    assert (found.agent, found.model) == ("tester", "claude-sonnet-5-5")
    assert found.closed is not None
    assert found.started < found.closed < found.exported
    assert found.request is not None
    assert found.request.model_dump(exclude={"limits"}, exclude_defaults=True) == {
        "agent": "tester",
        "prompt": "Pay 5.",
        "request_key": "q-1",
        "metadata": given,
    }
    assert found.result == result
    assert [e.kind for e in found.entries] == ["message", "reply", "result", "result", "reply"]
    paid, looked = found.calls
    assert (paid.tool, paid.effect, paid.status, paid.attempts) == ("pay", "idempotent", "ok", 2)
    assert (paid.turn, paid.call_id, paid.arguments) == (1, "c1", "amount=5")
    assert re.fullmatch("[0-9a-f]{32}", paid.key)
    assert paid.ended is not None
    assert found.started < paid.scheduled < paid.ended < found.closed
    assert (looked.call_id, looked.status) == ("c2", "error")
    assert looked.key != paid.key
    assert re.fullmatch("[0-9a-f]{32}", found.spec_digest)
    assert (found.messages, found.decisions, found.missing) == ([], {}, [])
    assert found.limits is not None
    assert found.limits.turns == 7
    first, second = found.generations
    assert [g.reply for g in found.generations] == [
        found.entries[1].digest,
        found.entries[4].digest,
    ]
    assert (first.turn, first.status, first.attempts) == (1, "ok", 1)
    assert (first.stop_reason, second.stop_reason) == ("tool_use", "end_turn")
    assert first.usage.plus(second.usage) == result.usage
    assert first.ended is not None
    assert found.started < first.scheduled < first.ended < paid.ended < second.scheduled
    assert (found.summaries, found.epochs, found.unread) == ([], [], [])


async def test_what_people_decided_and_sent(rig: RigFactory) -> None:
    """Who settled an unknown outcome and who asked to stop, with their words."""
    async with waiting(rig) as (r, run):
        await run.resolve("c1", landed=True, result="seen in the mail log", actor="ann")
        await run.result(timeout=60)
        found = await r.agents.export(run.id)
        (call_,) = found.unknown
        assert (call_.status, call_.actor, call_.key) == ("landed", "ann", found.calls[0].key)
        assert found.calls[0].status == "failed"
        assert found.calls[0].failure
        (settled,) = found.decisions["outcome"]
        assert (settled["status"], settled["actor"]) == ("landed", "ann")
        (said,) = found.messages
        assert (said.name, said.how) == ("resolve", "update")
        assert said.body["result"] == "seen in the mail log"


async def test_a_long_run_is_one_run(rig: RigFactory) -> None:
    """Over all its executions: every call once, in order, and the whole transcript."""

    @tool(effect="once", timeout=10)
    async def step(number: int) -> str:
        """Step."""
        return f"step {number}"

    replies: list[Any] = [*(call("step", {"number": n}) for n in range(8)), text("Done.")]
    async with rig(replies, tools=[step], history=HistoryPolicy(events=50)) as r:
        run = await r.start("Go on. " + "far " * 100)
        await run.result()
        found = await r.agents.export(run.id)
        whole = await r.transcript(run.id)
    assert len(found.run_ids) > 1
    assert [c.arguments for c in found.calls] == [f"number={n}" for n in range(8)]
    assert len({c.key for c in found.calls}) == 8
    assert [g.turn for g in found.generations] == list(range(1, 10))
    assert found.entries == whole.entries
    assert found.request is not None
    assert found.request.prompt.endswith("far far ")
    written = io.BytesIO()
    head = await r.agents.export_to(written, run.id)
    assert head.entries == []
    read = RunExport.model_validate_json(written.getvalue())
    assert read.model_copy(update={"exported": found.exported}) == found


async def test_an_open_run_as_it_stands(rig: RigFactory) -> None:
    """Without a result; its calls wait."""
    async with waiting(rig) as (r, run):
        found = await r.agents.export(run.id)
        assert (found.status, found.closed, found.result) == ("running", None, None)
        assert [c.status for c in found.unknown] == ["waiting"]
        await run.stop()
        await run.result(check=False, timeout=60)


async def test_results_that_the_model_did_not_read(rig: RigFactory) -> None:
    """Of a run that reached its limit: its last results are no entries, and are there."""

    @tool(effect="read", timeout=10)
    async def look(number: int) -> str:
        """Look."""
        return f"seen {number}"

    async with rig([call("look", {"number": n}) for n in (1, 2)], tools=[look]) as r:
        run = await r.start(limits={"turns": 2})
        assert (await run.result(check=False)).outcome == "turn_limit"
        found = await r.agents.export(run.id)
        assert [e.value["text"] for e in found.unread] == ["seen 2"]
        assert [e.value["text"] for e in found.entries if e.kind == "result"] == ["seen 1"]
        page = await r.agents.page(run.id)
    assert page.index("The model did not read it.") < page.index("seen 2")


async def test_a_run_that_never_was_one(client: Client, rig: RigFactory) -> None:
    """A malformed start has no request: it is said, and the refusal is exported."""
    async with rig([]) as r:
        handle = await r.start_raw({"agent": "tester"})
        await r.agents.result(handle.id, check=False, timeout=60)
        found = await r.agents.export(handle.id)
    assert found.result is not None
    assert (found.result.outcome, found.request, found.entries) == ("invalid_request", None, [])
    assert len(found.missing) == 1
    assert found.missing[0].startswith("event 1 of ")


def spoil_last_segment(store: Path) -> None:
    """Change what was sealed last."""
    sealed = [path for path in store.rglob("*") if re.fullmatch("[0-9a-f]{64}", path.name)]
    max(sealed, key=lambda path: path.stat().st_mtime_ns).write_bytes(b"{}")


async def test_a_transcript_that_is_lost_is_said(
    rig: RigFactory, shell: Shell, tmp_path: Path
) -> None:
    """With what could be read of it, and all else; the exit code is 1."""

    @tool(effect="read", timeout=10)
    async def step(number: int) -> str:
        """Step."""
        return f"step {number}"

    replies: list[Any] = [*(call("step", {"number": n}) for n in range(6)), text("Done.")]
    async with rig(replies, tools=[step], history=HistoryPolicy(events=50)) as r:
        run = await r.start()
        await run.result()
        spoil_last_segment(tmp_path / "artifacts")

        async def listed() -> bool:
            query = f"TaskQueue = '{r.task_queue}' AND ExecutionStatus = 'Completed'"
            return await r.agents.count_runs(query) == 1

        await until(listed)
        found = await r.agents.export(run.id)
    assert len(found.calls) == 6
    assert found.entries == []
    assert found.missing[0].startswith("the transcript after entry 0: ")
    chosen = ("--where", f"TaskQueue = '{r.task_queue}'")
    done = await shell.starter("export", *chosen, "--out", str(tmp_path / "out"))
    assert done.returncode == 1
    assert "it lacks the transcript after entry 0: " in done.stderr
    assert "1 written, 1 incomplete" in done.stderr
    assert exported(tmp_path / "out")[0]["missing"] == found.missing
    (name,) = names(tmp_path / "out")
    assert name.endswith(".incomplete.json")
    again = await shell.starter("export", *chosen, "--out", str(tmp_path / "out"))
    assert (again.returncode, again.stdout) == (1, "")
    assert "1 there already, 1 incomplete" in again.stderr


def test_every_field_is_documented() -> None:
    """In docs/export.md, those of what they are made of too."""
    rows = "\n".join(line for line in PAGE.splitlines() if line.startswith("| `"))
    named = set(re.findall(r"`(\w+)`", rows))
    assert set(RunExport.model_fields) <= named
    parts: list[tuple[type[BaseModel], str]] = [
        (ExportedCall, "calls"),
        (ExportedMessage, "messages"),
        (ExportedGeneration, "generations"),
        (ExportedSummary, "summaries"),
        (ExportedEpoch, "epochs"),
    ]
    for model, row in parts:
        (line,) = [x for x in rows.splitlines() if x.startswith(f"| `{row}`")]
        assert set(model.model_fields) <= set(re.findall(r"`(\w+)`", line))


# --- the files ------------------------------------------------------------------------------------


async def tenants_runs(r: Rig, count: int) -> tuple[list[str], str]:
    """Runs that have ended and are listed as such, and the tenant that they have alone."""
    tenant = f"t-{uuid.uuid4().hex[:8]}"
    runs = [await r.start("c1", metadata={"tenant": tenant}) for _ in range(count)]
    for run in runs:
        await run.result(check=False)

    async def listed() -> bool:
        ended = f"TurnkeeperTenant = '{tenant}' AND TurnkeeperStatus = 'ended'"
        return await r.agents.count_runs(ended) == count

    await until(listed)
    return [run.id for run in runs], tenant


async def test_a_file_for_each_run_and_the_rest_the_next_time(
    rig: RigFactory, shell: Shell, tmp_path: Path
) -> None:
    """Chosen runs are written once: whole, for their owner alone; drafts and others stay out."""
    folder = tmp_path / "audit"
    async with rig(script, tools=[send]) as r:
        runs, tenant = await tenants_runs(r, 3)
        export = ("export", "--tenant", tenant, "--out", str(folder))
        some = await shell.starter(*export, "--count", "2")
        assert some.returncode == 1
        assert "More runs were chosen than 2 (--count)." in some.stderr
        assert len(some.stdout.splitlines()) == 2
        first = {path: path.stat().st_ino for path in folder.iterdir()}
        rest = await shell.starter(*export, "--json")
        assert rest.returncode == 0, rest.stderr
        told = json.loads(rest.stdout)
        assert (len(told["written"]), told["kept"], told["failed"]) == (1, 2, {})
        assert {path: path.stat().st_ino for path in first} == first
    found = exported(folder)
    assert sorted(f["id"] for f in found) == sorted(runs)
    assert all(f["result"]["outcome"] == "completed" for f in found)
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in folder.iterdir())
    assert all(f["calls"][0]["tool"] == "send" and f["unknown"] for f in found)


async def test_a_file_of_an_open_run_is_written_again(
    rig: RigFactory, shell: Shell, tmp_path: Path
) -> None:
    """Named, a run is exported as it stands; once it has ended, the choice takes it."""
    folder = tmp_path / "audit"
    async with waiting(rig) as (r, run):
        queue = r.task_queue
        open_ = await shell.starter("export", run.id, "--out", str(folder))
        assert open_.returncode == 0, open_.stderr
        chosen = ("export", "--where", f"TaskQueue = '{queue}'", "--out", str(folder))
        nothing = await shell.starter(*chosen)
        assert (nothing.returncode, nothing.stdout) == (0, "")
        assert nothing.stderr.startswith("no runs that have ended (")
        await run.resolve("c1", landed=True)
        await run.result(timeout=60)

        async def listed() -> bool:
            query = f"TaskQueue = '{queue}' AND ExecutionStatus = 'Completed'"
            return await r.agents.count_runs(query) == 1

        await until(listed)
        assert len((await shell.starter(*chosen)).stdout.splitlines()) == 1
        assert (await shell.starter(*chosen)).stdout == ""
    (file,) = exported(folder)
    assert file["result"]["outcome"] == "completed"


async def test_odd_ids_stay_in_the_folder(client: Client, shell: Shell, tmp_path: Path) -> None:
    """Callers of other languages choose any id: it names a file, and no path."""
    folder = tmp_path / "audit"
    agents = AgentClient(client, store=FolderStore(tmp_path / "artifacts"))
    for name in (f"../../etc/{uuid.uuid4()}", f"{uuid.uuid4()}/" + "long" * 100):
        handle = await client.start_workflow("AgentRun", {}, id=name, task_queue="nobody")
        await handle.terminate("test")
        done = await shell.starter("export", "--out", str(folder), "--", name)
        assert done.stdout.startswith(f"{folder}/")
        assert (await agents.export(name)).result is not None
    assert len(exported(folder)) == 2
    assert names(tmp_path) <= {"audit", "artifacts"}


def test_a_draft_that_cannot_be_finished_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk is an error, and no half a file."""

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)

    def write() -> None:
        with draft(tmp_path) as file:
            file.write(b"{")
            keep(file, tmp_path / "run.json", None)

    with pytest.raises(OSError, match="No space left"):
        write()
    assert names(tmp_path) == set()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "name runs, or choose several"),
        (["x", "--agent", "finance"], "not both"),
        (["--waiting-for", "person"], "runs that wait have not ended"),
    ],
)
async def test_wrong_usage_is_exit_2(shell: Shell, arguments: list[str], told: str) -> None:
    """In a sentence."""
    done = await shell.starter("export", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr


async def test_a_run_that_is_not_there_does_not_stop_the_others(
    rig: RigFactory, shell: Shell, tmp_path: Path
) -> None:
    """It is named, with exit 1."""
    async with rig([text("Hello.")]) as r:
        await r.run()
        done = await shell.starter("export", "nowhere", r.ids[-1], "--out", str(tmp_path / "out"))
        assert done.returncode == 1
        assert "not exported: there is no run nowhere" in done.stderr
        assert len(exported(tmp_path / "out")) == 1
        with pytest.raises(LookupError):
            await r.agents.export("nowhere")
        handle = await r.start_raw(workflow="Other")
        await r.agents.result(handle.id, check=False, timeout=60)
        with pytest.raises(errors.InvalidRequest, match="is a workflow of type Other"):
            await r.agents.export(handle.id)
