"""What a failed activity means: an outcome of the run, or a result that the model can act on."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from temporalio import workflow
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    CancelledError,
    TimeoutType,
)
from temporalio.exceptions import (
    TimeoutError as TemporalTimeout,
)

from turnkeeper.contract import (
    DAY_IS_SPENT,
    NOT_HERE,
    NOTHING_HAPPENED,
    PROVIDER_ERROR,
    STORE_UNAVAILABLE,
    SWITCHED_OFF,
    THINKING_MISMATCH,
)
from turnkeeper.day_limits import Estimate
from turnkeeper.metrics import ATTEMPTS_TIMED_OUT
from turnkeeper.outcomes import OUTCOMES
from turnkeeper.spec import ToolSpec
from turnkeeper.usage import Usage


class End(NamedTuple):
    """An outcome of the run."""

    outcome: str
    reason: str


class Told(NamedTuple):
    """A result made here, since the call itself brought none."""

    outcome: Literal["error", "unknown", "not_run"]
    text: str


def is_cancelled(error: ActivityError) -> bool:
    """Whether we asked for it."""
    return isinstance(error.cause, CancelledError)


def needs_other_thinking(error: ActivityError) -> bool:
    """Whether the provider holds a thinking block for bound to another conversation."""
    return isinstance(error.cause, ApplicationError) and error.cause.type == THINKING_MISMATCH


def is_overflow(error: ActivityError) -> bool:
    """Whether the provider says that the request does not fit into the model's window."""
    return isinstance(error.cause, ApplicationError) and error.cause.type == "context_overflow"


def is_outage(error: ActivityError) -> bool:
    """Whether the provider did not answer, or not now, in all attempts of a generation."""
    return isinstance(error.cause, ApplicationError) and error.cause.type == PROVIDER_ERROR


def is_in_doubt(error: ActivityError) -> bool:
    """Whether the activity itself says that an earlier attempt may have taken effect."""
    return isinstance(error.cause, ApplicationError) and error.cause.type == "tool_failed"


def is_held_back(error: ActivityError) -> bool:
    """Whether the request was not sent, since the run's agent or tenant is switched off, or has
    used what it may in a day."""
    cause = error.cause
    return isinstance(cause, ApplicationError) and cause.type in (SWITCHED_OFF, DAY_IS_SPENT)


def refused(error: ActivityError) -> Estimate | None:
    """What a request was expected to use that a limit per day did not allow."""
    told = _details(error)
    return Estimate.model_validate(told["estimate"]) if "estimate" in told else None


def end_of(error: ActivityError, otherwise: str) -> End:
    """The outcome that a failed built-in activity brings; `otherwise` when retries ran out."""
    cause = error.cause
    if isinstance(cause, ApplicationError) and cause.type == THINKING_MISMATCH:
        # Letting thinking blocks go was tried before.
        return End("model_rejected", cause.message)
    if isinstance(cause, ApplicationError) and cause.type == STORE_UNAVAILABLE:
        return End("state_lost", cause.message)
    if isinstance(cause, ApplicationError):
        return End(cause.type if cause.type in OUTCOMES else otherwise, cause.message)
    return End(otherwise, _why(cause))


def told(error: ActivityError, tool: ToolSpec) -> Told:
    """What the model reads about a call whose activity failed."""
    cause = error.cause
    kind = cause.type if isinstance(cause, ApplicationError) else None
    if kind == NOT_HERE:
        return Told("error", f"Tool {tool.name} is not available at the moment. It was not run.")
    if isinstance(cause, ApplicationError) and kind == SWITCHED_OFF:
        # Not an error: an operator's doing must not end the run by its limit on errors.
        return Told("not_run", cause.message)
    if isinstance(cause, ApplicationError) and kind == NOTHING_HAPPENED:
        return Told("error", cause.message)
    if isinstance(cause, CancelledError):
        what = f"Tool {tool.name} was cancelled while it ran."
    elif isinstance(cause, TemporalTimeout):
        _tell_timeout(cause, tool)
        what = f"Tool {tool.name} {_timed_out(cause, tool)}."
    else:
        # Written for the model by the activity, without internals.
        what = cause.message if isinstance(cause, ApplicationError) else f"{tool.name} failed."
    return _unsure(what, tool)


def abandoned(tool: ToolSpec) -> Told:
    """What is recorded of a call that went on after it was cancelled."""
    return _unsure(f"Tool {tool.name} did not stop when it was cancelled.", tool)


def _unsure(what: str, tool: ToolSpec) -> Told:
    if not tool.mutates:
        return Told("error", what)
    end = "" if what.endswith((".", "!", "?")) else "."
    again = ", and was not tried again" if tool.effect == "once" else ""
    return Told("unknown", f"{what}{end} It may or may not have taken effect{again}.")


def lost_usage(error: ActivityError) -> Usage:
    """What the attempts of a failed generation may have cost."""
    told = _details(error)
    if "lost" in told:
        return Usage.model_validate(told["lost"])
    return Usage(estimated_tokens=int(told.get("lost_tokens", 0)))


def _details(error: ActivityError) -> dict[str, Any]:
    """What an activity of ours tells beside the reason."""
    cause = error.cause
    details = cause.details if isinstance(cause, ApplicationError) else ()
    return details[0] if details and isinstance(details[0], dict) else {}


def _tell_timeout(cause: TemporalTimeout, tool: ToolSpec) -> None:
    """No attempt follows that could tell of it, and the worker of this one may be dead."""
    kind = cause.type.name.lower() if cause.type else "unknown"
    workflow.logger.warning("attempts timed out", extra={"tool": tool.name, "kind": kind})
    counter = workflow.metric_meter().create_counter(ATTEMPTS_TIMED_OUT)
    counter.add(1, {"tool": tool.name})


def _timed_out(cause: TemporalTimeout, tool: ToolSpec) -> str:
    if cause.type == TimeoutType.HEARTBEAT:
        return "stopped answering"
    return f"did not finish within {tool.timeout:g} seconds"


def _why(cause: BaseException | None) -> str:
    if isinstance(cause, TemporalTimeout):
        return f"timed out ({cause.type.name.lower() if cause.type else 'unknown'})"
    return str(cause) if cause else "unknown"
