"""What the model was asked, turn by turn, out of a run's events: replies, summaries, epochs."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, Protocol, TypeVar

from google.protobuf.timestamp_pb2 import Timestamp
from pydantic import BaseModel, Field
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

from turnkeeper.contract import (
    GENERATE,
    SHORTEN,
    SUMMARISE,
    GenerateInput,
    GenerateOutput,
    ShortenOutput,
    SummariseInput,
    SummariseOutput,
)
from turnkeeper.entries import Entry
from turnkeeper.text import one_line
from turnkeeper.usage import Usage

__all__ = [
    "FAILED",
    "ExportedEpoch",
    "ExportedGeneration",
    "ExportedSummary",
    "TurnReader",
    "failure_of",
    "time_of",
]

_SAID = 1_000

_M = TypeVar("_M", bound=BaseModel)

FAILED = {
    EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED: "failed",
    EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT: "timed_out",
    EventType.EVENT_TYPE_ACTIVITY_TASK_CANCELED: "cancelled",
}
"""How an activity ends that answers nothing."""


class ExportedGeneration(BaseModel):
    """A reply that the model was asked for. What it said is an entry of the transcript."""

    turn: int
    status: str
    """`ok`, or how the last attempt ended: `failed`, `timed_out`, `cancelled`; `open`: it was not
    over."""
    reply: str | None = None
    """The digest of its entry, which a transcript lacks whose run did not keep the reply."""
    model: str = ""
    stop_reason: str | None = None
    usage: Usage = Field(default_factory=Usage)
    attempts: int = 0
    failure: str | None = None
    scheduled: datetime
    ended: datetime | None = None


class ExportedSummary(BaseModel):
    """A summary of earlier turns that the model was asked for."""

    turn: int
    """During which it was begun."""
    at: datetime
    entries: int = 0
    """Of the view, that it stands for."""
    text: str = ""
    problem: str | None = None
    """Why there is none."""
    usage: Usage = Field(default_factory=Usage)


class ExportedEpoch(BaseModel):
    """Where the model began to see less of what was said before."""

    number: int
    """From 2."""
    at: datetime
    entries: int
    """That were said before."""
    how: Literal["references", "summary", "recent"] | None = None
    left_out: int = 0
    """Entries that the new view does not have."""
    referred: int = 0
    """Results that became references."""


class Read(Protocol):
    """Decodes what a run recorded; raises ValueError for what cannot be read."""

    def __call__(self, payloads: Sequence[Payload], model: type[_M]) -> Awaitable[_M]:
        """The one value."""
        ...


class TurnReader:
    """Gathers what the events tell of turns, over all executions of a run."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._asked: dict[int, ExportedGeneration] = {}
        self._summaries: dict[int, int] = {}
        """The turn of each that was begun."""
        self._shortens: set[int] = set()
        self.generations: list[ExportedGeneration] = []
        self.summaries: list[ExportedSummary] = []
        self.epochs: list[ExportedEpoch] = []
        self.unread: dict[str, Entry] = {}
        """Results, by call, that the model was not asked to read yet."""

    def begin(self) -> None:
        """The events of another execution follow, which count from 1 again."""
        self._asked, self._summaries, self._shortens = {}, {}, set()

    def returned(self, call_id: str, entry: Entry) -> None:
        """A call has its result."""
        self.unread[call_id] = entry

    async def take(self, event: HistoryEvent) -> None:
        """Note an event; most tell nothing.

        Raises:
            ValueError: it cannot be read.
        """
        kind = event.event_type
        if kind == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            await self._scheduled(event)
        elif kind == EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED:
            started = event.activity_task_started_event_attributes
            if asked := self._asked.get(started.scheduled_event_id):
                asked.attempts = started.attempt
        elif kind == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
            await self._completed(event)
        elif kind in FAILED:
            scheduled, failure = failure_of(event)
            if asked := self._asked.pop(scheduled, None):
                asked.status, asked.failure = FAILED[kind], failure
                asked.ended = time_of(event.event_time)

    async def _scheduled(self, event: HistoryEvent) -> None:
        scheduled = event.activity_task_scheduled_event_attributes
        name, payloads = scheduled.activity_type.name, scheduled.input.payloads
        if name == GENERATE:
            asked = await self._read(payloads, GenerateInput)
            at = time_of(event.event_time)
            generation = ExportedGeneration(turn=asked.turn, status="open", scheduled=at)
            self._asked[event.event_id] = generation
            self.generations.append(generation)
            for entry in asked.new:
                if entry.kind == "result" and isinstance(entry.value, dict):
                    self.unread.pop(str(entry.value.get("call_id")), None)
        elif name == SUMMARISE:
            self._summaries[event.event_id] = (await self._read(payloads, SummariseInput)).turn
        elif name == SHORTEN:
            self._shortens.add(event.event_id)

    async def _completed(self, event: HistoryEvent) -> None:
        completed = event.activity_task_completed_event_attributes
        scheduled, payloads = completed.scheduled_event_id, completed.result.payloads
        at = time_of(event.event_time)
        if asked := self._asked.pop(scheduled, None):
            asked.ended = at
            reply = await self._read(payloads, GenerateOutput)
            asked.status, asked.reply = "ok", reply.entry.digest
            asked.model = one_line(reply.model or "", 200)
            asked.stop_reason, asked.usage = reply.stop_reason, reply.usage
        elif turn := self._summaries.pop(scheduled, None):
            written = await self._read(payloads, SummariseOutput)
            self.summaries.append(_summary(turn, at, written))
        elif scheduled in self._shortens:
            self._shortens.remove(scheduled)
            shorter = await self._read(payloads, ShortenOutput)
            if shorter.epoch is not None:
                self.epochs.append(
                    ExportedEpoch(
                        number=shorter.epoch.number + 1,
                        at=at,
                        entries=shorter.epoch.said.entries,
                        how=shorter.how,
                        left_out=shorter.left_out,
                        referred=shorter.referred,
                    )
                )


def _summary(turn: int, at: datetime, written: SummariseOutput) -> ExportedSummary:
    made = written.checkpoint
    return ExportedSummary(
        turn=turn,
        at=at,
        entries=made.entries if made else 0,
        text=made.text if made else "",
        problem=written.problem,
        usage=written.usage,
    )


def failure_of(event: HistoryEvent) -> tuple[int, str | None]:
    """Of an activity that did not answer: the event that scheduled it, and why on one line."""
    ended: Any = getattr(event, event.WhichOneof("attributes") or "")
    # One that was cancelled has none.
    failure = getattr(ended, "failure", None)
    return ended.scheduled_event_id, one_line(failure.message, _SAID) if failure else None


def time_of(moment: Timestamp) -> datetime:
    """As a datetime, in UTC."""
    return moment.ToDatetime(UTC)
