"""kill -9 of a real worker process in each phase: nothing recorded is done again."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from tests.faults.killable import agent
from tests.rig import RigFactory, until
from tests.workers import Site, SiteFactory, open_site
from turnkeeper.contract import RunResult
from turnkeeper.testing import Exchange, call, text
from turnkeeper.testing.embedded import EmbeddedServer
from turnkeeper.testing.provider import Reply

pytestmark = pytest.mark.crash


def script(tool: str, seconds: float = 0) -> list[Any]:
    """One call, then an answer that repeats its result."""
    return [
        call(tool, {"seconds": seconds}),
        lambda exchange: text(exchange.last_results[0].text),
    ]


async def uninterrupted(
    rig: RigFactory,
    steps: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    prompt: str,
) -> RunResult:
    """The same run where nothing is killed, and tools need not wait for it."""
    monkeypatch.setenv("CALL_LOG", str(tmp_path / "control.jsonl"))
    monkeypatch.setattr("tests.faults.killable.SLOWEST", 0)
    async with rig(steps, agents=[agent]) as r:
        return await r.run(prompt, agent="killable")


@dataclasses.dataclass
class Killed:
    """What one kill left: a run in GENERATE and one in EXECUTE for each effect."""

    site: Site
    results: dict[str, RunResult]


@pytest.fixture(scope="module")
async def killed(
    client: Client, server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Killed]:
    """One worker with four runs is killed, another takes all of them over."""

    def steps(exchange: Exchange) -> Reply:
        if exchange.prompt == "generate":
            return text("Never read.", delay=60) if not exchange.repeat else text("The answer.")
        if exchange.turn:
            return text(exchange.last_results[0].text)
        return call(exchange.prompt, {"seconds": 60})

    folder = tmp_path_factory.mktemp("killed")
    async with open_site(client, server.address, folder, steps) as s:
        first = await s.worker()
        runs = {p: await s.start(p) for p in ("generate", "look", "refund", "send")}
        await until(lambda: len(s.calls("begin")) == 3 and s.generations("generate"))
        # The tools' own heartbeat details go out with the next beat, a third of the timeout later.
        await asyncio.sleep(1.5)
        await s.kill(first)
        await s.worker()
        yield Killed(s, {p: await run.result(timeout=60) for p, run in runs.items()})


async def test_a_worker_killed_while_the_model_answers(killed: Killed) -> None:
    """GENERATE: the lost answer is asked for once more, and nothing else is."""
    result = killed.results["generate"]
    assert (result.answer, result.turns) == ("The answer.", 1)
    assert killed.site.generations("generate") == [(0, "client_gone"), (0, "sent")]


@pytest.mark.parametrize(
    "point",
    [
        pytest.param("reply.heard", marks=pytest.mark.long),
        "calls.proposed",
        pytest.param("results.appended", marks=pytest.mark.long),
    ],
)
async def test_a_worker_killed_in_a_workflow_task(
    site: SiteFactory,
    rig: RigFactory,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    point: str,
) -> None:
    """PARSE, EXECUTE, RESUME: no generation and no tool call is repeated, the end is the same."""
    steps = script("send")
    async with site(steps) as s:
        first = await s.worker(crash_points=True, crash_at=f"{point}:1")
        run = await s.start()
        assert await until(lambda: first.status) == -9
        await s.worker()
        result = await run.result(timeout=60)
        assert [turn for turn, _ in s.generations()] == [0, 1]
        assert [len(s.calls("begin")), len(s.calls("end"))] == [1, 1]
    assert (
        result.transcript
        == (await uninterrupted(rig, steps, monkeypatch, tmp_path, "question")).transcript
    )


@pytest.mark.parametrize("tool", ["look", "refund"])
async def test_a_worker_killed_while_a_repeatable_tool_runs(
    killed: Killed,
    rig: RigFactory,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    tool: str,
) -> None:
    """EXECUTE, `read` and `idempotent`: run again under the same key; where it had got to travels
    along in its heartbeat."""
    result = killed.results[tool]
    assert result.answer == f"{tool} done"
    assert [turn for turn, _ in killed.site.generations(tool)] == [0, 1]
    first, second = killed.site.calls("begin", tool)
    assert (first["attempt"], second["attempt"]) == (1, 2)
    assert first["key"] == second["key"]
    assert second["resume_from"] == {"at": 1}
    assert len(killed.site.calls("end", tool)) == 1
    steps = [call(tool, {"seconds": 60}), lambda x: text(x.last_results[0].text)]
    control = await uninterrupted(rig, steps, monkeypatch, tmp_path, tool)
    assert result.transcript == control.transcript


async def test_a_worker_killed_while_a_once_tool_runs(killed: Killed) -> None:
    """EXECUTE, `once`: begun once, never again; the model is told that the outcome is unknown."""
    result = killed.results["send"]
    assert result.answer is not None
    assert "may or may not have taken effect" in result.answer
    assert len(killed.site.calls("begin", "send")) == 1
    assert (result.calls, result.errors) == (1, 1)
