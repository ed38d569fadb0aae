"""What a fork begins with, read out of the run that it forks; needs no worker of that run."""

from __future__ import annotations

from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from turnkeeper.artifacts import ArtifactStore
from turnkeeper.contract import WORKFLOW, ForkRequest, RunRequest
from turnkeeper.entries import Entry
from turnkeeper.fork import Prefix, prefix_of
from turnkeeper.history import Transcript, read_transcript
from turnkeeper.state import RunState

__all__ = ["forkable", "request_of"]


async def forkable(client: Client, store: ArtifactStore, fork: ForkRequest) -> Prefix:
    """The part of the other run's transcript that is asked for.

    Raises:
        ValueError: it cannot be forked so; begins with the field that is wrong.
        LookupError: there is no such run.
        StateLost: a stored part of the transcript is missing or was changed.
        RPCError: Temporal cannot be reached.
    """
    described = await _described(client, fork)
    said = await read_transcript(client, store, fork.workflow_id, fork.run_id)
    return prefix_of(
        _kept(said),
        fork.turn,
        edit=fork.edit,
        results=_unread(said),
        ended=described.status is not WorkflowExecutionStatus.RUNNING,
    )


async def request_of(client: Client, workflow_id: str, run_id: str | None) -> RunRequest:
    """What a run was started with.

    Raises:
        ValueError: it was started with something else than a request.
        RPCError: Temporal cannot be reached, or has no such run.
    """
    handle = client.get_workflow_handle(workflow_id, run_id=run_id)
    decode = client.data_converter.decode
    async for event in handle.fetch_history_events(page_size=1):
        started = event.workflow_execution_started_event_attributes
        payloads = started.input.payloads
        try:
            if started.continued_execution_run_id:
                return (await decode(payloads, [RunState]))[0].request  # type: ignore[no-any-return]
            return (await decode(payloads, [RunRequest]))[0]  # type: ignore[no-any-return]
        except Exception as error:
            # Anything may have been sent by a client of another language.
            raise ValueError("workflow_id: that run was started with no request") from error
    raise ValueError("workflow_id: that run has no history")


async def _described(client: Client, fork: ForkRequest) -> WorkflowExecutionDescription:
    handle = client.get_workflow_handle(fork.workflow_id, run_id=fork.run_id)
    try:
        described = await handle.describe()
    except RPCError as error:
        if error.status in (RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT):
            raise LookupError(f"workflow_id: there is no run {fork.workflow_id}") from error
        raise
    if described.workflow_type != WORKFLOW:
        raise ValueError(f"workflow_id: it is a workflow of type {described.workflow_type}")
    return described


def _kept(said: Transcript) -> list[Entry]:
    """Without a last reply that ended the run, such as one that was cut off."""
    if said.result is None:
        return said.entries
    return said.entries[: said.result.transcript.entries]


def _unread(said: Transcript) -> dict[str, Entry | None]:
    """Results that the model has not read; None of calls that were begun and have none."""
    return {
        t.input.call_id: t.output.entry if t.output else None
        for t in said.tail
        # What only asked whether a person has to allow it has no result.
        if (t.output.asks is None if t.output else not t.input.asks_only)
    }
