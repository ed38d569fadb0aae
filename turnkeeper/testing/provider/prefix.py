"""The request as the model reads it: one sequence of blocks, in the order tools, system, messages.

Prompt caching, thinking signatures and token counts all speak of prefixes of this sequence. A
`cache_control` mark is decoration and no part of it, and a string is the same as one text block.
The order of keys in a tool's arguments counts: a client that re-serialises them has changed the
conversation.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, NamedTuple, Protocol

from turnkeeper.testing.provider.images import surplus
from turnkeeper.testing.provider.replies import Json, dumps

_OPAQUE: Final = frozenset({"input", "input_schema"})


class Place(NamedTuple):
    """One block and where it stands. `role` is `tools`, `system`, or the message's role; `message`
    and `number` are -1 where there is no such level."""

    role: str
    message: int
    number: int
    block: Mapping[str, Any]

    @property
    def path(self) -> str:
        """The place in the API's notation, such as `messages.3.content.1`."""
        if self.message < 0:
            return self.role if self.number < 0 else f"{self.role}.{self.number}"
        content = f"messages.{self.message}.content"
        return content if self.number < 0 else f"{content}.{self.number}"


def message_places(messages: list[Json]) -> list[Place]:
    """The blocks of the messages, in order."""
    places: list[Place] = []
    for number, message in enumerate(messages):
        role, content = message["role"], message["content"]
        if isinstance(content, str):
            if content:
                places.append(Place(role, number, -1, {"type": "text", "text": content}))
            continue
        places += [Place(role, number, index, block) for index, block in enumerate(content)]
    return places


def head_places(body: Json) -> list[Place]:
    """The tools and the system blocks, in order."""
    places = [Place("tools", -1, index, tool) for index, tool in enumerate(body.get("tools") or [])]
    system = body.get("system") or []
    if isinstance(system, str):
        return [*places, Place("system", -1, -1, {"type": "text", "text": system})]
    return places + [Place("system", -1, index, block) for index, block in enumerate(system)]


class Prefix:
    """Sizes and digests of prefixes of a sequence of blocks.

    Position n is the prefix of the first n blocks. Only the `positions` asked for, the empty one
    and the whole are known: between them everything is encoded at once, which is what keeps a
    request of many blocks cheap. Raises ValueError for numbers that JSON does not have.
    """

    def __init__(self, places: Sequence[Place], positions: Iterable[int] = ()) -> None:
        self._running = sha256()
        self._tokens: dict[int, int] = {}
        self._digests: dict[int, bytes] = {}
        size = start = 0
        for end in sorted({0, *positions, len(places)}):
            data = _encoded(places[start:end])
            self._running.update(data)
            size += len(data) - sum(surplus(place.block) for place in places[start:end])
            start = end
            self._tokens[end] = token_estimate(size)
            self._digests[end] = self._running.digest()
        self.length = len(places)

    def tokens(self, position: int | None = None) -> int:
        """The estimated tokens of the prefix at `position` (default: of the whole)."""
        return self._tokens[self.length if position is None else position]

    def digest(self, position: int | None = None) -> bytes:
        """The digest of the prefix at `position` (default: of the whole)."""
        return self._digests[self.length if position is None else position]

    def continued(self) -> Continuation:
        """The digest of the whole, to be continued by the blocks of the reply."""
        return Continuation(self._running.copy())


class Continuation:
    """The digest of a request and of its reply's blocks so far; at the end equal to the digest
    that the next request has at this point, if it sends the reply back unchanged."""

    def __init__(self, running: Hash) -> None:
        self._running = running

    def append(self, block: Mapping[str, Any]) -> None:
        """Add a block of the reply."""
        data = dumps(["assistant", canonical(block)])
        self._running.update(data[1:-1] + b",")

    def digest(self) -> bytes:
        """The digest so far."""
        return self._running.digest()


class Hash(Protocol):
    """What `hashlib.sha256()` returns."""

    def update(self, data: bytes, /) -> None:
        """Add data."""

    def digest(self) -> bytes:
        """The digest of the data so far."""


def token_estimate(size: int) -> int:
    """Tokens of `size` bytes of compact UTF-8 JSON: a quarter, rounded up. No real tokenizer is
    used, so that tests can predict the number. An image counts by its pixels instead."""
    return -(-size // 4)


def canonical(block: Mapping[str, Any]) -> Json:
    """A block as it counts: without cache marks, its fields in one order.

    The official SDK does not keep the order of a block's fields, so the API cannot mind it. What
    lies in a tool's arguments or schema is a value of its own, and kept to the letter.
    """
    return {
        key: value
        if (value := block[key]).__class__ is str or key in _OPAQUE
        else _canonical_value(value)
        for key in sorted(block)
        if key != "cache_control"
    }


def _canonical_value(value: Any) -> Any:
    if isinstance(value, list):
        return [_canonical_value(item) for item in value]
    return canonical(value) if isinstance(value, Mapping) else value


def _encoded(places: Sequence[Place]) -> bytes:
    # The role is written with every block, so that two messages of one role in a row have the
    # digest of the single message into which the API combines them. The trailing comma makes the
    # encoding of a sequence that of its parts, wherever it is divided.
    flat = [item for place in places for item in (place.role, canonical(place.block))]
    return _encode(flat)[1:-1].encode() + b"," if flat else b""


# The encoder stays in C as long as no hook is a Python function.
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
