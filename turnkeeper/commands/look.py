"""A run at one moment, looked at again and again: what `starter.py watch` shows.

The server is asked every second, the run itself only when something has happened to it: a run that
is not at hand would be replayed from its history for every question.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from google.protobuf.timestamp_pb2 import Timestamp
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import WorkflowExecutionDescription, WorkflowExecutionStatus
from temporalio.converter import DataConverter
from temporalio.service import RPCError, RPCStatusCode

from turnkeeper.client import AgentClient
from turnkeeper.connection import readable, readable_errors
from turnkeeper.contract import CallStatus, ExecuteInput, RunResult, RunStatus
from turnkeeper.diagnosis import Diagnosis, Finding, diagnose
from turnkeeper.follow import Step, follow_events
from turnkeeper.outside import activity_words, attempt_words, waits_of

EVERY_SECONDS = 1.0
_AGAIN_SECONDS = 10.0
"""Until a run to which nothing happens is asked again: its worker may have come, or gone."""
_AWAY_SECONDS = 60.0
"""That the server may be away."""
_PATIENCE_SECONDS = 2.0
"""That a worker has to answer in; what the server knows is told then."""
_LAST_SECONDS = 5.0
"""Until the last steps of a run that has ended are read."""
_STEPS = 8

_ENDED = (
    EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED,
    EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED,
    EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT,
    EventType.EVENT_TYPE_ACTIVITY_TASK_CANCELED,
)


@dataclass(frozen=True)
class Work:
    """A tool call of this turn, or what the runtime does meanwhile."""

    what: str
    """The tool's name, or words such as `a reply`."""
    status: str
    """As in `CallStatus`."""
    call_id: str = ""
    arguments: str = ""
    since: datetime | None = None
    """When it was given to the workers; None where that is not known, or not done yet."""
    until: datetime | None = None
    note: str = ""
    """Of one that failed and is tried again, or that no worker has taken."""


@dataclass(frozen=True)
class Look:
    """See the module."""

    id: str
    at: datetime
    status: RunStatus
    started: datetime
    work: Sequence[Work] = ()
    waits: Sequence[str] = ()
    """What a person is waited for, as names of `turnkeeper.waiting.KINDS`."""
    workers: Sequence[str] = ()
    problems: Sequence[Finding] = ()
    """What keeps it from going on, and what to do about it."""
    steps: Sequence[Step] = ()
    """The last ones."""
    result: RunResult | None = None
    """Once it has ended."""


async def looks(client: AgentClient, run_id: str, status: RunStatus) -> AsyncIterator[Look]:
    """A look every second until the run has ended, the last one with its result.

    `status` is what the first look knows, until the run has answered.

    Raises:
        LookupError: there is no such run.
        ConnectionError: the server is away for more than a minute.
    """
    watcher = _Watcher(client, run_id, status)
    try:
        while True:
            look = await watcher.look()
            yield look
            if look.result is not None:
                return
            await watcher.pause()
    finally:
        watcher.close()


@dataclass
class _Timed:
    """When a call was given to the workers, and when it was done."""

    activity_id: str
    since: datetime
    until: datetime | None = None


@dataclass
class _Calls:
    """The calls of the last turn that history tells of."""

    converter: DataConverter
    turn: int = 0
    by_id: dict[str, _Timed] = field(default_factory=dict)
    _scheduled: dict[int, _Timed] = field(default_factory=dict)

    async def take(self, event: HistoryEvent) -> None:
        """Note when a call began or ended."""
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
            # Events are counted anew.
            self._scheduled.clear()
        elif event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            await self._begun(event)
        elif event.event_type in _ENDED:
            # Whichever of the four it is.
            name = event.WhichOneof("attributes") or ""
            ended = self._scheduled.pop(getattr(event, name).scheduled_event_id, None)
            if ended is not None:
                ended.until = _time(event.event_time)

    async def _begun(self, event: HistoryEvent) -> None:
        scheduled = event.activity_task_scheduled_event_attributes
        if scheduled.activity_type.name.startswith("run."):
            return
        try:
            (asked,) = await self.converter.decode(scheduled.input.payloads, [ExecuteInput])
        except Exception:  # noqa: BLE001 - of another release, or with a key that we lack
            return
        if asked.turn != self.turn:
            self.turn, self.by_id = asked.turn, {}
        timed = _Timed(scheduled.activity_id, _time(event.event_time))
        self._scheduled[event.event_id] = self.by_id[asked.call_id] = timed


