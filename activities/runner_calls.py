"""The process that calls the tool: jobs come in, results, errors, heartbeats and logs go out."""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import importlib
import json
import logging
import os
import pickle
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from activities import runner_frames as frames
from activities.runner_errors import described
from activities.runner_process import become_reaper
from activities.runner_surroundings import restored

_MAX_LOGGED = 4_000


def serve(data: socket.socket, out: int, err: int) -> None:
    """Run jobs until the worker closes its end; called once, in a fork of the supervisor.

    `out` and `err` are the pipes for what tools print.
    """
    become_reaper()
    _be_the_first_to_go()
    # A forked child of a tool (multiprocessing) can be ended as it expects.
    os.register_at_fork(after_in_child=_default_signals)
    streams = _Streams(out, err)
    kind, content = _receive(data)
    assert kind == frames.SETUP
    setup = json.loads(content)
    sys.path[:] = setup["path"]
    _restore("PYTHONPATH", setup["pythonpath"])
    faulthandler.enable()
    calls = _Calls(data)
    root = logging.getLogger()
    root.addHandler(_Records(calls.tell))
    root.setLevel(setup["level"])
    while True:
        kind, content = _receive(data)
        if kind != frames.JOB:
            return
        # What the call before may have closed or replaced.
        streams.restore()
        calls.answer(content, streams.flush)


def find(module: str, qualname: str) -> Callable[..., Any]:
    """The tool's function by name.

    Raises:
        ImportError: there is no such module.
        AttributeError: the module has no such name.
    """
    found: Any = importlib.import_module(module)
    for part in qualname.split("."):
        found = getattr(found, part)
    from turnkeeper.tools import Tool

    function: Callable[..., Any] = found.function if isinstance(found, Tool) else found
    return function


class _Calls:
    """One call at a time, and its words to the worker."""

    def __init__(self, data: socket.socket) -> None:
        self._data = data
        self._pid = os.getpid()
        # A tool may log and heartbeat from threads of its own.
        self._sending = threading.Lock()
        self._asking = threading.Lock()
        self._number = 0

    def answer(self, pickled: bytes, flush: Callable[[], None]) -> None:
        """Run a job and send what became of it."""
        from activities.results import Parts, content_of
        from turnkeeper.returned import Unreadable

        threads = set(threading.enumerate())
        try:
            job = pickle.loads(pickled)  # noqa: S301  from the worker, which is our parent
            function = find(job["module"], job["qualname"])
            arguments = self._arguments(job)
            # From here on the effect may have happened.
            self._send(frames.BEGUN, b"")
            with restored():
                value = function(**arguments)
            content = content_of(value)
            value = None
            if isinstance(content, Parts):
                answer = frames.PARTS, content.packed()
            else:
                answer = frames.RETURNED, content.encode()
        except Unreadable as error:
            answer = frames.UNREADABLE, str(error).encode()
        except BaseException as error:  # noqa: BLE001  a tool may raise anything
            since = error.__traceback__.tb_next if error.__traceback__ else None
            answer = frames.RAISED, json.dumps(described(error, since)).encode()
        if os.getpid() != self._pid:
            # A fork that came back out of the tool: its parent is the one who answers.
            os._exit(1)
        flush()
        self._report_threads(threads)
        self._number += 1
        if len(answer[1]) > frames.MAX_FRAME_BYTES:
            answer = frames.UNREADABLE, b"%d bytes of text" % len(answer[1])
        self._send(*answer)
        self._send(frames.DONE, b"left" if _has_children() else b"")

    def tell(self, kind: bytes, message: Any, number: int | None = None) -> None:
        """Send JSON to the worker, unless the call that says it is over or not of this process."""
        if os.getpid() == self._pid and number in (None, self._number):
            self._send(kind, json.dumps(message).encode())

    def _arguments(self, job: dict[str, Any]) -> dict[str, Any]:
        arguments: dict[str, Any] = job["arguments"]
        parameter = job["context_parameter"]
        if parameter is None:
            return arguments
        from activities.results import sendable
        from turnkeeper.tools import ToolContext

        number = self._number
        say = functools.partial(self.tell, number=number)
        context = ToolContext(
            **job["context"],
            log=_Log(functools.partial(say, frames.LOG), {}),
            _heartbeat=lambda details: say(frames.HEARTBEAT, sendable(details)),
            _artifact=self._artifact,
        )
        return {**arguments, parameter: context}

    async def _artifact(self, artifact: str) -> bytes:
        from turnkeeper.errors import StateLost

        with self._asking:
            self._send(frames.WANTED, artifact.encode())
            kind, content = _receive(self._data)
        if kind == frames.ARTIFACT:
            return content
        if kind == frames.NOT_NOW:
            raise OSError(content.decode())
        raise StateLost(content.decode() or "the worker is gone")

    def _send(self, kind: bytes, content: bytes) -> None:
        with self._sending:
            self._data.sendall(frames.HEAD.pack(kind, len(content)))
            self._data.sendall(content)

    def _report_threads(self, before: set[threading.Thread]) -> None:
        # Not ended with the call: connection pools and exporters keep such threads on purpose.
        new = [t.name for t in threading.enumerate() if t not in before]
        if new:
            told = {"event": "tool left threads running", "level": "warning"}
            self.tell(frames.LOG, {**told, "fields": {"threads": ", ".join(new)[:_MAX_LOGGED]}})


