"""Where a run stands: its own word, or what the server knows where no worker answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence

from temporalio.client import (
    Client,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowQueryFailedError,
)
from temporalio.service import RPCError

from turnkeeper.artifacts import ArtifactStore
from turnkeeper.connection import readable_errors
from turnkeeper.contract import (
    GENERATE,
    STATUS,
    ApprovalAsked,
    CallStatus,
    PauseRequest,
    RunStatus,
    UnknownCall,
)
from turnkeeper.ends import ended
from turnkeeper.errors import StateLost
from turnkeeper.history import HistoryReader, ToolRun, Transcript, read_transcript
from turnkeeper.outside import (
    agent_of,
    approvals_of,
    attribute,
    awaited_of,
    describe,
    paused_of,
    retried,
    unknown_of,
    waits_of,
)
from turnkeeper.spec import Limits
from turnkeeper.state import Phase

__all__ = ["status_of"]

_Store = Callable[[], ArtifactStore]


async def status_of(client: Client, store: _Store, run: str, timeout: float) -> RunStatus:
    """See `AgentClient.status`; `store` opens where the run's artifacts are."""
    described = await describe(client, run)
    with readable_errors(client, run):
        if described.status is not WorkflowExecutionStatus.RUNNING:
            return await _of_ended(client, store, described)
        try:
            async with asyncio.timeout(timeout):
                handle = client.get_workflow_handle(run)
                answer: RunStatus = await handle.query(STATUS, result_type=RunStatus)
        except (TimeoutError, RPCError, WorkflowQueryFailedError):
            answer = await _by_history(client, store, described)
    if again := retried(described):
        # The run itself does not know: attempts are the server's.
        answer = answer.model_copy(update={"waiting_for": f"{answer.waiting_for} ({again})"})
    return answer


async def _limits(
    client: Client, store: ArtifactStore, described: WorkflowExecutionDescription
) -> Limits | None:
    """With which a run began; None if it ended before that was settled."""
    try:
        spec = await HistoryReader(client, store, described.id, described.run_id).spec()
    except StateLost:
        return None
    return spec.limits


async def _of_ended(
    client: Client, store: _Store, described: WorkflowExecutionDescription
) -> RunStatus:
    artifacts = store()
    result, limits, unknown = await asyncio.gather(
        ended(client, described), _limits(client, artifacts, described), unknown_of(described)
    )
    if result is None:
        raise LookupError(f"the server no longer keeps how run {described.id} ended")
    limits = result.limits or limits
    return RunStatus(
        **({} if limits is None else {"limits": limits}),
        agent=result.agent or attribute(described, "TurnkeeperAgent", str) or "",
        model=result.model,
        phase="ended",
        turn=result.turns,
        waiting_for="",
        usage=result.usage,
        outcome=result.outcome,
        answer=result.answer,
        # One that Temporal ended has no result to tell of it.
        unknown=result.unknown or unknown,
        approvals=result.approvals,
        unread=result.unread,
    )


async def _by_history(
    client: Client, store: _Store, described: WorkflowExecutionDescription
) -> RunStatus:
    """Of an open run whose worker does not answer."""
    artifacts = store()
    agent, said, limits = await asyncio.gather(
        agent_of(client, described),
        read_transcript(client, artifacts, described.id),
        _limits(client, artifacts, described),
    )
    unknown, asked = await unknown_of(described), await approvals_of(described)
    waits, paused = await waits_of(described), await paused_of(described)
    calls = _calls(said, unknown, asked)
    phase = _phase(described, said, calls)
    replies = sum(e.kind == "reply" for e in said.entries)
    return RunStatus(
        **({} if limits is None else {"limits": limits}),
        agent=agent,
        model=attribute(described, "TurnkeeperModel", str) or "",
        phase=phase,
        # The reply of the turn that generates is not in the transcript yet.
        turn=replies + 1 if phase is Phase.GENERATE else replies,
        waiting_for="; ".join([*waits.values(), "no worker answers"])
        if waits
        else "a worker: none answers",
        calls=calls,
        awaited=await awaited_of(described),
        unknown=unknown,
        approvals=asked,
        paused=PauseRequest(reason=paused.reason, actor=paused.actor) if paused else None,
    )


def _calls(
    said: Transcript, unknown: Sequence[UnknownCall], asked: Sequence[ApprovalAsked]
) -> list[CallStatus]:
    waiting = {c.key for c in unknown if c.status == "waiting"}
    to_allow = {a.call_id for a in asked}
    return [
        CallStatus(call_id=t.input.call_id, tool=t.input.tool, status=_progress(t, waiting))
        for t in said.tail
        # What only found out whether to ask is followed by the call itself.
        if t.output is None or t.output.asks is None or t.input.call_id in to_allow
    ]


def _progress(call: ToolRun, waiting: Collection[str]) -> str:
    if call.input.key in waiting or (call.output and call.output.asks):
        return "waiting"
    return "done" if call.output or call.failure else "running"


def _phase(
    described: WorkflowExecutionDescription, said: Transcript, calls: Sequence[CallStatus]
) -> Phase:
    pending = described.raw_description.pending_activities
    if any(p.activity_type.name == GENERATE for p in pending):
        return Phase.GENERATE
    if calls:
        return Phase.RESUME if all(c.status == "done" for c in calls) else Phase.EXECUTE
    return Phase.PARSE if said.entries and said.entries[-1].kind == "reply" else Phase.GENERATE
