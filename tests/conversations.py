"""Random conversations: what a model, a gateway and tools may do, from a seed.

The same seed gives the same conversation, with and without crashes, restarts and continue-as-new.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from typing import Any

from tests.prose import prose
from turnkeeper import ToolFailed, tool
from turnkeeper.state import EMPTY_REPLY
from turnkeeper.testing import (
    AUTO,
    Exchange,
    Reply,
    call,
    call_id,
    redacted_thinking,
    reply,
    server_tool_use,
    text,
    thinking,
)

OUTPUT_TOKENS = 8_192
"""The agents' `max_output_tokens`: a request with more asks for a grown reply."""


@tool(effect="read")
def page(number: int) -> str:
    """Read a page of a report."""
    return prose(number, 200)


@tool(effect="read")
def broken(number: int) -> str:
    """Fail in words for the model."""
    raise ToolFailed(f"page {number} is missing")


@tool(effect="idempotent")
def effect(number: int) -> str:
    """Change something."""
    if number % 7 == 0:
        raise ToolFailed("not today")
    return f"done {number}"


TOOLS = (page, broken, effect)

_MISHAPS = ("grow", "cut", "empty", "blank", "again", "pause")
_CALLS = ("page", "page", "broken", "broken", "effect", "effect", "odd")


def conversation(seed: object, turns: int) -> Any:
    """A script of `turns` turns with calls, then the answer."""

    def script(x: Exchange) -> Reply:
        chosen = random.Random(f"{seed}/{x.turn}")
        if x.turn >= turns:
            return reply([*_thoughts(chosen), text(f"The end of {seed}.")])
        mishap = chosen.choice(_MISHAPS) if chosen.random() < 0.35 else ""
        if mishap == "grow" and x.body["max_tokens"] <= OUTPUT_TOKENS:
            return reply(_turn(chosen, x), stop_reason="max_tokens")
        if mishap == "cut":
            return reply(_turn(chosen, x), stop_reason="max_tokens")
        if mishap in ("empty", "blank") and not _nudged(x.body):
            return reply([] if mishap == "empty" else [*_thoughts(chosen), text("\n")])
        if mishap == "again" and x.repeat == 0:
            return reply([*_thoughts(chosen), text("I look.")], stop_reason="tool_use")
        if mishap == "pause":
            used = server_tool_use("web_search", {"query": "x"}, id=f"srvtoolu_{x.turn}")
            return reply([*_thoughts(chosen), text("Wait."), used], stop_reason="pause_turn")
        # Some hosts report `end_turn` beside calls.
        return reply(_turn(chosen, x), stop_reason=chosen.choice((AUTO,) * 19 + ("end_turn",)))

    return script


def _nudged(body: dict[str, Any]) -> bool:
    last = body["messages"][-1]
    return last["role"] == "user" and any(b.get("text") == EMPTY_REPLY for b in last["content"])


def _turn(chosen: random.Random, x: Exchange) -> list[Any]:
    """The blocks of a reply with at least one call."""
    # Thinking stands first: what is mended before it would break its binding to the conversation.
    parts = [*_thoughts(chosen)]
    if chosen.random() < 0.3:
        parts.append(_unknown(chosen))
        parts += _thoughts(chosen)
    if chosen.random() < 0.5:
        parts.append(text(prose(chosen.random(), 80)))
    if chosen.random() < 0.1:
        parts.append(text(""))
    for index in range(chosen.choice((1, 1, 2, 3, 4))):
        parts.append(_call(chosen, x, index))
    return parts


def _thoughts(chosen: random.Random) -> Iterable[Any]:
    if chosen.random() < 0.4:
        yield thinking(prose(chosen.random(), 60))
    if chosen.random() < 0.1:
        yield redacted_thinking()


def _unknown(chosen: random.Random) -> dict[str, Any]:
    nested: dict[str, Any] = {"z": None, "a": [1, 2.5, {"deep": True}], "é": "ü"}
    return {"type": f"future_{chosen.randint(1, 3)}", "payload": nested, "note": None}


def _call(chosen: random.Random, x: Exchange, index: int) -> Reply:
    name = chosen.choice(_CALLS)
    number = chosen.randint(1, 99)
    if name != "odd":
        return call(name, {"number": number})
    return chosen.choice(
        (
            call("nope", {"number": number}),
            call("no such.tool", {}),
            call("page", {"number": "many"}),
            call("page", {"number": number, "more": None}),
            call("page", raw_input='{"number": 1'),
            call("page", raw_input='{"number": 1, "number": 2}'),
            call("page", [number]),
            # Ids that the conversation has had already, and one that is none.
            call("effect", {"number": number}, id=call_id(max(x.turn - 1, 0), 0)),
            call("page", {"number": number}, id=call_id(x.turn, 0)),
            call("page", {"number": number}, id="no id"),
        )
    )


def features(bodies: Iterable[dict[str, Any]]) -> Counter[str]:
    """How many requests bring each feature in what is new in them."""
    found: Counter[str] = Counter()
    for body in bodies:
        found["requests"] += 1
        messages = body["messages"]
        answers = messages[-1]["content"] if messages[-1]["role"] == "user" else []
        said: list[Any] = next(
            (m["content"] for m in reversed(messages) if m["role"] == "assistant"), []
        )
        types = [b["type"] for b in said]
        found["parallel calls"] += types.count("tool_use") > 1
        found["tool errors"] += any(b.get("is_error") for b in answers)
        found["thinking"] += "thinking" in types
        found["redacted thinking"] += "redacted_thinking" in types
        found["unknown blocks"] += any(t.startswith("future_") for t in types)
        found["text beside calls"] += "text" in types and "tool_use" in types
        found["grown"] += body["max_tokens"] > OUTPUT_TOKENS
        found["paused"] += messages[-1]["role"] == "assistant"
        found["nudged"] += _nudged(body)
    return found
