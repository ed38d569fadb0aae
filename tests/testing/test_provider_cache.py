"""Prompt-cache accounting: marks, look-back, minimum, time to live."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from turnkeeper.testing import ScriptedProvider, status, text
from turnkeeper.testing.provider.cache import LOOK_BACK, Mark, PromptCache
from turnkeeper.testing.provider.prefix import Place, Prefix

Json = dict[str, Any]

MARK = {"type": "ephemeral"}
HOUR = {"type": "ephemeral", "ttl": "1h"}
LONG = "word " * 1000  # 5,000 bytes: above the minimum of 1,024 tokens


class Meter:
    """A provider with a clock that the test turns, and the usage of requests to it."""

    def __init__(self, **options: Any) -> None:
        self.now = 0.0
        self.provider = ScriptedProvider(lambda _: text("ok"), clock=lambda: self.now, **options)

    def usage(self, *messages: Json, **fields: Any) -> tuple[int, int, int]:
        """Uncached, written and read input tokens of a request."""
        usage = self.whole_usage(*messages, **fields)
        return (
            usage["input_tokens"],
            usage["cache_creation_input_tokens"],
            usage["cache_read_input_tokens"],
        )

    def whole_usage(self, *messages: Json, **fields: Any) -> Json:
        """The usage of a request."""
        body = {"model": "m", "max_tokens": 10, "messages": list(messages), **fields}
        headers = {"x-api-key": "any", "anthropic-version": "2026-10-21"}
        answer = httpx2.post(f"{self.provider.url}/v1/messages", json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        usage: Json = answer.json()["usage"]
        return usage


@pytest.fixture
def meter() -> Iterator[Meter]:
    """A running meter."""
    meter = Meter()
    with meter.provider:
        yield meter


def user(*blocks: Json) -> Json:
    """A message of the user."""
    return {"role": "user", "content": list(blocks)}


def say(value: str = "x", **fields: Any) -> Json:
    """A text block."""
    return {"type": "text", "text": value, **fields}


def test_size_without_marks(meter: Meter) -> None:
    """Nothing is cached without a mark, and the estimate is a quarter of the bytes of the blocks'
    compact JSON, each with its role."""
    block = say(LONG)
    size = len(json.dumps(["user", block], separators=(",", ":"))) - 1
    for _ in range(2):
        assert meter.usage(user(block)) == (-(-size // 4), 0, 0)


def test_write_then_read(meter: Meter) -> None:
    """The prefix up to a mark is written once and then read; what follows it is not cached."""
    head = say(LONG, cache_control=MARK)
    uncached, written, read = meter.usage(user(head, say("one")))
    assert (uncached > 0, written > 1024, read) == (True, True, 0)
    assert meter.usage(user(head, say("two"))) == (uncached, 0, written)


def test_sum_is_the_size(meter: Meter) -> None:
    """However the input is divided, its three parts add up to the whole."""
    plain = sum(meter.usage(user(say(LONG), say("a"), say(LONG))))
    marked = user(say(LONG, cache_control=MARK), say("a", cache_control=MARK), say(LONG))
    for _ in range(2):
        assert sum(meter.usage(marked)) == plain


def test_order_of_the_prefix(meter: Meter) -> None:
    """The prefix is tools, then system, then messages: a change of the system prompt keeps the
    tools cached, and a change of the tools loses everything."""
    tool = {"name": "t", "description": LONG, "input_schema": {"type": "object"}}

    def usage(description: str, system: str) -> tuple[int, int, int]:
        return meter.usage(
            user(say("x")),
            tools=[{**tool, "description": description, "cache_control": MARK}],
            system=[say(system, cache_control=MARK)],
        )

    _, first, _ = usage(LONG, "one " * 2000)
    _, again, tools_read = usage(LONG, "two " * 2000)
    assert 0 < tools_read < first
    assert again == first - tools_read
    _, all_again, read = usage("other " + LONG, "two " * 2000)
    assert (read, all_again > first) == (0, True)


def test_automatic_mark(meter: Meter) -> None:
    """The top-level mark caches up to the last block, and moves along with the conversation."""
    first = user(say(LONG))
    second = {"role": "assistant", "content": "ok"}
    _, written, _ = meter.usage(first, cache_control=MARK)
    uncached, more, read = meter.usage(first, second, user(say(LONG)), cache_control=MARK)
    assert (uncached, read) == (0, written)
    assert more > 1000


@pytest.mark.parametrize(("between", "is_read"), [(LOOK_BACK - 1, True), (LOOK_BACK, False)])
def test_look_back(meter: Meter, between: int, is_read: bool) -> None:
    """A mark finds a cached prefix at itself or up to 19 blocks before, and no further."""
    head = say(LONG)
    _, written, _ = meter.usage(user({**head, "cache_control": MARK}))
    tail = [say(f"{n}") for n in range(between)]
    tail[-1]["cache_control"] = MARK
    _, _, read = meter.usage(user(head, *tail))
    assert read == (written if is_read else 0)


def test_second_mark_bridges_the_gap(meter: Meter) -> None:
    """Each mark looks back on its own, so one in between finds what the last cannot."""
    head = say(LONG)
    _, written, _ = meter.usage(user({**head, "cache_control": MARK}))
    tail = [say(f"{n}") for n in range(LOOK_BACK + 10)]
    tail[12]["cache_control"] = tail[-1]["cache_control"] = MARK
    assert meter.usage(user(head, *tail))[2] == written


def test_minimum(meter: Meter) -> None:
    """A prefix below the model's minimum is silently not cached."""
    short = user(say("w" * 3000, cache_control=MARK))
    for _ in range(2):
        uncached, written, read = meter.usage(short)
        assert (uncached > 700, written, read) == (True, 0, 0)
    low = Meter(models={"m": {"min_cache_tokens": 512}})
    with low.provider:
        assert low.usage(short)[1] > 700


