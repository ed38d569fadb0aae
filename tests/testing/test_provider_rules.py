"""Each rule of the scripted provider: what it refuses, and that the mended request passes."""

from __future__ import annotations

import base64
import copy
import json
import random
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx2
import PIL.Image
import pytest

from tests import media_samples as samples
from turnkeeper.testing import ScriptedProvider, text
from turnkeeper.testing.provider.rules import RULES

Json = dict[str, Any]

HEADERS = {"x-api-key": "any", "anthropic-version": "2026-10-21"}
MARK = {"type": "ephemeral"}
TOOL: Json = {"name": "search", "input_schema": {"type": "object"}}


def user(content: Any = "hello") -> Json:
    """A message of the user."""
    return {"role": "user", "content": content}


def assistant(content: Any) -> Json:
    """A message of the assistant."""
    return {"role": "assistant", "content": content}


def say(value: str = "x", **fields: Any) -> Json:
    """A text block."""
    return {"type": "text", "text": value, **fields}


def use(id_: Any = "a", **fields: Any) -> Json:
    """A tool_use block."""
    return {"type": "tool_use", "id": id_, "name": "search", "input": {}, **fields}


def result(id_: str = "a", **fields: Any) -> Json:
    """A tool_result block."""
    return {"type": "tool_result", "tool_use_id": id_, "content": "42", **fields}


def request(*messages: Json, **fields: Any) -> Json:
    """A valid request, with the given messages and fields."""
    return {"model": "m", "max_tokens": 100, "messages": list(messages or [user()]), **fields}


def loop(calls: Any, results: Any, *more: Json) -> Json:
    """A request whose messages are a prompt, these tool calls and these results."""
    return request(user(), assistant(calls), user(results), *more)


def without(field: str, body: Json) -> Json:
    """The request without a field."""
    return {key: value for key, value in body.items() if key != field}


class Case(NamedTuple):
    """A request that breaks `rule`, its smallest mend, and a part of the complaint."""

    rule: str
    bad: Json
    good: Json
    says: str


def png(width: int = 30, height: int = 20) -> str:
    """The head of a PNG, as base64."""
    head = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", width, height)
    return base64.b64encode(head).decode()


def image(data: str | None = None, **source: Any) -> Json:
    """An image block."""
    source = {"type": "base64", "media_type": "image/png", "data": data or png(), **source}
    return {"type": "image", "source": source}


def seen(*images: Json, **fields: Any) -> Json:
    """A request with a result that has these images."""
    return loop([use()], [result(content=[say(), *images], **fields)])


GOOD = request()
LOOP = loop([use()], [result()])
SERVER_USE = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
SERVER_RESULT = {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}
SCHEMA = {"type": "json_schema", "schema": {"type": "object"}}

