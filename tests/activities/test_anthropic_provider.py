"""The Anthropic provider: what it sends, what it reads, and what it says when that fails."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import partial
from itertools import pairwise
from typing import Any

import anthropic
import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.providers import Kind, ModelRequest, Progress, ProviderError, ProviderReply
from activities.providers import anthropic as module
from activities.providers.admission import admit_reply
from activities.providers.anthropic import AnthropicProvider
from activities.providers.anthropic_body import encoded
from activities.providers.anthropic_errors import (
    MAX_BODY_BYTES,
    MAX_MESSAGE,
    AnthropicErrors,
    retry_after,
)
from activities.providers.anthropic_request import BINDING_BETA, build_request, request_betas
from activities.providers.anthropic_stream import MAX_BLOCKS, EventReader, ReplyAssembly
from activities.providers.wire_json import KEPT_DEPTH, RepeatedKeys, read_json
from activities.redact import Redactor
from turnkeeper.entries import Entry, admit, message, result
from turnkeeper.spec import AgentSpec, ModelSpec, ToolSpec
from turnkeeper.testing.provider import (
    Reply,
    ScriptedProvider,
    call,
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

KEY = "test-key-0123456789"
SEARCH = ToolSpec(
    name="search",
    description="Find.",
    input_schema={"type": "object", "properties": {"q": {"type": "string"}, "a": {}}},
)


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a key nor a proxy of the machine decides a test."""
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "ANTHROPIC_CUSTOM_HEADERS"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def spec(*tools: ToolSpec, instructions: str = "Be brief.", **options: Any) -> AgentSpec:
    """An agent with these tools and model options."""
    model = ModelSpec(name="claude-sonnet-5-5", options=options)
    return AgentSpec(name="a", model=model, instructions=instructions, tools=tools)


def asked(*entries: Entry, agent: AgentSpec | None = None, **fields: Any) -> ModelRequest:
    """A request with these entries."""
    fields = {"max_tokens": 1_000, **fields}
    return ModelRequest(spec=agent or spec(SEARCH), entries=entries or (message("Hi"),), **fields)


def said(*blocks: Any) -> Entry:
    """A reply with these content blocks."""
    value = {"role": "assistant", "content": list(blocks)}
    return admit("reply", value, dialect="anthropic-messages")


def use(call_id: str) -> dict[str, Any]:
    """A tool call."""
    return {"type": "tool_use", "id": call_id, "name": "search", "input": {"z": 1, "a": 2}}


@asynccontextmanager
async def playing(
    *script: Any, silence: float = 20.0, **options: Any
) -> AsyncIterator[tuple[AnthropicProvider, ScriptedProvider]]:
    """The provider under test, and the scripted one that it asks."""
    async with ScriptedProvider(list(script), log_bodies=True, **options) as server:
        client = AnthropicProvider(api_key=KEY, base_url=server.url, silence=silence)
        try:
            yield client, server
        finally:
            await client.close()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what another task or thread does."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.005)


Handler = Callable[[httpx2.Request], httpx2.Response]


async def answered(handler: Handler, request: ModelRequest | None = None) -> ProviderReply:
    """What `generate` makes of one response."""
    client = AnthropicProvider(
        api_key=KEY, base_url="http://test.invalid", transport=httpx2.MockTransport(handler)
    )
    try:
        return await client.generate(request or asked(), Progress())
    finally:
        await client.close()


async def failure(handler: Handler, request: ModelRequest | None = None) -> ProviderError:
    """The error that `generate` makes of one response."""
    with pytest.raises(ProviderError) as caught:
        await answered(handler, request)
    return caught.value


def response(code: int, body: Any = b"", kind: str = "application/json", **headers: str) -> Handler:
    """Always the same response; headers' underscores are dashes."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    sent = {"content-type": kind, **{k.replace("_", "-"): v for k, v in headers.items()}}
    return lambda _: httpx2.Response(code, headers=sent, content=content)


def api_error(type_: str, told: str = "Told.", code: str | None = None) -> dict[str, Any]:
    """An error body in the API's form."""
    error: dict[str, Any] = {"type": type_, "message": told}
    if code is not None:
        error["details"] = {"error_code": code}
    return {"type": "error", "error": error, "request_id": "req_body"}


# --- The request -----------------------------------------------------------------------------


def test_the_request_is_the_spec_and_the_view() -> None:
    """System, tools in their order, messages, cache marks, and what may be asked of the cache."""
    second = ToolSpec(name="add", description=" ", input_schema={"type": "object"})
    mark = {"cache_control": {"type": "ephemeral"}}
    assert build_request(asked(agent=spec(SEARCH, second), previous_message_id="msg_1")) == {
        "model": "claude-sonnet-5-5",
        "max_tokens": 1_000,
        "system": [{"type": "text", "text": "Be brief.", **mark}],
        "tools": [
            {"name": "search", "description": "Find.", "input_schema": SEARCH.input_schema},
            {"name": "add", "input_schema": {"type": "object"}},
        ],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi", **mark}]}],
        "diagnostics": {"previous_message_id": "msg_1"},
        "stream": True,
    }


def test_empty_parts_are_left_out() -> None:
    """No instructions, no tools: the API refuses empty ones; a tool choice needs tools."""
    body = build_request(asked(agent=spec(instructions=" "), answer_only=True, stream=False))
    assert body.keys() == {"model", "max_tokens", "messages", "diagnostics", "stream"}
    assert body["stream"] is False


