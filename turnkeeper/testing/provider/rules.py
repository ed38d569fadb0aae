"""The rules that the Messages API holds a request to; each violation is an HTTP 400.

A rule is a generator of complaints about a `Request`; its name is the function's, its docstring
says what must hold. `violation` asks them in the order of this page and takes the first complaint,
so a rule may rely on those before it. The wording follows the real API's, which is not stable:
clients should not match on it.

Sources: the types of the official SDK (anthropic 2.14.0) and the API's documentation of November
2026. Where the two leave a doubt the stricter reading is taken.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple, TypeAlias

from turnkeeper.testing.provider import signatures
from turnkeeper.testing.provider.cache import Mark, marks_of
from turnkeeper.testing.provider.diagnosis import Fingerprint
from turnkeeper.testing.provider.emitted import (
    ASSISTANT_BLOCK_TYPES,
    Memory,
    call_ids_of,
    seals_of,
)
from turnkeeper.testing.provider.images import base64_of, image_blocks, measures
from turnkeeper.testing.provider.models import Model
from turnkeeper.testing.provider.prefix import Place, Prefix, head_places, message_places
from turnkeeper.testing.provider.replies import Json

BINDING_BETA: Final = "thinking-binding-controls-2026-08-01"

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_ID = re.compile(r"[a-zA-Z0-9_-]+")


@dataclass
class Request:
    """A request body with everything a rule may ask about. `counting` is a count_tokens request,
    which generates nothing and needs no `max_tokens`; `previous` is the request that this one
    wants to be compared with."""

    body: Json
    betas: frozenset[str]
    model: Model
    memory: Memory
    counting: bool = False
    previous: Fingerprint | None = None

    @cached_property
    def messages(self) -> list[Any]:
        """The messages; objects, once the rules on their shape have passed."""
        messages: list[Any] = self.body["messages"]
        return messages

    @cached_property
    def tools(self) -> list[Any]:
        """The tools; objects, once the rules on their shape have passed."""
        return self.body.get("tools") or []

    @cached_property
    def places(self) -> list[Place]:
        """All blocks of the messages."""
        return message_places(self.messages)

    @cached_property
    def by_type(self) -> dict[str, list[Place]]:
        """The blocks of the messages by their type."""
        places: dict[str, list[Place]] = {}
        for place in self.places:
            places.setdefault(place.block["type"], []).append(place)
        return places

    def of(self, *types: str) -> list[Place]:
        """The blocks of the messages of the given types, type by type."""
        return [place for type_ in types for place in self.by_type.get(type_, ())]

    @cached_property
    def head(self) -> list[Place]:
        """The tools and system blocks."""
        return head_places(self.body)

    @cached_property
    def marks(self) -> list[Mark]:
        """The cache breakpoints."""
        return marks_of(self.body, [*self.head, *self.places])

    @cached_property
    def prefix(self) -> Prefix:
        """The whole request as a sequence of blocks, known at the positions that matter."""
        positions = {position for mark in self.marks for position in mark.reach}
        positions |= self.to_remember
        if self.previous is not None:
            length = len(self.head) + len(self.places)
            positions |= {p for p in self.previous.positions if p <= length}
        for position, place in enumerate(self.places, len(self.head)):
            if place.block["type"] in signatures.THINKING_TYPES or (
                place.number == 0 and self.memory.has_thinking
            ):
                positions.add(position)
        return Prefix([*self.head, *self.places], positions)

    @cached_property
    def to_remember(self) -> set[int]:
        """The positions at which a later request may be compared with this one."""
        head, whole = len(self.head), len(self.head) + len(self.places)
        return {len(self.tools), head, whole, *(mark.position for mark in self.marks)}

    @cached_property
    def mismatched(self) -> list[Place]:
        """The thinking blocks bound to another conversation."""
        return [
            place
            for position, place in enumerate(self.places, len(self.head))
            if place.block["type"] in signatures.THINKING_TYPES
            and signatures.fault(place.block, self.prefix.digest(position)) == "bound"
        ]

    @property
    def drops_mismatched(self) -> bool:
        """Whether the request asks to drop thinking bound to another conversation."""
        config = self.body.get("thinking") or {}
        binding = config.get("block_binding") or {}
        return binding.get("prefix_mismatch_behavior") == "drop_block"


Check: TypeAlias = Callable[[Request], Iterator[str]]


class Violation(NamedTuple):
    """The first rule that a request breaks."""

    rule: str
    message: str


RULES: Final[dict[str, Check]] = {}


def violation(request: Request) -> Violation | None:
    """The first rule that `request` breaks, or None."""
    for name, check in RULES.items():
        for message in check(request):
            return Violation(name, message)
    return None


def rule(check: Check) -> Check:
    """Add a rule to the table, under the name of its function."""
    RULES[check.__name__] = check
    return check


# --- The request -----------------------------------------------------------------------------

_FIELDS: Final[Mapping[str, tuple[type, ...]]] = {
    "model": (str,),
    "messages": (list,),
    "system": (str, list),
    "tools": (list,),
    "tool_choice": (dict,),
    "thinking": (dict,),
    "cache_control": (dict,),
    "output_config": (dict,),
    "speed": (str,),
    "user_profile_id": (str,),
    "workspace_id": (str,),
}
_GENERATION_FIELDS: Final[Mapping[str, tuple[type, ...]]] = {
    "max_tokens": (int,),
    "stream": (bool,),
    "stop_sequences": (list,),
    "metadata": (dict,),
    "service_tier": (str,),
    "inference_geo": (str,),
    "container": (str, dict),
    "diagnostics": (dict,),
}
_NULLABLE: Final = frozenset(
    {"cache_control", "speed", "inference_geo", "container", "diagnostics"}
)
_JSON_NAMES: Final[Mapping[type, str]] = {
    str: "string",
    list: "array",
    dict: "object",
    int: "integer",
    bool: "boolean",
}


def _fields(r: Request) -> Mapping[str, tuple[type, ...]]:
    return _FIELDS if r.counting else {**_FIELDS, **_GENERATION_FIELDS}


def _is(value: Any, types: Sequence[type]) -> bool:
    # JSON's true is not an integer, though Python's is.
    return isinstance(value, tuple(types)) and (bool in types or not isinstance(value, bool))


@rule
def required_fields(r: Request) -> Iterator[str]:
    """model, messages and, to generate, max_tokens are given."""
    for field in ("model", "messages") if r.counting else ("model", "max_tokens", "messages"):
        if field not in r.body:
            yield f"{field}: Field required"


@rule
def sampling_parameters(r: Request) -> Iterator[str]:
    """Sampling parameters are gone from current models."""
    for field in ("temperature", "top_p", "top_k"):
        if field in r.body:
            yield f"{field}: `{field}` is not supported by this model"


@rule
def known_fields(r: Request) -> Iterator[str]:
    """There is no field that the API does not know."""
    for field in r.body.keys() - _fields(r).keys():
        yield f"{field}: Extra inputs are not permitted"


@rule
def field_types(r: Request) -> Iterator[str]:
    """Every field has its JSON type."""
    known = _fields(r)
    for field, value in r.body.items():
        if not _is(value, known[field]) and not (value is None and field in _NULLABLE):
            names = " or ".join(_JSON_NAMES[type_] for type_ in known[field])
            yield f"{field}: Input should be a valid {names}"


@rule
def max_tokens_minimum(r: Request) -> Iterator[str]:
    """max_tokens is at least 1. (The API takes 0 to warm the cache; an agent that sends it has
    miscounted its budget, so it is refused here.)"""
    if r.body.get("max_tokens", 1) < 1:
        yield "max_tokens: Input should be greater than or equal to 1"


@rule
def max_tokens_limit(r: Request) -> Iterator[str]:
    """max_tokens is within the model's output limit."""
    wanted = r.body.get("max_tokens", 1)
    if wanted > r.model.max_tokens:
        yield (
            f"max_tokens: {wanted} > {r.model.max_tokens}, which is the maximum allowed number of "
            f"output tokens for {r.model.id}"
        )


