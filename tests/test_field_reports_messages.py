"""Failures that people met in public: the order of what was said, and what a replay says again.

The ids are those of the collected reports. With TURNKEEPER_TESTS=full in the environment the
numbers are those of the reports.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from pathlib import Path

import pytest
from temporalio.client import Client

from activities import capacity
from activities.capacity import Caches
from tests.rig import RigFactory
from tests.sizes import FULL
from tests.talking import echo, insistently, look, looks_first, sent
from tests.test_continue_as_new import PATIENT
from turnkeeper.artifacts import FolderStore
from turnkeeper.client import AgentClient
from turnkeeper.history import read_transcript

pytestmark = pytest.mark.timeout(300)


async def test_b94_messages_of_one_moment_keep_their_order(
    rig: RigFactory, client: Client, tmp_path: Path
) -> None:
    """Written as fast as they go, many within one millisecond, and read again by somebody who has
    seen nothing: what was said stands in the order in which it was taken, each answer behind what
    it answers."""
    count = 1_000 if FULL else 100
    async with rig(echo, limits=PATIENT.model_copy(update={"turns": 5_000})) as r:
        run = await r.start("", keep_open=True)
        for number in range(count):
            await insistently(run, f"message {number}", f"m{number}")
        assert f"message {count - 1}" in await run.reply(f"m{count - 1}", timeout=120)
        entries = (
            await read_transcript(client, FolderStore(tmp_path / "artifacts"), run.id)
        ).entries
        assert sent(entries) == [f"m{number}" for number in range(count)]
        said: list[str] = []
        for entry in entries:
            if entry.kind == "message":
                said.append(entry.value["text"])
            else:
                answer = entry.value["content"][0]["text"]
                assert answer == "re: " + "\n".join(said)
                said = []
        assert said == []
        await run.stop()
        await run.result(check=False)


@pytest.mark.long
async def test_b96_a_replay_logs_nothing_again(
    rig: RigFactory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With no run kept at hand each workflow task is a replay: every message, and every turn, is
    one line of the log all the same."""
    monkeypatch.setattr(capacity, "caches", lambda *_: Caches(runs=0, view_bytes=10**7))
    count = 10
    with caplog.at_level(logging.INFO, logger="temporalio.workflow"):
        async with rig(looks_first, tools=[look], limits=PATIENT) as r:
            run = await r.start("", keep_open=True)
            for number in range(count):
                await run.send(f"message {number}", message_id=f"m{number}")
                await run.reply(f"m{number}", timeout=20)
            await run.stop()
            turns = (await run.result(check=False)).turns
            assert await r.task_failures() == 0
    mine = [
        x
        for x in caplog.records
        if getattr(x, "temporal_workflow", {}).get("workflow_id") == run.id
    ]
    assert [x.message_id for x in mine if hasattr(x, "message_id")] == [
        f"m{n}" for n in range(count)
    ]
    logged = Counter(x.turn for x in mine if not hasattr(x, "message_id") and hasattr(x, "turn"))
    assert logged == dict.fromkeys(range(1, turns + 1), 1)


async def test_b96_the_client_needs_no_memory(rig: RigFactory) -> None:
    """A client that begins anew finds the answer to every message that another has sent."""
    async with rig(echo, limits=PATIENT) as r:
        run = await r.start("", keep_open=True)
        for number in range(3):
            await run.chat(f"message {number}", timeout=20)
        await run.send("last", message_id="last")
        fresh = AgentClient(r.client, store=r.store)
        assert await asyncio.wait_for(fresh.reply(run.id, "last"), 60) == "re: last"
        await run.stop()
        await run.result(check=False)
