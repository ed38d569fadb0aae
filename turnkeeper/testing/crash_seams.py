"""Where the crash points lie: around methods of the SDK, of its HTTP client and of `turnkeeper`.

Each module gets its points right after it was imported, in whichever process that is: a tool's
process imports few of them. The seams of the SDK are private to it; a release that moves one fails
the test that asks each point to be reached.
"""

# ruff: noqa: SLF001 - private names are what the points lie around

from __future__ import annotations

import asyncio
import functools
import importlib.abc
import importlib.util
import inspect
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from turnkeeper.testing.crash_points import die, passing, reached, released

__all__ = ["lay"]

# The SDK's core sends a heartbeat from another thread, at its next turn.
_MARKER_SECONDS = 0.5


def lay() -> None:
    """Lay all points; once, and before any agent is imported."""
    seams: dict[str, Callable[[Any], None]] = {
        "httpx2": _model,
        "temporalio.bridge.worker": _sdk,
        "turnkeeper.artifacts": _artifacts,
        "turnkeeper.history": _history,
        "turnkeeper.ledger": _ledger,
        "turnkeeper.state": _state,
        "turnkeeper.testing.effects": _effects,
        "turnkeeper.tools": _tools,
    }
    sys.meta_path.insert(0, _AfterImport(seams))
    for name in seams.keys() & sys.modules.keys():
        seams.pop(name)(sys.modules[name])
    _children()