@rule
def metadata(r: Request) -> Iterator[str]:
    """metadata holds a user_id of at most 256 characters and nothing else."""
    given = r.body.get("metadata") or {}
    for field in given.keys() - {"user_id"}:
        yield f"metadata.{field}: Extra inputs are not permitted"
    user_id = given.get("user_id")
    if user_id is not None and not (isinstance(user_id, str) and len(user_id) <= 256):
        yield "metadata.user_id: Input should be a string of at most 256 characters"


@rule
def stop_sequences(r: Request) -> Iterator[str]:
    """A stop sequence has a character that is not white space."""
    for index, sequence in enumerate(r.body.get("stop_sequences", ())):
        if not isinstance(sequence, str) or not sequence.strip():
            yield f"stop_sequences.{index}: each stop sequence must contain non-whitespace"


@rule
def output_config(r: Request) -> Iterator[str]:
    """output_config knows an effort and a JSON schema format."""
    config = r.body.get("output_config", {})
    for field in config.keys() - {"effort", "format"}:
        yield f"output_config.{field}: Extra inputs are not permitted"
    if config.get("effort") not in (None, "low", "medium", "high", "xhigh", "max"):
        yield "output_config.effort: Input should be 'low', 'medium', 'high', 'xhigh' or 'max'"
    form = config.get("format")
    if form is not None and not (
        isinstance(form, dict)
        and form.get("type") == "json_schema"
        and isinstance(form.get("schema"), dict)
    ):
        yield "output_config.format: Input should be a `json_schema` with a `schema` object"


