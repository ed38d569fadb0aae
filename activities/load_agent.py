"""Pin an agent into a run: its spec, and what this namespace can show of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import structlog
from pydantic import ValidationError
from temporalio import activity
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from activities import built_in, pricing
from activities.providers import Provider
from activities.redact import Redactor
from activities.registry import Registry
from activities.windows import Windows, head_tokens
from turnkeeper.artifacts import ArtifactStore
from turnkeeper.contract import (
    ATTRIBUTE_TYPES,
    LOAD_AGENT,
    STORE_UNAVAILABLE,
    LoadAgentInput,
    LoadAgentOutput,
    problem_text,
)
from turnkeeper.entries import digest_of
from turnkeeper.prices import no_price
from turnkeeper.spec import AgentSpec, Limits
from turnkeeper.text import one_line

MAX_INLINE_SPEC_BYTES = 256_000
"""A larger spec goes to the artifact store, and the run carries its outline."""
PATIENCE_SECONDS = 8.0
"""How long an agent is looked for: in a rolling deploy the next worker may know it."""
_SHARES = (1, 2, 4, 8, 15)
"""Of the patience, before each further attempt."""
_ATTRIBUTES_SECONDS = 60.0
"""How old the list of search attributes may be: it is the same for all runs."""

log = structlog.get_logger("turnkeeper.load_agent")


class LoadAgent:
    """The activity `run.load_agent`."""

    def __init__(
        self,
        registry: Registry,
        client: Client,
        store: ArtifactStore,
        providers: Mapping[str, Provider],
        redactor: Redactor,
        *,
        heartbeat_seconds: float = 10,
        patience_seconds: float = PATIENCE_SECONDS,
        notifies: bool = False,
    ) -> None:
        self._notifies = notifies
        self._registry = registry
        self._client = client
        self._store = store
        self._windows = Windows(providers)
        self._redactor = redactor
        self._heartbeat_seconds = heartbeat_seconds
        self._patience_seconds = patience_seconds
        self._attributes: list[str] = []
        self._attributes_until = 0.0
        self._listing = asyncio.Lock()

    @activity.defn(name=LOAD_AGENT)
    async def run(self, asked: LoadAgentInput) -> LoadAgentOutput:
        """The agent as data, with the request's limits.

        Raises:
            ApplicationError: of type `unknown_agent` or `invalid_request`.
        """
        agent = self._registry.agents.get(asked.agent)
        if agent is None:
            raise self._unknown(asked.agent)
        spec = built_in.extended(_with_limits(agent.spec(), asked.limits))
        spec = pricing.pinned(await self._windows.pinned(spec))
        if spec.limits.cost_usd is not None and (without := pricing.unpriced(spec.models)):
            told = f"limits.cost_usd: {no_price(without[0])}"
            raise ApplicationError(told, type="invalid_request", non_retryable=True)
        # Without the limits: no request is made of them, and callers may compute them anew for each
        # run, where all runs of an agent are to share one spec in a worker's memory.
        digest = digest_of(spec.model_dump(mode="json", exclude={"limits"}))
        return LoadAgentOutput(
            spec=await self._small(spec),
            spec_digest=digest,
            head_tokens=head_tokens(spec),
            attributes=await self._registered(),
            heartbeat_seconds=self._heartbeat_seconds,
            notifies=self._notifies,
        )

    def _unknown(self, name: str) -> ApplicationError:
        known = ", ".join(sorted(self._registry.agents)) or "none"
        like = self._registry.like(name)
        attempt = activity.info().attempt
        last = attempt > len(_SHARES)
        # Asked for at each worker in its turn, and told once: by the last one.
        tell = log.warning if last else log.debug
        tell("no such agent", agent=one_line(name, 64), served=known, attempt=attempt)
        share = _SHARES[min(attempt, len(_SHARES)) - 1] / sum(_SHARES)
        return ApplicationError(
            f"there is no agent {name!r}; this worker serves: {known}"
            + (f". Did you mean {like}?" if like else ""),
            type="unknown_agent",
            non_retryable=last,
            next_retry_delay=timedelta(seconds=self._patience_seconds * share),
        )

    async def _registered(self) -> list[str]:
        """As `registered_attributes`, asked once a minute; if that fails, as last known."""
        # Whoever comes while they are listed waits: a run that began without them is in no list.
        async with self._listing:
            now = time.monotonic()
            if now >= self._attributes_until:
                self._attributes_until = now + _ATTRIBUTES_SECONDS
                found = await _listed(self._client)
                self._attributes = self._attributes if found is None else found
        return self._attributes

    async def _small(self, spec: AgentSpec) -> AgentSpec:
        data = spec.model_dump_json().encode()
        if len(data) <= MAX_INLINE_SPEC_BYTES:
            return spec
        try:
            artifact = await self._store.put(str(activity.info().workflow_id), data)
        except OSError as error:
            # A bucket's error may name its URL, with a key in it.
            why = one_line(self._redactor.error(str(error)), 300)
            # Waited for a minute: the server's own delays are for an agent that is deployed.
            raise ApplicationError(
                f"the agent's spec cannot be stored: {why}",
                type=STORE_UNAVAILABLE,
                next_retry_delay=timedelta(seconds=min(2.0 ** (activity.info().attempt - 1), 10)),
            ) from None
        return spec.outline(artifact)


def _with_limits(spec: AgentSpec, asked: dict[str, Any]) -> AgentSpec:
    try:
        limits = Limits.model_validate({**spec.limits.model_dump(), **asked})
    except ValidationError as error:
        told = problem_text(error, "limits")
        raise ApplicationError(told, type="invalid_request", non_retryable=True) from None
    return spec.model_copy(update={"limits": limits})


async def registered_attributes(client: Client) -> list[str]:
    """Which of our search attributes the namespace has, sorted; none if it does not say."""
    return await _listed(client) or []


async def _listed(client: Client) -> list[str] | None:
    try:
        reply = await client.operator_service.list_search_attributes(
            ListSearchAttributesRequest(namespace=client.namespace)
        )
    except RPCError as error:
        # Some clusters keep this call to administrators: runs work without search attributes.
        log.warning("search attributes not listed", error=str(error))
        return None
    return sorted(set(reply.custom_attributes) & set(ATTRIBUTE_TYPES))