CASES = [
    Case("required_fields", without("model", GOOD), GOOD, "model: Field required"),
    Case("required_fields", without("max_tokens", GOOD), GOOD, "max_tokens: Field required"),
    Case("required_fields", without("messages", GOOD), GOOD, "messages: Field required"),
    Case("sampling_parameters", request(temperature=0.5), GOOD, "temperature"),
    Case("sampling_parameters", request(top_k=1), GOOD, "top_k"),
    Case("known_fields", request(prompt="x"), GOOD, "prompt: Extra inputs"),
    Case("known_fields", request(context_management={}), GOOD, "context_management: Extra"),
    Case("field_types", request(max_tokens="100"), GOOD, "max_tokens: Input should be a valid int"),
    Case("field_types", request(max_tokens=True), GOOD, "max_tokens: Input should be a valid int"),
    Case("field_types", request(system=None), request(system="x"), "system: Input should be"),
    Case("field_types", request(stream=1), request(stream=False), "stream: Input should be"),
    Case("max_tokens_minimum", request(max_tokens=0), request(max_tokens=1), "greater than"),
    Case("max_tokens_limit", request(max_tokens=128_001), request(max_tokens=128_000), "> 128000"),
    Case(
        "metadata", request(metadata={"tenant": "a"}), request(metadata={"user_id": "a"}), "tenant"
    ),
    Case(
        "metadata", request(metadata={"user_id": 1}), request(metadata={"user_id": None}), "user_id"
    ),
    Case(
        "stop_sequences", request(stop_sequences=[" "]), request(stop_sequences=["x"]), "non-white"
    ),
    Case(
        "output_config",
        request(output_config={"effort": "huge"}),
        request(output_config={"effort": "max"}),
        "effort",
    ),
    Case(
        "output_config",
        request(output_config={"format": {"type": "json_schema"}}),
        request(output_config={"format": SCHEMA}),
        "format",
    ),
    Case(
        "diagnostics",
        request(diagnostics={"previous_message_id": 1}),
        request(diagnostics={"previous_message_id": None}),
        "diagnostics.previous_message_id: Input should be a valid string",
    ),
    Case(
        "diagnostics",
        request(diagnostics={"message_id": "msg_1"}),
        request(diagnostics={"previous_message_id": "msg_1"}),
        "diagnostics.message_id: Extra inputs",
    ),
    Case("choices", request(service_tier="x"), request(service_tier="auto"), "service_tier"),
    Case("choices", request(speed="slow"), request(speed="fast"), "speed"),
    Case("messages_given", {**GOOD, "messages": []}, GOOD, "at least one message"),
    Case("message_shape", request({**user(), "id": "x"}), GOOD, "messages.0.id: Extra inputs"),
    Case("message_shape", request({"role": "user"}), GOOD, "messages.0.content: Field required"),
    Case("message_roles", request({**user(), "role": "tool"}), GOOD, "messages.0.role"),
    Case("first_message", request(assistant("x"), user()), GOOD, "first message"),
    Case("content_shape", request(user(None)), GOOD, "messages.0.content: Input should be"),
    Case("content_shape", request(user([{"text": "x"}])), request(user([say()])), "content.0.type"),
    Case(
        "block_types",
        request(user([{"type": "future_block"}])),
        request(user([say()])),
        "messages.0.content.0: Input tag 'future_block'",
    ),
    Case(
        "block_types",
        request(user(), assistant([{"type": "never_emitted"}]), user()),
        request(user(), assistant([say()]), user()),
        "messages.1.content.0",
    ),
    Case("block_types", request(user([use()])), request(user([say()])), "tag 'tool_use'"),
    Case(
        "block_fields",
        request(user([say(index=0)])),
        request(user([say()])),
        "messages.0.content.0.text.index: Extra inputs",
    ),
    Case(
        "block_fields",
        loop([use()], [result(name="search")]),
        LOOP,
        "messages.2.content.0.tool_result.name: Extra inputs",
    ),
    Case("block_requires", loop([without("id", use())], [result()]), LOOP, "tool_use.id: Field"),
    Case("block_requires", loop([use(7)], [result("7")]), LOOP, "tool_use.id: Input should"),
    Case(
        "block_requires",
        loop([use()], [without("tool_use_id", result())]),
        LOOP,
        "tool_result.tool_use_id: Field required",
    ),
    Case("text_not_empty", request(user([say("")])), request(user([say()])), "must be non-empty"),
    Case("text_not_empty", request(user(" \n")), GOOD, "non-whitespace"),
    Case(
        "text_not_empty",
        loop([say(""), use()], [result()]),
        LOOP,
        "messages.1.content.0: text content blocks",
    ),
    Case("content_not_empty", request(user("")), GOOD, "messages.0: all messages must have"),
    Case(
        "content_not_empty",
        request(user(), assistant([]), user()),
        request(user(), assistant([say()]), user()),
        "messages.1: all messages must have",
    ),
    Case(
        "system_messages",
        request(user(), {"role": "system", "content": "x"}, user()),
        request(user(), {"role": "system", "content": "x"}),
        "messages.1: a system message must",
    ),
    Case("no_prefill", request(user(), assistant("{")), GOOD, "does not support assistant message"),
    Case("no_prefill", request(user(), assistant([])), GOOD, "does not support assistant message"),
    Case("system_prompt", request(system=""), request(system="x"), "system: text content blocks"),
    Case("system_prompt", request(system=[say("")]), request(system=[say()]), "system: text"),
    Case(
        "tool_shape", request(tools=[{**TOOL, "function": {}}]), request(tools=[TOOL]), "function"
    ),
    Case(
        "tool_shape", request(tools=[without("name", TOOL)]), request(tools=[TOOL]), "name: Field"
    ),
    Case(
        "tool_shape",
        request(tools=[{"type": "function", "name": "x"}]),
        request(tools=[{"type": "bash_20250124", "name": "bash"}]),
        "tools.0.type",
    ),
    Case("tool_names", request(tools=[{**TOOL, "name": "a.b"}]), request(tools=[TOOL]), "pattern"),
    Case(
        "tool_names",
        request(tools=[{**TOOL, "name": "x" * 129}]),
        request(tools=[{**TOOL, "name": "x" * 128}]),
        "pattern",
    ),
    Case(
        "tool_names_unique",
        request(tools=[TOOL, TOOL]),
        request(tools=[TOOL, {**TOOL, "name": "other"}]),
        "must be unique",
    ),
    Case(
        "tool_descriptions",
        request(tools=[{**TOOL, "description": ""}]),
        request(tools=[TOOL]),
        "description",
    ),
    Case(
        "tool_schemas",
        request(tools=[without("input_schema", TOOL)]),
        request(tools=[TOOL]),
        "input_schema: Field required",
    ),
    Case(
        "tool_schemas",
        request(tools=[{**TOOL, "input_schema": {"type": "array"}}]),
        request(tools=[TOOL]),
        "input_schema.type",
    ),
    Case(
        "tool_choice",
        request(tool_choice={"type": "auto"}),
        request(tool_choice={"type": "auto"}, tools=[TOOL]),
        "while providing tools",
    ),
    Case(
        "tool_choice",
        request(tool_choice={"type": "tool", "name": "find"}, tools=[TOOL]),
        request(tool_choice={"type": "tool", "name": "search"}, tools=[TOOL]),
        "'find' not found",
    ),
    Case(
        "tool_choice",
        request(tool_choice={"type": "none", "disable_parallel_tool_use": True}, tools=[TOOL]),
        request(tool_choice={"type": "any", "disable_parallel_tool_use": True}, tools=[TOOL]),
        "disable_parallel_tool_use: Extra",
    ),
    Case(
        "tool_choice",
        request(tool_choice={"type": "required"}, tools=[TOOL]),
        request(tool_choice={"type": "any"}, tools=[TOOL]),
        "tool_choice.type",
    ),
    Case("tool_use_fields", loop([use("a b")], [result("a b")]), LOOP, "tool_use.id: String"),
    Case("tool_use_fields", loop([use(name="a.b")], [result()]), LOOP, "tool_use.name: String"),
    Case("tool_use_fields", loop([use(input="{}")], [result()]), LOOP, "valid dictionary"),
    Case("tool_use_fields", loop([without("input", use())], [result()]), LOOP, "valid dictionary"),
    Case(
        "tool_use_ids_unique",
        loop([use(), use()], [result()]),
        loop([use(), use("b")], [result(), result("b")]),
        "`tool_use` ids must be unique",
    ),
    Case(
        "tool_use_ids_unique",
        loop([use()], [result()], assistant([use()]), user([result()])),
        loop([use()], [result()], assistant([use("b")]), user([result("b")])),
        "`tool_use` ids must be unique",
    ),
    Case(
        "tool_results_first",
        loop([use()], [say(), result()]),
        loop([use()], [result(), say()]),
        "must come before",
    ),
    Case("tool_results_expected", request(user([result()])), GOOD, "unexpected `tool_use_id`"),
    Case(
        "tool_results_expected",
        loop([use()], [result()], user([result()])),
        loop([use()], [result()], user([say()])),
        "messages.3.content.0: unexpected",
    ),
    Case("tool_results_single", loop([use()], [result(), result()]), LOOP, "a single result"),
    Case("tool_uses_answered", loop([use()], [say()]), LOOP, "immediately after: a"),
    Case(
        "tool_uses_answered",
        loop([use(), use("b")], [result()]),
        loop([use(), use("b")], [result("b"), result()]),
        "immediately after: b",
    ),
    Case(
        "tool_result_content",
        loop([use()], [result(content=[{"type": "tool_use"}])]),
        loop([use()], [result(content=[say()])]),
        "content.0: Input tag 'tool_use'",
    ),
    Case(
        "tool_result_content",
        loop([use()], [result(content={"value": 1})]),
        loop([use()], [result(content="")]),
        "valid string or array",
    ),
    Case(
        "tool_result_content",
        loop([use()], [result(is_error="yes")]),
        loop([use()], [result(is_error=True)]),
        "is_error",
    ),
    Case(
        "tool_errors_are_text",
        seen(image(), is_error=True),
        seen(image()),
        'content must be type "text"',
    ),
    Case(
        "image_sources",
        request(user([image(type="path")])),
        request(user([image()])),
        "messages.0.content.0.image.source: Input tag",
    ),
    Case(
        "image_sources",
        seen({"type": "image", "source": {"type": "url", "data": "x"}}),
        seen({"type": "image", "source": {"type": "url", "url": "https://x.example/a.png"}}),
        "messages.2.content.0.tool_result.content.1.image.source.url.data",
    ),
    Case("image_sources", seen(image(media_type="image/tiff")), seen(image()), "media_type"),
    Case("image_data", seen(image(media_type="image/gif")), seen(image()), "image/png image"),
    Case("image_data", seen(image("aGVsbG8=")), seen(image()), "Could not process image"),
    Case("image_data", seen(image("not base64!")), seen(image()), "Could not process image"),
    Case("image_count", seen(*[image()] * 101), seen(*[image()] * 100), "101 > 100"),
    Case("image_sides", seen(image(png(8_001))), seen(image(png(8_000))), "8000 pixels"),
    Case(
        "image_sides",
        seen(*[image(png(2_001))] * 21),
        seen(*[image(png(2_001))] * 20),
        "for many-image requests: 2000 pixels",
    ),
    Case(
        "server_results_expected",
        request(user(), assistant([SERVER_RESULT]), user()),
        request(user(), assistant([SERVER_USE, SERVER_RESULT]), user()),
        "`server_tool_use`",
    ),
    Case(
        "cache_control_shape",
        request(user([say(cache_control={"type": "persistent"})])),
        request(user([say(cache_control=MARK)])),
        "messages.0.content.0.cache_control.type",
    ),
    Case(
        "cache_control_shape",
        request(cache_control={**MARK, "ttl": "2h"}),
        request(cache_control={**MARK, "ttl": "1h"}),
        "'5m' or '1h'",
    ),
    Case(
        "cache_control_count",
        request(
            user([say(cache_control=MARK)]),
            system=[say(cache_control=MARK)] * 2,
            tools=[{**TOOL, "cache_control": MARK}],
            cache_control=MARK,
        ),
        request(
            user([say(cache_control=MARK)]),
            system=[say(cache_control=MARK)],
            tools=[{**TOOL, "cache_control": MARK}],
            cache_control=MARK,
        ),
        "Found 5",
    ),
    Case(
        "cache_control_count",
        loop([use()], [result(content=[say(cache_control=MARK)] * 5)]),
        loop([use()], [result(content=[say(cache_control=MARK)] * 4)]),
        "Found 5",
    ),
    Case(
        "cache_control_place",
        request(tools=[{**TOOL, "defer_loading": True, "cache_control": MARK}]),
        request(tools=[{**TOOL, "defer_loading": True}]),
        "defer_loading",
    ),
    Case(
        "cache_control_order",
        request(system=[say(cache_control=MARK), say(cache_control={**MARK, "ttl": "1h"})]),
        request(system=[say(cache_control={**MARK, "ttl": "1h"}), say(cache_control=MARK)]),
        "must not come after",
    ),
    Case(
        "thinking_config",
        request(max_tokens=2000, thinking={"type": "enabled", "budget_tokens": 1023}),
        request(max_tokens=2000, thinking={"type": "enabled", "budget_tokens": 1024}),
        "1024",
    ),
    Case(
        "thinking_config",
        request(max_tokens=1024, thinking={"type": "enabled", "budget_tokens": 1024}),
        request(max_tokens=1025, thinking={"type": "enabled", "budget_tokens": 1024}),
        "`max_tokens` must be greater",
    ),
    Case(
        "thinking_config",
        request(thinking={"type": "adaptive", "budget_tokens": 2000}),
        request(thinking={"type": "adaptive", "display": "omitted"}),
        "budget_tokens: Extra",
    ),
    Case(
        "thinking_config",
        request(thinking={"type": "on"}),
        request(thinking={"type": "disabled"}),
        "thinking.type",
    ),
    Case(
        "context_window",
        request(user("x" * 8000), model="tiny", max_tokens=1000),
        request(user("x" * 3000), model="tiny", max_tokens=1000),
        "prompt is too long",
    ),
    Case(
        "context_window",
        request(model="tiny", max_tokens=2000),
        request(model="tiny", max_tokens=1900),
        "tokens > 2000 maximum",
    ),
]

