"""Namespaces of a test's own."""

from __future__ import annotations

import uuid

from google.protobuf.duration_pb2 import Duration
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.client import Client

from tests.rig import until
from turnkeeper.client import AgentClient


async def bare_namespace(client: Client) -> Client:
    """A new, empty namespace on the same server, without our search attributes."""
    name = f"bare-{uuid.uuid4().hex[:8]}"
    await client.workflow_service.register_namespace(
        RegisterNamespaceRequest(
            namespace=name, workflow_execution_retention_period=Duration(seconds=86_400)
        )
    )
    address = client.service_client.config.target_host

    async def known() -> Client | None:
        # The frontend hears of a namespace some seconds after it was made.
        try:
            agents = await AgentClient.connect(address, namespace=name)
            assert not [x async for x in agents.list_runs()]
        except ConnectionError:
            return None
        return agents.client

    found: Client = await until(known)
    return found
