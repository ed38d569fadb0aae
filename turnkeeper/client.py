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
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from temporalio import workflow
from temporalio.client import (
    Client,
    WorkflowExecution,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.common import SearchAttributeKey, WorkflowIDReusePolicy
from temporalio.envconfig import ClientConfig
from temporalio.exceptions import (
    ApplicationError,
    CancelledError,
    FailureError,
    TerminatedError,
    WorkflowAlreadyStartedError,
)
from temporalio.exceptions import TimeoutError as TemporalTimeout
from temporalio.service import RPCError, RPCStatusCode

from turnkeeper.artifacts import ArtifactStore, open_store
from turnkeeper.contract import (
    GENERATE,
    STATUS,
    STOP,
    TASK_QUEUE,
    WORKFLOW,
    CallStatus,
    RunRequest,
    RunResult,
    RunStatus,
    StopRequest,
    read_public,
)
from turnkeeper.converter import data_converter
from turnkeeper.errors import InvalidRequest, error_for
from turnkeeper.follow import Step, follow
from turnkeeper.history import Transcript, read_transcript
from turnkeeper.spec import OUTCOMES
from turnkeeper.state import Phase
from turnkeeper.text import one_line

__all__ = ["DEFAULT_ADDRESS", "AgentClient", "AgentRunHandle", "RunSummary"]

DEFAULT_ADDRESS = "127.0.0.1:7233"
RUN_ID = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.:/@+=-]{0,199}")
"""Ids of runs: safe in a URL, a shell and a visibility query."""

# A summary has at most 400 bytes with its quotes, and a character up to 4.
_SUMMARY_CHARACTERS = 96
# What a query or update may wait for a worker before we answer without one.
_WORKER_PATIENCE = 5.0

Stopped = Literal["stopping", "queued", "ended"]


