"""The public contract and the inner boundaries: names, inputs, outputs. Pure.

Services in any language start workflow type `AgentRun` with plain JSON (`RunRequest`) and read
`RunResult`. What crosses an inner boundary (workflow to activity and back) is one model in and one
out; all of it is recorded in histories that must replay for ever, so fields are only ever added,
with a default.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_core import ErrorDetails

from turnkeeper.day_limits import Estimate
from turnkeeper.entries import Entry, Position, check_json
from turnkeeper.errors import AdmissionError
from turnkeeper.prices import Allowance, LimitName
from turnkeeper.spec import (
    DAY_LIMITS,
    MAX_RESULT_IMAGES,
    OF_A_DAY,
    AgentSpec,
    Approval,
    Effect,
    Limits,
    Strict,
)
from turnkeeper.text import WHITE, one_line
from turnkeeper.usage import TurnUsage, Usage

VERSION = "1.0"
"""Of the public contract (`turnkeeper.schemas`); docs/contract.md says when it changes."""

WORKFLOW = "AgentRun"
TASK_QUEUE = "turnkeeper"

LOAD_AGENT = "run.load_agent"
GENERATE = "run.generate"
FORK = "run.fork"
SEAL = "run.seal"
SUMMARISE = "run.summarise"
SHORTEN = "run.shorten"
VERIFY = "run.verify"

# Types of failures that activities raise and the loop tells apart, besides the names of outcomes.
NOTHING_HAPPENED = "RetryTool"
"""Of a call: it is sure to have changed nothing."""
NOT_HERE = "ToolNotHere"
"""Of a call: no worker has the tool at the moment; that has changed nothing, either."""
THINKING_MISMATCH = "thinking_mismatch"
"""Of a generation: it is mended by letting thinking blocks go."""
STORE_UNAVAILABLE = "store_unavailable"
"""What was said cannot be read or written, which may succeed later; in the end the run is lost."""
NOT_VERIFIED = "not_verified"
"""Of a decision: whoever made it is not who they say, or may not make it."""
PROVIDER_ERROR = "provider_error"
"""Of a generation: the provider did not answer, and may later."""
NOT_SEALED = "not_sealed"
"""The same of sealing: the loop goes on without."""

SWITCHES = "TurnkeeperSwitches"
"""Workflow type: keeps what is switched off, one for the namespace, and one for a task queue."""
SWITCH = "switch"
"""Its update and signal, body `SwitchRequest`: switch a tool, an agent or a tenant off or on."""
DAY_LIMIT = "day_limit"
"""Update and signal of the namespace's, body `DayLimitRequest`: bound what an agent or a tenant may
use in a day."""
SWITCHED_ON = "run.switched_on"
"""Activity: done once the run's agent and tenant are no longer switched off, and their limits per
day allow a request."""
SWITCHED_OFF = "SwitchedOff"
"""Type of failures, of a call or a generation: it is switched off and was not begun."""
DAY_IS_SPENT = "DayIsSpent"
"""Type of failures of a generation: a limit per day does not allow it now."""

DAY = "TurnkeeperDay"
"""Workflow type: counts what is used under one limit per day."""
RESERVE = "reserve"
"""Its update, body `ReserveRequest`: set aside what requests may cost, if the limit allows it."""
SETTLE = "settle"
"""Its signal, body `SettleRequest`: what they have cost."""
DAY_MEMO = "used"
"""The field of its memo that is the count."""

NOTICE = "TurnkeeperNotice"
"""Workflow type: delivers one `Notice`, and outlives the run that it is about."""
NOTIFY = "run.notify"
"""Its activity: one request to the webhook. `turnkeeper.notices` has the kinds of events."""
NOT_DELIVERED = "not_delivered"
"""Type of its failures."""

STOP = "stop"
"""Update and signal, body `StopRequest`: end the run."""
RESOLVE = "resolve"
"""Update and signal, body `ResolveRequest`: say whether a call with an unknown outcome happened."""
APPROVE = "approve"
"""Update and signal, body `ApproveRequest`: let a call be run that waits for a person's word."""
DENY = "deny"
"""Update and signal, body `DenyRequest`: have it not run."""
PAUSE = "pause"
"""Update and signal, body `PauseRequest`: wait for a person before the next generation."""
RESUME = "resume"
"""Update and signal, body `ResumeRequest`: go on."""
RAISE_LIMITS = "raise_limits"
"""Update and signal, body `RaiseLimitsRequest`: widen bounds of a run that has not reached them."""
SEND = "send"
"""Update and signal, body `SendRequest`: say something to the model."""
ANSWER = "answer"
"""Update and signal, body `AnswerRequest`: answer a question of the model."""
DUPLICATE = "duplicate_message"
"""Type of the failure of an update `send` whose message was accepted before."""
ENDED = "run_ended"
"""The same of one that came when the run's outcome was decided."""
STATUS = "status"
"""Query, answers `RunStatus`."""

