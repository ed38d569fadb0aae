"""Failures that people met in public: results that are too large, cut, or no JSON.

The ids are those of the collected reports.
"""

from __future__ import annotations

import base64
import json
import random
import re
import time
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from tests.rig import Rig, RigFactory
from turnkeeper import Limits, tool
from turnkeeper.testing import Exchange, Reply, call, calls, text

RAW = random.Random(1).randbytes(2_300_000)
"""Over the server's 2 MiB for a payload, and as base64 all the more."""


def payloads(message: Any) -> Iterator[Payload]:
    """All that an event of a history carries, however deep."""
    if isinstance(message, Payload):
        yield message
    elif hasattr(message, "ListFields"):
        for _, value in message.ListFields():
            yield from payloads(value)
    elif hasattr(message, "values"):
        for value in message.values():
            yield from payloads(value)
    elif isinstance(message, (list, tuple)) or type(message).__name__.startswith("Repeated"):
        for value in message:
            yield from payloads(value)


def refuse_constant(name: str) -> Any:
    """NaN and Infinity are no JSON, though Python reads them."""
    raise AssertionError(f"{name} on the wire")


async def assert_strict(r: Rig) -> None:
    """Everything that a run recorded is UTF-8 and JSON in the narrow sense."""
    found = 0
    for event in await r.events():
        for payload in payloads(event):
            json.loads(payload.data.decode("utf-8", "strict"), parse_constant=refuse_constant)
            found += 1
    assert found > 5


def attempts_of(events: list[Any], tool_name: str) -> int:
    """How often a tool was begun, by a run's history."""
    scheduled = {
        e.event_id
        for e in events
        if e.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
        and e.activity_task_scheduled_event_attributes.activity_type.name == tool_name
    }
    return sum(
        e.activity_task_started_event_attributes.attempt
        for e in events
        if e.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED
        and e.activity_task_started_event_attributes.scheduled_event_id in scheduled
    )


# --- payload size ---------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["bytes", "base64"])
async def test_b01_a_result_over_the_payload_limit_is_begun_once(
    rig: RigFactory, form: str
) -> None:
    """Stored outside of history: the model reads which tool and how much, and the run goes on.
    What is stored is all of it."""
    value: Any = RAW if form == "bytes" else base64.b64encode(RAW).decode()

    @tool(effect="read")
    async def snapshot() -> Any:
        """A disk image."""
        return value

    async with rig([call("snapshot"), text("Seen.")], tools=[snapshot]) as r:
        result = await r.run(timeout=60)
        assert (result.outcome, result.answer) == ("completed", "Seen.")
        events = await r.events()
        assert attempts_of(events, "snapshot") == 1
        assert max(e.ByteSize() for e in events) < 100_000
        (told,) = [e.value for e in (await r.transcript()).entries if e.kind == "result"]
        assert told["tool"] == "snapshot"
        assert str(len(value)) in told["text"].replace(",", "")
        artifact = re.findall(r"artifact ([0-9a-f]{64})", told["text"])[0]
        stored = await r.store.get(r.ids[-1], artifact)
        wanted = value if isinstance(value, bytes) else value.encode()
        assert sha256(stored).digest() == sha256(wanted).digest()
        assert await r.task_failures() == 0