def test_results_and_texts_after_a_reply_are_one_message() -> None:
    """Results come first, whatever order they were said in; replies are sent as they are."""
    first = said({"type": "future", "z": 1, "a": 2}, use("t1"), use("t2"))
    messages = build_request(
        asked(
            message("Hi"),
            first,
            message("Hurry."),
            result("t1", "search", "found"),
            result("t2", "search", "broken", error=True),
            message("Please."),
            said(use("t3")),
            result("t3", "search", ""),
            agent=spec(SEARCH, cache_control=None),
        )
    )["messages"]
    assert messages == [
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        first.value,
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "found"},
                {
                    "type": "tool_result",
                    "tool_use_id": "t2",
                    "content": "broken",
                    "is_error": True,
                },
                {"type": "text", "text": "Hurry."},
                {"type": "text", "text": "Please."},
            ],
        },
        {"role": "assistant", "content": [use("t3")]},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "t3", "content": ""}],
        },
    ]
    assert messages[1] is first.value


def test_an_empty_reply_is_not_sent() -> None:
    """The API refuses it; the messages around it become one."""
    messages = build_request(asked(message("Hi"), said(), message("Well?")))["messages"]
    assert [m["role"] for m in messages] == ["user"]
    assert [b["text"] for b in messages[0]["content"]] == ["Hi", "Well?"]


def test_a_reply_of_another_dialect_is_refused() -> None:
    """Its blocks mean nothing to this API."""
    foreign = admit("reply", {"role": "assistant", "content": ["x"]}, dialect="other")
    with pytest.raises(ProviderError, match="foreign_dialect"):
        build_request(asked(message("Hi"), foreign))


def test_options_are_sent_as_they_are() -> None:
    """Also over the defaults; null leaves fields and marks out, betas become a header."""
    request = asked(
        agent=spec(
            SEARCH,
            thinking={"type": "adaptive"},
            output_config={"effort": "low"},
            cache_control=None,
            diagnostics=None,
            betas=["one", "two"],
        )
    )
    body = build_request(request)
    assert body["thinking"] == {"type": "adaptive"}
    assert body["output_config"] == {"effort": "low"}
    assert not {"diagnostics", "betas"} & body.keys()
    assert "cache_control" not in json.dumps(body)
    assert request_betas(request) == ("one", "two")


@pytest.mark.parametrize("betas", ["one", ["a\nb"], ["é"], [1], {"a": 1}])
def test_betas_are_fit_for_a_header(betas: Any) -> None:
    """The HTTP library would refuse them, and each attempt again."""
    with pytest.raises(ProviderError, match="betas"):
        request_betas(asked(agent=spec(betas=betas)))


@pytest.mark.parametrize(
    "name", ["model", "messages", "max_tokens", "system", "tools", "stream", "betas"]
)
def test_options_cannot_set_what_the_spec_says(name: str) -> None:
    """They are refused by name."""
    options: dict[str, Any] = {name: 5}
    read = request_betas if name == "betas" else build_request
    model = ModelSpec(name="m", options=options)
    with pytest.raises(ProviderError, match=name) as caught:
        read(asked(agent=AgentSpec(name="a", model=model, instructions="")))
    assert (caught.value.kind, caught.value.code) == ("stop", "invalid_options")


async def test_options_that_are_not_json_are_refused() -> None:
    """Nothing is sent."""
    error = await failure(response(200), asked(agent=spec(user_profile_id=object())))
    assert (error.kind, error.code) == ("stop", "invalid_options")


def test_an_answer_without_tools_keeps_the_tools() -> None:
    """Taking them away would change the prefix."""
    plain, last = build_request(asked()), build_request(asked(answer_only=True))
    assert last.pop("tool_choice") == {"type": "none"}
    assert last == plain


def test_mismatched_thinking_can_be_dropped() -> None:
    """With a beta header; the thinking configured stays."""
    request = asked(drop_thinking=True)
    assert build_request(request)["thinking"] == {
        "type": "adaptive",
        "block_binding": {"prefix_mismatch_behavior": "drop_block"},
    }
    assert request_betas(request) == (BINDING_BETA,)
    enabled = spec(thinking={"type": "enabled", "budget_tokens": 2_000}, betas=[BINDING_BETA])
    request = asked(agent=enabled, drop_thinking=True)
    assert build_request(request)["thinking"]["budget_tokens"] == 2_000
    assert request_betas(request) == (BINDING_BETA,)


def test_images_stand_in_their_result_after_the_text() -> None:
    """The bytes come with the request, never out of an entry; the rest of the prefix stays."""
    ref = {"artifact": "a1", "media_type": "image/png", "width": 3, "height": 2, "bytes": 4}
    seen = result("t1", "search", "A map:", images=[ref])
    entries = [message("Hi"), said(use("t1")), seen]
    body = build_request(asked(*entries, images={"a1": b"\x89PNG", "other": b"x"}))
    (block,) = body["messages"][-1]["content"]
    assert block["content"] == [
        {"type": "text", "text": "A map:"},
        {
            "type": "image",
            "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw=="},
        },
    ]
    with pytest.raises(ProviderError, match="image a1 is not at hand"):
        build_request(asked(*entries))


def shows(size: int) -> tuple[list[Entry], dict[str, bytes]]:
    """A result with an image, and the image."""
    ref = {"artifact": "a1", "media_type": "image/png", "width": 1, "height": 1, "bytes": size}
    shown = result("c1", "search", "Seen.", images=[ref])
    return [message("Hi"), said(use("c1")), shown], {"a1": b"\x89PNG" * (size // 4)}


_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('ab"\n'), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.text('ab"\n'), _values, max_size=3))
def test_a_body_with_images_is_written_as_any_other(arguments: dict[str, Any]) -> None:
    """In parts: an earlier part of the conversation is the same bytes with and without images."""
    entries, images = shows(100)
    call = {"type": "tool_use", "id": "c1", "name": "search", "input": arguments}
    body = build_request(asked(entries[0], said(call), entries[2], images=images))
    whole = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
    assert encoded(body, images=True) == encoded(body, images=False) == whole


