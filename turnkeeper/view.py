"""The view: which entries the next request is made of. Pure.

Within an epoch a view only grows, since newer models refuse a conversation whose earlier part was
changed. A reply that was discarded is cut off again; nothing else is ever removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from turnkeeper.entries import Entry, Position


class View:
    """A growing list of entries that knows the position after each of them."""

    def __init__(self, start: Position | None = None) -> None:
        self.entries: list[Entry] = []
        self.positions: list[Position] = [start or Position()]
        self.bytes = 0

    def extend(self, entries: Iterable[Entry], *, size: int = 0) -> None:
        """Append entries; `size` is their weight in bytes, for caches."""
        for entry in entries:
            self.entries.append(entry)
            self.positions.append(self.positions[-1].after([entry]))
        self.bytes += size

    @property
    def position(self) -> Position:
        return self.positions[-1]

    def holds(self, position: Position) -> bool:
        """Whether the view has passed `position`."""
        return (
            position.entries < len(self.positions)
            and self.positions[position.entries].digest == position.digest
        )

    def cut(self, position: Position) -> None:
        """Go back to `position`, which the view `holds`."""
        del self.entries[position.entries :]
        del self.positions[position.entries + 1 :]


def unanswered(entries: Sequence[Entry]) -> list[str]:
    """Ids of tool calls in the last reply that have no result yet: a request must have none."""
    last = next((i for i in range(len(entries) - 1, -1, -1) if entries[i].kind == "reply"), None)
    if last is None:
        return []
    answered = {e.value["call_id"] for e in entries[last + 1 :] if e.kind == "result"}
    content = entries[last].value.get("content", [])
    return [
        b["id"]
        for b in content
        if isinstance(b, dict) and b.get("type") == "tool_use" and b.get("id") not in answered
    ]
