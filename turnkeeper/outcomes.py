"""Every way a run can end: a closed set. Pure; the one place that lists them."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Ending(NamedTuple):
    """What an outcome means outside."""

    closes: Literal["completed", "canceled", "failed"]
    """How Temporal closes the workflow; `failed` is an ApplicationError of the outcome's type."""
    exit: int
    """The command line's exit code."""


_ANSWERED = Ending("completed", 0)
_BOUND = Ending("completed", 3)
_CALLERS_FAULT = Ending("failed", 2)
_CANNOT_GO_ON = Ending("failed", 1)

OUTCOMES: dict[str, Ending] = {
    "completed": _ANSWERED,
    "turn_limit": _BOUND,
    "token_limit": _BOUND,
    "cost_limit": _BOUND,
    "time_limit": _BOUND,
    "error_limit": _BOUND,
    "repetition": _BOUND,
    "refused": _BOUND,
    "truncated": _BOUND,
    "invalid_output": _BOUND,
    "stopped": _BOUND,
    "cancelled": Ending("canceled", 4),
    "invalid_request": _CALLERS_FAULT,
    "unknown_agent": _CALLERS_FAULT,
    "model_rejected": _CANNOT_GO_ON,
    "model_unavailable": _CANNOT_GO_ON,
    "context_overflow": _CANNOT_GO_ON,
    "outcome_unknown": _CANNOT_GO_ON,
    "state_lost": _CANNOT_GO_ON,
}
