"""Calls into an author's code, which may raise anything, and whose errors may do so too."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import traceback
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

# Far more than is shown: a secret at the cut would not be recognised.
_MAX_SAID = 64_000


async def in_thread(threads: Executor, function: Callable[[], Any]) -> Any:
    """Call it in a thread, in this context.

    Raises:
        BaseException: what the function raised.
    """
    run = contextvars.copy_context().run
    work = asyncio.get_running_loop().run_in_executor(threads, run, _caught, function)
    value, error = await work
    if error is not None:
        raise error
    return value


async def called(threads: Executor, function: Callable[..., Any], *args: Any) -> Any:
    """What an author's function answers: awaited if it is async, else run in a thread.

    Raises:
        BaseException: what the function raised.
    """
    if inspect.iscoroutinefunction(function):
        return await function(*args)
    answer = await in_thread(threads, lambda: function(*args))
    return await answer if inspect.isawaitable(answer) else answer


def _caught(function: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    # Returned, not raised: StopIteration cannot leave a future, SystemExit would end the thread.
    try:
        return function(), None
    except BaseException as error:  # noqa: BLE001
        return None, error


def said(error: BaseException) -> str:
    """The exception's own words."""
    try:
        return str.__str__(str(error))[:_MAX_SAID]
    except BaseException:  # noqa: BLE001  an exception's own __str__ may raise anything
        return "(no message)"


def trace(error: BaseException) -> str:
    """Its traceback, the innermost frames."""
    try:
        return "".join(traceback.format_exception(error, limit=-10))
    except BaseException:  # noqa: BLE001  so may what the traceback module asks it for
        return f"{type(error).__name__}: {said(error)}"
