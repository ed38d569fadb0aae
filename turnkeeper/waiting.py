"""What a run waits for that a person has to do, as it publishes it in its memo. Pure.

Search attributes say that a run waits, not what for: there is room for ten keywords in a namespace.
Lists find the waiting runs by them and read the memo of each. A new kind of waiting is one line of
`KINDS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from turnkeeper.text import clock, one_line

PERSON = "person"
"""Any of `KINDS` but `TIME` and `PROVIDER`."""
TIME, PROVIDER = "time", "provider"
_NAMED, _CELL, _TOLD = 20, 300, 2_000


class Kind(NamedTuple):
    """One thing that people are asked for."""

    memo: str
    """The field of the memo: one object, or a list of them. One whose `status` is not `waiting` has
    been answered; one without a status waits."""
    words: str
    """What is waited for; `{things}` stands for those that wait."""
    thing: str | Callable[[Mapping[str, str]], str] = "{tool} (call {call_id})"
    """How each is named, by its fields, of which missing ones are empty."""
    only: Mapping[str, str] = {}
    """Fields that it has, where a memo holds several kinds."""


def _pause(fields: Mapping[str, str]) -> str:
    by = f" by {fields['actor']}" if fields["actor"] else ""
    return f"paused{by}" + (f": {fields['reason']}" if fields["reason"].strip() else "")


def _question(fields: Mapping[str, str]) -> str:
    return f'an answer to "{fields["question"]}" (call {fields["call_id"]})'


def _provider(fields: Mapping[str, str]) -> str:
    return f"the provider until {_until(fields, 'it answers')} ({fields['why']})"


def _time(fields: Mapping[str, str]) -> str:
    return f"{_until(fields, 'a time')} (call {fields['call_id']})"


def _until(fields: Mapping[str, str], otherwise: str) -> str:
    # Any program may have written the memo.
    try:
        return clock(float(fields["until"]))
    except (ValueError, OverflowError):
        return otherwise


KINDS: dict[str, Kind] = {
    "outcome": Kind("unknown", "a person to say whether {things} took effect"),
    "resume": Kind("paused", "a person to resume it, {things}", _pause),
    "message": Kind("awaited", "{things}", "the next message", {"kind": "message"}),
    "answer": Kind("awaited", "{things}", _question, {"kind": "answer"}),
    "time": Kind("awaited", "{things}", _time, {"kind": "time"}),
    "provider": Kind("parked", "{things}", _provider),
    "switch": Kind("switched_off", "{things}", "{awaits}"),
    "approval": Kind("approvals", "a person to allow {things}", "{tool} (approval {id})"),
}


class _Fields(dict[str, str]):
    """Of a thing, on one line each; those that it lacks are empty."""

    def __missing__(self, name: str) -> str:
        return ""


def in_words(kind: str, things: Sequence[Mapping[str, Any]]) -> str:
    """What a run waits for, where these wait."""
    shown = [
        _Fields({name: one_line(str(value or ""), _CELL) for name, value in thing.items()})
        for thing in things[:_NAMED]
    ]
    thing = KINDS[kind].thing
    named = ", ".join(thing.format_map(f) if isinstance(thing, str) else thing(f) for f in shown)
    more = len(things) - len(shown)
    named = one_line(named, _TOLD) + (f" and {more:,} more" if more > 0 else "")
    return KINDS[kind].words.format(things=named)


def awaited(memo: Mapping[str, Any]) -> dict[str, str]:
    """What is waited for by kind, in words. Any program may have written the memo."""
    found: dict[str, str] = {}
    for name, kind in KINDS.items():
        published = memo.get(kind.memo)
        listed = published if isinstance(published, list) else [published]
        things = [t for t in listed if isinstance(t, dict) and _waits(t, kind)]
        if things:
            found[name] = in_words(name, things)
    return found


def _waits(thing: Mapping[str, Any], kind: Kind) -> bool:
    open_ = thing.get("status", "waiting") == "waiting"
    return open_ and all(thing.get(name) == value for name, value in kind.only.items())
