"""A reply made fit to be stored, and to be sent back.

A reply has been paid for, and a model that wrote one bad argument can be told so. Therefore what is
wrong in it is mended where the meaning stays, its call is refused with words for the model where it
does not, and only what cannot be stored at all costs the reply. Thinking blocks are never touched:
the provider refuses a block that differs in any way, so one that cannot be stored costs the reply.

A mended block may stand before a thinking block of the same reply, which is then bound to what is
no longer there. The provider answers that with an error of kind `thinking`, which can be cured.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Final

from activities.providers import ProviderError, ProviderReply
from activities.providers.anthropic_request import DIALECT
from activities.providers.anthropic_stream import MAX_BLOCKS
from activities.providers.defects import (
    BLOCK_DEPTH,
    FIELD_DEPTH,
    Defect,
    compact_size,
    defects_of,
    mend_unicode,
    usable_arguments,
)
from activities.providers.wire_json import read_json
from turnkeeper.entries import Entry, admit
from turnkeeper.errors import AdmissionError
from turnkeeper.replies import THINKING
from turnkeeper.spec import MAX_ARGUMENTS_BYTES, MAX_REPLY_ARGUMENTS_BYTES
from turnkeeper.text import is_well_formed, one_line, utf8_size
from turnkeeper.usage import Usage

MAX_REPLY_BYTES: Final = 900_000
"""A reply as JSON: less than an entry, since other fields travel with it."""
MAX_TEXT_BYTES: Final = 500_000
"""One text block."""
MAX_DETAILS_BYTES: Final = 8_000
"""Stop details as JSON."""
MAX_NOTES: Final = 20
"""Notes on what was mended."""
MAX_TOKENS: Final = 10**9
"""A larger count of tokens is taken for this one."""
UNDIAGNOSED: Final = frozenset({"previous_message_not_found", "unavailable"})
"""Reasons of a `CacheMiss` by which the provider says that it cannot tell whether there is one."""

_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]+")
# A mark of requests: five of them are refused, and the request's own would be one of them.
_CACHE_MARK: Final = "cache_control"
_UNICODE_NOTE: Final = "invalid Unicode replaced"


@dataclass(frozen=True)
class CacheMiss:
    """Why the provider's cache did not have what the previous request had in common with this."""

    reason: str
    """The provider's word for what changed, e.g. `messages_changed`; or one of `UNDIAGNOSED`."""
    tokens: int
    """About as many were read anew."""


@dataclass(frozen=True)
class Admitted:
    """A reply that can be stored and sent back."""

    entry: Entry
    """Kind `reply`, value `{"role": "assistant", "content": [...]}`."""
    stop_reason: str | None
    stop_details: Any
    message_id: str | None
    model: str | None
    usage: Usage
    refused_calls: dict[str, str] = field(default_factory=dict)
    """By call id: why it is not run, in words for the model and without its data."""
    mended: list[str] = field(default_factory=list)
    """What was changed, for operators; without data."""
    cache_miss: CacheMiss | None = None


def admit_reply(reply: ProviderReply, *, turn: int, known_ids: Collection[str]) -> Admitted:
    """Make `reply` an entry.

    known_ids: ids of the calls that the run has already had; a call gets another one rather than
    one of these. It is made of `turn` and the block's index, so it is the same at each attempt.

    Raises:
        ProviderError: `retry` with code `unusable_reply`, for what cannot be stored at all.
    """
    content = reply.message.get("content")
    if not isinstance(content, list):
        raise _unusable("its content is not a list")
    mending = _Mending(content, reply.raw_inputs, turn, known_ids)
    blocks = [
        mended for index, block in enumerate(content) if (mended := mending.block(index, block))
    ]
    if len(blocks) > MAX_BLOCKS:
        raise _unusable(f"it has over {MAX_BLOCKS} content blocks")
    value = {"role": "assistant", "content": blocks}
    try:
        entry = admit("reply", value, dialect=DIALECT)
    except AdmissionError as error:
        raise _unusable(one_line(error.why, 200)) from None
    if compact_size(value) > MAX_REPLY_BYTES:
        raise _unusable(f"it has over {MAX_REPLY_BYTES} bytes")
    return Admitted(
        entry=entry,
        stop_reason=_stop_reason(reply.message.get("stop_reason")),
        stop_details=_details(reply.message.get("stop_details")),
        message_id=_short(reply.message.get("id")),
        model=_short(reply.message.get("model")),
        usage=usage_of(reply.message.get("usage")),
        refused_calls=mending.refused,
        mended=mending.told(),
        cache_miss=_cache_miss(reply.message.get("diagnostics")),
    )


