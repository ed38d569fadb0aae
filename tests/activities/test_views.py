"""Specs that a worker keeps: shared by runs, the last used ones, within a bound."""

from __future__ import annotations

from typing import Any

import pytest

from activities import views
from turnkeeper.spec import AgentSpec, Limits, ModelSpec


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Ids of the runs whose history was read."""
    found: list[str] = []

    class Reader:
        def __init__(self, _client: Any, _store: Any, workflow_id: str, _run_id: str) -> None:
            self._id = workflow_id

        async def spec(self) -> AgentSpec:
            found.append(self._id)
            return AgentSpec(
                name="tester",
                model=ModelSpec(name="m"),
                instructions="x" * 1_000,
                limits=Limits(turns=7),
            )

    monkeypatch.setattr(views, "HistoryReader", Reader)
    return found


def made() -> views.Views:
    """Views without a server."""
    nothing: Any = None
    return views.Views(nothing, nothing)


async def test_runs_of_a_digest_share_a_spec_without_limits(read: list[str]) -> None:
    """One run's limits are not another's."""
    kept = made()
    assert await kept.spec("a", "1", "digest") is await kept.spec("b", "2", "digest")
    assert read == ["a"]
    assert (await kept.spec("b", "2", "digest")).limits == Limits()


async def test_the_specs_last_used_stay_within_the_bound(
    read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that was not asked for longest goes first."""
    monkeypatch.setattr(views, "_SPEC_BYTES", 3_000)
    kept = made()
    for digest in ("a", "b", "a", "c", "a", "b"):
        await kept.spec(digest, "1", digest)
    assert read == ["a", "b", "c", "b"]
