"""What the agents do while their workers die: scripts of the model, and of the person beside it."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Any

from temporalio.service import RPCError

from turnkeeper.client import AgentRunHandle
from turnkeeper.testing import Exchange, Reply, Script, call, reply, summary, text
from turnkeeper.testing.crash_rig import Meanwhile

_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Scenario:
    """A run: who runs it, what the model says, what a person does, whether faults change it."""

    agent: str
    script: Script
    meanwhile: Meanwhile | None = None
    compare: bool = True


def _talk(number: int) -> list[Any]:
    """Reads side by side, then each effect class alone: what follows a failed call is not run."""
    order = f"o-{number}"
    return [
        # The second one is still at work when the first one is recorded.
        reply([call("look", {"order": order}), call("look", {"order": order, "seconds": 0.4})]),
        call("charge", {"order": order}),
        call("book", {"order": order}),
        call("mail", {"order": order}),
    ]


def _story(number: int) -> list[Any]:
    """The same, and what runs in a process of its own: those take seconds to start."""
    order = f"o-{number}"
    return [*_talk(number), call("record", {"order": order}), call("label", {"order": order})]


_MIXED = reply([call(t, {"order": "o-3"}) for t in ("look", "charge", "book")])

# Of the first order the request arrives and is not answered, of the second one it fails.
_DOUBTFUL = [
    call("book", {"order": "o-1", "behaviour": "apply-then-fail=500"}),
    call("book", {"order": "o-2", "behaviour": "fail=500"}),
]

_UNANSWERED = [call("mail", {"order": f"o-{n}", "behaviour": "apply-then-drop"}) for n in (1, 2)]

_SLOW = reply([call("look", {"order": f"o-{n}", "seconds": 30}) for n in (1, 2)])


async def resolve(run: AgentRunHandle) -> None:
    """Say of every call that waits that it has landed."""
    handle = run.client.client.get_workflow_handle(run.id)
    while True:
        # A server that is too busy is asked again.
        with contextlib.suppress(RPCError, ConnectionError):
            for waiting in (await run.status()).unknown:
                if waiting.status == "waiting":
                    # A signal: the server keeps it while no worker is up.
                    said = {"call_id": waiting.call_id, "landed": True, "result": "in the outbox"}
                    await handle.signal("resolve", said)
        await asyncio.sleep(_POLL_SECONDS)


async def cancel(run: AgentRunHandle) -> None:
    """Cancel the run once its calls are at work."""
    handle = run.client.client.get_workflow_handle(run.id)
    while True:
        with contextlib.suppress(RPCError):
            pending = (await handle.describe()).raw_description.pending_activities
            if sum(p.activity_type.name == "look" for p in pending) == len(_SLOW.blocks):
                await handle.cancel()
                return
        await asyncio.sleep(_POLL_SECONDS)


_LAST_CHAPTER = 12


def _reads_on(exchange: Exchange) -> Reply:
    """Chapter after chapter, and a charge: how far it got stands in the last result."""
    if exchange.wants_summary:
        return summary("Read on.")
    last = exchange.last_results[0].text if exchange.last_results else "chapter 0"
    if not last.startswith("chapter"):
        return text("Done.")
    number = int(last.split()[1]) + 1
    if number > _LAST_CHAPTER:
        return call("charge", {"order": "o-1"}, id="the-charge")
    return call("chapter", {"number": number}, id=f"chapter-{number}")


SCENARIOS = {
    "talk": Scenario("clerk", [*_talk(1), *_talk(2), _MIXED, text("Done.")]),
    "story": Scenario("clerk", [*_story(1), *_story(2), _MIXED, text("Done.")]),
    "doubt": Scenario("clerk", [*_DOUBTFUL, text("Done.")]),
    "asked": Scenario("asker", [*_UNANSWERED, text("Done.")], resolve),
    "long": Scenario("reader", _reads_on),
    # When a cancel takes effect is not the same twice.
    "cancelled": Scenario("clerk", [_SLOW], cancel, compare=False),
}
