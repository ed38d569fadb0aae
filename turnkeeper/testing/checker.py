"""The checker: what a run promised, held against what is known of it from outside.

It reads histories, transcripts, the effect ledger's rows and the provider's log, and nothing of the
runtime's own. Each invariant is a function that yields violations:

    I1   an `idempotent` or `reconcilable` call is applied once
    I2   a `once` call is started at most once; of any call whose outcome is not sure, the model is
         told so
    I3   the transcript is whole, in order, and that of the run without faults
    I4   the provider refused no request; each call has one result, right after its reply
    I5   no reply is paid for again once it was recorded
    I6   the run ended by a name, and nothing of it is left
    I9   its histories replay in a process that has never seen them
    I11  nothing of it lives or changes the world after its end

Rows of the ledger are told to calls by their key. A plain effect has none: its tool puts
`"key": ctx.idempotency_key` into the body.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from turnkeeper.contract import NOT_HERE, NOTHING_HAPPENED, SWITCHED_OFF
from turnkeeper.entries import Entry, Position, verify
from turnkeeper.outcomes import OUTCOMES
from turnkeeper.testing.effects import Arrival
from turnkeeper.testing.provider import Record
from turnkeeper.testing.recorded import RecordedCall, RecordedRun

__all__ = ["NEVER_APPLIED", "SETTLED_SECONDS", "UNKNOWN", "Observed", "Violation", "check"]

SETTLED_SECONDS: Final = 2.0
"""After a run's end, until nothing of it may be left."""
UNKNOWN: Final = "may or may not have taken effect"
"""Words of every result whose outcome is unknown."""

NEVER_APPLIED: Final = "was never applied"
"""Words of an effect that a result tells of and no ledger has seen."""

_APPLIED_ONCE: Final = ("idempotent", "reconcilable")
_SURE_THAT_NOTHING_HAPPENED: Final = (NOTHING_HAPPENED, NOT_HERE, SWITCHED_OFF)
_CONFLICT: Final = 409


@dataclass(frozen=True)
class Violation:
    """A broken promise. key: of the call, or None where it is not about one."""

    invariant: str
    run: str
    key: str | None
    text: str

    def __str__(self) -> str:
        call = f" call {self.key[:12]}" if self.key else ""
        return f"{self.invariant} {self.run}{call}: {self.text}"


@dataclass
class Observed:
    """What is known of a run from outside.

    entries: its transcript; None if it could not be read, and `unreadable` says why. arrivals: all
    rows of a ledger that served this run alone. requests: all of its provider. lost_replies: how
    many of these a fault has cut off, beside those of attempts that the server gave up. living:
    processes of it that live on after its end. unreplayable: executions that do not replay, and
    why. unwitnessed: tools whose effects the ledger does not see.
    """

    run: RecordedRun
    entries: Sequence[Entry] | None
    arrivals: Sequence[Arrival] = ()
    requests: Sequence[Record] = ()
    lost_replies: int = 0
    unreadable: str = ""
    living: Sequence[str] = ()
    unreplayable: Mapping[str, str] = field(default_factory=dict)
    unwitnessed: frozenset[str] = frozenset()


def check(seen: Observed, control: Observed | None = None) -> list[Violation]:
    """Every violation; `control` is the same run without faults, if it has to say the same."""
    found: list[Violation] = []
    for invariant, problems in (
        ("I1", _applied_once(seen)),
        ("I2", _started_once(seen)),
        ("I2", _told_if_unsure(seen)),
        ("I3", _transcript(seen)),
        ("I3", _same(seen, control) if control is not None else iter(())),
        ("I4", _valid(seen)),
        ("I5", _paid_once(seen)),
        ("I6", _ended(seen)),
        ("I9", _replays(seen)),
        ("I11", _quiet(seen)),
    ):
        found += [Violation(invariant, seen.run.id, key, text) for key, text in problems]
    return found


Problems = Iterator[tuple[str | None, str]]


# --- effects ----------------------------------------------------------------------------------


def _applied_once(seen: Observed) -> Problems:
    rows = _rows(seen, applied=True)
    calls = _calls(seen, *_APPLIED_ONCE)
    for key, call in calls.items():
        name, times = call.input.tool, len(rows.get(key, ()))
        if times > 1:
            yield key, f"{name} was applied {times} times"
        elif times == 0 and _is_ok(call) and name not in seen.unwitnessed:
            yield key, f"{name} {NEVER_APPLIED}, and its result says that it was"
        elif times and call.failure in _SURE_THAT_NOTHING_HAPPENED:
            yield key, f"{name} was applied, and its failure says that nothing happened"
    yield from _one_call_each(seen, rows)


