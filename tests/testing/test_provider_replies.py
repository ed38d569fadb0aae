"""What the official SDK reads of the scripted provider's replies, and faults to the byte."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import httpx2
import pytest
from anthropic import AsyncAnthropic

from turnkeeper.testing import (
    NO_ID,
    Record,
    Reply,
    ScriptedProvider,
    call,
    call_id,
    calls,
    cut,
    duplicate_event,
    error_event,
    garbage,
    insert_event,
    no_stop,
    ping,
    redacted_thinking,
    reply,
    server_tool_use,
    status,
    text,
    thinking,
    unknown_delta,
)

Json = dict[str, Any]

REQUEST: Json = {
    "model": "claude-sonnet-5-5",
    "max_tokens": 1000,
    "messages": [{"role": "user", "content": "hello"}],
}
CITATION = {
    "type": "char_location",
    "cited_text": "x",
    "document_index": 0,
    "document_title": None,
    "start_char_index": 0,
    "end_char_index": 1,
}


class Stage:
    """A provider whose next reply is set by the test, and clients of it."""

    sdk: AsyncAnthropic
    http: httpx2.AsyncClient

    def __init__(self) -> None:
        self.next: Reply = text("ok")
        self.provider = ScriptedProvider(lambda _: self.next)

    async def plain(self, reply: Reply) -> Json:
        """The reply as the SDK reads it in one piece."""
        self.next = reply
        message = await self.sdk.messages.create(**REQUEST)
        return message.to_dict(mode="json")

    async def streamed(self, reply: Reply) -> Json:
        """The reply as the SDK puts it together from a stream."""
        self.next = reply
        async with self.sdk.messages.stream(**REQUEST) as stream:
            message = await stream.get_final_message()
        return message.to_dict(mode="json")

    async def events(self, reply: Reply) -> list[tuple[str, str]]:
        """Name and data of the events of the stream, as they are sent."""
        self.next = reply
        response = await self.http.post("/v1/messages", json={**REQUEST, "stream": True})
        assert response.headers["content-type"] == "text/event-stream"
        found = []
        for event in response.text.removesuffix("\n\n").split("\n\n"):
            name, _, data = event.partition("\n")
            found.append((name.removeprefix("event: "), data.removeprefix("data: ")))
        return found

    async def body(self, reply: Reply) -> bytes:
        """The reply's body in one piece."""
        self.next = reply
        return (await self.http.post("/v1/messages", json=REQUEST)).content


@pytest.fixture(scope="module")
async def stage() -> AsyncIterator[Stage]:
    """A running stage."""
    stage = Stage()
    async with (
        stage.provider,
        AsyncAnthropic(base_url=stage.provider.url, api_key="any", max_retries=0) as stage.sdk,
        httpx2.AsyncClient(
            base_url=stage.provider.url,
            headers={"x-api-key": "any", "anthropic-version": "2026-10-21"},
        ) as stage.http,
    ):
        yield stage


BLOCKS: dict[str, tuple[Reply, Json]] = {
    "text": (text("Hello, wörld \U0001f600"), {"type": "text", "text": "Hello, wörld \U0001f600"}),
    "long text": (text("ab" * 5000, chunk=7), {"type": "text", "text": "ab" * 5000}),
    "empty text": (text(""), {"type": "text", "text": ""}),
    "cited text": (
        reply([{"type": "text", "text": "x", "citations": [CITATION]}]),
        {"type": "text", "text": "x", "citations": [CITATION]},
    ),
    "signed thinking": (
        thinking("hm, " * 50, signature="s" * 300),
        {"type": "thinking", "thinking": "hm, " * 50, "signature": "s" * 300},
    ),
    "omitted thinking": (
        thinking("", signature="s"),
        {"type": "thinking", "thinking": "", "signature": "s"},
    ),
    "redacted thinking": (
        redacted_thinking("abc"),
        {"type": "redacted_thinking", "data": "abc"},
    ),
    "tool call": (
        call("search", {"zeta": [1, {"b": None}], "alpha": 'é\n"', "n": 12345678901234567890}),
        {
            "type": "tool_use",
            "id": call_id(0, 0),
            "name": "search",
            "input": {"zeta": [1, {"b": None}], "alpha": 'é\n"', "n": 12345678901234567890},
        },
    ),
    "tool call without arguments": (
        call("now"),
        {"type": "tool_use", "id": call_id(0, 0), "name": "now", "input": {}},
    ),
    "server tool call": (
        server_tool_use("web_search", {"query": "x"}),
        {
            "type": "server_tool_use",
            "id": "srvtoolu_0",
            "name": "web_search",
            "input": {"query": "x"},
        },
    ),
    "unknown block": (
        reply([{"type": "future_block", "payload": {"deep": [1, 2]}}]),
        {"type": "future_block", "payload": {"deep": [1, 2]}},
    ),
}


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
async def test_sdk_reads_every_block(stage: Stage, name: str) -> None:
    """The official SDK reads each type of block without loss, in one piece and from a stream."""
    scripted, expected = BLOCKS[name]
    assert (await stage.plain(scripted))["content"] == [expected]
    assert (await stage.streamed(scripted))["content"] == [expected]


