"""Run a turn again in the same run, by Temporal's reset: what was recorded before it stays.

The run keeps its id and its keys, so that what the turns to be repeated have already done meets the
same keys again. `AgentClient.retry_from` asks for a word before that; this module finds what it is
about.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal
from uuid import uuid4

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType, ResetReapplyExcludeType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from turnkeeper.contract import (
    GENERATE,
    LOAD_AGENT,
    NOT_HERE,
    NOTHING_HAPPENED,
    RAISE_LIMITS,
    SWITCHED_OFF,
    ExecuteInput,
    ExecuteOutput,
    LoadAgentOutput,
)
from turnkeeper.spec import Effect
from turnkeeper.state import RunState
from turnkeeper.text import arguments_line, one_line

__all__ = [
    "PastCall",
    "PastEffect",
    "Point",
    "find_turn",
    "past_call",
    "repeated_text",
    "reset",
]

MAX_EXECUTIONS = 1_000
"""Executions of one run that are read, over its switches and earlier resets."""
_ARGUMENTS = 200
_LISTED = 20
"""Effects that a refusal names."""
_TURN = "turn-"

State = Literal["done", "failed", "unknown", "running"]


@dataclass(frozen=True)
class PastEffect:
    """A call that may have changed the world, in turns that are to be run again."""

    turn: int
    call_id: str
    tool: str
    effect: Effect
    key: str
    arguments: str
    """One line, cut."""
    state: State
    """`done`; `failed`, as its tool says; `unknown`; or `running`, when it was looked at."""


@dataclass
class PastCall:
    """A tool call as its execution's history tells it."""

    input: ExecuteInput
    state: State | None = "running"
    """None: it is sure to have changed nothing."""
    output: ExecuteOutput | None = None


@dataclass
class Execution:
    """What a retry has to know of one execution."""

    run_id: str
    turns: dict[int, int] = field(default_factory=dict)
    """By turn, the workflow task that first asked for its generation."""
    calls: dict[int, PastCall] = field(default_factory=dict)
    """Those that may change the world, by the event that scheduled them."""
    before: str = ""
    """The execution that continued as this one."""
    after: str = ""
    replaced: list[str] = field(default_factory=list)
    """Executions in whose place this one came, by a reset."""
    deadline: float = 0
    """Seconds since 1970, without limits that were raised in it."""
    raised: int = 0
    """The first event that may have raised them; 0 if there is none."""


@dataclass(frozen=True)
class Point:
    """Where a run can be reset to so that it runs a turn again, and what it has done since."""

    run_id: str
    event_id: int
    effects: Sequence[PastEffect]


# --- what is there ------------------------------------------------------------------------------


async def find_turn(client: Client, workflow_id: str, turn: int) -> Point:
    """The place of a turn, looked for from the last execution back.

    Raises:
        ValueError: there is no such turn, the server no longer keeps it, or the run's time is over.
        RPCError: Temporal cannot be reached, or has no such run.
    """
    described = await client.get_workflow_handle(workflow_id).describe()
    known: dict[str, Execution] = {}
    run_id, first = described.run_id, 0
    while run_id and len(known) < MAX_EXECUTIONS:
        execution = await _known(client, workflow_id, run_id, known)
        if execution is None:
            raise ValueError(f"turn: the server no longer keeps turns before {first}")
        if turn in execution.turns:
            _check_time(execution, execution.turns[turn])
            effects = await _effects(client, workflow_id, run_id, turn, known)
            return Point(run_id, execution.turns[turn], effects)
        first = min(execution.turns, default=first)
        run_id = execution.before
    last = max((t for e in known.values() for t in e.turns), default=0)
    reached = f"its turns are {first} to {last}" if last else "it has not begun a turn"
    raise ValueError(f"turn: {turn} is none of the run's: {reached}")


def _check_time(execution: Execution, event_id: int) -> None:
    # Messages after that are forgotten, those before it may have moved the deadline.
    raised = 0 < execution.raised < event_id
    if not raised and datetime.now(UTC).timestamp() >= execution.deadline:
        raise ValueError("turn: the run's wall_seconds are over, it would end at once; fork it")


