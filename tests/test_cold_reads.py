"""What a worker reads that lacks a run's view: newest first, and no further than it must."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from temporalio.client import Client

from tests import test_context
from tests.rig import Rig, RigFactory
from tests.test_continue_as_new import OPEN, PATIENT, page, pages
from turnkeeper import RunResult
from turnkeeper.artifacts import ArtifactStore, FolderStore
from turnkeeper.contract import GENERATE, GenerateInput
from turnkeeper.entries import Position
from turnkeeper.history import HistoryReader, Place, Transcript
from turnkeeper.spec import HistoryPolicy
from turnkeeper.view import View

TWICE = HistoryPolicy(events=300)


class Counted:
    """A client and a store that count what is read through them."""

    def __init__(self, client: Client, store: FolderStore) -> None:
        self.namespace = client.namespace
        self.data_converter = client.data_converter
        self.get_workflow_handle = client.get_workflow_handle
        self.workflow_service = self
        self.read: Counter[str] = Counter()
        self._service = client.workflow_service
        self.get_workflow_execution_history = self._service.get_workflow_execution_history
        self._store = store

    async def get_workflow_execution_history_reverse(self, request: Any, **options: Any) -> Any:
        """Of the client's service."""
        reply = await self._service.get_workflow_execution_history_reverse(request, **options)
        self.read["pages"] += 1
        self.read["events"] += len(reply.history.events)
        self.read["bytes"] += reply.ByteSize()
        return reply

    async def get(self, owner: str, artifact: str) -> bytes:
        """Of the store."""
        self.read["segments"] += 1
        return await self._store.get(owner, artifact)


async def read(r: Rig, run: str, wanted: Any, behind: int | None) -> Counter[str]:
    """What it takes to read a run's view for a worker that lacks the last entries, or all."""
    assert isinstance(r.store, FolderStore)
    whole = await HistoryReader(r.client, r.store, run).view(wanted)
    known = None if behind is None else View(whole.entries[: len(whole.entries) - behind])
    counted: Any = Counted(r.client, r.store)
    store: ArtifactStore = counted
    view = await HistoryReader(counted, store, run).view(wanted, known)
    assert view.digests == whole.digests
    read: Counter[str] = counted.read
    return read


async def long_run(r: Rig, name: str) -> RunResult:
    """To its end."""
    result = await r.run(id=name)
    assert result.outcome == "completed"
    return result


@pytest.mark.long
@pytest.mark.parametrize("turns", [20, 60])
async def test_a_view_that_is_one_turn_behind_takes_one_small_page(
    rig: RigFactory, turns: int
) -> None:
    """However long the run: a turn is some 20 events and a few kilobytes."""
    async with rig(pages(turns, 2_000), tools=[page], limits=PATIENT, provider=OPEN) as r:
        name = f"behind-{turns}"
        result = await long_run(r, name)
        one = await read(r, name, result.transcript, 3)
        assert one["pages"] == 1
        assert one["events"] < 60
        assert one["bytes"] < 60_000
        five = await read(r, name, result.transcript, 15)
        assert five["pages"] == 2
        everything = await read(r, name, result.transcript, None)
        assert everything["events"] > 15 * turns
        assert everything["bytes"] > 6_000 * turns


async def test_what_was_sealed_is_read_only_where_the_worker_lacks_it(rig: RigFactory) -> None:
    """A worker that has the view of when the run continued as new reads no segment; one without
    any reads each segment once, and no history but the last execution's."""
    async with rig(
        pages(40, 2_000), tools=[page], limits=PATIENT, history=TWICE, provider=OPEN
    ) as r:
        result = await long_run(r, "sealed")
        executions = await r.executions("sealed")
        assert len(executions) >= 3
        _, state = (await r.carried("sealed"))[-1]
        since = result.transcript.entries - state.base.entries
        assert (await read(r, "sealed", result.transcript, since))["segments"] == 0
        cold = await read(r, "sealed", result.transcript, None)
        assert cold["segments"] == len(executions) - 1
        assert cold["events"] <= len(executions[-1])


# --- the transcript for a reader who knows a part of it -----------------------------------------


async def places(r: Rig, run: str) -> list[Place]:
    """Where each generation of a run began to read, in the order of time: one call a turn."""
    entries = (await r.transcript(run)).entries
    found: list[Place] = []
    for event in [e for events in await r.executions(run) for e in events]:
        scheduled = event.activity_task_scheduled_event_attributes
        if scheduled.activity_type.name == GENERATE:
            decode = r.client.data_converter.decode
            (asked,) = await decode(scheduled.input.payloads, [GenerateInput])
            said = Position().after(entries[: 2 * asked.turn - 1])
            found.append(Place(said=said, view=asked.base.after(asked.new)))
    return found


async def rest(r: Rig, run: str, known: Place) -> tuple[Transcript, Counter[str]]:
    """What a reader gets who knows a place, and what it takes."""
    assert isinstance(r.store, FolderStore)
    counted: Any = Counted(r.client, r.store)
    store: ArtifactStore = counted
    told = await HistoryReader(counted, store, run).transcript(known)
    read: Counter[str] = counted.read
    return told, read


async def test_a_reader_gets_what_follows_the_place_it_knows(rig: RigFactory) -> None:
    """Wherever that is: in this execution or one before, in this epoch or one before; what was
    sealed is read back to there, and history no further than it."""
    async with rig(
        test_context.reading(40),
        tools=[test_context.page],
        limits=PATIENT,
        history=HistoryPolicy(events=120),
        provider={"window": test_context.WINDOW},
    ) as r:
        result = await r.run(id="known")
        assert result.epochs >= 3
        assert len(await r.executions()) >= 3
        whole = await r.transcript()
        everything = (await rest(r, "known", Place()))[1]
        assert everything["segments"] >= 3
        known = await places(r, "known")
        assert len(known) == 41
        segments = []
        for place in known:
            told, read = await rest(r, "known", place)
            assert told.since == place.said
            assert told.entries == whole.entries[place.said.entries :]
            assert told.view == whole.view
            segments.append(read["segments"])
        assert segments == sorted(segments, reverse=True)
        assert (segments[0], segments[-1]) == (everything["segments"], 0)
        assert (await rest(r, "known", known[-1]))[1]["pages"] == 1


async def test_a_place_of_another_run_is_none_of_this_one(rig: RigFactory) -> None:
    """As after a reset: all that was said is read."""
    async with rig(
        pages(40, 2_000), tools=[page], limits=PATIENT, history=TWICE, provider=OPEN
    ) as r:
        await long_run(r, "reset")
        whole = await r.transcript("reset")
        for entries in (3, 60, 1_000):
            elsewhere = Position(digest="0" * 32, entries=entries)
            told, _ = await rest(r, "reset", Place(said=elsewhere, view=elsewhere))
            assert told.since == Position()
            assert told.entries == whole.entries