async def test_a_body_with_large_images_is_built_while_the_loop_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Other calls have heartbeats to send meanwhile."""
    loop, moved = asyncio.get_running_loop(), threading.Event()

    def built(request: ModelRequest) -> dict[str, Any]:
        loop.call_soon_threadsafe(moved.set)
        assert moved.wait(30), "the loop stands still"
        return build_request(request)

    monkeypatch.setattr(module, "build_request", built)
    entries, images = shows(1_000_000)
    done = response(200, {"content": [{"type": "text", "text": "Done."}]})
    found = await answered(done, asked(*entries, images=images))
    assert found.message["content"][0]["text"] == "Done."


# --- Replies ---------------------------------------------------------------------------------

EVERYTHING = reply(
    [
        thinking("hm"),
        thinking(""),
        redacted_thinking(),
        text("I look it up: 😀 é\u2028"),
        {
            "type": "text",
            "text": "cited",
            "citations": [{"type": "char_location", "n": 1}, {"type": "page_location"}],
        },
        server_tool_use("web_search", {"q": "x"}),
        {"type": "future_block", "zeta": {"b": 1, "a": [None]}, "alpha": "é"},
        call("search", {"zeta": 1, "a": {"y": 2.0, "b": []}}),
        call("search", {}),
    ],
    usage={"future_count": 5, "cache_read_input_tokens": 7},
    extra={"future_field": {"z": 1}, "container": None},
    stop_details={"type": "future"},
)


@pytest.mark.parametrize("chunk", [None, 1, 1_000])
async def test_a_stream_gives_what_a_whole_reply_gives(chunk: int | None) -> None:
    """Equal values, unknown blocks, fields and counts, and the arguments in their key order."""
    scripted = reply(
        [*(EVERYTHING.blocks and [EVERYTHING])],
        usage=EVERYTHING.usage,
        extra=EVERYTHING.extra,
        stop_details=EVERYTHING.stop_details,
        chunk=chunk,
    )
    async with playing([scripted]) as (client, server):
        whole = await client.generate(asked(stream=False), Progress())
        streamed = await client.generate(asked(), Progress())
    for index, raw in streamed.raw_inputs.items():
        streamed.message["content"][index]["input"] = json.loads(raw)
    # Of another request, since `stream` stands in its body.
    del whole.message["id"], streamed.message["id"]
    assert streamed.message == whole.message
    content = json.dumps(whole.message["content"])
    assert json.dumps(streamed.message["content"]) == content
    assert whole.request_id == "req_000000000001"
    assert [r.outcome for r in server.requests] == ["sent", "sent"]


async def test_a_conversation_with_thinking_goes_on() -> None:
    """What is read, admitted and sent back breaks no rule of a strict provider."""
    script = [EVERYTHING, lambda exchange: text(f"Done: {exchange.last_results[0].text}")]
    for stream in (True, False):
        async with playing(*script) as (client, server):
            first = await client.generate(asked(stream=stream), Progress())
            entry = admit_reply(first, turn=1, known_ids=()).entry
            results = [
                result(b["id"], "search", "found")
                for b in entry.value["content"]
                if b["type"] == "tool_use"
            ]
            request = asked(message("Hi"), entry, *results, stream=stream)
            second = await client.generate(request, Progress())
        assert second.message["content"] == [{"type": "text", "text": "Done: found"}]
        assert not server.rejections


async def test_progress_is_told_while_the_reply_arrives() -> None:
    """Bytes are counted, the first token has its time, the request its size."""
    progress = Progress()
    async with playing(text("x" * 200, delay=0.05, delay_between=0.05)) as (client, server):
        task = asyncio.create_task(client.generate(asked(), progress))
        await until(lambda: progress.received_bytes > 0)
        seen = progress.received_bytes
        assert not task.done()
        await task
        sent = json.dumps(server.requests[0].body, ensure_ascii=False, separators=(",", ":"))
    assert progress.received_bytes > seen
    assert progress.first_token_ms is not None
    assert 50 <= progress.first_token_ms < 5_000
    assert progress.sent_bytes == len(sent)


@pytest.mark.parametrize(
    "scripted",
    [
        ping(text("Done."), count=50),
        insert_event(text("Done."), "future_event", {"type": "future_event", "x": 1}),
        insert_event(text("Done."), "future_event", b"not json"),
        insert_event(text("Done."), "message_delta", {"type": "future"}, after=3),
    ],
    ids=["pings", "unknown", "unknown-not-json", "unknown-type"],
)
async def test_unknown_events_are_ignored(scripted: Reply) -> None:
    """The API may add some at any time."""
    async with playing(scripted) as (client, _):
        found = await client.generate(asked(), Progress())
    assert found.message["content"] == [{"type": "text", "text": "Done."}]


async def test_a_gateway_may_answer_a_stream_request_whole() -> None:
    """The reply is there; that it did not come in pieces is no error."""
    body = {"type": "message", "content": [], "stop_reason": "end_turn", "new": 1}
    assert (await answered(response(200, body))).message == body


async def test_a_stream_without_its_content_type_is_read() -> None:
    """Some gateways forget it."""
    async with playing(text("Done.")) as (client, _):
        body = await _stream_of(client)
    found = await answered(response(200, body, "text/plain"))
    assert found.message["content"] == [{"type": "text", "text": "Done."}]
    found = await answered(response(200, body, "text/event-stream"), asked(stream=False))
    assert found.message["content"] == [{"type": "text", "text": "Done."}]


async def _stream_of(client: AnthropicProvider) -> bytes:
    """The bytes that the scripted provider sends."""
    async with httpx2.AsyncClient() as http:
        found = await http.post(
            f"{client._base_url}/v1/messages",
            headers={"authorization": f"Bearer {KEY}", "anthropic-version": "2026-10-21"},
            json=build_request(asked()),
        )
    return found.content


async def test_a_complete_reply_is_kept_whatever_follows() -> None:
    """After message_stop the connection may break or stay open: the reply was paid for."""
    async with playing(text("Done.")) as (client, _):
        body = await _stream_of(client)

    class Broken(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield body
            raise httpx2.ReadError("reset")

    class Open(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield body
            await asyncio.sleep(60)

    kind = {"content-type": "text/event-stream"}
    for stream in (Broken(), Open()):
        begun = time.monotonic()
        ready = httpx2.Response(200, headers=kind, stream=stream)
        found = await answered(lambda _, ready=ready: ready)  # type: ignore[misc]
        assert found.message["content"] == [{"type": "text", "text": "Done."}]
        assert time.monotonic() - begun < 30


async def test_connections_are_used_again() -> None:
    """Turns follow each other over one connection."""
    async with playing([text("a"), text("b"), text("c")]) as (client, _):
        for stream in (True, False, True):
            await client.generate(asked(stream=stream), Progress())
            assert client._client is not None
            pool = client._client._client._transport._pool  # type: ignore[attr-defined]
            assert len(pool.connections) == 1
            assert pool.connections[0].is_idle()


async def test_many_requests_at_once_share_the_client() -> None:
    """One instance serves the whole worker."""
    async with playing(text("Done.", delay=0.05)) as (client, server):
        found = await asyncio.gather(
            *(client.generate(asked(message(f"Hi {n}")), Progress()) for n in range(20))
        )
        assert len(server.requests) == len(found) == 20


# --- Streams that cannot be used -------------------------------------------------------------


@pytest.mark.parametrize(
    ("scripted", "code", "whole"),
    [
        (no_stop(text("Done.")), "incomplete_stream", False),
        (no_stop(call("search", {"q": "x" * 400}), after=6), "incomplete_stream", False),
        (cut(text("x" * 400), 0.5, "close"), "connection_error", False),
        (cut(text("x" * 400), 0.5, "reset"), "connection_error", False),
        (cut(text("x"), None, "close"), "connection_error", False),
        (text("Done.", stop_reason=None), "incomplete_stream", False),
        (unknown_delta(text("Done."), after=3), "unknown_delta", True),
        (duplicate_event(text("Done."), 0), "unreadable_stream", True),
        (duplicate_event(text("Done."), 2), "unreadable_stream", True),
        (duplicate_event(text("Done."), 4), "unreadable_stream", True),
        (
            insert_event(text("Done."), "content_block_delta", b"{cut", after=3),
            "unreadable_stream",
            True,
        ),
        (insert_event(text("Done."), "ping", b"\xff\xfe", after=3), "unreadable_stream", True),
        (
            insert_event(text("Done."), "content_block_delta", b"5", after=3),
            "unreadable_stream",
            True,
        ),
        (garbage(b"", content_type="text/event-stream"), "incomplete_stream", False),
        (garbage(b"<html>hi</html>", content_type="text/html"), "unreadable_reply", False),
        (garbage(b"[1]"), "unreadable_reply", False),
        (garbage(b'"text"'), "unreadable_reply", False),
        (garbage(b""), "unreadable_reply", False),
        (garbage(b'{"type": "message"}'), "unreadable_reply", False),
        (garbage(b"\xff\xfe\xfd"), "unreadable_reply", False),
        (garbage(b"[" * 200_000), "unreadable_reply", False),
    ],
)
async def test_a_broken_reply_is_asked_for_again(scripted: Reply, code: str, whole: bool) -> None:
    """Never shown as a complete one; where the stream itself makes no sense, the next is whole."""
    async with playing(scripted) as (client, server):
        with pytest.raises(ProviderError) as caught:
            await client.generate(asked(), Progress())
        assert len(server.requests) == 1
    found = caught.value
    assert (found.kind, found.code, found.stream_unusable) == ("retry", code, whole)


async def test_silence_ends_a_request() -> None:
    """A connection that says nothing more is given up."""
    async with playing(cut(text("x" * 400), 0.5, "stall"), silence=0.2) as (client, _):
        with pytest.raises(ProviderError) as caught:
            await client.generate(asked(), Progress())
    assert (caught.value.kind, caught.value.code) == ("retry", "read_timeout")


async def test_a_whole_reply_may_be_silent_for_longer() -> None:
    """Nothing comes of it before the model is done."""
    async with playing(text("Done.", delay=0.5), silence=0.1) as (client, _):
        await client.generate(asked(stream=False), Progress())


async def test_pings_are_not_silence() -> None:
    """A model may think for long."""
    scripted = ping(text("Done."), count=10)
    async with playing(scripted) as (client, _):
        await client.generate(asked(), Progress())
    scripted = ping(text("Done.", delay_between=0.1), count=10)
    async with playing(scripted, silence=0.6) as (client, _):
        await client.generate(asked(), Progress())


@pytest.mark.parametrize(
    ("type_", "kind"),
    [
        ("overloaded_error", "retry"),
        ("api_error", "retry"),
        ("rate_limit_error", "retry"),
        ("timeout_error", "retry"),
        ("future_error", "retry"),
        ("invalid_request_error", "stop"),
        ("authentication_error", "stop"),
        ("billing_error", "stop"),
        ("permission_error", "stop"),
        ("not_found_error", "stop"),
        ("request_too_large", "overflow"),
    ],
)
@pytest.mark.parametrize("after", [0, 4])
async def test_errors_inside_a_stream_have_their_type(type_: str, kind: Kind, after: int) -> None:
    """The status was 200 before anybody knew."""
    async with playing(error_event(text("Done."), after=after, type=type_)) as (client, _):
        with pytest.raises(ProviderError) as caught:
            await client.generate(asked(), Progress())
    assert (caught.value.kind, caught.value.code) == (kind, type_)
    assert caught.value.request_id == "req_000000000001"


@pytest.mark.parametrize(
    "body", [api_error("overloaded_error"), {"error": "busy"}, {"error": {"message": "busy"}}]
)
async def test_an_error_with_status_200_is_an_error(body: Any) -> None:
    """As gateways report one."""
    found = await failure(response(200, body))
    assert (found.kind, found.status) == ("retry", 200)


async def test_a_cancelled_request_closes_its_connection_at_once() -> None:
    """CancelledError passes through; the provider sees the client go."""
    async with playing(cut(text("x" * 400), 0.5, "stall")) as (client, server):
        progress = Progress()
        task = asyncio.create_task(client.generate(asked(), progress))
        await until(lambda: progress.received_bytes > 0)
        task.cancel()
        begun = time.monotonic()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert time.monotonic() - begun < 10
        # The stall has no end but the client's.
        await until(lambda: server.requests[0].outcome is not None)


async def test_a_reply_without_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bytes are bounded, in a stream as in a whole reply."""
    monkeypatch.setattr(module, "MAX_REPLY_BYTES", 10_000)
    endless = insert_event(text("x"), "ping", b'"' + b"x" * 20_000 + b'"')
    for scripted in (endless, garbage(b" " * 20_000)):
        async with playing(scripted) as (client, _):
            with pytest.raises(ProviderError) as caught:
                await client.generate(asked(), Progress())
        assert (caught.value.kind, caught.value.code) == ("retry", "reply_too_large")


