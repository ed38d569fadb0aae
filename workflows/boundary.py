"""What comes in from outside and what goes out: the run's edges.

No public input is decoded by the converter: one that it cannot decode would fail the workflow task
for ever, and nothing can take it out of history again. Raw payloads are validated here instead, and
a bad one ends the run by name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel
from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from turnkeeper.approvals import shortened
from turnkeeper.contract import (
    WORKFLOW,
    Checked,
    RunRequest,
    RunResult,
    read_public,
)
from turnkeeper.entries import message, strict_json
from turnkeeper.errors import AdmissionError
from turnkeeper.inbox import Inbox
from turnkeeper.state import RunState, key_base
from turnkeeper.text import clip, one_line, utf8_size

ANSWER_BYTES = 64_000
HEAD_BYTES = 2_000
"""Of an answer beside a long output."""
RESULT_APPROVALS = 20
"""The last ones: the result of a run is read by services, which keep it."""

BAD_DATA = (ValueError, ArithmeticError, RecursionError)
"""What reading a body may raise: no sender is to fail a workflow task, which is tried for ever."""

NOTHING = RawValue(Payload())
"""The argument of a workflow that was started by hand, without one."""

_LATER_LIMITS = ("cost_usd", "pause_at")
"""Limits that came after runs were started."""

_Body = TypeVar("_Body", bound=BaseModel)


class Refused(Exception):
    """A start that cannot become a run; its text is for the caller."""


def open_state(args: Sequence[RawValue]) -> RunState:
    """The state of a new run, or of one that continues.

    Raises:
        Refused: the caller's request is not one.
    """
    info = workflow.info()
    if info.workflow_type != WORKFLOW:
        raise Refused(f"workflow type {info.workflow_type!r} is unknown here; start {WORKFLOW!r}")
    # Before continued_run_id is trusted: cron and workflow retries set it too.
    if info.cron_schedule or info.retry_policy is not None:
        raise Refused(
            "a run cannot have a cron schedule or a workflow retry policy: both would repeat its "
            "effects; use a Temporal Schedule that starts a new run each time"
        )
    if info.continued_run_id:
        return RunState.model_validate_json(args[0].payload.data)
    request = _request(args)
    try:
        prompt = [message(request.prompt)] if request.prompt else []
    except AdmissionError as error:
        # Within its bound of characters it may still be too large as JSON, by its escapes.
        raise Refused(f"prompt: {error.why}") from None
    started = workflow.now().timestamp()
    return RunState(
        request=request.model_copy(update={"prompt": one_line(request.prompt, 200)}),
        key_base=key_base(info.workflow_id, request.request_key or info.first_execution_run_id),
        started=started,
        # What a fork begins with is read by an activity.
        pending=[] if request.fork else prompt,
        # Without a prompt there is nothing to do but to wait.
        inbox=Inbox(idle_since=None if prompt or request.fork else started),
    )


def _request(args: Sequence[RawValue]) -> RunRequest:
    if len(args) != 1:
        raise Refused(f"start with one JSON object, not with {len(args)} arguments")
    payload = args[0].payload
    encoding = payload.metadata.get("encoding", b"").decode("ascii", "replace")
    if encoding != "json/plain":
        raise Refused(f"start with one JSON object (encoding json/plain, not {encoding[:50]!r})")
    try:
        request = read_public(RunRequest, strict_json(payload.data))
    except (AdmissionError, ValueError) as error:
        raise Refused(one_line(str(error), 1_000)) from None
    for name in _LATER_LIMITS:
        # A start that an earlier release refused is refused in a replay. Asked for last: it leaves
        # an event in the history.
        if name in request.limits and not workflow.patched("limits-on-cost"):
            raise Refused(f"limits: {name} is not supported yet; remove it")
    return request


def body(model: type[_Body], args: Sequence[Any]) -> _Body:
    """The body of a message: one JSON object, or nothing where no field is needed.

    Raises:
        ValueError: says what is wrong with it.
    """
    if len(args) > 1 or (not args and _needs_fields(model)):
        raise ValueError(f"send one JSON object, not {len(args)} arguments")
    said = args[0] if args else None
    return read_public(model, {} if said is None and not _needs_fields(model) else said)


@contextlib.contextmanager
def refusing() -> Iterator[None]:
    """What is wrong with an update, for its sender: refused so by its validator, it leaves nothing
    in history."""
    try:
        yield
    except BAD_DATA as error:
        kind = getattr(error, "kind", "invalid_request")
        raise ApplicationError(str(error), type=kind, non_retryable=True) from None


@contextlib.contextmanager
def dropping(name: str) -> Iterator[None]:
    """What is wrong with a signal, for the log: it is passed over where an update is refused."""
    try:
        yield
    except BAD_DATA as error:
        workflow.logger.warning("%s signal dropped: %s", name, one_line(str(error), 300))


def carried(payload: Payload) -> Any:
    """What an execution of a workflow of ours begins with; None if it is no JSON."""
    try:
        return strict_json(payload.data)
    except AdmissionError:
        return None


def _needs_fields(model: type[BaseModel]) -> bool:
    return any(field.is_required() for field in model.model_fields.values())


def refusal(reason: str) -> ApplicationError:
    """The end of a run that never began."""
    result = RunResult(outcome="invalid_request", reason=reason)
    return ApplicationError(reason, result, type="invalid_request", non_retryable=True)


def result_of(state: RunState) -> RunResult:
    """What the caller gets."""
    answer = state.text if state.outcome != "invalid_request" else ""
    output, checked = state.typed.value, state.typed.checked or Checked()
    # The output says the same again: both together stay within the bound.
    room = max(ANSWER_BYTES - utf8_size(output or ""), HEAD_BYTES)
    return RunResult(
        outcome=state.outcome or "",
        answer=clip(answer, room) if answer else None,
        answer_artifact=checked.answer_artifact,
        reason=state.reason or checked.not_stored,
        agent=state.request.agent,
        model=state.spec.model.name if state.spec else "",
        turns=state.turn if state.spec else 0,
        calls=state.total_calls,
        errors=state.total_errors,
        usage=state.usage,
        turn_usage=state.turn_usage,
        cache_share=round(state.usage.cache_share, 4),
        seconds=round(workflow.now().timestamp() - state.started, 3),
        transcript=state.transcript,
        unread=len(state.inbox.unread(state.pending)),
        epochs=state.context.number + 1,
        unknown=state.unknown,
        approvals=[shortened(a, 200) for a in state.approvals.asked[-RESULT_APPROVALS:]],
        limits=state.limits if state.control.raised else None,
        output=None if output is None else strict_json(output),
        output_artifact=checked.artifact,
    )
