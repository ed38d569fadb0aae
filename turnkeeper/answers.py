"""Which reply answers a message: read from a run's history as it grows.

Nothing is asked of a worker, and no message has to be answered at once: the events say which
generation read a message, and its reply, or the one after the calls that it asked for, is the
answer. Messages that were read together have the same one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client
from temporalio.converter import DataConverter

from turnkeeper.contract import GENERATE, Checked, GenerateInput, GenerateOutput
from turnkeeper.follow import events_of
from turnkeeper.inbox import message_id
from turnkeeper.parse import Decision, parse
from turnkeeper.state import RunState

__all__ = ["Answer", "answer_to"]


class Answer(NamedTuple):
    """A reply that ends a turn."""

    text: str
    checked: Checked | None
    """Of an agent with an output type."""


async def answer_to(client: Client, workflow_id: str, message: str) -> Answer | None:
    """The reply that ends the turn in which the message was read.

    Waits for it; None if the run ends without.

    Raises:
        RPCError: there is no such run, or the server stays away.
    """
    run_id = await _reading(client, workflow_id, message)
    listener = _Listener(client.data_converter, message)
    while run_id:
        next_run = ""
        async for event in events_of(client, workflow_id, run_id):
            if (answer := await listener.take(event)) is not None:
                return answer
            continued = event.workflow_execution_continued_as_new_event_attributes
            next_run = continued.new_execution_run_id or next_run
        run_id = next_run
    return None


async def _reading(client: Client, workflow_id: str, message: str) -> str:
    """The execution in which the message was read; the present one if it was not yet."""
    run_id = (await client.get_workflow_handle(workflow_id).describe()).run_id
    while True:
        handle = client.get_workflow_handle(workflow_id, run_id=run_id)
        first = await anext(aiter(handle.fetch_history_events(page_size=1)))
        started = first.workflow_execution_started_event_attributes
        if not started.continued_execution_run_id:
            return run_id
        (state,) = await client.data_converter.decode(started.input.payloads, [RunState])
        if not state.inbox.has_read(message, state.pending):
            return run_id
        run_id = started.continued_execution_run_id


class _Listener:
    """Takes the events of a run's executions in their order."""

    def __init__(self, converter: DataConverter, message: str) -> None:
        self._converter = converter
        self._message = message
        self._generations: set[int] = set()
        """Events that scheduled those which have read the message."""
        self._read = False

    async def take(self, event: HistoryEvent) -> Answer | None:
        """The answer, if this event brings it."""
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            scheduled = event.activity_task_scheduled_event_attributes
            if scheduled.activity_type.name == GENERATE:
                await self._generates(event.event_id, scheduled.input.payloads)
        elif event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
            completed = event.activity_task_completed_event_attributes
            if completed.scheduled_event_id in self._generations:
                reply: GenerateOutput = await self._decode(
                    completed.result.payloads, GenerateOutput
                )
                # What the loop throws away, or has corrected, is no answer, either.
                parsed = parse(reply, can_grow=True)
                fits = not (reply.checked and reply.checked.problems)
                if parsed.decision is Decision.ANSWER and fits:
                    return Answer(parsed.text, reply.checked)
                return None
        elif event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_CANCEL_REQUESTED:
            # The run does not wait for its reply, which may come all the same.
            cancelled = event.activity_task_cancel_requested_event_attributes
            self._generations.discard(cancelled.scheduled_event_id)
        elif event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW:
            # Events are counted anew.
            self._generations.clear()
        return None

    async def _generates(self, event_id: int, payloads: Sequence[Payload]) -> None:
        if not self._read:
            asked: GenerateInput = await self._decode(payloads, GenerateInput)
            self._read = any(message_id(entry) == self._message for entry in asked.new)
        if self._read:
            self._generations.add(event_id)

    async def _decode(self, payloads: Sequence[Payload], model: type[Any]) -> Any:
        return (await self._converter.decode(payloads, [model]))[0]