async def test_the_body_of_an_error_is_bounded() -> None:
    """The SDK would read it to its end, and this one has none."""

    class Endless(httpx2.AsyncByteStream):
        sent = 0

        async def __aiter__(self) -> AsyncIterator[bytes]:
            while True:
                self.sent += 1_000
                yield b"x" * 1_000

    stream = Endless()
    found = await failure(lambda _: httpx2.Response(500, stream=stream))
    assert (found.kind, found.status) == ("retry", 500)
    assert stream.sent <= MAX_BODY_BYTES + 1_000


# --- Errors ----------------------------------------------------------------------------------

STATUSES: list[tuple[int, Kind]] = [
    (301, "stop"),
    (302, "stop"),
    (307, "stop"),
    (400, "stop"),
    (401, "stop"),
    (402, "stop"),
    (403, "stop"),
    (404, "stop"),
    (405, "stop"),
    (407, "stop"),
    (408, "retry"),
    (409, "retry"),
    (412, "stop"),
    (413, "overflow"),
    (418, "stop"),
    (422, "stop"),
    (425, "retry"),
    (429, "retry"),
    (431, "stop"),
    (499, "retry"),
    (500, "retry"),
    (501, "retry"),
    (502, "retry"),
    (503, "retry"),
    (504, "retry"),
    (520, "retry"),
    (529, "retry"),
    (599, "retry"),
]


