"""`starter.py watch`: one run, live: on a terminal, in a pipe, as JSON, and without a worker."""

from __future__ import annotations

import asyncio
import dataclasses
import fcntl
import itertools
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from tests.commands.test_unknown import Shell, waiting
from tests.rig import RigFactory, until
from tests.test_starter import ROOT, environment
from turnkeeper import tool
from turnkeeper.client import AgentClient
from turnkeeper.commands import look as look_module
from turnkeeper.commands.look import Look, Work, looks
from turnkeeper.commands.watch import frame
from turnkeeper.contract import RunStatus
from turnkeeper.diagnosis import Finding
from turnkeeper.follow import Step
from turnkeeper.spec import HistoryPolicy
from turnkeeper.testing import call, reply, text
from turnkeeper.testing.embedded import EmbeddedServer

OWN_SCREEN, BACK = "\x1b[?1049h", "\x1b[?1049l"
FORGED = "x\x1b[2J\x9b31m\nwaiting  forged\u202e"


class Gate:
    """A tool that is at work until it is let through."""

    def __init__(self) -> None:
        self.open = asyncio.Event()

        @tool(effect="read", timeout=60)
        async def hold(what: str) -> str:
            """Hold."""
            await self.open.wait()
            return f"held {what}"

        @tool(effect="read", timeout=60)
        async def glance() -> str:
            """Look."""
            return "seen"

        self.tools = [hold, glance]
        self.script: list[Any] = [
            reply([call("glance", id="c1"), call("hold", {"what": "doors"}, id="c2")]),
            text("All held."),
        ]


@pytest.fixture
def shell(server: EmbeddedServer, tmp_path: Path) -> Shell:
    """The command line on the session's server."""
    return Shell(server, tmp_path)


class Terminal:
    """A command on a terminal of 100 columns and 30 rows, and all that it writes there."""

    def __init__(self, shell: Shell, *arguments: str) -> None:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "starter.py", *shell.place, *arguments],
            cwd=ROOT,
            env=environment(TERM="xterm-256color"),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        self._ours = ours
        os.set_blocking(ours, False)
        self.written = ""

    async def shows(self, words: str, *, timeout: float = 30) -> str:
        """The screen, once there are these words on it."""

        def there() -> str:
            self._read()
            drawn = self.written.rpartition("\x1b[J")[0].rpartition("\x1b[H")[2]
            return drawn if words in drawn else ""

        try:
            return str(await until(there, timeout=timeout))
        except TimeoutError:
            raise AssertionError(f"no {words!r} in {self.written[-2_000:]!r}") from None

    async def ended(self) -> int:
        """The exit code."""

        def over() -> bool:
            self._read()
            return self.process.poll() is not None

        await until(over)
        self._read()
        os.close(self._ours)
        return int(self.process.returncode)

    def _read(self) -> None:
        try:
            while data := os.read(self._ours, 65_536):
                self.written += data.decode()
        except (BlockingIOError, OSError):
            # Nothing there yet; or the other end is closed.
            return


def seconds_of(screen: str, tool: str) -> int:
    """For which a call has run."""
    (told,) = re.findall(rf"(\d+) s  {tool} ", screen)
    return int(told)


# --- on a terminal --------------------------------------------------------------------------------


async def test_a_run_is_seen_as_it_goes_on(rig: RigFactory, shell: Shell) -> None:
    """Phase, turn, each call with its time, limits used, last steps; drawn in place until the end,
    and the terminal is as it was."""
    gate = Gate()
    async with rig(gate.script, tools=gate.tools) as r:
        run = await r.start(limits={"turns": 9})
        seen = Terminal(shell, "watch", run.id)
        first = await seen.shows(' s  hold what="doors"')

        async def went_on() -> str:
            screen = await seen.shows(' s  hold what="doors"')
            return "" if seconds_of(screen, "hold") == seconds_of(first, "hold") else screen

        later = await until(went_on)
        assert seconds_of(later, "hold") > seconds_of(first, "hold")
        assert f"run       {run.id}" in later
        assert "phase     EXECUTE · turn 1" in later
        assert "waiting   for results of hold" in later
        assert "1 of 9 turns" in later
        assert " s  glance" in later
        assert "EXECUTE   glance -> seen" in later
        assert "Ctrl-C leaves; the run goes on." in later
        assert seen.written.count(OWN_SCREEN) == 1
        gate.open.set()
        assert await seen.ended() == 0
        drawn, _, after = seen.written.rpartition(BACK)
        assert OWN_SCREEN in drawn
        assert "\x1b[?25h" in drawn
        assert "phase     ended · turn 2" in after
        assert "All held." in after
        assert "completed · 2 turns" in after