async def test_order_of_arguments_is_kept(stage: Stage) -> None:
    """Tool arguments arrive with their keys in the script's order."""
    for read in (stage.plain, stage.streamed):
        block = (await read(call("search", {"zeta": 1, "alpha": 2})))["content"][0]
        assert list(block["input"]) == ["zeta", "alpha"]


async def test_mixed_reply(stage: Stage) -> None:
    """A reply of several parts has them in order, and its stop reason follows from them."""
    scripted = reply([thinking("hm"), text("I search."), call("a"), call("b"), text("Wait.")])
    for read in (stage.plain, stage.streamed):
        message = await read(scripted)
        types = [block["type"] for block in message["content"]]
        assert types == ["thinking", "text", "tool_use", "tool_use", "text"]
        assert message["stop_reason"] == "tool_use"
        assert [block["id"] for block in message["content"][2:4]] == [call_id(0, 0), call_id(0, 1)]


async def test_empty_reply(stage: Stage) -> None:
    """A reply may have no content at all."""
    for read in (stage.plain, stage.streamed):
        message = await read(reply([]))
        assert (message["content"], message["stop_reason"]) == ([], "end_turn")


@pytest.mark.parametrize("stop", ["max_tokens", "pause_turn", "refusal", "future_reason", None])
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
async def test_stop_reasons(stage: Stage, stop: str | None) -> None:
    """Any stop reason can be sent, also one that no client knows, and null."""
    scripted = text("x", stop_reason=stop)
    assert (await stage.plain(scripted))["stop_reason"] == stop
    assert (await stage.streamed(scripted))["stop_reason"] == stop


async def test_stop_details(stage: Stage) -> None:
    """A refusal's details and a stop sequence are sent with the stop reason."""
    details = {"type": "refusal", "category": "bio", "explanation": None}
    refused = text("No.", stop_reason="refusal", stop_details=details)
    stopped = text("x", stop_reason="stop_sequence", stop_sequence="END")
    for read in (stage.plain, stage.streamed):
        assert (await read(refused))["stop_details"] == details
        assert (await read(stopped))["stop_sequence"] == "END"


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
async def test_usage_and_unknown_fields(stage: Stage) -> None:
    """Usage can be overridden field by field, and unknown fields are added at the top."""
    scripted = text("x", usage={"output_tokens": 7, "future": 1}, extra={"new_field": {"a": 1}})
    for read in (stage.plain, stage.streamed):
        message = await read(scripted)
        assert message["usage"]["output_tokens"] == 7
        assert message["usage"]["input_tokens"] > 0
        assert message["new_field"] == {"a": 1}
    assert (await stage.plain(scripted))["usage"]["future"] == 1


async def test_event_order(stage: Stage) -> None:
    """A stream's events come in the API's order, and its pieces have the size asked for."""
    names = [name for name, _ in await stage.events(reply([text("abcd"), call("a")], chunk=2))]
    assert names == [
        "message_start",
        "ping",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


RAW_INPUTS = {
    "truncated": '{"a": ',
    "not JSON": "search for x",
    "not an object": "[1, 2]",
    "NaN": '{"a": NaN}',
    "lone surrogate": '{"a": "\\ud800"}',
    "duplicate keys": '{"a": 1, "a": 2}',
    "4,000 levels": '{"a":' * 4000 + "1" + "}" * 4000,
    "1.2 MB": json.dumps({"a": "x" * 1_200_000}),
}


@pytest.mark.parametrize("name", RAW_INPUTS)
async def test_raw_input(stage: Stage, name: str) -> None:
    """Tool arguments given as text arrive as that very text, JSON or not."""
    raw = RAW_INPUTS[name]
    events = await stage.events(call("a", raw_input=raw))
    deltas = [json.loads(data)["delta"] for name, data in events if name == "content_block_delta"]
    assert "".join(delta["partial_json"] for delta in deltas) == raw
    body = await stage.body(reply([text("x"), call("a", raw_input=raw)]))
    assert b'"input":' + raw.encode() in body


async def test_lone_surrogate_in_text(stage: Stage) -> None:
    """A text may hold half a character, as its escape."""
    assert json.loads(await stage.body(text("a\ud800b")))["content"][0]["text"] == "a\ud800b"


async def test_hostile_call_ids(stage: Stage) -> None:
    """Ids can be missing, equal, or equal to the tool's name."""
    scripted = calls([call("a", id=NO_ID), call("b", id="b"), call("c", id="b"), ("d", {"x": 1})])
    for read in (stage.plain, stage.streamed):
        blocks = (await read(scripted))["content"]
        assert [block.get("id") for block in blocks] == [None, "b", "b", call_id(0, 3)]
        assert blocks[3]["input"] == {"x": 1}


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (400, anthropic.BadRequestError),
        (401, anthropic.AuthenticationError),
        (403, anthropic.PermissionDeniedError),
        (404, anthropic.NotFoundError),
        (409, anthropic.ConflictError),
        (422, anthropic.UnprocessableEntityError),
        (429, anthropic.RateLimitError),
        (500, anthropic.InternalServerError),
        (503, anthropic.InternalServerError),
        (529, anthropic.InternalServerError),
    ],
)
async def test_status(stage: Stage, code: int, kind: type[anthropic.APIStatusError]) -> None:
    """An error status arrives as the SDK's error for it, with headers, type, code and message."""
    scripted = status(
        code, headers={"Retry-After": "5"}, error_code="some_code", message="No.", error_type="t"
    )
    for read in (stage.plain, stage.streamed):
        with pytest.raises(kind) as caught:
            await read(scripted)
        error = caught.value
        assert error.status_code == code
        assert error.response.headers["retry-after"] == "5"
        assert (error.type, error.error_code) == ("t", "some_code")
        assert error.request_id == stage.provider.requests[-1].request_id


