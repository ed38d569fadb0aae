"""Synchronous tools in processes that can be stopped.

A thread cannot be: a tool in one goes on, and goes on writing, after its run was cancelled or its
attempt timed out. Here a call has a process of its own while it lasts:

- `runners.py`         how many there are, and for how long (this module)
- `runner_handle.py`   one of them, as the worker sees it
- `runner_process.py`  its supervisor, which kills it with everything it started
- `runner_calls.py`    the process that calls the tool
- `runner_frames.py` and `runner_errors.py`   what they say to each other

A cancelled call is killed with SIGKILL at once. A SIGTERM first would invite code to run that the
author never tested, while the next attempt may be at work already; databases roll back what was
not committed, and nothing else could be promised anyway. What a call leaves running when it returns
is killed as well, before its result counts.

A process keeps its modules, and with them connections and threads, from call to call: a thread that
outlives its call is reported, not ended. Nothing of the worker's own memory is there: what an
agent's module sets in a tool's module at run time is not seen, unless that module imports it.

A worker that is stopped (SIGSTOP) but not dead cannot stop its tools: the call's lease does, which
the supervisor keeps (`activities.lease`). A process that is itself stopped does not answer when the
lease is extended, and its attempt fails.

What this cannot see: a supervisor that is killed by hand takes the tool's process with it, but not
what that had started. Where there is no subreaper (not Linux), what left its process group is out
of reach.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import re
import sys
from collections.abc import Coroutine, Mapping
from typing import Any

import structlog

from activities.lease import Lease
from activities.results import Parts
from activities.runner_calls import find
from activities.runner_handle import Handle, NotBegun, ProcessEnded, pickled
from turnkeeper.errors import RetryTool
from turnkeeper.tools import Tool, ToolContext

__all__ = ["ProcessEnded", "Runners", "can_run", "in_process", "tool_environment"]

CALLS_PER_PROCESS = 1_000
"""Then it is replaced: what tools leak does not add up for ever."""
# What only the worker needs: the model providers' keys and the way to Temporal.
_OURS = re.compile(
    r"(ANTHROPIC|OPENAI|AZURE_OPENAI|GEMINI|GOOGLE|MISTRAL|GROQ|OPENROUTER)_(API_KEY|AUTH_TOKEN)"
    r"|TEMPORAL_(API_KEY|TLS_.*|CODEC_AUTH|GRPC_META_.*)"
)

log = structlog.get_logger("turnkeeper.runners")


def tool_environment(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The worker's environment without the keys of model providers and of Temporal."""
    known = os.environ if environment is None else environment
    return {name: value for name, value in known.items() if not _OURS.fullmatch(name)}


def can_run(tool: Tool) -> bool:
    """Whether another process can find the tool's function by module and qualified name.

    Not so for coroutine functions, closures, lambdas, bound methods, and what is defined in the
    program's main module.
    """
    module = getattr(tool.function, "__module__", None)
    name = getattr(tool.function, "__qualname__", None)
    known = sys.modules.get(module) if module else None
    if (
        tool.is_async
        or not name
        or module == "__main__"
        or getattr(known, "__spec__", None) is None
    ):
        return False
    assert module is not None
    try:
        return find(module, name) is tool.function
    except (AttributeError, ImportError):
        return False


def in_process(tool: Tool) -> bool:
    """Whether its calls run in a process: synchronous, and more than a read.

    A read that goes on in a thread after its run's end harms nobody.
    """
    return tool.spec.mutates and can_run(tool)


class Runners:
    """Processes that run one synchronous tool call at a time, and can be killed in the middle.

    Args:
        most: processes at once; further calls wait for one, within their own timeout.
        idle_seconds: after which a process without work ends.
        environment: the whole environment of tools; default `tool_environment()`.
    """

    def __init__(
        self,
        *,
        most: int = 16,
        idle_seconds: float = 60,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._slots = asyncio.Semaphore(most)
        self._idle_seconds = idle_seconds
        self._environment = tool_environment() if environment is None else dict(environment)
        # The one that worked last comes first: the others get old, and end.
        self._idle: dict[Handle, asyncio.TimerHandle] = {}
        self._busy: set[Handle] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._closed = False

    async def call(
        self,
        tool: Tool,
        arguments: Mapping[str, Any],
        context: ToolContext,
        lease: Lease | None = None,
    ) -> str | Parts:
        """Run a tool's function in a process; what it returned, as the model is told it.

        That is made in the process (`activities.results.content_of`): what a tool returns need not
        be picklable, and a large result is copied once. On cancellation everything that the call
        started is dead before the CancelledError goes on.

        Args:
            tool: one that `can_run`.
            arguments: as `tool.bind` made them.
            context: gets the heartbeats, the log lines and the requests for artifacts.
            lease: when it is over the process is killed, whatever the worker does meanwhile.

        Raises:
            RetryTool: there was no process to be had; nothing has happened. Also the tool's own.
            Unreadable: the tool ran to its end, and returned what has no text.
            ProcessEnded: its process exited or was killed; the effect may have happened.
            TypeError: an argument cannot be handed over; nothing has happened.
            Exception: what the tool raised, see `runner_errors.rebuilt`.
        """
        job = pickled(tool, arguments, context)
        async with self._slots:
            for last in (False, True):
                handle = self._take(fresh=last)
                self._busy.add(handle)
                try:
                    with lease.carried_by(handle) if lease else contextlib.nullcontext():
                        return await handle.call(job, context)
                except NotBegun as error:
                    # A warm one may have ended while nobody looked.
                    if last:
                        raise RetryTool(f"no process for the tool: {error}") from None
                finally:
                    self._busy.discard(handle)
                    self._keep(handle)
        raise AssertionError

    async def close(self) -> None:
        """End all processes; calls in flight are killed and raise ProcessEnded."""
        self._closed = True
        for handle, timer in self._idle.items():
            timer.cancel()
            self._end(handle.leave())
        self._idle.clear()
        for handle in self._busy:
            self._end(handle.kill())
        while self._ending:
            await asyncio.wait(set(self._ending))

    def _take(self, *, fresh: bool) -> Handle:
        if self._closed:
            raise RetryTool("the worker is stopping")
        while self._idle and not fresh:
            handle, timer = self._idle.popitem()
            timer.cancel()
            if handle.alive:
                return handle
        try:
            return Handle(self._environment)
        except OSError as error:
            raise RetryTool(f"no process for the tool: {error}") from error

    def _keep(self, handle: Handle) -> None:
        if not handle.alive:
            return
        if self._closed or handle.calls >= CALLS_PER_PROCESS:
            self._end(handle.leave())
            return
        # In no call's context, which the timer would keep alive.
        self._idle[handle] = asyncio.get_running_loop().call_later(
            self._idle_seconds, self._expire, handle, context=contextvars.Context()
        )

    def _expire(self, handle: Handle) -> None:
        if self._idle.pop(handle, None):
            self._end(handle.leave())

    def _end(self, ending: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(ending)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
