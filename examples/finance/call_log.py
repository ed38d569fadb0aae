"""A file that witnesses which tool calls began and ended, for demonstrations of crashes.

When `TURNKEEPER_TOOL_LOG` names a file, each attempt at a call appends two JSON lines to it, synced
to the disk before the tool goes on, so that a process killed at any moment leaves the truth behind:

    {"tool": "search", "event": "begin", "pid": 71, "key": "3f", "attempt": 1, "time": 1.76e9}
    {"tool": "search", "event": "end", "pid": 71, "key": "3f", "attempt": 1, "time": 1.76e9}

`key` is the call's idempotency key and `attempt` counts from 1; `time` is in seconds since 1970.
An attempt without its "end" was cut off. An attempt that answered with an error has its "end" too.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from turnkeeper import ToolContext

__all__ = ["logged"]


@contextmanager
def logged(tool: str, ctx: ToolContext) -> Iterator[None]:
    """Log the beginning and the end of the block as one attempt at a call of `tool`."""
    _append(tool, "begin", ctx)
    try:
        yield
    finally:
        _append(tool, "end", ctx)


def _append(tool: str, event: Literal["begin", "end"], ctx: ToolContext) -> None:
    path = os.environ.get("TURNKEEPER_TOOL_LOG")
    if not path:
        return
    line = {
        "tool": tool,
        "event": event,
        "pid": os.getpid(),
        "key": ctx.idempotency_key,
        "attempt": ctx.attempt,
        "time": time.time(),
    }
    # One unbuffered write in append mode: lines of several workers never mix.
    with Path(path).open("ab", buffering=0) as file:
        file.write(json.dumps(line).encode() + b"\n")
        os.fsync(file.fileno())
