"""Find out whether a person has to allow a call, before its body is begun."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import Executor
from typing import Any

from pydantic_core import to_json
from temporalio import activity

from activities.foreign import called, said
from activities.redact import Redactor
from turnkeeper.approvals import why_of
from turnkeeper.contract import Asks, ExecuteInput
from turnkeeper.entries import digest_of
from turnkeeper.spec import warier
from turnkeeper.text import escaped, one_line
from turnkeeper.tools import Tool, ToolContext

MOST_SECONDS = 10.0
"""For a tool's own word on it."""
SHOWN = 1_000
"""Characters of the arguments that a person is shown; the transcript has all of them."""


async def wanted(
    tool: Tool,
    asked: ExecuteInput,
    arguments: Mapping[str, Any],
    context: ToolContext,
    *,
    threads: Executor,
    redactor: Redactor,
) -> tuple[Asks, bool]:
    """What a person allows with this call, and whether they have to.

    `arguments` are those of the tool's function.
    """
    known = {name: v for name, v in arguments.items() if name != tool.context_parameter}
    asks = Asks(
        # Of the tool as it is here: what was allowed of another definition is asked for anew.
        digest=digest_of([tool.definition_digest, context.arguments_digest]),
        definition=tool.definition_digest,
    )
    level = warier(asked.approval or "never", tool.spec.approval)
    if level == "never" or asks.digest == asked.granted or asks.definition == asked.trusted:
        return asks, False
    if level == "always":
        by_tool = tool.spec.approval == "always"
        why = "the tool asks for each call" if by_tool else "the agent asks for each call of it"
    else:
        why = await _why(tool, known, threads)
    if not why:
        return asks, False
    shown = redactor.known(to_json(known, fallback=str).decode("utf-8", "replace"))
    # Escaped, it is on one line.
    line = escaped(shown)
    change = {
        "arguments": line[:SHOWN],
        "left_out": max(len(line) - SHOWN, 0),
        "why": one_line(redactor.error(why), 300),
    }
    return asks.model_copy(update=change), True


async def _why(tool: Tool, known: dict[str, Any], threads: Executor) -> str:
    """Why the tool wants a person's word; empty if it does not."""
    if tool.wants_approval is None:
        # Redeployed without its function while the agent's spec is pinned.
        return "the tool asked of some calls when the run began"
    try:
        async with asyncio.timeout(MOST_SECONDS):
            answer = await called(threads, tool.wants_approval, known)
    except asyncio.CancelledError:
        if activity.cancellation_details() is not None:
            raise
        return "the tool could not tell whether to ask (cancelled)"
    except BaseException as error:  # noqa: BLE001  an author's function may raise anything
        return f"the tool could not tell whether to ask ({type(error).__name__}: {said(error)})"
    return why_of(answer)