class _Mending:
    """Goes through the blocks of one reply in order."""

    def __init__(
        self, content: list[Any], raw_inputs: dict[int, str], turn: int, known_ids: Collection[str]
    ) -> None:
        self.refused: dict[str, str] = {}
        self._notes: list[str] = []
        self._noted = 0
        self._raw_inputs = raw_inputs
        self._turn = turn
        self._arguments_bytes = 0
        named = [b for b in content if isinstance(b, dict) and isinstance(b.get("id"), str)]
        self._said = {b["id"] for b in named}
        # Ids of calls that the provider runs itself are not ours to change.
        self._taken = {*known_ids, *(b["id"] for b in named if b.get("type") != "tool_use")}

    def block(self, index: int, block: Any) -> dict[str, Any] | None:
        """The block as it will be kept, or None."""
        type_ = block.get("type") if isinstance(block, dict) else None
        if not isinstance(block, dict) or not isinstance(type_, str):
            return self._drop(index, "not an object with a type")
        if type_ in THINKING:
            return self._thinking(index, block)
        if type_ == "text":
            return self._text(index, block)
        if type_ == "tool_use":
            return self._call(index, block)
        return self._other(index, block)

    def told(self) -> list[str]:
        """The notes, and how many there are beyond `MAX_NOTES`."""
        more = self._noted - len(self._notes)
        return self._notes + ([f"and {more} more"] if more else [])

    def _note(self, index: int, what: str) -> None:
        self._noted += 1
        if len(self._notes) < MAX_NOTES:
            self._notes.append(f"content[{index}]: {what}")

    def _drop(self, index: int, why: str) -> dict[str, Any] | None:
        self._note(index, f"dropped, {why}")
        return None

    def _thinking(self, index: int, block: dict[str, Any]) -> dict[str, Any]:
        if index in self._raw_inputs or defects_of(block, BLOCK_DEPTH):
            raise _unusable("a thinking block cannot be stored as it is")
        return block

    def _text(self, index: int, block: dict[str, Any]) -> dict[str, Any] | None:
        text = block.get("text")
        if not isinstance(text, str) or not text.strip():
            # The API writes such blocks and refuses them when they come back.
            return self._drop(index, "no text")
        if utf8_size(text) > MAX_TEXT_BYTES:
            raise _unusable(f"a text of over {MAX_TEXT_BYTES} bytes")
        return self._sound(index, block)

    def _other(self, index: int, block: dict[str, Any]) -> dict[str, Any] | None:
        if block["type"] == "tool_result":
            return self._drop(index, "a tool_result is never the model's")
        try:
            if index in self._raw_inputs:
                block = {**block, "input": read_json(self._raw_inputs[index])}
            if _CACHE_MARK in block:
                block = {name: value for name, value in block.items() if name != _CACHE_MARK}
                self._note(index, "a cache mark left out")
            if not (defects := defects_of(block, BLOCK_DEPTH)):
                return block
            if defects == {Defect.UNICODE}:
                block = mend_unicode(block)
                self._note(index, _UNICODE_NOTE)
                return block
        except ValueError:
            pass
        # A call that the provider ran and its result are refused without each other.
        if "tool_use_id" in block or "id" in block:
            raise _unusable("a block that others refer to cannot be stored")
        return self._drop(index, "it cannot be stored")

    def _call(self, index: int, block: dict[str, Any]) -> dict[str, Any]:
        arguments, defect = self._arguments(index, block)
        call_id, name = self._id(index, block.get("id")), block.get("name")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            defect = Defect.NAME
            legal = _NOT_IN_NAMES.sub("_", name) if isinstance(name, str) else ""
            name = legal[:128] or "unnamed"
            self._note(index, "name replaced")
        if defect is not None:
            self.refused[call_id] = f"Not run: {defect}"
        return self._sound(index, {**block, "id": call_id, "name": name, "input": arguments})

    def _id(self, index: int, given: Any) -> str:
        if isinstance(given, str) and _ID.fullmatch(given) and given not in self._taken:
            self._taken.add(given)
            return given
        made, number = f"call_{self._turn}_{index}", 1
        while made in self._taken or made in self._said:
            number += 1
            made = f"call_{self._turn}_{index}_{number}"
        self._taken.add(made)
        self._note(index, "id replaced")
        return made

    def _arguments(self, index: int, block: dict[str, Any]) -> tuple[Any, Defect | None]:
        """The arguments to keep, and why the call is refused."""
        raw = self._raw_inputs.get(index)
        try:
            given = block.get("input") if raw is None else read_json(raw)
        except ValueError:
            defect: Defect | None = Defect.NOT_JSON
        else:
            given, defect = usable_arguments(given)
        if defect in (None, Defect.UNICODE):
            size = compact_size(given)
            if size <= MAX_ARGUMENTS_BYTES:
                self._arguments_bytes += size
                if self._arguments_bytes <= MAX_REPLY_ARGUMENTS_BYTES:
                    return given, defect
                self._arguments_bytes -= size
            defect = Defect.SIZE if size > MAX_ARGUMENTS_BYTES else Defect.TOTAL
        self._note(index, "input left out")
        return {}, defect

    def _sound(self, index: int, block: dict[str, Any]) -> dict[str, Any]:
        """The block without fields that cannot be stored."""
        kept: dict[str, Any] = {}
        for name, value in block.items():
            if name == _CACHE_MARK:
                self._note(index, "a cache mark left out")
                continue
            defects = defects_of({name: value}, FIELD_DEPTH + 1)
            if not defects:
                kept[name] = value
                continue
            try:
                if defects != {Defect.UNICODE} or not is_well_formed(name):
                    raise ValueError(name)
                kept[name] = mend_unicode(value)
                self._note(index, _UNICODE_NOTE)
            except ValueError:
                self._note(index, "a field left out")
        return kept