# Shown in test_provider_thinking.py, where a provider has thought before.
OF_THINKING = {
    "thinking_binding_beta",
    "thinking_bound",
    "thinking_genuine",
    "thinking_kept",
}


@pytest.fixture(scope="module")
def provider() -> Iterator[ScriptedProvider]:
    """A provider that answers everything it does not refuse."""
    models: dict[str, Json] = {"m": {}, "tiny": {"max_input_tokens": 2000}}
    with ScriptedProvider(lambda _: text("ok"), models=models, max_body_bytes=100_000) as provider:
        yield provider


@pytest.fixture(scope="module")
def http(provider: ScriptedProvider) -> Iterator[httpx2.Client]:
    """A client of the provider that is allowed in."""
    with httpx2.Client(base_url=provider.url, headers=HEADERS) as client:
        yield client


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.rule}: {case.says}")
def test_rule(provider: ScriptedProvider, http: httpx2.Client, case: Case) -> None:
    """A request that breaks the rule is refused under the rule's name, in the API's form, and is
    counted; mended in that one point it is answered."""
    before = provider.rejections[case.rule]
    refused = http.post("/v1/messages", json=case.bad)
    error = refused.json()
    assert refused.status_code == 400, error
    assert error["type"] == "error"
    assert error["error"]["type"] == "invalid_request_error"
    assert case.says in error["error"]["message"]
    assert error["request_id"] == refused.headers["request-id"]
    assert provider.requests[-1].rule == case.rule
    assert provider.rejections[case.rule] == before + 1
    accepted = http.post("/v1/messages", json=case.good)
    assert accepted.status_code == 200, accepted.text


