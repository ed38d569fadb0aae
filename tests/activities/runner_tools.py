"""Tools for tests/activities/test_runners.py: a module that a tool's process can import."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import enum
import logging
import multiprocessing
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from turnkeeper import Media, RetryTool, StopRun, ToolContext, ToolFailed, tool
from turnkeeper.tools import Tool


class Colour(enum.Enum):
    """An argument's type."""

    RED = "red"


class Order(BaseModel):
    """An argument and a result."""

    number: str
    amount: Decimal
    due: date


class Gone(ToolFailed):
    """What an author derives from ours."""


class OrderError(LookupError):
    """An author's own, with a constructor that pickle cannot repeat."""

    def __init__(self, number: str, *, status: int) -> None:
        super().__init__(f"order {number}: status {status}")


class RudeError(Exception):
    """An exception that cannot be shown."""

    def __str__(self) -> str:
        raise SystemExit(9)


@tool
def echo(text: str) -> str:
    """Return it."""
    return text


@tool
def typed(order: Order, colour: Colour, amount: Decimal = Decimal("1.50")) -> Order:
    """Types arrive as themselves."""
    assert isinstance(order, Order)
    assert colour is Colour.RED
    assert isinstance(amount, Decimal)
    return order.model_copy(update={"amount": order.amount + amount})


@tool
def returns(kind: str) -> Any:
    """Return something odd."""
    cycle: list[Any] = []
    cycle.append(cycle)
    return {
        "nothing": None,
        "number": float("nan"),
        "bytes": b"\xff\x00\xfe",
        "media": [
            "a\n\ud800",
            Media(b"\n[1]\n", "text/csv", "a.csv"),
            {"n": 1},
            Media(b"", name="b"),
        ],
        "lambda": lambda: 1,
        "generator": (n for n in range(3)),
        "cycle": cycle,
        "surrogate": "a\ud800b",
        "large": "x" * 25_000_000 if kind == "large" else "",
        "too large": "x" * 100_000_001 if kind == "too large" else "",
    }[kind]


@tool
def raises(kind: str) -> str:
    """Raise something odd."""
    if kind == "recursion":
        return raises(kind)  # type: ignore[no-any-return]
    if kind == "self-caused":
        error = ValueError("round")
        error.__cause__ = error
        raise error
    if kind == "decode":
        b"\xff".decode()
    raise {
        "retry": RetryTool("busy", delay=2.5),
        "failed": ToolFailed("no such order"),
        "derived": Gone("it is gone"),
        "stop": StopRun("enough"),
        "value": ValueError("wrong"),
        "key": KeyError("colour"),
        "os": FileNotFoundError(2, "No such file", "x.txt"),
        "own": OrderError("A-1", status=409),
        "rude": RudeError(),
        "group": ExceptionGroup("several", [ValueError("a"), TypeError("b")]),
        "stop iteration": StopIteration("end"),
        "exit": SystemExit(3),
        "interrupt": KeyboardInterrupt(),
        "cancelled": asyncio.CancelledError("own"),
        "empty": RuntimeError(),
        "surrogate": ValueError("a\ud800b"),
        "long": ValueError("x" * 1_000_000),
    }[kind]


@tool
def ends(how: str) -> str:
    """End the process."""
    if how == "exit":
        os._exit(137)
    if how == "clean":
        os._exit(0)
    if how == "segfault":
        ctypes.string_at(0)
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"


@tool
def tells(ctx: ToolContext, times: int = 3) -> dict[str, Any]:
    """Heartbeat, log and say what it knows."""
    for n in range(times):
        ctx.heartbeat({"row": n})
    ctx.log.info("read %d", times, source="a.csv", rows=times)
    logging.getLogger("shop.orders").info("through the standard library")
    return {
        "key": ctx.idempotency_key,
        "digest": ctx.arguments_digest,
        "resumed": ctx.resume_from,
        "principal": ctx.principal,
        "attempt": ctx.attempt,
    }


@tool
def unsendable(ctx: ToolContext) -> str:
    """Heartbeat what JSON cannot say."""
    try:
        ctx.heartbeat(object())
    except TypeError as error:
        return str(error)
    return "sent"


@tool
def reads_artifact(artifact: str, ctx: ToolContext) -> str:
    """Read an artifact from synchronous code."""
    return asyncio.run(ctx.artifact(artifact)).decode()


@tool
def environment() -> dict[str, Any]:
    """What the process has."""
    return {
        "variables": dict(os.environ),
        "exec": Path("/proc/self/environ").read_text() if sys.platform == "linux" else "",
        "cwd": str(Path.cwd()),
        "stdin": sys.stdin.read(),
        "pid": os.getpid(),
    }


@tool
def child_fds() -> str:
    """The descriptors that a program of the tool gets."""
    return subprocess.run(
        ["ls", "/proc/self/fd"], capture_output=True, text=True, check=True
    ).stdout.strip()


@tool
def pid() -> str:
    """The process that called it."""
    return str(os.getpid())


@tool
def sleeps(seconds: float, marker: str) -> str:
    """Sleep, then write."""
    Path(f"{marker}.begun").touch()
    time.sleep(seconds)
    Path(marker).write_text("written")
    return "slept"


