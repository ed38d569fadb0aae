"""A reply as the bytes of the Messages API: one JSON body, or server-sent events.

Event order: message_start, ping, then for each block content_block_start, content_block_delta*,
content_block_stop, then message_delta with the stop reason and the usage, then message_stop.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from turnkeeper.testing.provider import signatures
from turnkeeper.testing.provider.prefix import Continuation, token_estimate
from turnkeeper.testing.provider.replies import Event, Json, MessageReply, call_id, dumps

_DELTAS_PER_BLOCK: Final = 16
_SHORTEST_CHUNK: Final = 20


class Content(NamedTuple):
    """A block ready to be sent; `raw_input` is the text of a tool's arguments, if it is not simply
    the JSON of `block["input"]`."""

    block: Json
    raw_input: str | None


def fill(
    reply: MessageReply, turn: int, used_ids: set[Any], conversation: Continuation
) -> list[Content]:
    """The reply's blocks with ids and signatures filled in; `conversation` is advanced over
    them."""
    content: list[Content] = []
    calls = 0
    for source in reply.blocks:
        block = dict(source.data)
        if block.get("type") == "tool_use":
            if "id" in block and block["id"] is None:
                block["id"] = _unused(call_id(turn, calls), used_ids)
            used_ids.add(block.get("id"))
            calls += 1
        elif block.get("type") == "thinking" and block.get("signature") is None:
            block["signature"] = signatures.sign(conversation.digest(), block["thinking"])
        elif block.get("type") == "redacted_thinking" and block.get("data") is None:
            block["data"] = signatures.redact(conversation.digest())
        conversation.append(_as_sent_back(block, source.raw_input))
        content.append(Content(block, source.raw_input))
    return content


def _unused(id_: str, used: set[Any]) -> str:
    suffix = 0
    while (candidate := f"{id_}_{suffix}" if suffix else id_) in used:
        suffix += 1
    return candidate


def _as_sent_back(block: Json, raw_input: str | None) -> Json:
    if raw_input is None:
        return block
    try:
        return {**block, "input": json.loads(raw_input)}
    except (ValueError, RecursionError):
        return block  # no client can send these arguments back


@dataclass(frozen=True)
class Message:
    """A message about to be sent: the reply with everything the provider adds to it."""

    reply: MessageReply
    id: str
    model: str
    content: list[Content]
    input_usage: Json
    input_transformations: list[Json] | None
    diagnostics: Json | None = None

    def plain(self) -> bytes:
        """The JSON body. Raw tool arguments stand in it verbatim, so it need not be valid JSON."""
        body = {
            **self._head([content.block for content in self.content]),
            "stop_reason": self.reply.actual_stop_reason,
            "stop_sequence": self.reply.stop_sequence,
            "stop_details": self.reply.stop_details,
            "usage": {**self._usage(), **(self.reply.usage or {})},
            **(self.reply.extra or {}),
        }
        raw = {n: content.raw_input for n, content in enumerate(self.content) if content.raw_input}
        if not raw:
            return dumps(body)
        # A marker that no text contains is sent through the encoder in place of the arguments.
        body["content"] = [
            {**content.block, "input": f"\0raw{n}\0"} if n in raw else content.block
            for n, content in enumerate(self.content)
        ]
        encoded = dumps(body)
        for n, text in raw.items():
            marker, arguments = dumps(f"\0raw{n}\0"), text.encode(errors="surrogatepass")
            encoded = encoded.replace(marker, arguments, 1)
        return encoded

    def events(self) -> list[bytes]:
        """The events of the stream, encoded, after the reply's edits."""
        events = list(self._events())
        for edit in self.reply.edits:
            events = edit(events)
        return [event.encode() for event in events]

    def _head(self, content: list[Json]) -> Json:
        head: Json = {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
        }
        if self.input_transformations is not None:
            head["input_transformations"] = self.input_transformations
        if self.diagnostics is not None:
            head["diagnostics"] = self.diagnostics
        return head

    def _usage(self) -> Json:
        thoughts = sum(
            token_estimate(len(dumps(content.block)))
            for content in self.content
            if content.block.get("type") in signatures.THINKING_TYPES
        )
        blocks = dumps([content.block for content in self.content])
        raw = sum(len(content.raw_input or "") for content in self.content)
        usage = {
            **self.input_usage,
            "output_tokens": token_estimate(len(blocks) + raw),
            "service_tier": "standard",
        }
        if thoughts:
            usage["output_tokens_details"] = {"thinking_tokens": thoughts}
        return usage

    def _events(self) -> Iterator[Event]:
        usage, overrides = self._usage(), dict(self.reply.usage or {})
        start = {**usage, **overrides, "output_tokens": 1}
        start.pop("output_tokens_details", None)
        message = {
            **self._head([]),
            "stop_reason": None,
            "stop_sequence": None,
            "stop_details": None,
            "usage": start,
            **(self.reply.extra or {}),
        }
        yield Event("message_start", {"type": "message_start", "message": message})
        yield Event("ping", {"type": "ping"})
        for index, content in enumerate(self.content):
            yield from _block_events(index, content, self.reply.chunk)
        for name in ("cache_creation", "service_tier"):  # not in the API's message_delta
            del usage[name]
        delta = {
            "stop_reason": self.reply.actual_stop_reason,
            "stop_sequence": self.reply.stop_sequence,
            "stop_details": self.reply.stop_details,
        }
        yield Event(
            "message_delta",
            {"type": "message_delta", "delta": delta, "usage": {**usage, **overrides}},
        )
        yield Event("message_stop", {"type": "message_stop"})


