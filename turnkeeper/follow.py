"""A run's steps as they happen, read from new events of its history.

Nothing is asked of a worker, and nothing is missed between two looks: the server hands out each
event once it is recorded, also those of runs that have ended. GENERATE and EXECUTE are activities
and have events of their own; what PARSE and RESUME did is seen in what follows. An activity of the
runtime that this release does not know is passed over, and what cannot be read is told as that.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, RootModel
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType, WorkflowTaskFailedCause
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client
from temporalio.converter import DataConverter
from temporalio.service import RPCError, RPCStatusCode

from turnkeeper import replies
from turnkeeper.connection import readable_errors
from turnkeeper.contract import (
    FORK,
    GENERATE,
    LOAD_AGENT,
    NOT_HERE,
    NOTHING_HAPPENED,
    SEAL,
    SHORTEN,
    STOP,
    SUMMARISE,
    SWITCHED_OFF,
    SWITCHED_ON,
    ApprovalAsked,
    Awaited,
    Epoch,
    ExecuteInput,
    ExecuteOutput,
    ForkOutput,
    GenerateInput,
    GenerateOutput,
    LoadAgentOutput,
    Paused,
    RunResult,
    ShortenOutput,
    SummariseOutput,
    UnknownCall,
)
from turnkeeper.entries import Entry
from turnkeeper.inbox import message_id
from turnkeeper.render import (
    approval_awaited,
    approval_text,
    awaited_words,
    person_awaited,
    resume_awaited,
    unknown_text,
    usage_text,
)
from turnkeeper.text import arguments_line, one_line
from turnkeeper.usage import Usage

__all__ = ["Step", "events_of", "follow", "follow_events"]

_SAID = 300
"""Characters of what was said or returned."""
_RECONNECT_SECONDS = 60.0
_MOVED = "branch tokens"
"""The server lost the place of a reader to whom it was about to tell of a new event; read anew, the
history is whole."""
_END_EVENTS = {
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED: "completed",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED: "failed",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED: "cancelled",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED: "terminated",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT: "timed out",
}

_BEGINS = {
    SEAL: "the transcript is sealed: history starts anew",
    SUMMARISE: "a summary of earlier turns is begun",
    SHORTEN: "the view is too long for the model's window",
    SWITCHED_ON: "waits until it may ask its model again",
}
"""What is said of activities between the turns."""

_HARMLESS = (
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND,
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_FORCE_CLOSE_COMMAND,
)
"""Of a workflow task: the server began it anew, since something else had come meanwhile."""

_M = TypeVar("_M", bound=BaseModel)

_Told = list[tuple[str, int, str] | tuple[str, int, str, str] | tuple[str, int, str, str, str]]
"""Steps before they have their event: phase, turn, text, call id, approval."""


@dataclass(frozen=True)
class Step:
    """One thing that happened.

    `phase` is one of the four phases, or START, WAITING, STOP, PROBLEM or END. `turn` counts from 1
    and is 0 where there is none. `event_id` is the event in history that told it.
    """

    event_id: int
    phase: str
    turn: int
    text: str
    call_id: str = ""
    """Of WAITING: the call of which a person must say whether it took effect."""
    approval: str = ""
    """Of WAITING: what a person must allow or deny."""


async def follow(client: Client, workflow_id: str) -> AsyncIterator[Step]:
    """The steps of a run from its beginning to its end, over all its executions.

    Waits for what is still to come. A server that is away for up to a minute is waited for.

    Raises:
        LookupError: there is no such run.
        ConnectionError: the server stays away.
    """
    with readable_errors(client, workflow_id):
        described = await client.get_workflow_handle(workflow_id).describe()
        async for _, steps in follow_events(client, workflow_id, described.run_id, whole=True):
            for step in steps:
                yield step


async def follow_events(
    client: Client, workflow_id: str, run_id: str, *, whole: bool = False
) -> AsyncIterator[tuple[HistoryEvent, list[Step]]]:
    """The events from the start of an execution to the end of the run, and the steps in each.

    `whole`: also those of the executions before it.

    Raises:
        RPCError: there is no such run, or the server stays away.
    """
    todo = await _executions(client, workflow_id, run_id) if whole else [run_id]
    narrator = _Narrator(client.data_converter)
    while todo:
        run_id, next_run = todo.pop(0), ""
        async for event in events_of(client, workflow_id, run_id):
            yield event, await narrator.take(event)
            continued = event.workflow_execution_continued_as_new_event_attributes
            next_run = continued.new_execution_run_id or next_run
        # Of those that are known a reset may have replaced the next one.
        todo = todo or ([next_run] if next_run else [])


async def _executions(client: Client, workflow_id: str, run_id: str) -> list[str]:
    """The executions that led to this one, as far as the server keeps them, and itself."""
    found: list[str] = []
    while run_id:
        found.insert(0, run_id)
        handle = client.get_workflow_handle(workflow_id, run_id=run_id)
        try:
            first = await anext(handle.fetch_history_events(page_size=1))
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND or len(found) == 1:
                raise
            return found[1:]
        run_id = first.workflow_execution_started_event_attributes.continued_execution_run_id
    return found


async def events_of(client: Client, workflow_id: str, run_id: str) -> AsyncIterator[HistoryEvent]:
    """The events of one execution, each once, until it closes.

    Raises:
        RPCError: there is no such execution, or the server is away for more than a minute.
    """
    handle = client.get_workflow_handle(workflow_id, run_id=run_id)
    loop = asyncio.get_running_loop()
    seen, lost_since = 0, None
    while True:
        try:
            async for event in handle.fetch_history_events(wait_new_event=True):
                lost_since = None
                if event.event_id > seen:
                    seen = event.event_id
                    yield event
            return
        except RPCError as error:
            if error.status is not RPCStatusCode.UNAVAILABLE and _MOVED not in error.message:
                raise
            lost_since = loop.time() if lost_since is None else lost_since
            if loop.time() - lost_since > _RECONNECT_SECONDS:
                raise
            await asyncio.sleep(0.5)


@dataclass
class _Begun:
    """An activity that was scheduled."""

    name: str
    turn: int
    attempt: int = 1
    mutates: bool = False


class _Awaited(RootModel[list[Awaited]]):
    """As a run publishes it in its memo."""


class _UnknownCalls(RootModel[list[UnknownCall]]):
    """As a run publishes them in its memo."""


class _Approvals(RootModel[list[ApprovalAsked]]):
    """As a run publishes them in its memo."""


class _Unreadable(Exception):
    """What stands in an event is not what this release, or who has no key, can read."""


class _Narrator:
    """Turns events into steps; remembers what later events refer to."""

    def __init__(self, converter: DataConverter) -> None:
        self._converter = converter
        self._begun: dict[int, _Begun] = {}
        self._turn = 0
        self._model = "the model"
        self._usage = Usage()
        self._phase = "GENERATE"
        self._called: list[str] = []
        """Tools that the last reply asked for."""
        self._ran: set[str] = set()
        """Ids of its calls that became activities; the others were answered at once."""
        self._waiting: set[str] = set()
        """Keys of calls, and ids of approvals, that wait for a person."""
        self._tell: dict[int, Callable[[HistoryEvent], Any]] = {
            EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED: self._scheduled,
            EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED: self._completed,
            EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED: self._failed,
            EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT: self._failed,
            EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED: self._asked_to_stop,
            EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED: self._asked_to_stop,
            EventType.EVENT_TYPE_WORKFLOW_PROPERTIES_MODIFIED: self._published,
            EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED: self._stuck,
        }
        self._outputs: dict[str, Callable[[_Begun, Sequence[Payload]], Any]] = {
            LOAD_AGENT: self._loaded,
            FORK: self._forked,
            GENERATE: self._replied,
            SUMMARISE: self._summarised,
            SHORTEN: self._shortened,
        }

    async def take(self, event: HistoryEvent) -> list[Step]:
        """The steps that an event tells of; most events tell of none."""
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED:
            started = event.activity_task_started_event_attributes
            if begun := self._begun.get(started.scheduled_event_id):
                begun.attempt = started.attempt
        elif event.event_type in _END_EVENTS:
            return await self._ended(event)
        elif tell := self._tell.get(event.event_type):
            try:
                told: _Told = await tell(event)
            except _Unreadable as error:
                told = [("PROBLEM", self._turn, f"event {event.event_id} is not readable: {error}")]
            # What is done between the turns leaves open what becomes of the last reply's calls.
            if told and told[-1][0] != "RESUME":
                self._phase = told[-1][0]
            return [Step(event.event_id, *t) for t in told]
        return []

    # --- activities -----------------------------------------------------------------------------

    async def _scheduled(self, event: HistoryEvent) -> _Told:
        scheduled = event.activity_task_scheduled_event_attributes
        name, payloads = scheduled.activity_type.name, scheduled.input.payloads
        begun = self._begun[event.event_id] = _Begun(name, self._turn)
        if name == GENERATE:
            return await self._generates(begun, payloads)
        if name in _BEGINS:
            return [("RESUME", self._turn, _BEGINS[name])]
        if name.startswith("run."):
            return []
        called = await self._read(payloads, ExecuteInput)
        self._ran.add(called.call_id)
        begun.turn, begun.mutates = called.turn, called.effect != "read"
        line = f"{called.tool} {arguments_line(called.arguments, _SAID)}"
        return [("EXECUTE", called.turn, line)]

    async def _generates(self, begun: _Begun, payloads: Sequence[Payload]) -> _Told:
        asked = await self._read(payloads, GenerateInput)
        before = self._resumed(asked.new) if self._turn and asked.turn > self._turn else []
        self._turn = begun.turn = asked.turn
        read = asked.base.entries + len(asked.new)
        told = f"{self._model} reads {_count(read, 'entry', 'entries')}"
        return [*before, ("GENERATE", asked.turn, told)]

    def _resumed(self, new: Sequence[Entry]) -> _Told:
        results = [e.value for e in new if e.kind == "result" and isinstance(e.value, dict)]
        unrun = [_unrun(self._turn, r) for r in results if r.get("call_id") not in self._ran]
        self._ran.clear()
        said = sum(message_id(e) is not None for e in new)
        appended = f"{_count(len(results), 'result', 'results')} appended, " if results else ""
        appended += f"{_count(said, 'message', 'messages')} read, " if said else ""
        told = f"{appended}{usage_text(self._usage)} so far"
        return [*unrun, ("RESUME", self._turn, told)]

    async def _completed(self, event: HistoryEvent) -> _Told:
        completed = event.activity_task_completed_event_attributes
        begun = self._begun.pop(completed.scheduled_event_id, None)
        payloads = completed.result.payloads
        if begun is None:
            return []
        if read := self._outputs.get(begun.name):
            return await read(begun, payloads)  # type: ignore[no-any-return]
        if begun.name.startswith("run."):
            return []
        output = await self._read(payloads, ExecuteOutput)
        value = output.entry.value if isinstance(output.entry.value, dict) else {}
        failed = "error: " if value.get("error") else ""
        said = one_line(str(value.get("text")), _SAID)
        return [("EXECUTE", begun.turn, f"{begun.name} -> {failed}{said}{_again(begun)}")]

    async def _loaded(self, _begun: _Begun, payloads: Sequence[Payload]) -> _Told:
        spec = (await self._read(payloads, LoadAgentOutput)).spec
        self._model = one_line(spec.model.name, 80)
        tools = ", ".join(t.name for t in spec.tools) or "none"
        return [("START", 0, f"agent {spec.name}, model {self._model}, tools: {tools}")]

    async def _forked(self, _begun: _Begun, payloads: Sequence[Payload]) -> _Told:
        begun = await self._read(payloads, ForkOutput)
        said = begun.base.entries + len(begun.unread)
        return [("START", 0, f"a fork: {_count(said, 'entry', 'entries')} of another run")]

    async def _summarised(self, begun: _Begun, payloads: Sequence[Payload]) -> _Told:
        written = await self._read(payloads, SummariseOutput)
        self._usage = self._usage.plus(written.usage)
        if (made := written.checkpoint) is None:
            said = f"no summary: {one_line(written.problem or '', _SAID)}"
        else:
            said = f"a summary of {_count(made.entries, 'entry', 'entries')}"
        return [("RESUME", self._turn, f"-> {said}{_again(begun)}")]

    async def _shortened(self, begun: _Begun, payloads: Sequence[Payload]) -> _Told:
        shorter = await self._read(payloads, ShortenOutput)
        epoch = shorter.epoch
        said = _begun_anew(epoch, shorter) if epoch else "a summary is needed first"
        return [("RESUME", self._turn, f"-> {said}{_again(begun)}")]

    async def _replied(self, begun: _Begun, payloads: Sequence[Payload]) -> _Told:
        reply = await self._read(payloads, GenerateOutput)
        self._usage = self._usage.plus(reply.usage)
        said = one_line(replies.text(reply.entry.value), _SAID)
        self._called = [one_line(call.tool, 80) for call in replies.calls(reply.entry.value)]
        parsed = ", ".join(self._called) or "no tool call"
        return [
            ("GENERATE", begun.turn, f"-> {said or '(no text)'}{_again(begun)}"),
            ("PARSE", begun.turn, f"stop reason {reply.stop_reason}: {parsed}"),
        ]

    async def _failed(self, event: HistoryEvent) -> _Told:
        failed = event.activity_task_failed_event_attributes
        timed_out = event.activity_task_timed_out_event_attributes
        begun = self._begun.pop(failed.scheduled_event_id or timed_out.scheduled_event_id, None)
        if begun is None or begun.name == LOAD_AGENT:
            # Without its agent a run ends, for that reason.
            return []
        phases = {GENERATE: "GENERATE", FORK: "START"}
        phase = phases.get(begun.name, "RESUME" if begun.name.startswith("run.") else "EXECUTE")
        failure = failed.failure if failed.scheduled_event_id else timed_out.failure
        # Said first: a long reason is cut.
        kind = failure.application_failure_info.type
        unsure = begun.mutates and kind not in (NOTHING_HAPPENED, NOT_HERE, SWITCHED_OFF)
        named = f"outcome unknown: {begun.name}" if unsure else f"{begun.name} failed"
        text = f"{named}: {_why(failure)}{_again(begun)}"
        return [(phase, begun.turn, text)]

    # --- the run --------------------------------------------------------------------------------

    async def _asked_to_stop(self, event: HistoryEvent) -> _Told:
        update = event.workflow_execution_update_accepted_event_attributes.accepted_request
        signal = event.workflow_execution_signaled_event_attributes
        if STOP not in (update.input.name, signal.signal_name):
            return []
        return [("STOP", self._turn, "a stop was asked for")]

    async def _published(self, event: HistoryEvent) -> _Told:
        memo = event.workflow_properties_modified_event_attributes.upserted_memo.fields
        told: _Told = [await self._held(memo["paused"])] if "paused" in memo else []
        told += await self._asked(memo["approvals"]) if "approvals" in memo else []
        told += await self._waits(memo["awaited"]) if "awaited" in memo else []
        return [*told, *(await self._unsure(memo["unknown"]) if "unknown" in memo else [])]

    async def _asked(self, published: Payload) -> _Told:
        told: _Told = []
        for asked in (await self._read([published], _Approvals)).root:
            if asked.status == "waiting" and asked.id not in self._waiting:
                self._waiting.add(asked.id)
                told.append(
                    ("WAITING", asked.turn, f"for {approval_awaited([asked])}", "", asked.id)
                )
            elif asked.status != "waiting" and asked.id in self._waiting:
                self._waiting.remove(asked.id)
                told.append(("EXECUTE", asked.turn, f"-> {approval_text(asked)}"))
        return told

    async def _waits(self, published: Payload) -> _Told:
        awaited = (await self._read([published], _Awaited)).root
        # The run itself serves them: there is no activity.
        self._ran.update(a.call_id for a in awaited)
        return [("WAITING", self._turn, f"for {awaited_words(awaited)}")] if awaited else []

    async def _unsure(self, published: Payload) -> _Told:
        told: _Told = []
        for call in (await self._read([published], _UnknownCalls)).root:
            if call.status == "waiting" and call.key not in self._waiting:
                self._waiting.add(call.key)
                told.append(("WAITING", call.turn, f"for {person_awaited([call])}", call.call_id))
            elif call.status != "waiting" and call.key in self._waiting:
                self._waiting.remove(call.key)
                told.append(("EXECUTE", call.turn, f"-> {unknown_text(call)}"))
        return told

    async def _held(self, published: Payload) -> tuple[str, int, str]:
        paused: Paused | None = await self._read([published], Paused)
        if paused is None:
            return "WAITING", self._turn, "-> no longer paused"
        return "WAITING", self._turn, f"for {resume_awaited(paused)}"

    async def _stuck(self, event: HistoryEvent) -> _Told:
        failed = event.workflow_task_failed_event_attributes
        if failed.cause == WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_RESET_WORKFLOW:
            return [("START", 0, f"the run was reset: {_why(failed.failure)}")]
        if failed.cause in _HARMLESS:
            return []
        return [("PROBLEM", self._turn, f"a workflow task failed: {_why(failed.failure)}")]

    async def _ended(self, event: HistoryEvent) -> list[Step]:
        outcome, turn = _END_EVENTS[event.event_type], self._turn
        payloads = event.workflow_execution_completed_event_attributes.result.payloads
        failure = event.workflow_execution_failed_event_attributes.failure
        if payloads:
            with contextlib.suppress(_Unreadable):
                outcome = (await self._read(payloads, RunResult)).outcome
        elif failure.application_failure_info.type:
            outcome = failure.application_failure_info.type
        steps = []
        if self._phase == "PARSE":
            # What the last reply asked for was answered at once, or the run ended before it ran.
            unrun = ", ".join(self._called)
            told = f"{unrun}: not run" if unrun else "nothing to run"
            steps.append(Step(event.event_id, "EXECUTE", turn, told))
        if turn:
            steps.append(Step(event.event_id, "RESUME", turn, f"the run ends: {outcome}"))
        return [*steps, Step(event.event_id, "END", 0, outcome)]

    async def _read(self, payloads: Sequence[Payload], model: type[_M]) -> _M:
        try:
            (found,) = await self._converter.decode(payloads, [model])
        except Exception as error:
            # A codec may raise anything.
            raise _Unreadable(one_line(f"{type(error).__name__}: {error}", _SAID)) from error
        return found  # type: ignore[no-any-return]


def _begun_anew(epoch: Epoch, shorter: ShortenOutput) -> str:
    """`epoch 2 begins: 40 entries left out, a summary stands for them`."""
    told: list[str] = []
    if shorter.left_out:
        told.append(f"{_count(shorter.left_out, 'entry', 'entries')} left out")
    if shorter.how == "summary":
        told.append("a summary stands for them")
    if shorter.referred:
        told.append(f"{_count(shorter.referred, 'result', 'results')} as references")
    begins = f"epoch {epoch.number + 1} begins"
    return f"{begins}: {', '.join(told)}" if told else begins


def _unrun(turn: int, result: Any) -> tuple[str, int, str]:
    """A call that was answered at once: of an unknown tool, one too many."""
    why = one_line(str(result.get("text")), _SAID).removeprefix("Not run: ")
    return "EXECUTE", turn, f"{one_line(str(result.get('tool')), 80)}: not run: {why}"


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _again(begun: _Begun) -> str:
    return f" (attempt {begun.attempt})" if begun.attempt > 1 else ""


def _why(failure: Failure) -> str:
    return one_line(failure.message or "no reason given", _SAID)
