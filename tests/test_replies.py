"""What a reply holds is read in one way, whatever its shape."""

from __future__ import annotations

from typing import Any

import pytest

from turnkeeper import replies

CALL = {"type": "tool_use", "id": "c1", "name": "search", "input": {"q": "x"}}


def test_texts_and_calls_are_told_apart() -> None:
    """In order; thinking and blocks of other types are neither."""
    thought = {"type": "thinking", "thinking": "hm", "text": "no"}
    value = {
        "content": [{"type": "text", "text": "a"}, thought, CALL, {"type": "text", "text": "b"}]
    }
    assert (replies.texts(value), replies.text(value)) == (["a", "b"], "ab")
    assert replies.calls(value) == [("c1", "search", {"q": "x"})]
    assert len(replies.blocks(value)) == 4


@pytest.mark.parametrize("given", [None, "x", ["q"], 7])
def test_arguments_that_are_no_object_are_told(given: Any) -> None:
    """The call is one all the same, and has to be answered."""
    assert replies.calls({"content": [{**CALL, "input": given}]}) == [("c1", "search", None)]


@pytest.mark.parametrize("value", [None, [], "x", {}, {"content": None}, {"content": ["x", None]}])
def test_what_is_no_reply_holds_nothing(value: Any) -> None:
    """And raises nothing: it is read in the workflow, too."""
    assert (replies.blocks(value), replies.text(value), replies.calls(value)) == ([], "", [])


def test_blocks_that_lack_what_they_should_have_are_passed_over() -> None:
    """A text that is none says nothing; a call without a name is one of an unknown tool."""
    value = {"content": [{"type": "text", "text": 7}, {"type": "text"}, {"type": "tool_use"}, {}]}
    assert replies.texts(value) == []
    assert replies.calls(value) == [("None", "None", None)]
