"""Runs by Temporal's visibility, and what people have to do for them; needs no worker."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from turnkeeper.connection import readable, readable_errors
from turnkeeper.contract import ATTRIBUTE_TYPES, WORKFLOW
from turnkeeper.ends import ended
from turnkeeper.outside import (
    PendingApproval,
    UnknownOutcome,
    agent_of,
    approvals_of,
    attribute,
    has_attribute,
    origin_of,
    outcomes_of,
    waits_of,
)
from turnkeeper.text import one_line
from turnkeeper.waiting import KINDS, PERSON, PROVIDER, TIME

__all__ = ["RunSummary", "count", "pending_approvals", "summaries", "unknown_outcomes"]

# Not those executions of long runs that went on in another one.
_OURS = f"WorkflowType = '{WORKFLOW}' AND ExecutionStatus != 'ContinuedAsNew'"
_OPEN = "ExecutionStatus = 'Running'"

_POSITION = re.compile(r" at position \d+")

_LOOKED_AT = 10_000
"""Runs whose memos are read for one list."""


@dataclass(frozen=True)
class RunSummary:
    """One line of a list of runs."""

    id: str
    run_id: str
    agent: str
    status: str
    """`running`, `waiting` for a person, or how Temporal closed it: `completed`, `canceled`, ..."""
    outcome: str | None
    turns: int | None
    tokens: int | None
    started: datetime
    closed: datetime | None
    waiting_for: str = ""
    """Of a run that waits for a person: what for, in words."""
    waits: Sequence[str] = ()
    """The same as names of `turnkeeper.waiting.KINDS`."""


async def summaries(
    client: Client, query: str, waiting_for: str | None, *, limit: int
) -> AsyncIterator[RunSummary]:
    """See `AgentClient.list_runs`."""
    found = (
        _executions(client, query, limit=limit)
        if waiting_for is None
        else _waiting(client, query, waiting_for, limit=limit)
    )
    async for execution in found:
        yield await _summary(client, execution)


async def count(client: Client, query: str, waiting_for: str | None) -> int:
    """See `AgentClient.count_runs`."""
    if waiting_for is not None:
        found = _waiting(client, query, waiting_for, limit=_LOOKED_AT)
        return sum([1 async for _ in found])
    try:
        return (await client.count_workflows(_all_of(query))).count
    except RPCError as error:
        raise _unanswered(client, query, error) from error


async def unknown_outcomes(
    client: Client, query: str, *, waiting_only: bool, limit: int
) -> AsyncIterator[UnknownOutcome]:
    """See `AgentClient.unknown_calls`."""
    states = ("waiting",) if waiting_only else ("waiting", "open")
    narrowed = f"TurnkeeperUnknown IN ({', '.join(map(repr, states))})"
    searchable = await _searchable(client, "TurnkeeperUnknown")
    async for execution in _executions(client, query, narrowed if searchable else "", limit=limit):
        for outcome in await outcomes_of(client, execution):
            if outcome.call.status in states:
                yield outcome


async def pending_approvals(
    client: Client, query: str, *, limit: int
) -> AsyncIterator[PendingApproval]:
    """See `AgentClient.approvals`."""
    searchable = await _searchable(client, "TurnkeeperStatus")
    narrowed = "TurnkeeperStatus = 'waiting'" if searchable else _OPEN
    async for execution in _executions(client, query, narrowed, limit=limit):
        if asked := await approvals_of(execution):
            agent = await agent_of(client, execution)
            origin = await origin_of(client, execution)
            for one in asked:
                yield PendingApproval(execution.id, execution.run_id, agent, one, origin)


async def _summary(client: Client, execution: WorkflowExecution) -> RunSummary:
    status = execution.status or WorkflowExecutionStatus.RUNNING
    outcome = attribute(execution, "TurnkeeperOutcome", str)
    turns = attribute(execution, "TurnkeeperTurns", int)
    tokens = attribute(execution, "TurnkeeperTokens", int)
    if status is not WorkflowExecutionStatus.RUNNING and (outcome is None or turns is None):
        # The search attributes do not tell the end, and the server may keep it no longer.
        result = await ended(client, execution)
        if result is not None:
            outcome, turns, tokens = result.outcome, result.turns, result.usage.total
    waiting = await waits_of(execution)
    if waiting:
        # Search attributes tell them at the end alone; they stand still while a run waits.
        turns = await _published_count(execution, "turns") or turns
        tokens = await _published_count(execution, "tokens") or tokens
    return RunSummary(
        id=execution.id,
        run_id=execution.run_id,
        agent=await agent_of(client, execution),
        status="waiting" if waiting else status.name.lower(),
        outcome=outcome or None,
        turns=turns,
        tokens=tokens,
        started=execution.start_time,
        closed=execution.close_time,
        waiting_for="; ".join(waiting.values()),
        waits=tuple(waiting),
    )


async def _published_count(execution: WorkflowExecution, name: str) -> int | None:
    # Any program may have written the memo.
    count = await execution.memo_value(name, None)
    return count if type(count) is int else None


async def _waiting(
    client: Client, query: str, waiting_for: str, *, limit: int
) -> AsyncIterator[WorkflowExecution]:
    """Open runs that wait for a person, all or for one kind of thing.

    Raises:
        ValueError: there is no such kind, or more runs wait than are looked at.
    """
    if waiting_for not in (PERSON, *KINDS):
        raise ValueError(f"runs wait for {', '.join((PERSON, *KINDS))}, not {waiting_for!r}")
    searchable = await _searchable(client, "TurnkeeperStatus")
    narrowed = f"{_OPEN} AND TurnkeeperStatus = 'waiting'" if searchable else _OPEN
    looked_at = found = 0
    async for execution in _executions(client, query, narrowed, limit=_LOOKED_AT + 1):
        if (looked_at := looked_at + 1) > _LOOKED_AT:
            raise ValueError(f"more than {_LOOKED_AT:,} runs may wait: narrow the query down")
        awaited = await waits_of(execution)
        people = [kind for kind in awaited if kind not in (TIME, PROVIDER)]
        if waiting_for in awaited or (waiting_for == PERSON and people):
            yield execution
            if (found := found + 1) == limit:
                return


async def _executions(
    client: Client, *conditions: str, limit: int
) -> AsyncIterator[WorkflowExecution]:
    """Our runs that meet all conditions, empty ones aside; open runs first."""
    try:
        async for execution in client.list_workflows(_all_of(*conditions), limit=limit):
            yield execution
    except RPCError as error:
        raise _unanswered(client, " AND ".join(filter(None, conditions)), error) from error


def _all_of(*conditions: str) -> str:
    return " AND ".join([_OURS, *(f"({c})" for c in conditions if c)])


async def _searchable(client: Client, name: str) -> bool:
    with readable_errors(client):
        return await has_attribute(client, name)


def _unanswered(client: Client, query: str, error: RPCError) -> Exception:
    """What a query that the server did not answer raises."""
    if error.status is not RPCStatusCode.INVALID_ARGUMENT:
        return readable(error, "", client)
    for name in ATTRIBUTE_TYPES:
        if f"invalid search attribute: {name}" in error.message:
            return ValueError(
                f"query: namespace {client.namespace} has no search attribute {name}; the worker "
                "prints the command that makes it when it starts"
            )
    # Of the whole query, with our own conditions in front.
    why = _POSITION.sub("", error.message.removeprefix("invalid query: "))
    return ValueError(f"query: {why}, in: {one_line(query, 500)}")
