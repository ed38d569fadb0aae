"""Tell the world what a person should know: a notice for the webhook, beside the loop.

Each is delivered by a small workflow of its own that outlives the run: a receiver that is down
holds up neither the run, nor its end, nor its continue-as-new.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime

from pydantic import ValidationError
from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError, ChildWorkflowError, WorkflowAlreadyStartedError

from turnkeeper import contract
from turnkeeper.entries import arguments_digest, digest_of
from turnkeeper.notices import (
    MAX_CALLS,
    RUN_FAILED,
    RUN_UNKNOWN,
    RUN_WAITING,
    Event,
    Notice,
    NoticedCall,
)
from turnkeeper.outcomes import OUTCOMES
from turnkeeper.render import person_awaited
from turnkeeper.state import Call, RunState
from turnkeeper.text import arguments_line, one_line
from workflows import options

BEGUN_SECONDS = 10.0
"""How long a run that leaves waits for the server to begin its deliveries."""
_NOTHING = RawValue(Payload())


class Notices:
    """What a run tells, if the worker that loaded its agent has a webhook."""

    state: RunState
    notices: list[asyncio.Task[None]]
    """Deliveries that the server has not confirmed to have begun."""

    def note(
        self,
        event: Event,
        *,
        waiting_for: str | None = None,
        outcome: str | None = None,
        reason: str | None = None,
        calls: Sequence[NoticedCall] = (),
        about: str | None = None,
    ) -> None:
        """Tell that this has begun; call it once each time, not while it lasts.

        `about` is a digest of the content, so that after a reset the same is told under the same
        id; without it, what is told after a reset is never the same.
        """
        state, info = self.state, workflow.info()
        if not state.notifies:
            return
        state.notices += 1
        # Stable over resets and continue-as-new, like the keys of calls.
        place = [info.workflow_id, info.first_execution_run_id, event, state.notices]
        if workflow.patched("notices-by-content"):
            # After a reset the run may come to something else at the same place. The seed of what
            # is drawn differs then; in a replay it does not.
            place.append(about or str(workflow.uuid4()))
        notice = Notice(
            id=digest_of(place),
            event=event,
            time=datetime.fromtimestamp(workflow.time(), UTC).isoformat(timespec="milliseconds"),
            workflow_id=info.workflow_id,
            run_id=info.run_id,
            agent=state.request.agent,
            tenant=state.tenant,
            waiting_for=one_line(waiting_for, 500) if waiting_for else None,
            outcome=outcome,
            reason=one_line(reason, 1_000) if reason else None,
            calls=list(calls)[:MAX_CALLS],
        )
        self._reap_notices()
        self.notices.append(asyncio.create_task(_begin(notice)))

    def _note_unknown(self, call: Call, what: str) -> None:
        """A call may or may not have taken effect; perhaps the run waits until a person knows."""
        told = [noticed(self.state.turn, call, what)]
        self.note(RUN_UNKNOWN, calls=told, about=_about(call))
        if call.status == "waiting":
            self._note_waiting(call, person_awaited([call]), what)

    def _note_waiting(self, call: Call, waiting_for: str, what: str = "") -> None:
        """A call waits for a person."""
        told = [noticed(self.state.turn, call, what)]
        self.note(RUN_WAITING, waiting_for=waiting_for, calls=told, about=_about(call))

    def _note_end(self) -> None:
        outcome = self.state.outcome
        if outcome is not None and OUTCOMES[outcome].closes == "failed":
            self.note(RUN_FAILED, outcome=outcome, reason=self.state.reason)

    async def _notices_begun(self) -> None:
        """Before this execution ends: a delivery that the server does not know yet ends with it."""
        self._reap_notices()
        if self.notices:
            await workflow.wait(self.notices, timeout=BEGUN_SECONDS)
            self._reap_notices()

    def _reap_notices(self) -> None:
        done = [t for t in self.notices if t.done()]
        self.notices = [t for t in self.notices if not t.done()]
        for task in done:
            # A bug in it reaches the run's own coroutine.
            task.result()


def noticed(turn: int, call: Call, what: str = "") -> NoticedCall:
    """A call as notices tell it."""
    return NoticedCall(
        turn=turn,
        call_id=one_line(call.call_id, 300),
        tool=one_line(call.tool, 100),
        key=call.key,
        arguments=arguments_line(call.arguments, 200),
        what=one_line(what, 300),
    )


def _about(call: Call) -> str:
    # Not of words that this code writes: in another release they differ, and the ids of child
    # workflows have to be the same in a replay.
    return digest_of([call.key, arguments_digest(call.tool, call.arguments), call.approval])


async def _begin(notice: Notice) -> None:
    try:
        delivery = await workflow.start_child_workflow(
            contract.NOTICE,
            notice,
            # Not from the run's id, which may be as long as the server allows.
            id=f"turnkeeper-notice-{notice.id}",
            parent_close_policy=workflow.ParentClosePolicy.ABANDON,
            static_summary=one_line(f"{notice.event}: {notice.workflow_id}", 90),
        )
    except (WorkflowAlreadyStartedError, ChildWorkflowError) as error:
        # Of a run that was reset: it is being told.
        workflow.logger.warning("notice not sent: %s", one_line(str(error), 300))
        return
    # How it ends is its own affair; a failure that nobody looks at would be logged as a bug.
    delivery.add_done_callback(lambda ended: ended.cancelled() or ended.exception())


@workflow.defn(name=contract.NOTICE)
class Delivery:
    """The workflow `TurnkeeperNotice`: delivers one notice, and fails if that cannot be done."""

    @workflow.run
    async def run(self, told: RawValue = _NOTHING) -> None:
        """Until the receiver has taken it, for about ten minutes."""
        try:
            notice = Notice.model_validate_json(told.payload.data)
        except ValidationError:
            raise ApplicationError(
                "no notice", type="invalid_request", non_retryable=True
            ) from None
        await workflow.execute_activity(contract.NOTIFY, notice, **options.notify(notice.event))
