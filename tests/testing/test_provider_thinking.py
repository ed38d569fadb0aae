"""Thinking blocks are bound to the conversation they were made in, as on current models."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from turnkeeper.testing import (
    Exchange,
    Reply,
    Script,
    ScriptedProvider,
    call,
    redacted_thinking,
    reply,
    text,
    thinking,
)
from turnkeeper.testing.provider.rules import BINDING_BETA

Json = dict[str, Any]

HEADERS = {"x-api-key": "any", "anthropic-version": "2026-10-21"}
BETA = {"anthropic-beta": f"other-2026-01-01,{BINDING_BETA}"}
DROP = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}


def think_and_call(exchange: Exchange) -> Reply:
    """Thinks, says something, calls a tool; after two results it answers."""
    if exchange.turn == 2:
        return reply([thinking("Enough."), text("Done.")])
    return reply([thinking("First."), redacted_thinking(), text("I search."), call("search")])


class Conversation:
    """A conversation with a provider, and what it answers to its requests."""

    def __init__(self, url: str) -> None:
        self._http = httpx2.Client(base_url=url, headers=HEADERS)
        self.body: Json = {
            "model": "m",
            "max_tokens": 100,
            "system": "You are careful.",
            "tools": [{"name": "search", "input_schema": {"type": "object"}}],
            "messages": [{"role": "user", "content": "Look it up."}],
        }

    def post(self, body: Json, **headers: str) -> httpx2.Response:
        """Send a request."""
        return self._http.post("/v1/messages", json=body, headers=headers)

    def turn(self, body: Json | None = None) -> Json:
        """Send the conversation, append the reply and results for its calls; the reply."""
        answer = self.post(self.body if body is None else body)
        assert answer.status_code == 200, answer.text
        message: Json = answer.json()
        self.body["messages"].append({"role": "assistant", "content": message["content"]})
        results = [
            {"type": "tool_result", "tool_use_id": block["id"], "content": "42"}
            for block in message["content"]
            if block["type"] == "tool_use"
        ]
        self.body["messages"].append({"role": "user", "content": results or "And then?"})
        return message

    def refusal(self, change: Callable[[Json], Any], **headers: str) -> str:
        """The complaint about the conversation after a change to it."""
        body = copy.deepcopy(self.body)
        change(body)
        answer = self.post(body, **headers)
        assert answer.status_code == 400, answer.text
        message: str = answer.json()["error"]["message"]
        return message


@pytest.fixture
def provider() -> Iterator[ScriptedProvider]:
    """A provider that thinks."""
    with ScriptedProvider(think_and_call) as provider:
        yield provider


@pytest.fixture
def conversation(provider: ScriptedProvider) -> Conversation:
    """A conversation in the middle of a tool loop of two calls."""
    conversation = Conversation(provider.url)
    conversation.turn()
    conversation.turn()
    return conversation


def test_unchanged_conversation(conversation: Conversation, provider: ScriptedProvider) -> None:
    """A conversation sent back as it was received goes on, through the loop and beyond."""
    for _ in range(3):
        conversation.turn()
    assert not provider.rejections


def set_(path: str, value: Any) -> Callable[[Json], None]:
    """A change that sets a value, at a path such as `messages.0.content`."""

    def change(body: Json) -> None:
        *parents, last = [int(step) if step.isdigit() else step for step in path.split(".")]
        target: Any = body
        for step in parents:
            target = target[step]
        target[last] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        set_("system", "You are careful. Today is Monday."),
        set_("tools.0.description", "Searches."),
        set_("messages.0.content", "Look that up."),
        set_("messages.2.content.0.content", "43"),
        set_("messages.1.content.2.text", "I look."),
        set_("messages.1.content.3.input", {"q": 1}),
        lambda body: body["tools"].append({"name": "x", "input_schema": {"type": "object"}}),
        lambda body: body["messages"].insert(0, {"role": "user", "content": "Hello."}),
    ],
)
def test_changed_prefix(conversation: Conversation, change: Callable[[Json], None]) -> None:
    """Whatever is changed before a thinking block, the block is refused, on every request."""
    for _ in range(2):
        message = conversation.refusal(change)
        assert "Invalid `signature` in `thinking` block" in message
        assert "bound to a different conversation" in message


def test_order_of_arguments(provider: ScriptedProvider) -> None:
    """A tool's arguments with their keys in another order are a change."""
    script = [
        reply([call("search", {"zeta": 1, "alpha": 2})]),
        *[reply([thinking("x"), call("search")])] * 2,
    ]
    with ScriptedProvider(script) as ordered:
        conversation = Conversation(ordered.url)
        conversation.turn()
        conversation.turn()
        change = set_("messages.1.content.0.input", {"alpha": 2, "zeta": 1})
        assert "different conversation" in conversation.refusal(change)
        conversation.turn()


@pytest.mark.parametrize(
    "change",
    [
        set_("cache_control", {"type": "ephemeral"}),
        set_("messages.2.content.0.cache_control", {"type": "ephemeral"}),
        set_("system", [{"type": "text", "text": "You are careful."}]),
        set_("messages.0.content", [{"text": "Look it up.", "type": "text"}]),
        set_("max_tokens", 99),
        set_("tool_choice", {"type": "none"}),
    ],
)
def test_not_a_change(conversation: Conversation, change: Callable[[Json], None]) -> None:
    """Cache marks, another form of the same text, the order of a block's fields, and parameters
    are no change of the conversation."""
    change(conversation.body)
    conversation.turn()


