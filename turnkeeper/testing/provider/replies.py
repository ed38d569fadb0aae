"""What a script answers: replies, and the faults that can be laid over them.

Every builder returns a `Reply`, a frozen value. Builders of one block (`text`, `call`, `thinking`,
...) are replies of their own and also the parts from which `reply([...])` is put together:

    text("Done.")
    call("search", {"q": "revenue"})
    reply([thinking("hm"), text("I look it up."), call("search", {"q": "x"})])

Faults take a reply and return one, so they can be combined:

    cut(call("search", {"q": "x"}), at=0.5, how="reset")
    no_stop(duplicate_event(text("Done."), 3))
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypedDict, Unpack

Json: TypeAlias = dict[str, Any]


class Marker:
    """A value that stands for "not given" where None means JSON null."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


AUTO: Final = Marker("AUTO")
"""The stop reason follows from the blocks: `tool_use` if there is a tool_use block, else
`end_turn`."""

NO_ID: Final = Marker("NO_ID")
"""`call(..., id=NO_ID)` sends a tool_use block without an `id` field."""


class Event(NamedTuple):
    """One server-sent event. `data` is JSON, or bytes that are sent as the `data:` line as is."""

    name: str
    data: Json | bytes

    def encode(self) -> bytes:
        """The event as it is sent."""
        data = self.data if isinstance(self.data, bytes) else dumps(self.data)
        return b"event: " + self.name.encode() + b"\ndata: " + data + b"\n\n"


Edit: TypeAlias = Callable[[list[Event]], list[Event]]


@dataclass(frozen=True)
class Cut:
    """Where a body ends early: bytes from its start (int), a part of its length (float), or None
    for before the status line."""

    at: float | None
    how: Literal["close", "reset", "stall"]

    def offset(self, length: int) -> int:
        """The number of body bytes sent, for a body of `length` bytes."""
        if self.at is None:
            return 0
        wanted = self.at if isinstance(self.at, int) else int(self.at * length)
        return max(0, min(wanted, length))