def test_every_rule_has_a_case() -> None:
    """No rule is without a test here or in test_provider_thinking.py, and each says what it
    holds."""
    assert {case.rule for case in CASES} | OF_THINKING == set(RULES)
    assert all(check.__doc__ for check in RULES.values())


def test_an_image_has_at_most_5_mb() -> None:
    """Of base64, as a strict model counts it."""
    with (
        ScriptedProvider(lambda _: text("ok")) as roomy,
        httpx2.Client(base_url=roomy.url, headers=HEADERS) as client,
    ):
        for more, status in ((0, 200), (4, 400)):
            data = png() + "A" * (5 * 1024 * 1024 - len(png()) + more)
            assert client.post("/v1/messages", json=seen(image(data))).status_code == status
        assert roomy.rejections == {"image_data": 1}


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP"])
def test_an_image_counts_by_its_pixels(http: httpx2.Client, kind: str) -> None:
    """A token for 750 of them, in a result or beside it, whatever the length of its base64."""

    def tokens(body: Json) -> int:
        counted = {k: v for k, v in body.items() if k != "max_tokens"}
        answer = http.post("/v1/messages/count_tokens", json=counted).json()
        return int(answer["input_tokens"])

    # WebP has three forms of head.
    forms: list[Json] = [{"lossless": True}, {"quality": 50}, {"exif": PIL.Image.Exif().tobytes()}]
    options = forms if kind == "WEBP" else [{}]
    for option in options:
        images = [
            image(base64.b64encode(data).decode(), media_type=f"image/{kind.lower()}")
            for data in (
                samples.plain(30, 25, kind, **option),
                samples.encoded(PIL.Image.effect_noise((150, 100), 50), kind, **option),
            )
        ]
        assert len(str(images[1])) > 10 * len(str(images[0]))
        small, large = (tokens(seen(i)) for i in images)
        assert large - small == 19
        small, large = (tokens(request(user([i]))) for i in images)
        assert large - small == 19


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[]", "must be a JSON object"),
        (b'{"model": "m", "model": "m"}', "duplicate key 'model'"),
        (b'{"max_tokens": NaN}', "NaN is not a JSON number"),
        (b'{"model": "\xff"}', "not valid JSON"),
        (b'{"model": "\\ud800"}', "not valid JSON"),
        (b'{"a": ' + b"[" * 5000 + b"]" * 5000 + b"}", "not valid JSON"),
        (b'{"max_tokens": ' + b"9" * 5000 + b"}", "not valid JSON"),
    ],
)
def test_body_is_strict_json(http: httpx2.Client, body: bytes, says: str) -> None:
    """What a lenient parser would let pass as JSON is refused."""
    refused = http.post("/v1/messages", content=body)
    assert refused.status_code == 400
    assert says in refused.json()["error"]["message"]


