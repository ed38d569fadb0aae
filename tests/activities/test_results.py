"""A tool's return value as text, within what the artifact store keeps."""

from __future__ import annotations

from typing import Any

import pytest

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


def test_what_fits_is_text() -> None:
    """The bound is no other thing's business."""
    assert results.text_of({"a": ["x" * LIMIT]}) == f'{{"a":["{"x" * LIMIT}"]}}'
