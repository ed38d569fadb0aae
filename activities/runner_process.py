"""The supervisor of a tool's process: it ends that process with everything it started.

    worker ── control ── supervisor ── fork ── the process that calls the tool
       └───────────── data ────────────────────────┘

`python -m activities.runner_process CONTROL_FD DATA_FD`, started by a worker and by nobody else.
It ends the tree when the worker says so and when the worker is gone: both close `control`, and the
kernel closes it whatever ended the worker. It ends it, too, when the call's lease is over and the
worker has not extended it: then the worker is stopped, or cut off from the server, and the call is
another worker's. It is the subreaper of all it ends: a process that left
its group and session and lost its parent becomes the supervisor's own child, and is found.

It knows the standard library only and has one thread, so it is small and may fork.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

KILL_SECONDS = 2.0
"""After that, what does not die (it hangs in the kernel) is reported, and swept on for a minute."""
CALL_OVER = b"over\n"
"""What the worker writes to `control` after each call."""

_SWEEP_ON_SECONDS = 60.0
# A machine that slept does not count that time as waited for.
_LONGEST_WAIT = 1.0
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_CHUNK = 65_536
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def main() -> None:
    """Fork, then supervise until the tool's process ended or is to end."""
    control, data = (socket.socket(fileno=int(fd)) for fd in sys.argv[1:3])
    for ours in (control, data):
        ours.set_inheritable(False)
    # A service manager sends SIGTERM to every process of the worker when it only means that the
    # worker should finish its calls. A handler, since "ignore" would be inherited by what a tool
    # executes.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _noted)
    become_reaper()
    outputs = os.pipe(), os.pipe()
    supervisor = os.getpid()
    runner = os.fork()
    if runner == 0:
        control.close()
        for reading, _ in outputs:
            os.close(reading)
        _die_with(supervisor)
        _lead_group(0)
        from activities.runner_calls import serve

        serve(data, outputs[0][1], outputs[1][1])
        return
    # In both processes, as a shell does it: whichever is first.
    _lead_group(runner)
    data.close()
    for _, writing in outputs:
        os.close(writing)
    _Supervisor(control, runner, {"stdout": outputs[0][0], "stderr": outputs[1][0]}).run()
    os._exit(0)


def extension(until: float) -> bytes:
    """What the worker writes to `control` to let a call run until then, by `activities.lease`."""
    return b"%.3f\n" % until


