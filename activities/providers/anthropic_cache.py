"""Where a request's cache marks stand.

The API caches the prompt up to each mark. A later request reads the longest cached prefix that
ends at one of its own marks, or at most `LOOK_BACK` blocks before one. There may be four marks:

    head    ends system and tools, which all runs of an agent share
    last    where the previous request ended. That one cached everything up to there, and from the
            end of this request a look back would not find it after a reply of many calls
    middle  half-way through the results of a turn with many calls. A run that was reset makes some
            of the calls anew: results that are the same up to here are read
    end     of this request, for the next one

They are put on copies at the time of sending and never stored, so they move on with each turn and
what was said stays the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

LOOK_BACK: Final = 20
"""Blocks, the one with the mark among them."""

# Thinking and empty text must not carry a mark; blocks of types to come might not, either.
_MARKABLE: Final = frozenset({"text", "tool_use", "tool_result", "image", "document"})


class _Place(NamedTuple):
    message: int
    block: int


def place_marks(body: dict[str, Any], control: Any, *, automatic: bool) -> None:
    """Put marks with the value `control` on `body`: at most four, or three where it is `automatic`.

    All have one time to live, so that none of an hour can come after one of five minutes, which
    the API refuses.

    automatic: a field of `body` has the API itself mark its last block.
    """
    head = body.get("system") or body.get("tools")
    if head:
        head[-1] = {**head[-1], "cache_control": control}
    messages = body["messages"]
    last, new = _last_and_new(messages)
    places = {last} if last else set()
    if len(new) > LOOK_BACK:
        results = [place for place in new if place.message == new[-1].message]
        places.add(results[(len(results) - 1) // 2])
    if new and not automatic:
        places.add(new[-1])
    for place in places:
        message = messages[place.message]
        content = list(message["content"])
        content[place.block] = {**content[place.block], "cache_control": control}
        messages[place.message] = {**message, "content": content}


def _last_and_new(messages: Sequence[dict[str, Any]]) -> tuple[_Place | None, list[_Place]]:
    """Where the previous request had its last mark, and where this one may have marks since.

    The previous request ended before the last reply.
    """
    replies = (n for n in range(len(messages) - 1, -1, -1) if messages[n]["role"] == "assistant")
    since = next(replies, 0)
    new = [place for n in range(since, len(messages)) for place in _places(messages, n)]
    for n in range(since - 1, -1, -1):
        if places := list(_places(messages, n)):
            return places[-1], new
    return None, new


def _places(messages: Sequence[dict[str, Any]], number: int) -> Iterator[_Place]:
    for index, block in enumerate(messages[number]["content"]):
        if block["type"] in _MARKABLE and (block["type"] != "text" or block["text"].strip()):
            yield _Place(number, index)
