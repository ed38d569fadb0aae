"""What this provider has emitted and a later request may refer to.

Three rules need it: block types unknown to the API are accepted in assistant messages only if
they came from here; a conversation may end with an assistant message only if that reply was
paused; thinking blocks may not be left out of a tool loop. A `Fact` is one reply's share of it.
It is written to the log, so that a provider started again on the same log still knows it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, TypedDict

from turnkeeper.testing.provider.replies import Json
from turnkeeper.testing.provider.signatures import THINKING_TYPES, seal

ASSISTANT_BLOCK_TYPES = frozenset(
    {
        "text",
        "thinking",
        "redacted_thinking",
        "tool_use",
        "server_tool_use",
        "web_search_tool_result",
        "web_fetch_tool_result",
        "code_execution_tool_result",
        "bash_code_execution_tool_result",
        "text_editor_code_execution_tool_result",
        "tool_search_tool_result",
        "container_upload",
    }
)
_RESUMABLE = frozenset({"pause_turn", "compaction"})


class Fact(TypedDict, total=False):
    """One reply, as far as it must be remembered; digests are hexadecimal."""

    types: list[str]
    resumable: str
    before: str
    call_ids: list[Any]
    seals: list[str]


def call_ids_of(content: Sequence[Json]) -> list[Any]:
    """The ids of the tool_use blocks."""
    return [block.get("id") for block in content if block.get("type") == "tool_use"]


def seals_of(content: Sequence[Json]) -> list[str]:
    """The signatures and data of the thinking blocks."""
    return [seal(block) for block in content if block.get("type") in THINKING_TYPES]


class Memory:
    """Facts of the most recent replies, at most `capacity` of each kind."""

    def __init__(self, capacity: int = 20_000) -> None:
        self._capacity = capacity
        self.types: set[str] = set()
        self._resumable: OrderedDict[str, None] = OrderedDict()
        self._thinking: OrderedDict[tuple[str, str], list[list[str]]] = OrderedDict()

    def emit(
        self, content: Sequence[Json], stop_reason: str | None, before: bytes, after: bytes
    ) -> Fact | None:
        """Remember a reply sent after the prefix with digest `before`; with the reply the digest
        is `after`. What was remembered, or None if there was nothing."""
        fact: Fact = {}
        types = {str(block.get("type")) for block in content} - ASSISTANT_BLOCK_TYPES
        if types:
            fact["types"] = sorted(types)
        if stop_reason in _RESUMABLE:
            fact["resumable"] = after.hex()
        seals, call_ids = seals_of(content), call_ids_of(content)
        # A reply without thinking counts if the same calls were sent with thinking before: the
        # earlier reply may have been lost on the way.
        if seals or self.thinking_sent(before, call_ids):
            fact |= {"before": before.hex(), "call_ids": call_ids, "seals": seals}
        if not fact:
            return None
        self.add(fact)
        return fact

    def add(self, fact: Fact) -> None:
        """Remember a fact that was read from a log."""
        if len(self.types) < self._capacity:
            self.types.update(fact.get("types", ()))
        if "resumable" in fact:
            self._resumable[fact["resumable"]] = None
        if "seals" in fact:
            key = (fact["before"], str(fact["call_ids"]))
            variants = self._thinking.setdefault(key, [])
            if fact["seals"] not in variants:
                variants.append(fact["seals"])
        for entries in (self._resumable, self._thinking):
            if len(entries) > self._capacity:
                entries.popitem(last=False)

    @property
    def has_thinking(self) -> bool:
        """Whether any thinking was emitted."""
        return bool(self._thinking)

    def is_resumable(self, conversation: bytes) -> bool:
        """Whether the conversation ends with a reply that asked to be continued."""
        return conversation.hex() in self._resumable

    def thinking_sent(self, before: bytes, call_ids: list[Any]) -> list[list[str]]:
        """The thinking of each reply with these tool calls sent after this prefix; empty if none
        is known."""
        return self._thinking.get((before.hex(), str(call_ids)), [])
