"""RunState: all that survives a crash and continue-as-new, and the arithmetic of RESUME. Pure.

The loop keeps nothing beside it: restoring a serialised RunState at any point leads to the same
end. It stays under 1 MB whatever the run's length, since what was said lies in history and in
sealed segments, and only what the model has not read yet is carried.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, Field

from turnkeeper import budget
from turnkeeper.approvals import Approvals
from turnkeeper.budget import LAST_ANSWER_TOKENS, Budget
from turnkeeper.context import MAX_IN_VAIN, Context, Room
from turnkeeper.contract import (
    ApproveRequest,
    Awaited,
    DenyRequest,
    ForkOutput,
    GenerateOutput,
    PauseRequest,
    RaiseLimitsRequest,
    ResolveRequest,
    RunRequest,
    Sealed,
    SendRequest,
    StopRequest,
    UnknownCall,
)
from turnkeeper.control import MAX_EARLY, Control, changes, wider
from turnkeeper.day_limits import Estimate
from turnkeeper.entries import (
    Entry,
    Position,
    admit,
    arguments_digest,
    digest_of,
    message,
    result,
)
from turnkeeper.inbox import MAX_UNREAD_BYTES, Ended, Inbox
from turnkeeper.outage import Outage
from turnkeeper.parse import CUT_CALL, Parsed, ProposedCall
from turnkeeper.prices import Allowance, LimitName
from turnkeeper.spec import (
    DEFAULT_WINDOW,
    MAX_IMAGE_TOKENS,
    MAX_INLINE_RESULT_BYTES,
    MAX_REPLY_IMAGES,
    MAX_REPLY_RESULTS_BYTES,
    MAX_RESULT_IMAGES,
    AgentSpec,
    Approval,
    ContextPolicy,
    Limits,
    ToolSpec,
)
from turnkeeper.text import arguments_line, clip, clip_json, clock, one_line
from turnkeeper.typed import Typed, correction
from turnkeeper.usage import TurnUsage, Usage
from turnkeeper.waits import Held, answer_awaited, next_message, time_awaited

MAX_DISCARDED = 2
"""Replies in a row that may be thrown away (grown, senseless or empty) before the run ends."""
MAX_LINES = 8
MAX_TURN_USAGE = 20
"""Turns whose use the result tells."""
"""Turns that the run card shows."""
MAX_UNKNOWN = 20
"""Calls with an unknown outcome that are remembered, the last ones."""
MAX_CONTINUED = 10
"""Paused replies in a row that are asked on."""

LAST_ANSWER = (
    "This run has reached a limit ({limit}): no more tools can be used. "
    "Answer now, with what you know so far, and say what is missing."
)
EMPTY_REPLY = "Your last reply was empty. Please give your answer, or say what is missing."


class Phase(StrEnum):
    """Where in the cycle the run stands; each names what is done next."""

    GENERATE = "GENERATE"
    PARSE = "PARSE"
    EXECUTE = "EXECUTE"
    RESUME = "RESUME"


class Call(BaseModel):
    """A tool call of the current turn and how far it got."""

    index: int
    call_id: str
    tool: str
    arguments: dict[str, object]
    key: str
    status: Literal["proposed", "running", "waiting", "done"] = "proposed"
    awaits: Literal["outcome", "approval", "answer", "time"] = "outcome"
    """While it waits: what for."""
    outcome: Literal["ok", "error", "unknown", "not_run", "denied"] | None = None
    entry: Entry | None = None
    """Its result, once done."""
    held: Held | None = None
    """Of one that waits for an answer or a time."""
    doubt: str = ""
    """Why its outcome is unknown, while it waits for a person."""
    invalid: bool = False
    """An unknown tool, or arguments that it cannot take."""
    asks_only: bool = False
    """Begun before its turn, to find out whether a person has to allow it."""
    approval: str = ""
    """The id under which a person decides."""
    digest: str = ""
    """Of what they decide."""
    definition: str = ""
    """Of the tool, as it was then."""
    granted: str | None = None
    """The digest that was allowed, or need not be."""
    approved: bool = False
    """Whether a person has allowed it."""

    @property
    def failed(self) -> bool:
        """Whether it counts as an error."""
        return self.outcome in ("error", "unknown")

    @property
    def breaks(self) -> bool:
        """Whether what the model planned after it is not to be taken for granted."""
        return self.outcome not in (None, "ok")

    def refuse(self, text: str) -> None:
        """It cannot be run as the model wrote it."""
        # A call that was cut off is the provider's doing, not the model's.
        self.invalid = text != CUT_CALL
        self.finish("error", text)

    def finish(
        self,
        outcome: Literal["ok", "error", "unknown", "not_run", "denied"],
        text_or_entry: str | Entry,
    ) -> None:
        """Give the call its one result; a later one is ignored."""
        if self.status == "done":
            return
        self.entry = (
            text_or_entry
            if isinstance(text_or_entry, Entry)
            else result(self.call_id, self.tool, text_or_entry, error=True)
        )
        self.status, self.outcome = "done", outcome


class Line(BaseModel):
    """One turn in the run card."""

    turn: int
    text: str


class RunState(BaseModel):
    """See the module."""

    version: int = 1
    request: RunRequest
    """As it came, but the prompt cut to one line: all of it is the first entry."""
    key_base: str
    """What idempotency keys are made of beside the call's place."""
    started: float
    """Workflow time of the first start, seconds since 1970."""
    spec: AgentSpec | None = None
    spec_digest: str = ""
    attributes: list[str] = Field(default_factory=list)
    heartbeat_seconds: float = 10

    phase: Phase = Phase.GENERATE
    turn: int = 1
    base: Position = Field(default_factory=Position)
    """Everything that the model has read or said in this epoch: a place in the view."""
    context: Context = Field(default_factory=Context)
    pending: list[Entry] = Field(default_factory=list)
    """What it has not read yet."""
    sealed: Sealed | None = None
    reply: GenerateOutput | None = None
    """Between GENERATE and PARSE."""
    calls: list[Call] = Field(default_factory=list)
    """Between PARSE and RESUME."""
    text: str = ""
    """The last text of the model."""

    max_tokens: int = 0
    """Output limit of the next request; 0 is the spec's."""
    discarded: int = 0
    continued: int = 0
    drop_thinking: bool = False
    sealing: bool = False
    """Whether the run waits for the artifact store before it continues as new."""
    making_room: bool = False
    """Whether the run waits for a shorter view."""
    switched_off: str = ""
    """What the run waits for while its agent or tenant is switched off, in words."""

    served_off: dict[str, str] = Field(default_factory=dict)
    """As in the last `GenerateOutput.switched_off`."""

    outage: Outage = Field(default_factory=Outage)
    usage: Usage = Field(default_factory=Usage)
    turn_usage: list[TurnUsage] = Field(default_factory=list)
    """Of the last turns."""
    budget: Budget = Field(default_factory=Budget)
    total_calls: int = 0
    total_errors: int = 0
    recent: list[bool] = Field(default_factory=list)
    """Whether each of the last calls failed, oldest first."""
    signature: str = ""
    """Of the last turn's calls and results."""
    repeats: int = 0
    lines: list[Line] = Field(default_factory=list)

    unknown: list[UnknownCall] = Field(default_factory=list)
    """The last calls whose outcome was, or is, unknown."""
    resolutions: list[ResolveRequest] = Field(default_factory=list)
    """Accepted, and not applied yet."""
    approvals: Approvals = Field(default_factory=Approvals)
    inbox: Inbox = Field(default_factory=Inbox)
    typed: Typed = Field(default_factory=Typed)

    control: Control = Field(default_factory=Control)
    was_reset: bool = False
    """Whether this execution, or one before it, came in the place of another one."""
    notifies: bool = False
    notices: int = 0
    """Told so far."""

    stop: StopRequest | None = None
    closing: str | None = None
    """The limit at which the last answer was asked for."""
    outcome: str | None = None
    reason: str | None = None

    def take_over(self, begun: ForkOutput, turn: int) -> None:
        """Begin with what was said in another run before the generation of that turn."""
        self.base, self.sealed, self.pending = begun.base, begun.sealed, begun.unread
        self.turn = turn
        self.context.take_over(begun.bytes)

    # --- GENERATE -------------------------------------------------------------------------------

    def heard(self, reply: GenerateOutput) -> None:
        """A reply came: what was pending has been read."""
        self.base = self.base.after(self.pending)
        policy = self.shortens or ContextPolicy()
        self.context.heard(self.pending, reply.usage, policy.bulky_bytes)
        self.pending = []
        self.reply, self.typed.checked = reply, reply.checked
        self.served_off = reply.switched_off or {}
        self.outage.over()
        self.charge(reply.usage)
        self.budget.heard(reply.usage, self.pinned.model.prices)
        self.pause_at_share()
        self.phase = Phase.PARSE

    def charge(self, usage: Usage) -> None:
        """Count what was spent, for the run and for its turn."""
        self.usage = self.usage.plus(usage)
        last = self.turn_usage[-1] if self.turn_usage else None
        if last is None or last.turn != self.turn:
            last = TurnUsage(turn=self.turn)
            self.turn_usage = [*self.turn_usage, last][-MAX_TURN_USAGE:]
        last.tokens += usage.total
        if usage.cost_usd is not None:
            last.cost_usd = round((last.cost_usd or 0) + usage.cost_usd, 9)

    def used_in(self, turn: int) -> TurnUsage | None:
        """What one of the last turns has used."""
        return next((u for u in self.turn_usage if u.turn == turn), None)

    @property
    def transcript(self) -> Position:
        """Everything that was said and kept, over all epochs."""
        return self.context.said or self.base

    @property
    def shortens(self) -> ContextPolicy | None:
        """How the view is shortened; None if it is not."""
        policy = self.pinned.context
        return policy if policy is not None and policy.mode != "all" else None

    @property
    def window(self) -> int:
        """Tokens that a request and its reply may have together."""
        return self.pinned.model.window or DEFAULT_WINDOW

    def allowance(self) -> Allowance | None:
        """What limits leave for the next request; None without one, or for the last answer."""
        if self.closing:
            return None
        # Measured once: it is written as JSON for that.
        new = self.context.estimate(self.pending)
        tokens, prices = self.context.request_with(new), self.pinned.model.prices
        return self.budget.allowance(self.limits, self.usage, prices, tokens=tokens, new=new)

    def estimate(self) -> Estimate:
        """What the next request and its reply may use."""
        new = self.context.estimate(self.pending)
        tokens, prices = self.context.request_with(new), self.pinned.model.prices
        return self.budget.estimate(prices, tokens=tokens, new=new, most=self.output_limit)

    def spent(self, allowance: Allowance | None) -> tuple[LimitName, str] | None:
        """The limit that allows no further reply, and why."""
        if allowance is None:
            return None
        prices = self.pinned.model.prices
        allowed, by = allowance.reply_tokens(self.output_limit, prices, Usage())
        if by is None or allowed:
            return None
        return by, budget.reason(by, self.limits, self.usage, allowance)

    def pause_at_share(self) -> None:
        """Have a person decide, once, when so much was used."""
        at, share = self.limits.pause_at, budget.share_used(self.limits, self.usage)
        if at is None or share < at:
            # Again, once limits that were raised are nearly used up.
            self.budget.paused = False
        elif not self.budget.paused:
            self.budget.paused = True
            told = f"{share:.0%} of its budget used; raise its limits, or resume it as it is"
            self.control.take_pause(PauseRequest(reason=told, actor="turnkeeper"))

    def room(self) -> Room:
        """Whether the next request fits into the model's window."""
        policy = self.shortens
        if policy is None:
            return Room.AMPLE
        return self.context.room(
            self.pending, output=self.output_limit, window=self.window, soft=policy.soft
        )

    def opening_bytes(self) -> int:
        """What the opening of a new epoch may have."""
        return self.context.room_bytes(self.pending, output=self.output_limit, window=self.window)

    def tail_bytes(self) -> int:
        """What a summary that is begun now may leave word for word."""
        return self.context.tail_bytes(self.pending, output=self.output_limit, window=self.window)

    def no_room(self) -> str | None:
        """Why no room can be made any more; None if it can."""
        if self.base.entries > 1 and self.context.shortened < MAX_IN_VAIN:
            return None
        context, said = self.context, self.context.overflow
        if said and not context.shortened:
            return said
        sizes = (
            f"the next request has about {context.request_tokens(self.pending)} tokens "
            f"({context.head_tokens} of instructions and tools) and its reply may have "
            f"{self.output_limit}, but the window has {self.window}; the view was shortened "
            f"{context.shortened} times; raise ModelSpec.window, if the model has more, or lower "
            "max_output_tokens"
        )
        return f"{said}; {sizes}" if said else sizes

    # --- PARSE ----------------------------------------------------------------------------------

    def note(self, parsed: Parsed) -> None:
        """Remember the turn in a line, for the run card."""
        said = [c.tool for c in parsed.calls[:5]] or [parsed.text or parsed.reason or "-"]
        text = f"{parsed.decision} {one_line(', '.join(said), 160)}"
        self.lines = [*self.lines, Line(turn=self.turn, text=text)][-MAX_LINES:]

    def keep_reply(self) -> None:
        """Make the reply part of the conversation."""
        assert self.reply is not None
        self.base = self.base.after([self.reply.entry])
        self.context.kept(self.reply.entry, self.reply.usage)
        self.reply, self.discarded, self.max_tokens = None, 0, 0

    def discard_reply(self, at_most: int = MAX_DISCARDED) -> bool:
        """Throw the reply away and ask again; False when that was done `at_most` times in a row."""
        self.reply, self.text = None, ""
        self.discarded += 1
        self.phase = Phase.GENERATE
        return self.discarded <= at_most

    def propose(self, proposed: list[ProposedCall]) -> None:
        """Take the calls of a reply, each with its key."""
        self.continued, self.text = 0, ""
        self.calls = [
            Call(
                index=i,
                call_id=p.call_id,
                tool=p.tool,
                arguments=p.arguments,
                key=call_key(self.key_base, self.turn, i, p.tool),
            )
            for i, p in enumerate(proposed)
        ]
        # First: a reply may hold a thousand calls, and a refusal names all tools.
        for call in self.calls[self.limits.calls_per_turn :]:
            call.finish(
                "not_run", f"Not run: at most {self.limits.calls_per_turn} calls in one reply."
            )
        for call, p in zip(self.calls[: self.limits.calls_per_turn], proposed, strict=False):
            if self.tool(call) is None:
                call.refuse(self._no_such_tool(call.tool))
            elif p.refused is not None:
                call.refuse(p.refused)
            elif self.must_ask(call) == "deny":
                call.finish("denied", f"{call.tool} is not allowed in this agent. It was not run.")
        self.phase = Phase.EXECUTE

    # --- EXECUTE --------------------------------------------------------------------------------

    def tool(self, call: Call) -> ToolSpec | None:
        """The tool that is called, if the agent has it."""
        return self.spec.tool(call.tool) if self.spec else None

    @property
    def tenant(self) -> str | None:
        """For whom it runs, if the caller has said so."""
        return self.request.metadata.get("tenant")

    def startable(self) -> list[Call]:
        """Calls that may start now, in call order.

        Reads run side by side. A mutating call waits for everything before it, and what comes after
        it waits for it. After a mutating call that failed or was denied, the later mutating ones
        are not run, but those that a person has allowed. Whether a person has to allow a call is
        found out before its turn: all that a reply needs is asked for at once.
        """
        free = self.limits.parallel_calls - sum(c.status == "running" for c in self.calls)
        ready: list[Call] = []
        earlier_done, blocked, broken = True, False, False
        for call in self.calls:
            mutates = self.mutates(call)
            if call.status == "proposed":
                in_turn = earlier_done if mutates else not blocked
                if mutates and broken and not call.approved:
                    call.finish("not_run", "Not run: an earlier call of this reply failed.")
                elif free > len(ready) and (in_turn or self._may_need_word(call)):
                    call.asks_only = not in_turn or self._needs_word(call)
                    ready.append(call)
            if call.status != "done":
                earlier_done, blocked = False, blocked or mutates
            broken = broken or (mutates and call.breaks)
        return ready

    def must_ask(self, call: Call) -> Approval | Literal["deny"]:
        """Whether a person has to allow the call, by its agent's policy and its tool."""
        tool = self.tool(call)
        return self.pinned.approval(tool) if tool else "never"

    def _may_need_word(self, call: Call) -> bool:
        return call.granted is None and self.must_ask(call) != "never"

    def _needs_word(self, call: Call) -> bool:
        """As far as can be told without its arguments."""
        trusted = call.tool in self.approvals.trusted
        return call.granted is None and self.must_ask(call) == "always" and not trusted

    def doubt(self, call: Call, text: str, now: float, *, may_wait: bool) -> None:
        """The call may or may not have taken effect: what becomes of it is the agent's policy."""
        policy = self.pinned.on_unknown
        waits = policy == "wait" and may_wait
        if waits:
            call.status, call.awaits, call.doubt = "waiting", "outcome", text
        else:
            call.finish("unknown", text)
        if policy == "stop":
            self.end("outcome_unknown", f"turn {self.turn}, call {call.call_id}: {text}")
        noted = UnknownCall(
            turn=self.turn,
            call_id=call.call_id,
            tool=call.tool,
            key=call.key,
            arguments=arguments_line(call.arguments, 200),
            what=one_line(text, 300),
            since=now,
            status="waiting" if waits else "open",
        )
        self.unknown = [*self.unknown, noted][-MAX_UNKNOWN:]

    @property
    def has_news(self) -> bool:
        """Whether somebody has said what the loop has not looked at yet."""
        said = self.resolutions or self.approvals.news or self.inbox.answers
        return bool(said or self.approvals.is_behind(self.deadline))

    def refuses(self, said: ApproveRequest | DenyRequest, now: float) -> str | None:
        """Why a decision about a call cannot be taken; None if it can."""
        if self.outcome is not None or self.stop is not None:
            return "the run ends: nothing is decided any more"
        return self.approvals.refusal(said, now)

    def waiting(self, *awaits: str) -> list[Call]:
        """Calls that wait for one of these."""
        return [c for c in self.calls if c.status == "waiting" and c.awaits in awaits]

    def not_waiting(self, call_id: str) -> str | None:
        """Why a call cannot be resolved; None if it can."""
        waiting = [c.call_id for c in self.waiting("outcome")]
        if call_id in waiting:
            taken = any(r.call_id == call_id for r in self.resolutions)
            return f"call {call_id} was resolved a moment ago" if taken else None
        known = ", ".join(waiting) or "none"
        return f"call_id: no call {one_line(call_id, 100)!r} waits to be resolved; waiting: {known}"

    def resolve(self, said: ResolveRequest) -> None:
        """A person says what became of a call."""
        waiting = (c for c in self.waiting("outcome") if c.call_id == said.call_id)
        call = next(waiting, None)
        if call is None:
            return
        person = one_line(said.actor, 100) if said.actor else "a person"
        if said.landed:
            told = said.result or f"It took effect: {person} has checked."
            shown = clip_json(told, self.result_bytes())
            call.finish("ok", result(call.call_id, call.tool, shown))
        else:
            why = f" {said.result}" if said.result else ""
            told = f"{call.tool} did not take effect: {person} has checked.{why}"
            call.finish("error", clip_json(told, self.result_bytes()))
        self._settled(call, "landed" if said.landed else "not_landed", said.actor)

    def give_up(self, call: Call) -> None:
        """Nobody says any more what a call waits for: the run is to end."""
        if call.awaits == "outcome":
            call.finish("unknown", call.doubt)
            self._settled(call, "open", None)
        elif call.awaits == "approval":
            self.approvals.withdraw(call)
        else:
            call.finish("not_run", "Not answered: the run was ended.")

    def _settled(
        self, call: Call, status: Literal["open", "landed", "not_landed"], actor: str | None
    ) -> None:
        change = {"status": status, "actor": actor}
        self.unknown = [
            u.model_copy(update=change) if u.key == call.key else u for u in self.unknown
        ]

    def _no_such_tool(self, name: str) -> str:
        known = ", ".join(t.name for t in self.spec.tools) if self.spec else ""
        return f"There is no tool {name[:100]!r}. Tools: {clip(known, 2_000) or 'none'}."

    def mutates(self, call: Call) -> bool:
        """Whether the call may change the world; one of an unknown tool counts as such."""
        spec = self.tool(call)
        return spec is None or spec.mutates

    def result_bytes(self) -> int:
        """How much text of one result the model may see: shares shrink with the calls."""
        # As many bytes as the window has tokens: about a third of it.
        of_reply = min(
            MAX_REPLY_RESULTS_BYTES, self.window if self.shortens else MAX_REPLY_RESULTS_BYTES
        )
        return min(MAX_INLINE_RESULT_BYTES, of_reply // max(len(self.calls), 1))

    def result_images(self, call: Call) -> int:
        """How many images of its result the model may see: results cannot be shortened once they
        are there, so those of a reply have a third of the window together."""
        of_reply = min(MAX_REPLY_IMAGES, max(1, self.window // 3 // MAX_IMAGE_TOKENS))
        before, upto = (of_reply * i // len(self.calls) for i in (call.index, call.index + 1))
        return min(MAX_RESULT_IMAGES, upto - before)

    # --- RESUME ---------------------------------------------------------------------------------

    def take_results(self) -> None:
        """Append the results in call order and count them."""
        entries = [c.entry for c in self.calls if c.entry is not None]
        self.pending.extend(entries)
        self.total_calls += len(self.calls)
        self.total_errors += sum(c.failed for c in self.calls)
        if self.calls and self.lines:
            failed = sum(c.outcome != "ok" for c in self.calls)
            self.lines[-1].text += f" → {failed} of {len(self.calls)} failed" if failed else " → ok"
        # A call that was not run is neither a failure nor a success.
        ran = [c.failed for c in self.calls if c.outcome not in ("not_run", "denied")]
        self.recent = (self.recent + ran)[-self._memory() :]
        if self.calls:
            said = [arguments_digest(c.tool, c.arguments) for c in self.calls]
            signature = digest_of([said, [e.value["text"] for e in entries]])
            self.repeats = self.repeats + 1 if signature == self.signature else 1
            self.signature = signature
        self.calls = []

    def _memory(self) -> int:
        return max(self.limits.consecutive_errors, self.limits.recent_calls)

    def limit_reached(self) -> tuple[str, str] | None:
        """The outcome and its reason, if a bound has been met."""
        limits = self.limits
        if self.turn >= limits.turns:
            return "turn_limit", f"{self.turn} of {limits.turns} turns used"
        if limits.tokens is not None and self.usage.total >= limits.tokens:
            return "token_limit", f"{self.usage.total} of {limits.tokens} tokens used"
        last = self.recent[-limits.consecutive_errors :]
        if len(last) == limits.consecutive_errors and all(last):
            return "error_limit", f"{len(last)} tool errors in a row"
        failed = sum(self.recent[-limits.recent_calls :])
        if limits.recent_errors is not None and failed >= limits.recent_errors:
            return "error_limit", f"{failed} of the last {limits.recent_calls} tool calls failed"
        if self.repeats >= limits.repetition:
            return "repetition", f"the same calls with the same results {self.repeats} times"
        return None

    def go_on(self) -> None:
        """After a turn: to the next one, unless a limit ends the run."""
        reached = self.limit_reached()
        if reached is None or self.asks_last_answer(*reached):
            self.next_turn()

    def next_turn(self) -> None:
        """Back to GENERATE."""
        self.turn += 1
        self.phase = Phase.GENERATE

    def asks_last_answer(self, outcome: str, reason: str) -> bool:
        """At a limit: ask once more without tools before the end, if the owner wants that; else
        end."""
        if self.limits.on_limit == "stop":
            self.end(outcome, reason)
            return False
        self.closing, self.reason = outcome, reason
        self.pending.append(message(LAST_ANSWER.format(limit=reason)))
        return True

    def cannot_raise(self, said: RaiseLimitsRequest) -> str | None:
        """Why limits cannot be raised so; None if they can."""
        if ended := self.outcome or self.closing:
            return f"limits: the run ends ({ended}); they can be raised only before one is reached"
        if self.spec is None:
            full = len(self.control.early) >= MAX_EARLY
            return "limits: the agent is not loaded yet, and too many wait for it" if full else None
        try:
            wider(self.limits, said.limits)
        except ValueError as error:
            return str(error)
        return None

    def raise_limits(self, said: RaiseLimitsRequest) -> str | None:
        """Somebody raises limits, which count from now on: the loop reads them where it stands."""
        if self.spec is None:
            self.control.early.append(said)
            return "they are compared with the agent's own once it is loaded"
        limits = wider(self.limits, said.limits)
        if not (what := changes(self.limits, limits)):
            return "they were so already"
        self.spec = self.spec.model_copy(update={"limits": limits})
        self.control.note_raise(said, what)
        return None

    def raise_early(self) -> None:
        """The agent was loaded: limits that somebody raised before can be compared with its own."""
        early, self.control.early = self.control.early, []
        for said in early:
            if problem := self.cannot_raise(said):
                self.control.note_raise(said, f"not raised: {problem}")
            else:
                self.raise_limits(said)

    # --- messages -------------------------------------------------------------------------------

    def not_sendable(self, said: SendRequest) -> str | None:
        """Why a message cannot be taken; None if it can.

        Raises:
            Ended, Duplicate: it never can.
        """
        # One that has just completed goes on with it.
        if self.outcome not in (None, "completed"):
            raise Ended(f"the run has ended: {self.outcome}")
        # As many bytes as the window has tokens: nobody ends a run by a message that does not fit.
        bounded = self.spec is not None and self.shortens is not None
        most = min(MAX_UNREAD_BYTES, self.window) if bounded else MAX_UNREAD_BYTES
        return self.inbox.refusal(said, self.pending, most)

    def take_messages(self) -> list[Entry]:
        """The model reads next what was sent; a provider's pause is over first."""
        taken = [] if self.continued else self.inbox.take()
        if taken:
            self.pending.extend(taken)
            # With something new to go by, the same calls are no repetition.
            self.signature, self.repeats, self.recent = "", 0, []
            self.typed.corrections = 0
        return taken

    @property
    def hears(self) -> bool:
        """Whether a message may end this generation: no last answer, and no reply that the
        provider has paused, which would be lost."""
        return self.closing is None and not self.continued

    def cut_off(self) -> None:
        """The generation ended for a message: its turn is over, without a reply."""
        self.lines = [*self.lines, Line(turn=self.turn, text="ended for a message")][-MAX_LINES:]
        self.phase = Phase.RESUME

    def answered(self, now: Callable[[], float]) -> None:
        """The model has ended its turn: so does the run, unless somebody has said, or may say,
        more."""
        self.continued = 0
        if self.inbox.has_mail:
            self.phase = Phase.RESUME
        elif self.request.keep_open and self.limit_reached() is None:
            self.phase, self.inbox.idle_since = Phase.RESUME, now()
        else:
            self.end("completed")

    def correct(self) -> bool:
        """The model has ended its turn with what is not of the output type: ask again, or end the
        run; False if the answer fits, or may be any text."""
        typed, output = self.typed, self.pinned.output
        if output is None or not typed.unfit():
            typed.corrections = 0
            return False
        self.lines[-1].text += " → does not fit"
        self.continued = 0
        # Somebody has said more meanwhile: that was not the last answer.
        if typed.corrections >= output.retries and not self.inbox.has_mail:
            self.end("invalid_output", typed.why())
            return True
        typed.corrections += 1
        self.pending.append(message(correction(typed.problems, output.json_schema)))
        self.phase = Phase.RESUME
        return True

    def reopens(self) -> bool:
        """Go on with what came while a completed run was about to close."""
        if self.outcome != "completed" or not self.inbox.has_mail:
            return False
        self.outcome = None
        if self.inbox.idle_since is None:
            self.phase = Phase.RESUME
        return True

    @property
    def idle_until(self) -> float | None:
        """Until when the run waits for the next message; None if it does not."""
        since = self.inbox.idle_since
        return None if since is None else since + self.limits.idle_seconds

    @property
    def waits(self) -> bool:
        """Whether the run waits for somebody, a time or its provider, and is not at work."""
        idle = self.inbox.idle_since is not None or self.control.held is not None
        return idle or self.outage.until > 0 or any(c.status == "waiting" for c in self.calls)

    def awaited(self) -> list[Awaited]:
        """What it waits for, other than whether calls took effect."""
        idle = self.inbox.idle_since
        if self.outcome is not None or self.spec is None:
            return []
        if idle is not None:
            return [next_message(self.turn, idle, self.idle_until)]
        return [
            (time_awaited if c.awaits == "time" else answer_awaited)(c.call_id, c.held)
            for c in self.waiting("answer", "time")
            if c.held is not None
        ]

    def not_answerable(self, call_id: str) -> str | None:
        """Why a call cannot be answered by a person; None if it can."""
        waiting = [c.call_id for c in self.waiting("answer")]
        if call_id in waiting:
            taken = any(a.call_id == call_id for a in self.inbox.answers)
            return f"call {call_id} was answered a moment ago" if taken else None
        known = ", ".join(waiting) or "none"
        return f"call_id: no call {one_line(call_id, 100)!r} waits for an answer; waiting: {known}"

    def take_answers(self) -> bool:
        """Apply what people have answered; whether there was anything."""
        said, self.inbox.answers = self.inbox.answers, []
        for answer in said:
            call = next((c for c in self.waiting("answer") if c.call_id == answer.call_id), None)
            if call is not None:
                value = {"call_id": call.call_id, "tool": call.tool}
                value |= {"text": clip_json(answer.text, self.result_bytes())}
                value |= {"actor": answer.actor} if answer.actor else {}
                call.finish("ok", admit("result", value))
        return bool(said)

    def next_due(self) -> float | None:
        """The nearest time that a call waits for."""
        due = [c.held.until for c in self.waiting("time") if c.held and c.held.until is not None]
        return min(due, default=None)

    def take_due(self, moment: float, now: float) -> None:
        """The time has come that calls wait for until `moment`."""
        for call in self.waiting("time"):
            if call.held and call.held.until is not None and call.held.until <= moment:
                told = f"The wait is over: it is {clock(now)}."
                call.finish("ok", result(call.call_id, call.tool, told))

    def count_unread(self) -> None:
        """Say in the reason for the end how many messages nobody has read."""
        if count := len(self.inbox.unread(self.pending)):
            told = f"{count} message{'s were' if count > 1 else ' was'} not read"
            self.reason = f"{self.reason}; {told}" if self.reason else told

    # --- ends -----------------------------------------------------------------------------------

    def take_stop(self, said: StopRequest) -> None:
        """Somebody asks the run to end; the first one stays: it says who, and why."""
        self.stop = self.stop or said

    def cancel(self, reason: str | None) -> None:
        """Temporal closes the run as cancelled, whatever it was about to end as."""
        self.outcome, self.reason = "cancelled", reason

    def end(self, outcome: str, reason: str | None = None) -> None:
        """Set the outcome; the first one stays."""
        if self.outcome is None:
            self.outcome, self.reason = outcome, reason

    @property
    def pinned(self) -> AgentSpec:
        """The agent, once it was loaded: before that there is no turn to ask for it."""
        assert self.spec is not None
        return self.spec

    @property
    def output_limit(self) -> int:
        """Tokens that the next reply may have."""
        limit = self.max_tokens or self.pinned.model.max_output_tokens
        return min(limit, LAST_ANSWER_TOKENS) if self.closing == "cost_limit" else limit

    @property
    def limits(self) -> Limits:
        """The bounds of this run."""
        return self.spec.limits if self.spec else Limits()

    @property
    def deadline(self) -> float:
        """Workflow time, seconds since 1970."""
        return self.started + self.limits.wall_seconds


def key_base(workflow_id: str, run: str) -> str:
    """What all keys of a run share; `run` is the request key or the first execution's run id."""
    return digest_of([workflow_id, run])


def call_key(base: str, turn: int, index: int, tool: str) -> str:
    """The idempotency key of a call.

    From the call's place, never from the model's id (ids repeat) and never from the attempt: the
    same over retries, crashes, resets and continue-as-new.
    """
    return digest_of([base, turn, index, tool])
