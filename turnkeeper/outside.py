"""A run as the server tells it, without a worker: what it published, and its pending work."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import (
    Client,
    WorkflowExecution,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
)
from temporalio.common import SearchAttributeKey
from temporalio.service import RPCError, RPCStatusCode

from turnkeeper.connection import readable_errors
from turnkeeper.contract import (
    FORK,
    GENERATE,
    LOAD_AGENT,
    SEAL,
    SHORTEN,
    SUMMARISE,
    SWITCHED_ON,
    VERIFY,
    WORKFLOW,
    ApprovalAsked,
    Awaited,
    Paused,
    UnknownCall,
)
from turnkeeper.refusals import invalid
from turnkeeper.text import one_line
from turnkeeper.waiting import KINDS, awaited

__all__ = [
    "Origin",
    "PendingApproval",
    "UnknownOutcome",
    "activity_words",
    "agent_of",
    "approvals_of",
    "attempt_words",
    "attribute",
    "awaited_of",
    "describe",
    "has_attribute",
    "origin_of",
    "outcomes_of",
    "paused_of",
    "pending_line",
    "retried",
    "unknown_of",
    "waits_of",
]


_M = TypeVar("_M", bound=BaseModel)


@dataclass(frozen=True)
class Origin:
    """What a run was started with, by its first event: what its caller wrote."""

    agent: str = ""
    prompt: str = ""
    tenant: str = ""
    principal: str = ""


@dataclass(frozen=True)
class UnknownOutcome:
    """A tool call of which nobody can tell whether it took effect, and the run that made it."""

    id: str
    run_id: str
    agent: str
    status: str
    """The run's, as in `RunSummary`."""
    call: UnknownCall


@dataclass(frozen=True)
class PendingApproval:
    """A tool call that a person has to allow, and the run that waits for it."""

    id: str
    run_id: str
    agent: str
    asked: ApprovalAsked
    origin: Origin = field(default_factory=Origin)


async def describe(
    client: Client, run: str, run_id: str | None = None
) -> WorkflowExecutionDescription:
    """A run, open or closed; `run_id` names an execution that is not its last.

    Raises:
        LookupError: there is no such run.
        InvalidRequest: that is another workflow's id.
        ConnectionError: the server cannot be reached.
    """
    with readable_errors(client, run):
        described = await client.get_workflow_handle(run, run_id=run_id).describe()
    if described.workflow_type != WORKFLOW:
        raise invalid(f"id: {run} is a workflow of type {described.workflow_type}")
    return described


_WHAT = {
    GENERATE: "a reply",
    LOAD_AGENT: "the agent's definition",
    FORK: "what was said in the run that it forks",
    SEAL: "the artifact store",
    SUMMARISE: "a summary of earlier turns",
    SHORTEN: "a shorter view",
    SWITCHED_ON: "its agent or tenant to be allowed to go on",
    VERIFY: "who has decided about a call",
}
_UNKNOWN_AGENT = "unknown_agent"
"""The failure of a worker that has not got the run's agent."""


def activity_words(pending: PendingActivityInfo) -> str:
    """What an activity is to bring: `a reply`, or the tool's name."""
    name = pending.activity_type.name
    if name == SWITCHED_ON and pending.HasField("last_failure"):
        # Its failures are how it waits.
        return one_line(pending.last_failure.message, 300)
    return _WHAT.get(name) or one_line(name, 80)


def pending_line(pending: PendingActivityInfo) -> str:
    """What the run waits for: `a reply (attempt 7; last: connection refused)`."""
    if pending.last_failure.application_failure_info.type == _UNKNOWN_AGENT:
        # What there is instead is the reason with which the run ends, if no such worker comes.
        return f"a worker that serves the agent (attempt {pending.attempt})"
    what = activity_words(pending)
    if told := attempt_words(pending):
        return f"{what} ({told})"
    return what if pending.HasField("last_started_time") else f"{what}, which waits for a worker"


def retried(described: WorkflowExecutionDescription) -> str:
    """Of what failed and is tried again: `attempt 7; last: connection refused`; else empty."""
    pending = described.raw_description.pending_activities
    told = [(p.activity_type.name, attempt_words(p)) for p in pending]
    failing = [(name, text) for name, text in told if text]
    if len(failing) == 1:
        return failing[0][1]
    return ", ".join(f"{one_line(name, 80)}: {text}" for name, text in failing[:3])


def attempt_words(pending: PendingActivityInfo) -> str:
    """Of an activity that failed and is tried again: `attempt 7; last: ...`; else empty."""
    if not pending.HasField("last_failure") or pending.activity_type.name == SWITCHED_ON:
        return ""
    why = one_line(pending.last_failure.message, 300)
    return f"attempt {pending.attempt}; last: {why}"


