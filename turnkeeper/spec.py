"""What is pinned into a run: the agent, its tools, its limits. Frozen, plain JSON. Pure.

A spec is data, made from the authoring side by `Agent.spec()` in the activity `run.load_agent` and
recorded in history, so that prompts and tools may be redeployed under running runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from turnkeeper.errors import DefinitionError

Effect = Literal["read", "idempotent", "reconcilable", "once"]
"""What a tool's author states about repeating it; see `turnkeeper.tools.tool`."""

_BY_CARE: tuple[Effect, ...] = ("read", "idempotent", "reconcilable", "once")


def stricter(one: Effect, other: Effect) -> Effect:
    """Of two statements about a tool the one that allows less."""
    return max(one, other, key=_BY_CARE.index)


Approval = Literal["never", "asks", "always"]
"""Whether a person has to allow a call: `asks` for what the tool says of each call's arguments."""

_BY_DISTRUST: tuple[Approval, ...] = ("never", "asks", "always")


def warier(one: Approval, other: Approval) -> Approval:
    """Of two statements about a tool the one that asks more often."""
    return max(one, other, key=_BY_DISTRUST.index)


OnUnknown = Literal["tell", "wait", "stop"]
"""What becomes of a call whose outcome is unknown; see `AgentSpec.on_unknown`."""

MAX_CALLS_PER_REPLY = 32
"""Calls of one reply that are run; the others are answered with an error."""
MAX_ARGUMENTS_BYTES = 256_000
"""Arguments of one call as JSON."""
MAX_REPLY_ARGUMENTS_BYTES = 512_000
"""Arguments of all calls of one reply."""
MAX_REPLY_RESULTS_BYTES = 512_000
"""Result texts of one reply as JSON; with many calls each one's share shrinks."""
MAX_INLINE_RESULT_BYTES = 24_000
"""A result text over this, as JSON, goes to the artifact store; the model sees head, tail, size
and id."""
MAX_RESULT_IMAGES = 4
"""Of one result, that the model sees; of the others it reads."""
MAX_REPLY_IMAGES = 16
"""Of all results of a reply: about half of the bytes that a request may have."""
MAX_IMAGE_TOKENS = 4_400
"""Of one image: at most 1568 x 1568 pixels, and a third more, as other estimates."""

MIN_WINDOW = 4_000
DEFAULT_WINDOW = 200_000
"""Tokens, for a model of which the provider does not tell."""


BUILT_IN = ("read_artifact", "search_artifact", "recall")
"""Names of the tools that every agent with tools or notes has besides its own."""
NOTES = ("note", "read_notes")
"""Names of the tools that an agent with notes has, too."""


class Strict(BaseModel):
    """What authors and callers write: unknown fields are refused by name, never ignored.

    Read as JSON, it comes from a history or a store, perhaps of another release: then fields that
    this release does not know are left out, or a run could never go on after a rollback.

    Raises:
        DefinitionError: made with fields that are wrong; names each of them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    def __init__(self, /, *values: object, **fields: Any) -> None:
        name = type(self).__name__
        if values:
            raise DefinitionError(f"{name}: {values[0]!r} has no name; write {name}(field=...)")
        try:
            super().__init__(**fields)
        except ValidationError as error:
            # Not above: the contract is made of these models.
            from turnkeeper.contract import problem_text

            told = problem_text(error, name) + self._meant(fields)
            raise DefinitionError(told) from None

    # Validation makes instances without calling it, as with pydantic's own.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @classmethod
    def _meant(cls, fields: Iterable[str]) -> str:
        known = list(cls.model_fields)
        unknown = [f for f in fields if f not in known]
        close = [found for f in unknown for found in get_close_matches(f, known, 1)]
        told = f". Did you mean {' and '.join(close)}?" if close else ""
        return told + (f" The fields are {', '.join(known)}" if unknown else "")

    @model_validator(mode="before")
    @classmethod
    def _of_another_release(cls, value: Any, info: ValidationInfo) -> Any:
        if info.mode == "json" and isinstance(value, dict):
            return {k: v for k, v in value.items() if k in cls.model_fields}
        return value


class Limits(Strict):
    """Bounds on one run. A start request may set any of them; unset ones come from the agent."""

    turns: Annotated[int, Field(ge=1, le=100_000)] = 50
    """Generations that the run may ask for (a discarded one is asked for again, at most twice)."""
    calls_per_turn: Annotated[int, Field(ge=1, le=MAX_CALLS_PER_REPLY)] = MAX_CALLS_PER_REPLY
    """Tool calls of one reply that are run."""
    parallel_calls: Annotated[int, Field(ge=1, le=MAX_CALLS_PER_REPLY)] = 8
    """Tool calls in flight at once."""
    consecutive_errors: Annotated[int, Field(ge=1, le=100)] = 5
    """Tool errors in a row that end the run with `error_limit`."""
    recent_errors: Annotated[int, Field(ge=1, le=100)] | None = None
    """Tool errors among the last `recent_calls` that end the run with `error_limit`."""
    recent_calls: Annotated[int, Field(ge=1, le=100)] = 20
    """How far back `recent_errors` looks."""
    repetition: Annotated[int, Field(ge=2, le=100)] = 5
    """Turns in a row with the same calls and the same results that end it with `repetition`."""
    tokens: Annotated[int, Field(ge=1)] | None = None
    """Tokens in and out over the whole run (cached ones count)."""
    cost_usd: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """US dollars over the whole run; refused for a model of which no price is known."""
    pause_at: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Share of `tokens` or `cost_usd` at which the run pauses, once, until a person resumes it."""
    wall_seconds: Annotated[float, Field(gt=0, le=366 * 86_400)] = 86_400
    """Time from the start to the end of the run, waiting included."""
    idle_seconds: Annotated[float, Field(gt=0, le=366 * 86_400)] = 86_400
    """How long a run that is kept open waits for the next message; then it is complete."""
    on_limit: Literal["stop", "answer"] = "stop"
    """`answer`: at a limit (but time) the model is asked for one last answer without tools."""

    @model_validator(mode="after")
    def _recent(self) -> Self:
        if self.recent_errors is not None and self.recent_errors > self.recent_calls:
            raise ValueError("recent_errors can't be more than recent_calls")
        return self