def _block_events(index: int, content: Content, chunk: int | None) -> Iterator[Event]:
    start, deltas = _split(content, chunk)
    yield Event(
        "content_block_start",
        {"type": "content_block_start", "index": index, "content_block": start},
    )
    for delta in deltas:
        yield Event(
            "content_block_delta", {"type": "content_block_delta", "index": index, "delta": delta}
        )
    yield Event("content_block_stop", {"type": "content_block_stop", "index": index})


def _split(content: Content, chunk: int | None) -> tuple[Json, list[Json]]:
    """The block as content_block_start shows it, and the deltas that complete it."""
    block = content.block
    match block.get("type"):
        case "text" if isinstance(block.get("text"), str):
            deltas = _deltas("text_delta", "text", block["text"], chunk)
            start = {**block, "text": ""}
            if block.get("citations"):
                start["citations"] = []
                deltas += [
                    {"type": "citations_delta", "citation": citation}
                    for citation in block["citations"]
                ]
            return start, deltas
        case "thinking" if isinstance(block.get("thinking"), str):
            deltas = _deltas("thinking_delta", "thinking", block["thinking"], chunk)
            signature = {"type": "signature_delta", "signature": block.get("signature")}
            return {**block, "thinking": "", "signature": ""}, [*deltas, signature]
        case "tool_use" | "server_tool_use" if "input" in block:
            arguments = content.raw_input
            if arguments is None:
                arguments = dumps(block["input"]).decode()
            # The API opens every input with an empty piece.
            opening = {"type": "input_json_delta", "partial_json": ""}
            pieces = _deltas("input_json_delta", "partial_json", arguments, chunk)
            return {**block, "input": {}}, [opening, *pieces]
        case _:
            return block, []


def _deltas(type_: str, field: str, text: str, chunk: int | None) -> list[Json]:
    size = chunk or max(_SHORTEST_CHUNK, -(-len(text) // _DELTAS_PER_BLOCK))
    return [{"type": type_, field: text[at : at + size]} for at in range(0, len(text), size)]


def error_body(type_: str, message: str, request_id: str) -> bytes:
    """An error in the API's form."""
    error: Mapping[str, str] = {"type": type_, "message": message}
    return dumps({"type": "error", "error": error, "request_id": request_id})