def test_infinite_number_in_a_message(http: httpx2.Client) -> None:
    """A number beyond every float, which Python reads as infinity, is refused."""
    body = json.dumps(loop([use(input={"n": 1})], [result()])).replace('"n": 1', '"n": 1e999')
    assert http.post("/v1/messages", content=body).status_code == 400


def test_escaped_surrogate_pair_is_text(http: httpx2.Client) -> None:
    """A pair of escaped surrogates is one character and accepted; half of it is refused."""
    body = json.dumps(request(user("\U0001f600")))
    assert "\\ud83d" in body
    assert http.post("/v1/messages", content=body).status_code == 200
    assert http.post("/v1/messages", content=body.replace("\\ude00", "")).status_code == 400


def test_credentials(http: httpx2.Client, provider: ScriptedProvider) -> None:
    """Either header carries the key; without one, or with a wrong one, the answer is 401."""
    with httpx2.Client(base_url=provider.url) as bare:
        version = {"anthropic-version": "2026-10-21"}
        refused = bare.post("/v1/messages", json=GOOD, headers=version)
        assert refused.status_code == 401
        assert refused.json()["error"]["type"] == "authentication_error"
        bearer = {**version, "authorization": "Bearer any"}
        assert bare.post("/v1/messages", json=GOOD, headers=bearer).status_code == 200
    with (
        ScriptedProvider([text("ok")], api_key="right") as strict,
        httpx2.Client(base_url=strict.url, headers=HEADERS) as client,
    ):
        assert client.post("/v1/messages", json=GOOD).status_code == 401
        right = {"x-api-key": "right"}
        assert client.post("/v1/messages", json=GOOD, headers=right).status_code == 200


