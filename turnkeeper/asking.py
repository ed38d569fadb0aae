"""What can be asked of an open run, and what the caller is told became of it.

All goes one way: an update, which the run answers; the same body as a signal, which the server
keeps, where no worker answers in time; or word that the run is over.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel
from temporalio.client import (
    Client,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowUpdateFailedError,
)
from temporalio.exceptions import ApplicationError, WorkflowAlreadyStartedError

from turnkeeper import contract
from turnkeeper.connection import readable_errors
from turnkeeper.messages import ask, ask_or_start, leave, leave_or_start
from turnkeeper.outside import approvals_of, describe, unknown_of
from turnkeeper.refusals import checked, invalid
from turnkeeper.text import one_line

Stopped = Literal["stopping", "queued", "ended"]
Held = Literal["pausing", "paused", "queued", "ended"]
Resumed = Literal["resuming", "running", "queued", "ended"]
Widened = Literal["raised", "queued", "ended"]
Resolved = Literal["resolved", "queued", "ended"]
Decided = Literal["decided", "unchanged", "queued", "ended"]
Answered = Literal["answered", "queued", "ended"]
Sent = Literal["accepted", "duplicate", "queued", "ended"]

_Word = TypeVar("_Word", bound=str)


@dataclass(frozen=True)
class _Waits:
    """What a run has to wait for if a signal is to be of use: it would drop another in silence."""

    field: str
    """Of the body: the id of what waits."""
    complaint: str
    """About another id, `{id}`."""
    listed: Callable[[WorkflowExecutionDescription], Awaitable[dict[str, str]]]
    """What waits, by its id, and how it is listed."""

    async def check(self, client: Client, run: str, body: Mapping[str, Any]) -> None:
        """Refuse what an open run would drop."""
        described = await describe(client, run)
        waiting, wanted = await self.listed(described), body[self.field]
        if described.status is WorkflowExecutionStatus.RUNNING and wanted not in waiting:
            complaint = self.complaint.format(id=repr(one_line(wanted, 100)))
            known = ", ".join(waiting.values()) or "none"
            raise invalid(f"{self.field}: {complaint}; waiting: {known}")


@dataclass(frozen=True)
class Verb(Generic[_Word]):
    """One thing that can be asked, and the words for what became of it."""

    name: str
    """Of the update and of the signal."""
    body: type[BaseModel]
    done: _Word
    """The run has taken note."""
    needless: _Word | None = None
    """It has, with a note: there was nothing to do."""
    excused: Mapping[str | None, _Word] = field(default_factory=dict)
    """By the types of refusals that are no fault of the caller's."""
    waits: _Waits | None = None

    def refusal(self, error: WorkflowUpdateFailedError) -> _Word:
        """The word for a refusal.

        Raises:
            InvalidRequest: it is the caller's fault.
        """
        if not isinstance(error.cause, ApplicationError):
            raise invalid(f"{self.name}: {error.cause}") from error
        if error.cause.type in self.excused:
            return self.excused[error.cause.type]
        # Without its type, which is that of what we raise.
        raise invalid(error.cause.message) from error


async def _asked_for(described: WorkflowExecutionDescription) -> dict[str, str]:
    asked = await approvals_of(described)
    return {a.id: f"{a.id} ({one_line(a.tool, 64)})" for a in asked}


async def _unresolved(described: WorkflowExecutionDescription) -> dict[str, str]:
    calls = await unknown_of(described)
    return {c.call_id: c.call_id for c in calls if c.status == "waiting"}


_APPROVAL = _Waits("approval", "{id} waits for nobody", _asked_for)
_UNKNOWN = _Waits("call_id", "no call {id} waits to be resolved", _unresolved)

STOP: Verb[Stopped] = Verb(contract.STOP, contract.StopRequest, "stopping")
PAUSE: Verb[Held] = Verb(contract.PAUSE, contract.PauseRequest, "pausing", needless="paused")
RESUME: Verb[Resumed] = Verb(
    contract.RESUME, contract.ResumeRequest, "resuming", needless="running"
)
RAISE_LIMITS: Verb[Widened] = Verb(contract.RAISE_LIMITS, contract.RaiseLimitsRequest, "raised")
RESOLVE: Verb[Resolved] = Verb(
    contract.RESOLVE, contract.ResolveRequest, "resolved", waits=_UNKNOWN
)
APPROVE: Verb[Decided] = Verb(
    contract.APPROVE, contract.ApproveRequest, "decided", needless="unchanged", waits=_APPROVAL
)
DENY: Verb[Decided] = Verb(
    contract.DENY, contract.DenyRequest, "decided", needless="unchanged", waits=_APPROVAL
)
ANSWER: Verb[Answered] = Verb(contract.ANSWER, contract.AnswerRequest, "answered")
SEND: Verb[Sent] = Verb(
    contract.SEND,
    contract.SendRequest,
    "accepted",
    excused={contract.DUPLICATE: "duplicate", contract.ENDED: "ended"},
)


async def tell(
    client: Client, run: str, verb: Verb[_Word], fields: Mapping[str, Any], timeout: float
) -> _Word | Literal["queued", "ended"]:
    """Ask something of a run; `fields` are those of the verb's body.

    Returns:
        the verb's own word; `queued`: no worker answered within `timeout` seconds, and the server
        delivers it to the next one; `ended`: the run is over.

    Raises:
        InvalidRequest: the body is malformed, or the run refuses it.
        LookupError: there is no such run.
        ConnectionError: the server cannot be reached.
    """
    body = _body(verb, fields)
    if await _is_over(client, run):
        return "ended"
    handle = client.get_workflow_handle(run)
    try:
        answer = await ask(handle, verb.name, body, timeout)
    except WorkflowUpdateFailedError as error:
        # A run that ends between our look and the update fails it too.
        return "ended" if await _is_over(client, run) else verb.refusal(error)
    if answer is not None:
        return verb.needless if verb.needless and "note" in answer else verb.done
    if verb.waits:
        await verb.waits.check(client, run, body)
    with readable_errors(client, run):
        return "queued" if await leave(handle, verb.name, body) else "ended"


async def send_or_start(
    client: Client, start: Mapping[str, Any], fields: Mapping[str, Any], timeout: float
) -> Sent:
    """As `tell` with `SEND`, and the run is started if it is not there; `start`: see `options`
    of `turnkeeper.starting`."""
    body = _body(SEND, fields)
    try:
        with readable_errors(client, start["id"]):
            if await ask_or_start(client, start, SEND.name, body, timeout):
                return "accepted"
            await leave_or_start(client, start, SEND.name, body)
            return "queued"
    except WorkflowAlreadyStartedError:
        return "ended"
    except WorkflowUpdateFailedError as error:
        return SEND.refusal(error)


def _body(verb: Verb[Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """What is sent: without an actor or a proof, where there is none."""
    body = {k: v for k, v in fields.items() if v or k not in ("actor", "proof")}
    checked(verb.body, body)
    return body


async def _is_over(client: Client, run: str) -> bool:
    return (await describe(client, run)).status is not WorkflowExecutionStatus.RUNNING
