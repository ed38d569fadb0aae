"""The test kit: a scripted, strict provider to run agents against.

Names are loaded on first use, so that importing this package costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from turnkeeper.testing.provider import (
        AUTO,
        NO_ID,
        Exchange,
        Model,
        Record,
        Reply,
        Result,
        Script,
        ScriptedProvider,
        call,
        call_id,
        calls,
        cut,
        duplicate_event,
        error_event,
        garbage,
        insert_event,
        no_stop,
        ping,
        read_log,
        redacted_thinking,
        reply,
        server_tool_use,
        status,
        text,
        thinking,
        unknown_delta,
    )

__all__ = [
    "AUTO",
    "NO_ID",
    "Exchange",
    "Model",
    "Record",
    "Reply",
    "Result",
    "Script",
    "ScriptedProvider",
    "call",
    "call_id",
    "calls",
    "cut",
    "duplicate_event",
    "error_event",
    "garbage",
    "insert_event",
    "no_stop",
    "ping",
    "read_log",
    "redacted_thinking",
    "reply",
    "server_tool_use",
    "status",
    "text",
    "thinking",
    "unknown_delta",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("turnkeeper.testing.provider"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
