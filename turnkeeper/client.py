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
import secrets
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO, TypeVar, overload

from temporalio import workflow
from temporalio.client import Client, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

from turnkeeper import asking, days, finding, switchboard
from turnkeeper.answers import answer_to
from turnkeeper.artifacts import ArtifactStore, open_store
from turnkeeper.connection import DEFAULT_ADDRESS, connect, own_settings, readable_errors
from turnkeeper.contract import (
    TASK_QUEUE,
    WORKFLOW,
    Checked,
    RunRequest,
    RunResult,
    RunStatus,
)
from turnkeeper.day_limits import DayLimitRequest
from turnkeeper.diagnosis import Diagnosis, diagnose
from turnkeeper.ends import as_it_ended, completed, end_of
from turnkeeper.entries import strict_json
from turnkeeper.errors import EffectsRepeated
from turnkeeper.export import RunExport, export_run, write_export
from turnkeeper.finding import RunSummary
from turnkeeper.follow import Step, follow
from turnkeeper.handle import AgentRunHandle
from turnkeeper.history import Transcript, read_transcript
from turnkeeper.names import Kind, Limited
from turnkeeper.outputs import output_of
from turnkeeper.outside import PendingApproval, UnknownOutcome, describe, outcomes_of
from turnkeeper.page.document import page
from turnkeeper.page.pictures import pictures
from turnkeeper.page.story import story_of
from turnkeeper.refusals import checked, invalid
from turnkeeper.retry import find_turn, repeated_text, reset
from turnkeeper.starting import begin, fork_request, options, run_request
from turnkeeper.status import status_of
from turnkeeper.switches import Switch, SwitchRequest

__all__ = [
    "DEFAULT_ADDRESS",
    "AgentClient",
    "AgentRunHandle",
    "PendingApproval",
    "RunSummary",
    "UnknownOutcome",
]

