"""What is large is worked on beside the event loop, which goes on meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from activities import aside, attachments, execute, shorten, summarise
from activities.redact import Redactor
from tests.rig import RigFactory
from tests.test_context import PATIENT, WINDOW, page, reading
from turnkeeper import Media, tool
from turnkeeper.testing import calls, text

Watch = Callable[..., None]


@pytest.fixture
async def watch(monkeypatch: pytest.MonkeyPatch) -> tuple[Watch, dict[str, bool]]:
    """Has a function tell, when it is called, whether the loop goes on while it is at work."""
    loop = asyncio.get_running_loop()
    went_on: dict[str, bool] = {}

    def watched(owner: Any, name: str, size: Callable[..., int] = lambda *_: 1_000_000) -> None:
        inner = getattr(owner, name)

        def called(*given: Any) -> Any:
            if size(*given) >= 1_000_000:
                moved = threading.Event()
                loop.call_soon_threadsafe(moved.set)
                went_on[name] = went_on.get(name, True) and moved.wait(30)
            return inner(*given)

        monkeypatch.setattr(owner, name, called)

    return watched, went_on


@tool(effect="read")
async def book() -> str:
    """Return a long text."""
    return "word " * 400_000


@tool(effect="read")
async def table() -> Media:
    """Return a long table as bytes."""
    return Media(b"1,2\n" * 400_000, "text/csv")


@pytest.mark.long
async def test_large_results(rig: RigFactory, watch: tuple[Watch, dict[str, bool]]) -> None:
    """They are read, redacted and cut aside."""
    watched, went_on = watch
    watched(execute, "content_of", lambda _: 1_000_000)
    watched(execute, "extract", lambda text, *_: len(text))
    watched(attachments, "sniff", len)
    watched(Redactor, "known", lambda _, text: len(text))
    async with rig([calls([("book", {}), ("table", {})]), text("Done.")], tools=[book, table]) as r:
        assert (await r.run()).outcome == "completed"
    assert went_on == dict.fromkeys(("content_of", "extract", "sniff", "known"), True)


async def test_large_views(
    rig: RigFactory, watch: tuple[Watch, dict[str, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a summary covers, and what an opening has, is weighed aside."""
    monkeypatch.setattr(aside, "QUICK_BYTES", 10_000)
    watched, went_on = watch
    watched(shorten, "_draft")
    watched(summarise, "_covered")
    async with rig(reading(25), tools=[page], limits=PATIENT, provider={"window": WINDOW}) as r:
        assert (await r.run()).epochs == 2
    assert went_on == {"_draft": True, "_covered": True}


async def test_what_is_small_is_done_at_once() -> None:
    """In the loop's own thread; errors arrive either way."""
    here = threading.get_ident()
    assert await aside.aside(10, threading.get_ident) == here
    assert await aside.aside(1_000_000, threading.get_ident) != here
    for size in (10, 1_000_000):
        with pytest.raises(ZeroDivisionError):
            await aside.aside(size, lambda: 1 / 0)
