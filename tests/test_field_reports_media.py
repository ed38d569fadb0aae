"""Failures that people met in public: bytes and images in what tools return."""

from __future__ import annotations

from typing import Any

import pytest

from tests import media_samples as samples
from tests.rig import RigFactory
from turnkeeper import tool
from turnkeeper.testing import call, calls, text


@tool(effect="read")
async def screenshot() -> bytes:
    """An image of 25 MB."""
    return samples.noise(2_900, 2_900)


@tool(effect="read")
async def clock() -> str:
    """Something else."""
    return "9:14"


def _images(body: dict[str, Any]) -> list[int]:
    """The sizes of all images in a request, as base64."""
    return [
        len(block["source"]["data"])
        for message in body["messages"]
        for result in message["content"]
        if result["type"] == "tool_result" and isinstance(result["content"], list)
        for block in result["content"]
        if block["type"] == "image"
    ]


@pytest.mark.long
async def test_b60_a_huge_screenshot_and_then_something_else(rig: RigFactory) -> None:
    """It is made smaller before it enters the transcript: the next turns work, and every request
    that has it is valid."""
    steps = [
        calls([("screenshot", {}), ("screenshot", {})]),
        call("clock"),
        lambda exchange: text(f"It is {exchange.last_results[0].text}."),
    ]
    async with rig(steps, tools=[screenshot, clock], provider={"log_bodies": True}) as r:
        result = await r.run()
        assert (result.outcome, result.answer) == ("completed", "It is 9:14.")
        assert not r.provider.rejections
        assert await r.task_failures() == 0
        for request in r.provider.requests[1:]:
            sizes = _images(request.body)
            assert len(sizes) == 2
            assert max(sizes) <= 1_000_000