def become_reaper() -> None:
    """Orphans below this process become its children (Linux); elsewhere only the group is ended."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _die_with(supervisor: int) -> None:
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor:
        os._exit(1)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _lead_group(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.setpgid(pid, pid)


def _noted(_number: int, _frame: object) -> None:
    pass


class _Supervisor:
    """Waits for the end of the process or for the worker's word, and passes on what is printed."""

    def __init__(self, control: socket.socket, runner: int, outputs: dict[str, int]) -> None:
        self._control = control
        self._runner = runner
        self._outputs = outputs
        self._lines = Lines()
        self._status: int | None = None
        self._to_end = False
        self._stands_still = False
        self._heard = bytearray()
        self._until = math.inf
        self._unsent = bytearray()
        self._selector = selectors.DefaultSelector()

    def run(self) -> None:
        """Until the tree has ended."""
        self._control.setblocking(False)
        self._selector.register(self._control, selectors.EVENT_READ, self._listen)
        for stream, fd in self._outputs.items():
            os.set_blocking(fd, False)
            self._selector.register(fd, selectors.EVENT_READ, lambda s=stream: self._read(s))
        self._wake_on_child()
        self._reap()
        while self._status is None and not self._to_end:
            lasts = self._until - time.clock_gettime(_CLOCK)
            if lasts <= 0:
                break
            for key, _ in self._selector.select(min(lasts, _LONGEST_WAIT)):
                key.data()
            self._reap()
            self._send()
        overdue = self._status is None and not self._to_end
        left = self._end_tree()
        self._say_all(ended=self._status, left=left, overdue=overdue)
        if left:
            self._end_tree(_SWEEP_ON_SECONDS)

    def _wake_on_child(self) -> None:
        waking, woken = os.pipe()
        for fd in (waking, woken):
            os.set_blocking(fd, False)
        signal.signal(signal.SIGCHLD, _noted)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)

        def empty() -> None:
            with contextlib.suppress(BlockingIOError):
                os.read(waking, _CHUNK)

        self._selector.register(waking, selectors.EVENT_READ, empty)

    def _listen(self) -> None:
        try:
            said = self._control.recv(_CHUNK)
        except BlockingIOError:
            return self._send()
        except OSError:
            said = b""
        if not said:
            self._to_end = True
        *messages, rest = (self._heard + said).split(b"\n")
        self._heard = bytearray(rest)
        for message in messages:
            if message + b"\n" == CALL_OVER:
                self._until = math.inf
                self._flush()
                self._say(idle=True)
            else:
                self._until = float(message)
                if not self._stands_still:
                    self._say(runs=True)
        return None

    # --- what the tool prints -------------------------------------------------------------------

    def _read(self, stream: str) -> bool:
        try:
            data = os.read(self._outputs[stream], _CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self._selector.unregister(self._outputs[stream])
            os.close(self._outputs.pop(stream))
            return False
        for line in self._lines.feed(stream, data):
            self._say(stream=stream, line=line)
        return True

    def _flush(self) -> None:
        for stream in tuple(self._outputs):
            # What is in the pipe now; a process that goes on writing does not keep us here.
            for _ in range(32):
                if not self._read(stream):
                    break
        for stream, line in self._lines.rest():
            self._say(stream=stream, line=line)

    # --- to the worker --------------------------------------------------------------------------

    def _say(self, **message: Any) -> None:
        # A worker that does not read (it is stopped, or busy) must block neither us nor the tool.
        if "line" in message and len(self._unsent) > 500_000:
            self._lines.dropped += len(message["line"])
            return
        self._unsent += json.dumps(message).encode() + b"\n"

    def _send(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: self._control.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self._unsent.clear()
            self._to_end = True
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
        self._selector.modify(self._control, wanted, self._listen)

    def _say_all(self, **message: Any) -> None:
        self._flush()
        self._say(**message)
        self._control.settimeout(KILL_SECONDS)
        with contextlib.suppress(OSError):
            self._control.sendall(self._unsent)

    # --- ends -----------------------------------------------------------------------------------

    def _reap(self) -> bool:
        """Collect what ended; whether any child is left."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
                if pid == 0:
                    return True
                if pid != self._runner:
                    continue
                if os.WIFSTOPPED(status) or os.WIFCONTINUED(status):
                    self._stands_still = os.WIFSTOPPED(status)
                else:
                    self._status = os.waitstatus_to_exitcode(status)
        except ChildProcessError:
            return False

    def _end_tree(self, seconds: float = KILL_SECONDS) -> int:
        """SIGKILL until nothing is left; how many would not die.

        Only unreaped children of our own are killed, and their groups: no such number can have
        become another process's meanwhile. Their children become ours in turn, and no child at all
        is the proof that the whole tree is gone.
        """
        deadline = time.monotonic() + seconds
        if self._status is None:
            # First the group, at once: the kernel lets no fork escape from that.
            for kill in (os.killpg, os.kill):
                with contextlib.suppress(OSError):
                    kill(self._runner, signal.SIGKILL)
        while self._reap():
            left = children()
            for pid in left:
                _kill(pid)
            if time.monotonic() > deadline:
                return len(left)
            time.sleep(0.001)
        return 0


def _kill(pid: int) -> None:
    with contextlib.suppress(OSError):
        group = os.getpgid(pid)
        if group == os.getpgid(0):
            os.kill(pid, signal.SIGKILL)
        else:
            os.killpg(group, signal.SIGKILL)


def children() -> list[int]:
    """Processes whose parent is this one, dead ones included; none where there is no /proc."""
    us, found = str(os.getpid()).encode(), []
    for folder in Path("/proc").glob("[0-9]*"):
        # It may end meanwhile. The name in parentheses may hold anything.
        with contextlib.suppress(OSError):
            if (folder / "stat").read_bytes().rpartition(b")")[2].split()[1] == us:
                found.append(int(folder.name))
    return found


class Lines:
    """What a tool prints, as lines, within bounds: 200 a call, then 10 a second; 1,000 bytes each.

    The rest is counted. A flood costs neither memory nor a full log, and never blocks the tool.
    """

    BURST = 200
    A_SECOND = 10
    LONGEST = 1_000

    def __init__(self) -> None:
        self.dropped = 0
        """Bytes not shown and not yet told of."""
        self._room = float(self.BURST)
        self._at = time.monotonic()
        self._partial: dict[str, bytearray] = {}
        self._amid: set[str] = set()

    def feed(self, stream: str, data: bytes) -> Iterator[str]:
        """The lines to show that `data` completes."""
        now = time.monotonic()
        self._room = min(self._room + (now - self._at) * self.A_SECOND, self.BURST)
        self._at = now
        partial = self._partial.setdefault(stream, bytearray())
        if stream in self._amid:
            skipped, newline, data = data.partition(b"\n")
            self.dropped += len(skipped)
            if not newline:
                return
            self._amid.discard(stream)
        while data:
            if self._room < 1:
                self.dropped += len(partial) + len(data)
                partial.clear()
                if not data.endswith(b"\n"):
                    self._amid.add(stream)
                return
            line, newline, data = data.partition(b"\n")
            kept = line[: self.LONGEST - len(partial)]
            self.dropped += len(line) - len(kept)
            partial += kept
            if newline:
                self._room -= 1
                yield partial.decode(errors="replace")
                partial.clear()

    def rest(self) -> Iterator[tuple[str, str]]:
        """At a call's end: unfinished lines, and how much was not shown. The next starts anew."""
        for stream, partial in self._partial.items():
            if partial:
                yield stream, partial.decode(errors="replace")
                partial.clear()
        if self.dropped:
            yield "stdout", f"(and {self.dropped:,} bytes that are not shown)"
        self.dropped = 0
        self._amid.clear()
        self._room = float(self.BURST)


if __name__ == "__main__":
    main()
