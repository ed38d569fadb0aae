"""Tools that stop answering: stopped, told of once, tried again as their effect allows."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests import hung_tools
from tests.faults.killable import read_notes
from tests.rig import RigFactory, until
from tests.workers import Site, SiteFactory, alive
from turnkeeper import tool
from turnkeeper.metrics import ATTEMPTS_TIMED_OUT
from turnkeeper.testing import Exchange, call, text
from turnkeeper.testing.provider import Reply

FAST = {"heartbeat_seconds": 2}


def steps(exchange: Exchange) -> Reply:
    """The prompt is the tool's name; the answer repeats the result."""
    return text(exchange.last_results[0].text) if exchange.turn else call(exchange.prompt)


@pytest.fixture(autouse=True)
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the tools leave their notes."""
    monkeypatch.setenv("CALL_LOG", str(tmp_path / "calls.jsonl"))


async def run(rig: RigFactory, name: str) -> tuple[str, list[dict[str, Any]]]:
    """The answer of a run that calls a tool, and what was logged of stopped attempts."""
    with capture_logs() as lines:
        async with rig(steps, agents=[hung_tools.agent], settings=FAST) as r:
            result = await r.run(name, agent="hung")
    assert result.answer is not None
    return result.answer, [dict(x) for x in lines if x["event"] == "attempt stopped"]


@pytest.mark.parametrize("name", ["page", "page_in_process"])
async def test_a_tool_that_promised_to_heartbeat_and_does_not_is_stopped(
    rig: RigFactory, name: str
) -> None:
    """Long before its timeout; the next attempt goes on from its last word."""
    answer, stopped = await run(rig, name)
    assert answer == "read"
    first, second = read_notes("begin")
    assert (first["attempt"], second["attempt"]) == (1, 2)
    assert second["resume_from"] == {"page": 4}
    assert [line["why"][:26] for line in stopped] == ["it gave no sign of life fo"]
    if name == "page_in_process":
        assert not alive(first["pid"])


async def test_a_once_tool_that_does_not_answer_is_not_tried_again(rig: RigFactory) -> None:
    """The model reads what happened, and that the outcome is unknown."""
    answer, stopped = await run(rig, "post")
    assert answer == (
        "Tool post failed after 1 attempt: it gave no sign of life for 1 s. "
        "It may or may not have taken effect, and was not tried again."
    )
    assert len(stopped) == len(read_notes("begin")) == 1


async def test_signs_of_life_may_come_from_a_thread(rig: RigFactory) -> None:
    """Three times as long as it may be silent: it is left alone."""
    assert await run(rig, "steady") == ("done", [])


async def test_a_process_that_is_stopped_by_a_signal_is_given_up(rig: RigFactory) -> None:
    """No pulse beats for it: it is killed, and the call goes on in another process."""
    running = asyncio.create_task(run(rig, "stopped"))
    await until(lambda: read_notes("begin"))
    (first,) = read_notes("begin")
    os.kill(first["pid"], signal.SIGSTOP)
    answer, stopped = await running
    assert answer == "went on"
    assert [line["why"] for line in stopped] == ["its process stands still"]
    assert not alive(first["pid"])


async def test_heartbeats_without_an_answer_cost_no_result(
    rig: RigFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever they fail with: it is told once, and a read that is in time is used."""

    async def fails(*_args: Any, **_options: Any) -> None:
        raise RuntimeError("no key for the codec")

    @tool(effect="read")
    async def read() -> str:
        """Read for longer than a heartbeat."""
        await asyncio.sleep(1.2)
        return "read"

    monkeypatch.setattr("temporalio.client.AsyncActivityHandle.heartbeat", fails)
    with capture_logs() as lines:
        async with rig([call("read"), text("Done.")], tools=[read], settings=FAST) as r:
            result = await r.run()
    assert (result.outcome, result.errors) == ("completed", 0)
    told = [line["error"] for line in lines if line["event"] == "heartbeat without an answer"]
    assert told == ["RuntimeError: no key for the codec"]


# --- timeouts that only the server sees, in worker processes --------------------------------------


def timeouts(s: Site) -> list[tuple[str, str]]:
    """Tool and run of each line that tells of a timeout, over all workers."""
    return [
        (line["tool"], line["workflow_id"])
        for process in s.workers
        for line in s.logged(process)
        if line["event"] == "attempts timed out" and line["run_id"]
    ]


def counted(where: str) -> float:
    """The timeouts, as Prometheus reads them."""
    with urllib.request.urlopen(f"http://{where}/metrics", timeout=10) as page:
        lines = page.read().decode().splitlines()
    return sum(float(x.split()[-1]) for x in lines if x.startswith(ATTEMPTS_TIMED_OUT))


@pytest.mark.crash
async def test_a_timeout_that_no_attempt_follows_is_told_by_the_run(site: SiteFactory) -> None:
    """Of a `once` tool: one line with the run's id, and one count."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        where = f"127.0.0.1:{free.getsockname()[1]}"
    async with site(steps, module="tests.hung_tools") as s:
        await s.worker("--metrics", where, "--log-format", "json")
        run = await s.start("slow", agent="hung")
        assert "may or may not" in str((await run.result(timeout=90)).answer)
        assert timeouts(s) == [("slow", run.id)]
        assert await asyncio.to_thread(counted, where) == 1


@pytest.mark.long
@pytest.mark.crash
@pytest.mark.timeout(300)
async def test_b63_native_code_that_holds_the_interpreter_for_ever(site: SiteFactory) -> None:
    """The worker cannot even see SIGTERM: it ends itself and says where it was; the attempt is
    tried elsewhere."""
    async with site(steps, module="tests.hung_tools") as s:
        first = await s.worker("--blocked-seconds", "6", "--log-format", "json")
        held = await s.start("hold", agent="hung")
        await until(lambda: s.calls("begin"))
        await s.worker("--log-format", "json")
        os.kill(first.pid, signal.SIGTERM)
        assert await asyncio.to_thread(first.wait, 60) == 1
        assert (await held.result(timeout=90)).answer == "read"
        assert timeouts(s) == [("hold", held.id)]
        assert first.log is not None
        assert "in hold" in first.log.read_text()
