"""Workers of one task queue that differ, or come and go, in this process."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from temporalio.client import Client

import worker
from activities.providers.anthropic import AnthropicProvider
from activities.registry import Registry
from tests.rig import AGENT
from turnkeeper import Agent
from turnkeeper.artifacts import FolderStore
from turnkeeper.client import AgentClient
from turnkeeper.testing import ScriptedProvider


def agent(*tools: Any, **options: Any) -> Agent:
    """The agent `tester` with these tools."""
    return Agent(
        name=AGENT, model="claude-sonnet-5-5", instructions="Test.", tools=tools, **options
    )


@dataclasses.dataclass
class Fleet:
    """A task queue, its provider, and workers that begin without any memory of a run."""

    agents: AgentClient
    provider: ScriptedProvider
    folder: Path

    @contextlib.asynccontextmanager
    async def worker(self, served: Agent) -> AsyncIterator[None]:
        """A worker on a connection of its own, as in another process."""
        own = await Client.connect(
            self.agents.client.service_client.config.target_host,
            data_converter=self.agents.client.data_converter,
        )
        model = AnthropicProvider(api_key="test-key-0123456789", base_url=self.provider.url)
        settings = worker.Settings(
            task_queue=self.agents.task_queue,
            grace_seconds=1,
            sticky_seconds=1,
            heartbeat_seconds=1,
        )
        made = worker.build_worker(
            own, Registry([served]), {"anthropic": model}, FolderStore(self.folder), settings
        )
        async with made:
            yield
        await model.close()