@rule
def diagnostics(r: Request) -> Iterator[str]:
    """diagnostics names a message by its id, or none."""
    field = r.body.get("diagnostics") or {}
    for name in field.keys() - {"previous_message_id"}:
        yield f"diagnostics.{name}: Extra inputs are not permitted"
    named = field.get("previous_message_id")
    if named is not None and not isinstance(named, str):
        yield "diagnostics.previous_message_id: Input should be a valid string"


@rule
def choices(r: Request) -> Iterator[str]:
    """service_tier and speed have one of their values."""
    if r.body.get("service_tier") not in (None, "auto", "standard_only"):
        yield "service_tier: Input should be 'auto' or 'standard_only'"
    if r.body.get("speed") not in (None, "standard", "fast"):
        yield "speed: Input should be 'standard' or 'fast'"


# --- Messages and their blocks ---------------------------------------------------------------

_USER_BLOCK_TYPES: Final = frozenset(
    {"text", "image", "document", "search_result", "tool_result", "container_upload"}
)
_RESULT_BLOCK_TYPES: Final = frozenset(
    {"text", "image", "document", "search_result", "tool_reference", "browser_state"}
)
# The fields of blocks that a client writes itself. Blocks that the API wrote may carry fields
# that no client knows; they are sent back as they came.
_USER_BLOCK_FIELDS: Final = {
    "text": frozenset({"type", "text", "citations", "cache_control"}),
    "image": frozenset({"type", "source", "cache_control", "transformations"}),
    "tool_result": frozenset(
        {"type", "tool_use_id", "content", "is_error", "toolset_name", "cache_control"}
    ),
}
_BLOCK_REQUIRES: Final[Mapping[str, Mapping[str, type]]] = {
    "text": {"text": str},
    "image": {"source": dict},
    "document": {"source": dict},
    "tool_use": {"id": str, "name": str},
    "server_tool_use": {"id": str, "name": str},
    "tool_result": {"tool_use_id": str},
    "thinking": {"thinking": str, "signature": str},
    "redacted_thinking": {"data": str},
}


@rule
def messages_given(r: Request) -> Iterator[str]:
    """There is at least one message, and at most 100,000."""
    if not r.messages:
        yield "messages: at least one message is required"
    if len(r.messages) > 100_000:
        yield f"messages: too many messages: {len(r.messages)} > 100000"


@rule
def message_shape(r: Request) -> Iterator[str]:
    """A message has a role and a content and nothing else."""
    for index, message in enumerate(r.messages):
        if not isinstance(message, dict):
            yield f"messages.{index}: Input should be an object"
        elif message.keys() != {"role", "content"}:
            for field in ("role", "content"):
                if field not in message:
                    yield f"messages.{index}.{field}: Field required"
            for field in message.keys() - {"role", "content"}:
                yield f"messages.{index}.{field}: Extra inputs are not permitted"


@rule
def message_roles(r: Request) -> Iterator[str]:
    """A role is user, assistant or system."""
    for index, message in enumerate(r.messages):
        if message["role"] not in ("user", "assistant", "system"):
            yield f"messages.{index}.role: Input should be 'user', 'assistant' or 'system'"


@rule
def first_message(r: Request) -> Iterator[str]:
    """The first message is the user's."""
    if r.messages[0]["role"] != "user":
        yield 'messages: first message must use the "user" role'


@rule
def content_shape(r: Request) -> Iterator[str]:
    """A content is a string, or an array of objects with a type."""
    for index, message in enumerate(r.messages):
        content = message["content"]
        if isinstance(content, str):
            continue
        if not isinstance(content, list):
            yield f"messages.{index}.content: Input should be a valid string or array"
            return
        for number, block in enumerate(content):
            if not isinstance(block, dict) or not isinstance(block.get("type"), str):
                yield f"messages.{index}.content.{number}.type: Field required"


