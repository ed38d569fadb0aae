"""Admission: what a reply may hold, what is mended, what is refused."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from activities.providers import ModelRequest, Progress, ProviderError, ProviderReply
from activities.providers.admission import (
    MAX_NOTES,
    MAX_REPLY_BYTES,
    MAX_TEXT_BYTES,
    MAX_TOKENS,
    Admitted,
    CacheMiss,
    admit_reply,
)
from activities.providers.anthropic import AnthropicProvider
from activities.providers.anthropic_stream import MAX_BLOCKS
from activities.providers.defects import FIELD_DEPTH, Defect
from activities.providers.wire_json import read_json
from turnkeeper.entries import admit, message, result, verify
from turnkeeper.spec import (
    MAX_ARGUMENTS_BYTES,
    MAX_REPLY_ARGUMENTS_BYTES,
    AgentSpec,
    ModelSpec,
    ToolSpec,
)
from turnkeeper.testing.provider import (
    Reply,
    ScriptedProvider,
    call,
    redacted_thinking,
    reply,
    server_tool_use,
    text,
    thinking,
)
from turnkeeper.usage import Usage

LONE = "\ud800"
NO_ARGUMENTS: dict[str, Any] = {}
# Refused by admission, and yet of few enough digits for Python to show it.
HUGE = 10**4_200


def admitted(
    *blocks: Any, raw: dict[int, str] | None = None, known: tuple[str, ...] = (), **fields: Any
) -> Admitted:
    """The admitted reply of these content blocks."""
    body = {"role": "assistant", "content": list(blocks), "stop_reason": "tool_use", **fields}
    return admit_reply(ProviderReply(body, raw_inputs=raw or {}), turn=3, known_ids=known)


def contents(found: Admitted) -> list[dict[str, Any]]:
    """The content blocks of an admitted reply."""
    blocks: list[dict[str, Any]] = found.entry.value["content"]
    return blocks


def tool_use(arguments: Any = NO_ARGUMENTS, **fields: Any) -> dict[str, Any]:
    """A tool call as it stands in a whole reply."""
    return {"type": "tool_use", "id": "toolu_1", "name": "search", "input": arguments, **fields}


def nested(levels: int) -> Any:
    """Arguments with so many levels of containers."""
    value: Any = {}
    for _ in range(levels - 1):
        value = {"a": value}
    return value


def refusal(found: Admitted) -> str:
    """Why the only call of the reply is refused."""
    (why,) = found.refused_calls.values()
    return why


# --- What is kept ----------------------------------------------------------------------------


def test_a_sound_reply_is_kept_as_it_came() -> None:
    """Values, key order and unknown fields are equal, and nothing is noted."""
    blocks = [
        {"signature": "s", "type": "thinking", "thinking": "", "future": {"z": 1, "a": [None]}},
        {"type": "redacted_thinking", "data": "d"},
        {"text": "I look it up.", "type": "text", "citations": None},
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"q": "x"}},
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
        {"type": "future_block", "zeta": 1, "alpha": {"deep": [1, 2.5, True]}},
        tool_use({"zeta": 1, "alpha": 2.0, "big": 10**300}, caller={"type": "direct"}),
    ]
    found = admitted(*blocks)
    assert json.dumps(contents(found)) == json.dumps(blocks)
    assert (found.refused_calls, found.mended) == ({}, [])
    assert (found.entry.kind, found.entry.dialect) == ("reply", "anthropic-messages")


def test_facts_of_the_message_are_taken_over() -> None:
    """Id, model, stop reason and stop details come with the entry."""
    details = {"type": "refusal", "category": "cyber", "explanation": "no"}
    found = admitted(id="msg_1", model="m", stop_reason="refusal", stop_details=details)
    assert (found.message_id, found.model) == ("msg_1", "m")
    assert (found.stop_reason, found.stop_details) == ("refusal", details)


def test_two_hundred_parallel_calls_are_kept() -> None:
    """The loop answers those over its cap: admission keeps them all."""
    calls = [tool_use({"n": n}, id=f"toolu_{n}") for n in range(200)]
    assert contents(admitted(*calls)) == calls


def test_raw_arguments_take_the_place_of_the_placeholder() -> None:
    """Arguments that came in pieces are read where `input` stood, in their own key order."""
    block = {"type": "tool_use", "input": {}, "id": "toolu_1", "name": "search"}
    found = admitted(block, raw={0: '{"zeta": 1, "alpha": [2]}'})
    assert list(contents(found)[0]) == ["type", "input", "id", "name"]
    assert list(contents(found)[0]["input"]) == ["zeta", "alpha"]


# --- Blocks ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "block",
    [
        None,
        "text",
        7,
        [],
        {},
        {"type": None},
        {"type": 1, "text": "x"},
        {"type": "text"},
        {"type": "text", "text": None},
        {"type": "text", "text": ""},
        {"type": "text", "text": " \n\t"},
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": "forged"},
        {"type": "future_block", "value": math.nan},
        {"type": "future_block", "value": nested(100)},
        {"type": "future_block", "value": HUGE},
        read_json('{"type": "future_block", "a": {"k": 1, "k": 2}}'),
    ],
)
def test_blocks_that_cannot_come_back_are_dropped(block: Any) -> None:
    """What is no block, has no text, or is unknown and cannot be stored is left out, and noted."""
    found = admitted({"type": "text", "text": "kept"}, block)
    assert contents(found) == [{"type": "text", "text": "kept"}]
    assert len(found.mended) == 1
    assert found.mended[0].startswith("content[1]: dropped")


def test_lone_surrogates_become_replacement_characters() -> None:
    """In texts and in unknown blocks, keys included."""
    found = admitted({"type": "text", "text": f"a{LONE}b"}, {"type": "future", f"k{LONE}": [LONE]})
    assert contents(found) == [
        {"type": "text", "text": "a\ufffdb"},
        {"type": "future", "k\ufffd": ["\ufffd"]},
    ]
    assert len(found.mended) == 2


def test_a_field_that_cannot_be_stored_is_left_out_of_a_text_or_call() -> None:
    """The rest of the block is worth more than its citations or caller."""
    found = admitted(
        {"type": "text", "text": "x", "citations": [math.inf], "note": [LONE], f"k{LONE}": 1},
        tool_use({"q": 1}, caller=nested(100)),
    )
    assert contents(found) == [
        {"type": "text", "text": "x", "note": ["\ufffd"]},
        tool_use({"q": 1}),
    ]


def test_cache_marks_in_a_reply_are_left_out() -> None:
    """They belong to requests, which may have four of them and put on one of their own."""
    mark = {"cache_control": {"type": "ephemeral"}}
    found = admitted({"type": "text", "text": "x", **mark}, {"type": "future", **mark})
    assert contents(found) == [{"type": "text", "text": "x"}, {"type": "future"}]


@pytest.mark.parametrize(
    "block",
    [
        {"type": "thinking", "thinking": LONE, "signature": "s"},
        {"type": "thinking", "thinking": "x", "signature": "s", "n": math.nan},
        {"type": "redacted_thinking", "data": "d", "deep": nested(100)},
        read_json('{"type": "thinking", "thinking": "x", "thinking": "x", "signature": "s"}'),
        {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"n": math.nan}},
        {"type": "web_search_tool_result", "tool_use_id": "s1", "content": math.inf},
        {"type": "text", "text": "x" * (MAX_TEXT_BYTES + 1)},
    ],
)
def test_what_must_not_be_mended_costs_the_reply(block: dict[str, Any]) -> None:
    """Thinking is bound to its bytes, a provider's own call to its result."""
    with pytest.raises(ProviderError) as caught:
        admitted(block)
    assert (caught.value.kind, caught.value.code) == ("retry", "unusable_reply")