def test_drop_block(conversation: Conversation) -> None:
    """With the beta's drop_block the changed conversation is answered, on this and later requests,
    and what was dropped is listed; without the beta header the field is refused."""
    set_("system", "Another.")(conversation.body)
    dropped = {**conversation.body, "thinking": DROP}
    answer = conversation.post(dropped, **BETA)
    assert answer.status_code == 200, answer.text
    paths = [f"messages.{m}.content.{b}" for m in (1, 3) for b in (0, 1)]
    assert answer.json()["input_transformations"] == [
        {"type": "thinking_dropped", "path": path, "reason": "prefix_binding_mismatch"}
        for path in paths
    ]
    assert "thinking.block_binding" in conversation.refusal(lambda body: body.update(thinking=DROP))


def test_binding_behaviours(conversation: Conversation) -> None:
    """block_binding knows two behaviours; `error` is the default spelled out."""
    wrong = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "keep"}}
    message = conversation.refusal(lambda body: body.update(thinking=wrong), **BETA)
    assert "'error' or 'drop_block'" in message
    error = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "error"}}
    answer = conversation.post({**conversation.body, "thinking": error}, **BETA)
    assert (answer.status_code, answer.json()["input_transformations"]) == (200, [])


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("messages.1.content.0.signature", "sig_made_up", "Invalid `signature`"),
        ("messages.1.content.1.data", "made_up", "Invalid `data`"),
        ("messages.3.content.0.thinking", "Another thought.", "cannot be modified"),
    ],
)
def test_block_not_genuine(conversation: Conversation, path: str, value: str, says: str) -> None:
    """A made-up signature and a changed thought are refused, each with its own complaint."""
    assert says in conversation.refusal(set_(path, value))


def test_thinking_left_out_of_the_loop(conversation: Conversation) -> None:
    """In the current tool loop a thinking block may not be left out, nor moved."""
    assert "left out" in conversation.refusal(lambda body: body["messages"][3]["content"].pop(0))

    def both(body: Json) -> None:
        del body["messages"][3]["content"][:2]

    assert "left out" in conversation.refusal(both)


def test_thinking_of_a_closed_turn(conversation: Conversation) -> None:
    """After the loop the thinking of its last message may be left out: nothing is bound to it."""
    conversation.turn()
    del conversation.body["messages"][5]["content"][0]
    conversation.turn()


def test_cache_mark_on_thinking(conversation: Conversation) -> None:
    """A thinking block carries no cache mark."""
    change = set_("messages.1.content.0.cache_control", {"type": "ephemeral"})
    assert "may not have cache_control" in conversation.refusal(change)


def test_lost_reply_is_no_omission() -> None:
    """A reply that thought but was lost does not bind the client, if the same calls were then sent
    without thinking."""
    lost = reply([thinking("x"), call("search")])
    script: Script = [[lost, call("search")], text("Done.")]
    with ScriptedProvider(script) as provider:
        conversation = Conversation(provider.url)
        assert conversation.post(conversation.body).json()["content"][0]["type"] == "thinking"
        conversation.turn()
        conversation.turn()


def test_another_process(tmp_path: Path) -> None:
    """A provider started again on the same log accepts what the earlier one signed, and still
    knows what it may not be without."""
    log = tmp_path / "log"
    with ScriptedProvider(think_and_call, log=log) as first:
        conversation = Conversation(first.url)
        conversation.turn()
    body = conversation.body
    with ScriptedProvider(think_and_call, log=log) as second:
        conversation = Conversation(second.url)
        conversation.body = body
        assert "left out" in conversation.refusal(lambda b: b["messages"][1]["content"].pop(0))
        conversation.turn()


def test_paused_turn_is_continued(tmp_path: Path) -> None:
    """A conversation may end with the assistant's message if that reply was paused, also after a
    restart; not with any other."""
    log = tmp_path / "log"
    script = [text("Wait.", stop_reason="pause_turn"), text("Done.")]
    for _ in range(2):
        with ScriptedProvider(script, log=log) as provider:
            conversation = Conversation(provider.url)
            paused = conversation.post(conversation.body).json()["content"]
            conversation.body["messages"].append({"role": "assistant", "content": paused})
            assert conversation.post(conversation.body).json()["content"][0]["text"] == "Done."
            change = set_("messages.1.content.0.text", "Wait!")
            assert "prefill" in conversation.refusal(change)


def test_emitted_block_types(tmp_path: Path) -> None:
    """A block type unknown to the API comes back in an assistant message if it was emitted."""
    script = [reply([{"type": "future_block", "n": 1}, text("x")]), text("Done.")]
    log = tmp_path / "log"
    with ScriptedProvider(script, log=log) as provider:
        conversation = Conversation(provider.url)
        conversation.turn()
        conversation.turn()
    with ScriptedProvider(script, log=log) as provider:
        again = Conversation(provider.url)
        again.body["messages"] = conversation.body["messages"][:3]
        again.turn()
