"""Workflows of the tests that are no agent runs; their histories are replayed like all others."""

from __future__ import annotations

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from turnkeeper.client import AgentClient


@workflow.defn
class ClientInside:
    """Uses AgentClient in workflow code, which it refuses."""

    @workflow.run
    async def run(self) -> None:
        """Try to start a run."""
        await AgentClient.connect("127.0.0.1:1")


PROBES = [ClientInside]