@pytest.mark.parametrize(
    "content",
    [
        None,
        "text",
        {},
        [{"type": "text", "text": "x" * 300_000}] * 4,
        [{"type": "future", "n": 1}] * (MAX_BLOCKS + 1),
        [{"type": "future", "n": "x" * (MAX_REPLY_BYTES + 1)}],
    ],
)
def test_content_that_cannot_be_stored_costs_the_reply(content: Any) -> None:
    """No list, too many bytes, too many blocks."""
    with pytest.raises(ProviderError) as caught:
        admit_reply(ProviderReply({"content": content}), turn=1, known_ids=())
    assert caught.value.code == "unusable_reply"
    assert len(str(caught.value)) < 300


def test_unreadable_input_of_an_unknown_block_drops_it() -> None:
    """Pieces of JSON can come for any block; one that others refer to costs the reply."""
    found = admitted({"type": "future", "input": {}}, raw={0: '{"cut": '})
    assert contents(found) == []
    found = admitted({"type": "future", "input": {}}, raw={0: '{"a": 1}'})
    assert contents(found) == [{"type": "future", "input": {"a": 1}}]
    with pytest.raises(ProviderError, match="refer"):
        admitted({"type": "server_tool_use", "id": "s", "input": {}}, raw={0: '{"cut": '})


