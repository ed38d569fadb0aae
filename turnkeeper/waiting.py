"""What a run waits for that a person has to do, as it publishes it in its memo. Pure.

Search attributes say that a run waits, not what for: there is room for ten keywords in a namespace.
Lists find the waiting runs by them and read the memo of each. A new kind of waiting is one line of
`KINDS`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from turnkeeper.text import one_line

PERSON = "person"
"""Any of `KINDS`."""
_NAMED = 20


class Kind(NamedTuple):
    """One thing that people are asked for."""

    memo: str
    """The field of the memo: a list of objects, each with a `status` that is `waiting` until
    somebody has answered, a `tool` and a `call_id` or `id`."""
    words: str
    """What is waited for; `{calls}` stands for those that wait."""


KINDS: dict[str, Kind] = {
    "outcome": Kind("unknown", "a person to say whether {calls} took effect"),
    "approval": Kind("approvals", "a person to approve or deny {calls}"),
}


def in_words(kind: str, calls: Sequence[tuple[str, str]]) -> str:
    """What a run waits for: `calls` are the tools' names and the calls' ids."""
    told = [f"{one_line(tool, 64)} (call {one_line(call, 64)})" for tool, call in calls[:_NAMED]]
    more = len(calls) - len(told)
    named = ", ".join(told) + (f" and {more:,} more" if more else "")
    return KINDS[kind].words.format(calls=named)


def awaited(memo: Mapping[str, Any]) -> dict[str, str]:
    """What is waited for by kind, in words. Any program may have written the memo."""
    found: dict[str, str] = {}
    for name, kind in KINDS.items():
        published = memo.get(kind.memo)
        calls = [
            (str(thing.get("tool", "")), str(thing.get("call_id", thing.get("id", ""))))
            for thing in (published if isinstance(published, list) else [])
            if isinstance(thing, dict) and thing.get("status") == "waiting"
        ]
        if calls:
            found[name] = in_words(name, calls)
    return found
