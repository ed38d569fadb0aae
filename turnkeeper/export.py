"""A run as one JSON document, for audits after Temporal has deleted it.

Read from the server and the artifact store, without a worker. Everything in it stands in the run's
history, memo and segments; nothing comes from the environment. Artifacts are not copied: results
name them by their ids.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Any, BinaryIO, Literal, TypeVar

from pydantic import BaseModel, Field
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from turnkeeper.artifacts import ArtifactStore
from turnkeeper.contract import (
    LOAD_AGENT,
    ExecuteInput,
    ExecuteOutput,
    LoadAgentOutput,
    RunRequest,
    RunResult,
    UnknownCall,
)
from turnkeeper.entries import Entry, check_json
from turnkeeper.errors import AdmissionError, StateLost
from turnkeeper.history import HistoryReader
from turnkeeper.outside import agent_of, attribute, unknown_of
from turnkeeper.spec import Effect, Limits
from turnkeeper.state import RunState
from turnkeeper.text import arguments_line, one_line
from turnkeeper.turns import (
    FAILED,
    ExportedEpoch,
    ExportedGeneration,
    ExportedSummary,
    TurnReader,
    failure_of,
    time_of,
)
from turnkeeper.waiting import KINDS

__all__ = [
    "ExportedCall",
    "ExportedEpoch",
    "ExportedGeneration",
    "ExportedMessage",
    "ExportedSummary",
    "RunExport",
    "export_run",
    "write_export",
]

_SAID = 1_000
_BODY = 8_000
"""Characters of one message."""
_MISSING = 20
"""Things that are named one by one."""
_MORE = "and more events"

_M = TypeVar("_M", bound=BaseModel)


class ExportedCall(BaseModel):
    """A tool call that was given to a worker. What it returned is an entry of the transcript."""

    turn: int
    call_id: str
    tool: str
    effect: Effect
    arguments: str
    """One line, cut: all of them stand in the reply that made the call."""
    key: str
    """The idempotency key: what the target may know the effect by."""
    status: str
    """As the tool answered (`ok`, `error`, ...), or how the last attempt ended: `failed`,
    `timed_out`, `cancelled`. `open`: it was not over."""
    attempts: int = 0
    failure: str | None = None
    artifact: str | None = None
    """Holds the whole of a result that the transcript has in part."""
    scheduled: datetime
    ended: datetime | None = None


class ExportedMessage(BaseModel):
    """What somebody sent to the run: an update that was accepted, or a signal."""

    at: datetime
    name: str
    """Such as `stop` or `resolve`."""
    how: Literal["update", "signal"]
    body: Any = None
    """As it was sent, or one line if it is large."""


class RunExport(BaseModel):
    """See the module. Fields are only ever added; a change of meaning raises `version`."""

    version: Literal[1] = 1
    exported: datetime
    namespace: str
    id: str
    run_ids: list[str]
    """Of its executions that Temporal still has, the first one first."""
    agent: str
    model: str = ""
    spec_digest: str = ""
    """Of the agent as it was pinned: instructions, tools, limits."""
    status: str
    """`running`, or how Temporal closed it."""
    started: datetime
    closed: datetime | None = None
    request: RunRequest | None = None
    """What it was started with; None if that was no request, or is not kept any more."""
    limits: Limits | None = None
    """With which its last execution began; the result has those that were raised."""
    result: RunResult | None = None
    """Outcome, answer, usage; None while it is open."""
    generations: list[ExportedGeneration] = Field(default_factory=list)
    summaries: list[ExportedSummary] = Field(default_factory=list)
    epochs: list[ExportedEpoch] = Field(default_factory=list)
    calls: list[ExportedCall] = Field(default_factory=list)
    unknown: list[UnknownCall] = Field(default_factory=list)
    """The last calls whose outcome was, or is, unknown, and who settled them."""
    decisions: dict[str, list[Any]] = Field(default_factory=dict)
    """What people were asked and how they decided, as the run published it, by kind."""
    messages: list[ExportedMessage] = Field(default_factory=list)
    entries: list[Entry] = Field(default_factory=list)
    """All that was said."""
    unread: list[Entry] = Field(default_factory=list)
    """Results of the last calls, that the model was not asked to read."""
    missing: list[str] = Field(default_factory=list)
    """What could not be had, and why: the first of it."""


async def export_run(
    client: Client,
    store: ArtifactStore,
    described: WorkflowExecutionDescription,
    result: RunResult | None,
) -> RunExport:
    """Read a run; `result` is how it ended.

    What is gone, or is not readable, is named in `missing`.

    Raises:
        RPCError, OSError: the server or the store cannot be reached.
    """
    exported = await _without_entries(client, described, result)
    exported.entries = [e async for e in _entries(client, store, described, exported.missing)]
    return exported


async def write_export(
    client: Client,
    store: ArtifactStore,
    described: WorkflowExecutionDescription,
    result: RunResult | None,
    file: BinaryIO,
) -> RunExport:
    """As `export_run`, written as JSON while it is read: what was said is never in memory as a
    whole, nor in what is returned.
    """
    exported = await _without_entries(client, described, result)
    head = exported.model_dump_json(exclude={"entries", "missing"})
    file.write(head.removesuffix("}").encode() + b',\n"entries":[')
    between = b"\n"
    async for entry in _entries(client, store, described, exported.missing):
        file.write(between + entry.model_dump_json().encode())
        between = b",\n"
    file.write(b'\n],\n"missing":' + json.dumps(exported.missing).encode() + b"}\n")
    return exported


async def _entries(
    client: Client,
    store: ArtifactStore,
    described: WorkflowExecutionDescription,
    missing: list[str],
) -> AsyncIterator[Entry]:
    """What was said, as far as it can be read."""
    count = 0
    try:
        async for entry in HistoryReader(client, store, described.id, described.run_id).said():
            yield entry
            count += 1
    except (StateLost, ValueError) as error:
        missing.append(f"the transcript after entry {count}: {one_line(str(error), _SAID)}")


async def _without_entries(
    client: Client, described: WorkflowExecutionDescription, result: RunResult | None
) -> RunExport:
    executions, first, missing = await _executions(client, described)
    reader = _Reader(client, missing)
    for run_id in executions:
        await reader.read(described.id, run_id)
    published = await unknown_of(described)
    status = described.status or WorkflowExecutionStatus.RUNNING
    return RunExport(
        exported=datetime.now(UTC),
        namespace=client.namespace,
        id=described.id,
        run_ids=executions,
        agent=await agent_of(client, described),
        model=(result.model if result else "")
        or one_line(attribute(described, "TurnkeeperModel", str) or "", 200),
        spec_digest=reader.spec_digest,
        status=status.name.lower(),
        started=first,
        closed=described.close_time,
        request=reader.request,
        limits=reader.limits,
        result=result,
        generations=reader.turns.generations,
        summaries=reader.turns.summaries,
        epochs=reader.turns.epochs,
        calls=reader.calls,
        unknown=result.unknown if result and result.unknown else published,
        decisions=await _decisions(described),
        messages=reader.messages,
        unread=list(reader.turns.unread.values()),
        missing=missing,
    )


async def _executions(
    client: Client, described: WorkflowExecutionDescription
) -> tuple[list[str], datetime, list[str]]:
    """The run ids of all executions that are kept, when the first of them began, and what is not.

    From the last one back: what is gone first is the beginning.
    """
    found: list[str] = []
    started = described.start_time
    run_id = described.run_id
    while run_id:
        handle = client.get_workflow_handle(described.id, run_id=run_id)
        try:
            before = ""
            async for event in handle.fetch_history_events(page_size=1):
                started = time_of(event.event_time)
                begun = event.workflow_execution_started_event_attributes
                before = begun.continued_execution_run_id
                break
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND or not found:
                raise
            gone = "the calls and messages of its first executions, which Temporal has deleted"
            return found[::-1], started, [gone]
        found.append(run_id)
        run_id = before
    return found[::-1], started, []


async def _decisions(described: WorkflowExecutionDescription) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for name, kind in KINDS.items():
        published = await described.memo_value(kind.memo, None)
        listed = published if isinstance(published, list) else []
        # What has a status was decided, or is to be; all else is only what the run waits for.
        if things := [_plain(t) for t in listed if isinstance(t, dict) and "status" in t]:
            found[name] = things
    return found


class _Reader:
    """Gathers what the events of a run tell, execution by execution."""

    def __init__(self, client: Client, missing: list[str]) -> None:
        self._client = client
        self._missing = missing
        self._begun: dict[int, ExportedCall] = {}
        self._loading = 0
        self.request: RunRequest | None = None
        self.spec_digest = ""
        self.limits: Limits | None = None
        self.turns = TurnReader(self._read)
        self.calls: list[ExportedCall] = []
        self.messages: list[ExportedMessage] = []

    async def read(self, workflow_id: str, run_id: str) -> None:
        """Take the events of one execution."""
        self._begun = {}
        self.turns.begin()
        handle = self._client.get_workflow_handle(workflow_id, run_id=run_id)
        async for event in handle.fetch_history_events():
            try:
                await self._take(event)
            except ValueError as error:
                what = f"event {event.event_id} of {run_id}: {one_line(str(error), _SAID)}"
                if len(self._missing) < _MISSING:
                    self._missing.append(what)
                elif self._missing[-1] != _MORE:
                    self._missing.append(_MORE)

    async def _take(self, event: HistoryEvent) -> None:
        await self.turns.take(event)
        kind = event.event_type
        if kind == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
            await self._started(event)
        elif kind == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            await self._scheduled(event)
        elif kind == EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED:
            started = event.activity_task_started_event_attributes
            if call := self._begun.get(started.scheduled_event_id):
                call.attempts = started.attempt
        elif kind == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
            await self._completed(event)
        elif kind in FAILED:
            self._failed(event)
        elif kind == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED:
            signal = event.workflow_execution_signaled_event_attributes
            await self._message(event, "signal", signal.signal_name, signal.input.payloads)
        elif kind == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED:
            asked = event.workflow_execution_update_accepted_event_attributes.accepted_request.input
            await self._message(event, "update", asked.name, asked.args.payloads)

    async def _started(self, event: HistoryEvent) -> None:
        started = event.workflow_execution_started_event_attributes
        if not started.continued_execution_run_id:
            self.request = await self._read(started.input.payloads, RunRequest)
        else:
            state = await self._read(started.input.payloads, RunState)
            self.limits = state.limits
            if not self.spec_digest:
                self.spec_digest = state.spec_digest
                # Its prompt is one line here; all of it is the first entry.
                self.request = state.request

    async def _scheduled(self, event: HistoryEvent) -> None:
        scheduled = event.activity_task_scheduled_event_attributes
        name = scheduled.activity_type.name
        if name == LOAD_AGENT:
            self._loading = event.event_id
        if name.startswith("run."):
            return
        asked = await self._read(scheduled.input.payloads, ExecuteInput)
        call = ExportedCall(
            turn=asked.turn,
            call_id=asked.call_id,
            tool=asked.tool,
            effect=asked.effect,
            arguments=arguments_line(asked.arguments, _SAID),
            key=asked.key,
            status="open",
            scheduled=time_of(event.event_time),
        )
        self._begun[event.event_id] = call
        self.calls.append(call)

    async def _completed(self, event: HistoryEvent) -> None:
        completed = event.activity_task_completed_event_attributes
        payloads = completed.result.payloads
        if completed.scheduled_event_id == self._loading:
            loaded = await self._read(payloads, LoadAgentOutput)
            self.spec_digest, self.limits = loaded.spec_digest, loaded.spec.limits
            self._loading = 0
        elif call := self._begun.pop(completed.scheduled_event_id, None):
            call.ended = time_of(event.event_time)
            output = await self._read(payloads, ExecuteOutput)
            call.status, call.artifact = output.status, output.artifact
            if output.asks is None:
                self.turns.returned(call.call_id, output.entry)

    def _failed(self, event: HistoryEvent) -> None:
        scheduled, failure = failure_of(event)
        if call := self._begun.pop(scheduled, None):
            call.status, call.failure = FAILED[event.event_type], failure
            call.ended = time_of(event.event_time)

    async def _message(
        self,
        event: HistoryEvent,
        how: Literal["update", "signal"],
        name: str,
        payloads: Sequence[Payload],
    ) -> None:
        body = await self._decode(payloads) if payloads else [None]
        self.messages.append(
            ExportedMessage(
                at=time_of(event.event_time),
                name=one_line(name, 200),
                how=how,
                body=_plain(body[0] if len(body) == 1 else body),
            )
        )

    async def _read(self, payloads: Sequence[Payload], model: type[_M]) -> _M:
        (found,) = await self._decode(payloads, model)
        return found  # type: ignore[no-any-return]

    async def _decode(self, payloads: Sequence[Payload], *models: type[BaseModel]) -> list[Any]:
        try:
            return await self._client.data_converter.decode(payloads, list(models) or None)
        except Exception as error:
            # A codec may raise anything.
            raise ValueError(f"{type(error).__name__}: {error}") from error


def _plain(value: Any) -> Any:
    """What any program may have sent, as JSON that can be written; cut if it is large."""
    try:
        check_json(value)
    except AdmissionError:
        return one_line(repr(value), _SAID)
    text = json.dumps(value, ensure_ascii=False)
    return value if len(text) <= _BODY else one_line(text, _BODY)
