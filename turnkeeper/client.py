"""AgentClient: start agent runs and read, await and stop them, from any asyncio program.

    client = await AgentClient.connect()
    run = await client.start("finance", "What is 7% of last year's revenue?")
    result = await run.result()

There is one way to run an agent, as a workflow on a Temporal server: without a server every call
raises, nothing is ever run in this process instead.

Beside the errors of `turnkeeper.errors`, calls raise Python's own: `ConnectionError` (no server),
`LookupError` (no such run), `TimeoutError` (the given time is over). Inside a workflow every call
raises a non-retryable ApplicationError at once.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from typing import Any, BinaryIO, Literal, TypeVar, overload

from pydantic import BaseModel
from temporalio import workflow
from temporalio.client import (
    Client,
    WorkflowExecution,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
)
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import (
    ApplicationError,
    WorkflowAlreadyStartedError,
)
from temporalio.service import RPCError, RPCStatusCode

from turnkeeper import switchboard
from turnkeeper.answers import answer_to
from turnkeeper.artifacts import ArtifactStore, open_store
from turnkeeper.connection import DEFAULT_ADDRESS, connect, own_settings, readable
from turnkeeper.contract import (
    ANSWER,
    APPROVE,
    ATTRIBUTE_TYPES,
    DENY,
    DUPLICATE,
    ENDED,
    PAUSE,
    RAISE_LIMITS,
    RESOLVE,
    RESUME,
    SEND,
    STATUS,
    STOP,
    TASK_QUEUE,
    WORKFLOW,
    AnswerRequest,
    ApproveRequest,
    Checked,
    DenyRequest,
    ForkRequest,
    PauseRequest,
    RaiseLimitsRequest,
    ResolveRequest,
    ResumeRequest,
    RunRequest,
    RunResult,
    RunStatus,
    SendRequest,
    StopRequest,
    read_public,
)
from turnkeeper.diagnosis import Diagnosis, diagnose
from turnkeeper.entries import strict_json
from turnkeeper.errors import (
    AdmissionError,
    EffectsRepeated,
    InvalidRequest,
    OutputMismatch,
    StateLost,
    error_for,
)
from turnkeeper.export import RunExport, export_run, write_export
from turnkeeper.follow import Step, follow
from turnkeeper.history import HistoryReader, Transcript, read_transcript
from turnkeeper.messages import ask, ask_or_start, leave, leave_or_start
from turnkeeper.output_type import Unfit, read_as
from turnkeeper.outside import (
    PendingApproval,
    RunSummary,
    UnknownOutcome,
    agent_of,
    approvals_of,
    awaited_of,
    earlier_request,
    has_attribute,
    outcomes_of,
    paused_of,
    result_of_failure,
    retried,
    status_by_history,
    status_of_ended,
    summary_of,
    unknown_of,
    waits_of,
)
from turnkeeper.retry import find_turn, repeated_text, reset
from turnkeeper.source import forkable, request_of
from turnkeeper.spec import Limits
from turnkeeper.switches import Kind, Switch, SwitchRequest
from turnkeeper.text import one_line
from turnkeeper.waiting import KINDS, PERSON, TIME

__all__ = [
    "DEFAULT_ADDRESS",
    "AgentClient",
    "AgentRunHandle",
    "PendingApproval",
    "RunSummary",
    "UnknownOutcome",
]

RUN_ID = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.:/@+=-]{0,199}")
"""Ids of runs: safe in a URL, a shell and a visibility query."""

# A summary has at most 400 bytes with its quotes, and a character up to 4.
_SUMMARY_CHARACTERS = 96
# What a query or update may wait for a worker before we answer without one.
_WORKER_PATIENCE = 5.0

# Not those executions of long runs that went on in another one.
_OURS = f"WorkflowType = '{WORKFLOW}' AND ExecutionStatus != 'ContinuedAsNew'"

_LOOKED_AT = 10_000
"""Runs whose memos are read for one list."""
_Model = TypeVar("_Model", bound=BaseModel)
_T = TypeVar("_T")

Stopped = Literal["stopping", "queued", "ended"]
Held = Literal["pausing", "paused", "queued", "ended"]
Resumed = Literal["resuming", "running", "queued", "ended"]
Widened = Literal["raised", "queued", "ended"]
Resolved = Literal["resolved", "queued", "ended"]
Decided = Literal["decided", "queued", "ended"]
Answered = Literal["answered", "queued", "ended"]
Sent = Literal["accepted", "duplicate", "queued", "ended"]


class AgentClient:
    """Runs agents on a Temporal server.

    Args:
        client: connected with `turnkeeper.converter.data_converter`.
        task_queue: of the workers that run the agents.
        store: where the runs' artifacts are; default `turnkeeper.artifacts.open_store()`.
    """

    def __init__(
        self, client: Client, *, task_queue: str = TASK_QUEUE, store: ArtifactStore | None = None
    ) -> None:
        _not_in_a_workflow()
        self.client = client
        self.task_queue = task_queue
        self._store = store

    @classmethod
    async def connect(
        cls,
        address: str | None = None,
        *,
        namespace: str | None = None,
        task_queue: str = TASK_QUEUE,
        settings: Mapping[str, Any] | None = None,
        timeout: float = 10,
    ) -> AgentClient:
        """Connect by Temporal's own settings: TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE,
        TEMPORAL_API_KEY, TEMPORAL_TLS_*, or a profile in `temporal.toml`.

        `address` and `namespace` override them; without any address it is `DEFAULT_ADDRESS`.
        `settings`, arguments of temporalio's `Client.connect`, take the place of Temporal's own.

        Raises:
            ConnectionError: no server answers there within `timeout` seconds.
            ValueError: the settings cannot be read.
        """
        _not_in_a_workflow()
        chosen = dict(own_settings() if settings is None else settings)
        chosen["target_host"] = address or chosen.get("target_host") or DEFAULT_ADDRESS
        if namespace:
            chosen["namespace"] = namespace
        client = await connect(chosen, timeout)
        return cls(client, task_queue=task_queue)

    async def start(
        self,
        agent: str,
        prompt: str = "",
        *,
        id: str | None = None,  # noqa: A002 - Temporal's word for it
        keep_open: bool = False,
        limits: Mapping[str, Any] | None = None,
        request_key: str | None = None,
        metadata: Mapping[str, str] | None = None,
        task_timeout: float | None = None,
    ) -> AgentRunHandle:
        """Start a run and return at once.

        Args:
            agent: the agent's name.
            prompt: the task. With `keep_open` it may be left out: the run waits for a message.
            id: the run's id; the same request with the same id again gives the run that exists,
                whether it is open or closed (`handle.existed`), so a start may safely be repeated.
            keep_open: after its answer the run waits for the next message (`send`), for
                `Limits.idle_seconds`; then it is complete.
            limits: fields of `Limits` that replace the agent's own.
            request_key: the caller's name of this piece of work, for idempotency keys.
            metadata: strings for tools and operators.
            task_timeout: seconds after which the server hands a workflow task of a worker that
                died to another one; Temporal's default is 10.

        Raises:
            InvalidRequest: the request or the id is malformed, or the id belongs to a run with
                another request or to a workflow that is no agent run; the message names the field.
            ConnectionError: the server cannot be reached.
        """
        _not_in_a_workflow()
        request = _request(agent, prompt, limits, request_key, metadata, keep_open=keep_open)
        return await self._begin(request, id, task_timeout)

    async def fork(
        self,
        id: str,  # noqa: A002 - Temporal's word for it
        turn: int,
        edit: str | None = None,
        *,
        new_id: str | None = None,
        run_id: str | None = None,
        limits: Mapping[str, Any] | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> AgentRunHandle:
        """Start a new run that begins with what another one, open or closed, had said before the
        generation of a turn. That run stays as it is.

        The fork is of the agent as it is deployed now. Its idempotency keys are its own: what the
        other run did from that turn on may be done again. Its turns are counted on from there, its
        tokens and time from zero.

        Args:
            id: of the run that is forked.
            turn: that of its first, second, ... reply, to the one after the last; a generation that
                a message has ended has no reply, and is not counted here.
            edit: what the model reads in place of the last message, if it has not read that by
                then, or else after the results.
            new_id: as `id` of `start`; the same fork with the same id again gives the run that
                exists.
            run_id: of an earlier execution, say one that `retry_from` has replaced.
            limits: fields of `Limits` that replace those the other run was started with.
            metadata: instead of the other run's.

        Raises:
            InvalidRequest: there is no such turn, or it is not finished yet.
            LookupError: there is no such run.
            StateLost: a stored part of its transcript is missing or was changed.
            ConnectionError: the server cannot be reached.
        """
        _not_in_a_workflow()
        asked = {"workflow_id": id, "turn": turn, "edit": edit, "run_id": run_id}
        _check(ForkRequest, asked)
        fork = ForkRequest.model_validate(asked)
        try:
            prefix = await forkable(self.client, self._artifacts(), fork)
            source = await request_of(self.client, fork)
        except ValueError as error:
            raise _invalid(str(error)) from None
        except RPCError as error:
            raise readable(error, id, self.client) from error
        request = _request(
            source.agent,
            [*prefix.read, *prefix.unread][0].value["text"],
            {**source.limits, **(limits or {})},
            None,
            source.metadata if metadata is None else metadata,
            fork=fork,
            keep_open=source.keep_open,
        )
        return await self._begin(request, new_id, None)

    async def retry_from(
        self,
        id: str,  # noqa: A002 - Temporal's word for it
        turn: int,
        *,
        again: bool = False,
        reason: str = "",
        actor: str | None = None,
    ) -> AgentRunHandle:
        """Run a run, open or closed, again from the generation of a turn, in its own place: what it
        had said before stays, what came after is gone from its transcript.

        The keys stay the same. What was sent to the run after that turn (a stop, a pause, raised
        limits) is forgotten. An open run is terminated where it is; a call that is at work then may
        still take effect.

        Args:
            id: the run's id.
            turn: the first turn to be run again.
            again: also if calls of these turns may have changed the world.
            reason: why; stands in Temporal's history.
            actor: who asks.

        Returns:
            the same run, with the `run_id` of the execution that goes on.

        Raises:
            EffectsRepeated: such calls were found, and `again` is false; the message says what
                would become of each. Nothing was done.
            InvalidRequest: there is no such turn, or the run's time is over.
            LookupError: there is no such run.
            ConnectionError: the server cannot be reached.
        """
        await self._describe(id)
        by = f" by {actor}" if actor else ""
        why = f"retry from turn {turn}{by}: {reason or 'no reason given'}"
        try:
            point = await find_turn(self.client, id, turn)
            if point.effects and not again:
                raise EffectsRepeated(repeated_text(id, turn, point.effects), point.effects)
            run_id = await reset(self.client, id, point, why)
        except ValueError as error:
            raise _invalid(str(error)) from None
        except RPCError as error:
            raise readable(error, id, self.client) from error
        return AgentRunHandle(self, id, run_id=run_id, existed=True)

    async def _begin(
        self,
        request: RunRequest,
        id: str | None,  # noqa: A002 - Temporal's word for it
        task_timeout: float | None,
    ) -> AgentRunHandle:
        chosen = _checked_id(id if id is not None else f"{request.agent}-{secrets.token_hex(4)}")
        try:
            started = await self.client.start_workflow(
                WORKFLOW,
                request,
                id=chosen,
                task_queue=self.task_queue,
                # Also for closed runs: a repeated start never runs an agent a second time.
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                static_summary=one_line(request.prompt or "conversation", _SUMMARY_CHARACTERS),
                task_timeout=timedelta(seconds=task_timeout) if task_timeout else None,
            )
        except WorkflowAlreadyStartedError:
            await self._check_same(chosen, request)
            return AgentRunHandle(self, chosen, existed=True)
        except RPCError as error:
            raise readable(error, chosen, self.client) from error
        return AgentRunHandle(self, chosen, run_id=started.result_run_id)

    @overload
    async def result(
        self,
        id: str,
        *,
        check: bool = True,
        timeout: float | None = None,
    ) -> RunResult: ...
    @overload
    async def result(
        self,
        id: str,
        *,
        output: type[_T],
        timeout: float | None = None,
    ) -> _T: ...

    async def result(
        self,
        id: str,  # noqa: A002 - Temporal's word for it
        *,
        check: bool = True,
        output: Any = None,
        timeout: float | None = None,
    ) -> Any:
        """Wait for the end of a run.

        With `check=False` every outcome is returned as a RunResult; those that Temporal made are
        `cancelled`, `terminated`, `timed_out` and, for a bug of a workflow, `failed`.

        With `output`, a type that pydantic knows, the run's output is returned, as a value of that
        type; one of over 64 kB is read from the artifact store.

        Raises:
            RunError: the subclass for the outcome, for all but `completed`.
            OutputMismatch: the output is not of that type, or there is none.
            LookupError: there is no such run.
            TimeoutError: the run goes on after `timeout` seconds.
        """
        _not_in_a_workflow()
        try:
            async with asyncio.timeout(timeout):
                result = await self._result(id)
        except RPCError as error:
            raise readable(error, id, self.client) from error
        if check and result.outcome != "completed":
            message = f"run {id}: {result.outcome}" + (
                f": {result.reason}" if result.reason else ""
            )
            if result.outcome == "outcome_unknown":
                message += f" (`starter.py show {id}` has the call and its key)"
            raise error_for(result.outcome, message, result)
        if output is None:
            return result
        return await self._output(id, result.output, result.output_artifact, output)

    async def status(
        self,
        id: str,  # noqa: A002 - Temporal's word for it
        *,
        timeout: float = _WORKER_PATIENCE,
    ) -> RunStatus:
        """Where a run stands.

        Asks the run itself; of a closed run, or if no worker answers within `timeout` seconds, what
        the server knows without one.

        Raises:
            LookupError: there is no such run.
        """
        described = await self._describe(id)
        if described.status is not WorkflowExecutionStatus.RUNNING:
            ended, limits, unknown = await asyncio.gather(
                self._ended(described),
                self._limits(id, described.run_id),
                unknown_of(described),
            )
            if ended is None:
                raise LookupError(f"the server no longer keeps how run {id} ended")
            return status_of_ended(ended, described, limits, unknown)
        handle = self.client.get_workflow_handle(id)
        try:
            async with asyncio.timeout(timeout):
                answer: RunStatus = await handle.query(STATUS, result_type=RunStatus)
        except (TimeoutError, RPCError, WorkflowQueryFailedError):
            answer = await self._status_by_history(described)
        if again := retried(described):
            # The run itself does not know: attempts are the server's.
            answer = answer.model_copy(update={"waiting_for": f"{answer.waiting_for} ({again})"})
        return answer

    async def transcript(
        self,
        id: str,  # noqa: A002 - Temporal's word for it
    ) -> Transcript:
        """All that was said in a run, open or closed; needs no worker.

        Raises:
            LookupError: there is no such run.
            StateLost: a stored part of it is missing or was changed.
        """
        _not_in_a_workflow()
        try:
            return await read_transcript(self.client, self._artifacts(), id)
        except RPCError as error:
            raise readable(error, id, self.client) from error

    async def stop(
        self,
        id: str,  # noqa: A002 - Temporal's word for it
        reason: str = "",
        actor: str | None = None,
        *,
        timeout: float = _WORKER_PATIENCE,
    ) -> Stopped:
        """Ask a run to end with outcome `stopped`.

        Returns:
            `stopping`: the run has taken note. `queued`: no worker answered within `timeout`
            seconds; the server delivers the request to the next one. `ended`: the run was over.

        Raises:
            InvalidRequest: the reason or actor is too long.
            LookupError: there is no such run.
        """
        body = _signed({"reason": reason}, actor)
        _check(StopRequest, body)
        answer = await self._ask(id, STOP, body, timeout)
        if answer is not None:
            return "stopping" if answer == "accepted" else answer
        return await self._leave(id, STOP, body)

    async def pause(
        self,
        id: str,  # noqa: A002 - Temporal's word for it
        reason: str = "",
        actor: str | None = None,
        *,
        timeout: float = _WORKER_PATIENCE,
    ) -> Held:
        """Ask a run to wait before its next generation; what is under way is finished.

        Its time limit goes on: a run that is paused for longer than its `wall_seconds` ends.

        Returns:
            `pausing`: the run has taken note. `paused`: somebody had paused it already, and that
            reason stays. `queued` and `ended`: as for `stop`.

        Raises:
            InvalidRequest: the reason or actor is too long.
            LookupError: there is no such run.
        """
        body = {"reason": reason} | ({"actor": actor} if actor else {})
        _check(PauseRequest, body)
        answer = await self._answer(id, PAUSE, body, timeout)
        if isinstance(answer, dict):
            return "paused" if "note" in answer else "pausing"
        return answer or await self._leave(id, PAUSE, body)

    async def resume(
        self,
        id: str,  # noqa: A002 - Temporal's word for it
        actor: str | None = None,
        *,
        timeout: float = _WORKER_PATIENCE,
    ) -> Resumed:
        """Let a paused run go on.

        Returns:
            `resuming`: the run has taken note. `running`: it was not paused. `queued` and `ended`:
            as for `stop`.

        Raises:
            InvalidRequest: the actor is too long.
            LookupError: there is no such run.
        """
        body = {"actor": actor} if actor else {}
        _check(ResumeRequest, body)
        answer = await self._answer(id, RESUME, body, timeout)
        if isinstance(answer, dict):
            return "running" if "note" in answer else "resuming"
        return answer or await self._leave(id, RESUME, body)

    async def raise_limits(
        self,
        id: str,  # noqa: A002 - Temporal's word for it
        limits: Mapping[str, Any],
        reason: str = "",
        actor: str | None = None,
        *,
        timeout: float = _WORKER_PATIENCE,
    ) -> Widened:
        """Raise limits of a run that has not reached them; `wall_seconds` still count from its
        start. Which, by whom and why stands in the run card.

        A run at its limit has ended. `fork` goes on from where it was.

        Args:
            id: the run's id.
            limits: fields of `Limits`, none narrower than it is now; None for no limit.
            reason: why.
            actor: who does it.
            timeout: seconds that a worker has to answer.

        Returns:
            `raised`: they count from now on. `queued`: no worker answered, and the server delivers
            it to the next one; what the run would refuse is dropped then, with a line in the
            worker's log. `ended`: the run is over.

        Raises:
            InvalidRequest: a limit would be narrower than it is, or cannot be changed, or the run
                is just ending at one; the message has the present value.
            LookupError: there is no such run.
        """
        body = _signed({"limits": dict(limits), "reason": reason}, actor)
        _check(RaiseLimitsRequest, body)
        answer = await self._ask(id, RAISE_LIMITS, body, timeout)
        if answer is not None:
            return "raised" if answer == "accepted" else answer
        return await self._leave(id, RAISE_LIMITS, body)

    async def resolve(
        self,
        id: str,  # noqa: A002 - Temporal's word for it
        call_id: str,
        *,
        landed: bool,
        result: str = "",
        actor: str | None = None,
        timeout: float = _WORKER_PATIENCE,
    ) -> Resolved:
        """Say whether a call that waits for a person took effect; `unknown_calls` finds them.

        Args:
            id: the run's id.
            call_id: the call's.
            landed: whether it took effect.
            result: what the model reads: the receipt, or why it did not happen.
            actor: who says so.
            timeout: seconds that a worker has to answer.

        Returns:
            `resolved`: the run has taken note and goes on. `queued`: no worker answered, and the
            server delivers it to the next one; if somebody else's word reaches the run first, this
            one is dropped, with a line in the worker's log. `ended`: the run is over, and the call
            stays as it is recorded there.

        Raises:
            InvalidRequest: no such call waits, or it was resolved a moment ago, or the body is
                malformed; the message says which calls wait.
            LookupError: there is no such run.
        """
        body = _signed({"call_id": call_id, "landed": landed, "result": result}, actor)
        _check(ResolveRequest, body)
        answer = await self._ask(id, RESOLVE, body, timeout)
        if answer is not None:
            return "resolved" if answer == "accepted" else answer
        await self._check_waits(id, call_id)
        return await self._leave(id, RESOLVE, body)

    async def approve(
        self,
        id: str,  # noqa: A002 - Temporal's word for it
        approval: str,
        *,
        actor: str | None = None,
        proof: str | None = None,
        remember: bool = False,
        timeout: float = _WORKER_PATIENCE,
    ) -> Decided:
        """Let a call be run that waits for a person's word; `approvals` finds them.

        Args:
            id: the run's id.
            approval: the id of what is allowed: one call with one set of arguments.
            actor: who says so.
            proof: for the agent's `verify`, that it is them; it is recorded in history.
            remember: do not ask again in this run for this tool.
            timeout: seconds that a worker has to answer.

        Returns:
            `decided`: the run has taken note; also if it had been said before. Whether it counts is
            found out after that where the agent verifies who decides. `queued`: no worker
            answered, and the server delivers it to the next one; what is decided by then, or has
            expired, stays so, with a line in the worker's log. `ended`: the run is over.

        Raises:
            InvalidRequest: no such call waits, it was denied or has expired, or the body is
                malformed; the message says which.
            LookupError: there is no such run.
        """
        body: dict[str, Any] = {"approval": approval, "remember": remember}
        signed = _signed(body, actor, proof)
        return await self._decide(id, APPROVE, ApproveRequest, signed, timeout)

    async def deny(
        self,
        id: str,  # noqa: A002 - Temporal's word for it
        approval: str,
        *,
        reason: str = "",
        actor: str | None = None,
        proof: str | None = None,
        timeout: float = _WORKER_PATIENCE,
    ) -> Decided:
        """Have a call not run that waits for a person's word; the model reads the reason.

        Returns and raises as `approve`.
        """
        body: dict[str, Any] = {"approval": approval, "reason": reason}
        return await self._decide(id, DENY, DenyRequest, _signed(body, actor, proof), timeout)

    async def approvals(
        self, query: str = "", *, limit: int = 1_000
    ) -> AsyncIterator[PendingApproval]:
        """Calls that wait for a person to allow them, over all open runs. Needs no worker.

        At most `limit` runs are read: in a namespace with the search attribute TurnkeeperStatus
        those that wait for a person, else all open ones that match `query`.

        Raises:
            ConnectionError: the server cannot be reached.
            ValueError: the server does not understand the query.
        """
        _not_in_a_workflow()
        try:
            searchable = await has_attribute(self.client, "TurnkeeperStatus")
        except RPCError as error:
            raise readable(error, "", self.client) from error
        narrowed = "TurnkeeperStatus = 'waiting'" if searchable else "ExecutionStatus = 'Running'"
        async for execution in self._executions(query, narrowed, limit=limit):
            if asked := await approvals_of(execution):
                agent = await agent_of(self.client, execution)
                for one in asked:
                    yield PendingApproval(execution.id, execution.run_id, agent, one)

    async def answer(
        self,
        id: str,  # noqa: A002 - Temporal's word for it
        call_id: str,
        text: str,
        *,
        actor: str | None = None,
        timeout: float = _WORKER_PATIENCE,
    ) -> Answered:
        """Answer a question that the model has asked with `ask_person`; `status` has it.

        Returns:
            `answered`: the run goes on. `queued`: no worker answered within `timeout` seconds; the
            server delivers it to the next one, which drops it, with a line in its log, if no such
            call waits. `ended`: the run was over.

        Raises:
            InvalidRequest: no such call waits, or the body is malformed.
            LookupError: there is no such run.
        """
        body = _signed({"call_id": call_id, "text": text}, actor)
        _check(AnswerRequest, body)
        answer = await self._ask(id, ANSWER, body, timeout)
        if answer is not None:
            return "answered" if answer == "accepted" else answer
        return await self._leave(id, ANSWER, body)

    async def send(
        self,
        id: str,  # noqa: A002 - Temporal's word for it
        text: str,
        *,
        message_id: str,
        interrupt: bool = False,
        actor: str | None = None,
        timeout: float = _WORKER_PATIENCE,
    ) -> Sent:
        """Say something to the model of an open run; `reply` awaits its answer.

        Args:
            id: the run's id.
            text: what the model reads, after the turn that is under way.
            message_id: your own name of this message. Sent again under the same one, as after a
                lost answer, it is not taken twice; a run remembers the last 1,000.
            interrupt: what is under way is cancelled, and the model reads the message at once.
            actor: who says it: recorded, not shown to the model.
            timeout: seconds that a worker has to answer.

        Returns:
            `accepted`: the model will read it, or the run's result says that it was not read.
            `duplicate`: it was accepted before. `queued`: no worker answered within `timeout`
            seconds; the server delivers it to the next one, which drops what it would have refused,
            with a line in its log. `ended`: the run was over.

        Raises:
            InvalidRequest: the body is malformed, or too much waits to be read already.
            LookupError: there is no such run.
        """
        body = _message(text, message_id, interrupt, actor)
        try:
            answer = await self._ask(id, SEND, body, timeout)
        except InvalidRequest as error:
            if (became := _became(error.__cause__)) is None:
                raise
            return became
        return answer or await self._leave(id, SEND, body)

    async def send_or_start(
        self,
        agent: str,
        text: str,
        *,
        id: str,  # noqa: A002 - Temporal's word for it
        message_id: str,
        limits: Mapping[str, Any] | None = None,
        request_key: str | None = None,
        metadata: Mapping[str, str] | None = None,
        interrupt: bool = False,
        actor: str | None = None,
        anew: bool = False,
        timeout: float = _WORKER_PATIENCE,
    ) -> tuple[AgentRunHandle, Sent]:
        """As `send`, in one step with the start of the conversation, if there is none of that id.

        It is started without a prompt and kept open: the message is the first thing said. One that
        is open already goes on as it was started. One that has ended stays so (`ended`), unless
        `anew`: then another begins under its id, which knows nothing of it.

        Raises:
            InvalidRequest: the request or the body is malformed, or too much waits to be read.
            ConnectionError: the server cannot be reached.
        """
        _not_in_a_workflow()
        request = _request(agent, "", limits, request_key, metadata, keep_open=True)
        body = _message(text, message_id, interrupt, actor)
        run = {
            "workflow": WORKFLOW,
            "arg": request,
            "id": _checked_id(id),
            "task_queue": self.task_queue,
            "id_reuse_policy": WorkflowIDReusePolicy.ALLOW_DUPLICATE
            if anew
            else WorkflowIDReusePolicy.REJECT_DUPLICATE,
            "static_summary": one_line(text, _SUMMARY_CHARACTERS),
        }
        sent: Sent = "accepted"
        try:
            if not await ask_or_start(self.client, run, SEND, body, timeout):
                await leave_or_start(self.client, run, SEND, body)
                sent = "queued"
        except WorkflowAlreadyStartedError:
            sent = "ended"
        except WorkflowUpdateFailedError as error:
            if (became := _became(error)) is None:
                raise _invalid(f"{SEND}: {error.cause}") from error
            sent = became
        except RPCError as error:
            raise readable(error, id, self.client) from error
        return AgentRunHandle(self, id), sent

    @overload
    async def reply(
        self,
        id: str,
        message_id: str,
        *,
        timeout: float | None = None,
    ) -> str: ...
    @overload
    async def reply(
        self,
        id: str,
        message_id: str,
        *,
        output: type[_T],
        timeout: float | None = None,
    ) -> _T: ...

    async def reply(
        self,
        id: str,  # noqa: A002 - Temporal's word for it
        message_id: str,
        *,
        output: Any = None,
        timeout: float | None = None,
    ) -> Any:
        """Await the model's answer to a message: the text with which it ended the turn in which it
        read it; of an agent with an output type, the first that is of that type, and with `output`
        as a value of such a type. Messages that it read together have the same one. Needs no worker
        of its own.

        Raises:
            RunError: the run ended before; the subclass for its outcome.
            OutputMismatch: as `result` has it.
            LookupError: there is no such run, or it completed and has read no such message.
            TimeoutError: there is no answer after `timeout` seconds.
        """
        _not_in_a_workflow()
        try:
            async with asyncio.timeout(timeout):
                answer = await answer_to(self.client, id, message_id)
        except RPCError as error:
            raise readable(error, id, self.client) from error
        if answer is None:
            await self.result(id)
            raise LookupError(f"run {id} has ended, and has read no message {message_id!r}")
        if output is None:
            return answer.text
        checked = answer.checked or Checked()
        value = None if checked.value is None else strict_json(checked.value)
        return await self._output(id, value, checked.artifact, output)

    async def chat(
        self,
        id: str,  # noqa: A002 - Temporal's word for it
        text: str,
        *,
        message_id: str | None = None,
        actor: str | None = None,
        timeout: float | None = None,
    ) -> str:
        """Send a message and await its answer; see `send` and `reply`, whose errors it raises."""
        named = message_id or secrets.token_hex(8)
        await self.send(id, text, message_id=named, actor=actor)
        return await self.reply(id, named, timeout=timeout)

    async def why(
        self,
        id: str,  # noqa: A002 - Temporal's word for it
    ) -> Diagnosis:
        """Why a run does not go on: see `turnkeeper.diagnosis`. Needs no worker.

        Raises:
            LookupError: there is no such run.
            ConnectionError: the server cannot be reached.
        """
        described = await self._describe(id)
        try:
            return await diagnose(self.client, described)
        except RPCError as error:
            raise readable(error, id, self.client) from error

    def follow(
        self,
        id: str,  # noqa: A002 - Temporal's word for it
    ) -> AsyncIterator[Step]:
        """The steps of a run from its first to its last, as they happen; see `turnkeeper.follow`.

        Works for open and closed runs, and needs no worker.

        Raises:
            LookupError: there is no such run.
            ConnectionError: the server is away for more than a minute.
        """
        _not_in_a_workflow()
        return self._follow(id)

    async def list_runs(
        self, query: str = "", *, waiting_for: str | None = None, limit: int = 100
    ) -> AsyncIterator[RunSummary]:
        """Runs, open ones first, then the last to close.

        `query` is one of Temporal's, such as `TurnkeeperTenant = 'acme'` or `StartTime > '...'`.
        `waiting_for`: only runs that wait for that: `person`, or a name in `waiting.KINDS`.
        Namespaces without our search attributes are served too, with a few more calls per run.

        Raises:
            ConnectionError: the server cannot be reached.
            ValueError: the server does not understand the query, or too many runs wait.
        """
        _not_in_a_workflow()
        if waiting_for is None:
            found = self._executions(query, limit=limit)
        else:
            found = self._waiting(query, waiting_for, limit=limit)
        async for execution in found:
            yield await summary_of(self.client, execution, self._ended)

    async def count_runs(self, query: str = "", *, waiting_for: str | None = None) -> int:
        """How many runs a query finds; see `list_runs`.

        Raises:
            ConnectionError: the server cannot be reached.
            ValueError: the server does not understand the query, or too many runs wait.
        """
        _not_in_a_workflow()
        if waiting_for is not None:
            return sum([1 async for _ in self._waiting(query, waiting_for, limit=_LOOKED_AT)])
        try:
            counted = await self.client.count_workflows(_all_of(query))
        except RPCError as error:
            raise self._unanswered(error) from error
        return counted.count

    async def unknown_calls(
        self, query: str = "", *, waiting_only: bool = False, limit: int = 1_000
    ) -> AsyncIterator[UnknownOutcome]:
        """Calls of which nobody could tell whether they took effect, over all runs.

        Those that wait for a person, and, without `waiting_only`, those that are open: the model
        was told, or the run has ended. Needs no worker. Runs come in the order of `list_runs`, the
        calls of each with the newest first.

        At most `limit` runs are read: in a namespace with the search attribute TurnkeeperUnknown
        those that have such calls, else all that match `query`.

        Raises:
            ConnectionError: the server cannot be reached.
            ValueError: the server does not understand the query.
        """
        _not_in_a_workflow()
        states = "'waiting'" if waiting_only else "'waiting', 'open'"
        try:
            searchable = await has_attribute(self.client, "TurnkeeperUnknown")
        except RPCError as error:
            raise readable(error, "", self.client) from error
        narrowed = f"TurnkeeperUnknown IN ({states})" if searchable else ""
        async for execution in self._executions(query, narrowed, limit=limit):
            for outcome in await outcomes_of(self.client, execution):
                status = outcome.call.status
                if status == "waiting" or (status == "open" and not waiting_only):
                    yield outcome

    async def unknown_calls_of(
        self,
        id: str,  # noqa: A002 - Temporal's word for it
    ) -> list[UnknownOutcome]:
        """The last calls of one run whose outcome was, or is, unknown, the newest first; also those
        that were settled. Needs no worker.

        Raises:
            LookupError: there is no such run.
        """
        return await outcomes_of(self.client, await self._describe(id))

    async def export(
        self,
        id: str,  # noqa: A002 - Temporal's word for it
        *,
        run_id: str | None = None,
    ) -> RunExport:
        """A run as one document, for audits; see `turnkeeper.export`. Needs no worker.

        `run_id` names one of several runs that had the id, by its last execution; default the last.

        Raises:
            LookupError: there is no such run.
            OSError: the server or the artifact store cannot be read now.
        """
        described, result = await self._as_it_ended(id, run_id)
        try:
            return await export_run(self.client, self._artifacts(), described, result)
        except RPCError as error:
            raise readable(error, id, self.client) from error

    async def export_to(
        self,
        file: BinaryIO,
        id: str,  # noqa: A002 - Temporal's word for it
        *,
        run_id: str | None = None,
    ) -> RunExport:
        """As `export`, written to `file` as JSON while it is read, for runs of any length.

        Returns it without its entries.
        """
        described, result = await self._as_it_ended(id, run_id)
        try:
            return await write_export(self.client, self._artifacts(), described, result, file)
        except RPCError as error:
            raise readable(error, id, self.client) from error

    # --- kill switches --------------------------------------------------------------------------

    async def switch_off(
        self,
        kind: Kind,
        name: str,
        reason: str,
        actor: str | None = None,
        *,
        timeout: float = _WORKER_PATIENCE,
    ) -> switchboard.Switched:
        """Switch off a tool, an agent or a tenant, for all runs of this client's task queue.

        Two seconds after the answer `switched` nothing of it begins any more: calls are answered as
        not run, and runs of the agent or tenant wait before their next request to the model. What
        has begun goes on.

        Args:
            kind: `tool`, `agent` or `tenant`.
            name: of a tool `issue_refund`, or `refunds.issue_refund` for that agent's alone.
            reason: why; models and operators read it.
            actor: who says so.
            timeout: seconds that a worker has to answer.

        Returns:
            `switched`; `unchanged`: it was off already, and its first reason stays; `queued`: no
            worker has answered, and the server tells the next one.

        Raises:
            InvalidRequest: the name or reason is malformed, or too much is switched off.
            ConnectionError: the server cannot be reached.
        """
        asked = {"kind": kind, "name": name, "off": True, "reason": reason, "actor": actor}
        return await self._switch(asked, timeout)

    async def switch_on(
        self,
        kind: Kind,
        name: str,
        reason: str = "",
        actor: str | None = None,
        *,
        timeout: float = _WORKER_PATIENCE,
    ) -> switchboard.Switched:
        """Switch on again what was switched off; runs that wait go on within a minute.

        Arguments, answers and errors are those of `switch_off`.
        """
        asked = {"kind": kind, "name": name, "off": False, "reason": reason, "actor": actor}
        return await self._switch(asked, timeout)

    async def switches(self) -> list[Switch]:
        """What is switched off, in the order in which that was done. Needs no worker.

        Raises:
            ConnectionError: the server cannot be reached.
        """
        _not_in_a_workflow()
        try:
            return (await switchboard.read(self.client, self.task_queue)).switches
        except RPCError as error:
            raise readable(error, "", self.client) from error

    async def _switch(self, body: Mapping[str, Any], timeout: float) -> switchboard.Switched:
        _not_in_a_workflow()
        asked = _check(SwitchRequest, body)
        try:
            return await switchboard.change(self.client, self.task_queue, asked, timeout)
        except WorkflowUpdateFailedError as error:
            raise _invalid(f"switch: {error.cause}") from error
        except RPCError as error:
            raise readable(error, "", self.client) from error

    # --- inside ---------------------------------------------------------------------------------

    async def _result(self, run: str) -> RunResult:
        """How a run ends, also over resets: each terminates the execution that was open."""
        handle = self.client.get_workflow_handle(run, result_type=RunResult)
        while True:
            try:
                result: RunResult = await handle.result()
            except WorkflowFailureError as error:
                result = result_of_failure(error.cause)
            terminated = WorkflowExecutionStatus.TERMINATED
            if result.outcome != "terminated" or (await handle.describe()).status is terminated:
                return result

    async def _follow(self, run: str) -> AsyncIterator[Step]:
        try:
            async for step in follow(self.client, run):
                yield step
        except RPCError as error:
            raise readable(error, run, self.client) from error

    async def _executions(self, *conditions: str, limit: int) -> AsyncIterator[WorkflowExecution]:
        """Our runs that meet all conditions, empty ones aside; open runs first."""
        try:
            async for execution in self.client.list_workflows(_all_of(*conditions), limit=limit):
                yield execution
        except RPCError as error:
            raise self._unanswered(error) from error

    async def _waiting(
        self, query: str, waiting_for: str, *, limit: int
    ) -> AsyncIterator[WorkflowExecution]:
        """Open runs that wait for a person, all or for one kind of thing.

        Raises:
            ValueError: there is no such kind, or more runs wait than are looked at.
        """
        if waiting_for not in (PERSON, *KINDS):
            raise ValueError(f"runs wait for {', '.join((PERSON, *KINDS))}, not {waiting_for!r}")
        narrowed = "ExecutionStatus = 'Running'"
        try:
            if await has_attribute(self.client, "TurnkeeperStatus"):
                narrowed += " AND TurnkeeperStatus = 'waiting'"
        except RPCError as error:
            raise readable(error, "", self.client) from error
        looked_at = found = 0
        async for execution in self._executions(query, narrowed, limit=_LOOKED_AT + 1):
            if (looked_at := looked_at + 1) > _LOOKED_AT:
                raise ValueError(f"more than {_LOOKED_AT:,} runs may wait: narrow the query down")
            awaited = await waits_of(execution)
            people = [kind for kind in awaited if kind != TIME]
            if waiting_for in awaited or (waiting_for == PERSON and people):
                yield execution
                if (found := found + 1) == limit:
                    return

    async def _check_same(self, run: str, request: RunRequest) -> None:
        """Refuse the id of a run with another request: its answer is to another question."""
        described = await self._describe(run)
        try:
            earlier = await earlier_request(self.client, described)
        except ValueError:
            other = ["start"]
        except RPCError as error:
            raise readable(error, run, self.client) from error
        else:
            if earlier is None:
                return
            fields = RunRequest.model_fields
            other = [f for f in fields if getattr(earlier, f) != getattr(request, f)]
        if other:
            raise _invalid(
                f"id: run {run} exists already, with another {' and '.join(other)}; "
                "choose another id, or repeat that very request"
            )

    async def _output(self, run: str, value: Any, artifact: str | None, wanted: Any) -> Any:
        try:
            if artifact is not None:
                value = strict_json(await self._artifacts().get(run, artifact))
            return read_as(wanted, value)
        except (OSError, StateLost, AdmissionError) as error:
            told = f"run {run}: its output, artifact {artifact}, cannot be read: {error}"
            raise OutputMismatch(told) from error
        except Unfit as error:
            told = f"run {run}: its output is not of the type that is asked for: {error}"
            raise OutputMismatch(told) from None

    async def _limits(self, run: str, run_id: str) -> Limits | None:
        """What a run was bound by; None if it ended before that was settled."""
        try:
            spec = await HistoryReader(self.client, self._artifacts(), run, run_id).spec()
            return spec.limits
        except StateLost:
            return None
        except RPCError as error:
            raise readable(error, run, self.client) from error

    async def _status_by_history(self, described: WorkflowExecutionDescription) -> RunStatus:
        agent, transcript, limits = await asyncio.gather(
            agent_of(self.client, described),
            self.transcript(described.id),
            self._limits(described.id, described.run_id),
        )
        return status_by_history(
            agent,
            described,
            transcript,
            limits,
            unknown=await unknown_of(described),
            asked=await approvals_of(described),
            waits=await waits_of(described),
            paused=await paused_of(described),
            awaited=await awaited_of(described),
        )

    def _unanswered(self, error: RPCError) -> Exception:
        """What a query that the server did not answer raises."""
        if error.status is RPCStatusCode.INVALID_ARGUMENT:
            return ValueError(f"query: {self._bad_query(error.message)}")
        return readable(error, "", self.client)

    def _bad_query(self, message: str) -> str:
        for name in ATTRIBUTE_TYPES:
            if f"invalid search attribute: {name}" in message:
                return (
                    f"namespace {self.client.namespace} has no search attribute {name}; the worker "
                    "prints the command that makes it when it starts"
                )
        return message

    def _artifacts(self) -> ArtifactStore:
        if self._store is None:
            self._store = open_store()
        return self._store

    async def _ended(self, closed: WorkflowExecution) -> RunResult | None:
        """How a closed execution ended; None if the server no longer keeps it.

        By its own run id: another run may have its workflow id by now, and go on for days.
        """
        handle = self.client.get_workflow_handle(
            closed.id, run_id=closed.run_id, result_type=RunResult
        )
        try:
            result: RunResult = await handle.result(follow_runs=False)
        except WorkflowFailureError as error:
            return result_of_failure(error.cause)
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return None
            raise readable(error, closed.id, self.client) from error
        return result

    async def _as_it_ended(
        self, run: str, run_id: str | None
    ) -> tuple[WorkflowExecutionDescription, RunResult | None]:
        """A run, and its result if it is over."""
        described = await self._describe(run, run_id)
        running = described.status is WorkflowExecutionStatus.RUNNING
        return described, None if running else await self._ended(described)

    async def _describe(self, run: str, run_id: str | None = None) -> WorkflowExecutionDescription:
        _not_in_a_workflow()
        try:
            described = await self.client.get_workflow_handle(run, run_id=run_id).describe()
        except RPCError as error:
            raise readable(error, run, self.client) from error
        if described.workflow_type != WORKFLOW:
            raise _invalid(f"id: {run} is a workflow of type {described.workflow_type}")
        return described

    async def _ask(
        self, run: str, name: str, body: Mapping[str, Any], timeout: float
    ) -> Literal["accepted", "ended"] | None:
        """Send an update to an open run; None if no worker answers in time."""
        answer = await self._answer(run, name, body, timeout)
        return "accepted" if isinstance(answer, dict) else answer

    async def _answer(
        self, run: str, name: str, body: Mapping[str, Any], timeout: float
    ) -> dict[str, str] | Literal["ended"] | None:
        """As `_ask`, with the run's own words."""
        if await self._is_over(run):
            return "ended"
        try:
            return await ask(self.client.get_workflow_handle(run), name, body, timeout)
        except WorkflowUpdateFailedError as error:
            # A run that ends between our look and the update fails it too.
            if await self._is_over(run):
                return "ended"
            raise _invalid(f"{name}: {error.cause}") from error

    async def _decide(
        self, run: str, name: str, model: type[BaseModel], body: Mapping[str, Any], timeout: float
    ) -> Decided:
        _check(model, body)
        answer = await self._ask(run, name, body, timeout)
        if answer is not None:
            return "decided" if answer == "accepted" else answer
        await self._check_asked(run, name, body["approval"])
        return await self._leave(run, name, body)

    async def _check_asked(self, run: str, name: str, approval: str) -> None:
        """Refuse what an open run would drop without a word: it would come as a signal."""
        described = await self._describe(run)
        asked = {a.id: a.tool for a in await approvals_of(described)}
        if described.status is WorkflowExecutionStatus.RUNNING and approval not in asked:
            known = ", ".join(f"{k} ({one_line(v, 64)})" for k, v in asked.items()) or "none"
            raise _invalid(
                f"{name}: approval: {one_line(approval, 64)!r} waits for nobody; waiting: {known}"
            )

    async def _leave(
        self, run: str, name: str, body: Mapping[str, Any]
    ) -> Literal["queued", "ended"]:
        try:
            left = await leave(self.client.get_workflow_handle(run), name, body)
        except RPCError as error:
            raise readable(error, run, self.client) from error
        return "queued" if left else "ended"

    async def _is_over(self, run: str) -> bool:
        return (await self._describe(run)).status is not WorkflowExecutionStatus.RUNNING

    async def _check_waits(self, run: str, call_id: str) -> None:
        """Refuse what an open run would drop without a word: it would come as a signal."""
        described = await self._describe(run)
        waiting = [c.call_id for c in await unknown_of(described) if c.status == "waiting"]
        if described.status is WorkflowExecutionStatus.RUNNING and call_id not in waiting:
            known = ", ".join(waiting) or "none"
            raise _invalid(
                f"{RESOLVE}: call_id: no call {one_line(call_id, 100)!r} waits to be resolved; "
                f"waiting: {known}"
            )


