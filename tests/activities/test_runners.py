"""Synchronous tools in processes: what comes back, what is stopped, what is left."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import signal
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from activities import runners as pool
from activities.lease import Carrier, Lease, clock
from activities.results import Parts
from activities.runner_handle import Handle
from activities.runner_process import Lines
from activities.runners import ProcessEnded, Runners, can_run, tool_environment
from tests.activities import runner_tools as tools
from tests.rig import until
from turnkeeper import Media, RetryTool, StopRun, ToolContext, ToolFailed
from turnkeeper.returned import Unreadable
from turnkeeper.tools import Tool

ROOT = Path(__file__).resolve().parents[2]
_BYSTANDERS: dict[int, str] = {}

linux = pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")


class Recorded:
    """A logger that keeps its lines."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def info(self, event: str, /, *args: Any, **fields: Any) -> None:
        """Keep it."""
        self.lines.append((event % args if args else event, fields))

    warning = info

    def printed(self) -> list[str]:
        """What the tool wrote to standard output and error."""
        return [f["text"] for event, f in self.lines if event == "tool output"]


@pytest.fixture
async def runners() -> AsyncIterator[Runners]:
    """Processes that are gone after the test."""
    made = Runners(most=4)
    yield made
    await made.close()


async def run(runners: Runners, tool: Tool, ctx: ToolContext | None = None, **given: Any) -> str:
    """Call as the activity does: validated arguments, the context among them."""
    returned = await crossed(runners, tool, ctx, **given)
    assert isinstance(returned, str)
    return returned


async def crossed(
    runners: Runners, tool: Tool, ctx: ToolContext | None = None, **given: Any
) -> str | Parts:
    """As `run`, for a tool that may return bytes."""
    context = ctx or ToolContext(idempotency_key="k1", tool=tool.name)
    return await runners.call(tool, tool.bind(given, context), context)


async def begun(marker: Path, within: float = 15) -> None:
    """Wait for the file that says that the tool is at work."""
    await until(Path(f"{marker}.begun").exists, timeout=within)


async def cancelled(work: asyncio.Task[Any]) -> float:
    """Cancel; the seconds until the CancelledError came."""
    asked = time.monotonic()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    return time.monotonic() - asked


@pytest.fixture(autouse=True, scope="module")
def bystanders() -> Iterator[None]:
    """The session's own servers are no process of a tool."""
    _BYSTANDERS.update(processes())
    yield
    _BYSTANDERS.clear()