DAY_LIMITS = ("tokens_per_day", "cost_usd_per_day")
"""Names that callers may expect, and that no run can set."""
OF_A_DAY = (
    "limits per day are those of an agent or a tenant, over all its runs: set them by "
    "`starter.py day-limit set`, and remove it here"
)


class ToolSpec(Strict):
    """A tool as the loop and the model see it."""

    name: str
    description: str
    input_schema: dict[str, Any]
    effect: Effect = "once"
    timeout: float = 60
    """Seconds for one attempt."""
    retries: int = 0
    """Attempts after the first."""
    heartbeat: float | None = None
    """Seconds that the tool may go without a heartbeat of its own; None: the worker's will do."""
    key_ttl: float | None = None
    """Seconds that the target remembers a key; None: longer than any retry takes."""
    approval: Approval = "never"
    """Whether a person has to allow a call; the agent's `ApprovalPolicy` can only tighten it."""
    awaits: Literal["answer", "time"] | None = None
    """What the run itself waits for when it is called; None: a worker runs the tool."""

    @property
    def attempts(self) -> int:
        """Times that the body may be begun."""
        return self.retries + 1

    @property
    def mutates(self) -> bool:
        """Whether a call may change the world."""
        return self.effect != "read"


class Price(Strict):
    """US dollars per million tokens, for requests of at least `from_tokens` of input."""

    input: Annotated[float, Field(ge=0)]
    """What the model reads."""
    output: Annotated[float, Field(ge=0)]
    """What it writes."""
    cache_read: Annotated[float, Field(ge=0)] | None = None
    """What it reads out of the provider's cache; None: as `input`."""
    cache_write: Annotated[float, Field(ge=0)] | None = None
    """What is written to that; None: as `input`."""
    from_tokens: Annotated[int, Field(ge=0)] = 0
    """The least input of a request that this tier is for."""

    @property
    def cached(self) -> float:
        """Of what is read from the provider's cache."""
        return self.input if self.cache_read is None else self.cache_read

    @property
    def written(self) -> float:
        """Of what is written to it."""
        return self.input if self.cache_write is None else self.cache_write


class ModelSpec(Strict):
    """Which model answers, and how it is asked."""

    provider: str = "anthropic"
    """Who serves it."""
    name: str
    """The provider's id of it, such as `claude-sonnet-5-5`."""
    max_output_tokens: Annotated[int, Field(ge=1)] = 8_192
    """What a reply may be long; a reply cut there is asked for again with more, up to `ceiling`."""
    ceiling: Annotated[int, Field(ge=1)] = 64_000
    """The longest reply the model itself allows, in tokens."""
    window: Annotated[int, Field(ge=MIN_WINDOW)] | None = None
    """Tokens that a request and its reply may have together. None: as the provider says of the
    model when the run begins, or `DEFAULT_WINDOW`, 200,000, if it does not say."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Passed to the provider as they are, e.g. `{"thinking": {"type": "adaptive"}}`."""
    cache_ttl: Literal["5m", "1h"] = "5m"
    """How long the provider's prompt cache keeps what was last read. Writing for an hour costs 2
    instead of 1.25 times the input price; it pays where turns are often over five minutes apart."""
    prices: tuple[Price, ...] = ()
    """What it costs, one `Price` or one for each tier. Empty: as the package genai-prices has it
    when the run begins, if it knows the model."""


