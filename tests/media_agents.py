"""The agent of the tests that kill a worker between an image and the answer to it."""

from __future__ import annotations

from tests import media_samples as samples
from turnkeeper import Agent, Media, tool


@tool(effect="read")
async def photograph() -> list[str | Media]:
    """Two images, one of which is too large as it is."""
    large = samples.plain(4_000, 3_000, "JPEG", colour="green")
    return ["The front and the back:", Media(large, name="front.jpg"), Media(samples.plain(40, 30))]


agent = Agent(
    name="killable",
    model="claude-sonnet-5-5",
    instructions="You are a test.",
    tools=[photograph],
)