class AgentRunHandle:
    """A run that was started; all its methods are those of `AgentClient` for this run."""

    def __init__(
        self,
        client: AgentClient,
        id: str,  # noqa: A002 - Temporal's word for it
        *,
        run_id: str | None = None,
        existed: bool = False,
    ) -> None:
        self.client = client
        self.id = id
        self.run_id = run_id
        """Temporal's id of the execution that was started; None for a run that existed."""
        self.existed = existed
        """Whether the id was taken: the run goes by its own, earlier request."""

    @overload
    async def result(self, *, check: bool = True, timeout: float | None = None) -> RunResult: ...
    @overload
    async def result(self, *, output: type[_T], timeout: float | None = None) -> _T: ...

    async def result(
        self, *, check: bool = True, output: Any = None, timeout: float | None = None
    ) -> Any:
        """See `AgentClient.result`."""
        if output is not None:
            return await self.client.result(self.id, output=output, timeout=timeout)
        return await self.client.result(self.id, check=check, timeout=timeout)

    async def status(self) -> RunStatus:
        """See `AgentClient.status`."""
        return await self.client.status(self.id)

    async def transcript(self) -> Transcript:
        """See `AgentClient.transcript`."""
        return await self.client.transcript(self.id)

    def follow(self) -> AsyncIterator[Step]:
        """See `AgentClient.follow`."""
        return self.client.follow(self.id)

    async def stop(self, reason: str = "", actor: str | None = None) -> Stopped:
        """See `AgentClient.stop`."""
        return await self.client.stop(self.id, reason, actor)

    async def approve(
        self,
        approval: str,
        *,
        actor: str | None = None,
        proof: str | None = None,
        remember: bool = False,
    ) -> Decided:
        """See `AgentClient.approve`."""
        return await self.client.approve(
            self.id, approval, actor=actor, proof=proof, remember=remember
        )

    async def deny(
        self, approval: str, *, reason: str = "", actor: str | None = None, proof: str | None = None
    ) -> Decided:
        """See `AgentClient.deny`."""
        return await self.client.deny(self.id, approval, reason=reason, actor=actor, proof=proof)

    async def pause(self, reason: str = "", actor: str | None = None) -> Held:
        """See `AgentClient.pause`."""
        return await self.client.pause(self.id, reason, actor)

    async def resume(self, actor: str | None = None) -> Resumed:
        """See `AgentClient.resume`."""
        return await self.client.resume(self.id, actor)

    async def fork(self, turn: int, edit: str | None = None, **options: Any) -> AgentRunHandle:
        """See `AgentClient.fork`."""
        return await self.client.fork(self.id, turn, edit, **options)

    async def retry_from(
        self, turn: int, *, again: bool = False, reason: str = "", actor: str | None = None
    ) -> AgentRunHandle:
        """See `AgentClient.retry_from`."""
        return await self.client.retry_from(self.id, turn, again=again, reason=reason, actor=actor)

    async def raise_limits(
        self, limits: Mapping[str, Any], reason: str = "", actor: str | None = None
    ) -> Widened:
        """See `AgentClient.raise_limits`."""
        return await self.client.raise_limits(self.id, limits, reason, actor)

    async def resolve(
        self, call_id: str, *, landed: bool, result: str = "", actor: str | None = None
    ) -> Resolved:
        """See `AgentClient.resolve`."""
        return await self.client.resolve(
            self.id, call_id, landed=landed, result=result, actor=actor
        )

    async def answer(self, call_id: str, text: str, *, actor: str | None = None) -> Answered:
        """See `AgentClient.answer`."""
        return await self.client.answer(self.id, call_id, text, actor=actor)

    async def send(
        self, text: str, *, message_id: str, interrupt: bool = False, actor: str | None = None
    ) -> Sent:
        """See `AgentClient.send`."""
        return await self.client.send(
            self.id, text, message_id=message_id, interrupt=interrupt, actor=actor
        )

    @overload
    async def reply(self, message_id: str, *, timeout: float | None = None) -> str: ...
    @overload
    async def reply(
        self, message_id: str, *, output: type[_T], timeout: float | None = None
    ) -> _T: ...

    async def reply(
        self, message_id: str, *, output: Any = None, timeout: float | None = None
    ) -> Any:
        """See `AgentClient.reply`."""
        return await self.client.reply(self.id, message_id, output=output, timeout=timeout)

    async def chat(self, text: str, *, timeout: float | None = None) -> str:
        """See `AgentClient.chat`."""
        return await self.client.chat(self.id, text, timeout=timeout)