@pytest.mark.parametrize(("code", "kind"), STATUSES)
@pytest.mark.parametrize(
    "body",
    [b"", b"<html><b>Bad</b> day</html>", b'{"x": 1}', b"[]", b"\xff", b"null", b"[" * 9_999],
)
async def test_every_status_has_its_kind(code: int, kind: Kind, body: bytes) -> None:
    """Also from gateways, which send no headers, no body, or a page."""
    found = await failure(response(code, body, "text/html", location="http://elsewhere.invalid/"))
    assert (found.kind, found.status, found.code) == (kind, code, f"http_{code}")
    assert found.message


@pytest.mark.parametrize(("code", "kind"), STATUSES)
async def test_one_generate_is_one_request(code: int, kind: Kind) -> None:
    """Nothing is sent again, and no redirect is followed: Temporal alone retries."""
    headers = {"retry-after": "0", "location": "/v1/messages"}
    async with playing([status(code, headers=headers), text("Done.")]) as (client, server):
        with pytest.raises(ProviderError) as caught:
            await client.generate(asked(), Progress())
        assert len(server.requests) == 1
    assert caught.value.kind == kind


async def test_no_connection_is_one_attempt() -> None:
    """A refused connection, and a name that does not resolve."""
    attempts: list[str] = []

    def refuse(request: httpx2.Request) -> httpx2.Response:
        attempts.append(str(request.url))
        raise httpx2.ConnectError("refused")

    found = await failure(refuse)
    assert (found.kind, found.code, len(attempts)) == ("retry", "connection_error", 1)
    async with ScriptedProvider([text("x")]) as server:
        url = server.url
    client = AnthropicProvider(api_key=KEY, base_url=url)
    with pytest.raises(ProviderError, match="ConnectError"):
        await client.generate(asked(), Progress())
    await client.close()


@pytest.mark.parametrize(
    ("code", "body", "kind", "named"),
    [
        (429, api_error("rate_limit_error", code="contract_spend_limit_reached"), "stop", ...),
        (429, api_error("rate_limit_error", code="enforced_spend_limit_reached"), "stop", ...),
        (429, api_error("rate_limit_error", code="ramp_limit_exceeded"), "retry", ...),
        (400, api_error("invalid_request_error", code="image_dimensions_too_large"), "stop", ...),
        (400, api_error("invalid_request_error", code="compaction_incomplete_turn"), "stop", ...),
        (529, api_error("overloaded_error", code="compaction_unavailable"), "retry", ...),
        (400, api_error("x", code="request_body_too_large_after_decoding"), "overflow", ...),
        (
            400,
            api_error("invalid_request_error", "prompt is too long: 9 tokens > 8 maximum"),
            "overflow",
            "invalid_request_error",
        ),
        (
            400,
            api_error("invalid_request_error", "input and `max_tokens` exceed context limit: 9"),
            "overflow",
            "invalid_request_error",
        ),
        (
            400,
            {"error": {"message": "This model's maximum context length is 8 tokens", "type": None}},
            "overflow",
            "http_400",
        ),
        (
            400,
            api_error("invalid_request_error", "Invalid `signature` in `thinking` block."),
            "thinking",
            "invalid_request_error",
        ),
        (
            400,
            api_error("invalid_request_error", "The block is bound to a different conversation"),
            "thinking",
            "invalid_request_error",
        ),
        (
            400,
            api_error("invalid_request_error", "max_tokens: 9 > 8"),
            "stop",
            "invalid_request_error",
        ),
        (500, api_error("api_error", "prompt is too long"), "retry", "api_error"),
        (503, {"message": "throttled"}, "retry", "http_503"),
    ],
)
async def test_errors_with_a_known_cause(code: int, body: Any, kind: Kind, named: Any) -> None:
    """Codes count before wordings, wordings before the status."""
    found = await failure(response(code, body))
    if named is ...:
        named = body["error"]["details"]["error_code"]
    assert (found.kind, found.code) == (kind, named)


