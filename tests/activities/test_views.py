"""What a worker keeps of runs: specs that they share, ids of replies, within a bound."""

from __future__ import annotations

from typing import Any

import pytest

from activities import views
from turnkeeper.entries import Position, message
from turnkeeper.spec import AgentSpec, Limits, ModelSpec
from turnkeeper.view import View


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


def said(*texts: str) -> View:
    """A view of messages."""
    return View(map(message, texts))


def test_the_previous_reply_is_known_to_a_view_that_goes_on_from_its_request() -> None:
    """Not to one that was read anew from another place, as after a reset, or to another run."""
    kept, asked = made(), said("a", "b")
    kept.keep("run", asked)
    kept.remember_reply("run", asked.position, "msg_1")
    assert kept.previous_message_id("run", said("a", "b", "c")) == "msg_1"
    assert kept.previous_message_id("run", said("a")) is None
    assert kept.previous_message_id("run", said("a", "x", "c")) is None
    assert kept.previous_message_id("other", said("a", "b", "c")) is None
    kept.remember_reply("run", Position(), None)
    assert kept.previous_message_id("run", said("a", "b", "c")) is None


def test_ids_of_replies_go_with_their_views() -> None:
    """A worker that serves many runs keeps a bounded number of both."""
    nothing: Any = None
    kept = views.Views(nothing, nothing, max_bytes=1)
    for run in ("one", "two"):
        kept.keep(run, said("a"))
        kept.remember_reply(run, said("a").position, f"of {run}")
    assert len(kept._answered) == 1
    kept.remember_reply("one", said("a").position, "late")
    found = [kept.previous_message_id(run, said("a", "b")) for run in ("one", "two")]
    assert found == [None, "of two"]
