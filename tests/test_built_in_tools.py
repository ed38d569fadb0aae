"""The tools that agents have besides their own, in whole runs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from activities import built_in, memory
from activities.memory import Memory
from tests.rig import RigFactory
from turnkeeper import Agent, Limits, tool
from turnkeeper.artifacts import FolderStore
from turnkeeper.entries import Entry
from turnkeeper.errors import DefinitionError
from turnkeeper.history import _Graph, read_transcript
from turnkeeper.spec import BUILT_IN, NOTES, AgentSpec, HistoryPolicy
from turnkeeper.testing import Exchange, Reply, call, calls, text

NEEDLE = "heliotrope-4711"
TABLE = "id,city\n" + "".join(f"{n},city number {n}\n" for n in range(1, 20_001))


@tool(effect="read")
def export() -> str:
    """A large table."""
    return TABLE


@tool(effect="read")
def look_up(q: str) -> str:
    """Look something up."""
    return f"about {q}: " + "x" * 2_000


def spec(**agent: Any) -> AgentSpec:
    """As a run is pinned to."""
    made = Agent(name="tester", model="m", instructions="i", **agent)
    return built_in.extended(made.spec())


def names(pinned: AgentSpec) -> list[str]:
    """Of its tools."""
    return [t.name for t in pinned.tools]


def test_built_in_tools_are_given_to_agents_with_tools() -> None:
    """The scratchpad to those that want it; an agent that only talks has none of them."""
    assert names(spec()) == []
    assert names(spec(tools=[look_up])) == ["look_up", *BUILT_IN]
    assert names(spec(tools=[look_up], notes=True)) == ["look_up", *BUILT_IN, *NOTES]
    assert names(spec(notes=True)) == [*BUILT_IN, *NOTES]


def test_built_in_tools_read_and_are_short() -> None:
    """They change nothing, so any may be repeated; what they are costs tokens in every request."""
    pinned = spec(tools=[look_up], notes=True)
    own = [t for t in pinned.tools if t.name != "look_up"]
    assert {t.effect for t in own} == {"read"}
    assert all(t.description for t in own)
    shown = [{"name": t.name, "description": t.description, "schema": t.input_schema} for t in own]
    assert len(json.dumps(shown[:3])) < 2_000
    assert len(json.dumps(shown)) < 2_700


@pytest.mark.parametrize("name", [*BUILT_IN, *NOTES])
def test_their_names_are_reserved(name: str) -> None:
    """Where an agent has them, one of its own of that name is refused, saying what to do."""
    own = tool(effect="read", name=name)(look_up.function)
    with pytest.raises(DefinitionError, match=f"'{name}' is the name of a built-in tool; rename"):
        Agent(name="tester", model="m", instructions="i", tools=[own], notes=True)
    if name in NOTES:
        assert names(spec(tools=[own])) == [name, *BUILT_IN]


async def test_a_large_table_is_searched_and_read(rig: RigFactory) -> None:
    """Rows of a result that was too large to show, with their header."""
    found: list[str] = []

    def script(x: Exchange) -> Reply:
        if x.turn == 0:
            return call("export")
        found.append(x.last_results[0].text)
        artifact = found[0].partition("artifact ")[2].partition(":")[0]
        asked = [
            call("search_artifact", {"artifact": artifact, "query": "number 17123"}),
            call("read_artifact", {"artifact": artifact, "row": 17_123, "count": 2}),
            call("read_artifact", {"artifact": artifact, "offset": 0, "length": 7}),
            text("Done."),
        ]
        return asked[x.turn - 1]

    async with rig(script, tools=[export]) as r:
        assert (await r.run()).outcome == "completed"
        assert await r.task_failures() == 0
    _, searched, rows, first = found
    assert "line 17124, byte" in searched
    assert rows.partition("\n")[2] == "id,city\n17123,city number 17123\n17124,city number 17124\n"
    assert first.partition("\n")[2] == "id,city"


async def test_what_was_said_long_ago_is_recalled(
    rig: RigFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over continue-as-new, as often as it is asked for: what was said before was indexed once."""
    grown: list[int] = []
    take = Memory._take

    def taking(self: Memory, entries: Sequence[Entry]) -> None:
        grown.append(len(entries))
        take(self, entries)

    monkeypatch.setattr(Memory, "_take", taking)
    found: list[str] = []

    def script(x: Exchange) -> Reply:
        if x.turn in (21, 24):
            return calls([("recall", {"query": "heliotrope"}), ("recall", {"entry": 1})])
        if x.turn in (22, 25):
            found.extend(result.text for result in x.last_results)
        return text("Done.") if x.turn == 26 else call("look_up", {"q": f"page {x.turn}"})

    often = HistoryPolicy(events=50, bytes=20_000)
    async with rig(script, tools=[look_up], limits=Limits(turns=50), history=often) as r:
        result = await r.run(f"The code is {NEEDLE}.")
        assert result.outcome == "completed"
        assert len(await r.executions()) >= 3
        assert await r.task_failures() == 0
        said = len((await r.transcript()).entries)
    for matches, whole in (found[:2], found[2:]):
        assert matches.split("\n")[1:] == [f"entry 1, message: The code is {NEEDLE}."]
        assert whole.endswith(f"\nThe code is {NEEDLE}.")
    assert sum(grown) < said
    assert len(grown) == 2