async def _effects(
    client: Client, workflow_id: str, run_id: str, turn: int, known: dict[str, Execution]
) -> list[PastEffect]:
    """What was done from a turn on, also in executions that a reset has replaced."""
    found: dict[str, PastEffect] = {}
    seen: set[str] = set()
    todo = [run_id]
    while todo and len(seen) < MAX_EXECUTIONS:
        current = todo.pop()
        if not current or current in seen:
            continue
        seen.add(current)
        execution = await _known(client, workflow_id, current, known)
        if execution is None:
            continue
        todo += [*execution.replaced, execution.after]
        for call in execution.calls.values():
            if call.input.turn >= turn and call.state is not None:
                found.setdefault(call.input.key, _past(call, call.state))
    return sorted(found.values(), key=lambda e: e.turn)


async def past_call(client: Client, workflow_id: str, run_id: str, key: str) -> PastCall | None:
    """The call that was made under a key in executions which a reset has replaced, as seen from the
    one that goes on; None if there was none, or if it is sure to have changed nothing.

    Raises:
        LookupError: the server no longer keeps one of them.
        RPCError: Temporal cannot be reached.
    """
    known: dict[str, Execution] = {}
    todo, replaced = [run_id], {run_id}
    while todo:
        current = todo.pop()
        if not current or current in known:
            continue
        execution = await _known(client, workflow_id, current, known)
        if len(known) > MAX_EXECUTIONS or (execution is None and current in replaced):
            raise LookupError(f"execution {current} is not kept any more")
        if execution is None:
            continue
        for call in execution.calls.values() if current != run_id else ():
            if call.input.key == key and call.state is not None:
                return call
        replaced.update(execution.replaced)
        todo += [*execution.replaced, execution.after, execution.before]
    return None


_BECOMES: dict[Effect, str] = {
    "idempotent": "sent again under the same key, which its target applies once",
    "reconcilable": "its probe is asked first, and it is not sent again if it has landed",
    "once": "not begun again: the model is told the recorded result, or that nobody knows it",
}


def repeated_text(run: str, turn: int, effects: Sequence[PastEffect]) -> str:
    """Why a retry is not made without a further word, and what would become of each effect."""
    lines = [
        f"- {e.state}: turn {e.turn}, {one_line(e.tool, 64)} {e.arguments} "
        f"({e.effect}, key {e.key}): {_BECOMES[e.effect]}"
        for e in effects[:_LISTED]
    ]
    more = [f"- and {len(effects) - _LISTED} more"] if len(effects) > _LISTED else []
    head = (
        f"run {run} has changed the world from turn {turn} on; nothing was done. Its keys stay the "
        "same. Say `again` (--again) to run these turns again all the same, or fork the run:"
    )
    return "\n".join([head, *lines, *more])


def _past(call: PastCall, state: State) -> PastEffect:
    asked = call.input
    return PastEffect(
        turn=asked.turn,
        call_id=asked.call_id,
        tool=asked.tool,
        effect=asked.effect,
        key=asked.key,
        arguments=arguments_line(asked.arguments, _ARGUMENTS),
        state=state,
    )


async def _known(
    client: Client, workflow_id: str, run_id: str, known: dict[str, Execution]
) -> Execution | None:
    if run_id not in known:
        try:
            known[run_id] = await read_execution(client, workflow_id, run_id)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            return None
    return known[run_id]


# --- one execution ------------------------------------------------------------------------------


async def read_execution(client: Client, workflow_id: str, run_id: str) -> Execution:
    """Read an execution's history from its beginning.

    Raises:
        RPCError: Temporal cannot be reached, or no longer keeps it.
    """
    reader = _Reader(client, Execution(run_id))
    handle = client.get_workflow_handle(workflow_id, run_id=run_id)
    async for event in handle.fetch_history_events():
        await reader.take(event)
    return reader.found


