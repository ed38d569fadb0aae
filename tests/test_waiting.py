"""What a run waits for, by its memo: written by any program, so nothing in it is believed."""

from __future__ import annotations

from typing import Any

import pytest

from turnkeeper.waiting import KINDS, Kind, awaited, in_words

FORGED = "x\x1b[2J\nsend\u202e"


def test_what_waits_is_told_by_kind() -> None:
    """In words, with the calls; what has been answered is not told."""
    memo = {
        "unknown": [
            {"tool": "send", "call_id": "c1", "status": "waiting"},
            {"tool": "send", "call_id": "c2", "status": "landed"},
        ],
        "approvals": [
            {"tool": "refund", "id": "a1", "status": "waiting"},
            {"tool": "ship", "id": "a2", "status": "waiting"},
        ],
    }
    assert awaited(memo) == {
        "outcome": "a person to say whether send (call c1) took effect",
        "approval": "a person to allow refund (approval a1), ship (approval a2)",
    }
    memo["unknown"][0]["status"] = "open"
    assert list(awaited(memo)) == ["approval"]


def test_a_kind_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of an object without a status, and of one kind among others in a memo."""
    monkeypatch.setitem(KINDS, "resume", Kind("paused", "a person to resume it"))
    answer = Kind("asked", "a person to answer {things}", "{question}", {"kind": "answer"})
    monkeypatch.setitem(KINDS, "answer", answer)
    asked = [{"kind": "time"}, {"kind": "answer", "question": "Which one?"}]
    assert awaited({"paused": {"actor": "ann"}, "asked": asked}) == {
        "resume": "a person to resume it",
        "answer": "a person to answer Which one?",
    }
    assert awaited({"paused": None, "asked": asked[:1]}) == {}


@pytest.mark.parametrize("published", [None, "waiting", 7, ["waiting", 7, None], [{"status": 1}]])
def test_a_memo_of_another_program_is_passed_over(published: Any) -> None:
    """Nothing waits by it, and nothing raises."""
    assert awaited({kind.memo: published for kind in KINDS.values()}) == {}


def test_words_are_bounded_and_on_one_line() -> None:
    """Whatever tools and ids are called, and however many there are."""
    calls = [{"tool": FORGED * 1_000, "id": FORGED, "status": "waiting"}] * 500
    told = awaited({"approvals": calls})["approval"]
    assert told.endswith(" and 480 more")
    assert len(told) < 3_000
    assert not {"\x1b", "\n", "\u202e"} & set(told)
    assert in_words("outcome", [{}]) == "a person to say whether (call ) took effect"
    assert "{tool}" in in_words("outcome", [{"tool": "{tool}", "call_id": "{0.__class__}"}])
