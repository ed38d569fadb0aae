"""A run as its story: turn by turn, what was said and done, in order. Pure."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import reduce
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from turnkeeper import replies
from turnkeeper.contract import (
    ANSWER,
    APPROVE,
    DENY,
    PAUSE,
    RAISE_LIMITS,
    RESOLVE,
    RESUME,
    SEND,
    STOP,
    ApprovalAsked,
    RunStatus,
    UnknownCall,
)
from turnkeeper.entries import Entry
from turnkeeper.usage import Usage

if TYPE_CHECKING:
    from turnkeeper.export import (
        ExportedCall,
        ExportedGeneration,
        ExportedMessage,
        RunExport,
    )

__all__ = ["CallTold", "Mark", "Reply", "Said", "Story", "Turn", "story_of"]

_NAMED_BY = {
    SEND: "message_id",
    APPROVE: "approval",
    DENY: "approval",
    RESOLVE: "call_id",
    ANSWER: "call_id",
}
"""What says, in a message, which thing it is about."""
ASKS = ("needs_approval", "cleared")
"""How a call ends that only found out whether a person has to allow it."""
FAILURES = ("error", "invalid", "failed", "timed_out", "cancelled")
"""How a call ends that counts as an error."""


@dataclass
class Said:
    """A message that the model read."""

    entry: Entry
    at: datetime | None = None
    """When it was sent, of one that was sent to the run."""


@dataclass
class CallTold:
    """A tool call, with all that became of it."""

    call: replies.Call
    run: ExportedCall | None = None
    """The last time that a worker was given it to do."""
    result: Entry | None = None
    unread: bool = False
    """Whether the model was not asked to read the result."""
    approval: ApprovalAsked | None = None
    decided: datetime | None = None
    unknown: UnknownCall | None = None

    @property
    def failed(self) -> bool:
        """Whether it ended in an error; one that people did not allow was not begun."""
        if self.approval is not None and self.approval.status != "approved":
            return False
        if self.run is not None and self.run.status in FAILURES:
            return True
        value = self.result.value if self.result is not None else None
        return isinstance(value, dict) and bool(value.get("error"))

    @property
    def in_doubt(self) -> bool:
        """Whether nobody knows, or knew, if it took effect."""
        return self.unknown is not None

    @property
    def seconds(self) -> float | None:
        """That it took, waiting for a worker included; None while it is not over."""
        if self.run is None or self.run.ended is None:
            return None
        return max((self.run.ended - self.run.scheduled).total_seconds(), 0)


@dataclass
class Reply:
    """What the model said."""

    entry: Entry
    generation: ExportedGeneration | None = None
    """None: of another run, or of an execution that is not kept."""
    calls: list[CallTold] = field(default_factory=list)


@dataclass
class Mark:
    """Something that happened between what was said."""

    text: str
    at: datetime | None = None
    body: str = ""
    """More of it, to be unfolded."""
    bad: bool = False


@dataclass
class Turn:
    """One generation and what followed from it."""

    number: int
    """From 1; 0 holds what came before the first."""
    items: list[Said | Reply | Mark] = field(default_factory=list)
    generations: list[ExportedGeneration] = field(default_factory=list)
    runs: list[ExportedCall] = field(default_factory=list)
    """Each time that a worker was given a call of it."""
    summaries: Usage = field(default_factory=Usage)
    """Of summaries that were begun in it."""
    seconds: float | None = None
    """Until the next turn began, or the run ended."""

    @property
    def began(self) -> datetime | None:
        """When the model was asked."""
        return min((g.scheduled for g in self.generations), default=None)

    @property
    def calls(self) -> list[CallTold]:
        """Of all its replies."""
        return [call for item in self.items if isinstance(item, Reply) for call in item.calls]

    @property
    def usage(self) -> Usage:
        """Tokens of its generations and summaries, as far as they were counted."""
        return reduce(Usage.plus, (g.usage for g in self.generations), self.summaries)

    @property
    def model_seconds(self) -> float:
        """While the model was asked."""
        return _covered((g.scheduled, g.ended) for g in self.generations)

    @property
    def tool_seconds(self) -> float:
        """While at least one call ran."""
        return _covered((r.scheduled, r.ended) for r in self.runs)

    @property
    def waited_seconds(self) -> float:
        """The rest: for a person, a time, a message."""
        busy = self.model_seconds + self.tool_seconds
        return max((self.seconds or 0) - busy, 0)

    @property
    def errors(self) -> int:
        """Calls and generations that failed."""
        failed = sum(g.status in ("failed", "timed_out") for g in self.generations)
        return failed + sum(call.failed for call in self.calls)


def _covered(spans: Iterable[tuple[datetime, datetime | None]]) -> float:
    """Seconds that at least one of the spans covers; one that is open covers none."""
    total, until = 0.0, datetime.min.replace(tzinfo=UTC)
    for start, end in sorted((s, e) for s, e in spans if e is not None):
        total += max((end - max(start, until)).total_seconds(), 0)
        until = max(until, end)
    return total


@dataclass
class Story:
    """A run, for its readers."""

    run: RunExport
    status: RunStatus
    turns: list[Turn]
    approvals: list[ApprovalAsked]
    unknown: list[UnknownCall]

    @property
    def seconds(self) -> float:
        """From its beginning to its end, or until it was looked at."""
        return max(((self.run.closed or self.run.exported) - self.run.started).total_seconds(), 0)

    @property
    def usage(self) -> Usage:
        """Of the whole run."""
        known = self.run.result.usage if self.run.result else self.status.usage
        # One whose worker does not answer, or that was terminated, tells no sum.
        return known if known.total else reduce(Usage.plus, (t.usage for t in self.turns), known)

    @property
    def calls(self) -> list[CallTold]:
        """Of all turns."""
        return [call for turn in self.turns for call in turn.calls]


def story_of(run: RunExport, status: RunStatus) -> Story:
    """Put what a run's history tells in order."""
    approvals = list(
        {
            a.id: a
            for a in (
                *_read(ApprovalAsked, run.decisions.get("approval", ())),
                *(run.result.approvals if run.result else ()),
                *status.approvals,
            )
        }.values()
    )
    unknown = list({u.key: u for u in (*run.unknown, *status.unknown)}.values())
    told = Story(run, status, [], approvals, unknown)
    told.turns = _Teller(told).turns()
    return told


