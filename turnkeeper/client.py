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
from typing import Any, Literal, TypeVar

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
from turnkeeper.artifacts import ArtifactStore, open_store
from turnkeeper.connection import DEFAULT_ADDRESS, connect, own_settings, readable
from turnkeeper.contract import (
    ATTRIBUTE_TYPES,
    RESOLVE,
    STATUS,
    STOP,
    TASK_QUEUE,
    WORKFLOW,
    ResolveRequest,
    RunRequest,
    RunResult,
    RunStatus,
    StopRequest,
    read_public,
)
from turnkeeper.diagnosis import Diagnosis, diagnose
from turnkeeper.errors import InvalidRequest, StateLost, error_for
from turnkeeper.follow import Step, follow
from turnkeeper.history import HistoryReader, Transcript, read_transcript
from turnkeeper.messages import ask, leave
from turnkeeper.outside import (
    RunSummary,
    UnknownOutcome,
    agent_of,
    earlier_request,
    has_attribute,
    outcomes_of,
    result_of_failure,
    retried,
    status_by_history,
    status_of_ended,
    summary_of,
    unknown_of,
)
from turnkeeper.spec import Limits
from turnkeeper.switches import Kind, Switch, SwitchRequest
from turnkeeper.text import one_line

__all__ = ["DEFAULT_ADDRESS", "AgentClient", "AgentRunHandle", "RunSummary", "UnknownOutcome"]

RUN_ID = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.:/@+=-]{0,199}")
"""Ids of runs: safe in a URL, a shell and a visibility query."""

# A summary has at most 400 bytes with its quotes, and a character up to 4.
_SUMMARY_CHARACTERS = 96
# What a query or update may wait for a worker before we answer without one.
_WORKER_PATIENCE = 5.0

# Not those executions of long runs that went on in another one.
_OURS = f"WorkflowType = '{WORKFLOW}' AND ExecutionStatus != 'ContinuedAsNew'"

_Model = TypeVar("_Model", bound=BaseModel)

Stopped = Literal["stopping", "queued", "ended"]
Resolved = Literal["resolved", "queued", "ended"]


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
            id: the run's id; the same request with the same id again gives the run that exists,
                whether it is open or closed (`handle.existed`), so a start may safely be repeated.
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
        request = _request(agent, prompt, limits, request_key, metadata)
        chosen = id if id is not None else f"{agent}-{secrets.token_hex(4)}"
        if not RUN_ID.fullmatch(chosen):
            raise _invalid(
                f"id: {one_line(chosen, 80)!r}: use 1 to 200 letters, digits and _ . : / @ + = -, "
                "beginning with a letter or digit"
            )
        if chosen.startswith(switchboard.PREFIX):
            raise _invalid(f"id: {one_line(chosen, 80)!r}: such ids are those of kill switches")
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
            await self._check_same(chosen, request)
            return AgentRunHandle(self, chosen, existed=True)
        except RPCError as error:
            raise readable(error, chosen, self.client) from error
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
            result = result_of_failure(error.cause)
        except RPCError as error:
            raise readable(error, id, self.client) from error
        if check and result.outcome != "completed":
            message = f"run {id}: {result.outcome}" + (
                f": {result.reason}" if result.reason else ""
            )
            if result.outcome == "outcome_unknown":
                message += f" (`starter.py show {id}` has the call and its key)"
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
        body = {"reason": reason} | ({"actor": actor} if actor else {})
        _check(StopRequest, body)
        answer = await self._ask(id, STOP, body, timeout)
        if answer is not None:
            return "stopping" if answer == "accepted" else answer
        return await self._leave(id, STOP, body)

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
        body: dict[str, Any] = {"call_id": call_id, "landed": landed, "result": result}
        body |= {"actor": actor} if actor else {}
        _check(ResolveRequest, body)
        answer = await self._ask(id, RESOLVE, body, timeout)
        if answer is not None:
            return "resolved" if answer == "accepted" else answer
        await self._check_waits(id, call_id)
        return await self._leave(id, RESOLVE, body)

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

    async def list_runs(self, query: str = "", *, limit: int = 100) -> AsyncIterator[RunSummary]:
        """Runs, open ones first, then the last to close.

        `query` is one of Temporal's, such as `TurnkeeperTenant = 'acme'` or `StartTime > '...'`.
        Namespaces without our search attributes are served too, with a few more calls per run.

        Raises:
            ConnectionError: the server cannot be reached.
            ValueError: the server does not understand the query.
        """
        _not_in_a_workflow()
        async for execution in self._executions(query, limit=limit):
            yield await summary_of(self.client, execution, self._ended)

    async def count_runs(self, query: str = "") -> int:
        """How many runs a query finds; see `list_runs`.

        Raises:
            ConnectionError: the server cannot be reached.
            ValueError: the server does not understand the query.
        """
        _not_in_a_workflow()
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
        agent, unknown, transcript, limits = await asyncio.gather(
            agent_of(self.client, described),
            unknown_of(described),
            self.transcript(described.id),
            self._limits(described.id, described.run_id),
        )
        return status_by_history(agent, described, transcript, limits, unknown)

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

    async def _describe(self, run: str) -> WorkflowExecutionDescription:
        _not_in_a_workflow()
        try:
            described = await self.client.get_workflow_handle(run).describe()
        except RPCError as error:
            raise readable(error, run, self.client) from error
        if described.workflow_type != WORKFLOW:
            raise _invalid(f"id: {run} is a workflow of type {described.workflow_type}")
        return described

    async def _ask(
        self, run: str, name: str, body: Mapping[str, Any], timeout: float
    ) -> Literal["accepted", "ended"] | None:
        """Send an update to an open run; None if no worker answers in time."""
        if await self._is_over(run):
            return "ended"
        try:
            answered = await ask(self.client.get_workflow_handle(run), name, body, timeout)
        except WorkflowUpdateFailedError as error:
            # A run that ends between our look and the update fails it too.
            if await self._is_over(run):
                return "ended"
            raise _invalid(f"{name}: {error.cause}") from error
        return "accepted" if answered else None

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

    async def resolve(
        self, call_id: str, *, landed: bool, result: str = "", actor: str | None = None
    ) -> Resolved:
        """See `AgentClient.resolve`."""
        return await self.client.resolve(
            self.id, call_id, landed=landed, result=result, actor=actor
        )


def _all_of(*conditions: str) -> str:
    return " AND ".join([_OURS, *(f"({c})" for c in conditions if c)])


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


def _not_in_a_workflow() -> None:
    if workflow.in_workflow():
        # Not a plain exception: that would fail the workflow task again and again, in silence.
        raise ApplicationError(
            "AgentClient cannot be used inside a workflow: its calls are not in history. Start "
            f"workflow type {WORKFLOW} as a child workflow, or use AgentClient in an activity.",
            type="invalid_request",
            non_retryable=True,
        )