def test_notes_are_bounded() -> None:
    """A reply of nothing but waste makes no long list."""
    found = admitted(*[None] * 500)
    assert len(found.mended) == MAX_NOTES + 1
    assert found.mended[-1] == f"and {500 - MAX_NOTES} more"


# --- Ids and names ---------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [None, 5, "", "a b", "x" * 65, "toolu_1\n", LONE, {"a": 1}, ["x"]])
def test_an_ill_formed_id_is_replaced(bad: Any) -> None:
    """By one of turn and index, the same at each attempt; the call itself is not refused."""
    found = admitted(tool_use(id=bad))
    assert contents(found)[0]["id"] == "call_3_0"
    assert (found.refused_calls, found.mended) == ({}, ["content[0]: id replaced"])


def test_a_missing_id_is_made() -> None:
    """A call without an id gets one, too."""
    block = tool_use()
    del block["id"]
    assert contents(admitted(block))[0]["id"] == "call_3_0"


def test_an_id_is_used_once_in_a_run() -> None:
    """The first call keeps a duplicate id; an id of an earlier turn is given to nobody."""
    found = admitted(tool_use(id="a"), tool_use(id="a"), tool_use(id="old"), known=("old",))
    assert [b["id"] for b in contents(found)] == ["a", "call_3_1", "call_3_2"]


def test_a_made_id_never_meets_a_given_one() -> None:
    """Not that of a later block, of an earlier turn, or of the provider's own call."""
    found = admitted(
        tool_use(id="!"),
        tool_use(id="call_3_0"),
        {"type": "server_tool_use", "id": "call_3_0_2", "name": "n", "input": {}},
        tool_use(id="call_3_0_2"),
        known=("call_3_0_3",),
    )
    assert [b["id"] for b in contents(found)] == [
        "call_3_0_4",
        "call_3_0",
        "call_3_0_2",
        "call_3_3",
    ]


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("web.search", "web_search"),
        ("search ", "search_"),
        ("x" * 200, "x" * 128),
        ("", "unnamed"),
        (None, "unnamed"),
        (7, "unnamed"),
        (LONE, "_"),
    ],
)
def test_an_ill_formed_name_is_replaced_and_its_call_refused(name: Any, kept: str) -> None:
    """The provider would refuse the name; what tool was meant is not guessed."""
    found = admitted(tool_use({"q": 1}, name=name))
    assert contents(found)[0]["name"] == kept
    assert contents(found)[0]["input"] == {"q": 1}
    assert refusal(found).startswith("Not run: there is no tool of this name.")


# --- Arguments -------------------------------------------------------------------------------


UNUSABLE: list[tuple[str, Defect]] = [
    ('{"a": ', Defect.NOT_JSON),
    ("{'a': 1}", Defect.NOT_JSON),
    ("\ufeff{}", Defect.NOT_JSON),
    ("[1]", Defect.NOT_OBJECT),
    ("null", Defect.NOT_OBJECT),
    ('"{}"', Defect.NOT_OBJECT),
    ('{"a": 1, "a": 1}', Defect.REPEATED),
    ('{"a": [{"b": 1, "b": 2}]}', Defect.REPEATED),
    ('{"a": NaN}', Defect.NUMBER),
    ('{"a": [-Infinity]}', Defect.NUMBER),
    ('{"a": 1e400}', Defect.NUMBER),
    ('{"a": ' + "9" * 5_000 + "}", Defect.DIGITS),
    ('{"a": -' + "9" * 5_000 + "}", Defect.DIGITS),
    ('{"a":' * (FIELD_DEPTH + 1) + "1" + "}" * (FIELD_DEPTH + 1), Defect.DEPTH),
    ('{"a":' + "[" * 4_000 + "]" * 4_000 + "}", Defect.DEPTH),
    ('{"a":' * 100_000, Defect.NOT_JSON),
    (json.dumps({"a": "x" * MAX_ARGUMENTS_BYTES}), Defect.SIZE),
]