@pytest.mark.parametrize(
    ("code", "header", "kind"),
    [
        (400, "true", "retry"),
        (429, "false", "stop"),
        (529, "False", "stop"),
        (529, "perhaps", "retry"),
        (413, "true", "overflow"),
    ],
)
async def test_the_api_says_whether_to_retry(code: int, header: str, kind: Kind) -> None:
    """Its word decides between retry and stop; what needs a repair still needs it."""
    found = await failure(response(code, api_error("x"), x_should_retry=header))
    assert found.kind == kind


async def test_a_spend_limit_is_not_waited_for() -> None:
    """Though the API says to retry: the code says why that is no use."""
    body = api_error("rate_limit_error", code="contract_spend_limit_reached")
    assert (await failure(response(429, body, x_should_retry="true"))).kind == "stop"


def test_a_gateway_without_retry_headers_is_tried_again() -> None:
    """A bare 503 `throttled`, as field reports have it, is no reason to end a run."""
    found = AnthropicErrors(Redactor()).of_response(503, {}, {"message": "throttled"})
    assert (found.kind, found.message, found.retry_after) == ("retry", "throttled", None)


def _exceptions(package: Any, base: type[BaseException]) -> Iterator[Any]:
    for name in dir(package):
        value = getattr(package, name)
        if isinstance(value, type) and issubclass(value, base):
            yield pytest.param(value, id=f"{package.__name__}.{name}")


STOPPING = {
    "CookieConflict": "retry",
    "CredentialsError": "stop",
    "IdentityTokenFileError": "stop",
    "InvalidURL": "stop",
    "TooManyRedirects": "stop",
    "UnsupportedProtocol": "stop",
    "WorkloadIdentityError": "stop",
}


@pytest.mark.parametrize(
    "cls", [*_exceptions(httpx2, Exception), *_exceptions(anthropic, Exception)]
)
def test_every_exception_of_the_libraries_is_mapped(cls: Any) -> None:
    """Those with a response by its status, those of the connection as retry, misuse as stop."""
    request = httpx2.Request("POST", "http://x.invalid")
    code = getattr(cls, "status_code", 418)
    error = cls.__new__(cls)
    error.request_id = None
    if issubclass(cls, anthropic.APIStatusError | anthropic.APIResponseValidationError):
        success = issubclass(cls, anthropic.APIResponseValidationError)
        error.response = httpx2.Response(200 if success else code, request=request)
        error.body = None
    found = AnthropicErrors(Redactor()).of_exception(error)
    if issubclass(cls, anthropic.APIStatusError):
        assert found.code == f"http_{code}"
        assert found.kind == dict(STATUSES)[code]
    else:
        assert found.kind == STOPPING.get(cls.__name__, "retry")
    if issubclass(cls, httpx2.TransportError | anthropic.APIConnectionError):
        assert found.code != "client_error"


async def test_what_the_sdk_wrapped_is_told() -> None:
    """Its own message would be "Connection error."."""

    def break_off(_: httpx2.Request) -> httpx2.Response:
        raise httpx2.RemoteProtocolError("peer closed")

    found = await failure(break_off)
    assert str(found) == "connection_error: RemoteProtocolError: peer closed"


@pytest.mark.parametrize(
    ("url", "code"),
    [("ftp://x.invalid", "invalid_base_url"), ("http://x:port", "invalid_configuration")],
)
async def test_a_wrong_address_is_no_reason_to_wait(url: str, code: str) -> None:
    """It is the operator's mistake."""
    client = AnthropicProvider(api_key=KEY, base_url=url)
    with pytest.raises(ProviderError) as caught:
        await client.generate(asked(), Progress())
    assert (caught.value.kind, caught.value.code) == ("stop", code)
    await client.close()


async def test_a_wrong_proxy_is_no_reason_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment's proxies are used, and may be nonsense."""
    monkeypatch.setenv("HTTP_PROXY", "nonsense://x.invalid")
    client = AnthropicProvider(api_key=KEY, base_url="http://x.invalid")
    with pytest.raises(ProviderError) as caught:
        await client.generate(asked(), Progress())
    assert (caught.value.kind, caught.value.code) == ("stop", "invalid_configuration")


@pytest.mark.parametrize("key", [None, "", "  ", "schlüssel-0123456789", "a\nb"])
async def test_a_missing_key_is_named(key: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the SDK would find another one: nobody should pay with it unasked."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "somebody-elses")
    client = AnthropicProvider(api_key=key, base_url="http://x.invalid")
    with pytest.raises(ProviderError, match="ANTHROPIC_API_KEY") as caught:
        await client.generate(asked(), Progress())
    assert (caught.value.kind, caught.value.code) == ("stop", "authentication_error")


# --- Retry-After -----------------------------------------------------------------------------

NOW = datetime(2026, 11, 1, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": " 0 "}, 0.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after": ".5"}, 0.5),
        ({"retry-after": "99999999999"}, 99_999_999_999.0),
        ({"retry-after-ms": "1500"}, 1.5),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9.0),
        ({"retry-after": format_datetime(NOW + timedelta(seconds=90), usegmt=True)}, 90.0),
        ({"retry-after": format_datetime(NOW - timedelta(days=9), usegmt=True)}, 0.0),
        ({"retry-after": "Sun, 01 Nov 2026 12:00:10 -0000"}, 10.0),
        ({"retry-after": "Sun, 01 Nov 2026 13:00:10 +0100"}, 10.0),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "1e9"}, None),
        ({"retry-after": "1_0"}, None),
        ({"retry-after": "٣"}, None),
        ({"retry-after": "9" * 400}, None),
        ({"retry-after": "5, 6"}, None),
        ({"retry-after": "tomorrow"}, None),
        ({"retry-after": "Mon, 99 Foo 2026 99:99:99 GMT"}, None),
        ({"retry-after": "Sun, 01 Nov 99999999999 12:00:10 GMT"}, None),
    ],
)
def test_retry_after_in_all_its_forms(headers: dict[str, str], seconds: float | None) -> None:
    """Milliseconds, seconds, dates; nonsense is ignored."""
    assert retry_after(headers, NOW) == seconds


