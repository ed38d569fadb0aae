"""Why the prompt cache could not serve what two requests have in common.

A request with the field `diagnostics` is remembered, under the id of its reply, as a fingerprint:
digests only. A later request that names this id is compared with it, part by part in the order of
`_PARTS`; the first that differs is the reason. Messages may only have been added. The comparison
is of the requests alone: what the cache still holds does not matter.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from turnkeeper.testing.provider.prefix import Prefix, head_places
from turnkeeper.testing.provider.replies import Json, dumps

_PARTS: Final = ("model", "system", "tools")


@dataclass(frozen=True)
class Fingerprint:
    """A request as it is remembered: its `length` in blocks, and of some of its prefixes, by their
    length, digest and tokens: of the tools, the head, the whole, and up to each cache mark."""

    parts: Mapping[str, bytes]
    variant: bytes
    length: int
    positions: Mapping[int, tuple[bytes, int]]


class Fingerprints:
    """Those of the last requests, at most `capacity`; the oldest go first."""

    def __init__(self, capacity: int = 20_000) -> None:
        self._capacity = capacity
        self._known: OrderedDict[str, Fingerprint] = OrderedDict()

    def get(self, message_id: str | None) -> Fingerprint | None:
        """The request that got this reply, if it is remembered."""
        return None if message_id is None else self._known.get(message_id)

    def add(self, message_id: str, fingerprint: Fingerprint) -> None:
        """Remember a request."""
        self._known[message_id] = fingerprint
        if len(self._known) > self._capacity:
            self._known.popitem(last=False)


def previous_id(body: Json) -> str | None:
    """The id of the reply to the request that `body` wants to be compared with. The body may be of
    any shape."""
    field = body.get("diagnostics")
    named = field.get("previous_message_id") if isinstance(field, dict) else None
    return named if isinstance(named, str) else None


def fingerprint(body: Json, prefix: Prefix, positions: set[int]) -> Fingerprint:
    """What is remembered of a request; `prefix` knows the `positions`."""
    system = [p for p in head_places(body) if p.role == "system"]
    tools = [p for p in head_places(body) if p.role == "tools"]
    return Fingerprint(
        parts={
            "model": _digest([body["model"], body.get("speed")]),
            "system": Prefix(system).digest(),
            "tools": Prefix(tools).digest(),
        },
        variant=_digest([body.get(name) for name in ("tool_choice", "thinking", "output_config")]),
        length=prefix.length,
        positions={p: (prefix.digest(p), prefix.tokens(p)) for p in positions},
    )


def diagnosis(previous: Fingerprint | None, now: Fingerprint, prefix: Prefix) -> Json | None:
    """The reply's `diagnostics`: None if `now` goes on where `previous` ended. `prefix` is that of
    the request now, and knows the positions of `previous` within its length."""
    if previous is None:
        return {"cache_miss_reason": {"type": "previous_message_not_found"}}
    changed = next((p for p in _PARTS if now.parts[p] != previous.parts[p]), None)
    shared = _shared(previous, prefix)
    if changed is None and shared < previous.length:
        changed = "messages"
    if changed is not None:
        whole = previous.positions[previous.length][1]
        same = previous.positions[shared][1] if shared and changed != "model" else 0
        reason = {"type": f"{changed}_changed", "cache_missed_input_tokens": whole - same}
        return {"cache_miss_reason": reason}
    if now.variant != previous.variant:
        return {"cache_miss_reason": {"type": "unavailable"}}
    return None


def _shared(previous: Fingerprint, prefix: Prefix) -> int:
    """The longest known position up to which both requests are the same, or 0."""
    return max(
        (
            position
            for position, (digest, _) in previous.positions.items()
            if position <= prefix.length and prefix.digest(position) == digest
        ),
        default=0,
    )


def _digest(value: Any) -> bytes:
    return sha256(dumps(value)).digest()
