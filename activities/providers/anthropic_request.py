"""Entries put into the words of the Messages API.

The body is a pure function of the request, and the part of it that earlier turns had is the same
byte for byte: the prompt cache and the signatures of thinking blocks depend on that.
"""

from __future__ import annotations

import re
from binascii import b2a_base64
from collections.abc import Mapping, Sequence
from typing import Any, Final

from activities.providers import ImageBounds, ModelRequest, ProviderError
from activities.providers.anthropic_body import Base64
from activities.providers.anthropic_cache import place_marks
from activities.providers.anthropic_output import enforceable
from turnkeeper.entries import Entry
from turnkeeper.media import ImageRef, images_of
from turnkeeper.spec import AgentSpec, ModelSpec, ToolSpec

DIALECT: Final = "anthropic-messages"
IMAGES: Final = ImageBounds(number=100, bytes=22_000_000)
"""A request takes 32 MB, and as base64 they are a third more."""
BINDING_BETA: Final = "thinking-binding-controls-2026-08-01"
"""The beta in which a request may say what happens to thinking of another conversation."""
OWN_FIELDS: Final = frozenset({"max_tokens", "messages", "model", "stream", "system", "tools"})
"""Fields that come from the spec and the loop; options must not set them."""

_BETA = re.compile(r"[A-Za-z0-9._-]{1,100}")


def build_request(request: ModelRequest) -> dict[str, Any]:
    """The JSON body of `POST /v1/messages`.

    `spec.model.options` are merged in as they are; `betas` among them goes into a header instead
    (`request_betas`), and a field set to None is left out. For gateways that refuse them,
    `{"cache_control": None}` takes away all cache marks, `{"diagnostics": None}` the question why
    the cache missed, and `{"output_config": None}` the form of a typed answer.

    Raises:
        ProviderError: `stop`, for options that set a field of ours, for replies of another dialect,
            and for images that are not in the request.
    """
    spec, options = request.spec, dict(request.spec.model.options)
    options.pop("betas", None)
    for name in sorted(options.keys() & OWN_FIELDS):
        raise ProviderError(
            "stop", "invalid_options", f"the model's options must not set {name!r}: the spec does"
        )
    body: dict[str, Any] = {"model": spec.model.name, "max_tokens": request.max_tokens}
    if spec.instructions.strip():
        body["system"] = [{"type": "text", "text": spec.instructions}]
    if spec.tools:
        body["tools"] = [_tool(tool) for tool in spec.tools]
    body["messages"] = _messages(request.entries, request.images)
    if control := _cache_control(spec.model):
        place_marks(body, control, automatic="cache_control" in options)
    # Also without an id: the API remembers only requests that have this field, for the next one.
    body["diagnostics"] = {"previous_message_id": request.previous_message_id}
    body.update(options)
    if form := _form(spec, options):
        body["output_config"] = {**body.get("output_config", {}), "format": form}
    if request.answer_only and spec.tools:
        # The tools stay: a changed prefix would cost the cache, and thinking is bound to it.
        body["tool_choice"] = {"type": "none"}
    if request.drop_thinking:
        body["thinking"] = _dropping(body.get("thinking"))
    body["stream"] = request.stream
    return {name: value for name, value in body.items() if value is not None}


def request_betas(request: ModelRequest) -> tuple[str, ...]:
    """The values of the `anthropic-beta` header, in order and once each.

    Raises:
        ProviderError: `stop`, if the option `betas` is not a list of such values.
    """
    betas = request.spec.model.options.get("betas") or []
    if not isinstance(betas, (list, tuple)) or not all(map(_is_beta, betas)):
        raise ProviderError("stop", "invalid_options", "the option 'betas' is no list of betas")
    return tuple(dict.fromkeys([*betas, *([BINDING_BETA] if request.drop_thinking else [])]))


def _is_beta(value: Any) -> bool:
    return isinstance(value, str) and _BETA.fullmatch(value) is not None


def _cache_control(model: ModelSpec) -> dict[str, Any] | None:
    """The value of a cache mark; None for no marks."""
    if "cache_control" in model.options:
        # The API's automatic mark, wished for by the options: others may not live otherwise.
        given = model.options["cache_control"]
        return given if isinstance(given, dict) else None
    # Five minutes are the default, and not every gateway knows the field.
    return {"type": "ephemeral", **({"ttl": "1h"} if model.cache_ttl == "1h" else {})}


def _form(spec: AgentSpec, options: Mapping[str, Any]) -> dict[str, Any] | None:
    """The form of a typed answer; None if the API cannot enforce it, or the options have a say."""
    config = options.get("output_config", {})
    if spec.output is None or not isinstance(config, dict) or "format" in config:
        return None
    schema = enforceable(spec.output.json_schema)
    return {"type": "json_schema", "schema": schema} if schema else None


def _tool(tool: ToolSpec) -> dict[str, Any]:
    # A blank description is refused, a missing one is not.
    told = {"description": tool.description} if tool.description.strip() else {}
    return {"name": tool.name, **told, "input_schema": tool.input_schema}


def _dropping(thinking: Any) -> dict[str, Any]:
    config = dict(thinking) if isinstance(thinking, dict) else {"type": "adaptive"}
    binding = config.get("block_binding")
    kept = binding if isinstance(binding, dict) else {}
    config["block_binding"] = {**kept, "prefix_mismatch_behavior": "drop_block"}
    return config


def _messages(entries: Sequence[Entry], images: Mapping[str, bytes]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    texts: list[dict[str, Any]] = []

    def end_turn() -> None:
        # All results stand in the one message right after their calls, before any text: elsewhere
        # the API does not find them.
        if results or texts:
            messages.append({"role": "user", "content": [*results, *texts]})
            results.clear()
            texts.clear()

    for entry in entries:
        if entry.kind == "result":
            results.append(_result(entry, images))
        elif entry.kind == "message":
            texts.append({"type": "text", "text": entry.value["text"]})
        elif entry.dialect != DIALECT:
            raise ProviderError(
                "stop", "foreign_dialect", f"a reply of dialect {entry.dialect!r} cannot be sent"
            )
        elif entry.value["content"]:
            end_turn()
            messages.append(entry.value)
    end_turn()
    return messages


def _result(entry: Entry, images: Mapping[str, bytes]) -> dict[str, Any]:
    value = entry.value
    shown = [_image(ref, images) for ref in images_of(entry)]
    text = value["text"]
    block = {
        "type": "tool_result",
        "tool_use_id": value["call_id"],
        "content": [{"type": "text", "text": text}, *shown] if shown else text,
    }
    if value.get("error"):
        block["is_error"] = True
    return block


def _image(ref: ImageRef, images: Mapping[str, bytes]) -> dict[str, Any]:
    data = images.get(ref.artifact)
    if data is None:
        # Left out, it would change what the model was shown, and the cached prefix with it.
        raise ProviderError("stop", "image_not_loaded", f"image {ref.artifact} is not at hand")
    encoded = Base64(b2a_base64(data, newline=False), "ascii")
    source = {"type": "base64", "media_type": ref.media_type, "data": encoded}
    return {"type": "image", "source": source}
