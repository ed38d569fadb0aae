"""Named points at which a worker process ends itself by SIGKILL.

Nothing of this is in the product: `turnkeeper.testing.crashing` lays the points around seams of the
SDK and of `turnkeeper` (`turnkeeper.testing.crash_seams`) and then runs a worker as it is. The
environment says where it ends:

    CRASH_AT=NAME:N[,NAME:N...]   at the N-th passing of a point; later ones kill later workers
    CRASH_LOG=FILE                every passing, one line of JSON; written before the kill
    CRASH_HOLD=FILE               ask the server for no work until this file exists (a warm standby)

Passings are counted in the log, hence over all workers that share it, and over the processes that
they run tools in: those kill the worker, and wait for their own end. SIGKILL tests the death of a
process, not a loss of power.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from turnkeeper.errors import TurnkeeperError

__all__ = [
    "POINTS",
    "CrashPoint",
    "Passing",
    "UnknownPoint",
    "die",
    "orders",
    "passing",
    "reached",
    "read_passings",
    "released",
]

AT: Final = "CRASH_AT"
LOG: Final = "CRASH_LOG"
HOLD: Final = "CRASH_HOLD"
_WORKER: Final = "CRASH_PID"
_POLL_SECONDS: Final = 0.02
# The supervisor of a tool's process ends it as soon as the worker is gone.
_WAIT_FOR_THE_END: Final = 30.0

Group = Literal[
    "model",
    "task",
    "state",
    "tool",
    "ledger",
    "probe",
    "artifact",
    "epoch",
    "end",
    "message",
    "recovery",
]


@dataclass(frozen=True)
class CrashPoint:
    """A place in a worker's work. group: what has to happen in a run for it to be passed."""

    name: str
    group: Group
    text: str


POINTS: Final = tuple(
    CrashPoint(*row)
    for row in (
        ("model.before", "model", "before the model request is sent"),
        ("model.sent", "model", "the model request is sent, no byte has come back"),
        ("model.half", "model", "half of the reply's stream has been read"),
        ("model.whole", "model", "the whole reply has been read, and is not returned"),
        ("generation.completing", "model", "the reply is returned, the server not told"),
        ("generation.completed", "model", "the reply is recorded"),
        ("task.polled", "task", "an activity's end is recorded, the workflow task not yet run"),
        ("task.commands", "task", "the workflow task is run, its commands not sent"),
        ("task.acknowledged", "task", "the server has taken a workflow task's commands"),
        ("reply.heard", "state", "in a workflow task: a reply has come, before PARSE"),
        ("reply.appended", "state", "in a workflow task: the transcript has the reply"),
        ("calls.proposed", "state", "in a workflow task: its calls have keys, none is started"),
        ("results.appended", "state", "in a workflow task: the transcript has the results"),
        ("turn.next", "state", "in a workflow task: the next turn has begun"),
        ("tool.polled", "tool", "a mutating call is handed to the worker, nothing is begun"),
        ("tool.marked", "tool", "its start marker (a heartbeat) is written, the tool not begun"),
        ("effect.sent", "tool", "a POST to the effect ledger is sent, no reply has come"),
        ("tool.done", "tool", "the tool has done its work, and has not returned"),
        ("tool.completing", "tool", "a mutating call has returned, the server not told"),
        ("tool.completed", "tool", "a mutating call's result is recorded"),
        ("parallel.between", "tool", "of calls side by side one is recorded, others go on"),
        ("ledger.before", "ledger", "once_per_key: before the key is inserted"),
        ("ledger.inserted", "ledger", "once_per_key: key and change written, not committed"),
        ("ledger.committed", "ledger", "once_per_key: key and change committed"),
        ("probe.before", "probe", "before a probe is asked"),
        ("probe.answered", "probe", "a probe has answered, nothing follows from it yet"),
        ("artifact.before", "artifact", "before a large result is stored"),
        ("artifact.stored", "artifact", "it is stored, its reference not returned"),
        ("shorten.before", "epoch", "before a part of a new epoch (segment, opening) is stored"),
        ("shorten.stored", "epoch", "it is stored, the epoch not begun"),
        ("seal.before", "end", "before a segment of the transcript is stored"),
        ("seal.stored", "end", "it is stored, its reference not returned"),
        ("continue.commands", "end", "continue-as-new is decided, the server not told"),
        ("continue.acknowledged", "end", "the server has begun the next execution"),
        ("end.commands", "end", "the run's end is decided, the server not told"),
        ("message.polled", "message", "a signal or update is recorded, its handler not run"),
        ("message.applied", "message", "in a workflow task: a call is settled by a person's word"),
        ("message.handled", "message", "its handler has run, its commands are not sent"),
        ("cancel.polled", "message", "a cancel request is recorded, the workflow task not run"),
        ("cancel.delivered", "message", "a call is told to cancel"),
        ("recovery.reading", "recovery", "a worker is about to read the view from history"),
        ("recovery.read", "recovery", "it has read it, and not used it"),
    )
)
"""Every point, in the order of a run."""