@tool
def blocks(how: str, marker: str) -> str:
    """Block for ever in a way that Python cannot interrupt."""
    Path(f"{marker}.begun").touch()
    if how == "libc":
        ctypes.PyDLL(None).sleep(3_600)  # holds the interpreter's lock
    elif how == "regex":
        re.match(r"(a+)+$", "a" * 64 + "b")
    elif how == "sqlite":
        many = (
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
        )
        sqlite3.connect(":memory:").execute(many).fetchone()
    elif how == "ignores signals":
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        while True:
            with contextlib.suppress(BaseException):
                time.sleep(3_600)
    elif how == "thread":
        threading.Thread(target=time.sleep, args=(3_600,)).start()
        threading.Event().wait()
    return "never"


@tool
def commits(database: str) -> str:
    """Write in a transaction that is committed too late."""
    with sqlite3.connect(database) as connection:
        connection.execute("INSERT INTO refunds VALUES ('A-1')")
        Path(f"{database}.begun").touch()
        time.sleep(3_600)
    return "refunded"


WRITER = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open(sys.argv[1], "a") as out:
    for _ in range(12_000):
        out.write(f"{os.getpid()}\\n")
        out.flush()
        time.sleep(0.05)
"""


@tool
def scatters(output: str, returns: bool = False) -> str:
    """Start writers that leave group, session and parent; wait for ever, or return."""
    writer = [sys.executable, "-c", WRITER, output]
    with contextlib.ExitStack() as kept:
        kept.pop_all()
        subprocess.Popen(writer)
        subprocess.Popen(writer, start_new_session=True)
        # A daemon: session, second fork, its parent gone.
        twice = "import os, sys\nif os.fork(): os._exit(0)\nos.setsid()\n"
        twice += "if os.fork(): os._exit(0)\nos.execv(sys.argv[1], sys.argv[1:])"
        subprocess.run([sys.executable, "-c", twice, *writer], check=True)
    while not Path(output).exists() or len(set(Path(output).read_text().split())) < 3:
        time.sleep(0.02)
    Path(f"{output}.begun").touch()
    if not returns:
        time.sleep(3_600)
    return "scattered"


@tool
def multiplies(marker: str) -> str:
    """A bounded fork bomb: every process forks every 0.1 s, each into a session of its own."""
    end = time.monotonic() + 20
    count = os.open(f"{marker}.count", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    Path(f"{marker}.begun").touch()
    while time.monotonic() < end:
        # By a count and not by looking at /proc: 1,000 that look at each other stop a machine.
        os.write(count, b".")
        if os.fstat(count).st_size < 100:
            with contextlib.suppress(OSError):
                if os.fork() == 0:
                    os.setsid()
        time.sleep(0.1)
    os._exit(0)


@tool
def forks_and_returns() -> str:
    """A forked child that comes back out of the function, as its parent does."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
    return "parent" if child else "child"


@tool
def terminates_child() -> str:
    """A forked child of multiprocessing ends at SIGTERM."""
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    child.start()
    time.sleep(0.1)
    child.terminate()
    child.join(30)
    return str(child.exitcode)


@tool
def spawns_child() -> str:
    """A child of multiprocessing with an interpreter of its own, which imports the main module."""
    child = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(0.1,))
    child.start()
    child.join(30)
    return str(child.exitcode)


@tool
def prints(lines: int = 1, length: int = 5) -> str:
    """Print."""
    for n in range(lines):
        print(f"{n} " + "x" * length)  # noqa: T201
    print("unfinished", end="", file=sys.stderr)  # noqa: T201
    return "printed"


@tool
def floods(megabytes: int) -> str:
    """Write to standard output without end, nearly."""
    chunk = b"y\n" * 524_288
    for _ in range(megabytes):
        at = 0
        while at < len(chunk):
            at += os.write(1, chunk[at:])
    return "flooded"


@tool
def litters() -> str:
    """Change what a process has only one of."""
    signal.signal(signal.SIGALRM, lambda *_: os._exit(3))
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    os.environ["LITTER"] = "1"
    os.environ.pop("HOME", None)
    os.umask(0)
    socket.setdefaulttimeout(0.001)
    os.chdir("/")
    return str(os.getpid())


@tool
def finds_litter(seconds: float) -> dict[str, Any]:
    """What the call before has left, after a while."""
    time.sleep(seconds)
    umask = os.umask(0o22)
    os.umask(umask)
    return {
        "pid": str(os.getpid()),
        "alarm": signal.getsignal(signal.SIGALRM) == signal.SIG_DFL,
        "ignored": signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN,
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "timer": signal.getitimer(signal.ITIMER_REAL)[0],
        "variables": [os.environ.get("LITTER"), os.environ.get("HOME")],
        "umask": umask,
        "socket_timeout": socket.getdefaulttimeout(),
        "cwd": str(Path.cwd()),
    }


@tool
def closes_output() -> str:
    """Close what a process has for printing."""
    sys.stdout.close()
    os.close(1)
    os.close(2)
    return "closed"


@tool
def removes_cwd(folder: str) -> str:
    """Change into a folder and remove it."""
    os.chdir(folder)
    shutil.rmtree(folder)
    return "removed"


@tool
def leaves_thread() -> str:
    """Return while a thread goes on."""
    threading.Thread(target=time.sleep, args=(5,), daemon=True, name="exporter").start()
    return "left"


def _inner() -> Tool:
    @tool
    def closure() -> str:
        """Cannot be found by name."""
        return "?"

    return closure


@tool
async def asynchronous() -> str:
    """Runs in the worker itself."""
    return "?"


def _plain(text: str) -> str:
    """Stay callable under its own name."""
    return text.upper()


closure = _inner()
renamed = tool(name="shout")(_plain)
nameless = tool(name="nameless")(lambda: "?")
