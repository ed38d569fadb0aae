"""The four-state cycle through a real server, a real worker and real HTTP."""

from __future__ import annotations

import asyncio

from tests.rig import RigFactory
from turnkeeper import StopRun, ToolFailed, tool
from turnkeeper.testing import call, calls, text


@tool(effect="read")
def look_up(q: str) -> str:
    """Look something up."""
    return f"found {q}"


@tool(effect="read")
async def slow(seconds: float) -> str:
    """Answer after a while."""
    await asyncio.sleep(seconds)
    return f"slept {seconds}"


@tool(effect="read")
def broken(q: str) -> str:
    """Fail in words for the model."""
    raise ToolFailed(f"no such thing: {q}")


@tool(effect="once")
def quit_now() -> str:
    """End the run."""
    raise StopRun("enough")


async def test_an_answer_without_tools_completes_in_one_turn(rig: RigFactory) -> None:
    """The shortest run: one generation, outcome completed, nothing refused by the provider."""
    async with rig([text("Hello.")]) as r:
        result = await r.run("Hi")
        assert (result.outcome, result.answer, result.turns) == ("completed", "Hello.", 1)
        assert not r.provider.rejections


async def test_results_come_back_in_call_order(rig: RigFactory) -> None:
    """Calls that end in another order are answered in the order in which they were made."""
    script = [
        calls([call("slow", {"seconds": s}) for s in (0.3, 0.2, 0.1)]),
        lambda x: text(" | ".join(t for _, t, _ in x.last_results)),
    ]
    async with rig(script, tools=[slow]) as r:
        result = await r.run()
        assert result.answer == "slept 0.3 | slept 0.2 | slept 0.1"


async def test_a_tool_error_is_told_to_the_model(rig: RigFactory) -> None:
    """ToolFailed costs one attempt and its text is the result, marked as an error."""
    script = [call("broken", {"q": "x"}), lambda x: text(str(x.last_results[0][1:]))]
    async with rig(script, tools=[broken]) as r:
        result = await r.run()
        assert result.answer == "('no such thing: x', True)"
        assert (result.calls, result.errors) == (1, 1)


async def test_stop_run_ends_the_run(rig: RigFactory) -> None:
    """A tool's StopRun is an outcome of its own, with the tool's reason."""
    async with rig([call("quit_now", {})], tools=[quit_now]) as r:
        result = await r.run()
        assert (result.outcome, result.reason) == ("stopped", "enough")