class _Watcher:
    """Keeps what is known of a run between two looks."""

    def __init__(self, client: AgentClient, run_id: str, status: RunStatus) -> None:
        self._client = client
        self._id = run_id
        self._handle = client.client.get_workflow_handle(run_id)
        self._status = status
        self._diagnosis: Diagnosis | None = None
        self._calls = _Calls(client.client.data_converter)
        self._steps: deque[Step] = deque(maxlen=_STEPS)
        self._reading: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None
        self._seen: object = None
        """What the server knew of the run when it was last asked."""
        self._asked = 0.0
        self._last: Look | None = None
        self._away_since: float | None = None
        self._started: datetime | None = None

    async def look(self) -> Look:
        """What is to be seen now."""
        try:
            self._last = await self._look()
            self._away_since = None
        except ConnectionError as error:
            # A server that is restarted is waited for; the run goes on when it is back.
            now = asyncio.get_running_loop().time()
            self._away_since = self._away_since or now
            if self._last is None or now - self._away_since > _AWAY_SECONDS:
                raise
            away = Finding(str(error), "the run goes on when it is back")
            return replace(self._last, at=_now(), problems=[away])
        return self._last

    async def pause(self) -> None:
        """Until the next look: a second, or the run's end if that is sooner."""
        reading = self._reading
        if reading is None or reading.done():
            await asyncio.sleep(EVERY_SECONDS)
        else:
            await asyncio.wait([reading], timeout=EVERY_SECONDS)
        if reading is not None and reading.done():
            # A bug of ours would be lost with the task.
            reading.result()

    def close(self) -> None:
        """Ask no more."""
        for task in (self._reading, self._asking):
            if task is not None:
                task.cancel()

    async def _look(self) -> Look:
        described = await self._describe()
        if self._reading is None:
            self._reading = asyncio.create_task(self._read(described.run_id))
        if self._started is None:
            self._started = await self._first_start(described)
        if described.status is not WorkflowExecutionStatus.RUNNING:
            return await self._end()
        await self._ask_if_need_be(described)
        found = self._diagnosis
        return Look(
            id=self._id,
            at=_now(),
            status=self._status,
            started=self._started,
            work=self._work(described.raw_description.pending_activities),
            waits=list(await waits_of(described)),
            workers=list(found.workers) if found else (),
            problems=[f for f in found.findings if f.mend] if found else (),
            steps=list(self._steps),
        )

    async def _end(self) -> Look:
        assert self._reading is not None
        assert self._started is not None
        await asyncio.wait([self._reading], timeout=_LAST_SECONDS)
        return Look(
            id=self._id,
            at=_now(),
            status=await self._client.status(self._id),
            started=self._started,
            steps=list(self._steps),
            result=await self._client.result(self._id, check=False),
        )

    # --- the server -----------------------------------------------------------------------------

    async def _describe(self) -> WorkflowExecutionDescription:
        try:
            return await self._handle.describe(rpc_timeout=timedelta(seconds=5))
        except RPCError as error:
            if error.status is RPCStatusCode.CANCELLED:
                # As the SDK calls the end of its own timeout.
                raise ConnectionError("the Temporal server does not answer") from error
            raise readable(error, self._id, self._client.client) from error

    async def _first_start(self, described: WorkflowExecutionDescription) -> datetime:
        """When the run began; its last execution, where the first is not kept any more."""
        first = described.raw_info.first_run_id
        if first and first != described.run_id:
            handle = self._client.client.get_workflow_handle(self._id, run_id=first)
            try:
                return (await handle.describe()).start_time
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise readable(error, self._id, self._client.client) from error
        return described.start_time

    async def _read(self, run_id: str) -> None:
        """Note what happens, from the beginning of the last execution on."""
        self._steps.clear()
        try:
            async for event, steps in follow_events(self._client.client, self._id, run_id):
                await self._calls.take(event)
                self._steps.extend(s for s in steps if s.phase != "END")
        except RPCError:
            # The next look says what is wrong, and waits for the server or does not.
            self._reading = None

    # --- the run --------------------------------------------------------------------------------

    async def _ask_if_need_be(self, described: WorkflowExecutionDescription) -> None:
        now = asyncio.get_running_loop().time()
        seen = _signature(described)
        if self._asking is None and (seen != self._seen or now - self._asked > _AGAIN_SECONDS):
            self._seen, self._asked = seen, now
            self._asking = asyncio.create_task(self._ask(described))
        if self._asking is not None:
            # Without a worker there is no answer for some seconds: the look does not wait for it.
            done, _ = await asyncio.wait([self._asking], timeout=EVERY_SECONDS / 2)
            if done:
                asked, self._asking = self._asking, None
                asked.result()

    async def _ask(self, described: WorkflowExecutionDescription) -> None:
        with readable_errors(self._client.client, self._id):
            self._diagnosis = await diagnose(self._client.client, described)
        self._status = await self._client.status(self._id, timeout=_PATIENCE_SECONDS)

    def _work(self, pending: Sequence[PendingActivityInfo]) -> list[Work]:
        """The calls of the turn in their order, then what the runtime has to do."""
        by_activity = {p.activity_id: p for p in pending}
        asked = {u.call_id: u.since for u in self._status.unknown if u.status == "waiting"}
        asked |= {a.call_id: a.since for a in self._status.approvals if a.status == "waiting"}
        asked |= {a.call_id: a.since for a in self._status.awaited if a.call_id}
        calls = [self._call(c, by_activity, asked) for c in self._status.calls]
        others = [p for p in pending if p.activity_type.name.startswith("run.")]
        return [*calls, *(_of_runtime(p) for p in others)]

    def _call(
        self,
        call: CallStatus,
        pending: Mapping[str, PendingActivityInfo],
        asked: Mapping[str, float],
    ) -> Work:
        work = Work(call.tool, call.status, call.call_id, call.arguments)
        if call.status == "waiting" and call.call_id in asked:
            return replace(work, since=datetime.fromtimestamp(asked[call.call_id], UTC))
        timed = self._calls.by_id.get(call.call_id)
        if timed is None or self._calls.turn != self._status.turn:
            return work
        still = pending.get(timed.activity_id)
        note = _note(still) if still else ""
        # The run was asked before history told that it is over.
        over = timed.until is not None and call.status == "running"
        status = "done" if over else call.status
        return replace(work, status=status, since=timed.since, until=timed.until, note=note)


def _of_runtime(pending: PendingActivityInfo) -> Work:
    since = _time(pending.scheduled_time)
    return Work(activity_words(pending), "running", since=since, note=_note(pending))


def _note(pending: PendingActivityInfo) -> str:
    taken = pending.HasField("last_started_time")
    return attempt_words(pending) or ("" if taken else "no worker has taken it yet")


def _signature(described: WorkflowExecutionDescription) -> object:
    """What changes when something happens to the run."""
    raw = described.raw_description
    attempts = tuple((p.activity_id, p.attempt, p.state) for p in raw.pending_activities)
    return described.run_id, described.history_length, attempts, raw.pending_workflow_task.attempt


def _time(moment: Timestamp) -> datetime:
    return moment.ToDatetime(UTC)


def _now() -> datetime:
    return datetime.now(UTC)
