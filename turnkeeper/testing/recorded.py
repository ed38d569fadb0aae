"""A run as its histories tell it, read without the code that made them.

All executions of a run, from a server or from files. Payloads have to be plain JSON: the test kit
runs agents without a codec.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowHistory

from turnkeeper.contract import (
    GENERATE,
    SUMMARISE,
    ExecuteInput,
    ExecuteOutput,
    GenerateInput,
    RunResult,
)

__all__ = [
    "RecordedCall",
    "RecordedGeneration",
    "RecordedRun",
    "fetch",
    "load",
    "read",
    "save",
]

End = Literal["completed", "failed", "timed_out", "canceled"]
Closed = Literal["completed", "failed", "canceled", "terminated", "timed_out"]


@dataclass
class RecordedActivity:
    """An activity; times in seconds since 1970, by the server's clock."""

    scheduled: float
    attempt: int = 0
    """Of the start that is recorded with its end; 0 while it has none."""
    end: End | None = None
    ended: float | None = None
    before_timed_out: bool = False
    """Whether the server gave up the attempt before that: its worker was not heard of."""

    def lost_at(self, time: float) -> bool:
        """Whether an attempt was under way at that time that did not come to its end."""
        if self.ended is None or not self.scheduled <= time < self.ended:
            return False
        return self.attempt > 1 or self.end == "timed_out"


@dataclass
class RecordedCall(RecordedActivity):
    """A tool call."""

    input: ExecuteInput = field(kw_only=True)
    output: ExecuteOutput | None = None
    failure: str | None = None
    """Type of the error that it ended with."""

    @property
    def mutates(self) -> bool:
        """Whether it may change the world."""
        return self.input.effect != "read"


@dataclass
class RecordedGeneration(RecordedActivity):
    """A request to the model."""

    turn: int = field(kw_only=True)
    """Counted from 1."""


@dataclass
class RecordedRun:
    """One run, over all its executions."""

    id: str
    calls: list[RecordedCall] = field(default_factory=list)
    generations: list[RecordedGeneration] = field(default_factory=list)
    summaries: list[RecordedActivity] = field(default_factory=list)
    """The runtime's own requests to the model."""
    closed: Closed | None = None
    ended: float | None = None
    result: RunResult | None = None
    executions: int = 0


async def fetch(client: Client, run: str) -> list[WorkflowHistory]:
    """The histories of a run's executions, the first one first."""
    execution = (await client.get_workflow_handle(run).describe()).run_id
    found: list[WorkflowHistory] = []
    while execution:
        history = await client.get_workflow_handle(run, run_id=execution).fetch_history()
        found.insert(0, history)
        started = history.events[0].workflow_execution_started_event_attributes
        execution = started.continued_execution_run_id
    return found


def save(folder: Path, histories: Iterable[WorkflowHistory]) -> None:
    """Write each execution's history to a file of its own, `RUN_ID.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    for history in histories:
        started = history.events[0].workflow_execution_started_event_attributes
        told = {"id": history.workflow_id, "history": history.to_json()}
        name = f"{started.original_execution_run_id}.json"
        (folder / name).write_text(json.dumps(told))


def load(files: Iterable[Path]) -> list[WorkflowHistory]:
    """Read what `save` wrote; the files in order of the executions."""
    told = [json.loads(file.read_text()) for file in files]
    return [WorkflowHistory.from_json(t["id"], t["history"]) for t in told]


def read(run: str, histories: Sequence[WorkflowHistory]) -> RecordedRun:
    """Put together what the executions of a run, in order, tell."""
    found = RecordedRun(run)
    for history in histories:
        _Execution(found).read(history.events)
        found.executions += 1
    return found


class _Execution:
    def __init__(self, run: RecordedRun) -> None:
        self._run = run
        self._activities: dict[int, RecordedActivity] = {}

    def read(self, events: Sequence[HistoryEvent]) -> None:
        for event in events:
            if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
                self._scheduled(event)
            elif event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED:
                started = event.activity_task_started_event_attributes
                if (activity := self._activities.get(started.scheduled_event_id)) is not None:
                    activity.attempt = started.attempt
                    last = started.last_failure
                    activity.before_timed_out = last.HasField("timeout_failure_info")
            elif event.event_type in _ENDS:
                self._ended(event)
            elif event.event_type in _CLOSES:
                self._closed(event)

    def _scheduled(self, event: HistoryEvent) -> None:
        scheduled = event.activity_task_scheduled_event_attributes
        name, payloads = scheduled.activity_type.name, scheduled.input.payloads
        if name == GENERATE:
            asked = GenerateInput.model_validate_json(payloads[0].data)
            generation = RecordedGeneration(_time(event), turn=asked.turn)
            self._activities[event.event_id] = generation
            self._run.generations.append(generation)
        elif name == SUMMARISE:
            summary = RecordedActivity(_time(event))
            self._activities[event.event_id] = summary
            self._run.summaries.append(summary)
        elif not name.startswith("run."):
            input_ = ExecuteInput.model_validate_json(payloads[0].data)
            call = RecordedCall(_time(event), input=input_)
            self._activities[event.event_id] = call
            self._run.calls.append(call)

    def _ended(self, event: HistoryEvent) -> None:
        end, attributes = _ENDS[event.event_type]
        told: Any = getattr(event, attributes)
        activity = self._activities.get(told.scheduled_event_id)
        if activity is None:
            return
        activity.end, activity.ended = end, _time(event)
        if not isinstance(activity, RecordedCall):
            return
        if end == "completed":
            data = told.result.payloads[0].data
            activity.output = ExecuteOutput.model_validate_json(data)
            if activity.output.asks is not None:
                # It was to find out whether a person has to allow the call: that comes after it.
                self._run.calls = [c for c in self._run.calls if c is not activity]
        elif end == "failed":
            activity.failure = told.failure.application_failure_info.type

    def _closed(self, event: HistoryEvent) -> None:
        self._run.closed = _CLOSES[event.event_type]
        self._run.ended = _time(event)
        payloads = list(_result(event))
        self._run.result = RunResult.model_validate_json(payloads[0].data) if payloads else None
        if self._run.closed == "canceled":
            self._run.result = RunResult(outcome="cancelled")


_ENDS: Final[dict[int, tuple[End, str]]] = {
    EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED: (
        "completed",
        "activity_task_completed_event_attributes",
    ),
    EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED: ("failed", "activity_task_failed_event_attributes"),
    EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT: (
        "timed_out",
        "activity_task_timed_out_event_attributes",
    ),
    EventType.EVENT_TYPE_ACTIVITY_TASK_CANCELED: (
        "canceled",
        "activity_task_canceled_event_attributes",
    ),
}
_CLOSES: Final[dict[int, Closed]] = {
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED: "completed",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED: "failed",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED: "canceled",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED: "terminated",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT: "timed_out",
}


def _result(event: HistoryEvent) -> Iterator[Any]:
    yield from event.workflow_execution_completed_event_attributes.result.payloads
    failure = event.workflow_execution_failed_event_attributes.failure
    yield from failure.application_failure_info.details.payloads


def _time(event: HistoryEvent) -> float:
    return event.event_time.ToNanoseconds() / 1e9