async def test_ctrl_c_leaves_the_run_running(rig: RigFactory, shell: Shell) -> None:
    """Exit 130, the terminal is as it was, and it is told how to come back."""
    gate = Gate()
    async with rig(gate.script, tools=gate.tools) as r:
        run = await r.start()
        seen = Terminal(shell, "watch", run.id)
        await seen.shows("hold")
        seen.process.send_signal(signal.SIGINT)
        assert await seen.ended() == 130
        _, back, after = seen.written.rpartition(BACK)
        assert back
        assert "The run goes on without you." in after
        assert f"watch {run.id}" in after
        assert "Traceback" not in seen.written
        gate.open.set()
        assert (await run.result(timeout=60)).outcome == "completed"


async def test_who_is_awaited_and_how_to_answer(rig: RigFactory, shell: Shell) -> None:
    """The command that tells more stands whole on a line, and how long it has waited."""
    async with waiting(rig) as (_, run):
        seen = Terminal(shell, "watch", run.id)
        screen = await seen.shows("to answer: ")
        (line,) = [x for x in screen.splitlines() if "to answer: " in x]
        assert line.rstrip().removesuffix("\x1b[K").endswith(f"why {run.id}")
        assert "a person to say whether send" in screen
        assert ' s  send to="ann@example.com"' in screen
        await run.resolve("c1", landed=False)
        assert await seen.ended() == 0


def at_work(**more: Any) -> Look:
    """A run in the middle of its second turn."""
    now = datetime(2026, 1, 1, 12, tzinfo=UTC)
    status = RunStatus(agent="a", model="m", phase="EXECUTE", turn=2, waiting_for="results of t")
    return dataclasses.replace(
        Look("r", now, status, started=now - timedelta(seconds=30)),
        **more,
    )


def test_foreign_words_stay_in_their_place() -> None:
    """Names, arguments, errors and steps with escapes and newlines forge no line."""
    now = at_work().at
    status = at_work().status.model_copy(
        update={"agent": FORGED, "model": FORGED, "phase": FORGED, "waiting_for": FORGED * 90}
    )
    seen = at_work(
        id=FORGED,
        status=status,
        work=[Work(FORGED, FORGED, FORGED, FORGED * 9, since=now, note=FORGED)] * 40,
        steps=[Step(1, FORGED, 1, FORGED)],
        problems=[Finding(FORGED, FORGED)],
    )
    lines = frame(seen, "", width=80)
    assert not {"\x1b", "\x9b", "\u202e", "\n"} & set("".join(lines))
    assert not [line for line in lines if line.startswith("waiting  forged")]
    assert lines.index("          and 30 more")
    assert all(len(line) <= 80 for line in lines if "to answer" not in line), lines


@pytest.mark.parametrize(
    ("since", "until_", "told"),
    [(12, None, "12 s"), (200, 150, "50 s"), (5, 4.7, "0.3 s"), (-3, None, "0 s")],
)
def test_each_call_has_its_time(since: float, until_: float | None, told: str) -> None:
    """Since it was given to the workers; a server whose clock is ahead makes it none, not less."""
    now = at_work().at
    work = Work(
        "t",
        "running",
        since=now - timedelta(seconds=since),
        until=None if until_ is None else now - timedelta(seconds=until_),
    )
    (line,) = [x for x in frame(at_work(work=[work]), "", width=80) if x.startswith("calls")]
    assert line.split("running")[1].strip() == f"{told}  t"


# --- in a pipe, as JSON ---------------------------------------------------------------------------


async def test_in_a_pipe_a_line_per_change(rig: RigFactory, shell: Shell) -> None:
    """No escapes, no line twice; then the answer, and the exit code of `run`."""
    gate = Gate()
    async with rig(gate.script, tools=gate.tools) as r:
        run = await r.start()
        seen = shell.popen("watch", run.id)
        assert seen.stdout is not None
        lines = [await asyncio.to_thread(seen.stdout.readline)]
        while "hold running" not in lines[-1]:
            lines.append(await asyncio.to_thread(seen.stdout.readline))
        await asyncio.sleep(2.5)
        await run.stop("enough", "ann")
        out, told = await asyncio.to_thread(seen.communicate, timeout=30)
        assert seen.returncode == 3
        lines += out.splitlines()
        assert "\x1b" not in "".join(lines) + told
        assert "turn 1    EXECUTE   waiting for results of hold; glance done, hold running" in (
            "".join(lines)
        )
        without_time = [line[10:] for line in lines]
        assert all(a != b for a, b in itertools.pairwise(without_time))
        assert "stopped by ann: enough" in told


