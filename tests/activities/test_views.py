"""What a worker keeps of its runs: the last used, within bounds, and read by few at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from activities import views
from turnkeeper.entries import Position, message
from turnkeeper.errors import StateLost
from turnkeeper.spec import AgentSpec, Limits, ModelSpec
from turnkeeper.view import View


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Ids of the runs whose history was read; that of a run called `lost` holds no spec."""
    found: list[str] = []

    class Reader:
        def __init__(self, _client: Any, _store: Any, workflow_id: str, _run_id: str) -> None:
            self._id = workflow_id

        async def spec(self) -> AgentSpec:
            found.append(self._id)
            await asyncio.sleep(0.001)
            if self._id == "lost":
                raise StateLost("gone")
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
    monkeypatch.setattr(views, "_SPEC_BYTES", 4_000)
    kept = made()
    for digest in ("a", "b", "a", "c", "a", "b"):
        await kept.spec(digest, "1", digest)
    assert read == ["a", "b", "c", "b"]


async def test_runs_that_miss_a_spec_at_once_share_one_reading(read: list[str]) -> None:
    """After a restart all runs of an agent ask for the same."""
    kept = made()
    found = await asyncio.gather(*(kept.spec(str(n), "1", "digest") for n in range(50)))
    assert read == ["0"]
    assert all(spec is found[0] for spec in found)


async def test_a_spec_that_one_run_has_lost_is_read_from_another(read: list[str]) -> None:
    """What is wrong with one run's history is no other run's end."""
    kept = made()
    found = await asyncio.gather(
        *(kept.spec(run, "1", "digest") for run in ("lost", "a", "b", "c")), return_exceptions=True
    )
    assert [type(x) for x in found] == [StateLost, *[AgentSpec] * 3]
    assert read == ["lost", "a"]


async def test_few_histories_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many runs need theirs: each takes some megabytes meanwhile."""
    now = most = 0

    class Reader:
        def __init__(self, *_: Any) -> None: ...

        async def view(self, _wanted: Position, _known: View | None) -> View:
            nonlocal now, most
            now += 1
            most = max(most, now)
            await asyncio.sleep(0.001)
            now -= 1
            return View()

    monkeypatch.setattr(views, "HistoryReader", Reader)
    kept = made()
    wanted = Position(digest="d", entries=1)
    await asyncio.gather(*(kept.view(str(n), "1", wanted) for n in range(100)))
    assert most == views.COLD_READS


async def test_views_are_bounded_in_number() -> None:
    """Of runs that were not used longest nothing is left, however small they are."""
    nothing: Any = None
    kept = views.Views(nothing, nothing, max_runs=3)
    for name in ("a", "b", "c", "a", "d"):
        kept.keep(name, View([message(name)]))
    assert list(kept._views) == ["c", "a", "d"]


def said(*texts: str) -> View:
    """A view of messages."""
    return View(map(message, texts))


def grown(view: View, text: str) -> View:
    """The same view, gone on, as a generation leaves it."""
    view.extend([message(text)])
    return view


async def test_what_a_view_grew_by_counts() -> None:
    """A turn goes on from the view that is kept: with what it adds the bound is reached all the
    same, and what was not used longest goes."""
    nothing: Any = None
    kept = views.Views(nothing, nothing, max_bytes=50_000)
    kept.keep("old", said("a"))
    begun = said("b")
    kept.keep("long", begun)
    position = begun.position
    for _ in range(10):
        view, source = await kept.view("long", "1", position)
        assert source == "cache"
        kept.keep("long", view)
        kept.keep("long", grown(view, "x" * 10_000))
        position = view.position
    assert list(kept._views) == ["long"]


def test_what_is_dropped_frees_what_it_was_counted_for() -> None:
    """A kept view that grew meanwhile, or was replaced by a short one, leaves no debt or credit."""
    nothing: Any = None
    kept = views.Views(nothing, nothing, max_bytes=10_000)
    first = said("a")
    kept.keep("one", first)
    grown(first, "x" * 9_000)
    kept.keep("two", said("y" * 9_500))
    kept.keep("two", said("opening"))
    kept.keep("three", said("z" * 9_000))
    assert list(kept._views) == ["two", "three"]
    kept.keep("four", said("z" * 9_000))
    assert list(kept._views) == ["four"]


async def test_an_older_place_does_not_push_out_what_goes_on_from_it() -> None:
    """A summary is asked again from where it began, while the turns have gone on."""
    kept = made()
    newer = said("a", "b", "c")
    kept.keep("run", newer)
    kept.keep("run", said("a"))
    assert (await kept.view("run", "1", newer.position))[1] == "cache"


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