async def test_status_with_any_body(stage: Stage) -> None:
    """An error may have a body that is no JSON, or none."""
    for body in (b"<html>Bad gateway</html>", b""):
        with pytest.raises(anthropic.APIStatusError) as caught:
            await stage.plain(status(502, body=body))
        assert caught.value.response.content == body
        assert caught.value.response.headers["content-type"] == "text/html"


async def test_garbage(stage: Stage) -> None:
    """A success may have any body."""
    assert await stage.body(garbage(b"\xff{", content_type="text/plain")) == b"\xff{"
    error = b'{"type":"error","error":{"type":"api_error","message":"x"}}'
    assert await stage.body(garbage(error)) == error


async def test_no_stop(stage: Stage) -> None:
    """A stream may end cleanly without message_stop; the SDK then reports no error and no stop
    reason, which is why a client has to look."""
    names = [name for name, _ in await stage.events(no_stop(text("x")))]
    assert names[-1] == "message_delta"
    message = await stage.streamed(no_stop(call("a", {"q": "x"}), after=4))
    assert message["stop_reason"] is None


async def test_error_event(stage: Stage) -> None:
    """A stream may report an error as its first event or later; in one piece the error has its
    own status."""
    for after in (0, 3):
        with pytest.raises(anthropic.APIStatusError) as caught:
            await stage.streamed(error_event(text("x"), after=after))
        assert (caught.value.status_code, caught.value.type) == (200, "overloaded_error")
        names = [name for name, _ in await stage.events(error_event(text("x"), after=after))]
        assert names.index("error") == after == len(names) - 1
    with pytest.raises(anthropic.APIStatusError) as caught:
        await stage.plain(error_event(text("x"), type="rate_limit_error"))
    assert caught.value.status_code == 429


async def test_odd_events(stage: Stage) -> None:
    """Events can be inserted, be of unknown types, be no JSON, and be repeated."""
    plain_names = [name for name, _ in await stage.events(text("x"))]
    scripted = insert_event(ping(text("x"), count=2), "future_event", {"type": "future_event"})
    names = [name for name, _ in await stage.events(scripted)]
    assert names == ["message_start", "future_event", "ping", "ping", *plain_names[1:]]
    assert (await stage.streamed(scripted))["content"] == [{"type": "text", "text": "x"}]

    events = await stage.events(unknown_delta(text("x"), after=3))
    assert json.loads(events[3][1])["delta"]["type"] == "future_delta"

    assert ("ping", "{oops") in await stage.events(insert_event(text("x"), "ping", b"{oops"))

    names = [name for name, _ in await stage.events(duplicate_event(text("x"), 3))]
    assert names == [*plain_names[:4], *plain_names[3:]]
    doubled = await stage.streamed(duplicate_event(text("x"), 3))
    assert doubled["content"] == [{"type": "text", "text": "xx"}]


async def _received(stage: Stage, scripted: Reply, *, stream: bool) -> tuple[bytes, str]:
    """The body bytes that arrive, and how the reply ends."""
    stalls = scripted.cut is not None and scripted.cut.how == "stall"
    wait = 0.3 if stalls or scripted.delay else 10
    stage.next = scripted
    got = b""
    body = {**REQUEST, "stream": stream}
    try:
        async with stage.http.stream("POST", "/v1/messages", json=body, timeout=wait) as response:
            async for piece in response.aiter_raw():
                got += piece
    except httpx2.HTTPError as error:
        return got, type(error).__name__
    return got, "end"