@pytest.mark.long
async def test_recalling_turn_after_turn_reads_what_is_new(
    rig: RigFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first time everything; then some events, and at most the segment that was sealed last,
    however long the run is by then."""
    read: list[Counter[str]] = []
    reading, take, get = read_transcript, _Graph.take, FolderStore.get

    async def counting(*args: Any) -> Any:
        read.append(Counter())
        return await reading(*args)

    async def taking(self: _Graph, event: Any) -> Any:
        read[-1]["events"] += 1
        return await take(self, event)

    async def getting(self: FolderStore, owner: str, artifact: str) -> bytes:
        read[-1]["segments"] += 1
        return await get(self, owner, artifact)

    def script(x: Exchange) -> Reply:
        if x.turn == 60:
            return text("Done.")
        asked = ("recall", {"entry": 1}) if x.turn >= 40 else ("look_up", {"q": f"{x.turn}"})
        return call(*asked)

    limits, often = Limits(turns=100, repetition=100), HistoryPolicy(events=150)
    async with rig(script, tools=[look_up], limits=limits, history=often) as r:
        with monkeypatch.context() as counted:
            counted.setattr(memory, "read_transcript", counting)
            counted.setattr(_Graph, "take", taking)
            counted.setattr(FolderStore, "get", getting)
            result = await r.run("The first.")
        assert (result.outcome, result.calls) == ("completed", 60)
        told = [e.value["text"] for e in (await r.transcript()).entries if e.kind == "result"]
        switches = len(await r.executions()) - 1
    assert all(t.endswith("\nThe first.") for t in told[40:])
    assert switches >= 3
    first, *later = read
    assert len(later) == 19
    assert first["segments"] >= 2
    assert max(r["events"] for r in later) < 30
    assert max(r["segments"] for r in later) <= 1


async def test_notes_are_kept_in_the_transcript_alone(rig: RigFactory) -> None:
    """Written, replaced and read over continue-as-new; no other store is written for them."""

    def script(x: Exchange) -> Reply:
        if x.turn == 0:
            return calls(
                [("note", {"title": "plan", "text": "one"}), ("note", {"title": "", "text": "bad"})]
            )
        if x.turn == 1:
            return call("note", {"title": "plan", "text": "two"})
        if x.turn == 20:
            return call("read_notes")
        return text(x.last_results[0].text) if x.turn == 21 else call("look_up", {"q": "a"})

    often = HistoryPolicy(events=50, bytes=20_000)
    limits = Limits(turns=50, repetition=50)
    async with rig(script, tools=[look_up], notes=True, limits=limits, history=often) as r:
        result = await r.run()
        assert (result.outcome, result.answer) == ("completed", "# plan\ntwo")
        assert len(await r.executions()) >= 2
