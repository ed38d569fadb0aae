"""Child processes that are ready when they say so, and end when their parent does.

The kernel closes the parent's end of a watchdog's pipe whatever ends the parent, SIGKILL included:
then the watchdog ends the child.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from turnkeeper.errors import TurnkeeperError

__all__ = ["ChildProcess", "ProcessError", "processes_with", "tail_of"]

_LOG_TAIL_BYTES = 2_000
_POLL_SECONDS = 0.02

# A parent that is done with the child writes a line; the end of input without one is its death.
_WATCHDOG = """
read -r line && exit 0
kill -TERM "$1" || exit 0
waited=0
while kill -0 "$1" && [ "$waited" -lt 50 ]; do sleep 0.1; waited=$((waited + 1)); done
kill -KILL "$1"
"""


class ProcessError(TurnkeeperError):
    """Raised when a process did not become ready, or ended; the message has its log."""


class ChildProcess:
    """A process with a log, a ready file and a watchdog; made by `start`.

    `name` is for messages, `log` None for a process that writes to our own terminal.
    """

    def __init__(
        self,
        name: str,
        process: subprocess.Popen[bytes],
        watchdog: subprocess.Popen[bytes],
        log: Path | None,
        ready_file: Path,
    ) -> None:
        self.name = name
        self.log = log
        self._process = process
        self._watchdog = watchdog
        self._ready_file = ready_file

    @classmethod
    def start(
        cls,
        name: str,
        command: Sequence[str],
        *,
        folder: Path,
        cwd: Path,
        environment: Mapping[str, str],
        console: bool = False,
    ) -> ChildProcess:
        """Start `command` with `--ready-file FILE` appended.

        `folder` gets `NAME.ready` and `NAME.log`; with `console` the log goes to our stderr. The
        child leaves our process group: Ctrl-C reaches us, and we end it in order.
        """
        ready_file = folder / f"{name}.ready"
        ready_file.unlink(missing_ok=True)
        log = None if console else folder / f"{name}.log"
        with contextlib.ExitStack() as files:
            output = files.enter_context(log.open("wb")) if log else None
            process = subprocess.Popen(
                [*command, "--ready-file", str(ready_file)],
                cwd=cwd,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT if output else None,
                start_new_session=True,
            )
        watchdog = subprocess.Popen(
            ["/bin/sh", "-c", _WATCHDOG, "watchdog", str(process.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return cls(name, process, watchdog, log, ready_file)

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    @property
    def status(self) -> int | None:
        """None while it lives, then its exit code, or minus the signal that killed it."""
        return self._process.poll()

    @property
    def is_ready(self) -> bool:
        """Whether it has written its ready file."""
        return self._ready_file.exists()

    def wait_ready(self, timeout: float) -> str:
        """Wait for the ready file; its content.

        Raises:
            ProcessError: it ended, or is not ready after `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        while not self.is_ready:
            if self.status is not None:
                raise ProcessError(f"the {self.name} ended with status {self.status}{self.tail()}")
            if time.monotonic() > deadline:
                late = f"the {self.name} (pid {self.pid}) is not ready after {timeout:g} s"
                raise ProcessError(late + self.tail())
            time.sleep(_POLL_SECONDS)
        return self._ready_file.read_text()

    def wait(self, timeout: float) -> int:
        """Wait for its end: the exit code, or minus the signal that killed it.

        Raises:
            ProcessError: it lives on after `timeout` seconds.
        """
        try:
            status = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise ProcessError(f"the {self.name} (pid {self.pid}) does not end") from None
        self._dismiss_watchdog()
        return status

    def kill(self) -> None:
        """SIGKILL, for who does not want to wait; `end` still has to be called."""
        self._process.kill()

    def ask_to_end(self) -> None:
        """SIGTERM, without waiting; `end` still has to be called."""
        self._process.terminate()

    def end(self, timeout: float = 10) -> None:
        """SIGTERM, after `timeout` seconds SIGKILL."""
        # First, so that it never meets another process of the same pid.
        self._dismiss_watchdog()
        self._process.terminate()
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._ready_file.unlink(missing_ok=True)

    def tail(self) -> str:
        """The end of the log, for an error message."""
        return tail_of(self.log) if self.log else ""

    def _dismiss_watchdog(self) -> None:
        if self._watchdog.poll() is None:
            with contextlib.suppress(BrokenPipeError):
                self._watchdog.communicate(b"done\n")


def tail_of(log: Path) -> str:
    """The end of a log, for an error message."""
    text = log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip()
    return f"\n{log} ends with:\n{text or '(nothing)'}"


def processes_with(setting: str) -> list[str]:
    """Processes that were started with it, as `PID COMMAND`; none where there is no /proc."""
    found, wanted = [], setting.encode()
    for folder in Path("/proc").glob("[0-9]*"):
        # It may end meanwhile, or be another user's.
        with contextlib.suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                found.append(f"{folder.name} {command.decode(errors='replace')[:100]}")
    return found