@dataclass(frozen=True)
class RunSummary:
    """One line of a list of runs."""

    id: str
    run_id: str
    agent: str
    status: str
    """`running`, or how Temporal closed it: `completed`, `failed`, `canceled`, ..."""
    outcome: str | None
    turns: int | None
    tokens: int | None
    started: datetime
    closed: datetime | None


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
        chosen = dict(_own_settings() if settings is None else settings)
        chosen["target_host"] = address or chosen.get("target_host") or DEFAULT_ADDRESS
        if namespace:
            chosen["namespace"] = namespace
        client = await _connect(chosen, timeout)
        return cls(client, task_queue=task_queue)

    async def start(
        self,
        agent: str,
        prompt: str,
        *,
        id: str | None = None,  # noqa: A002 - Temporal's word for it
        limits: Mapping[str, Any] | None = None,
        request_key: str | None = None,
        metadata: Mapping[str, str] | None = None,
        task_timeout: float | None = None,
    ) -> AgentRunHandle:
        """Start a run and return at once.

        Args:
            agent: the agent's name.
            prompt: the task.
            id: the run's id; the same id again gives the run that exists, whether it is open or
                closed (`handle.existed`), so a start may safely be repeated.
            limits: fields of `Limits` that replace the agent's own.
            request_key: the caller's name of this piece of work, for idempotency keys.
            metadata: strings for tools and operators.
            task_timeout: seconds after which the server hands a workflow task of a worker that
                died to another one; Temporal's default is 10.

        Raises:
            InvalidRequest: the request or the id is malformed, or the id belongs to a workflow that
                is no agent run; the message names the field.
            ConnectionError: the server cannot be reached.
        """
        _not_in_a_workflow()
        request = _request(agent, prompt, limits, request_key, metadata)
        chosen = id if id is not None else f"{agent}-{secrets.token_hex(4)}"
        if not RUN_ID.fullmatch(chosen):
            raise _invalid(
                f"id: {one_line(chosen, 80)!r}: use 1 to 200 letters, digits and _ . : / @ + = -, "
                "beginning with a letter or digit"
            )
        try:
            started = await self.client.start_workflow(
                WORKFLOW,
                request,
                id=chosen,
                task_queue=self.task_queue,
                # Also for closed runs: a repeated start never runs an agent a second time.
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                static_summary=one_line(request.prompt, _SUMMARY_CHARACTERS),
                task_timeout=timedelta(seconds=task_timeout) if task_timeout else None,
            )
        except WorkflowAlreadyStartedError:
            await self._describe(chosen)  # refuses a workflow that is no run of ours
            return AgentRunHandle(self, chosen, existed=True)
        except RPCError as error:
            raise _readable(error, chosen) from error
        return AgentRunHandle(self, chosen, run_id=started.result_run_id)

    async def result(
        self,
        id: str,  # noqa: A002 - Temporal's word for it
        *,
        check: bool = True,
        timeout: float | None = None,
    ) -> RunResult:
        """Wait for the end of a run.

        With `check=False` every outcome is returned as a RunResult; those that Temporal made are
        `cancelled`, `terminated`, `timed_out` and, for a bug of a workflow, `failed`.

        Raises:
            RunError: the subclass for the outcome, for all but `completed`.
            LookupError: there is no such run.
            TimeoutError: the run goes on after `timeout` seconds.
        """
        _not_in_a_workflow()
        handle = self.client.get_workflow_handle(id, result_type=RunResult)
        try:
            async with asyncio.timeout(timeout):
                result: RunResult = await handle.result()
        except WorkflowFailureError as error:
            result = _failed(error.cause)
        except RPCError as error:
            raise _readable(error, id) from error
        if check and result.outcome != "completed":
            message = f"run {id}: {result.outcome}" + (
                f": {result.reason}" if result.reason else ""
            )
            raise error_for(result.outcome, message, result)
        return result

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
            return _ended(await self.result(id, check=False), described)
        handle = self.client.get_workflow_handle(id)
        try:
            async with asyncio.timeout(timeout):
                answer: RunStatus = await handle.query(STATUS, result_type=RunStatus)
                return answer
        except (TimeoutError, RPCError, WorkflowQueryFailedError):
            return await self._seen_from_outside(described)

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
            raise _readable(error, id) from error

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
        body = {"reason": reason} | ({"actor": actor} if actor else {})
        try:
            read_public(StopRequest, body)
        except ValueError as error:
            raise _invalid(str(error)) from None
        described = await self._describe(id)
        if described.status is not WorkflowExecutionStatus.RUNNING:
            return "ended"
        handle = self.client.get_workflow_handle(id)
        try:
            async with asyncio.timeout(timeout):
                await handle.execute_update(STOP, body)
                return "stopping"
        except WorkflowUpdateFailedError as error:
            return await self._stop_refused(id, error)
        except (TimeoutError, RPCError, WorkflowUpdateRPCTimeoutOrCancelledError):
            # The SDK turns a cancellation of this task into that last error, too.
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise asyncio.CancelledError from None
            return await self._signal_stop(handle, body)

    def follow(
        self,
        id: str,  # noqa: A002 - Temporal's word for it
    ) -> AsyncIterator[Step]:
        """The steps of a run from its first to its last, as they happen; see `turnkeeper.follow`.

        Works for open and closed runs, and needs no worker.
        """
        _not_in_a_workflow()
        return follow(self.client, id)

    async def list_runs(self, query: str = "", *, limit: int = 100) -> AsyncIterator[RunSummary]:
        """Runs, open ones first, then the last to close, by a query such as `TurnkeeperTenant = 'acme'`.

        Namespaces without our search attributes are served too, with a few more calls per run.

        Raises:
            ConnectionError: the server cannot be reached.
            ValueError: the server does not understand the query.
        """
        _not_in_a_workflow()
        ours = f"WorkflowType = '{WORKFLOW}' AND ExecutionStatus != 'ContinuedAsNew'"
        wanted = f"{ours} AND ({query})" if query else ours
        try:
            async for execution in self.client.list_workflows(wanted, limit=limit):
                yield await self._summary(execution)
        except RPCError as error:
            if error.status is RPCStatusCode.INVALID_ARGUMENT:
                raise ValueError(f"query: {error.message}") from error
            raise _readable(error, "") from error

    # --- inside ---------------------------------------------------------------------------------

    def _artifacts(self) -> ArtifactStore:
        if self._store is None:
            self._store = open_store()
        return self._store

    async def _describe(self, run: str) -> WorkflowExecutionDescription:
        _not_in_a_workflow()
        try:
            described = await self.client.get_workflow_handle(run).describe()
        except RPCError as error:
            raise _readable(error, run) from error
        if described.workflow_type != WORKFLOW:
            raise _invalid(f"id: {run} is a workflow of type {described.workflow_type}")
        return described

    async def _stop_refused(self, run: str, error: WorkflowUpdateFailedError) -> Stopped:
        # A run that ends between our look and the update fails it too.
        described = await self._describe(run)
        if described.status is not WorkflowExecutionStatus.RUNNING:
            return "ended"
        raise _invalid(f"stop: {error.cause}") from error

    async def _signal_stop(self, handle: WorkflowHandle[Any, Any], body: dict[str, str]) -> Stopped:
        try:
            await handle.signal(STOP, body)
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return "ended"
            raise _readable(error, handle.id) from error
        return "queued"

    async def _seen_from_outside(self, described: WorkflowExecutionDescription) -> RunStatus:
        """The status of an open run whose worker does not answer, as history tells it."""
        transcript = await self.transcript(described.id)
        pending = described.raw_description.pending_activities
        calls = [
            CallStatus(
                call_id=t.input.call_id,
                tool=t.input.tool,
                status="done" if t.output or t.failure else "running",
            )
            for t in transcript.tail
        ]
        if any(p.activity_type.name == GENERATE for p in pending):
            phase = Phase.GENERATE
        elif calls:
            finished = all(c.status == "done" for c in calls)
            phase = Phase.RESUME if finished else Phase.EXECUTE
        else:
            replied = transcript.entries and transcript.entries[-1].kind == "reply"
            phase = Phase.PARSE if replied else Phase.GENERATE
        replies = sum(e.kind == "reply" for e in transcript.entries)
        return RunStatus(
            agent=await self._agent(described),
            model=_attribute(described, "TurnkeeperModel", str) or "",
            phase=phase,
            # The reply of the turn that generates is not in the transcript yet.
            turn=replies + 1 if phase is Phase.GENERATE else replies,
            waiting_for="a worker: none answers",
            calls=calls,
        )

    async def _summary(self, execution: WorkflowExecution) -> RunSummary:
        status = execution.status or WorkflowExecutionStatus.RUNNING
        outcome = _attribute(execution, "TurnkeeperOutcome", str)
        turns = _attribute(execution, "TurnkeeperTurns", int)
        tokens = _attribute(execution, "TurnkeeperTokens", int)
        if status is not WorkflowExecutionStatus.RUNNING and (outcome is None or turns is None):
            ended = await self.result(execution.id, check=False)
            outcome, turns, tokens = ended.outcome, ended.turns, ended.usage.total
        return RunSummary(
            id=execution.id,
            run_id=execution.run_id,
            agent=await self._agent(execution),
            status=status.name.lower(),
            outcome=outcome or None,
            turns=turns,
            tokens=tokens,
            started=execution.start_time,
            closed=execution.close_time,
        )

    async def _agent(self, execution: WorkflowExecution) -> str:
        """From the search attribute, else the memo, else the first event."""
        named = _attribute(execution, "TurnkeeperAgent", str)
        if named:
            return str(named)
        memo = await execution.memo_value("agent", None)
        if isinstance(memo, str):
            return memo
        handle = self.client.get_workflow_handle(execution.id, run_id=execution.run_id)
        async for event in handle.fetch_history_events(page_size=1):
            payloads = event.workflow_execution_started_event_attributes.input.payloads
            found = await self.client.data_converter.decode(payloads) if payloads else [None]
            request = found[0].get("request", found[0]) if isinstance(found[0], dict) else {}
            return one_line(str(request.get("agent", "")), 64) if isinstance(request, dict) else ""
        return ""


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
        """Temporal's id of the first execution; None for a run that existed."""
        self.existed = existed
        """Whether the id was taken: the run goes by its own, earlier request."""

    async def result(self, *, check: bool = True, timeout: float | None = None) -> RunResult:
        """See `AgentClient.result`."""
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


