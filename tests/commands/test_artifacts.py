"""`starter.py artifacts`: what runs that are gone have left, and nothing else, is removed."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowHandle

from tests.archive import Archive
from tests.namespaces import bare_namespace
from tests.rig import RigFactory, open_rig, until
from tests.test_field_reports_effects import delete, deletes_soon, is_gone
from tests.test_starter import ROOT, environment, starter
from tests.workers import SiteFactory
from turnkeeper import tool
from turnkeeper.artifacts import FolderStore, Holding
from turnkeeper.client import AgentClient
from turnkeeper.commands.artifacts import Collector
from turnkeeper.connection import namespace_identity
from turnkeeper.testing import call, text
from turnkeeper.testing.embedded import EmbeddedServer

ODD = "gone'; \\ \" 'x"
"""An id that a caller may choose, and a query may mistake."""


@dataclass
class Stored:
    """A store that a namespace has used for an open run, a closed one, and two that are gone."""

    client: Client
    folder: Path
    namespace: str
    kept: list[str]

    def store(self, namespace: str | None = None) -> FolderStore:
        """As a worker of this namespace, or of another one, opens it."""
        return FolderStore(self.folder, namespace=namespace or self.namespace)

    def grow_old(self) -> None:
        """All that was stored, long ago."""
        for mark in self.folder.glob("*/owner"):
            for path in mark.parent.iterdir():
                os.utime(path, (1, 1))

    async def owners(self) -> set[str | None]:
        """Whose objects there are."""
        return {h.owner async for h in self.store().holdings()}

    def run(self, *arguments: str, address: str = "") -> subprocess.CompletedProcess[str]:
        """`starter.py artifacts`."""
        where = address or self.client.service_client.config.target_host
        command = ["--address", where, "--namespace", self.client.namespace, "artifacts"]
        return subprocess.run(
            [sys.executable, "starter.py", *command, *arguments],
            cwd=ROOT,
            env=environment(TURNKEEPER_ARTIFACTS=str(self.folder)),
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )


@pytest.fixture
async def stored(rig: RigFactory, tmp_path: Path) -> AsyncIterator[Stored]:
    """See `Stored`."""
    async with rig([text("Done.")]) as r:
        closed = await r.start("closed")
        await closed.result()
        waiting = await waits(r.client, f"waits-{closed.id}")
        made = Stored(
            r.client,
            tmp_path / "shared",
            await namespace_identity(r.client),
            [closed.id, waiting.id],
        )
        for owner in (*made.kept, "gone", ODD):
            await made.store().put(owner, f"of {owner}".encode())
        made.grow_old()
        yield made
        await waiting.terminate()


async def waits(client: Client, run: str) -> WorkflowHandle[Any, Any]:
    """A run that no worker takes."""
    return await client.start_workflow("AgentRun", {}, id=run, task_queue="nobody")


def collector(stored: Stored, *, client: Client | None = None, unrecorded: bool = False) -> Any:
    """Of what is older than an hour."""
    return Collector(
        client or stored.client,
        stored.store(),
        stored.namespace,
        grace=3_600,
        unrecorded=unrecorded,
    )


async def verdicts(stored: Stored, **options: Any) -> dict[str | None, str]:
    """By workflow id."""
    held = [h async for h in stored.store().holdings()]
    return {j.holding.owner: j.verdict for j in await collector(stored, **options).judge(held)}


async def test_what_is_gone_is_shown_first_and_removed_when_asked(stored: Stored) -> None:
    """Runs that are open, or closed and retained, keep what they have."""
    shown = stored.run("gc")
    assert shown.returncode == 0, shown.stderr
    lines = shown.stdout.splitlines()
    assert lines[0].split() == ["RUN", "OBJECTS", "BYTES", "AGE"]
    assert sorted(line.split()[0] for line in lines[1:]) == ["gone", "gone';"]
    assert f"2 objects of 2 runs, 23 bytes in {stored.folder} can be removed: " in shown.stderr
    assert "not touched: 2 of runs that Temporal has" in shown.stderr
    assert await stored.owners() == {*stored.kept, "gone", ODD}

    removed = stored.run("gc", "--yes", "--json")
    assert removed.returncode == 0, removed.stderr
    report = json.loads(removed.stdout)
    assert {(g["id"], g["removed"]) for g in report["gone"]} == {("gone", True), (ODD, True)}
    assert report["not_touched"] == {"kept": 2}
    assert await stored.owners() == set(stored.kept)
    assert f"nothing to remove in {stored.folder}" in stored.run("gc", "--yes").stderr


async def test_the_command_that_removes_it_can_be_pasted(stored: Stored, tmp_path: Path) -> None:
    """It removes what was shown: in the store, with the grace and of the server that were named."""
    await stored.store().put("lately", b"a")
    for path in stored.folder.glob("*/*"):
        if (path.parent / "owner").read_text() == "lately":
            os.utime(path, (time.time() - 600,) * 2)
    moved = stored.folder.rename(tmp_path / "two words")
    named = ("--grace", "300", "--artifacts", str(moved), "--unrecorded")
    shown = stored.run("gc", *named)
    assert "3 objects of 3 runs" in shown.stderr
    command = shown.stderr.strip().rpartition("can be removed: ")[2]
    assert command.endswith("--unrecorded " + shlex.join(["--artifacts", str(moved)]))
    pasted = starter(*shlex.split(command)[2:])
    assert f"removed 3 objects of 3 runs, 24 bytes in {moved}" in pasted.stderr


@pytest.mark.parametrize("command", ["list", "gc"])
def test_a_store_that_is_not_there_is_no_empty_one(tmp_path: Path, command: str) -> None:
    """It is named, and how to name another one; a URL that cannot be used without its debris."""
    nowhere, file = tmp_path / "nowhere", tmp_path / "file"
    file.touch()
    for url, told in (
        (nowhere, f"there is no folder {nowhere} (--artifacts, TURNKEEPER_ARTIFACTS, --state)"),
        (file, f"there is no folder {file}"),
        ("ftp://x/y", 'Unable to recognise URL "ftp://x/y"\n'),
    ):
        done = starter("--address", "127.0.0.1:1", "artifacts", command, "--artifacts", str(url))
        assert done.returncode == 2
        assert told in done.stderr
        assert "Debug" not in done.stderr


async def test_what_a_deleted_run_had_is_removed(
    tmp_path: Path, histories: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not while the server keeps it, however long it is closed."""

    @tool(effect="read")
    def export() -> str:
        """More than fits."""
        return "x" * 100_000

    deletes_soon(monkeypatch)
    server = await asyncio.to_thread(EmbeddedServer.start, tmp_path / "server", port=0)
    with server:
        client = (await AgentClient.connect(server.address)).client
        async with open_rig(client, tmp_path, [call("export"), text("Done.")], tools=[export]) as r:
            run = await r.start()
            await run.result(timeout=30)
            await histories.take(client)
            namespace = await namespace_identity(client)
            made = Stored(client, tmp_path / "artifacts", namespace, [run.id])
            made.grow_old()
            assert await verdicts(made, unrecorded=True) == {run.id: "kept"}
            await delete(client, run)
            await until(functools.partial(is_gone, client, run))

        async def all_gone() -> bool:
            return await verdicts(made, unrecorded=True) == {run.id: "gone"}

        # Its line in the server's lists goes a little later.
        await until(all_gone)
        assert made.run("gc", "--yes", "--unrecorded").returncode == 0
        assert await made.owners() == set()