@rule
def block_types(r: Request) -> Iterator[str]:
    """A user sends known block types; an assistant message holds known ones or those that this
    provider itself has emitted; a system message holds text."""
    allowed = {
        "user": _USER_BLOCK_TYPES,
        "assistant": ASSISTANT_BLOCK_TYPES | r.memory.types,
        "system": frozenset({"text"}),
    }
    for place in r.places:
        if place.block["type"] not in allowed[place.role]:
            yield (
                f"{place.path}: Input tag '{place.block['type']}' is not allowed in a message of "
                f"role '{place.role}'"
            )


@rule
def block_fields(r: Request) -> Iterator[str]:
    """A block that a client writes has no field that the API does not know."""
    for type_, known in _USER_BLOCK_FIELDS.items():
        for place in r.of(type_):
            if place.role != "assistant" and not place.block.keys() <= known:
                field = min(place.block.keys() - known)
                yield f"{place.path}.{type_}.{field}: Extra inputs are not permitted"


@rule
def block_requires(r: Request) -> Iterator[str]:
    """A block has the fields that its type needs."""
    for type_, fields in _BLOCK_REQUIRES.items():
        for place in r.of(type_):
            for field, kind in fields.items():
                if field not in place.block:
                    yield f"{place.path}.{type_}.{field}: Field required"
                elif not isinstance(place.block[field], kind):
                    yield (
                        f"{place.path}.{type_}.{field}: Input should be a valid {_JSON_NAMES[kind]}"
                    )


@rule
def text_not_empty(r: Request) -> Iterator[str]:
    """A text has a character that is not white space."""
    for place in r.of("text"):
        text = place.block["text"]
        if not text:
            yield f"{place.path}: text content blocks must be non-empty"
        elif text.isspace():
            yield f"{place.path}: text content blocks must contain non-whitespace text"


@rule
def content_not_empty(r: Request) -> Iterator[str]:
    """A message has content; only a last message of the assistant may have none."""
    for index, message in enumerate(r.messages):
        if not message["content"] and not (
            index == len(r.messages) - 1 and message["role"] == "assistant"
        ):
            yield (
                f"messages.{index}: all messages must have non-empty content except for the "
                "optional final assistant message"
            )


@rule
def system_messages(r: Request) -> Iterator[str]:
    """A system message follows a user message, and an assistant message or nothing follows it."""
    for index, message in enumerate(r.messages):
        if message["role"] != "system":
            continue
        after = r.messages[index + 1]["role"] if index + 1 < len(r.messages) else "assistant"
        if r.messages[index - 1]["role"] != "user" or after != "assistant":
            yield (
                f"messages.{index}: a system message must follow a user message and be last or "
                "followed by an assistant message"
            )


@rule
def no_prefill(r: Request) -> Iterator[str]:
    """The last message is not the assistant's, but for a reply that asked to be continued."""
    if r.messages[-1]["role"] == "assistant" and not r.memory.is_resumable(r.prefix.digest()):
        yield (
            "This model does not support assistant message prefill. The conversation must end "
            "with a user message."
        )


@rule
def system_prompt(r: Request) -> Iterator[str]:
    """The system prompt is text, and not empty."""
    system = r.body.get("system", "-")
    if isinstance(system, str):
        if not system.strip():
            yield "system: text content blocks must be non-empty"
        return
    for index, block in enumerate(system):
        if not isinstance(block, dict) or block.get("type") != "text":
            yield f"system.{index}: Input tag should be 'text'"
        elif not isinstance(block.get("text"), str):
            yield f"system.{index}.text: Field required"
        elif not block["text"].strip():
            yield "system: text content blocks must be non-empty"
        for field in block.keys() - _USER_BLOCK_FIELDS["text"]:
            yield f"system.{index}.{field}: Extra inputs are not permitted"


# --- Tools -----------------------------------------------------------------------------------

_TOOL_FIELDS: Final = frozenset(
    {
        "type",
        "name",
        "description",
        "input_schema",
        "cache_control",
        "strict",
        "allowed_callers",
        "defer_loading",
        "eager_input_streaming",
        "input_examples",
    }
)
_SERVER_TOOL = re.compile(r"[a-z0-9_]+_20\d{6}")


@rule
def tool_shape(r: Request) -> Iterator[str]:
    """A tool is an object of a known type with a name."""
    for index, tool in enumerate(r.tools):
        if not isinstance(tool, dict):
            yield f"tools.{index}: Input should be an object"
        elif tool.get("type") in (None, "custom"):
            for field in tool.keys() - _TOOL_FIELDS:
                yield f"tools.{index}.custom.{field}: Extra inputs are not permitted"
            if not isinstance(tool.get("name"), str):
                yield f"tools.{index}.custom.name: Field required"
        elif not _SERVER_TOOL.fullmatch(str(tool["type"])):
            yield f"tools.{index}.type: Input tag '{tool['type']}' is not a known tool type"
        elif not isinstance(tool.get("name", ""), str):
            yield f"tools.{index}.name: Input should be a valid string"