# What a query or update may wait for a worker before we answer without one.
_PATIENCE = 5.0
_T = TypeVar("_T")


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
        self._client = client
        self.task_queue = task_queue
        self._store = store

    @property
    def client(self) -> Client:
        """Temporal's own. All calls go by it, and so none is made inside a workflow."""
        _not_in_a_workflow()
        return self._client

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
        id: str | None = None,
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
        request = run_request(agent, prompt, limits, request_key, metadata, keep_open=keep_open)
        return await self._begin(request, id, task_timeout)

    async def fork(
        self,
        id: str,
        turn: int,
        edit: str | None = None,
        *,
        new_id: str | None = None,
        run_id: str | None = None,
        limits: Mapping[str, Any] | None = None,
        metadata: Mapping[str, str] | None = None,
        task_queue: str | None = None,
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
            task_queue: instead of the other run's, whose workers have the agent.

        Raises:
            InvalidRequest: there is no such turn, or it is not finished yet.
            LookupError: there is no such run.
            StateLost: a stored part of its transcript is missing or was changed.
            ConnectionError: the server cannot be reached.
        """
        asked = {"workflow_id": id, "turn": turn, "edit": edit, "run_id": run_id}
        request = await fork_request(self.client, self._artifacts, asked, limits, metadata)
        queue = task_queue or (await describe(self.client, id, run_id)).task_queue
        return await self._begin(request, new_id, task_queue=queue)

    async def retry_from(
        self, id: str, turn: int, *, again: bool = False, reason: str = "", actor: str | None = None
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
        await describe(self.client, id)
        by = f" by {actor}" if actor else ""
        why = f"retry from turn {turn}{by}: {reason or 'no reason given'}"
        try:
            with readable_errors(self.client, id):
                point = await find_turn(self.client, id, turn)
                if point.effects and not again:
                    raise EffectsRepeated(repeated_text(id, turn, point.effects), point.effects)
                run_id = await reset(self.client, id, point, why)
        except ValueError as error:
            raise invalid(str(error)) from None
        return AgentRunHandle(self, id, run_id=run_id, existed=True)

    @overload
    async def result(
        self, id: str, *, check: bool = True, timeout: float | None = None
    ) -> RunResult: ...
    @overload
    async def result(self, id: str, *, output: type[_T], timeout: float | None = None) -> _T: ...

    async def result(
        self, id: str, *, check: bool = True, output: Any = None, timeout: float | None = None
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
        with readable_errors(self.client, id):
            async with asyncio.timeout(timeout):
                result = await end_of(self.client, id)
        if check:
            completed(id, result)
        if output is None:
            return result
        return await output_of(self._artifacts, id, result.output, result.output_artifact, output)

    async def status(self, id: str, *, timeout: float = _PATIENCE) -> RunStatus:
        """Where a run stands.

        Asks the run itself; of a closed run, or if no worker answers within `timeout` seconds, what
        the server knows without one.

        Raises:
            LookupError: there is no such run.
        """
        return await status_of(self.client, self._artifacts, id, timeout)

    async def transcript(self, id: str) -> Transcript:
        """All that was said in a run, open or closed; needs no worker.

        Raises:
            LookupError: there is no such run.
            StateLost: a stored part of it is missing or was changed.
        """
        with readable_errors(self.client, id):
            return await read_transcript(self.client, self._artifacts(), id)

    async def stop(
        self, id: str, reason: str = "", actor: str | None = None, *, timeout: float = _PATIENCE
    ) -> asking.Stopped:
        """Ask a run to end with outcome `stopped`.

        Returns:
            `stopping`: the run has taken note. `queued`: no worker answered within `timeout`
            seconds; the server delivers the request to the next one. `ended`: the run was over.

        Raises:
            InvalidRequest: the reason or actor is too long.
            LookupError: there is no such run.
        """
        body = {"reason": reason, "actor": actor}
        return await asking.tell(self.client, id, asking.STOP, body, timeout)

    async def pause(
        self, id: str, reason: str = "", actor: str | None = None, *, timeout: float = _PATIENCE
    ) -> asking.Held:
        """Ask a run to wait before its next generation; what is under way is finished.

        Its time limit goes on: a run that is paused for longer than its `wall_seconds` ends.

        Returns:
            `pausing`: the run has taken note. `paused`: somebody had paused it already, and that
            reason stays. `queued` and `ended`: as for `stop`.

        Raises:
            InvalidRequest: the reason or actor is too long.
            LookupError: there is no such run.
        """
        body = {"reason": reason, "actor": actor}
        return await asking.tell(self.client, id, asking.PAUSE, body, timeout)

    async def resume(
        self, id: str, actor: str | None = None, *, timeout: float = _PATIENCE
    ) -> asking.Resumed:
        """Let a paused run go on.

        Returns:
            `resuming`: the run has taken note. `running`: it was not paused. `queued` and `ended`:
            as for `stop`.

        Raises:
            InvalidRequest: the actor is too long.
            LookupError: there is no such run.
        """
        return await asking.tell(self.client, id, asking.RESUME, {"actor": actor}, timeout)

    async def raise_limits(
        self,
        id: str,
        limits: Mapping[str, Any],
        reason: str = "",
        actor: str | None = None,
        *,
        timeout: float = _PATIENCE,
    ) -> asking.Widened:
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
        body = {"limits": dict(limits), "reason": reason, "actor": actor}
        return await asking.tell(self.client, id, asking.RAISE_LIMITS, body, timeout)

    async def resolve(
        self,
        id: str,
        call_id: str,
        *,
        landed: bool,
        result: str = "",
        actor: str | None = None,
        timeout: float = _PATIENCE,
    ) -> asking.Resolved:
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
        body = {"call_id": call_id, "landed": landed, "result": result, "actor": actor}
        return await asking.tell(self.client, id, asking.RESOLVE, body, timeout)

    async def approve(
        self,
        id: str,
        approval: str,
        *,
        actor: str | None = None,
        proof: str | None = None,
        remember: bool = False,
        timeout: float = _PATIENCE,
    ) -> asking.Decided:
        """Let a call be run that waits for a person's word; `approvals` finds them.

        Args:
            id: the run's id.
            approval: the id of what is allowed: one call with one set of arguments.
            actor: who says so.
            proof: for the agent's `verify`, that it is them; it is recorded in history.
            remember: do not ask again in this run for this tool.
            timeout: seconds that a worker has to answer.

        Returns:
            `decided`: the run has taken note. Whether it counts is found out after that where the
            agent verifies who decides. `unchanged`: it was decided so before, by whoever said it
            first. `queued`: no worker answered, and the server delivers it to the next one; what is
            decided by then, or has expired, stays so, with a line in the worker's log. `ended`: the
            run is over.

        Raises:
            InvalidRequest: no such call waits, it was denied or has expired, or the body is
                malformed; the message says which.
            LookupError: there is no such run.
        """
        body = {"approval": approval, "remember": remember, "actor": actor, "proof": proof}
        return await asking.tell(self.client, id, asking.APPROVE, body, timeout)

    async def deny(
        self,
        id: str,
        approval: str,
        *,
        reason: str = "",
        actor: str | None = None,
        proof: str | None = None,
        timeout: float = _PATIENCE,
    ) -> asking.Decided:
        """Have a call not run that waits for a person's word; the model reads the reason.

        Returns and raises as `approve`.
        """
        body = {"approval": approval, "reason": reason, "actor": actor, "proof": proof}
        return await asking.tell(self.client, id, asking.DENY, body, timeout)

    def approvals(self, query: str = "", *, limit: int = 1_000) -> AsyncIterator[PendingApproval]:
        """Calls that wait for a person to allow them, over all open runs. Needs no worker.

        At most `limit` runs are read: in a namespace with the search attribute TurnkeeperStatus
        those that wait for a person, else all open ones that match `query`.

        Raises:
            ConnectionError: the server cannot be reached.
            ValueError: the server does not understand the query.
        """
        return finding.pending_approvals(self.client, query, limit=limit)

    async def answer(
        self,
        id: str,
        call_id: str,
        text: str,
        *,
        actor: str | None = None,
        timeout: float = _PATIENCE,
    ) -> asking.Answered:
        """Answer a question that the model has asked with `ask_person`; `status` has it.

        Returns:
            `answered`: the run goes on. `queued`: no worker answered within `timeout` seconds; the
            server delivers it to the next one, which drops it, with a line in its log, if no such
            call waits. `ended`: the run was over.

        Raises:
            InvalidRequest: no such call waits, or the body is malformed.
            LookupError: there is no such run.
        """
        body = {"call_id": call_id, "text": text, "actor": actor}
        return await asking.tell(self.client, id, asking.ANSWER, body, timeout)

    async def send(
        self,
        id: str,
        text: str,
        *,
        message_id: str,
        interrupt: bool = False,
        actor: str | None = None,
        timeout: float = _PATIENCE,
    ) -> asking.Sent:
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
        body = {"message_id": message_id, "text": text, "interrupt": interrupt, "actor": actor}
        return await asking.tell(self.client, id, asking.SEND, body, timeout)

    async def send_or_start(
        self,
        agent: str,
        text: str,
        *,
        id: str,
        message_id: str,
        limits: Mapping[str, Any] | None = None,
        request_key: str | None = None,
        metadata: Mapping[str, str] | None = None,
        interrupt: bool = False,
        actor: str | None = None,
        anew: bool = False,
        timeout: float = _PATIENCE,
    ) -> tuple[AgentRunHandle, asking.Sent]:
        """As `send`, in one step with the start of the conversation, if there is none of that id.

        It is started without a prompt and kept open: the message is the first thing said. One that
        is open already goes on as it was started. One that has ended stays so (`ended`), unless
        `anew`: then another begins under its id, which knows nothing of it.

        Raises:
            InvalidRequest: the request or the body is malformed, or too much waits to be read.
            ConnectionError: the server cannot be reached.
        """
        _not_in_a_workflow()
        request = run_request(agent, "", limits, request_key, metadata, keep_open=True)
        start = options(request, id, self.task_queue, text, anew=anew)
        said = {"message_id": message_id, "text": text, "interrupt": interrupt, "actor": actor}
        sent = await asking.send_or_start(self.client, start, said, timeout)
        return AgentRunHandle(self, id), sent

    @overload
    async def reply(self, id: str, message_id: str, *, timeout: float | None = None) -> str: ...
    @overload
    async def reply(
        self, id: str, message_id: str, *, output: type[_T], timeout: float | None = None
    ) -> _T: ...

    async def reply(
        self, id: str, message_id: str, *, output: Any = None, timeout: float | None = None
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
        with readable_errors(self.client, id):
            async with asyncio.timeout(timeout):
                answer = await answer_to(self.client, id, message_id)
        if answer is None:
            await self.result(id)
            raise LookupError(f"run {id} has ended, and has read no message {message_id!r}")
        if output is None:
            return answer.text
        found = answer.checked or Checked()
        value = None if found.value is None else strict_json(found.value)
        return await output_of(self._artifacts, id, value, found.artifact, output)

    async def chat(
        self,
        id: str,
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

    async def why(self, id: str) -> Diagnosis:
        """Why a run does not go on: see `turnkeeper.diagnosis`. Needs no worker.

        Raises:
            LookupError: there is no such run.
            ConnectionError: the server cannot be reached.
        """
        described = await describe(self.client, id)
        with readable_errors(self.client, id):
            return await diagnose(self.client, described)

    def follow(self, id: str) -> AsyncIterator[Step]:
        """The steps of a run from its first to its last, as they happen; see `turnkeeper.follow`.

        Works for open and closed runs, and needs no worker.

        Raises:
            LookupError: there is no such run.
            ConnectionError: the server is away for more than a minute.
        """
        return follow(self.client, id)

    def list_runs(
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
        return finding.summaries(self.client, query, waiting_for, limit=limit)

    async def count_runs(self, query: str = "", *, waiting_for: str | None = None) -> int:
        """How many runs a query finds; see `list_runs`.

        Raises:
            ConnectionError: the server cannot be reached.
            ValueError: the server does not understand the query, or too many runs wait.
        """
        return await finding.count(self.client, query, waiting_for)

    def unknown_calls(
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
        return finding.unknown_outcomes(self.client, query, waiting_only=waiting_only, limit=limit)

    async def unknown_calls_of(self, id: str) -> list[UnknownOutcome]:
        """The last calls of one run whose outcome was, or is, unknown, the newest first; also those
        that were settled. Needs no worker.

        Raises:
            LookupError: there is no such run.
        """
        return await outcomes_of(self.client, await describe(self.client, id))

    async def export(self, id: str, *, run_id: str | None = None) -> RunExport:
        """A run as one document, for audits; see `turnkeeper.export`. Needs no worker.

        `run_id` names one of several runs that had the id, by its last execution; default the last.

        Raises:
            LookupError: there is no such run.
            OSError: the server or the artifact store cannot be read now.
        """
        described, result = await as_it_ended(self.client, id, run_id)
        with readable_errors(self.client, id):
            return await export_run(self.client, self._artifacts(), described, result)

    async def export_to(self, file: BinaryIO, id: str, *, run_id: str | None = None) -> RunExport:
        """As `export`, written to `file` as JSON while it is read, for runs of any length.

        Returns it without its entries.
        """
        described, result = await as_it_ended(self.client, id, run_id)
        with readable_errors(self.client, id):
            return await write_export(self.client, self._artifacts(), described, result, file)

    async def page(self, id: str, *, timeout: float = _PATIENCE) -> str:
        """A run, open or closed, as one HTML file that fetches nothing; needs no worker.

        Of an open run it shows what was so far; where it stands is asked of a worker for `timeout`
        seconds.

        Raises:
            LookupError: there is no such run.
            OSError: the server cannot be read now.
        """
        status, exported = await asyncio.gather(self.status(id, timeout=timeout), self.export(id))
        entries = [*exported.entries, *exported.unread]
        images = await pictures(self._artifacts(), id, entries)
        return page(story_of(exported, status), images)

    # --- kill switches --------------------------------------------------------------------------

    async def switch_off(
        self,
        kind: Kind,
        name: str,
        reason: str,
        actor: str | None = None,
        *,
        task_queue: str | None = None,
        timeout: float = _PATIENCE,
    ) -> switchboard.Switched:
        """Switch off a tool, an agent or a tenant, for all runs of the namespace.

        Two seconds after the answer `switched` nothing of it begins any more: calls are answered as
        not run, and runs of the agent or tenant wait before their next request to the model. What
        has begun goes on.

        Args:
            kind: `tool`, `agent` or `tenant`.
            name: of a tool `issue_refund`, or `refunds.issue_refund` for that agent's alone.
            reason: why; models and operators read it.
            actor: who says so.
            task_queue: for the runs of that task queue alone.
            timeout: seconds that a worker has to answer.

        Returns:
            `switched`; `unchanged`: it was off there already, and its first reason stays; `queued`:
            no worker has answered (of the namespace, or of that task queue), and the server tells
            the next one.

        Raises:
            InvalidRequest: the name or reason is malformed, or too much is switched off.
            ConnectionError: the server cannot be reached.
        """
        said = {"kind": kind, "name": name, "off": True, "reason": reason, "actor": actor}
        return await self._switch(said, task_queue, timeout)

    async def switch_on(
        self,
        kind: Kind,
        name: str,
        reason: str = "",
        actor: str | None = None,
        *,
        task_queue: str | None = None,
        timeout: float = _PATIENCE,
    ) -> switchboard.Switched:
        """Switch on again what was switched off; runs that wait go on within a minute.

        What is off for the namespace and for a task queue, too, is switched on for each: `switches`
        tells what is left. Arguments, answers and errors are those of `switch_off`.
        """
        said = {"kind": kind, "name": name, "off": False, "reason": reason, "actor": actor}
        return await self._switch(said, task_queue, timeout)

    async def switches(self, *, task_queue: str | None = None) -> list[Switch]:
        """What is switched off, first for the namespace, then for task queues alone; each in the
        order in which that was done. Needs no worker.

        `task_queue`: only what holds for its runs. Without it other task queues than this client's
        are found by Temporal's visibility, which may be some seconds late.

        Raises:
            ConnectionError: the server cannot be reached.
        """
        with readable_errors(self.client):
            if task_queue is not None:
                return (await switchboard.in_force(self.client, task_queue)).switches
            return await switchboard.everywhere(self.client, self.task_queue)

    # --- limits per day -------------------------------------------------------------------------

    async def limit_day(
        self,
        kind: Limited,
        name: str,
        *,
        cost_usd: float | None = None,
        tokens: int | None = None,
        actor: str | None = None,
        timeout: float = _PATIENCE,
    ) -> switchboard.Changed:
        """Bound what all runs of an agent or a tenant use in a day of UTC together.

        Two seconds after the answer a request to a model is sent only if what was used, what others
        that are under way may use, and what it is expected to use itself are within the limit; if
        not, the run waits visibly until a new day begins or the limit is raised. A reply may have
        more than was expected of it: what is over the limit is at most that of the replies under
        way. It replaces both bounds of one that was set before. Counting begins with the first
        limit; the count of a day goes on under another one.

        Args:
            kind: `agent` or `tenant`.
            name: of the agent, or what `metadata["tenant"]` of its runs has.
            cost_usd: US dollars; a run whose model has no known price ends with `cost_limit`.
            tokens: in and out, those out of the provider's cache as well.
            actor: who says so.
            timeout: seconds that a worker has to answer.

        Returns:
            `changed`; `unchanged`: it was so already; `queued`: no worker has answered, and the
            server tells the next one.

        Raises:
            InvalidRequest: the name or a bound is malformed, there is none, or there are too many
                limits.
            ConnectionError: the server cannot be reached.
        """
        if cost_usd is None and tokens is None:
            raise invalid("day_limit: cost_usd or tokens is needed; remove_day_limit takes it away")
        said = {"kind": kind, "name": name, "cost_usd": cost_usd, "tokens": tokens, "actor": actor}
        return await self._limit_day(said, timeout)

    async def remove_day_limit(
        self, kind: Limited, name: str, *, actor: str | None = None, timeout: float = _PATIENCE
    ) -> switchboard.Changed:
        """Take a limit per day away; runs that wait for it go on within a minute.

        Arguments, answers and errors are those of `limit_day`.
        """
        return await self._limit_day({"kind": kind, "name": name, "actor": actor}, timeout)

    async def day_limits(self) -> list[days.DayUse]:
        """Limits per day that are set, each with what is used under it today. Needs no worker.

        Raises:
            ConnectionError: the server cannot be reached.
        """
        with readable_errors(self.client):
            return await days.in_use(self.client, time.time())

    # --- inside ---------------------------------------------------------------------------------

    async def _switch(
        self, said: Mapping[str, Any], task_queue: str | None, timeout: float
    ) -> switchboard.Switched:
        _not_in_a_workflow()
        asked = checked(SwitchRequest, said)
        with self._refused_in("switch"):
            return await switchboard.change(self.client, task_queue, asked, timeout)

    async def _limit_day(self, said: Mapping[str, Any], timeout: float) -> switchboard.Changed:
        _not_in_a_workflow()
        asked = checked(DayLimitRequest, said)
        with self._refused_in("day_limit"):
            return await switchboard.limit_days(self.client, asked, timeout)

    @contextmanager
    def _refused_in(self, message: str) -> Iterator[None]:
        try:
            with readable_errors(self.client):
                yield
        except WorkflowUpdateFailedError as error:
            raise invalid(f"{message}: {error.cause}") from error

    async def _begin(
        self,
        request: RunRequest,
        id: str | None,
        task_timeout: float | None = None,
        *,
        task_queue: str | None = None,
    ) -> AgentRunHandle:
        queue = task_queue or self.task_queue
        begun = await begin(self.client, request, id, queue, task_timeout)
        return AgentRunHandle(self, begun.id, run_id=begun.run_id, existed=begun.existed)

    def _artifacts(self) -> ArtifactStore:
        if self._store is None:
            self._store = open_store()
        return self._store


def _not_in_a_workflow() -> None:
    if workflow.in_workflow():
        # Not a plain exception: that would fail the workflow task again and again, in silence.
        raise ApplicationError(
            "AgentClient cannot be used inside a workflow: its calls are not in history. Start "
            f"workflow type {WORKFLOW} as a child workflow, or use AgentClient in an activity.",
            type="invalid_request",
            non_retryable=True,
        )