def processes() -> dict[int, str]:
    """Processes of tools by id, with their state: those below this one that began since."""
    parents: dict[int, tuple[int, str]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            parents[int(folder.name)] = int(parent), state
    found, grown = {os.getpid()}, 0
    while len(found) != grown:
        grown = len(found)
        found |= {p for p, (parent, _) in parents.items() if parent in found}
    begun = found - {os.getpid()} - _BYSTANDERS.keys()
    return {p: parents[p][1] for p in begun if p in parents}


def descriptors() -> int:
    """How many files, sockets and pipes this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


def figure(text: str) -> None:
    """Show what was measured, with pytest's `-s`."""
    sys.stderr.write(f"\n  {text}\n")


def alive(pid: int) -> bool:
    """Whether a process runs; one that is dead and not collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# --- what comes back ------------------------------------------------------------------------------


async def test_a_result_comes_back_as_the_text_for_the_model(runners: Runners) -> None:
    """The tool's own types go in as themselves; what it returned comes back as text."""
    assert await run(runners, tools.echo, text="naïve 漢字") == "naïve 漢字"
    order = {"number": "A-1", "amount": "10.00", "due": "2026-11-05"}
    shown = json.loads(await run(runners, tools.typed, order=order, colour="red"))
    assert shown == {"number": "A-1", "amount": "11.50", "due": "2026-11-05"}
    assert await run(runners, tools.renamed, text="quiet") == "QUIET"
    assert await run(runners, tools.returns, kind="nothing") == "(the tool returned nothing)"
    assert await run(runners, tools.returns, kind="surrogate") == "a\ufffdb"


async def test_a_large_result_crosses_whole_and_a_huge_one_is_named(runners: Runners) -> None:
    """25 MB come back; past 64 MB the caller learns that the tool ran, and how much it was."""
    assert len(await run(runners, tools.returns, kind="large")) == 25_000_000
    with pytest.raises(Unreadable, match="100,000,001 characters of text"):
        await run(runners, tools.returns, kind="too large")


async def test_bytes_cross_as_they_are(runners: Runners) -> None:
    """Media and bytes that are no text, among texts, in order; no pickle comes back."""
    alone = await crossed(runners, tools.returns, kind="bytes")
    assert alone == Parts([Media(b"\xff\x00\xfe")])
    assert await crossed(runners, tools.returns, kind="media") == Parts(
        ["a\n\ufffd", Media(b"\n[1]\n", "text/csv", "a.csv"), '{"n":1}', Media(b"", None, "b")]
    )


@pytest.mark.parametrize("kind", ["lambda", "generator", "cycle"])
async def test_a_result_without_text_is_told_apart_from_a_failure(
    runners: Runners, kind: str
) -> None:
    """Unreadable says that the tool ran to its end; the process goes on to the next call."""
    first = await run(runners, tools.pid)
    with pytest.raises(Unreadable):
        await run(runners, tools.returns, kind=kind)
    assert await run(runners, tools.pid) == first


async def test_what_an_author_says_on_purpose_arrives_as_itself(runners: Runners) -> None:
    """RetryTool with its delay, ToolFailed and its subclasses, StopRun."""
    with pytest.raises(RetryTool) as retry:
        await run(runners, tools.raises, kind="retry")
    assert (str(retry.value), retry.value.delay) == ("busy", 2.5)
    with pytest.raises(ToolFailed) as failed:
        await run(runners, tools.raises, kind="failed")
    assert str(failed.value) == "no such order"
    with pytest.raises(ToolFailed) as derived:
        await run(runners, tools.raises, kind="derived")
    assert str(derived.value) == "it is gone"
    with pytest.raises(StopRun) as stop:
        await run(runners, tools.raises, kind="stop")
    assert str(stop.value) == "enough"


@pytest.mark.parametrize(
    ("kind", "name", "base", "message"),
    [
        ("value", "ValueError", ValueError, "wrong"),
        ("key", "KeyError", KeyError, "'colour'"),
        ("os", "FileNotFoundError", FileNotFoundError, "[Errno 2] No such file: 'x.txt'"),
        ("own", "OrderError", LookupError, "order A-1: status 409"),
        ("rude", "RudeError", Exception, "(no message)"),
        ("group", "ExceptionGroup", Exception, "several (2 sub-exceptions)"),
        ("stop iteration", "StopIteration", Exception, "end"),
        ("exit", "SystemExit", Exception, "3"),
        ("interrupt", "KeyboardInterrupt", Exception, ""),
        ("cancelled", "CancelledError", Exception, "own"),
        ("empty", "RuntimeError", RuntimeError, ""),
        ("surrogate", "ValueError", ValueError, "a\ud800b"),
        ("self-caused", "ValueError", ValueError, "round"),
        ("decode", "UnicodeDecodeError", ValueError, None),
        ("recursion", "RecursionError", RecursionError, None),
        ("long", "ValueError", ValueError, "x" * 64_000),
    ],
)
async def test_any_exception_arrives_with_its_name_its_message_and_its_traceback(
    runners: Runners, kind: str, name: str, base: type[Exception], message: str | None
) -> None:
    """As itself or as a namesake of the nearest built-in base, never as what ends a worker."""
    (error,) = await asyncio.gather(run(runners, tools.raises, kind=kind), return_exceptions=True)
    assert type(error).__name__ == name
    assert isinstance(error, base)
    assert not isinstance(error, (StopIteration, asyncio.CancelledError))
    if message is not None:
        assert str(error) == message
    (note,) = error.__notes__
    assert "in raises" in note
    assert "runner_calls" not in note
    assert len(note) < 17_000
    assert await run(runners, tools.echo, text="the next call") == "the next call"


@pytest.mark.parametrize(
    ("how", "status", "told"),
    [
        ("exit", 137, "exit status 137"),
        ("clean", 0, "exit status 0"),
        ("segfault", -11, r"signal 11 \(SIGSEGV\)"),
        ("kill", -9, r"signal 9 \(SIGKILL\), perhaps for want of memory"),
    ],
)
async def test_a_process_that_ends_names_how(
    runners: Runners, how: str, status: int, told: str
) -> None:
    """An exit, a crash or the kernel's kill is an error of the call; the next has a new process."""
    with pytest.raises(ProcessEnded, match=f"^the tool's process ended with {told}$") as raised:
        await run(runners, tools.ends, how=how)
    assert raised.value.status == status
    assert await run(runners, tools.echo, text="alive") == "alive"


async def test_a_crash_in_native_code_is_logged_with_its_place(runners: Runners) -> None:
    """The operator sees the Python line that a segmentation fault came from."""
    log = Recorded()
    with pytest.raises(ProcessEnded):
        await run(runners, tools.ends, ToolContext(log=log), how="segfault")
    assert any("runner_tools.py" in line and "in ends" in line for line in log.printed())


async def test_arguments_that_cannot_be_handed_over_are_refused_before_anything(
    runners: Runners,
) -> None:
    """The error says so, and no process has begun anything."""
    with pytest.raises(TypeError, match="cannot be handed to a process"):
        await runners.call(tools.echo, {"text": lambda: 1}, ToolContext())


async def test_which_tools_can_run() -> None:
    """Those that another process finds by name; the others say so beforehand."""
    assert can_run(tools.echo)
    assert can_run(tools.renamed)
    for odd in (tools.closure, tools.nameless, tools.asynchronous):
        assert not can_run(odd), odd.name


# --- what a tool says meanwhile -------------------------------------------------------------------


async def test_the_context_is_all_there(runners: Runners, caplog: pytest.LogCaptureFixture) -> None:
    """Key, digest and resumed details arrive; heartbeats and logs reach the worker's own."""
    caplog.set_level(logging.INFO)
    await runners.close()
    runners = Runners()
    beats: list[Any] = []
    log = Recorded()
    context = ToolContext(
        idempotency_key="k7",
        attempt=2,
        metadata={"principal": "anna"},
        resume_from={"row": 41},
        log=log,
        _heartbeat=beats.append,
    )
    said = json.loads(await run(runners, tools.tells, context, times=3))
    assert said == {
        "key": "k7",
        "digest": context.arguments_digest,
        "resumed": {"row": 41},
        "principal": "anna",
        "attempt": 2,
    }
    assert beats[-1] == {"row": 2}
    assert ("read 3", {"source": "a.csv", "rows": 3}) in log.lines
    assert ("shop.orders", logging.INFO, "through the standard library") in caplog.record_tuples
    await runners.close()


async def test_heartbeats_arrive_while_the_tool_works_and_the_last_one_counts(
    runners: Runners,
) -> None:
    """A flood of heartbeats is thinned out, and ends with the last details."""
    beats: list[Any] = []
    await run(runners, tools.tells, ToolContext(_heartbeat=beats.append), times=20_000)
    assert beats[-1] == {"row": 19_999}
    assert len(beats) < 20_000


async def test_details_that_cannot_be_sent_are_the_tools_own_error(runners: Runners) -> None:
    """As in the worker itself: raised where `heartbeat` was called."""
    assert "cannot be sent" in await run(runners, tools.unsendable)


async def test_an_artifact_can_be_read(runners: Runners) -> None:
    """The worker reads it for the process, which has no store."""

    async def read(artifact: str) -> bytes:
        if artifact != "a1":
            raise ToolFailed("no such artifact")
        return b"content"

    context = ToolContext(_artifact=read)
    assert await run(runners, tools.reads_artifact, context, artifact="a1") == "content"
    with pytest.raises(ToolFailed, match="does not exist"):
        await run(runners, tools.reads_artifact, context, artifact="a2")


async def test_a_store_that_is_down_is_no_artifact_that_is_lost(runners: Runners) -> None:
    """The tool meets the error that it would meet in the worker."""

    async def away(_artifact: str) -> bytes:
        raise OSError("no route to the store")

    with pytest.raises(Exception, match="Artifact a1 cannot be read at the moment") as raised:
        await run(runners, tools.reads_artifact, ToolContext(_artifact=away), artifact="a1")
    assert not isinstance(raised.value, ToolFailed)


async def test_what_is_printed_is_logged_line_by_line(runners: Runners) -> None:
    """Each call's lines go to its own logger, unfinished ones included, and long ones cut."""
    first, second = Recorded(), Recorded()
    await run(runners, tools.prints, ToolContext(log=first), lines=2)
    await run(runners, tools.prints, ToolContext(log=second), lines=1, length=5_000)
    assert sorted(first.printed()) == ["0 xxxxx", "1 xxxxx", "unfinished"]
    assert max(map(len, second.printed())) == 1_000
    assert second.printed()[-1] == "(and 4,002 bytes that are not shown)"


async def test_a_flood_neither_blocks_the_tool_nor_fills_the_log(runners: Runners) -> None:
    """300 MB of short lines: a few hundred are logged, the rest is counted."""
    log = Recorded()
    began = time.monotonic()
    assert await run(runners, tools.floods, ToolContext(log=log), megabytes=300) == "flooded"
    figure(f"flood of 300 MB: {time.monotonic() - began:.2f} s")
    printed = log.printed()
    assert 200 <= len(printed) < 1_000
    assert printed[-1].startswith("(and 31")
    assert await run(runners, tools.echo, text="next") == "next"


async def test_a_worker_that_does_not_read_does_not_block_the_tool(tmp_path: Path) -> None:
    """A stopped worker's tool goes on printing into nothing, and is ended with the worker."""
    worker = start_worker("floods", megabytes=50)
    try:
        await asyncio.sleep(0.3)
        worker.send_signal(signal.SIGSTOP)
        await asyncio.sleep(0.5)
        worker.send_signal(signal.SIGCONT)
        assert await asyncio.to_thread(worker.wait, 30) == 0
    finally:
        worker.kill()
        worker.wait()


def test_lines_are_bounded_in_number_and_length() -> None:
    """Beyond 200 lines nothing is shown, and nothing of what was cut appears as a line."""
    lines = Lines()
    shown = list(lines.feed("stdout", b"abc\n" * 300 + b"cut"))
    assert shown == ["abc"] * 200
    assert list(lines.feed("stdout", b" off\n")) == []
    assert list(lines.rest()) == [("stdout", "(and 407 bytes that are not shown)")]
    assert list(lines.feed("stdout", b"new\n")) == ["new"]


async def test_closed_output_and_a_removed_folder_harm_no_later_call(
    runners: Runners, tmp_path: Path
) -> None:
    """The same process prints again, in the folder where it started."""
    first = await run(runners, tools.pid)
    assert await run(runners, tools.closes_output) == "closed"
    doomed = tmp_path / "doomed"
    doomed.mkdir()
    assert await run(runners, tools.removes_cwd, folder=str(doomed)) == "removed"
    log = Recorded()
    await run(runners, tools.prints, ToolContext(log=log))
    assert "0 xxxxx" in log.printed()
    here = json.loads(await run(runners, tools.environment))
    assert here["cwd"] == str(Path.cwd())
    assert str(here["pid"]) == first


async def test_what_a_call_changed_of_its_process_does_not_reach_the_next_one(
    runners: Runners, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Timers, signal handlers and masks, environment, umask, folder and socket timeout."""
    monkeypatch.setenv("HOME", "/home/shop")
    before = json.loads(await run(runners, tools.finds_litter, seconds=0))
    assert await run(runners, tools.litters) == before["pid"]
    assert json.loads(await run(runners, tools.finds_litter, seconds=0.4)) == before
    assert before["variables"] == [None, before["variables"][1]]


# --- what the process has -------------------------------------------------------------------------


async def test_a_tool_has_the_workers_environment_without_its_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither in os.environ nor in what the kernel shows of the process."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-secret-1")
    monkeypatch.setenv("TEMPORAL_API_KEY", "secret-2")
    monkeypatch.setenv("SHOP_URL", "http://shop")
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    runners = Runners()
    has = json.loads(await run(runners, tools.environment))
    await runners.close()
    assert has["variables"]["SHOP_URL"] == "http://shop"
    assert has["variables"]["PYTHONPATH"] == "/nowhere"
    assert "secret" not in json.dumps(has["variables"])
    assert "secret" not in has["exec"]
    assert has["stdin"] == ""


async def test_an_environment_can_be_given() -> None:
    """Then it is the whole of it."""
    runners = Runners(environment={**tool_environment(), "ANTHROPIC_API_KEY": "for-the-tool"})
    has = json.loads(await run(runners, tools.environment))
    await runners.close()
    assert has["variables"]["ANTHROPIC_API_KEY"] == "for-the-tool"


@linux
async def test_programs_of_a_tool_inherit_nothing_of_ours(runners: Runners) -> None:
    """Standard input, output and error, and the folder that `ls` itself reads."""
    assert len((await run(runners, tools.child_fds)).split()) == 4


async def test_a_forked_child_ends_as_its_parent_expects(runners: Runners) -> None:
    """SIGTERM ends it; one of a new interpreter works; one that returns does not answer."""
    assert await run(runners, tools.terminates_child) == "-15"
    assert await run(runners, tools.spawns_child) == "0"
    assert await run(runners, tools.forks_and_returns) == "parent"
    assert await run(runners, tools.echo, text="next") == "next"


async def test_sigterm_to_the_whole_service_does_not_end_a_call(
    runners: Runners, tmp_path: Path
) -> None:
    """A service manager signals every process; the worker alone decides when a call ends."""
    marker = tmp_path / "m"
    work = asyncio.create_task(run(runners, tools.sleeps, seconds=0.5, marker=str(marker)))
    await begun(marker)
    for pid in processes():
        os.kill(pid, signal.SIGTERM)
    assert await work == "slept"


# --- how many -------------------------------------------------------------------------------------


async def test_calls_run_side_by_side_up_to_the_bound_and_processes_are_used_again(
    tmp_path: Path,
) -> None:
    """Eight calls on four processes; the ninth finds one warm."""
    runners = Runners(most=4)
    calls = [
        run(runners, tools.sleeps, seconds=0.2, marker=str(tmp_path / f"{n}")) for n in range(8)
    ]
    assert await asyncio.gather(*calls) == ["slept"] * 8
    # Two for each: the supervisor and the process that calls.
    assert len(processes()) == 8
    await run(runners, tools.echo, text="x")
    assert len(processes()) == 8
    await runners.close()
    assert not processes()


async def test_idle_processes_end() -> None:
    """After `idle_seconds` without a call."""
    runners = Runners(idle_seconds=0.1)
    await run(runners, tools.echo, text="x")
    await until(lambda: not processes())
    assert await run(runners, tools.echo, text="again") == "again"
    await runners.close()


async def test_a_process_is_replaced_after_many_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """What tools leak does not add up for ever."""
    monkeypatch.setattr(pool, "CALLS_PER_PROCESS", 3)
    runners = Runners()
    pids = [await run(runners, tools.pid) for _ in range(7)]
    await runners.close()
    assert pids == [pids[0]] * 3 + [pids[3]] * 3 + [pids[6]]
    assert len(set(pids)) == 3


async def test_a_warm_process_that_died_meanwhile_costs_nothing(runners: Runners) -> None:
    """It was killed between two calls: the second runs in another."""
    first = await run(runners, tools.pid)
    os.kill(int(first), signal.SIGKILL)
    assert await run(runners, tools.echo, text="x") == "x"
    assert await run(runners, tools.pid) != first


async def test_no_process_to_be_had_means_that_nothing_happened(
    runners: Runners, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RetryTool: it is tried again under every effect."""

    def full(*_args: Any, **_options: Any) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", full)
    with pytest.raises(RetryTool, match="Resource temporarily unavailable"):
        await run(runners, tools.echo, text="x")
    monkeypatch.undo()
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RetryTool, match="no process for the tool"):
        await run(runners, tools.echo, text="x")


async def test_after_close_nothing_is_begun(runners: Runners, tmp_path: Path) -> None:
    """A call in flight is killed and says so; a later one is refused as not begun."""
    marker = tmp_path / "m"
    work = asyncio.create_task(run(runners, tools.sleeps, seconds=60, marker=str(marker)))
    await begun(marker)
    await runners.close()
    with pytest.raises(ProcessEnded, match="ended by its worker"):
        await work
    with pytest.raises(RetryTool, match="stopping"):
        await run(runners, tools.echo, text="x")
    assert not processes()


async def test_200_warm_calls_and_a_cold_one_timed(runners: Runners) -> None:
    """A warm call costs less than it takes to notice; figures are printed."""
    began = time.perf_counter()
    await run(runners, tools.echo, text="x")
    cold = time.perf_counter() - began
    taken = []
    for _ in range(200):
        began = time.perf_counter()
        await run(runners, tools.echo, text="x")
        taken.append(time.perf_counter() - began)
    warm = statistics.median(taken)
    figure(f"cold {cold * 1000:.0f} ms, warm {warm * 1000:.2f} ms (median of 200)")
    assert warm < 0.5


# --- what is stopped ------------------------------------------------------------------------------


@linux
@pytest.mark.parametrize(
    "how", ["libc", "regex", "sqlite", "ignores signals", "thread"], ids=lambda h: h.split()[0]
)
async def test_a_cancelled_call_ends_whatever_it_is_blocked_in(
    runners: Runners, tmp_path: Path, how: str
) -> None:
    """Native code that holds the interpreter's lock, a tool that ignores signals: gone at once."""
    marker = tmp_path / "m"
    work = asyncio.create_task(run(runners, tools.blocks, how=how, marker=str(marker)))
    await begun(marker)
    assert await cancelled(work) < 10
    assert not processes()


async def test_no_effect_after_a_cancel_and_the_slot_comes_back(tmp_path: Path) -> None:
    """A sleeping tool never reaches its write; another call takes its place."""
    runners, marker = Runners(most=1), tmp_path / "m"
    work = asyncio.create_task(run(runners, tools.sleeps, seconds=1, marker=str(marker)))
    await begun(marker)
    took = await cancelled(work)
    figure(f"cancelled in {took * 1000:.0f} ms")
    assert await run(runners, tools.echo, text="next") == "next"
    await asyncio.sleep(1.2)
    assert not marker.exists()
    await runners.close()


async def test_a_transaction_is_rolled_back(runners: Runners, tmp_path: Path) -> None:
    """Killed before its commit, a tool has changed nothing in its database."""
    path = tmp_path / "orders.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE refunds (number TEXT)")
    work = asyncio.create_task(run(runners, tools.commits, database=str(path)))
    await begun(path)
    await cancelled(work)
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM refunds").fetchone() == (0,)


