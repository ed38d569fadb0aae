"""What is switched off, and which limits per day there are, as this worker knows it."""

from __future__ import annotations

import asyncio
import math

import structlog
from temporalio.client import Client
from temporalio.service import RPCError

from activities.lease import clock
from turnkeeper import switchboard
from turnkeeper.switches import Switch, SwitchList

FRESH_SECONDS = 2.0
"""How old the worker's copy may be when a call or a request to a model begins."""
ANSWER_SECONDS = 2.0
"""How long the server is waited for; then the last copy counts for as long as a fresh one."""

log = structlog.get_logger("turnkeeper.switched")


class Switched:
    """The worker's copy; it is asked for by all calls together, and not while there are none."""

    def __init__(self, client: Client, task_queue: str) -> None:
        self._client = client
        self._task_queue = task_queue
        self._copy = SwitchList()
        self._until = -math.inf
        self._asking = asyncio.Lock()
        self._told = False

    async def now(self) -> SwitchList:
        """What is switched off, or was at most `FRESH_SECONDS` ago.

        While the server does not answer, what was last known; at first nothing.
        """
        async with self._asking:
            if clock() >= self._until:
                await self._refresh()
        return self._copy

    async def check_agent(self, agent: str, tenant: str | None) -> Switch | None:
        """Before a request to a model: what forbids it, if anything does."""
        off = (await self.now()).agent_off(agent, tenant)
        if off is not None:
            _log(off, agent)
        return off

    async def check_tool(self, agent: str, tool: str, tenant: str | None) -> Switch | None:
        """Before a call: what forbids it, if anything does."""
        off = (await self.now()).tool_off(agent, tool, tenant)
        if off is not None:
            _log(off, agent, tool)
        return off

    async def _refresh(self) -> None:
        began = clock()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                found = await switchboard.in_force(self._client, self._task_queue)
        except (TimeoutError, RPCError) as error:
            self._until = clock() + FRESH_SECONDS
            if not self._told:
                # The first one of an outage.
                self._told = True
                log.error(
                    "it cannot be told what is switched off: what was last known counts",
                    known=len(self._copy.switches),
                    error=f"{type(error).__name__}: {error}",
                )
            return
        # From when it was asked for: what it says may have changed since.
        self._copy, self._until, self._told = found, began + FRESH_SECONDS, False


def _log(off: Switch, agent: str, tool: str | None = None) -> None:
    log.warning("switched off", agent=agent, tool=tool, why=off.told)
