"""What comes in while a run goes on. Handlers only take note: the loop decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel
from temporalio import workflow

from turnkeeper import contract
from turnkeeper.contract import (
    AnswerRequest,
    ApproveRequest,
    CallStatus,
    ContextStatus,
    DenyRequest,
    PauseRequest,
    RaiseLimitsRequest,
    ResolveRequest,
    ResumeRequest,
    RunStatus,
    SendRequest,
    StopRequest,
)
from turnkeeper.render import waiting_for
from turnkeeper.state import RunState
from turnkeeper.text import arguments_line
from workflows import boundary, cockpit

_Body = TypeVar("_Body", bound=BaseModel)


class _Run:
    """What messages find. Before them: the SDK reads the types of a handler when it is made."""

    refused: str | None
    """Why the start was not one: then there is no state."""
    state: RunState
    acknowledging: bool
    """Whether an update's answer may still be on its way."""


def _accepts(
    name: str,
    body: type[_Body],
    about: str,
    *,
    take: Callable[[RunState, _Body], str | None],
    refuse: Callable[[RunState, _Body], str | None] = lambda _state, _said: None,
) -> tuple[Any, Any]:
    """The update and the signal of a name, which have the same body.

    `about` is for the UI; `refuse` says why a body cannot be taken; `take` notes it, no more, and
    says what the sender should know of it.
    """

    def read(run: _Run, args: Sequence[Any]) -> _Body:
        said = boundary.body(body, args)
        if problem := refuse(run.state, said):
            raise ValueError(problem)
        return said

    # With `*args`: a signal with a missing argument would raise inside the SDK and fail the
    # workflow task for ever.
    @workflow.update(name=name, description=about)
    async def update(self: _Run, *args: Any) -> dict[str, str]:
        note = take(self.state, boundary.body(body, args))
        self.acknowledging = True
        # Whatever the loop is at: the card tells of it now.
        cockpit.show(self.state)
        return {"accepted": name} | ({"note": note} if note else {})

    @update.validator
    def check(self: _Run, *args: Any) -> None:
        if self.refused is not None:
            raise boundary.refusal(self.refused)
        with boundary.refusing():
            read(self, args)

    # Works also while no worker is up; what an update would have refused is dropped.
    @workflow.signal(name=name, description=about)
    def signal(self: _Run, *args: Any) -> None:
        if self.refused is not None:
            return
        with boundary.dropping(name):
            take(self.state, read(self, args))
            cockpit.show(self.state)

    return update, signal


class Messages(_Run):
    """The updates, signals and queries of a run, each by its name, so that the UI offers them."""

    stop_update, stop_signal = _accepts(
        contract.STOP,
        StopRequest,
        'End the run. Body: {"reason": "...", "actor": "..."}, both optional.',
        take=RunState.take_stop,
    )
    resolve_update, resolve_signal = _accepts(
        contract.RESOLVE,
        ResolveRequest,
        'Say whether a call happened. Body: {"call_id": "...", "landed": true, "result": "..."}',
        refuse=lambda state, said: state.not_waiting(said.call_id),
        take=lambda state, said: state.resolutions.append(said),
    )
    approve_update, approve_signal = _accepts(
        contract.APPROVE,
        ApproveRequest,
        'Let a call be run. Body: {"approval": "...", "actor": "..."}; the card names those that '
        "wait.",
        refuse=lambda state, said: state.refuses(said, workflow.time()),
        take=lambda state, said: state.approvals.take(said),
    )
    deny_update, deny_signal = _accepts(
        contract.DENY,
        DenyRequest,
        'Have a call not run. Body: {"approval": "...", "reason": "...", "actor": "..."}',
        refuse=lambda state, said: state.refuses(said, workflow.time()),
        take=lambda state, said: state.approvals.take(said),
    )

    pause_update, pause_signal = _accepts(
        contract.PAUSE,
        PauseRequest,
        'Wait before the next generation. Body: {"reason": "...", "actor": "..."}, both optional. '
        "The time limit goes on.",
        take=lambda state, said: state.control.take_pause(said),
    )
    resume_update, resume_signal = _accepts(
        contract.RESUME,
        ResumeRequest,
        'Go on after a pause. Body: {"actor": "..."}, optional.',
        take=lambda state, said: state.control.take_resume(said),
    )

    raise_update, raise_signal = _accepts(
        contract.RAISE_LIMITS,
        RaiseLimitsRequest,
        'Raise limits before they are reached. Body: {"limits": {"turns": 100}, "reason": "..."}',
        refuse=RunState.cannot_raise,
        take=RunState.raise_limits,
    )
    send_update, send_signal = _accepts(
        contract.SEND,
        SendRequest,
        "Say something to the model. Body: "
        '{"message_id": "of your own", "text": "...", "interrupt": false, "actor": "..."}',
        refuse=lambda state, said: state.not_sendable(said),
        take=lambda state, said: state.inbox.accept(said),
    )
    answer_update, answer_signal = _accepts(
        contract.ANSWER,
        AnswerRequest,
        'Answer a question of the model. Body: {"call_id": "...", "text": "...", "actor": "..."}',
        refuse=lambda state, said: state.not_answerable(said.call_id),
        take=lambda state, said: state.inbox.answers.append(said),
    )

    @workflow.query(name=contract.STATUS)
    def status(self, *_args: Any) -> RunStatus:
        """Where the run stands."""
        if self.refused is not None:
            return RunStatus(
                agent="", model="", phase="", turn=0, waiting_for="", outcome="invalid_request"
            )
        state = self.state
        return RunStatus(
            agent=state.request.agent,
            model=state.spec.model.name if state.spec else "",
            phase=state.phase,
            turn=state.turn,
            waiting_for=waiting_for(state),
            calls=[
                CallStatus(
                    call_id=c.call_id,
                    tool=c.tool,
                    status=c.status,
                    arguments=arguments_line(c.arguments, 200),
                )
                for c in state.calls
            ],
            usage=state.usage,
            limits=state.limits,
            started=state.started,
            context=self._context(),
            outcome=state.outcome,
            answer=self._answer(),
            unread=len(state.inbox.unread(state.pending)),
            awaited=state.awaited(),
            unknown=state.unknown,
            approvals=state.approvals.asked,
            paused=state.control.pause,
        )

    def _answer(self) -> str | None:
        """Of all that was said; clients that cannot read a history ask for it."""
        state = self.state
        # A completed run goes on with what came before it has closed.
        goes_on = state.outcome in (None, "completed") and state.inbox.has_mail
        answered = state.outcome is not None or state.inbox.idle_since is not None
        return state.text or None if answered and not goes_on else None

    def _context(self) -> ContextStatus | None:
        state = self.state
        if state.spec is None:
            return None
        return ContextStatus(
            tokens=state.context.tokens, window=state.window, epoch=state.context.number + 1
        )