@pytest.mark.parametrize(("mark", "seconds"), [(MARK, 300), (HOUR, 3600)])
def test_time_to_live(meter: Meter, mark: Json, seconds: int) -> None:
    """A prefix lives for five minutes or an hour, and reading it extends its life by as much."""
    message = user(say(LONG, cache_control=mark))
    _, written, _ = meter.usage(message)
    for _ in range(2):
        meter.now += seconds - 1
        assert meter.usage(message) == (0, 0, written)
    meter.now += seconds
    assert meter.usage(message) == (0, written, 0)


def test_usage_by_time_to_live(meter: Meter) -> None:
    """What is written is told apart by its time to live."""
    usage = meter.whole_usage(
        user(say(LONG, cache_control=MARK)), system=[say(LONG, cache_control=HOUR)]
    )
    parts = usage["cache_creation"]
    assert parts["ephemeral_1h_input_tokens"] > 1000
    assert parts["ephemeral_5m_input_tokens"] > 1000
    assert sum(parts.values()) == usage["cache_creation_input_tokens"]
    assert usage["service_tier"] == "standard"


def test_other_model_and_tool_choice(meter: Meter) -> None:
    """The cache is the model's own; another tool_choice loses the messages but not the tools."""
    tools = [
        {
            "name": "t",
            "input_schema": {"type": "object"},
            "description": LONG,
            "cache_control": MARK,
        }
    ]
    message = user(say(LONG, cache_control=MARK))
    _, written, _ = meter.usage(message, tools=tools)
    assert meter.usage(message, tools=tools) == (0, 0, written)
    _, again, read = meter.usage(message, tools=tools, tool_choice={"type": "none"})
    assert 0 < read < written
    assert again == written - read
    assert meter.usage(message, tools=tools, model="other") == (0, written, 0)


def test_other_thinking_loses_the_messages(meter: Meter) -> None:
    """As with tool_choice: system and tools stay cached."""
    system, message = [say(LONG, cache_control=MARK)], user(say(LONG, cache_control=MARK))
    _, written, _ = meter.usage(message, system=system)
    _, again, read = meter.usage(message, system=system, thinking={"type": "adaptive"})
    assert 1_000 < read < written - 1_000
    assert again == written - read


def test_the_longer_life_is_kept(meter: Meter) -> None:
    """A prefix that was written for an hour lives an hour, also when it is marked for less."""
    meter.usage(user(say(LONG, cache_control=HOUR)))
    _, _, read = meter.usage(user(say(LONG, cache_control=MARK)))
    meter.now += 3_000
    assert meter.usage(user(say(LONG, cache_control=MARK)))[2] == read > 1_000


def test_the_least_recently_used_goes_first() -> None:
    """The cache of a process is bounded."""
    cache = PromptCache(lambda: 0.0, capacity=2)
    prefix = Prefix([Place("user", 0, 0, say(LONG))], [1])

    def read(name: str) -> bool:
        mark = Mark(1, None, "", MARK)
        return cache.account([mark], prefix, lambda _: (name, b"", b""), 1_024).read > 0

    assert [read(name) for name in ("a", "b", "a", "c", "a", "b")] == [
        *(False, False, True),
        *(False, True, False),
    ]


def test_failed_request_writes_nothing() -> None:
    """A request that was answered with an error has cached nothing."""
    meter = Meter()
    meter.provider = ScriptedProvider([[status(529), text("ok")]])
    with meter.provider:
        message = user(say(LONG, cache_control=MARK))
        with pytest.raises(AssertionError, match="overloaded_error"):
            meter.usage(message)
        assert meter.usage(message)[2] == 0