def test_version_header(provider: ScriptedProvider) -> None:
    """A request without anthropic-version is refused."""
    refused = httpx2.post(f"{provider.url}/v1/messages", json=GOOD, headers={"x-api-key": "any"})
    assert refused.status_code == 400
    assert "anthropic-version" in refused.json()["error"]["message"]


def test_unknown_model(http: httpx2.Client) -> None:
    """With a table of models, any other model is not found."""
    refused = http.post("/v1/messages", json=request(model="claude-2"))
    assert refused.status_code == 404
    assert refused.json()["error"] == {"type": "not_found_error", "message": "model: claude-2"}


def test_body_too_large(http: httpx2.Client) -> None:
    """A body over the limit is answered 413, whether its length was announced or not."""
    body = json.dumps(request(user("x" * 200_000))).encode()
    refused = http.post("/v1/messages", content=body)
    assert refused.status_code == 413
    assert refused.json()["error"]["type"] == "request_too_large"
    pieces = (body[at : at + 10_000] for at in range(0, len(body), 10_000))
    assert http.post("/v1/messages", content=pieces).status_code == 413


def test_unknown_path(http: httpx2.Client) -> None:
    """Anything but the four endpoints is not found."""
    assert http.get("/v1/messages").status_code == 404
    assert http.post("/v1/complete", json=GOOD).status_code == 404
    assert http.get("/").status_code == 404