@pytest.mark.parametrize("stream", [False, True])
async def test_cut_at_every_byte(stage: Stage, stream: bool) -> None:
    """A reply ends after exactly the number of bytes asked for, wherever in the body that is, and
    the log says so."""
    scripted = reply([text("é"), call("a", {"q": "ü"})], extra={"id": "msg_1"})
    whole, _ = await _received(stage, scripted, stream=stream)
    for at in range(0, len(whole), 5):
        got, end = await _received(stage, cut(scripted, at=at), stream=stream)
        assert (got, end) == (whole[:at], "RemoteProtocolError")
        record = await _ended(stage)
        assert (record.sent, record.outcome) == (at, "cut:close")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("how", "end"),
    [("close", "RemoteProtocolError"), ("reset", "ReadError"), ("stall", "ReadTimeout")],
)
@pytest.mark.parametrize("at", [0, 0.5, 1.0])
async def test_ways_to_cut(stage: Stage, stream: bool, how: Any, end: str, at: float) -> None:
    """A cut closes, resets or stalls the connection, at a byte or at a part of the body."""
    scripted = text("hello", extra={"id": "msg_1"})
    whole, _ = await _received(stage, scripted, stream=stream)
    got, ended = await _received(stage, cut(scripted, at=at, how=how), stream=stream)
    assert got == whole[: int(at * len(whole))]
    assert ended == ("end" if at == 1.0 and not stream else end)


@pytest.mark.parametrize(
    ("how", "end"),
    [("close", "RemoteProtocolError"), ("reset", "ReadError"), ("stall", "ReadTimeout")],
)
async def test_cut_before_the_status_line(stage: Stage, how: Any, end: str) -> None:
    """A cut may come before anything of the reply was sent."""
    assert await _received(stage, cut(text("x"), at=None, how=how), stream=False) == (b"", end)


async def test_cut_of_an_error(stage: Stage) -> None:
    """An error's body can be cut like any other."""
    got, _ = await _received(stage, cut(status(529), at=7), stream=False)
    assert got == b'{"type"'


async def test_delays(stage: Stage) -> None:
    """The first byte and each further event can be delayed; a client that leaves is noticed."""
    start = time.monotonic()
    await stage.body(text("x", delay=0.15))
    assert time.monotonic() - start >= 0.15
    start = time.monotonic()
    await stage.events(text("x", delay_between=0.03))  # 6 gaps between 7 events
    assert time.monotonic() - start >= 0.18
    _, end = await _received(stage, text("x", delay=30), stream=False)
    assert end == "ReadTimeout"
    assert (await _ended(stage)).outcome == "client_gone"


async def test_connection_is_kept_alive(stage: Stage) -> None:
    """Plain and streamed replies, errors too, leave the connection open for the next request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", stage.provider.port)
    body = json.dumps({**REQUEST, "stream": True}).encode()
    head = (
        "POST /v1/messages HTTP/1.1\r\nhost: x\r\nx-api-key: any\r\nanthropic-version: 1\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    ).encode()
    for scripted in (text("one"), status(529), text("two")):
        stage.next = scripted
        writer.write(head + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        if b"chunked" in answer:
            await reader.readuntil(b"0\r\n\r\n")
        else:
            length = int(answer.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
    writer.close()
    await writer.wait_closed()


async def test_not_http(stage: Stage) -> None:
    """What is not HTTP/1.1 is answered 400, and the provider goes on."""
    for sent in (b"hello\r\n\r\n", b"GET / HTTP/1.0\r\n\r\n", b"GET / HTTP/1.1\r\nx\r\n\r\n"):
        reader, writer = await asyncio.open_connection("127.0.0.1", stage.provider.port)
        writer.write(sent)
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
        writer.close()
        await writer.wait_closed()
    assert (await stage.plain(text("ok")))["stop_reason"] == "end_turn"


async def test_many_at_once(stage: Stage) -> None:
    """Requests are served side by side: one that waits does not hold up the others."""
    stage.next = text("x", delay=1)
    before, start = len(stage.provider.requests), time.monotonic()
    await asyncio.gather(*(stage.http.post("/v1/messages", json=REQUEST) for _ in range(20)))
    assert time.monotonic() - start < 15
    assert len(stage.provider.requests) == before + 20


async def _ended(stage: Stage) -> Record:
    """The record of the last request, when its reply has ended."""
    record = stage.provider.requests[-1]
    async with asyncio.timeout(60):
        while record.outcome is None:  # noqa: ASYNC110 - the provider lives in another thread
            await asyncio.sleep(0.005)
    return record