@linux
async def test_a_whole_tree_is_killed_before_the_cancel_goes_on(
    runners: Runners, tmp_path: Path
) -> None:
    """Children in sessions of their own and daemons write nothing more, and none is left."""
    output = tmp_path / "out"
    work = asyncio.create_task(run(runners, tools.scatters, output=str(output)))
    await begun(output)
    took = await cancelled(work)
    written = output.read_text()
    figure(f"tree of {len(set(written.split()))} writers killed in {took * 1000:.0f} ms")
    assert not processes()
    assert not [pid for pid in set(written.split()) if alive(int(pid))]
    await asyncio.sleep(0.3)
    assert output.read_text() == written
    assert await run(runners, tools.echo, text="next") == "next"


@linux
async def test_what_a_call_leaves_running_ends_with_it(runners: Runners, tmp_path: Path) -> None:
    """The result comes back, the processes it left are dead, the next call has a new process."""
    output, log = tmp_path / "out", Recorded()
    first = await run(runners, tools.pid)
    left = run(runners, tools.scatters, ToolContext(log=log), output=str(output), returns=True)
    assert await left == "scattered"
    assert ("tool left processes, which are killed", {}) in log.lines
    assert not [pid for pid in set(output.read_text().split()) if alive(int(pid))]
    assert await run(runners, tools.pid) != first


