"""Failures that people met in public: conversations that outgrew the model's window.

The ids are those of the collected reports.
"""

from __future__ import annotations

import pytest

from tests.prose import prose
from tests.rig import RigFactory
from tests.test_context import PATIENT, WINDOW, page, reading
from turnkeeper.spec import ContextPolicy, ModelSpec
from turnkeeper.testing import Exchange, Reply, call, status, text
from turnkeeper.testing.provider import reply

TOO_LONG = status(400, message="prompt is too long: 210000 tokens > 200000 maximum")


@pytest.mark.long
async def test_b03_history_grows_with_what_is_said_and_the_run_completes(rig: RigFactory) -> None:
    """100 calls of 5 kB after a long prompt: each turn adds what is new, and no more."""

    def script(x: Exchange) -> Reply:
        if x.turn >= 100:
            return text("Read.")
        return call("page", {"number": x.turn, "size": 5_000})

    async with rig(script, tools=[page], limits=PATIENT) as r:
        result = await r.run(prose(0, 190_000))
        assert (result.outcome, result.turns) == ("completed", 101)
        sizes = [sum(e.ByteSize() for e in run) for run in await r.executions()]
        # A result stands there twice: as it came, and as the model was told.
        assert sum(sizes) < 4 * 190_000 + 100 * (2 * 5_000 + 4_000)
        assert max(sizes) < 10_000_000


async def test_b42_instructions_that_fill_the_window_end_by_name(rig: RigFactory) -> None:
    """Nothing can be shortened: nothing is sent, and the end has the sizes."""
    async with rig(
        reading(3), tools=[page], instructions=prose(0, 100_000), provider={"window": WINDOW}
    ) as r:
        result = await r.run()
        assert result.outcome == "context_overflow"
        assert "of instructions and tools" in (result.reason or "")
        assert "the window has 20000" in (result.reason or "")
        assert not r.provider.requests


async def test_b42_shortening_in_vain_is_given_up_after_two_times(rig: RigFactory) -> None:
    """A provider that never has room: two shorter views, then the end with the sizes."""
    inner = reading(30)

    def script(x: Exchange) -> Reply:
        if x.wants_summary:
            return inner(x)
        return inner(x) if x.arrival < 12 else TOO_LONG

    async with rig(script, tools=[page], limits=PATIENT) as r:
        result = await r.run()
        assert (result.outcome, result.epochs) == ("context_overflow", 3)
        assert "the view was shortened 2 times" in (result.reason or "")
        assert "but the window has 1000000" in (result.reason or "")
        assert "lower max_output_tokens" in (result.reason or "")


@pytest.mark.long
async def test_b44_a_report_far_too_low_does_not_fill_the_window(rig: RigFactory) -> None:
    """What was sent is weighed as well: the window that was set holds, and so does the output
    limit."""
    inner = reading(90)

    def script(x: Exchange) -> Reply:
        told = inner(x)
        return reply([told], usage={"input_tokens": 5, "cache_read_input_tokens": 0})  # type: ignore[list-item]

    model = ModelSpec(name="claude-sonnet-5-5", window=WINDOW, max_output_tokens=2_000)
    async with rig(script, tools=[page], limits=PATIENT, model=model) as r:
        result = await r.run()
        assert result.outcome == "completed"
        assert result.epochs > 1
        # Four bytes are a token there, and at most six are taken for one here.
        assert max(q.tokens or 0 for q in r.provider.requests) < 2 * WINDOW


async def test_b44_an_empty_answer_has_a_bound_of_its_own(rig: RigFactory) -> None:
    """It is asked for once more, and never taken for a full window."""
    async with rig([reply([]), reply([])], context=ContextPolicy()) as r:
        result = await r.run()
        assert result.outcome == "model_unavailable"
        assert (len(r.provider.requests), result.epochs) == (2, 1)