@dataclass(frozen=True)
class Block:
    """One content block. None as a tool_use `id`, a thinking `signature` or redacted `data` is
    filled in when the reply is sent; `raw_input` is the text sent as the tool's arguments."""

    data: Mapping[str, Any]
    raw_input: str | None = None


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What one request is answered with. `delay` and `delay_between` are seconds: before the
    first byte, and before each further event of a stream."""

    delay: float = 0.0
    delay_between: float = 0.0
    cut: Cut | None = None

    @property
    def kind(self) -> str:
        """A short name of the step for the log, such as `text+tool_use` or `status:529`."""
        raise NotImplementedError

    def _kind(self, base: str) -> str:
        return base if self.cut is None else f"{base} cut:{self.cut.how}"


@dataclass(frozen=True, kw_only=True)
class HttpReply(Reply):
    """A plain HTTP answer that is not a message: an error, or any bytes."""

    status: int
    headers: Mapping[str, str]
    content: Json | bytes
    content_type: str = "application/json"
    name: str = "status"

    @property
    def kind(self) -> str:
        """`status:529`, `garbage:200`."""
        return self._kind(f"{self.name}:{self.status}")


@dataclass(frozen=True, kw_only=True)
class MessageReply(Reply):
    """A message, sent as JSON or as a stream, whichever the request asked for."""

    blocks: tuple[Block, ...]
    stop_reason: str | Marker | None = AUTO
    stop_sequence: str | None = None
    stop_details: Mapping[str, Any] | None = None
    usage: Mapping[str, Any] | None = None
    extra: Mapping[str, Any] | None = None
    chunk: int | None = None
    edits: tuple[Edit, ...] = ()
    edit_names: tuple[str, ...] = ()
    plain: HttpReply | None = None

    @property
    def kind(self) -> str:
        """The types of the blocks, joined by `+`, and the names of the faults."""
        types = dict.fromkeys(str(block.data.get("type")) for block in self.blocks)
        return self._kind(" ".join(["+".join(types) or "empty", *self.edit_names]))

    @property
    def actual_stop_reason(self) -> str | None:
        """The stop reason as sent."""
        if not isinstance(self.stop_reason, Marker):
            return self.stop_reason
        uses_tool = any(block.data.get("type") == "tool_use" for block in self.blocks)
        return "tool_use" if uses_tool else "end_turn"


class Options(TypedDict, total=False):
    """Options of every message builder.

    stop_reason: any string, or None for null; stop_sequence; stop_details: an object.
    usage: fields that replace or extend the computed usage.
    extra: further top-level fields of the message.
    chunk: characters per delta (default: at most 16 deltas a block).
    delay, delay_between: seconds before the first byte, and before each further event.
    """

    stop_reason: str | Marker | None
    stop_sequence: str | None
    stop_details: Mapping[str, Any] | None
    usage: Mapping[str, Any] | None
    extra: Mapping[str, Any] | None
    chunk: int | None
    delay: float
    delay_between: float


Part: TypeAlias = MessageReply | Mapping[str, Any]


def reply(parts: Sequence[Part] = (), **options: Unpack[Options]) -> MessageReply:
    """A message of several blocks: other builders' results, or block objects sent as they are.

    Options set on a part are not taken over; `reply([])` is a message with empty content.
    """
    blocks: list[Block] = []
    for part in parts:
        blocks += part.blocks if isinstance(part, MessageReply) else [Block(part)]
    return MessageReply(blocks=tuple(blocks), **options)


def text(value: str, **options: Unpack[Options]) -> MessageReply:
    """A message with one text block; any string, also an empty one or a lone surrogate."""
    return reply([{"type": "text", "text": value}], **options)


def summary(said: str = "Nothing to note.", **options: Unpack[Options]) -> MessageReply:
    """A summary as a run takes it: every heading that it asks for, `said` under each of them."""
    # Here, since a provider that plays something else needs no packages.
    from turnkeeper.epoch import HEADINGS

    return text("\n".join(f"## {heading}\n{said}" for heading in HEADINGS), **options)


def thinking(
    value: str, *, signature: str | None = None, **options: Unpack[Options]
) -> MessageReply:
    """A thinking block, signed over everything before it unless `signature` is given."""
    return reply([{"type": "thinking", "thinking": value, "signature": signature}], **options)


def redacted_thinking(data: str | None = None, **options: Unpack[Options]) -> MessageReply:
    """A redacted_thinking block, its `data` bound to everything before it unless given."""
    return reply([{"type": "redacted_thinking", "data": data}], **options)


def call(
    name: str,
    input: Any = None,  # noqa: A002 - the block's field
    *,
    id: str | Marker | None = None,  # noqa: A002 - the block's field
    raw_input: str | None = None,
    **options: Unpack[Options],
) -> MessageReply:
    """A tool call. `input` is any JSON value (default `{}`, NaN allowed); `raw_input` is sent in
    its place verbatim and need not be JSON; an empty one streams no arguments at all. `id` defaults
    to `call_id(turn, index)`; `NO_ID` leaves the field out."""
    data: Json = {
        "type": "tool_use",
        "id": id,
        "name": name,
        "input": {} if input is None else input,
    }
    if id is NO_ID:
        del data["id"]
    part = MessageReply(blocks=(Block(data, raw_input),))
    return reply([part], **options)


def calls(
    parts: Sequence[MessageReply | tuple[str, Any]], **options: Unpack[Options]
) -> MessageReply:
    """Parallel tool calls: `calls([("search", {"q": "a"}), call("add", {"x": 1}, id="c2")])`."""
    return reply([call(*part) if isinstance(part, tuple) else part for part in parts], **options)


def server_tool_use(
    name: str,
    input: Any = None,  # noqa: A002 - the block's field
    *,
    id: str = "srvtoolu_0",  # noqa: A002 - the block's field
    **options: Unpack[Options],
) -> MessageReply:
    """A tool call that the provider would run itself, without its result."""
    data = {
        "type": "server_tool_use",
        "id": id,
        "name": name,
        "input": {} if input is None else input,
    }
    return reply([data], **options)


_ERROR_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def status(
    code: int,
    *,
    headers: Mapping[str, str] | None = None,
    error_type: str | None = None,
    message: str | None = None,
    error_code: str | None = None,
    body: bytes | None = None,
    content_type: str | None = None,
    delay: float = 0.0,
) -> HttpReply:
    """An HTTP error in the API's form, or with `body` any bytes (HTML unless told otherwise).

    `error_type` defaults to the API's own for the status; `error_code` is sent as
    `error.details.error_code`, where the SDK looks for it.
    """
    if body is not None:
        return HttpReply(
            status=code,
            headers=headers or {},
            content=body,
            content_type=content_type or "text/html",
            delay=delay,
        )
    type_ = error_type or _ERROR_TYPES.get(
        code, "invalid_request_error" if code < 500 else "api_error"
    )
    error: Json = {"type": type_, "message": message or f"Scripted error {code}"}
    if error_code is not None:
        error["details"] = {"error_code": error_code}
    return HttpReply(
        status=code,
        headers=headers or {},
        content={"type": "error", "error": error},
        content_type=content_type or "application/json",
        delay=delay,
    )


def garbage(
    body: bytes, *, content_type: str = "application/json", status: int = 200, delay: float = 0.0
) -> HttpReply:
    """A successful answer with the given bytes, whatever they are."""
    return HttpReply(
        status=status,
        headers={},
        content=body,
        content_type=content_type,
        name="garbage",
        delay=delay,
    )


def cut(
    reply: Reply,
    at: float | None = 0.5,
    how: Literal["close", "reset", "stall"] = "close",
) -> Reply:
    """The reply, ended early. `at` counts bytes of the HTTP body (int), or is the part of it that
    is sent (float, 0.0 to 1.0); None ends before the status line. `how`: `close` ends the
    connection cleanly, `reset` sends a TCP RST, `stall` says nothing more and holds it open."""
    return replace(reply, cut=Cut(at, how))


def no_stop(reply: MessageReply, *, after: int | None = None) -> MessageReply:
    """A stream that ends cleanly without `message_stop`, after `after` events if given. A plain
    reply has no such end and is sent whole."""

    def edit(events: list[Event]) -> list[Event]:
        kept = events if after is None else events[:after]
        return [event for event in kept if event.name != "message_stop"]

    return _edited(reply, "no_stop", edit)


def error_event(
    reply: MessageReply,
    *,
    after: int = 0,
    type: str = "overloaded_error",  # noqa: A002 - the error's field
    message: str = "Overloaded",
    error_code: str | None = None,
) -> MessageReply:
    """A stream that reports an error after `after` events and ends. A plain request is answered
    with the HTTP status of that error type."""
    code = next((code for code, name in _ERROR_TYPES.items() if name == type), 500)
    plain = status(code, error_type=type, message=message, error_code=error_code)

    def edit(events: list[Event]) -> list[Event]:
        return [*events[:after], Event("error", plain.content)]

    return replace(_edited(reply, f"error_event:{type}", edit), plain=plain)


def insert_event(
    reply: MessageReply, name: str, data: Json | bytes, *, after: int = 1
) -> MessageReply:
    """The stream with one more event after its first `after` events: an unknown event, an unknown
    delta type, bytes that are not JSON. Plain replies are not changed."""

    def edit(events: list[Event]) -> list[Event]:
        return [*events[:after], Event(name, data), *events[after:]]

    return _edited(reply, f"insert:{name}", edit)


def ping(reply: MessageReply, *, after: int = 1, count: int = 1) -> MessageReply:
    """The stream with `count` further ping events after its first `after` events."""
    for _ in range(count):
        reply = insert_event(reply, "ping", {"type": "ping"}, after=after)
    return reply


def unknown_delta(reply: MessageReply, *, block: int = 0, after: int = 2) -> MessageReply:
    """The stream with a delta of a type that no client knows, for content block `block`."""
    delta = {"type": "future_delta", "future": "?"}
    data = {"type": "content_block_delta", "index": block, "delta": delta}
    return insert_event(reply, "content_block_delta", data, after=after)


def duplicate_event(reply: MessageReply, index: int) -> MessageReply:
    """The stream with its event number `index` (from 0) sent twice."""

    def edit(events: list[Event]) -> list[Event]:
        return [*events[: index + 1], *events[index:]]

    return _edited(reply, f"duplicate_event:{index}", edit)


def call_id(turn: int, index: int) -> str:
    """The id given to tool call `index` (from 0) of the reply to a request of turn `turn`.

    A suffix follows if the conversation already has a call of this id.
    """
    return f"toolu_{turn:05d}_{index:03d}"


def dumps(value: Any) -> bytes:
    """Compact JSON in UTF-8. A lone surrogate is sent as its escape, and NaN as `NaN`, because a
    script may want to send just that."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode()


def _edited(reply: MessageReply, name: str, edit: Edit) -> MessageReply:
    return replace(reply, edits=(*reply.edits, edit), edit_names=(*reply.edit_names, name))