_NAMES: Final = frozenset(p.name for p in POINTS)


class UnknownPoint(TurnkeeperError, ValueError):
    """Raised for a name or number in CRASH_AT that no worker would ever pass."""


@dataclass(frozen=True)
class Passing:
    """One line of the log. time: seconds since 1970. killed: whether it ended the worker."""

    name: str
    number: int
    pid: int
    time: float
    killed: bool


def orders(environment: Mapping[str, str] = os.environ) -> list[tuple[str, int]]:
    """What CRASH_AT asks for.

    Raises:
        UnknownPoint: a point that does not exist, or a number below 1.
    """
    found = []
    for order in filter(None, (part.strip() for part in environment.get(AT, "").split(","))):
        name, _, number = order.partition(":")
        if name not in _NAMES:
            raise UnknownPoint(f"{AT}: there is no crash point {name!r}; --list shows all")
        if not number.isdecimal() or int(number) < 1:
            raise UnknownPoint(f"{AT}: {order!r} is not NAME:N with N from 1")
        found.append((name, int(number)))
    return found


def passing(name: str) -> None:
    """Pass a point; end the worker if it is the one, and this the time."""
    if reached(name):
        die(name)


def reached(name: str) -> bool:
    """Count a passing; whether the worker is to end here. Then `die`."""
    assert name in _NAMES, name
    log = os.environ.get(LOG)
    if log is None:
        return False
    return (name, _note(log, name, killed=False)) in orders()


def die(name: str) -> None:
    """SIGKILL to the worker; returns never."""
    worker = int(os.environ.get(_WORKER, os.getpid()))
    _note(os.environ[LOG], name, killed=True)
    os.kill(worker, signal.SIGKILL)
    # In a process of a tool: whatever it would do now, it would do after the crash.
    time.sleep(_WAIT_FOR_THE_END)
    os.kill(os.getpid(), signal.SIGKILL)


def read_passings(log: Path) -> list[Passing]:
    """The passings so far; none if no point was passed yet."""
    if not log.exists():
        return []
    return [Passing(**json.loads(line)) for line in log.read_text().splitlines()]


async def released() -> None:
    """Wait until this worker may ask for work."""
    hold = os.environ.get(HOLD)
    # Another process makes the file.
    while hold and not os.path.exists(hold):  # noqa: ASYNC110, ASYNC240, PTH110
        await asyncio.sleep(_POLL_SECONDS)


def be_the_worker() -> None:
    """This process is the worker that dies at a point of it, or of a process that it starts."""
    os.environ.setdefault(_WORKER, str(os.getpid()))


def _note(log: str, name: str, *, killed: bool) -> int:
    """Append a line; the number of this passing."""
    file = os.open(log, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        size = os.fstat(file).st_size
        number = _passed(os.pread(file, size, 0), name) + (not killed)
        line = {"name": name, "number": number, "pid": os.getpid(), "time": time.time()}
        os.write(file, json.dumps({**line, "killed": killed}).encode() + b"\n")
        return number
    finally:
        os.close(file)


def _passed(lines: bytes, name: str) -> int:
    begins = json.dumps({"name": name}).encode()[:-1] + b", "
    return sum(
        line.startswith(begins) and line.endswith(b'"killed": false}')
        for line in lines.splitlines()
    )
