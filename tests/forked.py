"""Commands in processes that are forked: each is a process of its own, without a second of imports.

    done = run(["starter.py", "list"], cwd=ROOT, env=environment(), stdin=None, timeout=90)

It has its own arguments, environment, working directory, streams and exit status, as one that
Python has begun; what is missing is the time in which Python imports the client.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from turnkeeper.testing.nursery import become

_PRELOAD = ("asyncio", "pydantic", "temporalio.client", "turnkeeper.client", "turnkeeper.render")
_one_at_a_time = threading.Lock()
_server: subprocess.Popen[str] | None = None


def run(
    arguments: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    stdin: str | None,
    timeout: float,
) -> subprocess.CompletedProcess[str]:
    """Run a script to its end.

    Raises:
        subprocess.TimeoutExpired: it was killed after `timeout` seconds.
    """
    with tempfile.TemporaryDirectory() as folder:
        names = {name: str(Path(folder) / name) for name in ("in", "out", "err", "status")}
        Path(names["in"]).write_text(stdin or "")
        os.mkfifo(names["status"])
        order = {"arguments": list(arguments), "cwd": str(cwd), "env": dict(env), **names}
        with _one_at_a_time:
            server = _started()
            assert server.stdin is not None
            assert server.stdout is not None
            server.stdin.write(json.dumps(order) + "\n")
            server.stdin.flush()
            pid = int(server.stdout.readline())
        killing = threading.Timer(timeout, _kill, (pid,))
        killing.start()
        # Until the process that waits for the command has written its end.
        status = int(Path(names["status"]).read_text())
        killing.cancel()
        out, err = (Path(names[name]).read_text() for name in ("out", "err"))
    if status == -signal.SIGKILL:
        raise subprocess.TimeoutExpired(list(arguments), timeout, out, err)
    return subprocess.CompletedProcess(list(arguments), status, out, err)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _started() -> subprocess.Popen[str]:
    global _server  # noqa: PLW0603 - one for the process that runs tests
    if _server is None:
        _server = subprocess.Popen(
            [sys.executable, "-m", "tests.forked"],
            cwd=Path(__file__).resolve().parent.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        atexit.register(_server.communicate)
    return _server


# --- the other side -------------------------------------------------------------------------------


def _serve() -> None:
    """Fork two processes for each line of input: the command, and one that tells of its end."""
    for module in _PRELOAD:
        importlib.import_module(module)
    assert threading.active_count() == 1, "a module started a thread: no fork is safe"
    # Nobody here waits for those that tell.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        if os.fork() == 0:
            _watch(json.loads(line))


def _watch(order: Mapping[str, Any]) -> NoReturn:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        _become(order)
    os.write(1, f"{pid}\n".encode())
    _, status = os.waitpid(pid, 0)
    Path(order["status"]).write_text(str(os.waitstatus_to_exitcode(status)))
    os._exit(0)


def _become(order: Mapping[str, Any]) -> NoReturn:
    os.chdir(order["cwd"])
    made = os.O_WRONLY | os.O_CREAT
    for number, file in enumerate(
        (
            os.open(order["in"], os.O_RDONLY),
            os.open(order["out"], made, 0o600),
            os.open(order["err"], made, 0o600),
        )
    ):
        os.dup2(file, number)
        os.close(file)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - as long as it lives
    become(order["arguments"], order["env"])


if __name__ == "__main__":
    _serve()
