"""A scripted, strict stand-in for Anthropic's Messages API, over real HTTP on loopback.

It answers from a script, refuses what the real API refuses, counts tokens and prompt caching, and
breaks connections at any byte on demand. It needs nothing but the standard library.

    rules.py       what a request is held to, a list of rules
    script.py      which reply a request gets
    reload.py      a script that follows its file
    replies.py     replies and faults
    wire.py        a reply as JSON or as server-sent events
    prefix.py      the request as one sequence of blocks: digests, token counts
    signatures.py  the binding of thinking blocks
    cache.py       prompt-cache accounting
    diagnosis.py   why the prompt cache missed
    emitted.py     what a later request may refer to
    journal.py     the log
    api.py         from an HTTP request to an answer
    http.py        HTTP/1.1, by the byte
    server.py      ScriptedProvider
    __main__.py    the provider as a process
"""

from turnkeeper.testing.provider.journal import Record, read_log
from turnkeeper.testing.provider.models import Model
from turnkeeper.testing.provider.replies import (
    AUTO,
    NO_ID,
    Reply,
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
    redacted_thinking,
    reply,
    server_tool_use,
    status,
    summary,
    text,
    thinking,
    unknown_delta,
)
from turnkeeper.testing.provider.script import Exchange, Result, Script
from turnkeeper.testing.provider.server import ScriptedProvider

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
    "summary",
    "text",
    "thinking",
    "unknown_delta",
]
