"""The view: which entries the next request is made of. Pure.

Within an epoch a view only grows, since newer models refuse a conversation whose earlier part was
changed. Only a reply that was discarded is left out again. `turnkeeper.epoch` makes the opening of
the next epoch, `turnkeeper.context` says when one is due.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from turnkeeper import replies
from turnkeeper.entries import Entry, Position, chain
from turnkeeper.media import images_of

_OBJECT_BYTES = 300


class View:
    """A growing list of entries that knows the digest after each of them."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.entries: list[Entry] = []
        self.digests: list[str] = [""]
        self.call_ids: set[str] = set()
        """Ids of all tool calls in it: a provider refuses one that comes twice."""
        self.bytes = 0
        """What it weighs in memory, about."""
        self.extend(entries)

    def extend(self, entries: Iterable[Entry]) -> None:
        """Append entries."""
        for entry in entries:
            self.entries.append(entry)
            self.digests.append(chain(self.digests[-1], entry))
            self.call_ids.update(call_ids(entry))
            self.bytes += size(entry) + _OBJECT_BYTES

    @property
    def position(self) -> Position:
        """Where it ends."""
        return Position(digest=self.digests[-1], entries=len(self.entries))

    def holds(self, position: Position) -> bool:
        """Whether `position` is a place in this view."""
        return (
            position.entries < len(self.digests)
            and self.digests[position.entries] == position.digest
        )

    def up_to(self, position: Position) -> View:
        """A view of its own that ends at `position`, which this one `holds`.

        The usual case, the whole view, is taken over as it is: 10,000 entries are not hashed again.
        """
        view = View()
        view.entries = self.entries[: position.entries]
        view.digests = self.digests[: position.entries + 1]
        view.call_ids, view.bytes = set(self.call_ids), self.bytes
        for entry in self.entries[position.entries :]:
            view.call_ids.difference_update(call_ids(entry))
            view.bytes -= size(entry) + _OBJECT_BYTES
        return view


def call_ids(entry: Entry) -> list[str]:
    """The ids of a reply's tool calls, in order."""
    return [c.call_id for c in replies.calls(entry.value)] if entry.kind == "reply" else []


def unanswered(entries: Sequence[Entry]) -> list[str]:
    """Ids of tool calls in the last reply that have no result yet: a request must have none."""
    for i in range(len(entries) - 1, -1, -1):
        if entries[i].kind == "reply":
            answered = {e.value["call_id"] for e in entries[i + 1 :] if e.kind == "result"}
            return [c for c in call_ids(entries[i]) if c not in answered]
    return []


def size(entry: Entry) -> int:
    """What the entry weighs in a request: characters of its value as ASCII JSON, and four for each
    token of its images."""
    return len(json.dumps(entry.value)) + 4 * sum(image.tokens for image in images_of(entry))