def _read(model: type[Any], values: Iterable[Any]) -> list[Any]:
    found = []
    for value in values:
        # Any program may have written the memo.
        with contextlib.suppress(ValidationError):
            found.append(model.model_validate(value))
    return found


class _Teller:
    """Goes through the entries, and finds to each what else is known of it."""

    def __init__(self, story: Story) -> None:
        self._story = story
        self._run = story.run
        self._turns: dict[int, Turn] = {}
        self._by_reply: dict[str, list[ExportedGeneration]] = {}
        for generation in self._run.generations:
            if generation.reply is not None:
                self._by_reply.setdefault(generation.reply, []).append(generation)
        self._kept: set[int] = set()
        """Those whose replies are entries, as all objects here by their ids in memory."""
        self._runs: dict[str, list[ExportedCall]] = {}
        for call in self._run.calls:
            self._runs.setdefault(call.call_id, []).append(call)
        self._results = _by_call(self._run.entries)
        self._unread = _by_call(self._run.unread)
        self._approvals = {a.call_id: a for a in story.approvals}
        self._unknown = {u.call_id: u for u in story.unknown}
        self._messages = {
            (m.name, str(_body(m).get(_NAMED_BY[m.name]))): m
            for m in self._run.messages
            if m.name in _NAMED_BY
        }
        """The last one to each thing that messages are about."""
        self._told: set[int] = set()
        """Messages that stand where they belong."""

    def turns(self) -> list[Turn]:
        """All of them, in order."""
        self._entries()
        for generation in self._run.generations:
            self._turn(generation.turn).generations.append(generation)
        for summary in self._run.summaries:
            turn = self._turn(summary.turn)
            turn.summaries = turn.summaries.plus(summary.usage)
        for call in self._run.calls:
            self._turn(call.turn).runs.append(call)
        turns = sorted(self._turns.values(), key=lambda turn: turn.number)
        for at, mark in sorted(self._marks(), key=lambda pair: pair[0]):
            _place(turns, at, mark)
        self._time(turns)
        return turns

    def _turn(self, number: int) -> Turn:
        return self._turns.setdefault(number, Turn(number))

    def _entries(self) -> None:
        number, heard = 0, list[Said | Reply | Mark]()
        for entry in self._run.entries:
            if entry.kind == "message":
                heard.append(Said(entry, self._sent(entry)))
            elif entry.kind == "reply":
                generation = self._generation(entry)
                number = generation.turn if generation else number + 1
                reply = Reply(entry, generation, self._calls(entry))
                self._turn(number).items += [*heard, reply]
                heard = []
        if heard:
            # What the model is reading, or would have read next.
            asked = max((g.turn for g in self._run.generations), default=0)
            self._turn(max(number + 1, asked) if number or asked else 0).items += heard

    def _generation(self, entry: Entry) -> ExportedGeneration | None:
        found = self._by_reply.get(entry.digest)
        if not found:
            return None
        # Equal replies have equal digests: they come in the order of their generations.
        generation = found.pop(0)
        self._kept.add(id(generation))
        return generation

    def _sent(self, entry: Entry) -> datetime | None:
        """When a message came that was sent to the run."""
        named = entry.value.get("id") if isinstance(entry.value, dict) else None
        return self._message(SEND, str(named)) if named is not None else None

    def _message(self, name: str, about: str) -> datetime | None:
        """When the last message of that name came about a thing, which tells it."""
        if (found := self._messages.get((name, about))) is None:
            return None
        self._told.add(id(found))
        return found.at

    def _calls(self, entry: Entry) -> list[CallTold]:
        return [self._call(call) for call in replies.calls(entry.value)]

    def _call(self, call: replies.Call) -> CallTold:
        runs = [r for r in self._runs.get(call.call_id, ()) if r.status not in ASKS]
        told = CallTold(call, runs[-1] if runs else None)
        told.result = self._results.get(call.call_id)
        if told.result is None and (unread := self._unread.get(call.call_id)):
            told.result, told.unread = unread, True
        told.approval = self._approvals.get(call.call_id)
        told.unknown = self._unknown.get(call.call_id)
        if told.approval is not None:
            verb = APPROVE if told.approval.status == "approved" else DENY
            told.decided = self._message(verb, told.approval.id)
        for name in (RESOLVE, ANSWER):
            self._message(name, call.call_id)
        return told

    def _marks(self) -> list[tuple[datetime, Mark]]:
        run = self._run
        lost = (g for g in run.generations if id(g) not in self._kept and g.status != "open")
        marks = [_lost(g) for g in lost]
        marks += [_epoch_mark(epoch) for epoch in run.epochs]
        for summary in run.summaries:
            told = "A summary of earlier turns was written"
            if summary.problem:
                told = f"There is no summary of earlier turns: {summary.problem}"
            marks.append((summary.at, Mark(told, summary.at, summary.text)))
        marks += [_message_mark(m) for m in run.messages if id(m) not in self._told]
        if run.request is not None and (fork := run.request.fork) is not None:
            told = f"A fork of {fork.workflow_id} before its turn {fork.turn}"
            marks.append((run.started, Mark(told)))
        return marks

    def _time(self, turns: Sequence[Turn]) -> None:
        """How long each turn was: until the next one that has a beginning."""
        end = self._run.closed or self._run.exported
        for turn in reversed(turns):
            if turn.began is not None:
                turn.seconds = max((end - turn.began).total_seconds(), 0)
                end = turn.began