async def test_what_was_stored_lately_is_spared(stored: Stored) -> None:
    """A run may have just begun."""
    await stored.store().put("gone", b"again")
    assert (await verdicts(stored))["gone"] == "young"
    assert stored.run("gc", "--grace", "59").returncode == 2
    assert "--grace: 'abc' is not a whole number" in stored.run("gc", "--grace", "abc").stderr


async def test_what_is_stored_after_it_was_shown_is_spared(stored: Stored) -> None:
    """Asked again right before."""
    made = collector(stored)
    held = [h async for h in stored.store().holdings() if h.owner == "gone"]
    (judged,) = await made.judge(held)
    await stored.store().put("gone", b"again")
    assert not await made.remove(judged)
    assert "gone" in await stored.owners()


async def test_a_run_that_is_begun_anew_after_it_was_shown_is_spared(stored: Stored) -> None:
    """It may read what the one before it had."""
    made = collector(stored)
    held = [h async for h in stored.store().holdings() if h.owner == "gone"]
    (judged,) = await made.judge(held)
    assert judged.verdict == "gone"
    begun = await waits(stored.client, "gone")
    assert not await made.remove(judged)
    await begun.terminate()
    assert "gone" in await stored.owners()


async def test_other_namespaces_objects_are_not_touched(stored: Stored) -> None:
    """Those of another one, those of both, and those of which it was not recorded: the same id may
    be a run of theirs."""
    await stored.store("other.2").put("theirs", b"a")
    await stored.store("other.2").put("gone", b"a")
    await FolderStore(stored.folder).put("before", b"a")
    stored.grow_old()
    found = await verdicts(stored)
    assert (found["theirs"], found["gone"], found["before"], found[ODD]) == (
        "elsewhere",
        "shared",
        "unrecorded",
        "gone",
    )
    found = await verdicts(stored, unrecorded=True)
    assert (found["theirs"], found["gone"], found["before"]) == ("elsewhere", "shared", "gone")


