"""Forks workers off a process that has imported already what they need.

A worker's imports take seconds of a processor, most of the time of a case whose worker dies after a
second. A worker from here is a process like any other, with a session, a log, an environment and a
wait status of its own:

    with Nursery.start(checkout, ["anthropic", "temporalio.worker"]) as nursery:
        worker = nursery.fork("worker-1", ["worker.py", "--agents", "my_agents"], folder=tmp_path)

What it runs are the arguments of `turnkeeper.testing.crashing`. All of them end with the nursery,
which ends with the process that started it. Agents are never preloaded: their tools get their crash
points when they are imported.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from turnkeeper.testing.process import ProcessError, tail_of

__all__ = ["ForkedProcess", "Nursery"]

_START_SECONDS = 90.0
_POLL_SECONDS = 0.02
_CHUNK = 1 << 16


class ForkedProcess:
    """A worker that was forked; the like of `ChildProcess`."""

    def __init__(self, name: str, pid: int, log: Path, ready_file: Path, nursery: Nursery) -> None:
        self.name = name
        self.pid = pid
        self.log = log
        self._ready_file = ready_file
        self._nursery = nursery

    @property
    def status(self) -> int | None:
        """None while it lives, then its exit code, or minus the signal that killed it."""
        return self._nursery.statuses.get(self.pid)

    def wait_ready(self, timeout: float) -> str:
        """Wait for the ready file; its content.

        Raises:
            ProcessError: it ended, or is not ready after `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        while not self._ready_file.exists():
            if self.status is not None or time.monotonic() > deadline:
                raise ProcessError(f"{self.name} is not ready, status {self.status}{self.tail()}")
            time.sleep(_POLL_SECONDS)
        return self._ready_file.read_text()

    def wait(self, timeout: float) -> int:
        """Wait for its end: the exit code, or minus the signal that killed it.

        Raises:
            ProcessError: it lives on after `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        while (status := self.status) is None:
            if time.monotonic() > deadline:
                raise ProcessError(f"{self.name} (pid {self.pid}) does not end")
            time.sleep(_POLL_SECONDS)
        return status

    def kill(self) -> None:
        """SIGKILL."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def end(self, timeout: float = 10) -> None:
        """SIGTERM, after `timeout` seconds SIGKILL."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)
        try:
            self.wait(timeout)
        except ProcessError:
            self.kill()
            self.wait(timeout)

    def tail(self) -> str:
        """The end of the log, for an error message."""
        return tail_of(self.log)


class Nursery:
    """The process that forks; made by `start`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.statuses: dict[int, int] = {}
        """Of the processes that have ended, by process id."""
        self._process = process
        self._forked: list[int] = []
        self._over = False
        self._told = threading.Condition()
        self._one_at_a_time = threading.Lock()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    @classmethod
    def start(cls, root: Path, preload: Sequence[str]) -> Nursery:
        """Start it in the folder `root`; the modules are imported before the first fork."""
        process = subprocess.Popen(
            [sys.executable, "-m", "turnkeeper.testing.nursery", *preload],
            cwd=root,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        return cls(process)

    def fork(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        folder: Path,
        environment: Mapping[str, str],
        crash_points: bool = True,
    ) -> ForkedProcess:
        """Start a worker; `folder` gets `NAME.ready` and `NAME.log`.

        Without `crash_points` the arguments are those of Python itself: a script and its own.

        Raises:
            ProcessError: the nursery does not answer, a module cannot be imported, say.
        """
        log, ready_file = folder / f"{name}.log", folder / f"{name}.ready"
        ready_file.unlink(missing_ok=True)
        log.touch()
        order = {
            "arguments": [*arguments, "--ready-file", str(ready_file)],
            "environment": dict(environment),
            "crash_points": crash_points,
            "log": str(log),
        }
        assert self._process.stdin is not None
        with self._one_at_a_time:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(json.dumps(order) + "\n")
                self._process.stdin.flush()
            with self._told:
                self._told.wait_for(lambda: self._forked or self._over, _START_SECONDS)
                if not self._forked:
                    raise ProcessError(f"the nursery (pid {self._process.pid}) does not answer")
                return ForkedProcess(name, self._forked.pop(), log, ready_file, self)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            with self._told:
                if "status" in told:
                    self.statuses[told["pid"]] = told["status"]
                else:
                    self._forked.append(told["pid"])
                self._told.notify_all()
        with self._told:
            self._over = True
            self._told.notify_all()

    def stop(self) -> None:
        """End it and all that it has forked."""
        self._process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


# --- the other side ---------------------------------------------------------------------------


def _serve(preload: Sequence[str]) -> None:
    """Fork one process for each line of input, and tell of each one's end."""
    for module in preload:
        importlib.import_module(module)
    if "temporalio.worker" in sys.modules:
        from temporalio.worker._worker import load_default_build_id

        # Two seconds of each worker's start: a digest of all code, which the SDK then remembers.
        load_default_build_id()
    assert threading.active_count() == 1, "a module started a thread: no fork is safe"
    living: set[int] = set()
    for line in _orders(living):
        pid = os.fork()
        if pid == 0:
            _become(json.loads(line))
        living.add(pid)
        _tell({"pid": pid})
    for pid in living:
        os.kill(pid, signal.SIGKILL)


def _orders(living: set[int]) -> Iterator[bytes]:
    """The lines of input; meanwhile the ends of processes are told of.

    Not by a signal's handler: a signal that comes just before a read would wait for the next line.
    """
    rest = b""
    while True:
        _reap(living)
        if not select.select([0], [], [], _POLL_SECONDS)[0]:
            continue
        read = os.read(0, _CHUNK)
        if not read:
            return
        *lines, rest = (rest + read).split(b"\n")
        yield from lines


def _reap(living: set[int]) -> None:
    while living:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        living.discard(pid)
        _tell({"pid": pid, "status": os.waitstatus_to_exitcode(status)})


def _tell(message: dict[str, Any]) -> None:
    os.write(1, json.dumps(message).encode() + b"\n")


def _become(order: dict[str, Any]) -> NoReturn:
    """Be the worker, with nothing of the nursery's own."""
    try:
        os.setsid()
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
    except OSError:
        os._exit(1)
    become(order["arguments"], order["environment"], crash_points=order["crash_points"])


def become(
    arguments: list[str], environment: Mapping[str, str], *, crash_points: bool = False
) -> NoReturn:
    """Be a script in a process that was forked, to its end, as the interpreter runs one."""
    status = 1
    try:
        os.environ.clear()
        os.environ.update(environment)
        # As the interpreter does it at its start, after the program's own folder.
        sys.path[1:1] = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
        _run(arguments, crash_points=crash_points)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
    except BaseException:  # noqa: BLE001 - told in the log, as the interpreter would
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _run(arguments: list[str], *, crash_points: bool) -> None:
    if crash_points:
        from turnkeeper.testing.crashing import main

        main(arguments)
        return
    sys.argv = arguments
    # As Python does it for a script.
    sys.path[0] = str(Path(arguments[0]).resolve().parent)
    runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    _serve(sys.argv[1:])
