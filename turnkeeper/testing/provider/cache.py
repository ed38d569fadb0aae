"""Prompt-cache accounting as the API does it.

A `cache_control` mark ends a prefix that is written to the cache. A request reads the longest
cached prefix found at one of its marks, or at one of the 19 blocks before it: the mark counts as
the first of the 20 positions looked at. A prefix below the model's minimum is neither written nor
read, silently. Reading extends an entry's life by its time to live. The key of a prefix is its
digest and the model; in the messages also `tool_choice` and `thinking`, whose change loses the
cache from there on.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from turnkeeper.testing.provider.prefix import Place, Prefix
from turnkeeper.testing.provider.replies import Json, dumps

LOOK_BACK: Final = 20
TTL_SECONDS: Final = {"5m": 300, "1h": 3600}
_UNCACHEABLE: Final = ("thinking", "redacted_thinking")

Key: TypeAlias = Callable[[int], tuple[str, bytes, bytes]]


@dataclass(frozen=True)
class Mark:
    """A breakpoint: the position in the prefix where it stands, the place that carries it (None
    for the top-level automatic one), its path and its value."""

    position: int
    place: Place | None
    path: str
    control: Any

    @property
    def ttl(self) -> str:
        """The time to live it asks for."""
        ttl: str = self.control.get("ttl") or "5m"
        return ttl

    @property
    def reach(self) -> range:
        """The positions at which it may find a cached prefix, the longest first."""
        return range(self.position, max(0, self.position - LOOK_BACK), -1)


@dataclass(frozen=True)
class InputUsage:
    """Input tokens by how they are billed; the sum of all four is the size of the request."""

    uncached: int
    written_5m: int
    written_1h: int
    read: int

    @property
    def written(self) -> int:
        """What was written, for whatever time to live."""
        return self.written_5m + self.written_1h

    def as_json(self) -> Json:
        """The input part of the API's `usage` object."""
        return {
            "input_tokens": self.uncached,
            "cache_creation_input_tokens": self.written,
            "cache_read_input_tokens": self.read,
            "cache_creation": {
                "ephemeral_5m_input_tokens": self.written_5m,
                "ephemeral_1h_input_tokens": self.written_1h,
            },
        }


@dataclass
class _Entry:
    ttl: str
    expires_at: float


class PromptCache:
    """The cache of one provider process: at most `capacity` prefixes, least recently used first
    out. `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float], capacity: int = 10_000) -> None:
        self._clock = clock
        self._capacity = capacity
        self._entries: OrderedDict[tuple[str, bytes, bytes], _Entry] = OrderedDict()

    def account(
        self, marks: Sequence[Mark], prefix: Prefix, key: Key, minimum_tokens: int
    ) -> InputUsage:
        """Read and write the cache for a request that is about to be answered. `key` gives what
        identifies the prefix at a position."""
        total = prefix.tokens()
        marks = [mark for mark in marks if prefix.tokens(mark.position) >= minimum_tokens]
        if not marks:
            return InputUsage(total, 0, 0, 0)
        hit = self._read(marks, key, lambda p: prefix.tokens(p) >= minimum_tokens)
        written = {"5m": 0, "1h": 0}
        end = hit
        for mark in marks:
            self._write(key(mark.position), mark.ttl)
            if mark.position > end:
                written[mark.ttl] += prefix.tokens(mark.position) - prefix.tokens(end)
                end = mark.position
        return InputUsage(
            uncached=total - prefix.tokens(end),
            written_5m=written["5m"],
            written_1h=written["1h"],
            read=prefix.tokens(hit),
        )

    def _read(self, marks: Sequence[Mark], key: Key, is_cacheable: Callable[[int], bool]) -> int:
        """The longest cached position within reach of a mark, or 0."""
        for mark in reversed(marks):
            for position in mark.reach:
                if not is_cacheable(position):
                    break
                entry = self._entries.get(key(position))
                if entry is not None and entry.expires_at > self._clock():
                    entry.expires_at = self._clock() + TTL_SECONDS[entry.ttl]
                    self._entries.move_to_end(key(position))
                    return position
        return 0

    def _write(self, key: tuple[str, bytes, bytes], ttl: str) -> None:
        now = self._clock()
        entry = self._entries.get(key)
        if entry is not None and entry.expires_at > now:
            # A prefix already cached keeps the longer life of the two.
            ttl = max(ttl, entry.ttl, key=TTL_SECONDS.__getitem__)
        self._entries[key] = _Entry(ttl, now + TTL_SECONDS[ttl])
        self._entries.move_to_end(key)
        if len(self._entries) > self._capacity:
            self._entries.popitem(last=False)


def cache_key(body: Json, head_length: int, prefix: Prefix) -> Key:
    """What identifies a request's prefixes in the cache; `head_length` is the number of tools and
    system blocks."""
    variant = dumps([body.get("tool_choice"), body.get("thinking")])

    def key(position: int) -> tuple[str, bytes, bytes]:
        in_messages = position > head_length
        return body["model"], prefix.digest(position), variant if in_messages else b""

    return key


def marks_of(body: Json, places: Sequence[Place]) -> list[Mark]:
    """The breakpoints of a request in order, with the top-level automatic one on the last block
    that may carry one. A mark inside a tool result stands at the result. The values of the marks
    are not checked here."""
    marks = [
        Mark(position, place, path, control)
        for position, place in enumerate(places, 1)
        if "cache_control" in place.block or "content" in place.block
        for path, control in _controls(place)
    ]
    automatic = body.get("cache_control")
    if automatic is not None:
        types = [place.block.get("type") for place in places]
        last = max((n for n, type_ in enumerate(types, 1) if type_ not in _UNCACHEABLE), default=0)
        marks.append(Mark(last, None, "cache_control", automatic))
    return sorted(marks, key=lambda mark: mark.position)


def _controls(place: Place) -> Iterator[tuple[str, Any]]:
    nested = place.block.get("content")
    if isinstance(nested, list):
        for number, item in enumerate(nested):
            if isinstance(item, dict) and item.get("cache_control") is not None:
                yield f"{place.path}.content.{number}.cache_control", item["cache_control"]
    if place.block.get("cache_control") is not None:
        yield f"{place.path}.cache_control", place.block["cache_control"]