def _own_settings() -> Mapping[str, Any]:
    try:
        return ClientConfig.load_client_connect_config()
    except Exception as error:
        raise ValueError(f"Temporal's client settings: {error}") from error


async def _connect(settings: dict[str, Any], timeout: float) -> Client:
    where = f"{settings['target_host']} (namespace {settings.get('namespace', 'default')})"
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    while True:
        try:
            async with asyncio.timeout_at(deadline):
                return await Client.connect(**settings, data_converter=data_converter)
        except TimeoutError:
            raise ConnectionError(f"no answer from {where} in {timeout:g} s") from None
        except RuntimeError as error:
            # A server's port answers some moments before its frontend does.
            if "not healthy yet" not in str(error) or loop.time() > deadline - 0.2:
                why = "connection refused" if "ConnectionRefused" in str(error) else str(error)
                raise ConnectionError(f"no Temporal server at {where}: {why}") from error
            await asyncio.sleep(0.1)


def _request(
    agent: str,
    prompt: str,
    limits: Mapping[str, Any] | None,
    request_key: str | None,
    metadata: Mapping[str, str] | None,
) -> RunRequest:
    body: dict[str, Any] = {"agent": agent, "prompt": prompt}
    body |= {"limits": dict(limits)} if limits else {}
    body |= {"request_key": request_key} if request_key is not None else {}
    body |= {"metadata": dict(metadata)} if metadata else {}
    try:
        return read_public(RunRequest, body)
    except ValueError as error:
        raise _invalid(str(error)) from None