def _custom_tools(r: Request) -> Iterator[tuple[str, Json]]:
    for index, tool in enumerate(r.tools):
        if tool.get("type") in (None, "custom"):
            yield f"tools.{index}.custom", tool


@rule
def tool_names(r: Request) -> Iterator[str]:
    """A tool's name is 1 to 128 letters, digits, `_` or `-`."""
    for path, tool in _custom_tools(r):
        if not _NAME.fullmatch(tool["name"]):
            yield f"{path}.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'"


@rule
def tool_names_unique(r: Request) -> Iterator[str]:
    """No two tools have one name."""
    names = Counter(tool["name"] for tool in r.tools if "name" in tool)
    if any(count > 1 for count in names.values()):
        yield "tools: Tool names must be unique."


@rule
def tool_descriptions(r: Request) -> Iterator[str]:
    """A description may be left out; one that is given is a non-empty string."""
    for path, tool in _custom_tools(r):
        description = tool.get("description", "-")
        if not isinstance(description, str) or not description.strip():
            yield f"{path}.description: Input should be a non-empty string"


@rule
def tool_schemas(r: Request) -> Iterator[str]:
    """An input_schema is an object schema of type object."""
    for path, tool in _custom_tools(r):
        schema = tool.get("input_schema")
        if not isinstance(schema, dict):
            yield f"{path}.input_schema: Field required"
        elif schema.get("type") != "object":
            yield f"{path}.input_schema.type: Input should be 'object'"
        elif not isinstance(schema.get("properties") or {}, dict):
            yield f"{path}.input_schema.properties: Input should be an object"
        elif not isinstance(schema.get("required") or [], list):
            yield f"{path}.input_schema.required: Input should be an array"


@rule
def tool_choice(r: Request) -> Iterator[str]:
    """tool_choice has a known type and needs tools; `tool` names one of them."""
    choice = r.body.get("tool_choice")
    if choice is None:
        return
    type_ = choice.get("type")
    if type_ not in ("auto", "any", "tool", "none"):
        yield "tool_choice.type: Input tag should be 'auto', 'any', 'tool' or 'none'"
    known = {"type", *(["name"] if type_ == "tool" else [])}
    known |= {"disable_parallel_tool_use"} if type_ != "none" else set()
    for field in choice.keys() - known:
        yield f"tool_choice.{type_}.{field}: Extra inputs are not permitted"
    if not r.tools:
        yield "tool_choice: tool_choice may only be specified while providing tools"
    if type_ == "tool" and choice.get("name") not in [tool.get("name") for tool in r.tools]:
        yield f"tool_choice.name: Tool '{choice.get('name')}' not found in provided tools"


# --- Tool calls and their results ------------------------------------------------------------


@rule
def tool_use_fields(r: Request) -> Iterator[str]:
    """A call's id and name have the API's form, and its input is an object."""
    for place in r.of("tool_use"):
        if not _ID.fullmatch(place.block["id"]):
            yield f"{place.path}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'"
        if not _NAME.fullmatch(place.block["name"]):
            yield (
                f"{place.path}.tool_use.name: String should match pattern "
                "'^[a-zA-Z0-9_-]{1,128}$'"
            )
        if not isinstance(place.block.get("input"), dict):
            yield f"{place.path}.tool_use.input: Input should be a valid dictionary"


@rule
def tool_use_ids_unique(r: Request) -> Iterator[str]:
    """No two calls of a conversation have one id."""
    seen: set[str] = set()
    for place in r.of("tool_use"):
        if place.block["id"] in seen:
            yield f"{place.path}: `tool_use` ids must be unique"
        seen.add(place.block["id"])


@rule
def tool_results_first(r: Request) -> Iterator[str]:
    """In a message, the tool results come before everything else."""
    for place in r.of("tool_result"):
        if place.number > 0:
            before = r.messages[place.message]["content"][place.number - 1]
            if before["type"] != "tool_result":
                yield (
                    f"{place.path}: `tool_result` blocks must come before all other content of "
                    "their message"
                )