async def waits_of(execution: WorkflowExecution) -> dict[str, str]:
    """What a run waits for a person to do: in words, by the names of `turnkeeper.waiting.KINDS`.

    Nothing once it has ended: one that was terminated could not say so itself.
    """
    if not _is_open(execution):
        return {}
    fields = [kind.memo for kind in KINDS.values()]
    return awaited({name: await execution.memo_value(name, None) for name in fields})


async def outcomes_of(client: Client, execution: WorkflowExecution) -> list[UnknownOutcome]:
    """The calls of a run whose outcome was, or is, unknown: the newest first."""
    calls = await unknown_of(execution)
    if not calls:
        return []
    agent = await agent_of(client, execution)
    status = (execution.status or WorkflowExecutionStatus.RUNNING).name.lower()
    if any(c.status == "waiting" for c in calls):
        status = "waiting"
    return [
        UnknownOutcome(execution.id, execution.run_id, agent, status, call)
        for call in reversed(calls)
    ]


async def unknown_of(execution: WorkflowExecution) -> list[UnknownCall]:
    """What a run published of its unknown outcomes, oldest first.

    None waits in a closed run: one that was terminated could not say so itself.
    """
    calls = await _published(execution, "unknown", UnknownCall)
    if _is_open(execution):
        return calls
    gone = {"status": "open"}
    return [c.model_copy(update=gone) if c.status == "waiting" else c for c in calls]


async def approvals_of(execution: WorkflowExecution) -> list[ApprovalAsked]:
    """The calls of an open run that a person has to allow, as it published them."""
    if not _is_open(execution):
        return []
    asked = await _published(execution, "approvals", ApprovalAsked)
    return [a for a in asked if a.status == "waiting"]


async def paused_of(execution: WorkflowExecution) -> Paused | None:
    """Who has paused a run that waits to be resumed; None for any other."""
    paused = await _published(execution, "paused", Paused) if _is_open(execution) else []
    return paused[0] if paused else None


async def awaited_of(execution: WorkflowExecution) -> list[Awaited]:
    """What an open run published that it waits for, other than whether calls took effect."""
    return await _published(execution, "awaited", Awaited) if _is_open(execution) else []


async def _published(execution: WorkflowExecution, name: str, model: type[_M]) -> list[_M]:
    """What a run has in a field of its memo: a list, or one thing."""
    published = await execution.memo_value(name, None)
    found: list[_M] = []
    for told in published if isinstance(published, list) else [published]:
        # Of a release, or a program, with another idea of it.
        with contextlib.suppress(ValidationError):
            found.append(model.model_validate(told))
    return found


def _is_open(execution: WorkflowExecution) -> bool:
    return execution.status in (None, WorkflowExecutionStatus.RUNNING)


async def has_attribute(client: Client, name: str) -> bool:
    """Whether runs of this namespace can be searched by an attribute.

    Raises:
        RPCError: the server cannot be reached.
    """
    try:
        # Asked of visibility: some clusters keep the list of attributes to administrators.
        await client.count_workflows(f"{name} IS NOT NULL AND WorkflowId = ''")
    except RPCError as error:
        if error.status is not RPCStatusCode.INVALID_ARGUMENT:
            raise
        return False
    return True


async def agent_of(client: Client, execution: WorkflowExecution) -> str:
    """The agent's name, from the search attribute, else the memo, else the first event."""
    named = attribute(execution, "TurnkeeperAgent", str)
    if named:
        return one_line(str(named), 64)
    memo = await execution.memo_value("agent", None)
    if isinstance(memo, str):
        return one_line(memo, 64)
    return (await origin_of(client, execution)).agent


async def origin_of(client: Client, execution: WorkflowExecution) -> Origin:
    """What a run was started with; empty where that cannot be read.

    Raises:
        RPCError: the server cannot be reached.
    """
    handle = client.get_workflow_handle(execution.id, run_id=execution.run_id)
    try:
        async for event in handle.fetch_history_events(page_size=1):
            payloads = event.workflow_execution_started_event_attributes.input.payloads
            return _origin(await client.data_converter.decode(payloads) if payloads else [])
    except RPCError as error:
        # A list may still have what the server deleted a moment ago.
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
    return Origin()


def _origin(started: Sequence[Any]) -> Origin:
    """Of a run's input, or of the state that a continued one began with."""
    first = started[0] if started else None
    request = first.get("request", first) if isinstance(first, dict) else None
    if not isinstance(request, dict):
        return Origin()
    metadata = request.get("metadata")
    told = metadata if isinstance(metadata, dict) else {}
    return Origin(
        one_line(str(request.get("agent", "")), 64),
        one_line(str(request.get("prompt", "")), 1_000),
        one_line(str(told.get("tenant", "")), 200),
        one_line(str(told.get("principal", "")), 200),
    )


def attribute(execution: WorkflowExecution, name: str, kind: type[Any]) -> Any:
    """One of our search attributes; None where the namespace or the run has none."""
    key: SearchAttributeKey[Any] = (
        SearchAttributeKey.for_int(name) if kind is int else SearchAttributeKey.for_keyword(name)
    )
    return execution.typed_search_attributes.get(key)
