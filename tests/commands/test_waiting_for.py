"""`list`, `count` and `stop` by what runs wait for."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes

from tests.archive import Archive
from tests.commands.test_unknown import Shell, waiting
from tests.namespaces import bare_namespace
from tests.rig import RigFactory, open_rig, until
from turnkeeper import finding
from turnkeeper.contract import WORKFLOW
from turnkeeper.testing.embedded import EmbeddedServer

STATUS = SearchAttributeKey.for_keyword("TurnkeeperStatus")


@pytest.fixture
def shell(server: EmbeddedServer, tmp_path: Path) -> Shell:
    """The command line on the session's server."""
    return Shell(server, tmp_path)


@asynccontextmanager
async def published(client: Client, queue: str, memo: dict[str, Any]) -> AsyncIterator[str]:
    """A run that says of itself that it waits, as a release with other kinds of waiting may."""
    attributes = TypedSearchAttributes([SearchAttributePair(STATUS, "waiting")])
    handle = await client.start_workflow(
        WORKFLOW,
        {"agent": "tester", "prompt": "question"},
        id=f"waits-{uuid.uuid4()}",
        task_queue=queue,
        memo=memo,
        search_attributes=attributes,
    )
    try:
        yield handle.id
    finally:
        await handle.terminate("test")


async def ids(shell: Shell, query: str, kind: str) -> set[str]:
    """What `list --waiting-for` shows of the runs that a query finds."""
    done = await shell.starter("list", query, "--waiting-for", kind, "--json")
    assert done.returncode == 0, done.stderr
    runs = json.loads(done.stdout)["runs"]
    assert all(run["waiting_for"] and (kind == "person" or kind in run["waits"]) for run in runs)
    return {run["id"] for run in runs}


@pytest.mark.long
async def test_runs_are_found_by_what_they_wait_for(rig: RigFactory, shell: Shell) -> None:
    """Each kind by itself, `person` for all; listed, counted, and stopped once shown."""
    approval = {"tool": "refund", "id": "a1", "status": "waiting"}
    async with waiting(rig) as (r, run):
        nobodys = f"{r.task_queue}-nobodys"
        query = f"TaskQueue IN ('{r.task_queue}', '{nobodys}')"
        async with (
            published(r.client, nobodys, {"approvals": [approval]}) as asks,
            published(r.client, nobodys, {"approvals": [approval | {"status": "denied"}]}),
        ):

            async def found() -> bool:
                return await ids(shell, query, "person") == {run.id, asks}

            await until(found)
            assert await ids(shell, query, "outcome") == {run.id}
            assert await ids(shell, query, "approval") == {asks}
            chosen = ("--where", query, "--waiting-for")
            assert (await shell.starter("count", *chosen, "person")).stdout == "2\n"
            assert (await shell.starter("count", *chosen, "approval")).stdout == "1\n"
            shown = await shell.starter("stop", *chosen, "outcome")
            assert [line.split()[0] for line in shown.stdout.splitlines()[1::2]] == [run.id]
            table = await shell.starter("list", chosen[1], *chosen[2:], "approval")
            assert "    waiting for a person to allow refund (approval a1)" in table.stdout
            one = await shell.starter("list", chosen[1], *chosen[2:], "person", "--count", "1")
            assert len(one.stdout.splitlines()) == 3
        # A run that was terminated says for ever that it waits.

        async def gone() -> bool:
            return await ids(shell, query, "person") == {run.id}

        await until(gone)
        await run.stop()
        await run.result(check=False, timeout=60)


async def test_a_namespace_without_search_attributes_is_served(
    client: Client, histories: Archive, tmp_path: Path
) -> None:
    """By the memo alone."""
    bare = histories.watched(await bare_namespace(client))
    async with waiting(lambda *a, **k: open_rig(bare, tmp_path, *a, **k)) as (r, run):

        async def counted() -> bool:
            return await r.agents.count_runs(waiting_for="outcome") == 1

        await until(counted)
        assert await r.agents.count_runs(waiting_for="approval") == 0
        await run.stop()
        await run.result(check=False, timeout=60)
    await histories.take(bare)


async def test_more_runs_than_can_be_looked_at_are_never_counted_short(
    rig: RigFactory, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said instead; so is a kind that does not exist."""
    monkeypatch.setattr(finding, "_LOOKED_AT", 0)
    async with waiting(rig) as (r, run):
        query = f"WorkflowId = '{run.id}'"

        async def refused() -> bool:
            try:
                await r.agents.count_runs(query, waiting_for="person")
            except ValueError as error:
                return "narrow the query down" in str(error)
            return False

        await until(refused)
        with pytest.raises(ValueError, match="runs wait for person, outcome"):
            await r.agents.count_runs(query, waiting_for="luck")
        wrong = await shell.starter("count", "--waiting-for", "luck")
        assert (wrong.returncode, "invalid choice: 'luck'" in wrong.stderr) == (2, True)
        await run.stop()
        await run.result(check=False, timeout=60)
