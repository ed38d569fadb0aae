"""Malformed starts, messages and queries, sent as a careless client in any language might.

Nothing here passes through the product's own client: raw payloads go to the server, and whatever
they hold, the run ends by name or goes on, and no workflow task fails.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.client import (
    Client,
    WithStartWorkflowOperation,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
)
from temporalio.common import RawValue, RetryPolicy, WorkflowIDConflictPolicy
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from tests.rig import AGENT, Rig, RigFactory, open_rig, until
from turnkeeper import tool
from turnkeeper.contract import RESOLVE, STATUS, STOP, WORKFLOW
from turnkeeper.testing import Exchange, Reply, call, text


def raw(data: bytes | str, encoding: bytes | None = b"json/plain", **metadata: bytes) -> RawValue:
    """A payload by hand; `encoding=None` leaves the encoding out."""
    named = {} if encoding is None else {"encoding": encoding}
    body = data if isinstance(data, bytes) else data.encode()
    return RawValue(Payload(metadata={**named, **metadata}, data=body))


def start(**fields: Any) -> RawValue:
    """A good start with some fields replaced; Ellipsis takes one out."""
    body = {"agent": AGENT, "prompt": "question", **fields}
    return raw(json.dumps({k: v for k, v in body.items() if v is not ...}))


def deep(levels: int) -> str:
    """A list in a list in a list."""
    return "[" * levels + "]" * levels


GOOD = start()
# What is sent, the outcome, and what its reason must name.
STARTS: dict[str, tuple[list[RawValue], str, str]] = {
    "no payload": ([], "invalid_request", "0 arguments"),
    "two payloads": ([GOOD, GOOD], "invalid_request", "2 arguments"),
    "five payloads": ([GOOD] * 5, "invalid_request", "5 arguments"),
    "binary/null": ([raw(b"", b"binary/null")], "invalid_request", "binary/null"),
    "binary/plain": ([raw(b"\x00\xff", b"binary/plain")], "invalid_request", "binary/plain"),
    "json/protobuf": ([raw("{}", b"json/protobuf")], "invalid_request", "json/protobuf"),
    "json/protobuf of a known message": (
        [raw("{}", b"json/protobuf", messageType=b"temporal.api.common.v1.Payload")],
        "invalid_request",
        "json/protobuf",
    ),
    "binary/protobuf": ([raw(b"\x08\x01", b"binary/protobuf")], "invalid_request", "protobuf"),
    "an unknown encoding": ([raw("{}", b"cbor/odd")], "invalid_request", "cbor/odd"),
    "an encoding of 100 kB": ([raw("{}", b"x" * 100_000)], "invalid_request", "json/plain"),
    "an encoding that is no text": ([raw("{}", b"\xff\x00\x1b[31m")], "invalid_request", "json"),
    "no encoding": ([raw("{}", None)], "invalid_request", "json/plain"),
    "no data": ([raw("")], "invalid_request", "not JSON"),
    "invalid JSON": ([raw('{"agent": ')], "invalid_request", "not JSON"),
    "JSON and more": ([raw('{"agent": "a"} x')], "invalid_request", "not JSON"),
    "invalid UTF-8": ([raw(b'{"agent": "\xff\xfe"}')], "invalid_request", "not JSON"),
    "UTF-16": ([raw('{"agent": 1}'.encode("utf-16"))], "invalid_request", ""),
    "null": ([raw("null")], "invalid_request", "RunRequest"),
    "a list": ([raw("[]")], "invalid_request", "RunRequest"),
    "a string": ([raw('"finance"')], "invalid_request", "RunRequest"),
    "a number": ([raw("7")], "invalid_request", "RunRequest"),
    "true": ([raw("true")], "invalid_request", "RunRequest"),
    "an empty object": ([raw("{}")], "invalid_request", "agent"),
    "no prompt": ([start(prompt=...)], "invalid_request", "prompt"),
    "no agent": ([start(agent=...)], "invalid_request", "agent"),
    "a misspelt field": ([start(promt="x")], "invalid_request", "promt"),
    "an extra field": ([start(model="claude")], "invalid_request", "model"),
    "a prompt that is a number": ([start(prompt=7)], "invalid_request", "prompt"),
    "a prompt that is null": ([start(prompt=None)], "invalid_request", "prompt"),
    "a prompt that is an object": ([start(prompt={"text": "x"})], "invalid_request", "prompt"),
    "an agent that is a list": ([start(agent=["a"])], "invalid_request", "agent"),
    "an empty agent": ([start(agent="")], "invalid_request", "agent"),
    "an agent of 65 characters": ([start(agent="a" * 65)], "invalid_request", "agent"),
    "an empty prompt": ([start(prompt="")], "invalid_request", "prompt"),
    "a blank prompt": ([start(prompt=" \t\n\u2003")], "invalid_request", "prompt"),
    "a prompt of 200,001 characters": ([start(prompt="x" * 200_001)], "invalid_request", "prompt"),
    "a prompt of control characters that swell as JSON": (
        [start(prompt="\x01" * 190_000)],
        "invalid_request",
        "prompt",
    ),
    "a prompt of 1.9 MB": ([start(prompt="x" * 1_900_000)], "invalid_request", "prompt"),
    "a lone surrogate in the prompt": (
        [raw('{"agent": "tester", "prompt": "a\\ud800b"}')],
        "invalid_request",
        "$.prompt",
    ),
    "a lone surrogate in a name": (
        [raw('{"agent": "tester", "prompt": "a", "x\\udfff": 1}')],
        "invalid_request",
        "surrogate",
    ),
    "a surrogate as raw bytes": (
        [raw(b'{"agent": "tester", "prompt": "\xed\xa0\x80"}')],
        "invalid_request",
        "",
    ),
    "NaN": ([raw('{"agent": "tester", "prompt": NaN}')], "invalid_request", "NaN"),
    "Infinity": ([raw('{"agent": "t", "prompt": -Infinity}')], "invalid_request", "Infinity"),
    "1e400": (
        [raw('{"agent": "tester", "prompt": "a", "limits": {"wall_seconds": 1e400}}')],
        "invalid_request",
        "wall_seconds",
    ),
    "5,000 levels": (
        [raw(f'{{"agent": "t", "prompt": "a", "limits": {deep(5_000)}}}')],
        "invalid_request",
        "nested",
    ),
    "100,000 levels": ([raw(deep(100_000))], "invalid_request", "nested"),
    "65 levels": (
        [raw(f'{{"agent": "t", "prompt": "a", "metadata": {deep(65)}}}')],
        "invalid_request",
        "nested",
    ),
    "an integer of 5,000 digits": (
        [raw('{"agent": "t", "prompt": "a", "limits": {"turns": %s}}' % ("9" * 5_000))],
        "invalid_request",
        "digits",
    ),
    "an integer of 4,200 digits": (
        [raw('{"agent": "t", "prompt": "a", "limits": {"turns": %s}}' % ("9" * 4_200))],
        "invalid_request",
        "turns",
    ),
    "the same key twice": (
        [raw('{"agent": "tester", "prompt": "a", "prompt": "b"}')],
        "invalid_request",
        "same key twice",
    ),
    "an unknown limit": ([start(limits={"turn": 8})], "invalid_request", "turn is not a limit"),
    "a limit that is not built yet": (
        [start(limits={"cost_usd_per_day": 1})],
        "invalid_request",
        "cost",
    ),
    "no turns": ([start(limits={"turns": 0})], "invalid_request", "turns"),
    "too many turns": ([start(limits={"turns": 10**9})], "invalid_request", "turns"),
    "turns of the wrong type": ([start(limits={"turns": [8]})], "invalid_request", "turns"),
    "turns that are text": ([start(limits={"turns": "many"})], "invalid_request", "turns"),
    "half a turn": ([start(limits={"turns": 1.5})], "invalid_request", "turns"),
    "a negative time": ([start(limits={"wall_seconds": -1})], "invalid_request", "wall_seconds"),
    "a time of a thousand years": (
        [start(limits={"wall_seconds": 3.2e10})],
        "invalid_request",
        "wall_seconds",
    ),
    "a null limit": ([start(limits={"turns": None})], "invalid_request", "turns"),
    "an unknown way to end": ([start(limits={"on_limit": "beg"})], "invalid_request", "on_limit"),
    "limits at odds with each other": (
        [start(limits={"recent_errors": 9, "recent_calls": 3})],
        "invalid_request",
        "recent_errors",
    ),
    "limits at odds with the agent's own": (
        [start(limits={"recent_errors": 99})],
        "invalid_request",
        "recent_errors",
    ),
    "limits that are a list": ([start(limits=["turns"])], "invalid_request", "limits"),
    "an empty request key": ([start(request_key="")], "invalid_request", "request_key"),
    "a long request key": ([start(request_key="k" * 201)], "invalid_request", "request_key"),
    "metadata of 200 kB": ([start(metadata={"k": "x" * 200_000})], "invalid_request", "metadata"),
    "33 fields of metadata": (
        [start(metadata={f"k{n}": "" for n in range(33)})],
        "invalid_request",
        "metadata",
    ),
    "a number as metadata": ([start(metadata={"tenant": 7})], "invalid_request", "metadata.tenant"),
    "nested metadata": ([start(metadata={"a": {"b": "c"}})], "invalid_request", "metadata.a"),
    "a forged state": (
        [start(phase="EXECUTE", version=1, key_base="k", started=0.0)],
        "invalid_request",
        "phase",
    ),
    "a forged state alone": (
        [raw('{"version": 1, "phase": "RESUME", "request": {"agent": "a"}}')],
        "invalid_request",
        "phase",
    ),
    "an unknown agent": ([start(agent="nobody")], "unknown_agent", "nobody"),
    "an agent's name in another case": ([start(agent="Tester")], "unknown_agent", "Tester"),
    "a look-alike of an agent's name": ([start(agent="t\u0435ster")], "unknown_agent", "ster"),
    "control characters in an agent's name": (
        [start(agent="a\x00\x1b[31m\r\n")],
        "unknown_agent",
        "\\x1b",
    ),
    "a path as an agent": ([start(agent="../../etc/passwd")], "unknown_agent", "passwd"),
    "a builtin as an agent": ([start(agent="__class__")], "unknown_agent", "__class__"),
}

# Bodies of `stop`; the reason a refusal must name. None: decoded by nobody, refused by the SDK.
BODIES: dict[str, tuple[list[RawValue], str | None]] = {
    "two objects": ([raw("{}"), raw("{}")], "2 arguments"),
    "five objects": ([raw("{}")] * 5, "5 arguments"),
    "two nulls": ([raw(b"", b"binary/null")] * 2, "2 arguments"),
    "bytes": ([raw(b"\x00\xff", b"binary/plain")], "bytes"),
    "json/protobuf without a type": ([raw("{}", b"json/protobuf")], None),
    "json/protobuf of an unknown type": ([raw("{}", b"json/protobuf", messageType=b"a.B")], None),
    "json/protobuf of a known type": (
        [raw("{}", b"json/protobuf", messageType=b"temporal.api.common.v1.Payload")],
        "Payload",
    ),
    "an unknown encoding": ([raw("{}", b"cbor/odd")], None),
    "no encoding": ([raw("{}", None)], None),
    "an encoding that is no text": ([raw("{}", b"\xff\xfe")], None),
    "no data": ([raw("")], None),
    "invalid JSON": ([raw('{"reason": ')], None),
    "invalid UTF-8": ([raw(b'{"reason": "\xff"}')], None),
    "a list": ([raw("[]")], "StopRequest"),
    "a string": ([raw('"now"')], "StopRequest"),
    "a number": ([raw("7")], "StopRequest"),
    "false": ([raw("false")], "StopRequest"),
    "an extra field": ([raw('{"force": true}')], "force"),
    "a misspelt field": ([raw('{"reasn": "x"}')], "reasn"),
    "a reason that is a number": ([raw('{"reason": 7}')], "reason"),
    "a reason that is null": ([raw('{"reason": null}')], "reason"),
    "a reason of 2,001 characters": ([raw(json.dumps({"reason": "x" * 2_001}))], "reason"),
    "an actor that is a list": ([raw('{"actor": ["me"]}')], "actor"),
    "an actor of 201 characters": ([raw(json.dumps({"actor": "x" * 201}))], "actor"),
    "a lone surrogate": ([raw('{"reason": "a\\ud800"}')], None),
    "NaN": ([raw('{"reason": NaN}')], None),
    "1e400": ([raw('{"reason": 1e400}')], None),
    "5,000 levels": ([raw(deep(5_000))], None),
    "100 levels": ([raw(deep(100))], "nested"),
    "an integer of 5,000 digits": ([raw('{"reason": %s}' % ("9" * 5_000))], None),
    "a body of 1.5 MB": ([raw(json.dumps({"reason": "x" * 1_500_000}))], "reason"),
}


def said(**fields: Any) -> list[RawValue]:
    """A good resolution with some fields replaced; Ellipsis takes one out."""
    body = {"call_id": "c1", "landed": True, **fields}
    return [raw(json.dumps({k: v for k, v in body.items() if v is not ...}))]


# Bodies of `resolve`, for a run in which call c1 waits; as above.
RESOLUTIONS: dict[str, tuple[list[RawValue], str | None]] = {
    "no argument": ([], "0 arguments"),
    "null": ([raw(b"", b"binary/null")], "ResolveRequest"),
    "two good bodies": (said() * 2, "2 arguments"),
    "five nulls": ([raw(b"", b"binary/null")] * 5, "5 arguments"),
    **{
        name: (args, "ResolveRequest" if named == "StopRequest" else named)
        for name, (args, named) in BODIES.items()
        if name in ("bytes", "a list", "a string", "a number", "false", "100 levels")
        or (named is None and "reason" not in str(args))
    },
    "an empty object": ([raw("{}")], "call_id"),
    "no call": (said(call_id=...), "call_id"),
    "no verdict": (said(landed=...), "landed"),
    "another call": (said(call_id="c2"), "waiting: c1"),
    "the call in another case": (said(call_id="C1"), "waiting: c1"),
    "a look-alike of the call": (said(call_id="\u04411"), "waiting: c1"),
    "the call with a space": (said(call_id="c1 "), "waiting: c1"),
    "control characters in the call": (said(call_id="c1\x00\x1b[31m\r\n"), "waiting: c1"),
    "an empty call": (said(call_id=""), "call_id"),
    "a call of 301 characters": (said(call_id="c" * 301), "call_id"),
    "a call that is a number": (said(call_id=1), "call_id"),
    "a call that is a list": (said(call_id=["c1"]), "call_id"),
    "a verdict that is null": (said(landed=None), "landed"),
    "a verdict that is a word": (said(landed="perhaps"), "landed"),
    "a verdict that is an object": (said(landed={"yes": True}), "landed"),
    "a verdict in a word": (said(landed="no"), "landed"),
    "a verdict that is a number": (said(landed=1), "landed"),
    "half a verdict": (said(landed=0.5), "landed"),
    "a result that is an object": (said(result={"receipt": 7}), "result"),
    "a result that is null": (said(result=None), "result"),
    "a result of 20,001 characters": (said(result="x" * 20_001), "result"),
    "a result of 1.5 MB": (said(result="x" * 1_500_000), "result"),
    "an actor that is a list": (said(actor=["me"]), "actor"),
    "an actor of 201 characters": (said(actor="x" * 201), "actor"),
    "an extra field": (said(force=True), "force"),
    "a misspelt field": (said(landed=..., landd=True), "landed"),
    "a lone surrogate": ([raw('{"call_id": "c1", "landed": true, "result": "\\ud800"}')], None),
    "NaN": ([raw('{"call_id": "c1", "landed": NaN}')], None),
}
ENDING: dict[str, list[RawValue]] = {
    "no argument": [],
    "null": [raw(b"", b"binary/null")],
    "an empty object": [raw("{}")],
}
UNKNOWN_NAMES = ("Stop", "stop ", "approved", "", "__init__", "run", "x" * 900)


def test_there_are_enough_of_them() -> None:
    """At least fifty starts and fifty messages: a row that is lost is noticed."""
    assert len(STARTS) >= 50
    assert 2 * (len(BODIES) + len(UNKNOWN_NAMES) + len(ENDING)) >= 50
    assert len(RESOLUTIONS) >= 40


@pytest.fixture(scope="module")
async def served(
    client: Client, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Rig, asyncio.Event]]:
    """One worker for all of them, and the gate that its tool `hold` waits at."""
    gate = asyncio.Event()

    @tool(effect="read", timeout=60)
    async def hold() -> str:
        """Wait."""
        await gate.wait()
        return "released"

    def script(exchange: Exchange) -> Reply:
        if exchange.turn == 0 and exchange.prompt == "hold":
            return call("hold")
        if exchange.turn == 0 and exchange.prompt == "doubt":
            return call("send", id="c1")
        return text("Done." if exchange.prompt != "doubt" else exchange.last_results[0].text)

    @tool
    async def send() -> str:
        """Send."""
        raise OSError("connection lost")

    folder, tools = tmp_path_factory.mktemp("rig"), [hold, send]
    async with open_rig(client, folder, script, tools=tools, on_unknown="wait") as rig:
        yield rig, gate
        assert await rig.task_failures() == 0
        assert not rig.provider.rejections


async def outcome_of(handle: WorkflowHandle[Any, Any]) -> tuple[str, str]:
    """Outcome and reason of a run that ends as Failed, or what it gives as Completed."""
    try:
        async with asyncio.timeout(30):
            result = await handle.result()
    except WorkflowFailureError as error:
        cause = error.cause
    else:
        return result["outcome"], result.get("reason", "")
    assert isinstance(cause, ApplicationError), cause
    assert cause.non_retryable
    return str(cause.type), cause.message


@pytest.mark.parametrize("name", STARTS)
async def test_a_malformed_start_ends_by_name(served: tuple[Rig, asyncio.Event], name: str) -> None:
    """It ends as `invalid_request` or `unknown_agent`, and the reason names what is wrong."""
    args, outcome, named = STARTS[name]
    rig, _ = served
    handle = await rig.start_raw(*args)
    found, reason = await outcome_of(handle)
    assert found == outcome
    assert named in reason
    assert len(reason) <= 1_000
    assert "\n" not in reason
    assert "\x1b" not in reason
    # What people have to look at it with.
    result = await rig.agents.result(handle.id, check=False, timeout=30)
    assert (result.outcome, result.reason) == (outcome, reason)
    assert (await rig.agents.status(handle.id)).outcome == outcome
    assert not (await rig.agents.transcript(handle.id)).tail


@pytest.mark.parametrize("name", ["agentrun", "AgentRun ", "Other", "x" * 900, "run.generate"])
async def test_an_unknown_workflow_type_is_refused(
    served: tuple[Rig, asyncio.Event], name: str
) -> None:
    """A type misspelt on our queue ends by name instead of waiting for a worker that has it."""
    rig, _ = served
    handle = await rig.start_raw(GOOD, workflow=name)
    outcome, reason = await outcome_of(handle)
    assert outcome == "invalid_request"
    assert WORKFLOW in reason


async def test_a_retry_policy_is_refused(served: tuple[Rig, asyncio.Event]) -> None:
    """Temporal would run it again as a whole, and repeat its effects."""
    rig, _ = served
    handle = await rig.start_raw(GOOD, retry_policy=RetryPolicy(maximum_attempts=3))
    outcome, reason = await outcome_of(handle)
    assert outcome == "invalid_request"
    assert "retry policy" in reason
    started = (await rig.events())[0].workflow_execution_started_event_attributes
    assert started.attempt == 1


async def test_a_cron_schedule_is_refused(served: tuple[Rig, asyncio.Event]) -> None:
    """So is a schedule: each of its executions would take itself for a continued run."""
    rig, _ = served
    handle = await rig.start_raw(GOOD, cron_schedule="@every 1s")
    runs = [str(handle.first_execution_run_id)]

    async def second_failure() -> Any:
        execution = rig.client.get_workflow_handle(handle.id, run_id=runs[-1])
        last = [e async for e in execution.fetch_history_events()][-1]
        if last.event_type != EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED:
            return None
        failed = last.workflow_execution_failed_event_attributes
        runs.append(failed.new_execution_run_id)
        return failed.failure if len(runs) > 2 else None

    try:
        failure = await until(second_failure, timeout=30)
    finally:
        await handle.terminate("the test is over")
    assert failure.application_failure_info.type == "invalid_request"
    assert "cron schedule" in failure.message


async def test_malformed_messages_leave_a_run_alone(
    served: tuple[Rig, asyncio.Event],
) -> None:
    """Updates are refused with a reason, signals dropped, and the run completes."""
    rig, gate = served
    gate.clear()
    handle = await rig.start_raw(start(prompt="hold"))
    problems: dict[str, str] = {}

    async def send(name: str, args: list[RawValue], named: str | None, update: str = STOP) -> None:
        try:
            await handle.execute_update(update, args=args)
            problems[name] = "accepted"
        except WorkflowUpdateFailedError as error:
            reason = str(error.cause)
            if not reason or (named is not None and named not in reason) or len(reason) > 2_000:
                problems[name] = reason[:500]
        await handle.signal(update, args=args)

    async with asyncio.timeout(60):
        for name, (args, named) in BODIES.items():
            await send(name, args, named)
        for name in UNKNOWN_NAMES:
            if name:  # the server itself refuses an empty one
                await send(name, [raw("{}")], "expected but not found", update=name)
                await send(name, [], "expected but not found", update=name)
    assert problems == {}
    gate.set()
    assert await outcome_of(handle) == ("completed", "")


async def test_malformed_resolutions_settle_nothing(served: tuple[Rig, asyncio.Event]) -> None:
    """Updates are refused with a reason, signals dropped, and the call waits for a good one."""
    rig, _ = served
    handle = await rig.start_raw(start(prompt="doubt"))

    async def unknown() -> list[str]:
        return [u["status"] for u in (await handle.query(STATUS))["unknown"]]

    await until(unknown)
    problems: dict[str, str] = {}
    async with asyncio.timeout(60):
        for name, (args, named) in RESOLUTIONS.items():
            try:
                await handle.execute_update(RESOLVE, args=args)
                problems[name] = "accepted"
            except WorkflowUpdateFailedError as error:
                reason = str(error.cause)
                if not reason or (named or "") not in reason or len(reason) > 2_000:
                    problems[name] = reason[:500]
            await handle.signal(RESOLVE, args=args)
    assert problems == {}
    assert await unknown() == ["waiting"]
    # The canary: it is for their own faults that the others settled nothing.
    await handle.execute_update(RESOLVE, args=said(result="receipt 7"))
    assert (await handle.result())["answer"] == "receipt 7"


@pytest.mark.parametrize("way", ["update", "signal"])
async def test_a_call_that_does_not_wait_yet_is_not_resolved(
    served: tuple[Rig, asyncio.Event], way: str
) -> None:
    """A good resolution that comes too early is refused, or dropped: it is not kept for later."""
    rig, gate = served
    gate.clear()
    handle = await rig.start_raw(start(prompt="hold"))
    await until(lambda: _calls(handle))
    if way == "signal":
        await handle.signal(RESOLVE, args=said())
    else:
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await handle.execute_update(RESOLVE, args=said())
        assert "waiting: none" in str(refused.value.cause)
    gate.set()
    assert await outcome_of(handle) == ("completed", "")


async def _calls(handle: WorkflowHandle[Any, Any]) -> Any:
    return (await handle.query(STATUS))["calls"]


@pytest.mark.parametrize("name", ENDING)
@pytest.mark.parametrize("way", ["update", "signal"])
async def test_a_stop_needs_no_argument(
    served: tuple[Rig, asyncio.Event], way: str, name: str
) -> None:
    """Both fields are optional, so nothing, null and {} are good, and the run is `stopped`."""
    rig, gate = served
    gate.clear()
    before = len(rig.provider.requests)
    handle = await rig.start_raw(start(prompt="hold"))
    # An update that ends the run while another event arrives is given back by the server, and its
    # caller sends it again; here the run stands still.
    await until(lambda: len(rig.provider.requests) > before)
    await (handle.execute_update if way == "update" else handle.signal)(STOP, args=ENDING[name])
    assert await outcome_of(handle) == ("stopped", "stopped: no reason given")


@pytest.mark.parametrize("name", ["a list", "two objects", "an unknown encoding", "5,000 levels"])
async def test_a_malformed_message_may_come_with_the_start(
    served: tuple[Rig, asyncio.Event], name: str
) -> None:
    """Before the run has begun, a bad signal is dropped as well and a bad update refused."""
    rig, _ = served
    args, named = BODIES[name]
    signalled = await rig.start_raw(GOOD, start_signal=STOP, start_signal_args=args)
    assert await outcome_of(signalled) == ("completed", "")
    started: WithStartWorkflowOperation[Any, Any] = WithStartWorkflowOperation(
        WORKFLOW,
        args=[GOOD],
        id=f"{signalled.id}-update",
        task_queue=rig.task_queue,
        id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
    )
    rig.ids.append(f"{signalled.id}-update")
    with pytest.raises(WorkflowUpdateFailedError) as refused:
        await rig.client.execute_update_with_start_workflow(
            STOP, args=args, start_workflow_operation=started
        )
    assert (named or "") in str(refused.value.cause)
    assert await outcome_of(await started.workflow_handle()) == ("completed", "")


async def test_messages_to_a_malformed_start_do_no_harm(
    served: tuple[Rig, asyncio.Event],
) -> None:
    """A start that was never a run has no state, and still answers what comes with it."""
    rig, _ = served
    handle = await rig.start_raw(raw("[]"), start_signal=STOP, start_signal_args=[raw("{}")])
    assert (await outcome_of(handle))[0] == "invalid_request"
    status = await handle.query(STATUS)
    assert status["outcome"] == "invalid_request"
    other = await rig.start_raw(raw("{"), start_signal="no such", start_signal_args=[raw("{")])
    assert (await outcome_of(other))[0] == "invalid_request"


@pytest.mark.parametrize("closed", [False, True], ids=["during", "at the end"])
async def test_odd_queries_are_answered_or_refused(
    served: tuple[Rig, asyncio.Event], closed: bool
) -> None:
    """Superfluous arguments are ignored, undecodable ones and unknown names refused."""
    rig, gate = served
    gate.clear()
    handle = await rig.start_raw(start(prompt="hold"))
    if closed:
        gate.set()
        await outcome_of(handle)
    answered = refused = 0
    for args, _ in BODIES.values():
        try:
            status = await handle.query(STATUS, args=args)
            assert status["agent"] == AGENT
            answered += 1
        except (WorkflowQueryFailedError, RPCError):
            refused += 1
    assert answered >= 15
    assert answered + refused == len(BODIES)
    for name in UNKNOWN_NAMES:
        with pytest.raises((WorkflowQueryFailedError, RPCError)):
            await handle.query(name)
    gate.set()
    assert await outcome_of(handle) == ("completed", "")


async def test_messages_after_the_end_are_refused_by_the_server(
    served: tuple[Rig, asyncio.Event],
) -> None:
    """A closed run takes nothing, malformed or not, and says so at once."""
    rig, _ = served
    handle = await rig.start_raw(GOOD)
    assert await outcome_of(handle) == ("completed", "")
    for args, _ in list(BODIES.values())[:5]:
        with pytest.raises(RPCError):
            await handle.signal(STOP, args=args)
        with pytest.raises(RPCError):
            await handle.execute_update(STOP, args=args, rpc_timeout=timedelta(seconds=5))


async def test_a_flood_of_bad_signals_is_dropped(rig: RigFactory) -> None:
    """Three hundred bad signals in one go cost no workflow task and no outcome."""
    gate = asyncio.Event()

    @tool(effect="read")
    async def hold() -> str:
        """Wait."""
        await gate.wait()
        return "released"

    async with rig([call("hold"), text("Done.")], tools=[hold]) as r:
        handle = await r.start_raw(GOOD)
        bodies = [
            args for args, _ in BODIES.values() if sum(len(a.payload.data) for a in args) < 9_999
        ]
        await asyncio.gather(
            *(handle.signal(STOP, args=bodies[n % len(bodies)]) for n in range(300))
        )
        gate.set()
        assert await outcome_of(handle) == ("completed", "")
        assert await r.task_failures() == 0
