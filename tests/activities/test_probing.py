"""What a probe that does not answer counts as."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from activities.probing import ask
from turnkeeper import NotLanded, ToolContext, Unknown, tool


async def _slow(_ctx: ToolContext, _args: Mapping[str, Any]) -> NotLanded:
    await asyncio.sleep(60)
    return NotLanded()


async def _gives_up(_ctx: ToolContext, _args: Mapping[str, Any]) -> NotLanded:
    raise TimeoutError("the carrier is slow")


@pytest.mark.parametrize(
    ("probe", "why"),
    [
        (_slow, "the probe did not answer within 0.1 s"),
        (_gives_up, "TimeoutError: the carrier is slow"),
    ],
)
async def test_our_own_patience_is_told_from_the_probes(probe: Any, why: str) -> None:
    """Both are unknown; the operator reads who gave up."""

    @tool(effect="reconcilable", probe=probe)
    async def book() -> None:
        """Book."""

    environment = ActivityEnvironment()
    environment.info = dataclasses.replace(
        environment.info, start_to_close_timeout=timedelta(seconds=0.2)
    )
    with ThreadPoolExecutor(1) as threads:
        assert await environment.run(ask, book, ToolContext(), {}, threads) == Unknown(why)
