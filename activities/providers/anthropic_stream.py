"""A reply put together from its stream, losing nothing.

The SDK's own accumulator drops delta types that it does not know, takes a stream that was cut off
for complete, and shows a truncated tool call as a valid one. This one keeps unknown events, blocks
and fields, and refuses what it cannot put together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from activities.providers import ProviderError, ProviderReply
from activities.providers.wire_json import read_json

MAX_BLOCKS: Final = 1_000
"""Content blocks of one reply."""

# Delta type: the field of the delta that is appended to the field of the same name in its block.
_APPENDED: Final[Mapping[str, str]] = {"text_delta": "text", "thinking_delta": "thinking"}
# Delta types whose fields take the place of the block's.
_REPLACED: Final = frozenset({"signature_delta", "compaction_delta"})


def unusable_stream(code: str, message: str) -> ProviderError:
    """The error for a stream that makes no sense: the same reply may be readable in one piece."""
    return ProviderError("retry", code, message, stream_unusable=True)


class EventReader:
    """Splits bytes into server-sent events, however they were cut into chunks."""

    def __init__(self) -> None:
        self._pending: list[bytes] = []
        self._name = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> Iterator[tuple[str, str]]:
        """The events (name, data) that `chunk` completes.

        Raises:
            ProviderError: not UTF-8.
        """
        head, newline, tail = chunk.rpartition(b"\n")
        if not newline:
            self._pending.append(chunk)
            return
        lines = b"".join([*self._pending, head, newline])
        self._pending = [tail]
        yield from self._events(lines)

    def end(self) -> Iterator[tuple[str, str]]:
        """The last event, where the stream ended without the blank line after it."""
        rest, self._pending = b"".join(self._pending), []
        yield from self._events(rest + b"\n\n")

    def _events(self, lines: bytes) -> Iterator[tuple[str, str]]:
        for raw in lines.splitlines():
            if raw:
                self._field(raw)
            elif self._data:
                yield self._name, "\n".join(self._data)
                self._name, self._data = "", []

    def _field(self, raw: bytes) -> None:
        try:
            # Some gateways write lone surrogates as bytes; admission mends them.
            line = raw.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            raise unusable_stream("unreadable_stream", "the stream is not UTF-8") from None
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self._name = value
        elif name == "data":
            self._data.append(value)


@dataclass
class _Block:
    value: dict[str, Any]
    appended: dict[str, list[str]] = field(default_factory=dict)
    raw_input: list[str] | None = None
    open: bool = True

    def close(self) -> None:
        for name, parts in self.appended.items():
            self.value[name] = _joined(parts)
        self.appended = {}
        self.open = False


class ReplyAssembly:
    """The reply so far. `complete` once the stream has said that it is."""

    def __init__(self, report: Callable[[Any], ProviderError]) -> None:
        self.complete = False
        self.said_bytes = 0
        self._report = report
        self._message: dict[str, Any] | None = None
        self._blocks: list[_Block] = []
        self._handlers: Mapping[str, Callable[[dict[str, Any]], None]] = {
            "message_start": self._start,
            "content_block_start": self._start_block,
            "content_block_delta": self._extend_block,
            "content_block_stop": self._stop_block,
            "message_delta": self._extend_message,
            "message_stop": self._stop,
            "error": self._error,
        }

    @property
    def begun(self) -> bool:
        """Whether the model has said something."""
        return bool(self._blocks)

    @property
    def usage(self) -> Any:
        """What the provider has counted so far, as it says it."""
        return self._message.get("usage") if self._message else None

    def take(self, name: str, data: str) -> None:
        """Add one event; unknown ones are ignored.

        Raises:
            ProviderError: the event reports an error, or does not fit those before it.
        """
        try:
            event = read_json(data)
        except ValueError:
            event = None
        if not isinstance(event, dict):
            if name in self._handlers:
                raise unusable_stream("unreadable_stream", f"event {name!r} is no JSON object")
            return
        type_ = event.get("type")
        handler = self._handlers.get(type_ if isinstance(type_, str) else name)
        if handler is not None:
            handler(event)

    def reply(self, request_id: str | None) -> ProviderReply:
        """The complete reply.

        Raises:
            ProviderError: `incomplete_stream`, the stream ended early.
        """
        message = self._message
        if (
            message is None
            or not self.complete
            or message.get("stop_reason") is None
            or any(block.open for block in self._blocks)
        ):
            raise ProviderError(
                "retry", "incomplete_stream", "the stream ended before the reply was complete"
            )
        message["content"] = [block.value for block in self._blocks]
        raw = {
            index: text
            for index, block in enumerate(self._blocks)
            if (text := _joined(block.raw_input or []))
        }
        return ProviderReply(message, request_id, raw)

    def _start(self, event: dict[str, Any]) -> None:
        message = event.get("message")
        if self._message is not None or not isinstance(message, dict) or message.get("content"):
            raise unusable_stream("unreadable_stream", "message_start is out of place or not empty")
        self._message = message

    def _start_block(self, event: dict[str, Any]) -> None:
        value = event.get("content_block")
        # bool is an int: `True` would pass for block 1.
        if type(event.get("index")) is not int or event["index"] != len(self._blocks):
            raise unusable_stream("unreadable_stream", "a content block is missing or came twice")
        if not isinstance(value, dict):
            raise unusable_stream("unreadable_stream", "a content block is not an object")
        if len(self._blocks) >= MAX_BLOCKS:
            raise ProviderError(
                "retry", "reply_too_large", f"the reply has over {MAX_BLOCKS} blocks"
            )
        self._blocks.append(_Block(value))

    def _extend_block(self, event: dict[str, Any]) -> None:
        block, delta = self._block(event), event.get("delta")
        type_ = delta.get("type") if isinstance(delta, dict) else None
        if not isinstance(delta, dict) or not isinstance(type_, str):
            raise unusable_stream("unreadable_stream", "a delta is not an object with a type")
        if type_ in _APPENDED:
            name = _APPENDED[type_]
            parts = block.appended.setdefault(name, [_text(block.value.get(name) or "")])
            parts.append(self._said(delta.get(name)))
        elif type_ == "input_json_delta":
            block.raw_input = block.raw_input or []
            block.raw_input.append(self._said(delta.get("partial_json")))
        elif type_ == "citations_delta":
            if not isinstance(block.value.get("citations"), list):
                block.value["citations"] = []
            block.value["citations"].append(delta.get("citation"))
        elif type_ in _REPLACED:
            block.value.update((k, v) for k, v in delta.items() if k != "type")
        else:
            raise unusable_stream("unknown_delta", f"unknown delta type {type_[:100]!r}")

    def _said(self, value: Any) -> str:
        text = _text(value)
        self.said_bytes += len(text)
        return text

    def _stop_block(self, event: dict[str, Any]) -> None:
        self._block(event).close()

    def _block(self, event: dict[str, Any]) -> _Block:
        index = event.get("index")
        if type(index) is int and 0 <= index < len(self._blocks) and self._blocks[index].open:
            return self._blocks[index]
        raise unusable_stream("unreadable_stream", "an event is for no open content block")

    def _extend_message(self, event: dict[str, Any]) -> None:
        message, delta = self._message, event.get("delta")
        if message is None or not isinstance(delta, dict):
            raise unusable_stream("unreadable_stream", "message_delta is out of place")
        rest = {k: v for k, v in event.items() if k not in ("type", "delta", "usage")}
        for name, value in {**delta, **rest}.items():
            # Null says "nothing new": message_start's value stays.
            if value is not None or name not in message:
                message[name] = value
        usage = event.get("usage")
        if isinstance(usage, dict):
            # Counts are totals so far, and those that did not change may be left out.
            begun = message.get("usage")
            known = {k: v for k, v in usage.items() if v is not None}
            message["usage"] = {**(begun if isinstance(begun, dict) else {}), **known}

    def _stop(self, event: dict[str, Any]) -> None:  # noqa: ARG002 - one shape for all handlers
        self.complete = True

    def _error(self, event: dict[str, Any]) -> None:
        raise self._report(event)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise unusable_stream("unreadable_stream", "a piece of text is not a string")


def _joined(parts: list[str]) -> str:
    text = "".join(parts)
    # A character whose two halves came in two deltas is now two surrogates in a row.
    if any("\ud800" <= part[-1:] <= "\udbff" for part in parts):
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    return text
