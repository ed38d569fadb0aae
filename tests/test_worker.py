"""The worker as it is built: what it takes from its settings, and what it leaves behind."""

from __future__ import annotations

import dataclasses
import uuid
from pathlib import Path

import pytest
from temporalio.client import Client

import worker
from activities.providers.anthropic import AnthropicProvider
from activities.registry import Registry
from turnkeeper import Agent
from turnkeeper.artifacts import FolderStore


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
    for name in ("TASK_QUEUE", "HEARTBEAT_SECONDS", "STICKY_SECONDS"):
        monkeypatch.delenv(f"TURNKEEPER_{name}", raising=False)
    options = vars(worker._parser().parse_args([]))
    settings = dataclasses.asdict(worker.Settings())
    shared = settings.keys() & options.keys()
    assert shared == settings.keys() - {"unknown_agent_seconds"}
    assert {name: options[name] for name in shared} == {name: settings[name] for name in shared}
