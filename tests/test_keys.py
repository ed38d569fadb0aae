"""Idempotency keys: one per call, the same however often and wherever the call is repeated."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from tests.rig import RigFactory
from turnkeeper import Landed, NotLanded, ToolContext, tool
from turnkeeper.testing import call, text


async def test_a_reset_repeats_no_effect(rig: RigFactory) -> None:
    """Reset to its beginning the run makes the same calls under the same keys: an `idempotent`
    target sees each key again, a `reconcilable` one is asked first, though it is a first attempt.
    """
    paid: list[str] = []
    booked: list[str] = []

    @tool(effect="idempotent")
    async def pay(ctx: ToolContext) -> str:
        """Pay."""
        paid.append(ctx.idempotency_key)
        return "paid"

    async def probe(ctx: ToolContext, args: Mapping[str, Any]) -> Any:
        return Landed("booked") if ctx.idempotency_key in booked else NotLanded()

    @tool(effect="reconcilable", probe=probe)
    async def book(ctx: ToolContext) -> str:
        """Book."""
        booked.append(ctx.idempotency_key)
        return "booked"

    script = [call("pay"), call("book"), text("Done.")]
    async with rig(script, tools=[pay, book]) as r:
        run = await r.start()
        first = await run.result()
        await r.reset(run)
        again = await asyncio.wait_for(run.result(), 30)
        assert again.transcript.entries == first.transcript.entries
        assert len(paid) == 2
        assert len(set(paid)) == 1
        assert len(booked) == 1