class _Reader:
    """Notes of each event what a retry has to know."""

    def __init__(self, client: Client, found: Execution) -> None:
        self._decode = client.data_converter.decode
        self.found = found
        self._started = 0.0
        self._loading = 0
        self._take = {
            EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED: self._begun,
            EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED: self._scheduled,
            EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED: self._completed,
            EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED: self._failed,
            EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT: self._failed,
            EventType.EVENT_TYPE_ACTIVITY_TASK_CANCELED: self._failed,
            EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED: self._reset,
            EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED: self._message,
            EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED: self._message,
            EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW: self._continued,
        }

    async def take(self, event: HistoryEvent) -> None:
        if take := self._take.get(event.event_type):
            await take(event)

    async def _begun(self, event: HistoryEvent) -> None:
        started = event.workflow_execution_started_event_attributes
        self._started = event.event_time.ToDatetime(UTC).timestamp()
        self.found.before = started.continued_execution_run_id
        if self.found.before:
            (state,) = await self._decode(started.input.payloads, [RunState])
            self.found.deadline = state.deadline

    async def _scheduled(self, event: HistoryEvent) -> None:
        scheduled = event.activity_task_scheduled_event_attributes
        name = scheduled.activity_type.name
        if name == GENERATE:
            turn = int(scheduled.activity_id.removeprefix(_TURN))
            # A discarded reply is asked for again under the same name.
            self.found.turns.setdefault(turn, scheduled.workflow_task_completed_event_id)
        elif name == LOAD_AGENT:
            self._loading = event.event_id
        elif not name.startswith("run."):
            asked: ExecuteInput
            (asked,) = await self._decode(scheduled.input.payloads, [ExecuteInput])
            if asked.effect != "read":
                call = self.found.calls[event.event_id] = PastCall(asked)
                call.state = None if asked.asks_only else call.state

    async def _completed(self, event: HistoryEvent) -> None:
        completed = event.activity_task_completed_event_attributes
        payloads = completed.result.payloads
        if completed.scheduled_event_id == self._loading:
            (loaded,) = await self._decode(payloads, [LoadAgentOutput])
            self.found.deadline = self._started + loaded.spec.limits.wall_seconds
        elif call := self.found.calls.get(completed.scheduled_event_id):
            (call.output,) = await self._decode(payloads, [ExecuteOutput])
            states: dict[str, State | None] = {"error": "failed", "invalid": None}
            # An attempt that only asked has done nothing.
            asked = call.output.asks is not None
            call.state = None if asked else states.get(call.output.status, "done")

    async def _failed(self, event: HistoryEvent) -> None:
        failed = event.activity_task_failed_event_attributes
        scheduled = (
            failed.scheduled_event_id
            or event.activity_task_timed_out_event_attributes.scheduled_event_id
            or event.activity_task_canceled_event_attributes.scheduled_event_id
        )
        if call := self.found.calls.get(scheduled):
            kind = failed.failure.application_failure_info.type
            nothing = kind in (NOTHING_HAPPENED, NOT_HERE, SWITCHED_OFF)
            call.state = None if nothing or call.input.asks_only else "unknown"

    async def _reset(self, event: HistoryEvent) -> None:
        replaced = event.workflow_task_failed_event_attributes.base_run_id
        if replaced and replaced != self.found.run_id:
            self.found.replaced.append(replaced)

    async def _message(self, event: HistoryEvent) -> None:
        update = event.workflow_execution_update_accepted_event_attributes.accepted_request
        signal = event.workflow_execution_signaled_event_attributes
        if RAISE_LIMITS in (update.input.name, signal.signal_name):
            self.found.raised = self.found.raised or event.event_id

    async def _continued(self, event: HistoryEvent) -> None:
        continued = event.workflow_execution_continued_as_new_event_attributes
        self.found.after = continued.new_execution_run_id


# --- the reset ----------------------------------------------------------------------------------


async def reset(client: Client, workflow_id: str, point: Point, reason: str) -> str:
    """Run on from there; the id of the new execution. One that is open is terminated.

    Stops, pauses, other messages and cancels of after that point are not repeated.

    Raises:
        RPCError: Temporal cannot be reached, or refuses.
    """
    exclude: Any = ResetReapplyExcludeType
    answer = await client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=workflow_id, run_id=point.run_id),
            reason=one_line(reason, 500),
            workflow_task_finish_event_id=point.event_id,
            # The same over its retries: one whose answer is lost is no second reset.
            request_id=str(uuid4()),
            reset_reapply_exclude_types=[
                exclude.RESET_REAPPLY_EXCLUDE_TYPE_SIGNAL,
                exclude.RESET_REAPPLY_EXCLUDE_TYPE_UPDATE,
                exclude.RESET_REAPPLY_EXCLUDE_TYPE_CANCEL_REQUEST,
            ],
        ),
        retry=True,
    )
    return str(answer.run_id)
