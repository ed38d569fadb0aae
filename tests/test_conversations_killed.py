"""Conversations while workers are killed: every accepted message is answered once, in order."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Sequence

import pytest

from tests.talking import insistently, looks_first, sent
from tests.workers import Site, SiteFactory
from turnkeeper.client import AgentRunHandle
from turnkeeper.entries import Entry

pytestmark = [pytest.mark.crash, pytest.mark.long, pytest.mark.timeout(900)]

CONVERSATIONS, MESSAGES = 10, 20
GAP = 10.0
"""Seconds between two kills."""


async def talk(run: AgentRunHandle, number: int) -> list[str]:
    """Send all messages of a conversation, some of them twice; the ids that were taken."""
    chance, taken = random.Random(f"conversation {number}"), []
    for count in range(MESSAGES):
        named = f"c{number}-m{count}"
        became = await insistently(run, f"message {count} of {number}", named)
        assert became in ("accepted", "queued")
        taken.append(named)
        if chance.random() < 0.1:
            again = await insistently(run, "something else", named)
            assert again in ("duplicate", "queued")
        await asyncio.sleep(chance.uniform(0, 1.2 * GAP))
    return taken


async def kill_now_and_then(site: Site) -> None:
    """One of two workers at a time; another takes its place."""
    await asyncio.sleep(GAP)
    for place in itertools.count():
        await site.kill(site.workers[place])
        await asyncio.gather(site.worker(), asyncio.sleep(GAP))


def answered(entries: Sequence[Entry]) -> bool:
    """Whether a reply follows the last message."""
    return bool(entries) and entries[-1].kind == "reply"


async def test_every_message_is_answered_once_and_in_order(site: SiteFactory) -> None:
    """Whichever worker dies, in the middle of whatever; and a repeated message is read once."""
    async with site(looks_first, module="tests.faults.talkative") as s:
        await asyncio.gather(s.worker(), s.worker())
        runs = [await s.start("", agent="talkative", keep_open=True) for _ in range(CONVERSATIONS)]
        killing = asyncio.create_task(kill_now_and_then(s))
        try:
            taken = await asyncio.gather(*(talk(run, n) for n, run in enumerate(runs)))
            await asyncio.gather(
                *(run.reply(ids[-1], timeout=60) for run, ids in zip(runs, taken, strict=True))
            )
        finally:
            killing.cancel()
        executions = 0
        for run, ids in zip(runs, taken, strict=True):
            entries = (await run.transcript()).entries
            assert sent(entries) == ids
            assert answered(entries)
            for named in ids[:: max(MESSAGES // 4, 1)]:
                assert await run.reply(named, timeout=30)
            described = await s.agents.client.get_workflow_handle(run.id).describe()
            executions += described.run_id != run.run_id
        assert sum(w.status is not None for w in s.workers) >= 10, "few kills"
        assert executions > 0
        assert not s.provider.rejections
        await asyncio.gather(*(run.stop() for run in runs))
        await asyncio.gather(*(run.result(check=False, timeout=60) for run in runs))