async def test_b04_large_nested_results_do_not_hold_up_the_workflow(
    rig: RigFactory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Five runs with 3 MB of nested JSON each, three times: a step of the workflow takes less than
    200 ms of its thread's time in 99 of 100 cases, and the deadlock detector says nothing."""
    table = [{f"field_{k}": {"v": f"{n}-{k}-" + "x" * 50} for k in range(40)} for n in range(1_000)]
    assert len(json.dumps(table)) > 3_000_000
    took: list[float] = []
    create = SandboxedWorkflowRunner.create_instance

    def timed(self: SandboxedWorkflowRunner, det: Any) -> Any:
        instance = create(self, det)
        activate = instance.activate

        def measured(activation: Any) -> Any:
            began = time.thread_time()
            done = activate(activation)
            took.append(time.thread_time() - began)
            return done

        monkeypatch.setattr(instance, "activate", measured, raising=True)
        return instance

    monkeypatch.setattr(SandboxedWorkflowRunner, "create_instance", timed)

    @tool(effect="read")
    async def export() -> Any:
        """A table."""
        return table

    script = [call("export")] * 3 + [text("Done.")]
    async with rig(script, tools=[export], limits=Limits(repetition=9)) as r:
        runs = [await r.start() for _ in range(5)]
        results = [await run.result(timeout=90) for run in runs]
        assert {result.outcome for result in results} == {"completed"}
        for run in runs:
            told = [e.value for e in (await r.transcript(run.id)).entries if e.kind == "result"]
            assert len(told) == 3
            assert all("too many to show" in t["text"] for t in told)
            assert all(len(t["text"]) < 25_000 for t in told)
        assert await r.task_failures() == 0
    assert len(took) >= 5 * 8
    assert sorted(took)[int(len(took) * 0.99) - 1] < 0.2
    assert "TMPRL1101" not in caplog.text


# --- unicode, surrogates, NaN ---------------------------------------------------------------------


EMOJI = "".join(
    chr(unit)
    for character in "😀👩‍👩‍👧é"
    for unit in memoryview(character.encode("utf-16-le")).cast("H")
)
"""As JSON and other languages have it: halves of characters, which can be cut apart."""


async def test_b72_text_that_was_cut_inside_of_a_character_poisons_nothing(
    rig: RigFactory,
) -> None:
    """Cut at every offset, it is made well-formed on entry: each later request is accepted, and
    what is recorded is UTF-8."""

    @tool(effect="read")
    async def output(cut: int) -> Any:
        """Output that somebody has cut."""
        return EMOJI[:cut] if cut % 2 else {"stdout": EMOJI[cut:], EMOJI[:cut]: 1}

    cuts = [("output", {"cut": n}) for n in range(len(EMOJI) + 1)]
    async with rig([calls(cuts), text("One."), text("Two.")], tools=[output]) as r:
        result = await r.run()
        assert (result.outcome, result.answer) == ("completed", "One.")
        told = [e.value["text"] for e in (await r.transcript()).entries if e.kind == "result"]
        assert len(told) == len(cuts)
        assert all(t.encode("utf-8", "strict") for t in told)
        assert not any("cannot be shown" in t for t in told)
        assert not r.provider.rejections
        await assert_strict(r)


@pytest.mark.parametrize("more", range(4))
async def test_b72_our_own_cuts_are_between_characters(rig: RigFactory, more: int) -> None:
    """Where a long result is shortened, and where parts of it are read: no character is halved,
    and the parts together are the text."""
    whole = "a" * more + "😀" * 20_000

    def script(x: Exchange) -> Reply:
        if x.turn == 0:
            return call("output")
        if x.turn == 1:
            artifact = re.findall(r"artifact ([0-9a-f]{64})", x.last_results[0].text)[0]
            parts = [(n, {"artifact": artifact, "offset": n, "length": 997}) for n in range(8)]
            return calls([("read_artifact", asked) for _, asked in parts])
        return text("Done.")

    @tool(effect="read")
    async def output() -> str:
        """A lot of emoji."""
        return whole

    async with rig(script, tools=[output]) as r:
        assert (await r.run()).outcome == "completed"
        told = [e.value["text"] for e in (await r.transcript()).entries if e.kind == "result"]
        assert len(told) == 9
        assert all("\ufffd" not in t for t in told)
        for part in told[1:]:
            start, end = map(int, re.findall(r"\d+", part)[:2])
            assert part.partition("\n")[2] == whole.encode()[start:end].decode()
        await assert_strict(r)


NUMBERS: list[Any] = [
    float("nan"),
    float("inf"),
    float("-inf"),
    1e400,
    {"a": [float("nan"), {"b": float("inf")}]},
    {float("nan"): 1, float("inf"): 2, float("-inf"): 3},
]


async def test_b74_numbers_that_json_has_not_are_shown_by_name(rig: RigFactory) -> None:
    """As strings, wherever they stand, also as keys: never null, and never on the wire."""

    @tool(effect="read")
    async def measure(which: int) -> Any:
        """A measurement."""
        return NUMBERS[which]

    asked = [("measure", {"which": n}) for n in range(len(NUMBERS))]
    async with rig([calls(asked), text("Done.")], tools=[measure]) as r:
        assert (await r.run()).outcome == "completed"
        told = [e.value for e in (await r.transcript()).entries if e.kind == "result"]
        assert not any(t.get("error") for t in told)
        shown = [json.loads(t["text"], parse_constant=refuse_constant) for t in told]
        assert shown == [
            "NaN",
            "Infinity",
            "-Infinity",
            "Infinity",
            {"a": ["NaN", {"b": "Infinity"}]},
            {"nan": 1, "inf": 2, "-inf": 3},
        ]
        await assert_strict(r)