def _one_call_each(seen: Observed, rows: Mapping[str, Sequence[Arrival]]) -> Problems:
    known = Counter(c.input.key for c in seen.run.calls)
    for key, landed in rows.items():
        if key not in known:
            yield key, f"{landed[0].name} was applied under a key that no call has"
    for key, number in known.items():
        if number > 1:
            # The target would take the second one for a repeat, and do nothing.
            yield key, f"{number} calls have this key"
    for row in seen.arrivals:
        if row.status == _CONFLICT:
            yield row.key, f"{row.name} was asked for under this key with other arguments"


def _started_once(seen: Observed) -> Problems:
    rows = _rows(seen, applied=False)
    for key, call in _calls(seen, "once").items():
        name, times = call.input.tool, len(rows.get(key, ()))
        if times > 1:
            yield key, f"{name} was started {times} times"
        landed = any(row.applied for row in rows.get(key, ()))
        if landed and call.failure in _SURE_THAT_NOTHING_HAPPENED:
            yield key, f"{name} was applied, and its failure says that nothing happened"
        if times == 0 and _is_ok(call) and name not in seen.unwitnessed:
            yield key, f"{name} was never started, and its result says that it was"
    for row in seen.arrivals:
        if _key(row) is None:
            yield None, f"{row.name} was started by nobody: arrival {row.arrival} has no key"


def _told_if_unsure(seen: Observed) -> Problems:
    told = {e.value["call_id"]: e.value["text"] for e in seen.entries or () if e.kind == "result"}
    by_a_person = _settled(seen)
    for call in seen.run.calls:
        key, text = call.input.key, told.get(call.input.call_id, UNKNOWN)
        sure = call.output is not None or call.failure in _SURE_THAT_NOTHING_HAPPENED
        if call.mutates and not sure and key not in by_a_person and UNKNOWN not in text:
            name = call.input.tool
            yield key, f"{name} may have been started, and the model is told {text[:100]!r}"


def _settled(seen: Observed) -> set[str]:
    """Keys of calls whose unknown outcome a person has resolved."""
    unknown = seen.run.result.unknown if seen.run.result else []
    return {u.key for u in unknown if u.status in ("landed", "not_landed")}


def _calls(seen: Observed, *effects: str) -> dict[str, RecordedCall]:
    return {c.input.key: c for c in seen.run.calls if c.input.effect in effects}


def _rows(seen: Observed, *, applied: bool) -> dict[str, list[Arrival]]:
    found: dict[str, list[Arrival]] = defaultdict(list)
    for row in seen.arrivals:
        key = _key(row)
        if key is not None and (row.applied or not applied):
            found[key].append(row)
    return dict(found)


def _key(row: Arrival) -> str | None:
    if row.key is not None:
        return row.key
    key = row.body.get("key") if isinstance(row.body, dict) else None
    return key if isinstance(key, str) else None


def _is_ok(call: RecordedCall) -> bool:
    return call.output is not None and call.output.status in ("ok", "stop")


# --- what was said ----------------------------------------------------------------------------


def _transcript(seen: Observed) -> Problems:
    if seen.entries is None:
        yield None, f"the transcript cannot be read: {seen.unreadable}"
        return
    for number, entry in enumerate(seen.entries, 1):
        if not verify(entry):
            yield None, f"entry {number} has another digest than its value"
    result = seen.run.result
    # A cancelled run has no result to tell where its transcript ended.
    if result is None or seen.run.closed == "canceled":
        return
    found, told = Position().after(seen.entries), result.transcript
    if found != told:
        yield None, f"it is {_place(found)}, and by the run's own word {_place(told)}"


def _place(position: Position) -> str:
    return f"{position.entries} entries ({position.digest[:12]})"