def _signed(body: dict[str, Any], actor: str | None, proof: str | None = None) -> dict[str, Any]:
    return body | ({"actor": actor} if actor else {}) | ({"proof": proof} if proof else {})


def _all_of(*conditions: str) -> str:
    return " AND ".join([_OURS, *(f"({c})" for c in conditions if c)])


def _checked_id(run: str) -> str:
    if not RUN_ID.fullmatch(run):
        raise _invalid(
            f"id: {one_line(run, 80)!r}: use 1 to 200 letters, digits and _ . : / @ + = -, "
            "beginning with a letter or digit"
        )
    if run.startswith(switchboard.PREFIX):
        raise _invalid(f"id: {one_line(run, 80)!r}: such ids are those of kill switches")
    return run


def _message(text: str, message_id: str, interrupt: bool, actor: str | None) -> dict[str, Any]:
    body = _signed({"message_id": message_id, "text": text, "interrupt": interrupt}, actor)
    _check(SendRequest, body)
    return body


def _became(error: BaseException | None) -> Literal["duplicate", "ended"] | None:
    """What became of a refused message, where that is no fault of the caller's."""
    cause = error.cause if isinstance(error, WorkflowUpdateFailedError) else None
    kind = cause.type if isinstance(cause, ApplicationError) else None
    return "duplicate" if kind == DUPLICATE else "ended" if kind == ENDED else None