@rule
def tool_results_expected(r: Request) -> Iterator[str]:
    """A tool result answers a call in the message right before it."""
    calls: set[tuple[int, str]] = {(p.message, p.block["id"]) for p in r.of("tool_use")}
    for place in r.of("tool_result"):
        if (place.message - 1, place.block["tool_use_id"]) not in calls:
            yield (
                f"{place.path}: unexpected `tool_use_id` found in `tool_result` blocks: "
                f"{place.block['tool_use_id']}. Each `tool_result` block must have a "
                "corresponding `tool_use` block in the previous message."
            )


@rule
def tool_results_single(r: Request) -> Iterator[str]:
    """A call has one result."""
    seen: set[tuple[int, str]] = set()
    for place in r.of("tool_result"):
        key = (place.message, place.block["tool_use_id"])
        if key in seen:
            yield (
                f"{place.path}: each tool_use must have a single result. Found multiple "
                f"`tool_result` blocks with id: {key[1]}"
            )
        seen.add(key)


@rule
def tool_uses_answered(r: Request) -> Iterator[str]:
    """Every call is answered in the message right after it."""
    answers = {(p.message, p.block["tool_use_id"]) for p in r.of("tool_result")}
    for place in r.of("tool_use"):
        if (place.message + 1, place.block["id"]) not in answers:
            yield (
                f"messages.{place.message}: `tool_use` ids were found without `tool_result` "
                f"blocks immediately after: {place.block['id']}. Each `tool_use` block must have "
                "a corresponding `tool_result` block in the next message."
            )


@rule
def tool_result_content(r: Request) -> Iterator[str]:
    """A result's content is a string or blocks of types that a result may hold; is_error is a
    boolean."""
    for place in r.of("tool_result"):
        if not isinstance(place.block.get("is_error", False), bool):
            yield f"{place.path}.tool_result.is_error: Input should be a valid boolean"
        content = place.block.get("content", "")
        if isinstance(content, str):
            continue
        if not isinstance(content, list):
            yield f"{place.path}.tool_result.content: Input should be a valid string or array"
            return
        for index, block in enumerate(content):
            path = f"{place.path}.tool_result.content.{index}"
            type_ = block.get("type") if isinstance(block, dict) else None
            if type_ not in _RESULT_BLOCK_TYPES:
                yield f"{path}: Input tag '{type_}' is not allowed in a `tool_result`"
            elif type_ == "text" and not isinstance(block.get("text"), str):
                yield f"{path}.text: Field required"
            elif type_ == "text" and not block["text"].strip():
                yield f"{path}: text content blocks must be non-empty"


@rule
def tool_errors_are_text(r: Request) -> Iterator[str]:
    """The content of a result that is an error is text alone."""
    for place in r.of("tool_result"):
        content = place.block.get("content", "")
        if place.block.get("is_error") and any(b["type"] != "text" for b in _listed(content)):
            yield (
                f'{place.path}.tool_result: all content must be type "text" if "is_error" is true'
            )


def _listed(content: Any) -> list[Any]:
    return content if isinstance(content, list) else []


@rule
def server_results_expected(r: Request) -> Iterator[str]:
    """A server tool's result follows its server_tool_use."""
    called: set[Any] = {place.block.get("id") for place in r.of("server_tool_use")}
    for type_ in r.by_type:
        if type_.endswith("_tool_result") and type_ in ASSISTANT_BLOCK_TYPES:
            for place in r.of(type_):
                id_ = place.block.get("tool_use_id")
                if not isinstance(id_, str) or id_ not in called:
                    yield (
                        f"{place.path}: unexpected `tool_use_id` found in `{type_}` blocks. Each "
                        f"`{type_}` block must have a corresponding `server_tool_use` block "
                        "before it."
                    )


# --- Images ----------------------------------------------------------------------------------

_MOST_IMAGES: Final = 100
_MANY_IMAGES: Final = 20
_LONGEST_SIDE: Final = 8000
_LONGEST_SIDE_OF_MANY: Final = 2000
_IMAGE_BYTES: Final = 5 * 1024 * 1024
_IMAGE_TYPES: Final = ("image/jpeg", "image/png", "image/gif", "image/webp")
_SOURCE_FIELDS: Final = {
    "base64": {"type", "media_type", "data"},
    "url": {"type", "url"},
    "file": {"type", "file_id"},
}


def _images(r: Request) -> list[tuple[str, Json]]:
    """All images of the messages, each with its path."""
    return [
        (f"{place.path}{path}", dict(image))
        for place in r.of("image", "tool_result")
        if place.role != "assistant"
        for path, image in image_blocks(place.block)
    ]