class _Log:
    """`ctx.log`: each line travels to the worker's own logger of the call."""

    def __init__(self, tell: Callable[[dict[str, Any]], None], bound: dict[str, Any]) -> None:
        self._tell = tell
        self._bound = bound

    def bind(self, **fields: Any) -> _Log:
        """A logger that adds these fields to every line."""
        return _Log(self._tell, {**self._bound, **fields})

    def debug(self, event: str, /, *args: Any, **fields: Any) -> None:
        """A line for the author."""
        self._say("debug", event, args, fields)

    def info(self, event: str, /, *args: Any, **fields: Any) -> None:
        """A line for the operator."""
        self._say("info", event, args, fields)

    def warning(self, event: str, /, *args: Any, **fields: Any) -> None:
        """Something an operator should look at."""
        self._say("warning", event, args, fields)

    def error(self, event: str, /, *args: Any, **fields: Any) -> None:
        """Something that failed."""
        self._say("error", event, args, fields)

    def critical(self, event: str, /, *args: Any, **fields: Any) -> None:
        """Something that cannot wait."""
        self._say("critical", event, args, fields)

    def exception(self, event: str, /, *args: Any, **fields: Any) -> None:
        """Something that failed, with the traceback of the exception being handled."""
        self._say("error", event, args, {**fields, "exception": traceback.format_exc(-10)})

    def _say(self, level: str, event: str, args: tuple[Any, ...], fields: dict[str, Any]) -> None:
        text = str(event)
        with contextlib.suppress(TypeError, ValueError):
            text = text % args if args else text
        shown = {k: _plain(v) for k, v in {**self._bound, **fields}.items()}
        self._tell({"event": text[:_MAX_LOGGED], "level": level, "fields": shown})


class _Records(logging.Handler):
    """What modules log through the standard library, into the worker's log."""

    def __init__(self, tell: Callable[[bytes, Any], None]) -> None:
        super().__init__()
        self._tell = tell
        self.setFormatter(logging.Formatter())

    def emit(self, record: logging.LogRecord) -> None:
        """Send it; a record that cannot be formatted is the standard library's to report."""
        try:
            text = self.format(record)[:_MAX_LOGGED]
            self._tell(frames.LOG, {"event": text, "level": record.levelno, "logger": record.name})
        except Exception:  # noqa: BLE001  as every handler does
            self.handleError(record)


class _Streams:
    """Standard output and error, put right again before each call."""

    def __init__(self, out: int, err: int) -> None:
        self._pipes = {1: out, 2: err}
        for fd, pipe in self._pipes.items():
            os.dup2(pipe, fd)
        self._text: dict[int, TextIO] = {}
        self.restore()

    def restore(self) -> None:
        """Open again what a tool closed, take back what it replaced."""
        for fd, pipe in self._pipes.items():
            try:
                os.fstat(fd)
            except OSError:
                os.dup2(pipe, fd)
            if fd not in self._text or self._text[fd].closed:
                self._text[fd] = open(  # noqa: SIM115
                    fd, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False
                )
        sys.stdout, sys.stderr = self._text[1], self._text[2]

    def flush(self) -> None:
        """Before the result is sent, so that every line belongs to its call."""
        for text in self._text.values():
            with contextlib.suppress(Exception):
                text.flush()


def _receive(data: socket.socket) -> tuple[bytes, bytes]:
    """The next message, or an empty kind once the worker closed its end."""
    try:
        kind, length = frames.HEAD.unpack(_exactly(data, frames.HEAD.size))
        return kind, bytes(_exactly(data, length))
    except EOFError:
        return b"", b""


def _exactly(data: socket.socket, size: int) -> bytearray:
    buffer = bytearray(size)
    view, at = memoryview(buffer), 0
    while at < size:
        got = data.recv_into(view[at:])
        if not got:
            raise EOFError
        at += got
    return buffer


def _has_children() -> bool:
    """Whether the call left a process, running or not collected.

    One system call suffices, for orphans become our children (see `become_reaper`).
    """
    if not hasattr(os, "waitid"):
        return False
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _be_the_first_to_go() -> None:
    # When memory runs out the kernel ends a tool, not the worker with all its runs.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")


def _default_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _restore(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float)):
        return value
    try:
        return str(value)[:_MAX_LOGGED]
    except Exception:  # noqa: BLE001  a value's own __str__ may raise anything
        return f"({type(value).__name__})"