def _name(value: Any) -> str:
    return str(value)[:20] if isinstance(value, str) else ""


@pytest.mark.parametrize(("raw", "defect"), UNUSABLE, ids=_name)
def test_unusable_arguments_are_left_out_and_the_call_refused(raw: str, defect: Defect) -> None:
    """The model is told what was wrong and what to send; its data is not repeated."""
    found = admitted(tool_use(), raw={0: raw})
    assert contents(found)[0]["input"] == {}
    assert refusal(found) == f"Not run: {defect}"
    assert len(refusal(found)) < 250


@pytest.mark.parametrize(
    ("raw", "defect"), [u for u in UNUSABLE if u[1] is not Defect.NOT_JSON], ids=_name
)
def test_unusable_arguments_of_a_whole_reply_are_treated_the_same(raw: str, defect: Defect) -> None:
    """The reply is read in a way that keeps its defects visible."""
    found = admitted(tool_use(read_json(raw)))
    assert contents(found)[0]["input"] == {}
    assert refusal(found) == f"Not run: {defect}"


def test_the_deepest_arguments_that_fit_are_kept() -> None:
    """The limit is the one the refusal names."""
    deepest = nested(FIELD_DEPTH)
    found = admitted(tool_use(deepest))
    assert contents(found)[0]["input"] == deepest
    assert found.refused_calls == {}


def test_invalid_unicode_in_arguments_is_mended_and_refused() -> None:
    """The model sees what is left of its call, and is asked for valid text."""
    found = admitted(tool_use(), raw={0: '{"q": "a\\ud800b", "\\udc00": 1}'})
    assert contents(found)[0]["input"] == {"q": "a\ufffdb", "\ufffd": 1}
    assert "invalid Unicode" in refusal(found)


def test_keys_that_would_become_equal_are_not_mended() -> None:
    """One of the two values would be lost."""
    found = admitted(tool_use(json.loads('{"\\ud800": 1, "\\ud801": 2}')))
    assert contents(found)[0]["input"] == {}
    assert refusal(found) == f"Not run: {Defect.REPEATED}"