def _by_call(entries: Iterable[Entry]) -> dict[str, Entry]:
    return {
        str(e.value.get("call_id")): e
        for e in entries
        if e.kind == "result" and isinstance(e.value, dict)
    }


def _place(turns: list[Turn], at: datetime, mark: Mark) -> None:
    """In the turn during which it happened: before a reply that was asked for later."""
    for turn in reversed(turns):
        if turn.began is not None and turn.began <= at:
            later = (i for i, item in enumerate(turn.items) if _asked_after(at, item))
            turn.items.insert(next(later, len(turn.items)), mark)
            return
    if not turns or turns[0].number > 0:
        turns.insert(0, Turn(0))
    turns[0].items.append(mark)


def _asked_after(at: datetime, item: Said | Reply | Mark) -> bool:
    asked = item.generation if isinstance(item, Reply) else None
    return asked is not None and asked.scheduled > at


def _lost(generation: ExportedGeneration) -> tuple[datetime, Mark]:
    """A generation whose reply is not part of the conversation."""
    at = generation.ended or generation.scheduled
    if generation.status == "ok":
        why = f" (stop reason {generation.stop_reason})" if generation.stop_reason else ""
        return at, Mark(f"A reply was not kept{why}", at)
    became = {
        "failed": "The model did not answer",
        "timed_out": "The model did not answer in time",
        "cancelled": "The generation was cancelled",
    }.get(generation.status, generation.status)
    tried = f" in {generation.attempts} attempts" if generation.attempts > 1 else ""
    why = f": {generation.failure}" if generation.failure else ""
    return at, Mark(f"{became}{tried}{why}", at, bad=generation.status != "cancelled")


