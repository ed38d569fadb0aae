"""Every exception of Turnkeeper, by who meets it.

TurnkeeperError
├── DefinitionError       an agent or tool is declared wrongly (at import or worker start)
├── AdmissionError        a value cannot become a transcript entry or a request
├── ToolError             raised by a tool's author inside a tool:
│   ├── RetryTool             "nothing happened, try again"
│   ├── ToolFailed            "tell the model"
│   └── StopRun               "end the run"
├── StateLost             a stored part of a transcript is missing or was changed
├── EffectsRepeated       turns that are to be run again have changed the world already
├── NothingStored         an artifact store has other runs' objects, and none of this one's
├── OutputMismatch        an output is not of the type that a caller asks AgentClient for
├── NoticeRefused         a webhook's receiver got what the worker did not send, or too late
└── RunError              raised to a caller by AgentClient, carries the RunResult:
    ├── InvalidRequest        the request was refused; the message names the field
    ├── UnknownAgent          no worker knows an agent of that name
    ├── LimitReached          turn_limit, token_limit, cost_limit, time_limit, error_limit,
    │                         repetition
    ├── AnswerRefused         the model declined
    ├── AnswerTruncated       the answer was cut off and could not be mended
    ├── AnswerInvalid         no answer was of the agent's output type
    ├── RunStopped            a person or a tool's StopRun ended the run
    ├── RunCancelled          cancelled through Temporal
    └── RunFailed             model_rejected, model_unavailable, context_overflow,
                              outcome_unknown, state_lost
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from turnkeeper.contract import RunResult
    from turnkeeper.retry import PastEffect

__all__ = [
    "AdmissionError",
    "AnswerInvalid",
    "AnswerRefused",
    "AnswerTruncated",
    "DefinitionError",
    "EffectsRepeated",
    "InvalidRequest",
    "LimitReached",
    "NothingStored",
    "NoticeRefused",
    "OutputMismatch",
    "RetryTool",
    "RunCancelled",
    "RunError",
    "RunFailed",
    "RunStopped",
    "StateLost",
    "StopRun",
    "ToolError",
    "ToolFailed",
    "TurnkeeperError",
    "UnknownAgent",
    "error_for",
]


class TurnkeeperError(Exception):
    """The base of all errors raised by Turnkeeper."""


class DefinitionError(TurnkeeperError):
    """Raised while agents and tools are declared; says what is wrong, where and how to mend it."""


class AdmissionError(TurnkeeperError):
    """Raised by `admit` and `strict_json` when data from outside cannot be stored as it is.

    `where` is a path such as `$.content[2].input`, `why` a sentence without the data itself.
    """

    def __init__(self, where: str, why: str) -> None:
        super().__init__(f"{where}: {why}")
        self.where = where
        self.why = why


class ToolError(TurnkeeperError):
    """The base of the three errors that a tool's author raises on purpose."""


class RetryTool(ToolError):
    """Raise in a tool when nothing has happened yet and a new attempt may succeed.

    It is retried under every effect, `once` included, until the tool's retries are used up.
    `delay` is the wait before the next attempt, in seconds.
    """

    def __init__(self, message: str, *, delay: float | None = None) -> None:
        super().__init__(message)
        self.delay = delay


class ToolFailed(ToolError):
    """Raise in a tool when trying again is useless and the model should read why."""


class StopRun(ToolError):
    """Raise in a tool to end the whole run with outcome `stopped` and this reason."""


class StateLost(TurnkeeperError):
    """Raised when a stored part of a transcript is missing, cut or changed: never a guess."""


class NothingStored(TurnkeeperError, OSError):
    """Raised where an artifact store answers and has nothing of a run.

    Who knows that the run has stored something waits for it, as for a store that is away: it may be
    the wrong one. Who has an id from a model knows that there is no such artifact.
    """


class EffectsRepeated(TurnkeeperError):
    """Raised by `AgentClient.retry_from`, unless it is told to go on, when calls of the turns to be
    run again may have changed the world; nothing was done.

    `effects` are those calls, the message says what would become of each.
    """

    def __init__(self, message: str, effects: Sequence[PastEffect]) -> None:
        super().__init__(message)
        self.effects = effects


class OutputMismatch(TurnkeeperError):
    """Raised by `AgentClient` when a run's output is not of the type that the caller asks for, is
    none, or cannot be read from the artifact store."""


class NoticeRefused(TurnkeeperError):
    """Raised by `turnkeeper.webhook.verify` for a notice that is not genuine, or too old."""


class RunError(TurnkeeperError):
    """Raised by `AgentClient.result` for a run that did not complete."""

    def __init__(self, message: str, *, outcome: str, result: RunResult | None = None) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.result = result


class InvalidRequest(RunError):
    """Raised when a start or a message was refused; nothing ran."""


class UnknownAgent(RunError):
    """Raised when the worker has no agent of the requested name."""


class LimitReached(RunError):
    """Raised when a bound set by the owner ended the run."""


class AnswerRefused(RunError):
    """Raised when the model declined to answer."""


class AnswerTruncated(RunError):
    """Raised when the answer hit the model's output limit and could not be mended."""


class AnswerInvalid(RunError):
    """Raised when no answer was of the agent's output type, after all corrections."""


class RunStopped(RunError):
    """Raised when a person or a tool ended the run."""


class RunCancelled(RunError):
    """Raised when the run was cancelled through Temporal."""


class RunFailed(RunError):
    """Raised when the run could not safely go on."""


_BY_OUTCOME: dict[str, type[RunError]] = {
    "turn_limit": LimitReached,
    "token_limit": LimitReached,
    "cost_limit": LimitReached,
    "time_limit": LimitReached,
    "error_limit": LimitReached,
    "repetition": LimitReached,
    "refused": AnswerRefused,
    "truncated": AnswerTruncated,
    "invalid_output": AnswerInvalid,
    "stopped": RunStopped,
    "cancelled": RunCancelled,
    "invalid_request": InvalidRequest,
    "unknown_agent": UnknownAgent,
}


def error_for(outcome: str, message: str, result: RunResult | None = None) -> RunError:
    """The exception that stands for an outcome; unknown ones become `RunFailed`."""
    return _BY_OUTCOME.get(outcome, RunFailed)(message, outcome=outcome, result=result)