def test_all_calls_together_have_a_limit() -> None:
    """Those that fit are kept, also after one that does not."""
    large = {"a": "x" * (MAX_REPLY_ARGUMENTS_BYTES // 2 - 2_000)}
    calls = [tool_use(large, id=f"t{n}") for n in range(3)]
    found = admitted(*calls, tool_use({"small": 1}, id="t3"))
    assert [bool(b["input"]) for b in contents(found)] == [True, True, False, True]
    assert found.refused_calls == {"t2": f"Not run: {Defect.TOTAL}"}


def test_the_worst_defect_is_the_one_that_is_told() -> None:
    """Arguments with invalid Unicode and NaN are not mended."""
    found = admitted(tool_use({"a": LONE, "b": math.nan}))
    assert contents(found)[0]["input"] == {}
    assert refusal(found) == f"Not run: {Defect.NUMBER}"


# --- The message around the blocks -----------------------------------------------------------


@pytest.mark.parametrize(
    ("given_", "kept"),
    [
        (None, None),
        ("end_turn", "end_turn"),
        ("a\nb" + LONE, "a b\ufffd"),
        (True, "<bool>"),
        (HUGE, "<int>"),
        (nested(5_000), "<dict>"),
    ],
    ids=["null", "known", "two lines", "boolean", "huge", "deep"],
)
def test_any_stop_reason_becomes_a_short_string(given_: Any, kept: str | None) -> None:
    """PARSE takes an unknown one for what it is."""
    assert admitted(stop_reason=given_).stop_reason == kept


@pytest.mark.parametrize("bad", ["x", [1], {"a": math.nan}, nested(100), {"a": "x" * 10_000}])
def test_stop_details_that_cannot_be_stored_are_left_out(bad: Any) -> None:
    """They explain; nothing depends on them."""
    assert admitted(stop_details=bad).stop_details is None


def test_usage_is_counted() -> None:
    """With what an in-band compaction cost, which is in no total."""
    usage = {
        "input_tokens": 10,
        "cache_read_input_tokens": 20,
        "cache_creation_input_tokens": 30,
        "output_tokens": 40,
        "iterations": [
            {"type": "compaction", "input_tokens": 1, "output_tokens": 4},
            {"type": "message", "input_tokens": 10, "output_tokens": 40},
        ],
    }
    assert admitted(usage=usage).usage == Usage(
        input_tokens=11, cache_read_tokens=20, cache_write_tokens=30, output_tokens=44
    )


@pytest.mark.parametrize(
    ("count", "kept"),
    [
        ("12", 0),
        (None, 0),
        (True, 0),
        (-5, 0),
        (2.0, 2),
        (math.nan, 0),
        (math.inf, MAX_TOKENS),
        (HUGE, MAX_TOKENS),
        ([1], 0),
    ],
    ids=["string", "null", "true", "negative", "float", "nan", "infinity", "huge", "list"],
)
def test_hostile_counts_of_tokens_do_no_harm(count: Any, kept: int) -> None:
    """The budget is charged with what can be believed."""
    assert admitted(usage={"output_tokens": count}).usage.output_tokens == kept
    assert admitted(usage=count).usage == Usage()


@pytest.mark.parametrize(
    ("told", "kept"),
    [
        (None, None),
        ({"cache_miss_reason": None}, None),
        ({"cache_miss_reason": {"type": None}}, None),
        ({"cache_miss_reason": [HUGE]}, None),
        ("tools_changed", None),
        ({"cache_miss_reason": {"type": "unavailable"}}, CacheMiss("unavailable", 0)),
        (
            {"cache_miss_reason": {"type": "a\nb", "cache_missed_input_tokens": HUGE}},
            CacheMiss("a b", MAX_TOKENS),
        ),
    ],
    ids=["null", "pending", "no type", "list", "string", "known", "odd"],
)
def test_why_the_cache_missed_is_kept_if_it_is_told(told: Any, kept: CacheMiss | None) -> None:
    """For the log; nothing depends on it."""
    assert admitted(diagnostics=told).cache_miss == kept


# --- Properties ------------------------------------------------------------------------------

_strings = st.text(st.characters(), max_size=12) | st.sampled_from(
    ["", " ", LONE, "toolu_1", "a b"]
)
_scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | _strings
    | st.sampled_from([HUGE, "x" * 3_000])
)
_json = st.recursive(
    _scalars,
    lambda children: (
        st.lists(children, max_size=4)
        | st.dictionaries(_strings, children, max_size=4)
        | children.map(lambda child: {"a": child, "deep": nested(70)})
    ),
    max_leaves=12,
)
_types = st.sampled_from(["text", "tool_use", "thinking", "server_tool_use", "tool_result", "new"])
_blocks = _json | st.fixed_dictionaries(
    {"type": _types | _json},
    optional={
        "id": _strings | _json,
        "name": _strings | _json,
        "input": _json,
        "text": _strings | _json,
        "thinking": _strings,
        "signature": _strings,
        "tool_use_id": _strings,
        "extra": _json,
    },
)
_messages = st.fixed_dictionaries(
    {"content": st.lists(_blocks, max_size=6) | _json},
    optional={
        "id": _json,
        "model": _json,
        "stop_reason": _json,
        "stop_details": _json,
        "usage": _json | st.dictionaries(st.just("iterations"), st.lists(_json, max_size=3)),
    },
)
_raws = st.dictionaries(st.integers(0, 5), st.text(max_size=10) | _json.map(json.dumps), max_size=3)


@given(_messages, _raws, st.frozensets(_strings, max_size=3))
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_admission_is_total(
    body: dict[str, Any], raw: dict[int, str], known: frozenset[str]
) -> None:
    """Whatever the wire gives is stored, or refused as unusable; what is stored is sound."""
    try:
        found = admit_reply(ProviderReply(body, raw_inputs=raw), turn=2, known_ids=known)
    except ProviderError as error:
        if (error.kind, error.code) != ("retry", "unusable_reply"):
            raise
        return
    assert verify(found.entry)
    assert admit("reply", found.entry.value, dialect="anthropic-messages") == found.entry
    calls = [b for b in contents(found) if b["type"] == "tool_use"]
    ids = [b["id"] for b in calls]
    assert len(set(ids)) == len(ids)
    assert not known & set(ids)
    assert found.refused_calls.keys() <= set(ids)
    assert all(isinstance(b["input"], dict) for b in calls)
    json.dumps([found.stop_details, found.stop_reason, found.mended], allow_nan=False).encode()
    again = admit_reply(ProviderReply(body, raw_inputs=raw), turn=2, known_ids=known)
    assert again == found


class Stage:
    """A strict provider that says what a test puts on, and the provider under test beside it."""

    def __init__(self, server: ScriptedProvider, client: AnthropicProvider) -> None:
        self.server = server
        self.client = client
        self.reply: Reply = text("Nothing yet.")

    spec = AgentSpec(
        name="a",
        model=ModelSpec(name="claude-sonnet-5-5"),
        instructions="Answer.",
        tools=(ToolSpec(name="search", description="Find.", input_schema={"type": "object"}),),
    )

    async def ask(self, *entries: Any, drop_thinking: bool = False, stream: bool) -> ProviderReply:
        """One request with these entries."""
        asked = ModelRequest(self.spec, entries, 500, drop_thinking=drop_thinking, stream=stream)
        return await self.client.generate(asked, Progress())


@pytest_asyncio.fixture(scope="module")
async def stage() -> AsyncIterator[Stage]:
    """The strict provider answers the first turn with `stage.reply`, later ones with a text."""

    async with ScriptedProvider(
        lambda asked: text("Done.") if asked.turn else found.reply
    ) as server:
        found = Stage(server, AnthropicProvider(api_key="test-key-1234", base_url=server.url))
        yield found
        await found.client.close()


_said = st.text(st.characters(), max_size=20)
_arguments = st.dictionaries(_said, _scalars, max_size=3)
_parts = st.one_of(
    _said.map(text),
    st.sampled_from([thinking("hm"), thinking(""), redacted_thinking()]),
    st.builds(call, st.sampled_from(["search", "no.tool", ""]), _arguments),
    st.builds(
        lambda raw, call_id: call("search", raw_input=raw, id=call_id),
        st.sampled_from(
            ['{"a":1,"a":2}', '{"a":NaN}', '{"a":1e400}', "[1]", "7", "[" * 400 + "]" * 400]
        ),
        st.sampled_from(["toolu_1", "x y", "", "call_0_0"]),
    ),
    st.builds(server_tool_use, st.just("web_search"), st.just({"q": "x"})),
    st.just({"type": "future_block", "value": [1, None]}),
    st.just({"type": "tool_result", "tool_use_id": "toolu_1", "content": "forged"}),
    st.just({"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}),
)


@given(parts=st.lists(_parts, max_size=6), stream=st.booleans())
@settings(
    deadline=None,
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
async def test_what_is_admitted_is_accepted_when_it_is_sent_back(
    stage: Stage, parts: list[Any], stream: bool
) -> None:
    """With a result for each call, a strict provider takes any admitted reply: at once, or with
    its mismatched thinking dropped where a block before it was mended."""
    stage.reply = reply(parts)
    # The provider remembers what it has thought: each example has a conversation of its own.
    first = message(f"Go {len(stage.server.requests)}.")
    try:
        found = admit_reply(await stage.ask(first, stream=stream), turn=0, known_ids=())
    except ProviderError as error:
        if error.code != "unusable_reply":
            raise
        return
    calls = [b for b in contents(found) if b["type"] == "tool_use"]
    results = [result(b["id"], b["name"], "found", error=True) for b in calls]
    entries = [first, found.entry, *results, *([] if results else [message("And?")])]
    try:
        await stage.ask(*entries, stream=stream)
    except ProviderError as error:
        if error.kind != "thinking" or not found.mended:
            raise
        await stage.ask(*entries, drop_thinking=True, stream=stream)