async def test_threads_that_a_call_leaves_are_named(runners: Runners) -> None:
    """They may belong to a pool or an exporter, so they are reported, once, and not ended."""
    log = Recorded()
    first = await run(runners, tools.pid)
    await run(runners, tools.leaves_thread, ToolContext(log=log))
    assert ("tool left threads running", {"threads": "exporter"}) in log.lines
    assert await run(runners, tools.pid) == first


async def test_cancelled_while_it_waits_for_a_process(tmp_path: Path) -> None:
    """Nothing begun, nothing to kill; the call before it is not disturbed."""
    runners, marker = Runners(most=1), tmp_path / "m"
    first = asyncio.create_task(run(runners, tools.sleeps, seconds=0.5, marker=str(marker)))
    await begun(marker)
    second = asyncio.create_task(run(runners, tools.echo, text="x"))
    await asyncio.sleep(0.05)
    assert await cancelled(second) < 0.1
    assert await first == "slept"
    await runners.close()


@linux
async def test_cancelled_at_any_moment_of_its_start(runners: Runners) -> None:
    """Also while the process starts and imports, and twice: nothing is left."""
    for wait in (0, 0.001, 0.01, 0.03, 0.06, 0.1, 0.15, 0.2):
        work = asyncio.create_task(run(runners, tools.sleeps, seconds=60, marker="/dev/null/x"))
        await asyncio.sleep(wait)
        work.cancel()
        await asyncio.sleep(0)
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError, NotADirectoryError):
            await work
    await runners.close()
    assert not processes()


