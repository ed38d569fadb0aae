"""A tool's return value as text, within what the artifact store keeps."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from pydantic import BaseModel

from activities import results

LIMIT = 1_000


@pytest.mark.parametrize(
    "value",
    [
        "x" * (LIMIT + 1),
        b"x" * (LIMIT + 1),
        ["x" * LIMIT, {"a": "x"}],
        list(range(LIMIT)),
    ],
)
def test_what_no_store_keeps_is_refused_with_its_size(
    monkeypatch: pytest.MonkeyPatch, value: Any
) -> None:
    """The tool has run to its end: the model is told how much it returned, not an error of ours."""
    monkeypatch.setattr(results, "MAX_ARTIFACT_BYTES", LIMIT)
    with pytest.raises(results.Unreadable, match=r"^\d+ .*, more than the 1000 that are kept,$"):
        results.text_of(value)


@dataclasses.dataclass
class Reading:
    """A tool's own type."""

    said: str
    value: float


class Report(BaseModel):
    """A tool's own model."""

    said: str
    parts: list[dict[str, str]] = []


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a\ud83d", "a\ufffd"),
        ({"a": "\ud83d", "\ude00": 1}, '{"a":"\ufffd","\ufffd":1}'),
        (["\ude00", float("nan"), ("x",)], '["\ufffd","NaN",["x"]]'),
        (Reading("\ud83d", float("inf")), '{"said":"\ufffd","value":"Infinity"}'),
        (Report(said="x", parts=[{"a": "\ud83d"}]), '{"said":"x","parts":[{"a":"\ufffd"}]}'),
    ],
)
def test_halves_of_characters_are_replaced(value: Any, text: str) -> None:
    """Wherever they stand: one cut character does not cost the whole result."""
    assert results.text_of(value) == text


def test_what_json_cannot_say_stays_unreadable() -> None:
    """Also beside text that is mended."""
    with pytest.raises(results.Unreadable, match="a dict"):
        results.text_of({"a": object(), "b": "\ud83d"})


def test_what_fits_is_text() -> None:
    """The bound is no other thing's business."""
    assert results.text_of({"a": ["x" * LIMIT]}) == f'{{"a":["{"x" * LIMIT}"]}}'
