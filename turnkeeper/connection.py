"""The way to a Temporal server, and what its errors mean to a caller."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.envconfig import ClientConfig
from temporalio.service import RPCError, RPCStatusCode

from turnkeeper.converter import data_converter

__all__ = [
    "DEFAULT_ADDRESS",
    "connect",
    "namespace_identity",
    "own_settings",
    "readable",
    "readable_errors",
]

DEFAULT_ADDRESS = "127.0.0.1:7233"


def own_settings() -> Mapping[str, Any]:
    """Temporal's own client settings: its environment variables and `temporal.toml`.

    Raises:
        ValueError: they cannot be read.
    """
    try:
        return ClientConfig.load_client_connect_config()
    except Exception as error:
        raise ValueError(f"Temporal's client settings: {error}") from error


async def connect(settings: Mapping[str, Any], timeout: float) -> Client:
    """Connect by arguments of `Client.connect`, with our data converter.

    Raises:
        ConnectionError: no server answers within `timeout` seconds.
    """
    where = f"{settings['target_host']} (namespace {settings.get('namespace', 'default')})"
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    while True:
        try:
            async with asyncio.timeout_at(deadline):
                return await Client.connect(**settings, data_converter=data_converter)
        except TimeoutError:
            raise ConnectionError(f"no answer from {where} in {timeout:g} s") from None
        except ValueError as error:
            raise ConnectionError(f"{settings['target_host']!r} is no address: {error}") from error
        except RuntimeError as error:
            # A server's port answers some moments before its frontend does.
            if "not healthy yet" not in str(error) or loop.time() > deadline - 0.2:
                why = _plainly(str(error))
                raise ConnectionError(f"no Temporal server at {where}: {why}") from error
            await asyncio.sleep(0.1)


async def namespace_identity(client: Client) -> str:
    """Which namespace this is, of all servers' namespaces: `<name>.<id>`.

    Servers have a `default` each, and an artifact store may serve several of them.

    Raises:
        ConnectionError: the server does not answer, or has no such namespace.
        RPCError: it does not tell.
    """
    request = DescribeNamespaceRequest(namespace=client.namespace)
    with readable_errors(client):
        found = await client.workflow_service.describe_namespace(request, retry=True)
    name = re.sub(r"[^A-Za-z0-9_-]", "_", client.namespace)[:64]
    return f"{name}.{found.namespace_info.id}"


@contextmanager
def readable_errors(client: Client, run: str = "") -> Iterator[None]:
    """Raise what a caller can read for RPCs that fail, on a run if one is named: see `readable`."""
    try:
        yield
    except RPCError as error:
        raise readable(error, run, client) from error


def readable(error: RPCError, run: str, client: Client) -> Exception:
    """The error that a caller gets for an RPC on a run: LookupError, ConnectionError, or itself."""
    host = client.service_client.config.target_host
    if error.status is RPCStatusCode.NOT_FOUND:
        if "namespace" in error.message.lower():
            return ConnectionError(
                f"namespace {client.namespace} is not on {host}; it was named by --namespace, "
                "TEMPORAL_NAMESPACE or temporal.toml, and is `default` without them"
            )
        if run:
            return LookupError(f"there is no run {run} at {host} (namespace {client.namespace})")
        return ConnectionError(error.message)
    if error.status in (RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED):
        why = _plainly(error.message)
        return ConnectionError(f"the Temporal server at {host} does not answer: {why}")
    return error


# What the transport's errors, debugging prints of their types, say.
_TRANSPORT = {
    "connectionrefused": "connection refused",
    "connection refused": "connection refused",
    "dns error": "no such host",
    "connectionreset": "connection reset",
    "timedout": "timed out",
}


def _plainly(message: str) -> str:
    lower = message.lower()
    return next((said for sign, said in _TRANSPORT.items() if sign in lower), message)
