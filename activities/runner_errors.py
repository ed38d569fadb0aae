"""An exception of a tool's process, as JSON, and in the worker again."""

from __future__ import annotations

import builtins
import math
import traceback
from types import TracebackType
from typing import Any

from turnkeeper.errors import RetryTool, StopRun, ToolFailed
from turnkeeper.text import clip

_MAX_MESSAGE = 64_000
_MAX_TRACE = 16_000
# Their subclasses, too, arrive as these: what a tool's author says with them is in the type.
_SAID_ON_PURPOSE = (RetryTool, ToolFailed, StopRun)
# A coroutine cannot raise them, or the event loop would end.
_NEVER = (StopIteration, StopAsyncIteration)


def described(error: BaseException, since: TracebackType | None = None) -> dict[str, Any]:
    """Type, message and traceback of `error`, bounded, whatever its own methods do.

    `since` is where the traceback begins, so that it shows the tool's own frames only.
    """
    purpose = next((p.__name__ for p in _SAID_ON_PURPOSE if isinstance(error, p)), None)
    delay = getattr(error, "delay", None) if purpose == "RetryTool" else None
    number = isinstance(delay, (int, float)) and math.isfinite(delay)
    return {
        "type": type(error).__name__,
        "bases": [c.__name__ for c in type(error).__mro__ if c.__module__ == "builtins"],
        "builtin": type(error).__module__ == "builtins",
        "purpose": purpose,
        "message": _message(error),
        "delay": delay if number else None,
        "trace": _trace(error, since),
    }


def rebuilt(said: dict[str, Any]) -> Exception:
    """The exception to raise in the worker; the traceback of the tool's process is its note.

    RetryTool, ToolFailed and StopRun arrive as themselves, built-in exceptions as themselves where
    a message is all they hold. Of every other type a namesake arrives, with the same message and
    the nearest built-in base; SystemExit and its like become plain exceptions of that name.
    """
    error = _same(said) or _namesake(said)
    error.add_note(f"In the tool's process:\n{said['trace']}")
    return error


def _same(said: dict[str, Any]) -> Exception | None:
    message = said["message"]
    match said["purpose"]:
        case "RetryTool":
            return RetryTool(message, delay=said["delay"])
        case "ToolFailed":
            return ToolFailed(message)
        case "StopRun":
            return StopRun(message)
    base = _raisable(said["type"]) if said["builtin"] else None
    if base is None:
        return None
    try:
        error = base(message) if message else base()
    except TypeError:
        return None
    return error if str(error) == message else None


def _namesake(said: dict[str, Any]) -> Exception:
    message = said["message"]
    # SystemExit, KeyboardInterrupt, CancelledError have no base that may be raised here.
    for name in [*said["bases"], "Exception"]:
        base = _raisable(name)
        if base is None:
            continue
        content = {"__module__": "tool", "__str__": lambda _: message}
        try:
            error: Exception = type(said["type"], (base,), content)(message)
        except TypeError:
            # A constructor that wants more than a message: the next base.
            continue
        return error
    raise AssertionError


def _raisable(name: str) -> type[Exception] | None:
    base = getattr(builtins, name, None)
    if isinstance(base, type) and issubclass(base, Exception) and not issubclass(base, _NEVER):
        return base
    return None


def _message(error: BaseException) -> str:
    try:
        return str.__str__(str(error))[:_MAX_MESSAGE]
    except BaseException:  # noqa: BLE001  an exception's own __str__ may raise anything
        return "(no message)"


def _trace(error: BaseException, since: TracebackType | None) -> str:
    try:
        # The last frames: a recursion has thousands.
        lines = traceback.format_exception(type(error), error, since, limit=-20)
        return clip("".join(lines).strip(), _MAX_TRACE)
    except BaseException:  # noqa: BLE001  so may what the traceback module asks it for
        return f"{type(error).__name__}: {_message(error)}"