async def test_as_json_an_object_per_change(rig: RigFactory, shell: Shell) -> None:
    """Calls with their times, the status, at the end the result; nothing is said twice."""
    gate = Gate()
    async with rig(gate.script, tools=gate.tools) as r:
        run = await r.start()
        seen = shell.popen("watch", run.id, "--json")
        assert seen.stdout is not None
        objects: list[Any] = [{"calls": []}]
        while [c["status"] for c in objects[-1]["calls"]] != ["done", "running"]:
            objects.append(json.loads(await asyncio.to_thread(seen.stdout.readline)))
        await asyncio.sleep(2.5)
        gate.open.set()
        out, _ = await asyncio.to_thread(seen.communicate, timeout=30)
        assert seen.returncode == 0
        objects = [*objects[1:], *map(json.loads, out.splitlines())]
        changes = [{k: v for k, v in o.items() if k != "at"} for o in objects]
        assert all(a != b for a, b in itertools.pairwise(changes))
        assert len(objects) < 8
        held = next(o for o in objects if [c["status"] for c in o["calls"]] == ["done", "running"])
        glance, hold = held["calls"]
        assert glance["since"] <= glance["until"]
        assert (hold["call_id"], hold["until"]) == ("c2", None)
        assert held["status"]["waiting_for"] == "results of hold"
        assert len(held["workers"]) == 1
        assert objects[-1]["result"]["answer"] == "All held."
        assert all(o["result"] is None for o in objects[:-1])


async def test_without_a_worker_it_says_so(client: Client, shell: Shell) -> None:
    """Who polls, how to start one; a run that does not exist is exit 2."""
    run = await AgentClient(client, task_queue="nobody").start("finance", "Hello?")
    seen = shell.popen("watch", run.id, "--json")
    assert seen.stdout is not None
    told: dict[str, Any] = {}
    while not told.get("problems"):
        told = json.loads(await asyncio.to_thread(seen.stdout.readline))
    assert told["workers"] == []
    (problem,) = told["problems"]
    assert problem["mend"] == "start one"
    assert " --task-queue nobody --agents MODULE" in problem["commands"][0]
    drawn = Terminal(shell, "watch", run.id)
    (line,) = [x for x in (await drawn.shows("to mend it: ")).splitlines() if "to mend it: " in x]
    assert line.rstrip().removesuffix("\x1b[K").endswith(f"why {run.id}")
    assert "none answers" in told["status"]["waiting_for"]
    await client.get_workflow_handle(run.id).terminate("test")
    await asyncio.to_thread(seen.communicate, timeout=30)
    await drawn.ended()
    assert seen.returncode == 1
    missing = await shell.starter("watch", "nowhere")
    assert (missing.returncode, missing.stdout) == (2, "")
    assert "there is no run nowhere" in missing.stderr


# --- what it costs --------------------------------------------------------------------------------


async def test_a_run_is_asked_only_when_something_has_happened(
    rig: RigFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that waits is not replayed every second."""
    monkeypatch.setattr(look_module, "EVERY_SECONDS", 0.05)
    async with waiting(rig) as (r, run):
        agents = AgentClient(r.client, task_queue=r.task_queue, store=r.store)
        asked = _counted(agents, monkeypatch)
        seen = looks(agents, run.id, await run.status())
        for _ in range(40):
            last = await anext(seen)
        assert last.waits == ["outcome"]
        assert len(asked) <= 2
        await run.resolve("c1", landed=True)
        last = await to_the_end(seen)
        assert last.result is not None
        assert last.result.outcome == "completed"


async def test_over_continue_as_new(rig: RigFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is one run: its steps and calls go on, and its time counts from the first start."""
    monkeypatch.setattr(look_module, "EVERY_SECONDS", 0.05)
    gate = Gate()
    script = [*[call("glance")] * 6, call("hold", {"what": "on"}), text("Done.")]
    async with rig(script, tools=gate.tools, history=HistoryPolicy(events=50)) as r:
        run = await r.start(limits={"repetition": 50})
        seen = looks(r.agents, run.id, await run.status())
        first = await anext(seen)
        look = first
        while not [w for w in look.work if w.what == "hold" and w.since]:
            look = await anext(seen)
        assert len(await r.executions(run.id)) > 1
        anew = await anext(looks(r.agents, run.id, await run.status()))
        assert anew.started == look.started == first.started
        gate.open.set()
        look = await to_the_end(seen)
        assert look.result is not None
        assert look.result.turns == 8
        assert [s.text for s in look.steps][-1] == "the run ends: completed"


async def to_the_end(seen: AsyncIterator[Look]) -> Look:
    """The last look."""
    return [look async for look in seen][-1]


def _counted(agents: AgentClient, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    asked: list[str] = []
    status: Callable[..., Any] = agents.status

    async def counting(run: str, **more: Any) -> RunStatus:
        asked.append(run)
        found: RunStatus = await status(run, **more)
        return found

    monkeypatch.setattr(agents, "status", counting)
    return asked
