"""What a run waits for, by its memo: written by any program, so nothing in it is believed."""

from __future__ import annotations

from typing import Any

import pytest

from turnkeeper.waiting import KINDS, awaited, in_words

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
        "approval": "a person to approve or deny refund (call a1), ship (call a2)",
    }
    memo["unknown"][0]["status"] = "open"
    assert list(awaited(memo)) == ["approval"]


@pytest.mark.parametrize(
    "published", [None, "waiting", {"status": "waiting"}, ["waiting", 7, None], [{"status": 1}]]
)
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
    assert in_words("outcome", [("a", "1")]) == "a person to say whether a (call 1) took effect"
