"""One tool's process, as the worker sees it."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import json
import logging
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import structlog

from activities import runner_frames as frames
from activities.results import Parts
from activities.runner_errors import rebuilt
from activities.runner_process import CALL_OVER, KILL_SECONDS, extension
from turnkeeper.errors import StateLost, ToolFailed
from turnkeeper.returned import Unreadable
from turnkeeper.tools import Tool, ToolContext

_HOUSE = Path(__file__).resolve().parent.parent
_CHUNK = 262_144
_ANSWERS = (frames.RETURNED, frames.PARTS, frames.UNREADABLE, frames.RAISED)
_LEAVE_SECONDS = 2.0
"""For a process that is to end by itself: its `atexit` functions run."""

log = structlog.get_logger("turnkeeper.runners")


class ProcessEnded(Exception):
    """Raised when the tool's process ended before the tool did; the effect may have happened.

    `status` is its exit status, minus the signal that killed it, or None when that is not known.
    """

    def __init__(self, message: str, status: int | None) -> None:
        super().__init__(message)
        self.status = status


class NotBegun(Exception):
    """Raised when the process ended before it reached the tool: nothing has happened."""


def pickled(tool: Tool, arguments: Mapping[str, Any], context: ToolContext) -> bytes:
    """A call as the process reads it.

    Raises:
        TypeError: an argument that cannot be handed over.
    """
    known = {f.name: getattr(context, f.name) for f in fields(context) if f.name[0] != "_"}
    known.pop("log")
    job = {
        "module": tool.function.__module__,
        "qualname": tool.function.__qualname__,
        "arguments": {k: v for k, v in arguments.items() if k != tool.context_parameter},
        "context_parameter": tool.context_parameter,
        "context": {**known, "metadata": dict(context.metadata)},
    }
    try:
        return frames.packed(frames.JOB, pickle.dumps(job, pickle.HIGHEST_PROTOCOL))
    except Exception as error:
        raise TypeError(f"the arguments cannot be handed to a process: {error}") from error


class Handle:
    """A process of its own for one call after the other; started by its construction.

    Raises:
        OSError: the machine has no room for it.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.calls = 0
        self.owed = 0
        """Extensions of the call's lease since the process last showed that it runs."""
        self._to_say = _setup(environment)
        self._frames = frames.Frames()
        self.begun = False
        """Whether the call that runs has reached the tool."""
        self._context: ToolContext | None = None
        # The call's own, in which log lines find their run.
        self._around = contextvars.Context()
        # While a call reads from `_data`, it is not closed.
        self._reading = asyncio.Lock()
        self._idle = asyncio.Event()
        self._ended = asyncio.Event()
        self._status: int | None = None
        self._killed = False
        self._overdue = False
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            self._control, control = socket.socketpair()
            ours.enter_context(self._control)
            theirs.enter_context(control)
            self._data, data = socket.socketpair()
            ours.enter_context(self._data)
            theirs.enter_context(data)
            self._process = subprocess.Popen(
                # -P: a module in the working directory must not stand in for the library's.
                [sys.executable, "-P", "-m", "activities.runner_process"]
                + [str(s.fileno()) for s in (control, data)],
                env={**environment, "PYTHONPATH": str(_HOUSE)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[control.fileno(), data.fileno()],
                # Ctrl-C is for the worker, which finishes its calls.
                start_new_session=True,
            )
            ours.pop_all()
        for sock in (self._control, self._data):
            sock.setblocking(False)
        # In no call's context, for it outlives the one that needed this process.
        self._watch = asyncio.get_running_loop().create_task(
            self._listen(), context=contextvars.Context()
        )

    @property
    def alive(self) -> bool:
        """Whether it can take a call, as far as is known."""
        return not self._ended.is_set()

    @property
    def pid(self) -> int:
        """The supervisor's process id."""
        return self._process.pid

    def extend(self, until: float) -> None:
        """Let the call run until then, by the clock of leases; without one it runs for ever."""
        self.owed += 1
        # One that is gone, or does not read, is noticed elsewhere.
        with contextlib.suppress(OSError):
            self._control.send(extension(until))

    async def call(self, job: bytes, context: ToolContext) -> str | Parts:
        """Run one pickled call to its end. Cancellation has killed everything when it goes on.

        Raises:
            NotBegun: the process was gone already.
            ProcessEnded: it ended in the middle.
            Unreadable: the tool ran to its end and returned what has no text.
            Exception: what the tool raised.
        """
        self.calls += 1
        self.owed = 0
        self.begun = False
        self._context, self._around = context, contextvars.copy_context()
        try:
            async with self._reading:
                await self._send(job)
                kind, content, left = await self._answer(context)
            await self._settle(left)
        except BaseException:
            await _to_its_end(self.kill())
            raise
        finally:
            self._context, self._around = None, contextvars.Context()
        if kind == frames.RETURNED:
            return content.decode()
        if kind == frames.PARTS:
            return Parts.unpacked(content)
        if kind == frames.UNREADABLE:
            raise Unreadable(content.decode())
        raise rebuilt(json.loads(content))

    async def _send(self, message: bytes) -> None:
        message, self._to_say = self._to_say + message, b""
        # One that is gone is noticed where its answer is read.
        with contextlib.suppress(ConnectionError):
            await asyncio.get_running_loop().sock_sendall(self._data, message)

    async def _answer(self, context: ToolContext) -> tuple[bytes, bytes, bool]:
        """Kind and content of the answer, and whether processes were left."""
        answer = frames.RAISED, b""
        while True:
            arrived = await self._receive()
            beats = [content for kind, content in arrived if kind == frames.HEARTBEAT]
            if beats:
                # Of those that came together only the last one counts.
                self._beat(context, beats[-1])
            for kind, content in arrived:
                if kind == frames.DONE:
                    return *answer, bool(content)
                if kind in _ANSWERS:
                    answer = kind, content
                elif kind == frames.BEGUN:
                    self.begun = True
                elif kind == frames.LOG:
                    self._log(json.loads(content))
                elif kind == frames.WANTED:
                    await self._hand_over(context, content.decode())

    async def _receive(self) -> list[tuple[bytes, bytes]]:
        try:
            chunk = await asyncio.get_running_loop().sock_recv(self._data, _CHUNK)
        except ConnectionError:
            # It ended without having read all of the job.
            chunk = b""
        if not chunk:
            raise await self._lost()
        return self._frames.feed(chunk)

    async def _settle(self, left: bool) -> None:
        """Before the call is over: what was printed is logged, what was left behind is killed."""
        if left:
            self._log({"event": "tool left processes, which are killed", "level": "warning"})
            return await self.kill()
        self._idle.clear()
        with contextlib.suppress(OSError):
            self._control.send(CALL_OVER)
            await self._idle.wait()
        return None

    async def _lost(self) -> Exception:
        await self._ended.wait()
        how = _how_it_ended(self._status)
        if self._killed:
            how = "the tool's process was ended by its worker"
        elif self._overdue:
            how = "the tool's process was ended: its lease was over"
        return ProcessEnded(how, self._status) if self.begun else NotBegun(how)

    # --- what the tool says meanwhile -----------------------------------------------------------

    def _beat(self, context: ToolContext, details: bytes) -> None:
        try:
            context.heartbeat(json.loads(details))
        except Exception as error:  # noqa: BLE001  no reason to end a call that is at work
            log.warning("heartbeat not passed on", error=str(error))

    def _log(self, line: dict[str, Any]) -> None:
        if "logger" in line:
            logging.getLogger(line["logger"]).log(line["level"], "%s", line["event"])
            return
        to: Any = self._context.log if self._context else log
        more = line.get("fields", {})
        with contextlib.suppress(Exception):
            if isinstance(to, logging.Logger):
                # The context's default, in tests of tools; it takes no fields.
                getattr(to, line["level"])("%s %s", line["event"], more or "")
            else:
                getattr(to, line["level"])(line["event"], **more)

    async def _hand_over(self, context: ToolContext, artifact: str) -> None:
        try:
            reply = frames.packed(frames.ARTIFACT, await context.artifact(artifact))
        except OSError as error:
            reply = frames.packed(frames.NOT_NOW, str(error).encode("utf-8", "replace"))
        except (StateLost, ToolFailed, ValueError) as error:
            reply = frames.packed(frames.NO_ARTIFACT, str(error).encode("utf-8", "replace"))
        await self._send(reply)

    # --- the supervisor's word ------------------------------------------------------------------

    async def _listen(self) -> None:
        """Pass on what the supervisor says; after its end clear up."""
        loop, heard = asyncio.get_running_loop(), bytearray()
        while True:
            try:
                chunk = await loop.sock_recv(self._control, _CHUNK)
            except OSError:
                chunk = b""
            if not chunk:
                break
            *messages, rest = (heard + chunk).split(b"\n")
            heard = bytearray(rest)
            for message in messages:
                self._heard(json.loads(message))
        self._over()
        await self._collect()
        self._control.close()
        async with self._reading:
            self._data.close()

    def _heard(self, message: dict[str, Any]) -> None:
        if "line" in message:
            fields = {"stream": message["stream"], "text": message["line"]}
            line = {"event": "tool output", "level": "info", "fields": fields}
            self._around.run(self._log, line)
        elif "ended" in message:
            self._status, self._overdue = message["ended"], message["overdue"]
            if message["left"]:
                log.error("tool processes do not die", processes=message["left"], pid=self.pid)
            self._over()
        elif "runs" in message:
            self.owed = 0
        else:
            self._idle.set()

    def _over(self) -> None:
        self._ended.set()
        self._idle.set()
        # Wakes the call that reads; what had arrived before can still be read.
        with contextlib.suppress(OSError):
            self._data.shutdown(socket.SHUT_RD)

    async def _collect(self) -> None:
        wait = 0.001
        while self._process.poll() is None:
            await asyncio.sleep(wait)
            wait = min(wait * 2, 0.1)

    # --- ends -----------------------------------------------------------------------------------

    async def kill(self) -> None:
        """Kill the process and everything it started; returns when nothing is left of it."""
        self._killed = True
        with contextlib.suppress(OSError):
            # The supervisor kills at the end of its input: as when we die.
            self._control.shutdown(socket.SHUT_WR)
        # Somebody may have stopped it by hand.
        self._process.send_signal(signal.SIGCONT)
        try:
            await asyncio.wait_for(self._ended.wait(), KILL_SECONDS * 2.5)
        except TimeoutError:
            # Its own child dies with it; what that had started is out of reach.
            log.error("a tool's supervisor does not answer and is killed", pid=self.pid)
            self._process.kill()
            await self._ended.wait()
        await self._cleared()

    async def leave(self) -> None:
        """End an idle process: it may finish in order, but not for long."""
        with contextlib.suppress(OSError):
            self._data.shutdown(socket.SHUT_WR)
        try:
            await asyncio.wait_for(self._ended.wait(), _LEAVE_SECONDS)
        except TimeoutError:
            await self.kill()
        await self._cleared()

    async def _cleared(self) -> None:
        # One that sweeps on for a minute, after what would not die, is collected later.
        await asyncio.wait([self._watch], timeout=0.5)


async def _to_its_end(work: Any) -> None:
    """Await `work` whatever cancels us meanwhile: half a kill is none."""
    task = asyncio.ensure_future(work)
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([task])
    task.result()


def _setup(environment: Mapping[str, str]) -> bytes:
    return frames.packed(
        frames.SETUP,
        json.dumps(
            {
                "path": [str(folder) for folder in sys.path],
                "pythonpath": environment.get("PYTHONPATH"),
                "level": logging.getLogger().getEffectiveLevel(),
            }
        ).encode(),
    )


def _how_it_ended(status: int | None) -> str:
    if status is None:
        return "the tool's process was lost"
    if status >= 0:
        return f"the tool's process ended with exit status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = "unknown"
    hint = ", perhaps for want of memory" if -status == signal.SIGKILL else ""
    return f"the tool's process ended with signal {-status} ({name}){hint}"