def _same(seen: Observed, control: Observed) -> Problems:
    ours, theirs = seen.entries or (), control.entries or ()
    if len(ours) != len(theirs):
        yield None, f"{len(ours)} entries, {len(theirs)} without faults"
    keys = {c.input.call_id: c.input.key for c in seen.run.calls}
    for number, (our, their) in enumerate(zip(ours, theirs, strict=False), 1):
        if _told(our) != _told(their) and not _only_unknown(our, their):
            key = keys.get(our.value["call_id"]) if our.kind == "result" else None
            yield key, f"entry {number} is {_shown(our)}, without faults {_shown(their)}"
            return
    outcomes = [r.outcome if r else None for r in (seen.run.result, control.run.result)]
    if outcomes[0] != outcomes[1]:
        yield None, f"it ended as {outcomes[0]}, without faults as {outcomes[1]}"


def _told(entry: Entry) -> tuple[str, Any]:
    return entry.kind, entry.value


def _only_unknown(our: Entry, their: Entry) -> bool:
    """Whether it is the same call, whose outcome is unknown in one of the two runs.

    In the control, too: on a machine that is too busy a worker is given up that nobody has killed.
    """
    return (
        our.kind == their.kind == "result"
        and our.value["call_id"] == their.value["call_id"]
        and any(UNKNOWN in e.value["text"] for e in (our, their))
    )


def _shown(entry: Entry) -> str:
    return f"{entry.kind} {str(entry.value)[:120]}"


def _valid(seen: Observed) -> Problems:
    for request in seen.requests:
        if request.status == 400:
            yield None, f"the provider refused request {request.arrival}: {request.problem}"
    entries = list(seen.entries or ())
    outcome = seen.run.result.outcome if seen.run.result else None
    for number, entry in enumerate(entries, 1):
        if entry.kind != "reply":
            continue
        asked = [b["id"] for b in entry.value["content"] if b.get("type") == "tool_use"]
        answered = _results_after(entries[number:])
        last = number == len(entries)
        if answered != asked and not (last and outcome != "completed"):
            yield None, f"reply {number} asks for {asked}, and {answered} are answered"
    total = sum(e.kind == "result" for e in entries)
    told = {e.value["call_id"] for e in entries if e.kind == "result"}
    if total != len(told):
        yield None, f"{total} results for {len(told)} calls"


def _results_after(entries: Sequence[Entry]) -> list[str]:
    found: list[str] = []
    for entry in entries:
        if entry.kind != "result":
            break
        found.append(entry.value["call_id"])
    return found


def _paid_once(seen: Observed) -> Problems:
    recorded = {g.turn: g.ended for g in seen.run.generations if g.end == "completed"}
    whole = seen.run.result is None or seen.run.result.epochs == 1
    for request in seen.requests if whole else ():
        # The provider counts the replies before a request, which are all as long as none is left
        # out.
        ended = recorded.get(request.turn + 1) if request.turn is not None else None
        if ended is not None and request.time > ended:
            yield None, f"turn {request.turn} was asked for again after its reply was recorded"
    # An attempt whose worker died has timed out; so has one whose worker had no time to speak.
    asked = [*seen.run.generations, *seen.run.summaries]
    logical = len(asked)
    lost = sum(g.attempt - 1 for g in asked if g.before_timed_out)
    if len(seen.requests) > logical + max(lost, seen.lost_replies):
        found = len(seen.requests)
        yield (
            None,
            f"{found} requests for {logical} generations, of which {lost} attempts were lost",
        )


# --- ends -------------------------------------------------------------------------------------


def _ended(seen: Observed) -> Problems:
    run = seen.run
    if run.closed is None:
        yield None, "it has not ended"
        return
    if run.closed in ("terminated", "timed_out"):
        yield None, f"the server has {run.closed} it"
        return
    outcome = run.result.outcome if run.result else None
    if outcome not in OUTCOMES:
        yield None, f"it ended without a name: {outcome}"
    for call in run.calls:
        if call.end is None and run.closed == "completed":
            yield call.input.key, f"{call.input.tool} is still open"


def _replays(seen: Observed) -> Problems:
    for execution, why in seen.unreplayable.items():
        yield None, f"execution {execution} does not replay: {why}"


def _quiet(seen: Observed) -> Problems:
    for process in seen.living:
        yield None, f"it is over, and there lives {process}"
    if seen.run.ended is None:
        return
    for row in seen.arrivals:
        late = row.time - seen.run.ended
        if late > SETTLED_SECONDS:
            yield _key(row), f"{row.name} reached the ledger {late:.1f} s after the end"