def _invalid(message: str) -> InvalidRequest:
    return InvalidRequest(message, outcome="invalid_request")


def _failed(cause: BaseException) -> RunResult:
    """The RunResult of a workflow that did not complete."""
    if isinstance(cause, CancelledError):
        return _details(cause, "cancelled", None)
    if isinstance(cause, TerminatedError):
        return _details(cause, "terminated", cause.message)
    if isinstance(cause, TemporalTimeout):
        return _details(cause, "timed_out", cause.message)
    if isinstance(cause, ApplicationError) and cause.type in OUTCOMES:
        return _details(cause, cause.type, cause.message)
    return RunResult(outcome="failed", reason=one_line(str(cause), 1_000))


def _details(cause: FailureError, outcome: str, reason: str | None) -> RunResult:
    """The partial result in a failure's details, if there is one."""
    details = getattr(cause, "details", None)
    try:
        result = RunResult.model_validate(details[0]) if details else RunResult(outcome=outcome)
    except ValueError:
        result = RunResult(outcome=outcome)
    return result.model_copy(update={"outcome": outcome, "reason": result.reason or reason})


def _ended(result: RunResult, described: WorkflowExecutionDescription) -> RunStatus:
    return RunStatus(
        agent=result.agent or _attribute(described, "TurnkeeperAgent", str) or "",
        model=result.model,
        phase="ended",
        turn=result.turns,
        waiting_for="",
        usage=result.usage,
        outcome=result.outcome,
    )


def _attribute(execution: WorkflowExecution, name: str, kind: type[Any]) -> Any:
    key: SearchAttributeKey[Any] = (
        SearchAttributeKey.for_int(name) if kind is int else SearchAttributeKey.for_keyword(name)
    )
    return execution.typed_search_attributes.get(key)


def _readable(error: RPCError, run: str) -> Exception:
    if error.status is RPCStatusCode.NOT_FOUND:
        if run and "namespace" not in error.message.lower():
            return LookupError(f"there is no run {run}")
        return ConnectionError(error.message)
    if error.status in (RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED):
        return ConnectionError(f"the Temporal server does not answer: {error.message}")
    return error


def _not_in_a_workflow() -> None:
    if workflow.in_workflow():
        # Not a plain exception: that would fail the workflow task again and again, in silence.
        raise ApplicationError(
            "AgentClient cannot be used inside a workflow: its calls are not in history. Start "
            f"workflow type {WORKFLOW} as a child workflow, or use AgentClient in an activity.",
            type="invalid_request",
            non_retryable=True,
        )
