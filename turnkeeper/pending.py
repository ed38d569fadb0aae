"""Attempts of the tool calls that are pending, as their authors count them.

The server counts more: attempts that met a worker without the tool, and those that only asked its
probe. What was scheduled, and what the attempts have told in their heartbeats, says which.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryReverseRequest
from temporalio.client import Client, WorkflowExecutionDescription

from turnkeeper.contract import ExecuteInput

__all__ = ["attempt_of", "tool_attempts"]

_PAGE, _PAGES = 100, 3
"""Events that are looked through for those that scheduled the calls: the last turn's."""


async def tool_attempts(client: Client, described: WorkflowExecutionDescription) -> dict[str, str]:
    """By activity id, of the pending tool calls: `attempt 2 of 3`; not of those that history tells
    of too long ago.

    Raises:
        RPCError: the server cannot be reached.
    """
    pending = {
        p.activity_id: p
        for p in described.raw_description.pending_activities
        if not p.activity_type.name.startswith("run.")
    }
    scheduled = await _scheduled(client, described, set(pending)) if pending else {}
    return {
        activity: attempt_of(
            asked, pending[activity].attempt, await _told(client, pending[activity])
        )
        for activity, asked in scheduled.items()
    }


def attempt_of(asked: ExecuteInput, attempt: int, told: Mapping[str, Any]) -> str:
    """The attempt of that number, by what earlier ones have `told`: which of how many it is."""
    number = max(attempt - _count(told, "aside") - _count(told, "vain"), 1)
    if asked.effect != "once" or asked.asks_only:
        return f"attempt {number} of {max(asked.attempts, number)}"
    if asked.attempts == 1:
        return f"attempt {number}, the only one (effect once)"
    return f"attempt {number} (effect once: the next only if the tool says that nothing happened)"


def _count(told: Mapping[str, Any], name: str) -> int:
    # A tool's own heartbeat may say anything.
    found = told.get(name)
    return found if type(found) is int and found > 0 else 0


async def _told(client: Client, pending: PendingActivityInfo) -> Mapping[str, Any]:
    payloads = pending.heartbeat_details.payloads
    try:
        found = (await client.data_converter.decode(payloads))[0] if payloads else {}
    except Exception:  # noqa: BLE001 - a tool's own, in whatever encoding
        return {}
    return found if isinstance(found, dict) else {}


async def _scheduled(
    client: Client, described: WorkflowExecutionDescription, wanted: set[str]
) -> dict[str, ExecuteInput]:
    """What the activities of these ids were asked."""
    found: dict[str, ExecuteInput] = {}
    token = b""
    for _ in range(_PAGES):
        request = GetWorkflowExecutionHistoryReverseRequest(
            namespace=client.namespace,
            execution=described.raw_info.execution,
            maximum_page_size=_PAGE,
            next_page_token=token,
        )
        page = await client.workflow_service.get_workflow_execution_history_reverse(request)
        for event in page.history.events:
            activity = event.activity_task_scheduled_event_attributes.activity_id
            # The last one counts: a call is asked about first, and made once it is allowed.
            if activity in wanted - found.keys() and (asked := await _asked(client, event)):
                found[activity] = asked
        token = page.next_page_token
        if not token or wanted <= found.keys():
            break
    return found


async def _asked(client: Client, event: HistoryEvent) -> ExecuteInput | None:
    if event.event_type != EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
        return None
    payloads = event.activity_task_scheduled_event_attributes.input.payloads
    try:
        found: list[ExecuteInput] = await client.data_converter.decode(payloads, [ExecuteInput])
    except (ValidationError, RuntimeError, ValueError):
        # Of another release.
        return None
    return found[0] if found else None