@linux
async def test_a_bounded_fork_bomb_is_killed(runners: Runners, tmp_path: Path) -> None:
    """Processes that multiply in sessions of their own are outrun."""
    marker = tmp_path / "m"
    work = asyncio.create_task(run(runners, tools.multiplies, marker=str(marker)))
    await begun(marker)
    await until(lambda: len(processes()) > 30)
    grown = len(processes())
    took = await cancelled(work)
    figure(f"{grown} processes killed in {took * 1000:.0f} ms")
    await until(lambda: not processes(), timeout=30)


@linux
@pytest.mark.parametrize("deaf", [False, True], ids=["stopped", "deaf"])
async def test_a_supervisor_that_was_stopped_does_not_hold_up_a_cancel(
    runners: Runners, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deaf: bool
) -> None:
    """It is woken; if that does not help, it is killed, and its process with it."""
    marker = tmp_path / "m"
    work = asyncio.create_task(run(runners, tools.sleeps, seconds=60, marker=str(marker)))
    await begun(marker)
    (handle,) = runners._busy
    os.kill(handle.pid, signal.SIGSTOP)
    if deaf:
        monkeypatch.setattr(signal, "SIGCONT", signal.SIGURG)
        monkeypatch.setattr("activities.runner_handle.KILL_SECONDS", 0.2)
    assert await cancelled(work) < 10
    await until(lambda: not processes(), timeout=30)


