"""A tool's return value as text, within what the artifact store keeps."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from pydantic import BaseModel

from activities import results
from activities.results import Parts
from turnkeeper import Media, returned

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
    monkeypatch.setattr(returned, "MAX_ARTIFACT_BYTES", LIMIT)
    with pytest.raises(
        returned.Unreadable, match=r"^[\d,]+ .*, more than the 1,000 that are kept$"
    ):
        results.content_of(value)


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
    assert results.content_of(value) == text


def test_what_json_cannot_say_stays_unreadable() -> None:
    """Also beside text that is mended."""
    with pytest.raises(returned.Unreadable, match="a dict"):
        results.content_of({"a": object(), "b": "\ud83d"})


def test_what_fits_is_text() -> None:
    """The bound is no other thing's business."""
    assert results.content_of({"a": ["x" * LIMIT]}) == f'{{"a":["{"x" * LIMIT}"]}}'


def test_bytes_that_are_no_text_are_kept_as_they_are() -> None:
    """Alone or among texts; a list without any is JSON, as it always was."""
    content_of = results.content_of
    assert content_of(b"\xff\x00") == Parts([Media(b"\xff\x00")])
    assert content_of(memoryview(b"\xff\x00")) == Parts([Media(b"\xff\x00")])
    assert content_of(["a", b"b", b"\xff\x00", {"n": 1}]) == Parts(
        ["a", "b", Media(b"\xff\x00"), '{"n":1}']
    )
    assert content_of(("a", b"b")) == '["a","b"]'
    assert content_of(b"caf\xc3\xa9") == "café"


def test_media_are_what_their_author_says() -> None:
    """Even where their bytes are text; and all kinds of bytes are taken."""
    made = Media(bytearray(b"a,b"), "text/csv", "t.csv")  # type: ignore[arg-type]
    assert results.content_of(made) == Parts([Media(b"a,b", "text/csv", "t.csv")])
    with pytest.raises(TypeError, match="data must be bytes, not str"):
        Media("text")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'png' is no media type, such as image/png"):
        Media(b"abc", "png")


def test_media_are_refused_before_they_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of a result together, as no store keeps more in one object."""
    monkeypatch.setattr(returned, "MAX_ARTIFACT_BYTES", LIMIT)
    half = Media(b"\xff" * (LIMIT // 2 + 1))
    with pytest.raises(returned.Unreadable, match="1,002 bytes, more than the 1,000 that are kept"):
        results.content_of([half, half])


def test_an_extract_says_how_to_read_and_search_the_rest() -> None:
    """By lines, too, and not by reading all of it."""
    head = results.extract("x" * 5_000, 1_000, "ab12").partition("\n")[0]
    assert "artifact ab12: read_artifact(artifact, offset or line), search_artifact(" in head
