"""Ask a tool's probe whether an earlier attempt took effect."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import Executor
from typing import Any

from temporalio import activity

from activities.foreign import called, said
from turnkeeper.probe import Answer, Landed, NotLanded, Unknown
from turnkeeper.tools import Tool, ToolContext

MOST_SECONDS = 30.0
"""For one probe; less where the attempt itself has less time."""


async def ask(
    tool: Tool, context: ToolContext, arguments: Mapping[str, Any], threads: Executor
) -> Answer:
    """What the probe answers; `Unknown` for everything that is not an answer.

    `arguments` are those of the tool's function; the probe gets them without the context.
    """
    if tool.probe is None:
        # Redeployed without one while the call was open.
        return Unknown("the tool has no probe on this worker")
    known = {name: v for name, v in arguments.items() if name != tool.context_parameter}
    limit = activity.info().start_to_close_timeout
    seconds = min(MOST_SECONDS, limit.total_seconds() / 2) if limit else MOST_SECONDS
    try:
        async with asyncio.timeout(seconds) as patience:
            answer = await called(threads, tool.probe, context, known)
    except asyncio.CancelledError:
        if activity.cancellation_details() is not None:
            raise
        return Unknown("the probe was cancelled")
    except BaseException as error:  # noqa: BLE001  an author's probe may raise anything
        if patience.expired():
            return Unknown(f"the probe did not answer within {seconds:g} s")
        return Unknown(f"{type(error).__name__}: {said(error)}")
    if isinstance(answer, (Landed, NotLanded, Unknown)):
        return answer
    # A bool, say: which one it means is not ours to guess.
    return Unknown(f"the probe returned {type(answer).__name__}, not Landed, NotLanded or Unknown")