@linux
async def test_a_supervisor_that_is_killed_takes_the_tool_with_it(
    runners: Runners, tmp_path: Path
) -> None:
    """The call says that its process was lost, and no function runs on unsupervised."""
    marker = tmp_path / "m"
    work = asyncio.create_task(run(runners, tools.sleeps, seconds=60, marker=str(marker)))
    await begun(marker)
    tree = processes()
    (handle,) = runners._busy
    os.kill(handle.pid, signal.SIGKILL)
    with pytest.raises(ProcessEnded, match="was lost"):
        await work
    await until(lambda: not any(map(alive, tree)), timeout=30)


# --- leases ---------------------------------------------------------------------------------------


class Leased:
    """A lease of a given length that is extended only by hand."""

    def __init__(self, seconds: float) -> None:
        self.until = clock() + seconds
        self.carrier: Carrier | None = None

    @contextlib.contextmanager
    def carried_by(self, carrier: Carrier) -> Iterator[None]:
        """As `Lease` does."""
        self.carrier = carrier
        carrier.extend(self.until)
        yield


async def leased(runners: Runners, lease: Leased, tool: Tool, **given: Any) -> str | Parts:
    """A call under a lease."""
    context = ToolContext(tool=tool.name)
    return await runners.call(tool, tool.bind(given, context), context, cast(Lease, lease))


