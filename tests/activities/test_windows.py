"""The windows of models: asked of providers seldom, known for ever."""

from __future__ import annotations

from typing import Any

import pytest

from activities import windows
from activities.windows import Windows
from turnkeeper import Agent
from turnkeeper.spec import DEFAULT_WINDOW


class Told:
    """A provider that tells windows, or does not."""

    def __init__(self, *told: int | None) -> None:
        self.told = list(told)
        self.asked = 0

    async def window(self, _model: str) -> int | None:
        """The next answer."""
        self.asked += 1
        return self.told.pop(0)


async def pinned(known: Windows) -> int | None:
    """What a run's spec gets."""
    spec = Agent(name="tester", model="m", instructions="i").spec()
    return (await known.pinned(spec)).model.window


async def test_a_gateway_that_does_not_tell_is_asked_again_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not for each run, which would wait for its timeout; what it tells then is kept."""
    provider: Any = Told(None, 500_000)
    known = Windows({"anthropic": provider})
    assert [await pinned(known) for _ in range(3)] == [DEFAULT_WINDOW] * 3
    assert provider.asked == 1
    monkeypatch.setattr(windows, "_AGAIN_SECONDS", 0.0)
    assert [await pinned(known) for _ in range(3)] == [500_000] * 3
    assert provider.asked == 2