@rule
def image_sources(r: Request) -> Iterator[str]:
    """An image comes as base64 of one of four types, by URL or by the id of a file."""
    for path, image in _images(r):
        source = image.get("source")
        if not isinstance(source, dict) or source.get("type") not in _SOURCE_FIELDS:
            yield f"{path}.image.source: Input tag should be 'base64', 'url' or 'file'"
        elif source.keys() != _SOURCE_FIELDS[source["type"]]:
            wrong = min(source.keys() ^ _SOURCE_FIELDS[source["type"]])
            yield f"{path}.image.source.{source['type']}.{wrong}: Field missing or not permitted"
        elif source["type"] == "base64" and source["media_type"] not in _IMAGE_TYPES:
            types = ", ".join(map(repr, _IMAGE_TYPES))
            yield f"{path}.image.source.base64.media_type: Input should be one of {types}"


@rule
def image_data(r: Request) -> Iterator[str]:
    """An image is one of the type that it is said to be, and at most 5 MB of base64 (gateways and
    models differ between 5 and 10)."""
    for path, image in _images(r):
        if image["source"]["type"] != "base64":
            continue
        data, said = base64_of(image) or "", image["source"]["media_type"]
        found = measures(data)
        if len(data) > _IMAGE_BYTES:
            yield (
                f"{path}.image.source.base64: image exceeds 5 MB maximum: {len(data)} bytes > "
                f"{_IMAGE_BYTES} bytes"
            )
        elif found is None:
            yield f"{path}.image.source.base64.data: Could not process image"
        elif found.media_type != said:
            yield (
                f"{path}.image.source.base64.data: The image was specified using the {said} media "
                f"type, but the image appears to be a {found.media_type} image"
            )


@rule
def image_count(r: Request) -> Iterator[str]:
    """There are at most 100 images."""
    if (count := len(_images(r))) > _MOST_IMAGES:
        yield f"messages: too many images: {count} > {_MOST_IMAGES}"


@rule
def image_sides(r: Request) -> Iterator[str]:
    """A side of an image has at most 8,000 pixels; 2,000 where there are more than 20 images."""
    images = _images(r)
    longest = _LONGEST_SIDE_OF_MANY if len(images) > _MANY_IMAGES else _LONGEST_SIDE
    for path, image in images:
        found = measures(base64_of(image) or "")
        if found is not None and max(found.width, found.height) > longest:
            many = " for many-image requests" if longest == _LONGEST_SIDE_OF_MANY else ""
            yield (
                f"{path}.image.source.base64.data: At least one of the image dimensions exceed max "
                f"allowed size{many}: {longest} pixels"
            )


# --- Cache marks -----------------------------------------------------------------------------


@rule
def cache_control_shape(r: Request) -> Iterator[str]:
    """A mark is ephemeral, with a ttl of 5m or 1h."""
    for mark in r.marks:
        control = mark.control
        if not isinstance(control, dict) or control.get("type") != "ephemeral":
            yield f"{mark.path}.type: Input tag should be 'ephemeral'"
        elif control.get("ttl", "5m") not in ("5m", "1h"):
            yield f"{mark.path}.ephemeral.ttl: Input should be '5m' or '1h'"
        elif control.keys() - {"type", "ttl"}:
            yield f"{mark.path}.ephemeral: Extra inputs are not permitted"


@rule
def cache_control_count(r: Request) -> Iterator[str]:
    """There are at most 4 marks over tools, system, messages and the top level."""
    if len(r.marks) > 4:
        yield f"A maximum of 4 blocks with cache_control may be provided. Found {len(r.marks)}."


@rule
def cache_control_place(r: Request) -> Iterator[str]:
    """Thinking and deferred tools carry no mark. (Nor does empty text, which is refused anyway.)"""
    for mark in r.marks:
        block = mark.place.block if mark.place is not None else {}
        if block.get("type") in signatures.THINKING_TYPES:
            yield f"{mark.path}: `{block['type']}` blocks may not have cache_control"
        if block.get("defer_loading"):
            yield f"{mark.path}: a tool with `defer_loading` may not have cache_control"


@rule
def cache_control_order(r: Request) -> Iterator[str]:
    """A mark of one hour does not come after one of five minutes."""
    short = False
    for mark in r.marks:
        if mark.ttl == "1h" and short:
            yield (
                f"{mark.path}: a ttl='1h' cache_control block must not come after a ttl='5m' "
                "cache_control block"
            )
        short = short or mark.ttl == "5m"


# --- Thinking --------------------------------------------------------------------------------