@linux
async def test_a_call_whose_lease_is_over_is_killed_with_its_tree(
    runners: Runners, tmp_path: Path
) -> None:
    """Nobody extended it: the worker may be stopped, and the call another worker's by now."""
    output, lease = tmp_path / "out", Leased(60)
    work = asyncio.create_task(leased(runners, lease, tools.scatters, output=str(output)))
    await begun(output)
    assert lease.carrier is not None
    lease.carrier.extend(clock() + 0.3)
    with pytest.raises(ProcessEnded, match="its lease was over"):
        await work
    assert not processes()
    written = output.read_text()
    await asyncio.sleep(0.3)
    assert output.read_text() == written


async def test_an_extended_lease_and_a_call_without_one_go_on(
    runners: Runners, tmp_path: Path
) -> None:
    """Until the new time; and the next call of the same process has no lease from this one."""
    await run(runners, tools.echo, text="warm")
    lease, marker = Leased(1), str(tmp_path / "m")
    work = asyncio.create_task(leased(runners, lease, tools.sleeps, seconds=1.5, marker=marker))
    await begun(Path(marker))
    assert lease.carrier is not None
    lease.carrier.extend(clock() + 9)
    assert await work == "slept"
    assert await leased(runners, Leased(0.5), tools.echo, text="short") == "short"
    assert await run(runners, tools.sleeps, seconds=0.7, marker=marker) == "slept"


