"""What tests of messages share: a model that repeats what it reads, and what it read."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tests.rig import Rig
from turnkeeper import tool
from turnkeeper.client import AgentRunHandle
from turnkeeper.entries import Entry
from turnkeeper.errors import InvalidRequest
from turnkeeper.inbox import message_id
from turnkeeper.testing import Exchange, Reply, call, text


def echo(x: Exchange) -> Reply:
    """Answer with what was said last."""
    return text(f"re: {x.last_text}")


def looks_first(x: Exchange) -> Reply:
    """One call for each message, then the answer to it."""
    return echo(x) if x.last_results else call("look", {"what": x.last_text[:50]})


@tool(effect="read")
def look(what: str) -> str:
    """Look at something."""
    return f"seen {what}"


def sent(entries: Sequence[Entry]) -> list[str]:
    """The ids of the messages in a transcript, in its order."""
    return [named for entry in entries if (named := message_id(entry)) is not None]


async def read(r: Rig, run: AgentRunHandle) -> list[str]:
    """The ids of the messages that a run has read."""
    return sent((await r.transcript(run.id)).entries)


async def insistently(run: AgentRunHandle, said: str, message_id: str) -> str:
    """Send until there is room for it; what became of it."""
    while True:
        try:
            return await run.send(said, message_id=message_id)
        except InvalidRequest as error:
            if "wait to be read" not in str(error):
                raise
            await asyncio.sleep(0.05)