class _AfterImport(importlib.abc.MetaPathFinder):
    """Runs an action on a module as soon as it is there."""

    def __init__(self, actions: dict[str, Callable[[Any], None]]) -> None:
        self._actions = actions

    def find_spec(
        self,
        fullname: str,
        path: Any,  # noqa: ARG002 - the finders after us are asked the same
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """See MetaPathFinder."""
        # Taken out first: the real spec is looked for by the same finders.
        action = self._actions.pop(fullname, None)
        spec = importlib.util.find_spec(fullname) if action is not None else None
        if action is None or spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            action(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _children() -> None:
    """Python processes that the worker starts have the points, too: synchronous tools run there."""
    start = subprocess.Popen.__init__

    @functools.wraps(start)
    def init(self: Any, args: Any, *more: Any, **options: Any) -> None:
        if isinstance(args, list) and args[:1] == [sys.executable] and "-m" in args:
            at = args.index("-m")
            args = [*args[:at], "-m", "turnkeeper.testing.crashing", *args[at:]]
        start(self, args, *more, **options)

    subprocess.Popen.__init__ = init  # type: ignore[method-assign]


def _after(owner: type, method: str, name: str) -> None:
    plain = getattr(owner, method)

    @functools.wraps(plain)
    def wrapped(*args: Any, **options: Any) -> Any:
        value = plain(*args, **options)
        passing(name)
        return value

    setattr(owner, method, wrapped)


# --- the model --------------------------------------------------------------------------------


def _model(httpx: Any) -> None:
    plain = httpx.AsyncHTTPTransport.handle_async_request

    class Body(httpx.AsyncByteStream):  # type: ignore[misc]
        """A reply's body that arrives in halves."""

        def __init__(self, stream: Any) -> None:
            self._stream = stream

        async def __aiter__(self) -> AsyncIterator[bytes]:
            begun = False
            async for chunk in self._stream:
                half = len(chunk) // 2
                yield chunk[:half]
                if not begun:
                    passing("model.half")
                begun = True
                yield chunk[half:]
            passing("model.whole")

        async def aclose(self) -> None:
            await self._stream.aclose()

    async def handle(self: Any, request: Any) -> Any:
        if request.method != "POST" or not request.url.path.endswith("/messages"):
            return await plain(self, request)
        passing("model.before")
        request.extensions = {**request.extensions, "trace": _trace}
        response = await plain(self, request)
        response.stream = Body(response.stream)
        return response

    httpx.AsyncHTTPTransport.handle_async_request = handle


async def _trace(event: str, _info: Any) -> None:
    if event == "http11.send_request_body.complete":
        passing("model.sent")


# --- the SDK ----------------------------------------------------------------------------------


class _Tasks:
    """What the worker has in its hands."""

    def __init__(self) -> None:
        self.activities: dict[bytes, str] = {}
        """Points' prefix by task token; that of reads has no points of its own."""
        self.messages: set[str] = set()
        """Executions whose workflow task has a signal or update."""

    def polled_activity(self, task: Any) -> None:
        kind = self.activities.get(task.task_token)
        if task.HasField("start"):
            kind = self.activities[task.task_token] = _kind(task.start)
            if kind == "tool":
                passing("tool.polled")
        elif task.HasField("cancel") and kind in ("tool", "read"):
            passing("cancel.delivered")

    def completing_activity(self, token: bytes) -> None:
        if (kind := self.activities.get(token)) in ("tool", "generation"):
            passing(f"{kind}.completing")

    def completed_activity(self, token: bytes) -> None:
        kind = self.activities.pop(token, "")
        if kind in ("tool", "generation"):
            passing(f"{kind}.completed")
        if kind in ("tool", "read") and {"tool", "read"} & set(self.activities.values()):
            passing("parallel.between")

    def polled_workflow(self, activation: Any) -> None:
        if activation.is_replaying:
            return
        jobs = {job.WhichOneof("variant") for job in activation.jobs}
        self.messages.discard(activation.run_id)
        if "resolve_activity" in jobs:
            passing("task.polled")
        if jobs & {"signal_workflow", "do_update"}:
            self.messages.add(activation.run_id)
            passing("message.polled")
        if "cancel_workflow" in jobs:
            passing("cancel.polled")

    def completing_workflow(self, run_id: str, commands: set[str]) -> None:
        if run_id in self.messages:
            passing("message.handled")
        if "continue_as_new_workflow_execution" in commands:
            passing("continue.commands")
        elif commands & _ENDS:
            passing("end.commands")
        elif commands:
            passing("task.commands")

    def completed_workflow(self, commands: set[str]) -> None:
        if "continue_as_new_workflow_execution" in commands:
            passing("continue.acknowledged")
        elif commands and not commands & _ENDS:
            passing("task.acknowledged")


_ENDS = {
    "complete_workflow_execution",
    "fail_workflow_execution",
    "cancel_workflow_execution",
}


def _kind(start: Any) -> str:
    if start.activity_type.startswith("run."):
        return "generation" if start.activity_type == "run.generate" else ""
    asked = json.loads(start.input[0].data)
    return "read" if asked["effect"] == "read" else "tool"


def _sdk(bridge: Any) -> None:
    tasks, worker = _Tasks(), bridge.Worker
    poll_activity, poll_workflow = worker.poll_activity_task, worker.poll_workflow_activation
    complete_activity = worker.complete_activity_task
    complete_workflow = worker.complete_workflow_activation

    async def poll_activity_task(self: Any) -> Any:
        await released()
        task = await poll_activity(self)
        tasks.polled_activity(task)
        return task

    async def complete_activity_task(self: Any, completion: Any) -> None:
        tasks.completing_activity(completion.task_token)
        await complete_activity(self, completion)
        tasks.completed_activity(completion.task_token)

    async def poll_workflow_activation(self: Any) -> Any:
        await released()
        activation = await poll_workflow(self)
        tasks.polled_workflow(activation)
        return activation

    async def complete_workflow_activation(self: Any, completion: Any) -> None:
        commands = {c.WhichOneof("variant") for c in completion.successful.commands}
        tasks.completing_workflow(completion.run_id, commands)
        await complete_workflow(self, completion)
        tasks.completed_workflow(commands)

    worker.poll_activity_task = poll_activity_task
    worker.complete_activity_task = complete_activity_task
    worker.poll_workflow_activation = poll_workflow_activation
    worker.complete_workflow_activation = complete_workflow_activation


# --- the run's state, which the workflow shares with us ---------------------------------------


def _state(module: Any) -> None:
    for method, name in (
        ("heard", "reply.heard"),
        ("keep_reply", "reply.appended"),
        ("propose", "calls.proposed"),
        ("take_results", "results.appended"),
        ("next_turn", "turn.next"),
        ("resolve", "message.applied"),
    ):
        _after(module.RunState, method, name)


# --- tools ------------------------------------------------------------------------------------


def _tools(module: Any) -> None:
    plain = module.Tool.__init__

    @functools.wraps(plain)
    def init(self: Any, *args: Any, **options: Any) -> None:
        plain(self, *args, **options)
        if self.spec.mutates:
            self.function = _tool(self.function)
        if self.probe is not None:
            self.probe = _probe(self.probe)

    module.Tool.__init__ = init


def _tool(function: Any) -> Any:
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def called(*args: Any, **options: Any) -> Any:
            if reached("tool.marked"):
                await asyncio.sleep(_MARKER_SECONDS)
                die("tool.marked")
            value = await function(*args, **options)
            passing("tool.done")
            return value

        return called

    @functools.wraps(function)
    def called_in_process(*args: Any, **options: Any) -> Any:
        if reached("tool.marked"):
            # Sent by the worker, meanwhile.
            time.sleep(_MARKER_SECONDS)
            die("tool.marked")
        value = function(*args, **options)
        passing("tool.done")
        return value

    return called_in_process


def _probe(probe: Any) -> Any:
    if inspect.iscoroutinefunction(probe):

        @functools.wraps(probe)
        async def asked(*args: Any) -> Any:
            passing("probe.before")
            answer = await probe(*args)
            passing("probe.answered")
            return answer

        return asked

    @functools.wraps(probe)
    def asked_at_once(*args: Any) -> Any:
        passing("probe.before")
        answer = probe(*args)
        passing("probe.answered")
        return answer

    return asked_at_once


def _effects(module: Any) -> None:
    wait, wait_async = module.Effects._reply, module.AsyncEffects._reply

    def reply(self: Any, request: bytes, *args: Any) -> Any:
        if request.startswith(b"POST"):
            passing("effect.sent")
        return wait(self, request, *args)

    async def reply_async(self: Any, request: bytes, *args: Any) -> Any:
        if request.startswith(b"POST"):
            passing("effect.sent")
        return await wait_async(self, request, *args)

    module.Effects._reply = reply
    module.AsyncEffects._reply = reply_async


def _ledger(module: Any) -> None:
    from sqlalchemy.engine.default import DefaultDialect

    record = module._Record
    claim, finish = record.claim, record.finish
    commit: Any = DefaultDialect.do_commit
    written: set[int] = set()

    def claimed(self: Any) -> Any:
        passing("ledger.before")
        return claim(self)

    def finished(self: Any, effect: Any) -> None:
        finish(self, effect)
        if effect.is_new:
            written.add(id(self._connection.connection.dbapi_connection))
            passing("ledger.inserted")

    def committed(self: Any, connection: Any) -> None:
        commit(self, connection)
        if id(connection.dbapi_connection) in written:
            written.discard(id(connection.dbapi_connection))
            passing("ledger.committed")

    record.claim, record.finish = claimed, finished
    DefaultDialect.do_commit = committed  # type: ignore[method-assign]


# --- what is stored and read --------------------------------------------------------------------


def _artifacts(module: Any) -> None:
    for store in (module.FolderStore, module.ObjectStore):
        store.put = _put(store.put)


def _put(plain: Any) -> Any:
    from temporalio import activity

    @functools.wraps(plain)
    async def put(*args: Any, **options: Any) -> Any:
        kind = activity.info().activity_type if activity.in_activity() else "run."
        ours = {"run.seal": "seal", "run.shorten": "shorten"}
        name = ours.get(kind, "" if kind.startswith("run.") else "artifact")
        if name:
            passing(f"{name}.before")
        artifact = await plain(*args, **options)
        if name:
            passing(f"{name}.stored")
        return artifact

    return put


def _history(module: Any) -> None:
    view = module.HistoryReader.view

    @functools.wraps(view)
    async def read(*args: Any, **options: Any) -> Any:
        passing("recovery.reading")
        found = await view(*args, **options)
        passing("recovery.read")
        return found

    module.HistoryReader.view = read
