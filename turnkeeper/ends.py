"""How a run ended, whatever ended it: itself, a person, Temporal or a bug."""

from __future__ import annotations

from temporalio.client import (
    Client,
    WorkflowExecution,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowFailureError,
)
from temporalio.exceptions import (
    ApplicationError,
    CancelledError,
    FailureError,
    TerminatedError,
)
from temporalio.exceptions import TimeoutError as TemporalTimeout
from temporalio.service import RPCError, RPCStatusCode

from turnkeeper.connection import readable
from turnkeeper.contract import RunResult
from turnkeeper.errors import error_for
from turnkeeper.outcomes import OUTCOMES
from turnkeeper.outside import describe
from turnkeeper.text import one_line

__all__ = ["as_it_ended", "completed", "end_of", "ended"]


async def end_of(client: Client, run: str) -> RunResult:
    """Wait for the end of a run, also over resets: each terminates the execution that was open.

    Raises:
        RPCError: there is no such run, or the server cannot be reached.
    """
    handle = client.get_workflow_handle(run, result_type=RunResult)
    while True:
        try:
            result: RunResult = await handle.result()
        except WorkflowFailureError as error:
            result = _result_of_failure(error.cause)
        terminated = WorkflowExecutionStatus.TERMINATED
        if result.outcome != "terminated" or (await handle.describe()).status is terminated:
            return result


async def ended(client: Client, closed: WorkflowExecution) -> RunResult | None:
    """How a closed execution ended; None if the server no longer keeps it.

    By its own run id: another run may have its workflow id by now, and go on for days.

    Raises:
        ConnectionError: the server cannot be reached.
    """
    handle = client.get_workflow_handle(closed.id, run_id=closed.run_id, result_type=RunResult)
    try:
        result: RunResult = await handle.result(follow_runs=False)
    except WorkflowFailureError as error:
        return _result_of_failure(error.cause)
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return None
        raise readable(error, closed.id, client) from error
    return result


async def as_it_ended(
    client: Client, run: str, run_id: str | None
) -> tuple[WorkflowExecutionDescription, RunResult | None]:
    """A run, and its result if it is over; raises as `describe`."""
    described = await describe(client, run, run_id)
    running = described.status is WorkflowExecutionStatus.RUNNING
    return described, None if running else await ended(client, described)


def completed(run: str, result: RunResult) -> RunResult:
    """The result of a run that completed.

    Raises:
        RunError: the subclass for any other outcome.
    """
    if result.outcome == "completed":
        return result
    message = f"run {run}: {result.outcome}" + (f": {result.reason}" if result.reason else "")
    if result.outcome == "outcome_unknown":
        message += " (`result.unknown` has the call and its key)"
    raise error_for(result.outcome, message, result)


def _result_of_failure(cause: BaseException) -> RunResult:
    """The RunResult of a workflow that did not complete, whatever closed it."""
    if isinstance(cause, CancelledError):
        return _details(cause, "cancelled", None)
    if isinstance(cause, TerminatedError):
        return _details(cause, "terminated", cause.message)
    if isinstance(cause, TemporalTimeout):
        return _details(cause, "timed_out", cause.message)
    if isinstance(cause, ApplicationError) and cause.type in OUTCOMES:
        return _details(cause, cause.type, cause.message)
    return RunResult(outcome="failed", reason=one_line(str(cause), 1_000))


def _details(cause: FailureError, outcome: str, reason: str | None) -> RunResult:
    """The partial result in a failure's details, if there is one."""
    details = getattr(cause, "details", None)
    try:
        result = RunResult.model_validate(details[0]) if details else RunResult(outcome=outcome)
    except ValueError:
        result = RunResult(outcome=outcome)
    return result.model_copy(update={"outcome": outcome, "reason": result.reason or reason})