ATTRIBUTE_TYPES = {
    "TurnkeeperAgent": "Keyword",
    "TurnkeeperStatus": "Keyword",
    "TurnkeeperOutcome": "Keyword",
    "TurnkeeperModel": "Keyword",
    "TurnkeeperTenant": "Keyword",
    "TurnkeeperUnknown": "Keyword",
    "TurnkeeperTurns": "Int",
    "TurnkeeperTokens": "Int",
    "TurnkeeperCostUsd": "Double",
}
"""Search attributes and their types; a namespace that lacks them still runs agents."""


_Model = TypeVar("_Model", bound=BaseModel)

MAX_LIMIT = 10**15
"""Of any limit that a caller sets: more is a mistake, and no number that all languages read."""


class _Inner(BaseModel):
    """What crosses an inner boundary: fields of a later release are ignored."""

    model_config = ConfigDict(extra="ignore")


class ForkRequest(Strict):
    """Begin with what was said in another run, before the generation of a turn."""

    workflow_id: Annotated[str, Field(min_length=1, max_length=1_000)]
    run_id: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """Of the execution that is read; None is the last one, which knows what those before said."""
    turn: Annotated[int, Field(ge=1, le=1_000_000)]
    edit: (
        Annotated[
            str,
            Field(min_length=1, max_length=200_000, json_schema_extra={"pattern": f"[^{WHITE}]"}),
        ]
        | None
    ) = None
    """What the model reads in place of the last message, if it has not read that yet, or else after
    all that was said."""

    @field_validator("edit")
    @classmethod
    def _says_something(cls, value: str | None) -> str | None:
        if value is not None and not value.strip():
            raise ValueError("is blank")
        return value


