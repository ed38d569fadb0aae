"""What a model's reply holds, read from its content blocks; dialect `anthropic-messages`. Pure.

Total: a reply may be of any shape, and what is not as it should be is passed over.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

THINKING: Final = ("thinking", "redacted_thinking")
"""Types of the blocks that are bound to the conversation in which they were thought."""


class Call(NamedTuple):
    """A tool call, as the model wrote it."""

    call_id: str
    tool: str
    arguments: dict[str, Any] | None
    """None: they are no JSON object."""


def blocks(value: Any) -> list[dict[str, Any]]:
    """The content blocks that can be read at all."""
    content = value.get("content") if isinstance(value, dict) else None
    return [b for b in content if isinstance(b, dict)] if isinstance(content, list) else []


def texts(value: Any) -> list[str]:
    """What the reply says, in the order of its text blocks."""
    found = (b.get("text") for b in blocks(value) if b.get("type") == "text")
    return [text for text in found if isinstance(text, str)]


def text(value: Any) -> str:
    """What the reply says."""
    return "".join(texts(value))


def calls(value: Any) -> list[Call]:
    """The tool calls, in order."""
    return [_call(b) for b in blocks(value) if b.get("type") == "tool_use"]


def _call(block: dict[str, Any]) -> Call:
    arguments = block.get("input")
    return Call(
        str(block.get("id")),
        str(block.get("name")),
        arguments if isinstance(arguments, dict) else None,
    )
