"""Cache marks: where they stand, that the API takes them, and that they find what was cached."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from typing import Any

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from activities.providers import ModelRequest
from activities.providers.anthropic_cache import LOOK_BACK
from activities.providers.anthropic_request import build_request
from tests.prose import prose
from turnkeeper.entries import Entry, admit, message, result
from turnkeeper.spec import AgentSpec, ModelSpec, ToolSpec
from turnkeeper.testing import ScriptedProvider, text
from turnkeeper.testing.provider.cache import marks_of
from turnkeeper.testing.provider.prefix import head_places, message_places

TOOL = ToolSpec(name="page", description="Read.", input_schema={"type": "object"})
HOUR = {"type": "ephemeral", "ttl": "1h"}


def agent(
    instructions: str = "Be brief.", tools: Sequence[ToolSpec] = (TOOL,), **model: Any
) -> AgentSpec:
    """An agent with this model spec."""
    spec = ModelSpec(name="m", **model)
    return AgentSpec(name="a", model=spec, instructions=instructions, tools=tuple(tools))


def body_of(entries: Sequence[Entry], spec: AgentSpec | None = None) -> dict[str, Any]:
    """The request made of these entries."""
    return build_request(ModelRequest(spec or agent(), list(entries), 1_000, stream=False))


def said(*blocks: dict[str, Any]) -> Entry:
    """A reply with these content blocks."""
    return admit("reply", {"role": "assistant", "content": list(blocks)}, dialect=DIALECT)


DIALECT = "anthropic-messages"


def turn(number: int, calls: int, *, size: int = 300) -> list[Entry]:
    """A reply with parallel calls, and their results."""
    ids = [f"t{number}_{index}" for index in range(calls)]
    use = [{"type": "tool_use", "id": i, "name": "page", "input": {}} for i in ids]
    reply = said({"type": "text", "text": "I look."}, *use)
    return [reply, *(result(i, "page", prose(i, size)) for i in ids)]


def marked(body: dict[str, Any]) -> list[str]:
    """The paths of the blocks that carry a mark, in order."""
    places = [*head_places(body), *message_places(body["messages"])]
    return [mark.path.removesuffix(".cache_control") for mark in marks_of(body, places)]


# --- where they stand ----------------------------------------------------------------------------


def test_head_previous_end_and_end_are_marked() -> None:
    """The system prompt, where the last request ended, and where this one does."""
    entries = [message("Hi"), *turn(1, 2), *turn(2, 3)]
    assert marked(body_of(entries)) == ["system.0", "messages.2.content.1", "messages.4.content.2"]


def test_the_last_tool_is_the_head_without_instructions() -> None:
    """And without tools, too, there is no head."""
    first = [message("Hi")]
    two = agent("", [TOOL, TOOL.model_copy(update={"name": "other"})])
    assert marked(body_of(first, two)) == ["tools.1", "messages.0.content.0"]
    assert marked(body_of(first, agent("", []))) == ["messages.0.content.0"]


def test_a_turn_of_many_calls_is_marked_in_the_middle() -> None:
    """If it has more blocks than the look-back; with that there are four marks."""
    entries = [message("Hi"), *turn(1, 1), *turn(2, 32)]
    last, middle, end = marked(body_of(entries))[1:]
    assert (last, middle, end) == (
        "messages.2.content.0",
        "messages.4.content.15",
        "messages.4.content.31",
    )
    few = [message("Hi"), *turn(1, 1), *turn(2, (LOOK_BACK - 1) // 2)]
    assert len(marked(body_of(few))) == 3


def test_thinking_and_unknown_blocks_carry_no_mark() -> None:
    """A paused reply is sent back as the last message; its last text is marked, or nothing."""
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    paused = said({"type": "text", "text": "Wait."}, thought, {"type": "future"})
    assert marked(body_of([message("Hi"), paused]))[1:] == [
        "messages.0.content.0",
        "messages.1.content.0",
    ]
    assert marked(body_of([message("Hi"), said(thought)]))[1:] == ["messages.0.content.0"]


def test_marks_are_never_stored() -> None:
    """What was said is the same before and after; a marked block is a copy."""
    entries = [message("Hi"), *turn(1, 32), said({"type": "text", "text": "Wait."})]
    before = copy.deepcopy(entries)
    assert len(marked(body_of(entries))) == 3
    assert len(marked(body_of(entries[:-1]))) == 4
    assert entries == before


def test_an_automatic_mark_of_the_options_counts() -> None:
    """It stands at the end in place of ours, and gives all of them its time to live."""
    entries = [message("Hi"), *turn(1, 1), *turn(2, 32)]
    body = body_of(entries, agent(options={"cache_control": HOUR}))
    assert len(marked(body)) == 4
    assert body["cache_control"] == HOUR
    assert json.dumps(body).count('"ttl": "1h"') == 4


def test_an_hour_is_asked_for_by_the_spec() -> None:
    """On all marks: one of an hour must not come after one of five minutes."""
    entries = [message("Hi"), *turn(1, 1)]
    assert json.dumps(body_of(entries, agent(cache_ttl="1h"))).count('"ttl": "1h"') == 3
    assert '"ttl"' not in json.dumps(body_of(entries))


# --- that the prefix stays -----------------------------------------------------------------------


def unmarked_blocks(body: dict[str, Any]) -> list[str]:
    """All blocks in order as they are sent, without their marks."""
    places = [*head_places(body), *message_places(body["messages"])]
    return [
        json.dumps([p.role, {k: v for k, v in p.block.items() if k != "cache_control"}])
        for p in places
    ]


TURNS = st.lists(st.tuples(st.integers(0, 32), st.booleans(), st.booleans()), max_size=8)


@settings(deadline=None)
@given(TURNS)
def test_each_request_goes_on_where_the_last_one_ended(shape: list[tuple[int, bool, bool]]) -> None:
    """Byte for byte, whatever was said; also out of a store: entries go through JSON on the way."""
    entries, earlier = [message("Hi")], unmarked_blocks(body_of([message("Hi")]))
    for number, (calls, thinks, hurried) in enumerate(shape):
        thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
        replied, *results = turn(number, calls, size=20)
        content = [*([thought] if thinks else []), *replied.value["content"]]
        entries += [said(*content), *results, *([message("Go on.")] if hurried else [])]
        body = body_of([Entry.model_validate_json(e.model_dump_json()) for e in entries])
        blocks = unmarked_blocks(body)
        assert blocks == unmarked_blocks(body_of(entries))
        assert blocks[: len(earlier)] == earlier
        assert len(blocks) > len(earlier)
        assert len(marked(body)) <= 4
        earlier = blocks


# --- that they find what was cached --------------------------------------------------------------


class Api:
    """The strict provider with a clock of its own, and what it read from its cache."""

    def __init__(self) -> None:
        self.now = 0.0
        self.provider = ScriptedProvider(lambda _: text("ok"), clock=lambda: self.now)

    def read(self, body: dict[str, Any]) -> int:
        """Tokens that were read from the cache for this request, which breaks no rule."""
        answer = httpx2.post(
            f"{self.provider.url}/v1/messages",
            json=body,
            headers={"x-api-key": "any", "anthropic-version": "2026-10-21"},
        )
        assert answer.status_code == 200, answer.text
        return int(answer.json()["usage"]["cache_read_input_tokens"])

    @property
    def size(self) -> int:
        """Tokens of the last request."""
        return self.provider.requests[-1].tokens or 0


@pytest.fixture
def api() -> Iterator[Api]:
    """A running one."""
    made = Api()
    with made.provider:
        yield made


@pytest.mark.parametrize("calls", [1, 10, 32])
def test_everything_of_the_previous_request_is_read(api: Api, calls: int) -> None:
    """However many calls lie between: 32 are 65 blocks."""
    entries = [message(prose("question", 6_000))]
    api.read(body_of(entries))
    for number in range(6):
        entries += turn(number, calls)
        before = api.size
        assert api.read(body_of(entries)) == before


def test_a_turn_run_again_reads_up_to_its_middle(api: Api) -> None:
    """After a reset the calls of a turn have other results from some call on: those before the
    middle are not read anew."""
    entries = [message(prose("question", 6_000)), *turn(1, 32)]
    api.read(body_of(entries[:1]))
    first = api.size
    api.read(body_of(entries))
    other = [*entries[:-1], result("t1_31", "page", "another result")]
    calls, half_the_results = 32 * 15, 16 * 300 // 4
    assert api.read(body_of(other)) > first + calls + half_the_results


def test_another_run_of_the_agent_reads_the_head(api: Api) -> None:
    """System prompt and tools are shared."""
    spec = agent(prose("instructions", 8_000))
    api.read(body_of([message("One.")], spec))
    assert api.read(body_of([message("Two.")], spec)) > 1_900


@pytest.mark.parametrize(("ttl", "minutes", "is_read"), [("5m", 6, False), ("1h", 59, True)])
def test_the_cache_lives_as_long_as_the_spec_says(
    api: Api, ttl: str, minutes: int, is_read: bool
) -> None:
    """A run that waits for long asks for an hour."""
    spec, entries = agent(cache_ttl=ttl), [message(prose("question", 6_000))]
    api.read(body_of(entries, spec))
    before = api.size
    api.now += minutes * 60
    assert api.read(body_of([*entries, *turn(1, 1)], spec)) == (before if is_read else 0)