async def test_a_store_of_another_namespace_is_refused(stored: Stored) -> None:
    """The wrong server, or the wrong store: it is said which ones they are."""
    other = await bare_namespace(stored.client)
    theirs = Stored(other, stored.folder, await namespace_identity(other), [])
    answer = theirs.run("gc", "--yes")
    assert answer.returncode == 1
    assert f"was written by {stored.namespace}, not by {theirs.namespace}" in answer.stderr
    assert await stored.owners() == {*stored.kept, "gone", ODD}


async def test_without_a_server_nothing_is_removed(stored: Stored) -> None:
    """Not an answer is not the answer that a run is gone."""
    answer = stored.run("gc", "--yes", "--json", address="127.0.0.1:1")
    assert answer.returncode == 1
    assert "error" in json.loads(answer.stdout)
    assert await stored.owners() == {*stored.kept, "gone", ODD}


async def test_a_namespace_that_is_away_is_no_run_that_is_gone(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`Not found` may be said of it, too."""
    config = stored.client.config()
    config["namespace"] = "no-such-namespace"
    with pytest.raises(ConnectionError, match="namespace"):
        await verdicts(stored, client=Client(**config))


async def test_what_is_stored_is_listed(stored: Stored) -> None:
    """By run, with number, size, age and whose it is; also as JSON."""
    shown = stored.run("list")
    assert shown.returncode == 0, shown.stderr
    assert shown.stderr == f"in {stored.folder}\n"
    assert len(shown.stdout.splitlines()) == 5
    assert stored.namespace in shown.stdout
    told = json.loads(stored.run("list", "--json").stdout)["artifacts"]
    assert {t["id"] for t in told} == {*stored.kept, "gone", ODD}
    assert all(t["objects"] == 1 and t["namespaces"] == [stored.namespace] for t in told)


async def test_a_worker_records_whose_its_artifacts_are(site: SiteFactory, tmp_path: Path) -> None:
    """As a process, from a folder that is not there yet: the run's id, and the namespace."""
    async with site([call("export"), text("Done.")], module="tests.exporting") as s:
        await s.worker()
        run = await s.start(agent="exporting")
        assert (await run.result(timeout=60)).answer == "Done."
        namespace = await namespace_identity(s.agents.client)
        made = Stored(s.agents.client, tmp_path / "artifacts", namespace, [run.id])
        (held,) = [h async for h in made.store().holdings()]
        assert (held.owner, held.objects, list(held.namespaces)) == (run.id, 1, [namespace])
        assert (tmp_path / "artifacts/.hosts" / socket.gethostname()).exists()
        made.grow_old()
        assert await verdicts(made) == {run.id: "kept"}


def test_foreign_ids_stay_in_their_line() -> None:
    """An id with escapes and newlines is one bounded cell."""
    from turnkeeper.commands.artifacts import _row

    forged = "x\x1b[2J\nrun-2\u202e" * 50
    row = _row(Holding("k", forged, frozenset(), 1, 1, 0.0), 0.0)
    assert not {"\x1b", "\n", "\u202e"} & set(row[0])
    assert len(row[0]) <= 200