@given(st.text(max_size=60))
def test_no_retry_after_breaks_the_error(value: str) -> None:
    """A header is anybody's text."""
    seconds = retry_after({"retry-after": value, "retry-after-ms": value})
    assert seconds is None or 0 <= seconds < float("inf")


async def test_the_wait_reaches_the_caller() -> None:
    """With the request's id, for the operator."""
    found = await failure(
        response(429, api_error("rate_limit_error"), retry_after="7", request_id="req_7")
    )
    assert (found.retry_after, found.request_id, found.code) == (7.0, "req_7", "rate_limit_error")


# --- Texts of errors -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "told",
    [
        f"invalid key {KEY}",
        "key sk-ant-api03-abcdefghijklmnop is invalid",
        "sent Authorization: Bearer abcdefghijklmnopqrstu",
        "cannot reach http://user:hunter2secret@proxy.invalid:8080/",
        f"{'x' * 480}{KEY}",
    ],
)
async def test_no_secret_is_in_an_error(told: str) -> None:
    """Neither ours nor what looks like one, also at the place where the text is cut."""
    found = await failure(response(401, api_error("authentication_error", told)))
    for secret in (KEY, KEY[:10], "abcdefghij", "hunter2secret"):
        assert secret not in str(found)


async def test_a_header_that_cannot_be_sent_shows_no_secret() -> None:
    """The HTTP library quotes the header it refuses."""

    def refuse(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.LocalProtocolError(f"Illegal header {request.headers['authorization']!r}")

    assert KEY not in str(await failure(refuse))


@pytest.mark.parametrize(
    "body",
    [
        api_error("x" * 5_000, "y" * 50_000),
        api_error("a\nb", "one\ntwo\x1b[31m\x00three \ud800 " * 100),
        {"error": {"message": {"not": "text"}, "type": 7, "details": "x"}},
        {"error": ["x"], "message": ["y"], "detail": 1},
        b"<html><script>" + b"x" * 9_000 + b"</script><h1>Bad Gateway</h1>" + b"<" * 9_000,
    ],
)
async def test_texts_are_one_short_printable_line(body: Any) -> None:
    """Whatever a gateway writes."""
    found = await failure(response(502, body))
    assert len(found.message) <= MAX_MESSAGE
    assert len(found.code) <= 100
    assert str(found).isprintable()
    str(found).encode()


async def test_a_page_is_told_without_its_markup() -> None:
    """The operator reads what a browser would show."""
    page = b"<!doctype html><html><style>b{}</style><h1>502</h1><p>Bad Gateway</p></html>"
    assert (await failure(response(502, page, "text/html"))).message == "502 Bad Gateway"


# --- Parts -----------------------------------------------------------------------------------


def events(*chunks: bytes) -> list[tuple[str, str]]:
    """The events in these chunks."""
    reader = EventReader()
    return [e for chunk in chunks for e in reader.feed(chunk)] + list(reader.end())


def test_event_streams_are_read_by_their_rules() -> None:
    """Comments, both line ends, several data lines, no space, a missing last blank line."""
    stream = (
        b": comment\nevent: a\ndata: {1\ndata:  2}\nid: 5\n\n\n\n"
        b"event:b\r\ndata:x\r\n\r\nevent: none\n\ndata: last"
    )
    assert events(stream) == [("a", "{1\n 2}"), ("b", "x"), ("none", "last")]


@given(st.lists(st.integers(0, 200), max_size=30))
def test_events_do_not_depend_on_chunks(cuts: list[int]) -> None:
    """A chunk may end anywhere, also inside a character or a line end."""
    stream = (
        "event: a\r\ndata: é😀\r\n\r\nevent: b\ndata: {\ndata: }\n\n: x\n\ndata: c\n\n".encode()
    )
    places = [0, *sorted(c for c in cuts if c < len(stream)), len(stream)]
    chunks = [stream[a:b] for a, b in pairwise(places)]
    assert events(*chunks) == events(stream)


def taken(*stream: dict[str, Any]) -> ReplyAssembly:
    """An assembly that was given these events."""
    assembly = ReplyAssembly(partial(AnthropicErrors(Redactor()).of_response, 200, {}))
    for event in stream:
        assembly.take("", json.dumps(event))
    return assembly


def assembled(*deltas: dict[str, Any], block: dict[str, Any]) -> ProviderReply:
    """A reply of one block with these deltas."""
    return taken(
        {"type": "message_start", "message": {"content": [], "stop_reason": None}},
        {"type": "content_block_start", "index": 0, "content_block": block},
        *({"type": "content_block_delta", "index": 0, "delta": d} for d in deltas),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
        {"type": "message_stop"},
    ).reply(None)


def test_a_character_may_come_in_two_deltas() -> None:
    """Its halves are one character again, and a half that stays alone is kept for admission."""
    halves = [{"type": "text_delta", "text": t} for t in ("\ufeffa\ud83d", "\ude00b", "\ud83d")]
    found = assembled(*halves, block={"type": "text", "text": ""})
    assert found.message["content"][0]["text"] == "\ufeffa😀b\ud83d"


def test_signatures_and_compactions_replace_what_was_there() -> None:
    """So does the SDK."""
    found = assembled(
        {"type": "thinking_delta", "thinking": "h", "estimated_tokens": 5},
        {"type": "thinking_delta", "thinking": "m"},
        {"type": "signature_delta", "signature": "s"},
        block={"signature": "", "type": "thinking", "thinking": "", "new": 1},
    )
    block = found.message["content"][0]
    assert list(block.items()) == [
        ("signature", "s"),
        ("type", "thinking"),
        ("thinking", "hm"),
        ("new", 1),
    ]
    found = assembled(
        {"type": "compaction_delta", "content": "sum", "encrypted_content": "e"},
        block={"type": "compaction", "content": None},
    )
    assert found.message["content"][0]["encrypted_content"] == "e"


@pytest.mark.parametrize(
    "delta",
    [
        {"type": "text_delta"},
        {"type": "text_delta", "text": 5},
        {"type": "input_json_delta", "partial_json": None},
        {"type": 5},
        {},
    ],
)
def test_ill_formed_deltas_are_refused(delta: dict[str, Any]) -> None:
    """A piece that cannot be read would leave a hole."""
    with pytest.raises(ProviderError) as caught:
        assembled(delta, block={"type": "text", "text": ""})
    assert caught.value.stream_unusable


@pytest.mark.parametrize(
    "stream",
    [
        [{"type": "content_block_start", "index": 0, "content_block": {}}] * 2,
        [{"type": "content_block_start", "index": 1, "content_block": {}}],
        [{"type": "content_block_start", "index": False, "content_block": {}}],
        [{"type": "content_block_start", "index": 0, "content_block": []}],
        [{"type": "content_block_stop", "index": 0}],
        [{"type": "content_block_delta", "index": -1, "delta": {"type": "text_delta"}}],
        [{"type": "content_block_delta", "index": None, "delta": {"type": "text_delta"}}],
        [{"type": "message_start", "message": None}],
        [{"type": "message_start", "message": {"content": [{"type": "text"}]}}],
        [{"type": "message_delta", "delta": {}}],
    ],
)
def test_events_out_of_place_are_refused(stream: list[Any]) -> None:
    """Gaps, duplicates, and indices that are none."""
    with pytest.raises(ProviderError) as caught:
        taken(*stream)
    assert (caught.value.kind, caught.value.stream_unusable) == ("retry", True)


def test_the_number_of_blocks_is_bounded() -> None:
    """A thousand are no reply of a model."""
    starts = [
        {"type": "content_block_start", "index": n, "content_block": {}}
        for n in range(MAX_BLOCKS + 1)
    ]
    taken(*starts[:-1])
    with pytest.raises(ProviderError, match="reply_too_large"):
        taken(*starts)


def test_counts_of_a_stream_are_merged() -> None:
    """Later totals replace earlier ones; null and missing ones leave them."""
    start = {"content": [], "usage": {"input_tokens": 5, "output_tokens": 1, "new": 2}}
    delta = {"stop_reason": "end_turn", "stop_sequence": None}
    usage = {"input_tokens": None, "output_tokens": 9, "newer": 3}
    assembly = taken(
        {"type": "message_start", "message": start},
        {"type": "message_delta", "delta": delta, "usage": usage, "context_management": {"a": 1}},
        {"type": "message_delta", "delta": {"stop_reason": None}},
        {"type": "message_stop"},
    )
    found = assembly.reply(None).message
    assert found["usage"] == {"input_tokens": 5, "output_tokens": 9, "new": 2, "newer": 3}
    assert (found["stop_reason"], found["stop_sequence"]) == ("end_turn", None)
    assert found["context_management"] == {"a": 1}


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=10,
)


