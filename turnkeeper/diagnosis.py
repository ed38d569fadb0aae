"""Why a run does not go on: what the server knows of its pending work, and who could do it.

Needs no worker: it is asked when none answers. Everything in it that a run, a tool or a provider
has said is bounded and on one line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from google.protobuf.timestamp_pb2 import Timestamp
from temporalio.api.enums.v1 import EventType, PendingActivityState, TaskQueueType
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.api.workflowservice.v1 import (
    DescribeTaskQueueRequest,
    GetWorkflowExecutionHistoryReverseRequest,
)
from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus
from temporalio.service import RPCError

from turnkeeper.contract import DAY_IS_SPENT, SWITCHED_ON, ApprovalAsked, UnknownCall
from turnkeeper.outside import (
    Origin,
    activity_words,
    approvals_of,
    awaited_of,
    origin_of,
    paused_of,
    unknown_of,
    waits_of,
)
from turnkeeper.pending import tool_attempts
from turnkeeper.suggestion import Suggestion, ending_waits, serving
from turnkeeper.text import age, one_line

__all__ = ["Diagnosis", "Finding", "diagnose"]

_POLLED_SECONDS = 90.0
"""Since the last poll of a worker that lives: a poll is answered after 60, with work or without."""
_SLOW_TASK_SECONDS = 10.0
"""Of a workflow task that nobody has taken."""
_LONG = 600
_ENDS = {
    "resume": ("resume it; its time limit goes on", "resume"),
    "answer": ("", "answer"),
    "message": ("", "send"),
}
"""What keeps a run from going on, if that kind of waiting does, and the verb that ends it."""


@dataclass(frozen=True)
class Finding:
    """One thing that a run waits for, in words; `mend` is what to do about it, if anything."""

    what: str
    mend: str = ""
    commands: Sequence[Suggestion] = ()
    """By which a person does that."""


@dataclass(frozen=True)
class Diagnosis:
    """What is pending of a run. status: as in `RunSummary`; workers: who polled lately."""

    id: str
    run_id: str
    status: str
    task_queue: str
    workers: Sequence[str]
    findings: Sequence[Finding]
    waiting: Sequence[UnknownCall] = field(default=())
    """Calls that wait for a person to say whether they took effect."""
    approvals: Sequence[ApprovalAsked] = field(default=())
    """Calls that wait for a person to allow them."""
    polled: Mapping[str, float] = field(default_factory=dict)
    """By worker: how many seconds ago it polled last."""
    origin: Origin = field(default_factory=Origin)


async def diagnose(client: Client, described: WorkflowExecutionDescription) -> Diagnosis:
    """Look at a run, the most telling thing first.

    Raises:
        RPCError: the server cannot be reached.
    """
    status = described.status or WorkflowExecutionStatus.RUNNING
    if status is not WorkflowExecutionStatus.RUNNING:
        return Diagnosis(described.id, described.run_id, status.name.lower(), "", (), ())
    queue = described.task_queue
    now = datetime.now(UTC)
    pollers = await _pollers(client, queue)
    polled = {name: _since(last, now) for name, last in sorted(pollers.items())}
    living = {name: ago for name, ago in polled.items() if ago < _POLLED_SECONDS}
    waiting = [c for c in await unknown_of(described) if c.status == "waiting"]
    asked, waits = await approvals_of(described), await waits_of(described)
    origin = await origin_of(client, described)
    paused = await paused_of(described) is not None
    ends = ending_waits(described.id, await awaited_of(described), paused=paused)
    attempts = await tool_attempts(client, described)
    findings = [
        *await _failing_task(client, described),
        *_nobody(described, origin.agent, living, polled, now),
        # For a switch there is an activity, which tells more.
        *(_awaited(kind, what, ends) for kind, what in waits.items() if kind != "switch"),
        *(
            _activity(p, now, queue, attempts.get(p.activity_id))
            for p in described.raw_description.pending_activities
        ),
    ]
    return Diagnosis(
        described.id,
        described.run_id,
        "waiting" if waits else "running",
        queue,
        list(living),
        findings or [Finding("nothing: it is at work")],
        waiting,
        asked,
        living,
        origin,
    )


async def _failing_task(client: Client, described: WorkflowExecutionDescription) -> list[Finding]:
    """A workflow task that fails again and again: a bug, or code that does not fit the history."""
    task = described.raw_description.pending_workflow_task
    if task.attempt < 2:
        return []
    last = await _last_failed_task(client, described)
    why = "its worker died, or took too long" if last is None else _why(last)
    return [
        Finding(
            f"its workflow task fails, attempt {task.attempt}: {why}",
            "deploy code that replays its history (the error is in the worker's log, too); the run "
            "goes on by itself",
        )
    ]


async def _last_failed_task(
    client: Client, described: WorkflowExecutionDescription
) -> HistoryEvent | None:
    """The last event that says so. Only the first failure in a row has one."""
    request = GetWorkflowExecutionHistoryReverseRequest(
        namespace=client.namespace,
        execution=described.raw_info.execution,
        maximum_page_size=20,
    )
    page = await client.workflow_service.get_workflow_execution_history_reverse(request)
    failed = EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED
    return next((e for e in page.history.events if e.event_type == failed), None)


def _why(failed: HistoryEvent) -> str:
    return one_line(failed.workflow_task_failed_event_attributes.failure.message, _LONG)


def _nobody(
    described: WorkflowExecutionDescription,
    agent: str,
    living: Mapping[str, float],
    polled: Mapping[str, float],
    now: datetime,
) -> list[Finding]:
    """No worker on the task queue, or none that takes what is there."""
    queue = described.task_queue
    if not living:
        last = min(polled.values(), default=None)
        seen = f"; the last one polled {age(last)} ago" if last is not None else ""
        return [
            Finding(
                f"no worker polls task queue {queue}{seen}",
                "start one",
                [serving(queue, agent)],
            )
        ]
    raw = described.raw_description
    if not raw.HasField("pending_workflow_task"):
        return []
    waited = _since(raw.pending_workflow_task.original_scheduled_time, now)
    if raw.pending_workflow_task.attempt > 1 or waited < _SLOW_TASK_SECONDS:
        return []
    return [_untaken(waited, living, serving(queue, agent))]


def _untaken(waited: float, living: Mapping[str, float], another: Suggestion) -> Finding:
    """A workflow task that workers leave lying, which seem to live."""
    last = age(min(living.values()))
    told = f"1 worker that polled {last} ago"
    mend = "it is busy, hangs or has died (one that died is listed for up to 90 s): see its log"
    if len(living) > 1:
        told = f"{len(living)} workers, of which one polled {last} ago"
        mend = "they are busy, hang or have died (listed for up to 90 s): see their logs"
    return Finding(
        f"a workflow task waits {age(waited)} for {told}",
        f"{mend} and turnkeeper's metrics; add a worker",
        [another],
    )


def _awaited(kind: str, what: str, ends: Sequence[Suggestion]) -> Finding:
    mend, verb = _ENDS.get(kind, ("", ""))
    return Finding(f"it waits for {what}", mend, [e for e in ends if verb and e.verb == verb])


def _held_back(why: Failure, queue: str) -> Finding:
    """It may not ask its model now."""
    waits = f"it waits for {one_line(why.message, _LONG)}"
    if why.application_failure_info.type == DAY_IS_SPENT:
        listing = Suggestion("day-limit list", aim="see what was used today")
        return Finding(waits, "`day-limit set` raises it", [listing])
    on_queue = (("--task-queue", queue),)
    listing = Suggestion("switch list", (), on_queue, "see what is off")
    return Finding(waits, "`switch on` ends it", [listing])


def _activity(
    pending: PendingActivityInfo, now: datetime, queue: str, attempt: str | None
) -> Finding:
    """What an activity does, or why it does nothing; `attempt` is told of tools."""
    if pending.activity_type.name == SWITCHED_ON and pending.HasField("last_failure"):
        return _held_back(pending.last_failure, queue)
    what = activity_words(pending)
    # The bound of a tool's call has room for workers that lack it: it is not the tool's own.
    own = pending.activity_type.name.startswith("run.") and pending.maximum_attempts
    most = f" of {pending.maximum_attempts}" if own else ""
    parts = [attempt or f"attempt {pending.attempt}{most}"]
    if pending.HasField("last_failure"):
        parts.append(f"the last one failed: {one_line(pending.last_failure.message, _LONG)}")
    if pending.state == PendingActivityState.PENDING_ACTIVITY_STATE_PAUSED:
        return Finding(
            f"{what} is paused ({', '.join(parts)})", "unpause the activity in Temporal's UI"
        )
    if pending.state == PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED:
        wait = -_since(pending.next_attempt_schedule_time, now)
        if pending.HasField("next_attempt_schedule_time") and wait > 0:
            parts.append(f"tried again in {age(wait)}")
        else:
            parts.append("no worker has taken it yet")
        return Finding(f"{what}: {', '.join(parts)}")
    parts.append(f"at work for {age(_since(pending.last_started_time, now))}")
    if pending.last_worker_identity:
        parts.append(f"on {one_line(pending.last_worker_identity, 120)}")
    if pending.HasField("last_heartbeat_time"):
        parts.append(f"last heartbeat {age(_since(pending.last_heartbeat_time, now))} ago")
    return Finding(f"{what}: {', '.join(parts)}")


async def _pollers(client: Client, queue: str) -> dict[str, Timestamp]:
    """Workers that the server remembers on the task queue, and when they last polled."""
    found: dict[str, Timestamp] = {}
    for kind in (
        TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
        TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
    ):
        request = DescribeTaskQueueRequest(
            namespace=client.namespace, task_queue=TaskQueue(name=queue), task_queue_type=kind
        )
        try:
            told = await client.workflow_service.describe_task_queue(request)
        except RPCError:
            # Some clusters keep it to administrators; the rest of the diagnosis stands.
            continue
        for poller in told.pollers:
            name = one_line(poller.identity, 120)
            if poller.last_access_time.seconds > found.get(name, Timestamp()).seconds:
                found[name] = poller.last_access_time
    return found


def _since(moment: Timestamp, now: datetime) -> float:
    return (now - moment.ToDatetime(UTC)).total_seconds()