class ContextPolicy(Strict):
    """What is done when the next request would not fit into the model's window.

    Nothing is lost by it: what a view leaves out stays in the transcript and can be recalled.
    """

    mode: Literal["checkpoint", "recent", "all"] = "checkpoint"
    """`checkpoint`: bulky results that were used become references to artifacts; if that frees too
    little, earlier turns are summarised. `recent`: earlier turns are left out without a summary.
    `all`: every entry is sent, and a run that no longer fits ends with `context_overflow`."""
    keep_turns: Annotated[int, Field(ge=1, le=1_000)] = 6
    """Last turns that stay word for word, as far as they fit."""
    soft: Annotated[float, Field(gt=0, lt=1)] = 0.6
    """Share of the window from which on a summary is prepared, beside the turns."""
    frees: Annotated[float, Field(gt=0, lt=1)] = 0.25
    """Share of the view that references to artifacts have to free, to do without a summary."""
    bulky_bytes: Annotated[int, Field(ge=500)] = 2_000
    """A result of at least this much text may become a reference."""
    checkpoint_tokens: Annotated[int, Field(ge=100, le=50_000)] = 2_000
    """What a summary may be long."""
    summariser: ModelSpec | None = None
    """Which model summarises; None: the agent's own, which has most of the text in its cache."""


class HistoryPolicy(Strict):
    """When a run continues as new; Temporal's own suggestion always counts."""

    events: Annotated[int, Field(ge=50, le=8_000)] = 4_000
    """Events in the history of one execution."""
    bytes: Annotated[int, Field(ge=20_000, le=8_000_000)] = 3_500_000
    """Size of that history; a run at hand takes about as much memory."""


class ApprovalPolicy(Strict):
    """Which calls a person has to allow, and what becomes of those that nobody decides.

    It tightens what the tools say of themselves, and never loosens it.
    """

    tools: dict[str, Literal["declared", "always", "deny"]] | None = None
    """By tool: as the tool declares, ask for each call, or never run it. With it, a tool that is
    not named is denied, built-in ones aside. None: all as declared."""
    expires: Annotated[float, Field(ge=1, le=366 * 86_400)] = 86_400
    """Seconds that a person has; it is the run's own `wall_seconds` that may end it before."""
    on_expiry: Literal["deny", "stop", "escalate"] = "deny"
    """`deny` the call; `stop` the run; or `escalate`: say so, wait as long again, then deny."""


class OutputSpec(Strict):
    """What the answers of an agent have to be."""

    json_schema: dict[str, Any]
    """The model is told of it in the instructions, too."""
    typed: bool = False
    """Whether a type of the agent's own code checks answers, or the schema alone."""
    retries: Annotated[int, Field(ge=0, le=10)] = 2
    """Times in a row that the model is asked to correct an answer."""


class AgentSpec(Strict):
    """An agent, pinned."""

    name: str
    model: ModelSpec
    instructions: str
    tools: tuple[ToolSpec, ...] = ()
    limits: Limits = Limits()
    on_invalid_call: Literal["tell", "stop"] = "tell"
    """An unknown tool or invalid arguments: tell the model, or end the run."""
    on_unknown: OnUnknown | None = None
    """A call that may or may not have taken effect: tell the model, wait until a person resolves
    it, or end the run with `outcome_unknown`. None is a spec of before this was published: told."""
    approvals: ApprovalPolicy = ApprovalPolicy()
    verifies: bool = False
    """Whether the agent finds out who decides."""
    history: HistoryPolicy = HistoryPolicy()
    context: ContextPolicy | None = None
    """None is a spec of before views could be shortened: every entry is sent."""
    notes: bool = False
    """Whether the agent has the built-in tools `note` and `read_notes`."""
    output: OutputSpec | None = None
    """What answers have to be; None: any text."""
    outage_seconds: Annotated[float, Field(ge=0, le=366 * 86_400)] = 0
    """How long a run waits for a provider that does not answer, beyond the attempts of a
    generation. 0 is also a spec of before runs waited: then it ends with `model_unavailable`."""
    artifact: str | None = None
    """Where the whole spec lies when it is too large for history; then instructions, descriptions
    and schemas are empty here."""

    @property
    def models(self) -> tuple[ModelSpec, ...]:
        """All models that it asks: its own, and the one that summarises."""
        summariser = self.context.summariser if self.context else None
        return (self.model, *([summariser] if summariser else ()))

    def tool(self, name: str) -> ToolSpec | None:
        """The tool of that name, if the agent has it."""
        return next((t for t in self.tools if t.name == name), None)

    def approval(self, tool: ToolSpec) -> Approval | Literal["deny"]:
        """Whether a person has to allow calls of a tool, or nobody can."""
        policy = self.approvals.tools
        if policy is None or tool.name in self.built_in():
            return tool.approval
        said = policy.get(tool.name, "deny")
        return tool.approval if said == "declared" else said

    def built_in(self) -> tuple[str, ...]:
        """Names of the built-in tools that a run of this agent is given."""
        if not (self.tools or self.notes):
            return ()
        return (*BUILT_IN, *(NOTES if self.notes else ()))

    def outline(self, artifact: str) -> AgentSpec:
        """The spec without its long texts, which lie in the artifact store under `artifact`."""
        bare = tuple(
            t.model_copy(update={"description": "", "input_schema": {}}) for t in self.tools
        )
        return self.model_copy(update={"instructions": "", "tools": bare, "artifact": artifact})