class RunRequest(Strict):
    """The input of a run."""

    model_config = ConfigDict(
        json_schema_extra={
            "if": {"properties": {"keep_open": {"const": True}}, "required": ["keep_open"]},
            "else": {"properties": {"prompt": {"minLength": 1}}, "required": ["prompt"]},
        }
    )

    agent: Annotated[str, Field(min_length=1, max_length=64)]
    keep_open: Annotated[bool, Field(strict=True)] = False
    """Whether the run waits for the next message after its answer: a conversation."""
    prompt: Annotated[
        str,
        Field(
            max_length=200_000,
            validate_default=True,
            json_schema_extra={"pattern": f"^$|[^{WHITE}]"},
        ),
    ] = ""
    """The task. Only a run that is kept open may do without: it begins with the first message."""
    limits: dict[str, Any] = Field(default_factory=dict)
    """Fields of `Limits` that replace the agent's own."""
    request_key: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """The caller's name of this piece of work: effects of a repeated start have the same keys."""
    metadata: Annotated[
        dict[str, str],
        Field(
            max_length=32,
            json_schema_extra={
                "propertyNames": {"maxLength": 64},
                "additionalProperties": {"type": "string", "maxLength": 512},
            },
        ),
    ] = Field(default_factory=dict)
    """Strings for tools and operators; `tenant` is searchable, `principal` is `ctx.principal`."""
    fork: ForkRequest | None = None
    """Begin with a part of another run; then the prompt is a title for people, and not said."""

    @field_validator("prompt")
    @classmethod
    def _says_something(cls, value: str, info: ValidationInfo) -> str:
        if not value.strip() and not (info.data.get("keep_open") and not value):
            raise ValueError("is blank" if value else "is empty")
        return value

    @field_validator("limits")
    @classmethod
    def _known_limits(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        return _known_limits(value, info)

    @field_validator("metadata")
    @classmethod
    def _short(cls, value: dict[str, str]) -> dict[str, str]:
        for name, text in value.items():
            if len(name) > 64 or len(text) > 512:
                raise ValueError("names are at most 64 and values at most 512 characters long")
        return value


def _known_limits(value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
    if info.mode == "json":
        return value  # out of a history: another release has judged them
    for name, limit in value.items():
        if name in DAY_LIMITS:
            raise ValueError(f"{name}: {OF_A_DAY}")
        if name not in Limits.model_fields:
            raise ValueError(_no_limit(name))
        if isinstance(limit, int) and limit > MAX_LIMIT:
            raise ValueError(
                f"{name} is at most {MAX_LIMIT:,}; leave it out, or say null, for none"
            )
    Limits.model_validate(value)
    return value


class StopRequest(Strict):
    """The body of `stop`."""

    reason: Annotated[str, Field(max_length=2_000)] = ""
    actor: Annotated[str, Field(max_length=200)] | None = None


class PauseRequest(Strict):
    """The body of `pause`."""

    reason: Annotated[str, Field(max_length=2_000)] = ""
    actor: Annotated[str, Field(max_length=200)] | None = None


class ResumeRequest(Strict):
    """The body of `resume`."""

    actor: Annotated[str, Field(max_length=200)] | None = None


class RaiseLimitsRequest(Strict):
    """The body of `raise_limits`."""

    limits: Annotated[dict[str, Any], Field(min_length=1)]
    """Fields of `Limits`, none of them narrower than it is; null for one that may be unlimited."""
    reason: Annotated[str, Field(max_length=2_000)] = ""
    actor: Annotated[str, Field(max_length=200)] | None = None

    @field_validator("limits")
    @classmethod
    def _known_limits(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        return _known_limits(value, info)


class ResolveRequest(Strict):
    """The body of `resolve`."""

    call_id: Annotated[str, Field(min_length=1, max_length=300)]
    """Of a call that waits."""
    landed: Annotated[bool, Field(strict=True)]
    """Whether it took effect: true or false, no word or number for it."""
    result: Annotated[str, Field(max_length=20_000)] = ""
    """What the model reads: the receipt, or why it did not happen."""
    actor: Annotated[str, Field(max_length=200)] | None = None


class ApproveRequest(Strict):
    """The body of `approve`."""

    approval: Annotated[str, Field(min_length=1, max_length=64)]
    """The id of an approval that waits: it stands for one call with one set of arguments."""
    remember: Annotated[bool, Field(strict=True)] = False
    """Do not ask again in this run for this tool, as it is defined now, whatever the arguments."""
    actor: Annotated[str, Field(max_length=200)] | None = None
    proof: Annotated[str, Field(max_length=4_000)] | None = None
    """For the agent's `verify`: who that is. It is recorded in history, so it must be worth nothing
    for anything else: a signature over this approval's id, no password."""


class DenyRequest(Strict):
    """The body of `deny`."""

    approval: Annotated[str, Field(min_length=1, max_length=64)]
    reason: Annotated[str, Field(max_length=2_000)] = ""
    """What the model reads."""
    actor: Annotated[str, Field(max_length=200)] | None = None
    proof: Annotated[str, Field(max_length=4_000)] | None = None
    """As in `ApproveRequest`."""


class SendRequest(Strict):
    """The body of `send`."""

    message_id: Annotated[str, Field(min_length=1, max_length=200)]
    """The sender's own name of the message: of two with the same one the second is refused."""
    text: Annotated[str, Field(max_length=200_000, json_schema_extra={"pattern": f"[^{WHITE}]"})]
    interrupt: Annotated[bool, Field(strict=True)] = False
    """Whether what is under way is cancelled for it; else it is read after the turn."""
    actor: Annotated[str, Field(max_length=200)] | None = None
    """Who says it; recorded beside the text, and not shown to the model."""

    @field_validator("text")
    @classmethod
    def _says_something(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("is blank" if value else "is empty")
        return value


class AnswerRequest(Strict):
    """The body of `answer`."""

    call_id: Annotated[str, Field(min_length=1, max_length=300)]
    """Of a call that has asked a person and waits."""
    text: Annotated[str, Field(min_length=1, max_length=20_000)]
    """What the model reads."""
    actor: Annotated[str, Field(max_length=200)] | None = None
    """Who answers; recorded beside the text, and not shown to the model."""


def read_public(model: type[_Model], value: Any) -> _Model:
    """Validate what a caller sent.

    Raises:
        ValueError: one line that names each wrong field.
    """
    try:
        check_json(value)
        return model.model_validate(value)
    except AdmissionError as error:
        raise ValueError(str(error)) from None
    except ValidationError as error:
        raise ValueError(problem_text(error)) from None


_MAX_PROBLEMS = 5


def problem_text(error: ValidationError, *where: str) -> str:
    """What is wrong with the fields below `where`, on one line that names each of them."""
    problems = error.errors(include_url=False)[:_MAX_PROBLEMS]
    return "; ".join(_problem(error.title, p, where) for p in problems)[:1_000]


def _problem(title: str, problem: ErrorDetails, where: tuple[str, ...]) -> str:
    at = (*where, *map(str, problem["loc"]))
    cause = problem.get("ctx", {}).get("error")
    if isinstance(cause, ValidationError):
        # Of a model that a validator read: its fields lie below ours.
        return problem_text(cause, *at)
    kind, given = problem["type"], problem["input"]
    if kind == "extra_forbidden" and title == Limits.__name__:
        return f"{'.'.join(where) or title}: {_no_limit(at[-1])}"
    if kind == "extra_forbidden":
        said = "there is no such field"
    elif kind == "string_too_short" and not given:
        said = "is empty"
    elif kind.startswith(("int_", "float_")):
        number = "whole number" if kind.startswith("int_") else "number"
        said = f"{one_line(repr(given), 80)} is not a {number}"
    else:
        said = problem["msg"].removeprefix("Value error, ").replace("\n", " ")
    return f"{'.'.join(at) or title}: {said}"


def _no_limit(name: str) -> str:
    return f"{name} is not a limit; known: {', '.join(Limits.model_fields)}"


class UnknownCall(_Inner):
    """A tool call of which nobody could tell whether it took effect."""

    turn: int
    call_id: str
    tool: str
    key: str
    """The idempotency key: what the target may know the effect by."""
    arguments: str = ""
    """One line, cut."""
    what: str = ""
    """How it came about: one line, cut."""
    since: float = 0
    """Workflow time, seconds since 1970."""
    status: Literal["waiting", "open", "landed", "not_landed"] = "open"
    """`waiting` for a person; `open`: the model was told, or the run has ended; else settled."""
    actor: str | None = None
    """Who settled it."""


class ApprovalAsked(_Inner):
    """A tool call that a person has, or had, to allow."""

    id: str
    """Made of the call's place in its run, its arguments and the tool's definition: changed
    arguments have another one."""
    turn: int
    call_id: str
    tool: str
    effect: Effect
    arguments: str = ""
    """As JSON, as the tool's types read them; what nobody sees is escaped; cut."""
    left_out: int = 0
    """Characters that were cut; the transcript has all of them."""
    why: str = ""
    """Why it was asked for."""
    since: float = 0
    """Workflow time, seconds since 1970."""
    expires: float = 0
    run_ends: float = 0
    """When the run's time is over, decided or not; 0 of runs that did not tell."""
    escalated: bool = False
    """Whether nobody decided in time, and it waits once more."""
    status: Literal["waiting", "approved", "denied", "expired", "withdrawn"] = "waiting"
    """`withdrawn`: the run ended, or a message came first, before anybody decided."""
    actor: str | None = None
    """Who decided, as they say unless it is `verified`."""
    verified: bool = False
    """Whether the agent's own function has found out who that is."""
    refused: str = ""
    """Of the last decision that it did not accept: whose, and why."""
    reason: str = ""

    @property
    def until(self) -> float:
        """When nobody can decide it any more: it has expired, or the run has ended."""
        return min(self.expires, self.run_ends or self.expires)

    @property
    def until_why(self) -> str:
        """Which of the two it is, in words."""
        return "when it expires" if self.until == self.expires else "when the run's time is over"


class Signature(_Inner):
    """A decision of which an agent's `verify` is asked who made it; what `run.verify` is asked."""

    agent: str
    approval: ApprovalAsked
    verdict: Literal["approve", "deny"]
    actor: str | None = None
    """Who they say they are."""
    proof: str | None = None
    metadata: dict[str, str] = Field(default_factory=dict)
    """Of the run."""


class VerifyOutput(_Inner):
    """Who made a decision."""

    actor: str


class Awaited(_Inner):
    """What an open run waits for: somebody's words, or a time."""

    kind: Literal["message", "answer", "time"]
    call_id: str = ""
    """Of the call that waits, if one does."""
    question: str = ""
    """What is asked: one line, cut."""
    since: float = 0
    """Workflow time, seconds since 1970."""
    until: float | None = None
    """When the wait is over, whatever happens."""
    update: str = ""
    """The update that ends it."""
    body: str = ""
    """Of the update: JSON, to be pasted."""


class RunResult(_Inner):
    """How a run ended. The workflow's result, or the details of its failure."""

    outcome: str
    answer: str | None = None
    """The final text; cut to 64 kB, the transcript has all of it."""
    answer_artifact: str | None = None
    """Of a longer one, without an output type: the artifact that holds all of it."""
    reason: str | None = None
    """Why, for every outcome but `completed`."""
    agent: str = ""
    model: str = ""
    turns: int = 0
    calls: int = 0
    errors: int = 0
    usage: Usage = Field(default_factory=Usage)
    turn_usage: list[TurnUsage] = Field(default_factory=list)
    """What each of the last 20 turns has used."""
    cache_share: float = 0
    """The part of all input tokens that was read from the provider's prompt cache, 0 to 1."""
    seconds: float = 0
    transcript: Position = Field(default_factory=Position)
    unread: int = 0
    """Messages that were accepted and that the model has not read."""
    epochs: int = 1
    """Views that the run had: each but the first began when the one before had grown too long."""
    unknown: list[UnknownCall] = Field(default_factory=list)
    """The last calls whose outcome was, or is, unknown."""
    approvals: list[ApprovalAsked] = Field(default_factory=list)
    """The last calls that a person had to allow."""
    limits: Limits | None = None
    """Of a run whose limits were raised: the last ones."""
    output: Any = None
    """The answer as the agent's `output` reads it; null without one, or if it is too long."""
    output_artifact: str | None = None
    """Of an output of over 64 kB as JSON: the artifact that holds it."""


class CallStatus(_Inner):
    """One tool call of the current turn, for readers."""

    call_id: str
    tool: str
    status: str
    arguments: str = ""
    """One line, cut."""


class ContextStatus(_Inner):
    """How full the model's window is."""

    tokens: int
    """Of the last request and its reply, as the provider counted them."""
    window: int
    epoch: int
    """From 1."""


class Paused(_Inner):
    """A run that waits for a person to resume it, as it publishes that in its memo."""

    reason: str = ""
    """One line, cut."""
    actor: str | None = None
    since: float = 0
    """Workflow time, seconds since 1970."""


class RunStatus(_Inner):
    """The answer of the `status` query."""

    agent: str
    model: str
    phase: str
    turn: int
    waiting_for: str
    calls: list[CallStatus] = Field(default_factory=list)
    usage: Usage = Field(default_factory=Usage)
    limits: Limits = Limits()
    started: float = 0
    """Of an open run: since when its `wall_seconds` count, in seconds since 1970; 0 if it is not
    known."""
    context: ContextStatus | None = None
    outcome: str | None = None
    answer: str | None = None
    """What the model said last, of a run that has answered all that it was sent: it waits for a
    message, or has ended. Null before."""
    unread: int = 0
    """As in `RunResult`."""
    awaited: list[Awaited] = Field(default_factory=list)
    unknown: list[UnknownCall] = Field(default_factory=list)
    """As in `RunResult`."""
    approvals: list[ApprovalAsked] = Field(default_factory=list)
    paused: PauseRequest | None = None
    """Asked for and not resumed: before its next generation the run waits."""


class LoadAgentInput(_Inner):
    """What `run.load_agent` is asked."""

    agent: str
    limits: dict[str, Any] = Field(default_factory=dict)


class LoadAgentOutput(_Inner):
    """An agent, pinned."""

    spec: AgentSpec
    """With the request's limits applied."""
    spec_digest: str
    """Of the whole spec, also where `spec` is only its outline."""
    head_tokens: int = 0
    """Of instructions and tools, estimated."""
    attributes: list[str] = Field(default_factory=list)
    """Our search attributes that this namespace has: upserting another one would wedge the run."""
    heartbeat_seconds: float = 10
    """How long a worker may be silent in an activity before it is held for dead."""
    notifies: bool = False
    """Whether the run tells a webhook when it waits, fails or has an unknown outcome."""


class GenerateInput(_Inner):
    """What is new since the view that the base digest names; the rest the worker has or reads."""

    turn: int
    spec_digest: str
    base: Position
    new: list[Entry]
    max_tokens: int
    answer_only: bool | None = None
    """Forbid tool calls: the last answer at a limit."""
    drop_thinking: bool | None = None
    """Let the provider drop thinking blocks that it holds for bound to another conversation."""
    seconds_left: float
    """Until the run's deadline: a wait beyond it is not begun."""
    tenant: str | None = None
    allowance: Allowance | None = None
    """What limits on tokens and cost leave for it."""
    estimate: Estimate | None = None
    """What it is expected to use; None from a run of before there were limits per day."""


class Timing(_Inner):
    """Milliseconds and bytes of one activity."""

    queue_ms: int = 0
    first_token_ms: int | None = None
    run_ms: int = 0
    sent_bytes: int | None = None
    received_bytes: int | None = None
    view: str | None = None
    """Where the view came from: `new`, `cache` or `history`."""


class Checked(_Inner):
    """What was found out of a reply that ends its turn: whether it is of the agent's output type,
    and where it lies if it is too long for a result."""

    problems: list[str] = Field(default_factory=list)
    """Why it is not, in words for the model; none if it is."""
    value: str | None = None
    """As JSON text, as the type writes it; None if it is too long for a result."""
    artifact: str | None = None
    """That holds it then."""
    answer_artifact: str | None = None
    """Without an output type: that holds the text if it is too long."""
    not_stored: str | None = None
    """Why there is none."""


class GenerateOutput(_Inner):
    """A complete reply of the model."""

    entry: Entry
    """Mended so that it can be sent back: `mended` says what was changed."""
    stop_reason: str | None = None
    stop_details: Any = None
    message_id: str | None = None
    model: str | None = None
    usage: Usage = Field(default_factory=Usage)
    refused_calls: dict[str, str] = Field(default_factory=dict)
    """By call id: why its arguments cannot be used."""
    mended: list[str] | None = None
    checked: Checked | None = None
    """If the reply ends the turn, and the agent has an output type or it is too long."""
    cut_by: LimitName | None = None
    """The limit that let the reply have fewer tokens than it was to have."""
    switched_off: dict[str, str] | None = None
    """Of tools that the run serves itself, and the reply calls: what the model reads instead."""
    timing: Timing = Field(default_factory=Timing)


class ExecuteInput(_Inner):
    """One tool call."""

    agent: str
    tool: str
    effect: Effect
    attempts: int
    turn: int
    index: int
    call_id: str
    arguments: dict[str, Any]
    arguments_digest: str
    key: str
    """The idempotency key."""
    result_bytes: int
    """Text over this goes to the artifact store."""
    metadata: dict[str, str] = Field(default_factory=dict)
    repeated: bool = False
    """Whether an earlier run, or one that was reset, may have used the key already."""
    reset: bool | None = None
    """Whether the run was reset: a call under the same key may stand in what was replaced."""
    key_ttl: float | None = None
    """See `ToolSpec`."""
    images: int = MAX_RESULT_IMAGES
    """Of the result, that the model may see."""
    approval: Approval | None = None
    """Whether a person has to allow it, by the agent's policy; the tool itself may ask for more."""
    granted: str | None = None
    """The digest of what a person has allowed, or of what needs no word."""
    trusted: str | None = None
    """The tool's definition for which nobody is asked any more in this run."""
    asks_only: bool | None = None
    """Find out whether a person has to allow it, and do nothing."""


class Asks(_Inner):
    """What a person allows, or need not allow."""

    digest: str
    """Of the tool's definition and the arguments."""
    definition: str
    """Digest of the former alone."""
    arguments: str = ""
    """As JSON, cut, for the person."""
    left_out: int = 0
    """Characters that were cut."""
    why: str = ""


class ExecuteOutput(_Inner):
    """The one result of a tool call, or what it needs before it can have one."""

    entry: Entry
    """While it waits for a person: what it waits for, which the model is not told."""
    status: Literal["ok", "error", "invalid", "stop", "needs_approval", "cleared"]
    asks: Asks | None = None
    """Of `needs_approval`, and of `cleared`: nobody need be asked."""
    reason: str | None = None
    """Of `stop`."""
    artifact: str | None = None
    """Holds the whole text where the entry has an extract."""
    timing: Timing = Field(default_factory=Timing)


class Sealed(_Inner):
    """The part of a transcript that lies in the artifact store, as its last segment's id."""

    artifact: str
    position: Position


class Epoch(_Inner):
    """A view that began anew: what came before is left out, or stands in its opening."""

    number: int
    artifact: str
    """Where the opening's entries lie."""
    opening: Position
    """In the view, after the opening."""
    said: Position
    """In the transcript, where the opening was made."""


class ForkInput(_Inner):
    """What `run.fork` is asked."""

    fork: ForkRequest


class ForkOutput(_Inner):
    """What a fork begins with, now its own."""

    base: Position
    """What the model has read or said."""
    sealed: Sealed | None = None
    """The same; None if it is nothing."""
    unread: list[Entry]
    bytes: int = 0
    """Of what the model has read or said."""
    timing: Timing = Field(default_factory=Timing)


class SealInput(_Inner):
    """What `run.seal` is asked."""

    position: Position
    """Seal everything up to here: a place in the view."""
    sealed: Sealed | None = None
    epoch: Epoch | None = None
    """That the view belongs to; None is the first, whose view is the transcript."""


class SealOutput(_Inner):
    """What `run.seal` did."""

    sealed: Sealed


class Checkpoint(_Inner):
    """A summary of the beginning of a view."""

    epoch: int
    """The number of the view's epoch; 0 is the first."""
    entries: int
    """How many entries of the view it covers."""
    text: str


class SummariseInput(_Inner):
    """What `run.summarise` is asked."""

    turn: int
    spec_digest: str
    base: Position
    epoch: Epoch | None = None
    keep_turns: int
    """For workers of before the activity read it in the pinned policy."""
    room: int | None = None
    """Bytes that may stay word for word. None, of a worker of before: half of the view."""
    drop_thinking: bool | None = None
    tenant: str | None = None


class SummariseOutput(_Inner):
    """A checkpoint, or why there is none."""

    checkpoint: Checkpoint | None = None
    problem: str | None = None
    usage: Usage = Field(default_factory=Usage)
    timing: Timing = Field(default_factory=Timing)


class ShortenInput(_Inner):
    """What `run.shorten` is asked: the opening of a new epoch."""

    turn: int
    spec_digest: str
    base: Position
    epoch: Epoch | None = None
    sealed: Sealed | None = None
    checkpoint: Checkpoint | None = None
    room: int
    """Bytes that the opening may have."""
    last_resort: bool = False
    """Leave earlier turns out also without a summary of them."""


class ShortenOutput(_Inner):
    """A new epoch, or None: a checkpoint is needed first."""

    epoch: Epoch | None = None
    sealed: Sealed | None = None
    bytes: int = 0
    """Of the opening."""
    how: Literal["references", "summary", "recent"] | None = None
    left_out: int = 0
    """Entries that the new view does not have."""
    referred: int = 0
    """Results that became references."""
    timing: Timing = Field(default_factory=Timing)


class SwitchedOnInput(_Inner):
    """What `run.switched_on` is asked."""

    agent: str
    tenant: str | None = None
    estimate: Estimate | None = None
