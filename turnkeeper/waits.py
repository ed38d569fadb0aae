"""Calls that the run itself serves: it waits for somebody's answer, or for a time. Pure.

No worker runs them. A call that waits is a state, so the run may be replayed, or continue as new,
meanwhile.
"""

from __future__ import annotations

import json

from pydantic import BaseModel

from turnkeeper.contract import ANSWER, SEND, Awaited
from turnkeeper.text import one_line

_QUESTION = 500
"""Characters of a question, in lists and on the run card."""


class Held(BaseModel):
    """Since when a call waits, and for what."""

    since: float
    """Workflow time, seconds since 1970."""
    until: float | None = None
    """When it is answered by itself: what a call waits for that waits for a time."""
    question: str = ""


def next_message(turn: int, since: float, until: float | None) -> Awaited:
    """What a run that is kept open waits for after a turn."""
    body = json.dumps({"message_id": f"turn-{turn}", "text": "..."})
    return Awaited(kind="message", since=since, until=until, update=SEND, body=body)


def answer_awaited(call_id: str, held: Held) -> Awaited:
    """What a call waits for that has asked a question."""
    return Awaited(
        kind="answer",
        call_id=call_id,
        question=one_line(held.question, _QUESTION),
        since=held.since,
        update=ANSWER,
        body=json.dumps({"call_id": call_id, "text": "..."}),
    )


def time_awaited(call_id: str, held: Held) -> Awaited:
    """What a call waits for that waits for a time."""
    return Awaited(kind="time", call_id=call_id, since=held.since, until=held.until)
