"""The worker as it is built: what it takes from its settings, and what it leaves behind."""

from __future__ import annotations

import asyncio
import dataclasses
import uuid
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from temporalio.client import Client

import worker
from activities import startup
from activities.capacity import Caches
from activities.providers.anthropic import AnthropicProvider
from activities.registry import Registry
from tests.rig import RigFactory
from turnkeeper import Agent, tool
from turnkeeper.artifacts import FolderStore
from turnkeeper.spec import HistoryPolicy
from turnkeeper.testing import call, text

GRACE = {"grace_seconds": 20}


async def test_providers_are_closed_at_shutdown(client: Client, tmp_path: Path) -> None:
    """Their connections end with the worker, after the calls that use them."""

    class Provider(AnthropicProvider):
        closed = False

        async def close(self) -> None:
            self.closed = True

    model = Provider(api_key="test-key-0123456789")
    agent = Agent(name="tester", model="m", instructions="i")
    settings = worker.Settings(task_queue=f"test-{uuid.uuid4()}", grace_seconds=1)
    store = FolderStore(tmp_path)
    async with worker.build_worker(
        client, Registry([agent]), {"anthropic": model}, store, settings
    ):
        assert not model.closed
    assert model.closed


def test_options_have_the_defaults_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """They stand in one place."""
    for name in ("TASK_QUEUE", "HEARTBEAT_SECONDS", "STICKY_SECONDS", "CACHE_MB"):
        monkeypatch.delenv(f"TURNKEEPER_{name}", raising=False)
    options = vars(worker._parser().parse_args([]))
    settings = dataclasses.asdict(worker.Settings())
    shared = settings.keys() & options.keys()
    assert shared == settings.keys() - {"unknown_agent_seconds", "keeps_switches"}
    assert {name: options[name] for name in shared} == {name: settings[name] for name in shared}


@pytest.mark.parametrize(
    ("megabytes", "history", "runs"),
    [(1, None, 50), (1_000, None, 125), (1_000, HistoryPolicy(bytes=8_000_000), 58)],
)
async def test_as_many_runs_are_cached_as_the_memory_has_room_for(
    client: Client, tmp_path: Path, megabytes: float, history: HistoryPolicy | None, runs: int
) -> None:
    """Each as large as the most that an agent's history may have."""
    settings = worker.Settings(task_queue=f"test-{uuid.uuid4()}", cache_mb=megabytes)
    agents = [
        Agent(name="usual", model="m", instructions="i"),
        Agent(name="other", model="m", instructions="i", history=history),
    ]
    made = worker.build_worker(client, Registry(agents), {}, FolderStore(tmp_path), settings)
    assert made.config()["max_cached_workflows"] == runs


def test_what_is_cached_is_told_at_the_start() -> None:
    """In numbers that an operator can weigh."""
    with capture_logs() as lines:
        startup.tell_caches(Caches(runs=250, view_bytes=500_000_000))
    assert [(line["runs"], line["views_mb"]) for line in lines] == [(250, 500)]


def tools_of(**timeouts: float) -> Registry:
    """An agent with one tool of each named effect."""

    async def work() -> str:
        """Work."""
        return ""

    tools = [tool(name=e, effect=e, timeout=t)(work) for e, t in timeouts.items()]  # type: ignore[call-overload]
    return Registry([Agent(name="tester", model="m", instructions="i", tools=tools)])


@pytest.mark.parametrize(
    ("timeouts", "seconds"),
    [
        ({}, 60),
        ({"once": 5}, 60),
        ({"once": 7_200, "read": 5}, 7_200),
        # They are tried again elsewhere.
        ({"once": 90, "idempotent": 7_200}, 600),
    ],
)
def test_the_grace_time_is_that_of_the_longest_once_tool(
    timeouts: dict[str, float], seconds: float
) -> None:
    """So that a deploy leaves no outcome unknown; the operator's own word counts before that."""
    registry = tools_of(**timeouts)
    assert worker._grace(registry, worker.Settings()) == seconds
    assert worker._grace(registry, worker.Settings(grace_seconds=3)) == 3


def test_a_long_grace_time_is_told_at_the_start() -> None:
    """What starts the worker must wait at least as long before it kills it."""
    with capture_logs() as lines:
        startup.warn_of_grace(600)
        startup.warn_of_grace(7_200)
    assert [(line["seconds"], line["log_level"]) for line in lines] == [(7_200, "warning")]


async def test_a_stopping_worker_says_what_it_waits_for(rig: RigFactory) -> None:
    """Each call by tool and run, with the seconds that it has at most."""
    begun = asyncio.Event()

    @tool(effect="once", timeout=90)
    async def work() -> str:
        """Take a while."""
        begun.set()
        await asyncio.sleep(1)
        return "done"

    with capture_logs() as lines:
        async with rig([call("work"), text("Done.")], tools=[work], settings=GRACE) as r:
            run = await r.start()
            await begun.wait()
    (line,) = [x for x in lines if x["event"] == "waits for a call"]
    assert (line["tool"], line["effect"], line["workflow_id"]) == ("work", "once", run.id)
    assert line["run_id"]
    assert 1 <= line["seconds_left"] <= 20
