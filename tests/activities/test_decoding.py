"""Who may decode when, and what becomes of a decoder."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from activities import decoding, media
from activities.decoding import Job, Refused, Turns, decoded, turn
from activities.media import Undecodable, picture
from tests import media_samples as samples
from tests.rig import until


@contextlib.asynccontextmanager
async def taken(job: Job) -> AsyncIterator[None]:
    """All decoders of a kind are at work for runs."""
    async with contextlib.AsyncExitStack() as held:
        for number in range(decoding.AT_ONCE):
            await held.enter_async_context(turn(job, f"other-{number}", 1))
        yield


async def test_pdfs_hold_up_no_image() -> None:
    """However long they take: the two kinds have decoders of their own."""
    async with taken("pdf"):
        assert (await picture(samples.plain(30, 20), 10, run="a")).width == 30


async def test_the_wait_for_a_turn_is_no_time_of_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    """An image that others held up has as long as one that came first."""
    given = list[float]()

    async def timed(job: Job, data: bytes, seconds: float) -> Any:
        given.append(seconds)
        return await decoded(job, data, seconds)

    monkeypatch.setattr(media, "decoded", timed)
    async with taken("image"):
        waiting = asyncio.ensure_future(picture(samples.plain(30, 20), 25, run="a"))
        await asyncio.sleep(0.2)
        assert not waiting.done()
    assert (await waiting).width == 30
    assert given == [media.MOST_SECONDS]


async def test_the_wait_for_a_turn_is_bounded() -> None:
    """The model learns that it was not the image's fault."""
    async with taken("image"):
        with pytest.raises(Undecodable, match=r"other images were being decoded for 0\.2 s"):
            await picture(samples.plain(30, 20), 0.2, run="a")


async def test_a_run_that_asks_for_much_delays_itself() -> None:
    """What another one asks for after it has the next place."""
    turns, had = Turns(1), list[str]()

    async def work(run: str) -> None:
        async with turns.of(run, 10):
            had.append(run)
            await asyncio.sleep(0)

    async with turns.of("first", 1):
        waiting = [asyncio.ensure_future(work(run)) for run in ("a", "a", "a", "b")]
        await asyncio.sleep(0.01)
    await asyncio.gather(*waiting)
    assert had == ["a", "b", "a", "a"]


async def test_a_decoder_ends_with_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose call was cancelled takes no more memory while the next one is at work."""
    started = list[asyncio.subprocess.Process]()
    start = asyncio.create_subprocess_exec

    async def starting(*command: str, **options: object) -> asyncio.subprocess.Process:
        started.append(await start(*command, **options))  # type: ignore[arg-type]
        return started[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", starting)
    call = asyncio.ensure_future(decoded("image", samples.noise(2_000, 2_000), 30))
    await until(lambda: started)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert started[0].returncode == -9


async def test_a_decoder_that_cannot_be_started_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine that has no room for one more process."""
    monkeypatch.setattr("sys.executable", "/not/there")
    with pytest.raises(Refused, match="could not be started"):
        await decoded("image", b"", 5)