def _epoch_mark(epoch: Any) -> tuple[datetime, Mark]:
    parts = [
        f"entries left out: {epoch.left_out:,}" if epoch.left_out else "",
        "a summary stands for them" if epoch.how == "summary" else "",
        f"results as references: {epoch.referred:,}" if epoch.referred else "",
    ]
    told = "; ".join(filter(None, parts))
    begins = f"Epoch {epoch.number}: from here on the model sees less of the above"
    return epoch.at, Mark(f"{begins}{f' ({told})' if told else ''}", epoch.at)


def _body(message: ExportedMessage) -> dict[str, Any]:
    return message.body if isinstance(message.body, dict) else {}


def _message_mark(message: ExportedMessage) -> tuple[datetime, Mark]:
    body = _body(message)
    what, told = _SAYS.get(message.name, (f"{message.how} {message.name}", None))
    by = f" by {body['actor']}" if body.get("actor") else ""
    why = f": {body['reason']}" if body.get("reason") else ""
    more = told(body) if told else str(message.body)
    return message.at, Mark(f"{what}{by}{why}", message.at, more)


def _limits(body: dict[str, Any]) -> str:
    limits = body.get("limits")
    return "\n".join(f"{k}: {v}" for k, v in limits.items()) if isinstance(limits, dict) else ""


def _nothing(_body: dict[str, Any]) -> str:
    return ""


_SAYS: dict[str, tuple[str, Callable[[dict[str, Any]], str] | None]] = {
    STOP: ("Stop asked for", _nothing),
    PAUSE: ("Paused", _nothing),
    RESUME: ("Resumed", _nothing),
    RAISE_LIMITS: ("Limits raised", _limits),
    SEND: ("Unread message", lambda body: str(body.get("text"))),
    APPROVE: ("Approved", None),
    DENY: ("Denied", None),
    RESOLVE: ("Settled", None),
    ANSWER: ("Answered", None),
}
"""What a message is called, and what of its body is told; None: all of it."""
