"""Asking a Temporal server that is away, or too busy to answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TypeVar

from temporalio.service import RPCError, RPCStatusCode

from turnkeeper.client import AgentClient
from turnkeeper.contract import RunResult

T = TypeVar("T")

ATTEMPT_SECONDS = 15.0
_SECONDS = 120.0
_PAUSE_SECONDS = 0.2


async def patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask the server until it answers, at most two minutes.

    Raises:
        LookupError: it has no such run.
        TimeoutError: it never answers.
    """
    async with asyncio.timeout(_SECONDS):
        while True:
            try:
                async with asyncio.timeout(ATTEMPT_SECONDS):
                    return await ask()
            except (ConnectionError, RPCError, TimeoutError) as error:
                if isinstance(error, RPCError) and error.status is RPCStatusCode.NOT_FOUND:
                    raise LookupError(error.message) from error
                await asyncio.sleep(_PAUSE_SECONDS)


async def result_of(agents: AgentClient, run: str) -> RunResult:
    """Wait for the end of a run, however long it takes; whoever calls has a bound."""
    while True:
        with contextlib.suppress(ConnectionError, RPCError, TimeoutError):
            return await agents.result(run, check=False, timeout=ATTEMPT_SECONDS)
        await asyncio.sleep(_PAUSE_SECONDS)