@rule
def thinking_config(r: Request) -> Iterator[str]:
    """thinking has a known type; a budget is at least 1024 tokens and less than max_tokens."""
    config = r.body.get("thinking")
    if config is None:
        return
    type_ = config.get("type")
    fields = {
        "adaptive": {"display"},
        "enabled": {"display", "budget_tokens"},
        "disabled": set(),
        "between_tools": set(),
    }
    if not isinstance(type_, str) or type_ not in fields:
        yield f"thinking.type: Input tag should be one of {', '.join(map(repr, fields))}"
        return
    for field in config.keys() - fields[type_] - {"type", "block_binding"}:
        yield f"thinking.{type_}.{field}: Extra inputs are not permitted"
    if config.get("display") not in (None, "summarized", "omitted"):
        yield f"thinking.{type_}.display: Input should be 'summarized' or 'omitted'"
    if type_ == "enabled":
        budget = config.get("budget_tokens")
        if not _is(budget, (int,)):
            yield "thinking.enabled.budget_tokens: Field required"
        elif budget < 1024:
            yield "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024"
        elif not r.counting and budget >= r.body["max_tokens"]:
            yield "`max_tokens` must be greater than `thinking.budget_tokens`"


@rule
def thinking_binding_beta(r: Request) -> Iterator[str]:
    """thinking.block_binding needs its beta header, and knows two behaviours."""
    binding = (r.body.get("thinking") or {}).get("block_binding")
    if binding is None:
        return
    if BINDING_BETA not in r.betas:
        yield "thinking.block_binding: Extra inputs are not permitted"
    if not isinstance(binding, dict) or binding.keys() - {"prefix_mismatch_behavior"}:
        yield "thinking.block_binding: Input should be an object with `prefix_mismatch_behavior`"
    elif binding.get("prefix_mismatch_behavior") not in (None, "error", "drop_block"):
        yield (
            "thinking.block_binding.prefix_mismatch_behavior: Input should be 'error' or "
            "'drop_block'"
        )


@rule
def thinking_genuine(r: Request) -> Iterator[str]:
    """A thinking block carries a signature that this provider made, and the text it signed."""
    for place in r.of(*signatures.THINKING_TYPES):
        fault = signatures.fault(place.block, b"")
        if fault == "forged" and place.block["type"] == "thinking":
            yield f"{place.path}: Invalid `signature` in `thinking` block"
        elif fault == "forged":
            yield f"{place.path}: Invalid `data` in `redacted_thinking` block"
        elif fault == "modified":
            yield (
                f"{place.path}: `thinking` or `redacted_thinking` blocks cannot be modified. "
                "These blocks must remain as they were in the original response."
            )


@rule
def thinking_kept(r: Request) -> Iterator[str]:
    """In the current tool loop every thinking block is sent back, in its original order."""
    if not r.memory.has_thinking:
        return
    first_places = {place.message: n for n, place in reversed(list(enumerate(r.places)))}
    for index in _tool_loop(r):
        content = r.messages[index]["content"]
        before = r.prefix.digest(len(r.head) + first_places[index])
        sent = r.memory.thinking_sent(before, call_ids_of(content))
        if sent and seals_of(content) not in sent:
            yield (
                f"messages.{index}.content: `thinking` or `redacted_thinking` blocks of the "
                "current tool loop cannot be left out or reordered. These blocks must remain as "
                "they were in the original response."
            )


def _tool_loop(r: Request) -> Iterator[int]:
    """The assistant messages since the last user message that is not made of tool results."""
    for index in range(len(r.messages) - 1, -1, -1):
        message = r.messages[index]
        content = message["content"]
        if message["role"] == "assistant" and content and isinstance(content, list):
            yield index
        elif message["role"] == "user" and (
            isinstance(content, str) or content[0]["type"] != "tool_result"
        ):
            return


@rule
def thinking_bound(r: Request) -> Iterator[str]:
    """Everything before a thinking block is as it was when the block was made, unless the request
    asks to drop such blocks."""
    if not r.drops_mismatched:
        for place in r.mismatched:
            yield (
                f"{place.path}: Invalid `signature` in `thinking` block. The block is bound to a "
                "different conversation"
            )


# --- The window ------------------------------------------------------------------------------


@rule
def context_window(r: Request) -> Iterator[str]:
    """Input and max_tokens together fit the model's window."""
    if r.counting:
        return
    tokens, window = r.prefix.tokens() + r.body["max_tokens"], r.model.max_input_tokens
    if tokens > window:
        yield (
            f"prompt is too long: {tokens} tokens > {window} maximum "
            f"({r.prefix.tokens()} of input and {r.body['max_tokens']} of max_tokens)"
        )