@given(_json)
def test_sound_json_is_read_as_ever(value: Any) -> None:
    """The reader of defects changes nothing else."""
    assert json.dumps(read_json(json.dumps(value))) == json.dumps(value)


@given(st.text(alphabet='[]{}",:\\1a '))
def test_the_json_reader_raises_value_error_only(data: str) -> None:
    """Whatever the text, as a value or deep inside one."""
    for candidate in (data, "[" * 3_000 + data, "[" * 3_000 + data + "]" * 3_000):
        try:
            read_json(candidate)
        except ValueError:
            continue


def test_json_too_deep_to_read_is_read_to_a_depth() -> None:
    """What lies deeper is left out; brackets in strings are none."""
    depth = 50_000
    value = read_json('{"a": ' + '["]\\"[",' * depth + "1" + "]" * depth + ', "b": 2}')
    assert value["b"] == 2
    levels, inner = 1, value["a"]
    while isinstance(inner, list):
        levels, inner = levels + 1, inner[1] if inner else None
    # Later versions of Python may read all of it.
    assert levels >= KEPT_DEPTH


def test_repeated_keys_stay_visible() -> None:
    """At any level."""
    value = read_json('{"a": [{"k": 1, "k": 2}]}')
    assert not isinstance(value, RepeatedKeys)
    assert isinstance(value["a"][0], RepeatedKeys)
    assert value["a"][0] == {"k": 2}


def test_reading_hostile_json_takes_no_long_time() -> None:
    """Nothing in it is quadratic."""
    hostile = [
        "[" * 1_000_000,
        "[" * 2_000 + '"' + '\\"' * 500_000,
        "[" * 2_000 + '"' * 500_001,
        "[" + "9" * 4_000_000 + "]",
    ]
    begun = time.monotonic()
    for data in hostile:
        try:
            read_json(data)
        except ValueError:
            continue
    reader = EventReader()
    for _ in range(200_000):
        assert not list(reader.feed(b"x" * 10))
    assert time.monotonic() - begun < 60


def test_importing_the_module_costs_nothing() -> None:
    """The SDK takes over a second to import; a worker's --help does without."""
    code = "import sys, activities.providers.anthropic; print('anthropic' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert found.stdout.strip() == b"False"


async def test_many_calls_in_one_reply() -> None:
    """Two hundred parallel calls come through."""
    wanted = [("search", {"a": n}) for n in range(200)]
    async with playing(calls(wanted)) as (client, _):
        found = await client.generate(asked(), Progress())
    assert [json.loads(raw)["a"] for raw in found.raw_inputs.values()] == list(range(200))
