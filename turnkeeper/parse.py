"""PARSE: read the stop reason, extract and check the tool calls. Pure and total: it never raises.

Every stop reason and every contradiction between the stop reason and the content maps to one of the
decisions below. It runs inside the workflow, so a change to it is a change to replayed code.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from turnkeeper import replies
from turnkeeper.contract import GenerateOutput

CUT_CALL = (
    "Not run: the reply was cut off at the output limit before this call was complete. "
    "Send fewer calls at once, or shorter arguments."
)


class Decision(StrEnum):
    """What the loop does with a reply."""

    CALLS = "calls"
    """Keep it, run its calls."""
    ANSWER = "answer"
    """Keep it, the run is complete."""
    CONTINUE = "continue"
    """Keep it and ask on: the provider paused."""
    GROW = "grow"
    """Discard it, ask again with a larger output limit."""
    AGAIN = "again"
    """Discard it, ask again: it makes no sense."""
    NUDGE = "nudge"
    """Discard it and ask for an answer: it is empty."""
    REFUSED = "refused"
    TRUNCATED = "truncated"
    OVERFLOW = "overflow"
    UNKNOWN = "unknown"
    """A stop reason that this release does not know: stop rather than guess."""


class ProposedCall(BaseModel):
    """A tool call as the model wrote it."""

    model_config = ConfigDict(frozen=True)

    call_id: str
    tool: str
    arguments: dict[str, Any]
    refused: str | None = None
    """Why it cannot be run, as the model will read it."""


class Parsed(BaseModel):
    """What a reply means."""

    decision: Decision
    calls: list[ProposedCall] = Field(default_factory=list)
    text: str = ""
    reason: str | None = None


def parse(reply: GenerateOutput, *, can_grow: bool) -> Parsed:
    """Decide what to do with a reply of dialect `anthropic-messages`.

    `can_grow`: whether a longer reply may still be asked for.
    """
    value = reply.entry.value
    text = replies.text(value)
    calls = [_call(c, reply.refused_calls) for c in replies.calls(value)]
    stop = reply.stop_reason
    if stop in ("tool_use", "end_turn", "stop_sequence", "pause_turn", "compaction"):
        if calls:
            # Content before stop reason: some hosts report `end_turn` beside calls, and a call that
            # stays unanswered makes every later request invalid.
            return Parsed(decision=Decision.CALLS, calls=calls, text=text)
        return _without_calls(str(stop), text, replies.blocks(value))
    if stop == "max_tokens":
        return _cut(calls, text, can_grow)
    if stop == "refusal":
        return Parsed(decision=Decision.REFUSED, text=text, reason=_refusal(reply.stop_details))
    if stop == "model_context_window_exceeded":
        return Parsed(decision=Decision.OVERFLOW, text=text, reason="the model's window is full")
    if stop is None:
        return Parsed(decision=Decision.AGAIN, text=text, reason="the reply has no stop reason")
    return Parsed(
        decision=Decision.UNKNOWN, text=text, reason=f"unknown stop reason {str(stop)[:100]!r}"
    )


def _without_calls(stop: str, text: str, blocks: list[dict[str, Any]]) -> Parsed:
    if stop == "tool_use":
        return Parsed(
            decision=Decision.AGAIN, text=text, reason="stop reason tool_use without a tool call"
        )
    if stop in ("pause_turn", "compaction"):
        if not blocks:
            return Parsed(decision=Decision.AGAIN, reason=f"stop reason {stop} with no content")
        return Parsed(decision=Decision.CONTINUE, text=text)
    if not text.strip():
        return Parsed(decision=Decision.NUDGE, reason="the reply has no text and no tool call")
    return Parsed(decision=Decision.ANSWER, text=text)


def _cut(calls: list[ProposedCall], text: str, can_grow: bool) -> Parsed:
    # A cut call may look whole ({"path": ...} without its content): it is never run.
    if can_grow:
        return Parsed(decision=Decision.GROW, text=text, reason="cut off at the output limit")
    if calls:
        refused = [c.model_copy(update={"refused": CUT_CALL}) for c in calls]
        return Parsed(decision=Decision.CALLS, calls=refused, text=text)
    return Parsed(decision=Decision.TRUNCATED, text=text, reason="cut off at the output limit")


def _call(call: replies.Call, refused: dict[str, str]) -> ProposedCall:
    arguments, why = call.arguments, refused.get(call.call_id)
    if arguments is None:
        arguments, why = {}, why or "Not run: the arguments are not a JSON object."
    return ProposedCall(call_id=call.call_id, tool=call.tool, arguments=arguments, refused=why)


def _refusal(details: Any) -> str:
    known = details if isinstance(details, dict) else {}
    parts = [str(known[k])[:500] for k in ("category", "explanation") if known.get(k)]
    return "the model declined" + (f" ({': '.join(parts)})" if parts else "")
