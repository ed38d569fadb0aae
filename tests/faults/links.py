"""The links on which an answer can get lost: which request it answers, in which run."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

from tests.rig import until
from turnkeeper.client import AgentRunHandle
from turnkeeper.contract import UnknownCall
from turnkeeper.testing import Exchange, Reply, call, text

Between = Literal["worker and ledger", "worker and provider", "worker and server", "us and server"]
Person = Callable[[AgentRunHandle, AgentRunHandle], Awaitable[None]]
"""What a person does in a run: reads it on a sound connection, acts on one that loses answers."""


@dataclass(frozen=True)
class Link:
    """path: what the first line of each request on it contains. play: what the model says."""

    name: str
    between: Between
    path: bytes
    play: str
    agent: str = "teller"
    person: Person | None = None


_ORDER: Final = {"order": "o-1"}
_DONE: Final = text("Done.")
PLAYS: Final[dict[str, list[Any]]] = {
    **{t: [call(t, _ORDER), _DONE] for t in ("inquire", "charge", "book", "mail", "label")},
    "all": [call(t, _ORDER) for t in ("inquire", "charge", "book", "mail")] + [_DONE],
    # The first attempt arrives and fails; a probe finds it.
    "failing": [call("book", {**_ORDER, "behaviour": "apply-then-fail=500"}), _DONE],
    "asking": [call("mail", {**_ORDER, "behaviour": "apply-then-drop"}), _DONE],
}


def script(exchange: Exchange) -> Reply:
    """The prompt names the play."""
    reply: Reply = PLAYS[exchange.prompt][exchange.turn]
    return reply


class Nth:
    """Matches one of the requests to a path, counted from 1; with 0 it only counts them."""

    def __init__(self, path: bytes, number: int) -> None:
        self.seen = 0
        self._path = path
        self._number = number

    def __call__(self, request: bytes) -> bool:
        """See `Match`."""
        if not _is_whole(request) or self._path not in request.partition(b"\r\n")[0]:
            return False
        self.seen += 1
        return self.seen == self._number


def _is_whole(request: bytes) -> bool:
    """Whether this is all of a request: one of HTTP/1.1 is shown again as it grows."""
    head, end, body = request.partition(b"\r\n\r\n")
    if head.partition(b"\r\n")[0].endswith(b" HTTP/2"):
        return True
    length = re.search(rb"(?i)\r\ncontent-length: *([0-9]+)", head)
    return bool(end) and len(body) >= (int(length[1]) if length else 0)


# --- people -----------------------------------------------------------------------------------


async def _waiting(run: AgentRunHandle) -> UnknownCall:
    async def found() -> UnknownCall | None:
        return next((u for u in (await run.status()).unknown if u.status == "waiting"), None)

    waiting: UnknownCall = await until(found)
    return waiting


async def _stop(run: AgentRunHandle, acting: AgentRunHandle) -> None:
    await _waiting(run)
    assert await acting.stop("That is enough.", actor="ann") == "stopping"


async def _resolve(run: AgentRunHandle, acting: AgentRunHandle) -> None:
    waiting = await _waiting(run)
    said = await acting.resolve(waiting.call_id, landed=True, result="It is in the outbox.")
    assert said == "resolved"


async def _signal(run: AgentRunHandle, acting: AgentRunHandle) -> None:
    waiting = await _waiting(run)
    body = {"call_id": waiting.call_id, "landed": True, "result": "It is in the outbox."}
    await acting.client.client.get_workflow_handle(run.id).signal("resolve", body)


# --- the links --------------------------------------------------------------------------------

LINKS: Final = (
    Link("ledger, read", "worker and ledger", b"GET /keyed/", "inquire"),
    Link("ledger, idempotent", "worker and ledger", b"POST /keyed/charge", "charge"),
    Link("ledger, idempotent, in a process", "worker and ledger", b"POST /keyed/label", "label"),
    Link("ledger, reconcilable", "worker and ledger", b"POST /probed/book", "book"),
    Link("ledger, once", "worker and ledger", b"POST /plain/mail", "mail"),
    Link("provider", "worker and provider", b"POST /v1/messages", "all"),
    Link("activity completion", "worker and server", b"/RespondActivityTaskCompleted", "all"),
    Link("activity failure", "worker and server", b"/RespondActivityTaskFailed", "failing"),
    Link("workflow task", "worker and server", b"/RespondWorkflowTaskCompleted", "all"),
    Link("heartbeat", "worker and server", b"/RecordActivityTaskHeartbeat", "all"),
    Link("start", "us and server", b"/StartWorkflowExecution", "all"),
    Link(
        *("stop, an update", "us and server", b"/UpdateWorkflowExecution", "asking"),
        agent="patient",
        person=_stop,
    ),
    Link(
        *("resolve, an update", "us and server", b"/UpdateWorkflowExecution", "asking"),
        agent="patient",
        person=_resolve,
    ),
    Link(
        *("resolve, a signal", "us and server", b"/SignalWorkflowExecution", "asking"),
        agent="patient",
        person=_signal,
    ),
)
