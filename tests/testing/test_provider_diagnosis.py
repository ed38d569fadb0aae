"""Cache diagnostics: why what two requests have in common could not be read from the cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from turnkeeper.testing import ScriptedProvider, text
from turnkeeper.testing.provider.diagnosis import Fingerprints

Json = dict[str, Any]

LONG = "word " * 1_000
TOOL: Json = {"name": "t", "description": LONG, "input_schema": {"type": "object"}}
FIRST: Json = {
    "model": "m",
    "max_tokens": 10,
    "tools": [TOOL],
    "system": [{"type": "text", "text": LONG}],
    "messages": [{"role": "user", "content": LONG}],
}
REPLY: Json = {"role": "assistant", "content": "ok"}
NEXT: Json = {"role": "user", "content": "more"}
HEADERS = {"x-api-key": "any", "anthropic-version": "2026-10-21"}


@pytest.fixture
def provider() -> Iterator[ScriptedProvider]:
    """It says ok."""
    with ScriptedProvider(lambda _: text("ok")) as running:
        yield running


def ask(provider: ScriptedProvider, body: Json, *previous: str | None) -> Json:
    """The reply to `body`, which asks for a comparison if `previous` is given."""
    asked = {"diagnostics": {"previous_message_id": previous[0]}} if previous else {}
    answer = httpx2.post(f"{provider.url}/v1/messages", json=body | asked, headers=HEADERS)
    assert answer.status_code == 200, answer.text
    message: Json = answer.json()
    return message


def reason(provider: ScriptedProvider, later: Json, first: Json = FIRST) -> Json:
    """Of the second of two requests."""
    message_id = ask(provider, first, None)["id"]
    found: Json = ask(provider, later, message_id)["diagnostics"]["cache_miss_reason"]
    return found


def test_no_reason_where_the_second_goes_on(provider: ScriptedProvider) -> None:
    """Messages were added, or the same was asked again: nothing is told."""
    message_id = ask(provider, FIRST, None)["id"]
    grown = FIRST | {"messages": [*FIRST["messages"], REPLY, NEXT]}
    for body in (FIRST, grown, FIRST | {"max_tokens": 20}):
        assert "diagnostics" not in ask(provider, body, message_id)


@pytest.mark.parametrize(
    ("change", "named", "tokens"),
    [
        ({"model": "other"}, "model_changed", 3_750),
        ({"speed": "fast"}, "model_changed", 3_750),
        ({"tools": [TOOL | {"description": "x"}]}, "tools_changed", 3_750),
        ({"system": "x", "tools": []}, "system_changed", 3_750),
        ({"system": "x"}, "system_changed", 2_500),
        ({"messages": [NEXT]}, "messages_changed", 1_250),
    ],
)
def test_the_first_change_is_the_reason(
    provider: ScriptedProvider, change: Json, named: str, tokens: int
) -> None:
    """With about the tokens that came after it, which had to be read anew."""
    found = reason(provider, FIRST | change)
    assert found["type"] == named
    assert tokens <= found["cache_missed_input_tokens"] < tokens * 1.1


def test_a_changed_message_is_noticed_behind_equal_ones(provider: ScriptedProvider) -> None:
    """One character of an early message, though more follow."""
    first = FIRST | {"messages": [*FIRST["messages"], REPLY, NEXT]}
    changed = {"role": "assistant", "content": "oK"}
    later = FIRST | {"messages": [*FIRST["messages"], changed, NEXT, REPLY, NEXT]}
    assert reason(provider, later, first)["type"] == "messages_changed"


def test_shortened_messages_are_changed(provider: ScriptedProvider) -> None:
    """They may only be added to."""
    first = FIRST | {"messages": [*FIRST["messages"], REPLY, NEXT]}
    assert reason(provider, FIRST, first)["type"] == "messages_changed"


@pytest.mark.parametrize(
    "change", [{"tool_choice": {"type": "none"}}, {"thinking": {"type": "adaptive"}}]
)
def test_other_parameters_are_not_diagnosed(provider: ScriptedProvider, change: Json) -> None:
    """They lose the cache as well, and the API does not say so."""
    assert reason(provider, FIRST | change) == {"type": "unavailable"}


def test_only_requests_with_diagnostics_are_remembered(provider: ScriptedProvider) -> None:
    """The first one opts in by naming no message."""
    message_id = ask(provider, FIRST)["id"]
    found = ask(provider, FIRST, message_id)["diagnostics"]
    assert found == {"cache_miss_reason": {"type": "previous_message_not_found"}}


def test_marks_change_nothing(provider: ScriptedProvider) -> None:
    """A cache mark that moved on is no change."""
    system = [{"type": "text", "text": LONG, "cache_control": {"type": "ephemeral"}}]
    message_id = ask(provider, FIRST | {"system": system}, None)["id"]
    assert "diagnostics" not in ask(provider, FIRST, message_id)


def test_a_request_is_the_same_whatever_it_is_compared_with(provider: ScriptedProvider) -> None:
    """A script that has another answer for a repeated request gives it."""
    ids = {ask(provider, FIRST, named)["id"] for named in (None, "msg_1")}
    first, second = provider.requests
    assert (first.digest, first.repeat, second.repeat) == (second.digest, 0, 1)
    assert len(ids) == 2


def test_the_oldest_is_forgotten() -> None:
    """A process remembers a bounded number."""
    kept, nothing = Fingerprints(capacity=2), Any
    for name in ("a", "b", "c"):
        kept.add(name, nothing)  # type: ignore[arg-type]
    assert [kept.get(name) is None for name in ("a", "b", "c")] == [True, False, False]
