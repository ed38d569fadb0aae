"""The test kit: `rehearse` plays an agent without a server; a scripted, strict provider to run
agents against; parts to break them with.

Names are loaded on first use, so that importing this package costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from turnkeeper.testing.effects import AsyncEffects, EffectLedger, Effects
    from turnkeeper.testing.plugin import KilledAtEveryPoint
    from turnkeeper.testing.proof import Applied
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
        summary,
        text,
        thinking,
        unknown_delta,
    )
    from turnkeeper.testing.proxy import FaultProxy
    from turnkeeper.testing.rehearsal import NeedsRun, Rehearsal, RehearsedCall, rehearse

__all__ = [
    "AUTO",
    "NO_ID",
    "Applied",
    "AsyncEffects",
    "EffectLedger",
    "Effects",
    "Exchange",
    "FaultProxy",
    "KilledAtEveryPoint",
    "Model",
    "NeedsRun",
    "Record",
    "Rehearsal",
    "RehearsedCall",
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
    "rehearse",
    "reply",
    "server_tool_use",
    "status",
    "summary",
    "text",
    "thinking",
    "unknown_delta",
]


_MODULES = {
    "Applied": "turnkeeper.testing.proof",
    "AsyncEffects": "turnkeeper.testing.effects",
    "EffectLedger": "turnkeeper.testing.effects",
    "Effects": "turnkeeper.testing.effects",
    "FaultProxy": "turnkeeper.testing.proxy",
    "KilledAtEveryPoint": "turnkeeper.testing.plugin",
    "NeedsRun": "turnkeeper.testing.rehearsal",
    "Rehearsal": "turnkeeper.testing.rehearsal",
    "RehearsedCall": "turnkeeper.testing.rehearsal",
    "rehearse": "turnkeeper.testing.rehearsal",
}


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module(_MODULES.get(name, "turnkeeper.testing.provider")), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