def _unusable(why: str) -> ProviderError:
    return ProviderError("retry", "unusable_reply", f"the reply cannot be stored: {why}")


def _stop_reason(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return _short(value)
    # Never its repr: that of a deep or huge value raises.
    return f"<{type(value).__name__}>"


def _short(value: Any) -> str | None:
    return one_line(value, 200) if isinstance(value, str) else None


def _details(value: Any) -> dict[str, Any] | None:
    if not isinstance(value, dict) or defects_of(value, FIELD_DEPTH) - {Defect.UNICODE}:
        return None
    try:
        mended = mend_unicode(value)
    except ValueError:
        return None
    return mended if compact_size(mended) <= MAX_DETAILS_BYTES else None


def _cache_miss(diagnostics: Any) -> CacheMiss | None:
    # A reason of null says that the provider has not found out yet.
    why = diagnostics.get("cache_miss_reason") if isinstance(diagnostics, dict) else None
    if not isinstance(why, dict) or (reason := _short(why.get("type"))) is None:
        return None
    return CacheMiss(reason, _count(why.get("cache_missed_input_tokens")))


def usage_of(value: Any) -> Usage:
    """The counts of a reply.

    The API reports what an in-band compaction cost in `iterations` alone; those of all other
    types are in the totals as well.
    """
    if not isinstance(value, dict):
        return Usage()
    parts = [value]
    iterations = value.get("iterations")
    if isinstance(iterations, list):
        parts += [i for i in iterations if isinstance(i, dict) and i.get("type") == "compaction"]
    counts = {
        name: min(sum(_count(p.get(wire)) for p in parts), MAX_TOKENS) for name, wire in _COUNTS
    }
    return Usage(**counts)


_COUNTS: Final = (
    ("input_tokens", "input_tokens"),
    ("cache_read_tokens", "cache_read_input_tokens"),
    ("cache_write_tokens", "cache_creation_input_tokens"),
    ("output_tokens", "output_tokens"),
)


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return 0
    # Compared before it is converted: int() of an infinity raises. NaN is less than nothing.
    return int(min(value, MAX_TOKENS)) if value > 0 else 0
