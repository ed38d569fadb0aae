"""Messages to a run: accepted, and not read by the model yet. Pure.

A message is accepted once, by the id that its sender gave it, and waits for the end of the turn.
How many wait, how large they are together and how many ids are remembered is bounded: all of it
travels in the run's state.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, Field

from turnkeeper.contract import DUPLICATE, ENDED, AnswerRequest, SendRequest
from turnkeeper.entries import Entry, admit, digest_of
from turnkeeper.text import json_size, one_line

MAX_UNREAD = 100
"""Messages that the model has not read."""
MAX_UNREAD_BYTES = 200_000
"""Of their texts as JSON: one of the longest, or many short ones."""
MAX_SEEN = 1_000
"""Ids of messages that are remembered, the last ones."""


class Duplicate(ValueError):
    """A message of that id was accepted before."""

    kind = DUPLICATE


class Ended(ValueError):
    """The run's outcome is decided: nobody reads the message any more."""

    kind = ENDED


class Queued(BaseModel):
    """A message that waits for the end of the turn."""

    entry: Entry
    interrupt: bool = False
    """Whether the turn is to end for it."""


class Inbox(BaseModel):
    """Part of `RunState`."""

    queue: list[Queued] = Field(default_factory=list)
    """In the order of their arrival."""
    seen: list[str] = Field(default_factory=list)
    """Of the ids of accepted messages, short digests, the last one last."""
    answers: list[AnswerRequest] = Field(default_factory=list)
    """To questions of calls that wait: accepted, and not applied yet."""
    idle_since: float | None = None
    """Workflow time since which the run waits for the next message; None: it does not."""

    @property
    def has_mail(self) -> bool:
        """Whether a message waits."""
        return bool(self.queue)

    @property
    def interrupts(self) -> bool:
        """Whether the turn is to end for a message that waits."""
        return any(q.interrupt for q in self.queue)

    def heeded(self) -> None:
        """The turn is ended for all that have asked so far."""
        self.queue = [q.model_copy(update={"interrupt": False}) for q in self.queue]

    def refusal(
        self, said: SendRequest, pending: Sequence[Entry], most: int = MAX_UNREAD_BYTES
    ) -> str | None:
        """Why a message cannot be taken now; None if it can.

        `pending`: what the model reads next; `most`: bytes of JSON that may wait to be read.

        Raises:
            Duplicate: it was taken before.
        """
        if _short(said.message_id) in self.seen:
            named = one_line(said.message_id, 100)
            raise Duplicate(f"message_id: {named!r} was accepted already; it is not taken twice")
        waiting = self.unread(pending)
        if len(waiting) >= MAX_UNREAD:
            return f"{MAX_UNREAD} messages wait to be read; send it again when the run is further"
        size = json_size(said.text)
        if size > most:
            return f"text: {size} bytes as JSON, at most {most} are taken"
        held = sum(json_size(str(e.value["text"])) for e in waiting)
        if held + size > most:
            return (
                f"text: {size} bytes, but {held} wait to be read and at most {most} may; "
                "send it again when the run is further"
            )
        return None

    def accept(self, said: SendRequest) -> None:
        """Put a message at the end of the queue."""
        value = {"text": said.text, "id": said.message_id}
        value |= {"actor": said.actor} if said.actor else {}
        self.queue.append(Queued(entry=admit("message", value), interrupt=said.interrupt))
        self.seen = [*self.seen, _short(said.message_id)][-MAX_SEEN:]

    def take(self) -> list[Entry]:
        """Empty the queue; its entries, in the order of their arrival."""
        taken, self.queue = [q.entry for q in self.queue], []
        return taken

    def unread(self, pending: Sequence[Entry]) -> list[Entry]:
        """Accepted messages of which the model has replied to none."""
        return [*filter(message_id, pending), *(q.entry for q in self.queue)]

    def has_read(self, said: str, pending: Sequence[Entry]) -> bool:
        """Whether the model has replied to the message of an id, or to a later one."""
        unread = map(message_id, self.unread(pending))
        return _short(said) in self.seen and said not in unread


def message_id(entry: Entry) -> str | None:
    """The id of a message that somebody has sent; None of all other entries."""
    if entry.kind != "message" or not isinstance(entry.value, dict):
        return None
    return entry.value.get("id")


def _short(said: str) -> str:
    # Digests: a thousand ids of the greatest length would be most of a state.
    return digest_of(said)[:16]