def _check(model: type[_Model], body: Mapping[str, Any]) -> _Model:
    try:
        return read_public(model, dict(body))
    except ValueError as error:
        raise _invalid(str(error)) from None


def _request(
    agent: str,
    prompt: str,
    limits: Mapping[str, Any] | None,
    request_key: str | None,
    metadata: Mapping[str, str] | None,
    *,
    fork: ForkRequest | None = None,
    keep_open: bool = False,
) -> RunRequest:
    body: dict[str, Any] = {"agent": agent, "prompt": prompt, "keep_open": keep_open}
    body |= {"limits": dict(limits)} if limits else {}
    body |= {"request_key": request_key} if request_key is not None else {}
    body |= {"metadata": dict(metadata)} if metadata else {}
    body |= {"fork": fork.model_dump(exclude_none=True)} if fork else {}
    try:
        return read_public(RunRequest, body)
    except ValueError as error:
        raise _invalid(str(error)) from None


def _invalid(message: str) -> InvalidRequest:
    return InvalidRequest(message, outcome="invalid_request")


def _not_in_a_workflow() -> None:
    if workflow.in_workflow():
        # Not a plain exception: that would fail the workflow task again and again, in silence.
        raise ApplicationError(
            "AgentClient cannot be used inside a workflow: its calls are not in history. Start "
            f"workflow type {WORKFLOW} as a child workflow, or use AgentClient in an activity.",
            type="invalid_request",
            non_retryable=True,
        )