@linux
async def test_a_process_that_stands_still_owes_an_answer(runners: Runners, tmp_path: Path) -> None:
    """Stopped by a signal it does not answer when its lease is extended; woken it does again."""
    lease, marker = Leased(30), tmp_path / "m"
    call = leased(runners, lease, tools.sleeps, seconds=1, marker=str(marker))
    work = asyncio.create_task(call)
    await begun(marker)
    carrier = lease.carrier
    assert isinstance(carrier, Handle)
    await until(lambda: carrier.owed == 0)
    (tool_process,) = processes().keys() - {carrier.pid}
    os.kill(tool_process, signal.SIGSTOP)
    await asyncio.sleep(0.1)
    for _ in range(3):
        carrier.extend(lease.until)
    await asyncio.sleep(0.2)
    assert carrier.owed == 3
    os.kill(tool_process, signal.SIGCONT)
    await asyncio.sleep(0.1)
    carrier.extend(lease.until)
    await until(lambda: carrier.owed == 0, timeout=30)
    assert await work == "slept"


# --- the worker's own end -------------------------------------------------------------------------

WORKER = """
import asyncio, contextlib, json, sys
from activities.lease import clock
from activities.runners import Runners
from tests.activities import runner_tools
from turnkeeper import ToolContext

class Lease:
    @contextlib.contextmanager
    def carried_by(self, carrier):
        keeping = asyncio.create_task(self.keep(carrier))
        yield
        keeping.cancel()

    async def keep(self, carrier):
        while True:
            carrier.extend(clock() + 2)
            await asyncio.sleep(0.5)

async def main():
    tool, given = getattr(runner_tools, sys.argv[1]), json.loads(sys.argv[2])
    runners = Runners()
    await runners.call(tool, tool.bind(given, ToolContext()), ToolContext(), Lease())
    await runners.close()

asyncio.run(main())
"""


def start_worker(tool: str, **given: Any) -> subprocess.Popen[bytes]:
    """A process with a call in it."""
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, tool, json.dumps(given)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


@linux
async def test_nothing_outlives_a_worker_that_was_killed(tmp_path: Path) -> None:
    """SIGKILL of the worker: within a second its tool's tree is gone and writes nothing more."""
    output = tmp_path / "out"
    worker = start_worker("scatters", output=str(output))
    await begun(output)
    tree = [p for p in processes() if p != worker.pid]
    assert len(tree) >= 5
    worker.kill()
    worker.wait()
    killed = time.monotonic()
    await until(lambda: not any(map(alive, tree)), timeout=30)
    figure(f"tree of {len(tree)} gone {(time.monotonic() - killed) * 1000:.0f} ms after its worker")
    written = output.read_text()
    await asyncio.sleep(0.3)
    assert output.read_text() == written


@linux
async def test_nothing_outlives_the_lease_of_a_worker_that_was_stopped(tmp_path: Path) -> None:
    """SIGSTOP of the worker alone: its supervisor ends the tree, and it wakes to find that out."""
    output = tmp_path / "out"
    worker = start_worker("scatters", output=str(output))
    try:
        await begun(output)
        await asyncio.sleep(2.5)
        supervisor, *tree = sorted(p for p in processes() if p != worker.pid)
        assert len(tree) >= 4
        worker.send_signal(signal.SIGSTOP)
        await until(lambda: not any(map(alive, tree)), timeout=30)
        written = output.read_text()
        worker.send_signal(signal.SIGCONT)
        assert await asyncio.to_thread(worker.wait, 10) == 1
        assert not alive(supervisor)
        assert output.read_text() == written
    finally:
        worker.kill()
        worker.wait()


@linux
@pytest.mark.slow
@pytest.mark.long
async def test_40_kills_leave_no_zombie_and_no_descriptor(tmp_path: Path) -> None:
    """Descriptors, processes and tasks are back to where they were."""
    runners = Runners(most=8)
    await run(runners, tools.echo, text="x")
    await runners.close()
    gc.collect()
    before, tasks = descriptors(), len(asyncio.all_tasks())

    async def killed(n: int) -> float:
        marker = tmp_path / f"{n}"
        work = asyncio.create_task(run(runners, tools.sleeps, seconds=60, marker=str(marker)))
        await begun(marker, within=60)
        return await cancelled(work)

    runners = Runners(most=8)
    taken: list[float] = []
    for first in range(0, 40, 4):
        taken += await asyncio.gather(*(killed(n) for n in range(first, first + 4)))
    await runners.close()
    gc.collect()
    taken.sort()
    figure(f"40 kills: median {taken[20] * 1000:.0f} ms, slowest {taken[-1] * 1000:.0f} ms")
    assert not processes()
    assert descriptors() <= before
    assert len(asyncio.all_tasks()) == tasks