def test_models(http: httpx2.Client) -> None:
    """The models of the table are listed and can be asked for, with their limits."""
    page = http.get("/v1/models").json()
    assert [model["id"] for model in page["data"]] == ["m", "tiny"]
    assert page["has_more"] is False
    assert http.get("/v1/models/tiny").json()["max_input_tokens"] == 2000
    assert http.get("/v1/models/large").status_code == 404


def test_count_tokens(http: httpx2.Client) -> None:
    """count_tokens gives the input size that the message's usage then shows, needs no max_tokens,
    and holds the messages to the same rules."""
    body = loop([use()], [result()])
    count = http.post("/v1/messages/count_tokens", json=without("max_tokens", body))
    usage = http.post("/v1/messages", json=body).json()["usage"]
    assert count.json() == {"input_tokens": usage["input_tokens"]}
    unanswered = without("max_tokens", loop([use()], [say()]))
    assert http.post("/v1/messages/count_tokens", json=unanswered).status_code == 400
    assert http.post("/v1/messages/count_tokens", json=body).status_code == 400


def test_no_request_is_a_bug(http: httpx2.Client, provider: ScriptedProvider) -> None:
    """Whatever is put in the place of any value, the request is answered or refused: a rule that
    fails on it would be answered 500."""
    whole = request(
        user([say(cache_control=MARK)]),
        assistant([say(citations=None), use(), SERVER_USE, SERVER_RESULT]),
        user([result(content=[say(cache_control=MARK)]), say()]),
        {"role": "system", "content": [say()]},
        system=[say(cache_control=MARK)],
        tools=[TOOL, {"type": "bash_20250124", "name": "bash"}],
        tool_choice={"type": "tool", "name": "search"},
        thinking={"type": "adaptive", "display": "omitted"},
        metadata={"user_id": "u"},
        output_config={"effort": "low", "format": SCHEMA},
        stop_sequences=["x"],
        cache_control=MARK,
    )
    assert http.post("/v1/messages", json=whole).status_code == 200
    rng = random.Random(7)
    hostile: list[Any] = [None, True, 0, -1, 1.5, "", " ", "x", [], {}, [None], [[]], {"type": []}]
    for _ in range(600):
        body = copy.deepcopy(whole)
        for _ in range(rng.randint(1, 2)):
            _replace_anywhere(body, rng, copy.deepcopy(rng.choice(hostile)))
        answered = http.post("/v1/messages", json=body)
        assert answered.status_code in (200, 400, 404), (body, answered.text)
    assert not any(record.status >= 500 for record in provider.requests)


def _replace_anywhere(value: Any, rng: random.Random, replacement: Any) -> None:
    """Put `replacement` in the place of a value somewhere in a JSON value."""
    while True:
        keys: list[Any] = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not keys:
            return
        key = rng.choice(keys)
        if not isinstance(value[key], (dict, list)) or rng.random() < 0.2:
            value[key] = replacement
            return
        value = value[key]
