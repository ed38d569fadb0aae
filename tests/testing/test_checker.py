"""The checker finds each broken promise that is planted, and nothing in a run that kept them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from turnkeeper.contract import ExecuteInput, ExecuteOutput, RunResult, UnknownCall
from turnkeeper.entries import Entry, Position, admit, message, result
from turnkeeper.testing.checker import UNKNOWN, Observed, check
from turnkeeper.testing.effects import Arrival
from turnkeeper.testing.provider import Record
from turnkeeper.testing.recorded import RecordedCall, RecordedGeneration, RecordedRun

TOOLS = {"charge": "idempotent", "book": "reconcilable", "mail": "once", "look": "read"}
"""Called in this order, one a turn of a second; the effect comes in the middle of it."""
END = 5.0


def recorded_call(tool: str, turn: int) -> RecordedCall:
    """A call that went well."""
    asked = ExecuteInput(
        agent="clerk",
        tool=tool,
        effect=TOOLS[tool],
        attempts=3,
        turn=turn,
        index=0,
        call_id=f"id-{tool}",
        arguments={},
        arguments_digest="",
        key=f"key-{tool}",
        result_bytes=1_000,
    )
    output = ExecuteOutput(entry=result(asked.call_id, tool, f"{tool} done"), status="ok")
    return RecordedCall(turn - 0.9, 1, "completed", turn - 0.1, input=asked, output=output)


def arrival(number: int, tool: str, **changes: Any) -> Arrival:
    """A row of the ledger."""
    row = Arrival(
        arrival=number,
        kind={"charge": "keyed", "book": "probed"}.get(tool, "plain"),
        name=tool,
        key=None if tool == "mail" else f"key-{tool}",
        digest="",
        body={"key": f"key-{tool}"},
        time=number - 0.5,
        applied=True,
        status=200,
        receipt=None,
        behaviour=None,
    )
    return dataclasses.replace(row, **changes)


def reply(*calls: str) -> Entry:
    """What the model said."""
    content = [{"type": "tool_use", "id": f"id-{c}", "name": c, "input": {}} for c in calls]
    said = content or [{"type": "text", "text": "Done."}]
    return admit("reply", {"role": "assistant", "content": said}, dialect="anthropic-messages")


def request(turn: int, **changes: Any) -> Record:
    """A request that reached the provider, which counts turns from 0."""
    record = Record(arrival=turn + 1, time=float(turn), method="POST", path="/v1/messages")
    return dataclasses.replace(record, turn=turn, status=200, **changes)


def kept() -> Observed:
    """A run that kept every promise."""
    entries = [message("question")]
    for tool in TOOLS:
        entries += [reply(tool), result(f"id-{tool}", tool, f"{tool} done")]
    entries.append(reply())
    turns = range(1, len(TOOLS) + 2)
    run = RecordedRun(
        "run",
        calls=[recorded_call(tool, turn) for turn, tool in enumerate(TOOLS, 1)],
        generations=[
            RecordedGeneration(turn - 1.0, 1, "completed", turn - 0.95, turn=turn) for turn in turns
        ],
        closed="completed",
        ended=END,
        result=RunResult(outcome="completed", transcript=Position().after(entries)),
        executions=1,
    )
    rows = [arrival(n, tool) for n, tool in enumerate(("charge", "book", "mail"), 1)]
    return Observed(run, entries, rows, [request(turn - 1) for turn in turns])


def named(seen: Observed, control: Observed | None = None) -> list[tuple[str, str | None]]:
    """Invariant and key of each violation."""
    return [(v.invariant, v.key) for v in check(seen, control)]


def of(seen: Observed, tool: str) -> RecordedCall:
    """The call of a tool."""
    return next(c for c in seen.run.calls if c.input.tool == tool)


def lose(seen: Observed, tool: str, told: str = f"It {UNKNOWN}.") -> None:
    """A call has no result of its own, and the model is told so."""
    call = of(seen, tool)
    call.output, call.end = None, "timed_out"
    assert seen.entries is not None
    seen.entries = [
        result(f"id-{tool}", tool, told, error=True)
        if e.kind == "result" and e.value["tool"] == tool
        else e
        for e in seen.entries
    ]
    rechain(seen)


def rechain(seen: Observed) -> None:
    """The run's own count of its transcript."""
    assert seen.run.result is not None
    assert seen.entries is not None
    transcript = Position().after(seen.entries)
    seen.run.result = seen.run.result.model_copy(update={"transcript": transcript})


def test_a_run_that_kept_its_promises_has_no_violation() -> None:
    """Also when it is held against itself, and when a crash left the outcome of a call unknown."""
    assert named(kept(), kept()) == []
    unknown = kept()
    lose(unknown, "mail")
    assert named(unknown, kept()) == []


# --- I1 and I2: effects ---------------------------------------------------------------------------


@pytest.mark.parametrize("tool", ["charge", "book"])
def test_i1_an_effect_that_was_applied_twice(tool: str) -> None:
    """Two applied rows of one key; a repeat that the target recognised is none."""
    twice = kept()
    twice.arrivals = [*twice.arrivals, arrival(4, tool)]
    assert named(twice) == [("I1", f"key-{tool}")]
    repeated = kept()
    repeated.arrivals = [*repeated.arrivals, arrival(4, tool, applied=False)]
    assert named(repeated) == []


def test_i1_an_effect_that_never_was() -> None:
    """No row, and a result that says it is done; unless no ledger sees the tool at all."""
    never = kept()
    never.arrivals = never.arrivals[1:]
    assert named(never) == [("I1", "key-charge")]
    never.unwitnessed = frozenset({"charge"})
    assert named(never) == []


def test_i1_an_effect_under_another_key() -> None:
    """A key that is in no history was made anew."""
    other = kept()
    other.arrivals = [*other.arrivals, arrival(4, "charge", key="fresh")]
    assert named(other) == [("I1", "fresh")]


def test_i1_a_key_that_two_calls_have() -> None:
    """The target takes the second call for a repeat of the first one: its effect never is."""
    shared = kept()
    call = of(shared, "book")
    call.input = call.input.model_copy(update={"key": "key-charge"})
    shared.arrivals = [row for row in shared.arrivals if row.name != "book"]
    assert named(shared) == [("I1", "key-charge")]


def test_i1_a_key_with_other_arguments() -> None:
    """The target has refused it: one key is to be one call."""
    other = kept()
    other.arrivals = [*other.arrivals, arrival(4, "charge", applied=False, status=409)]
    assert named(other) == [("I1", "key-charge")]


def test_i2_a_call_that_was_started_twice() -> None:
    """Two arrivals under one key, even if the second one failed."""
    twice = kept()
    twice.arrivals = [*twice.arrivals, arrival(4, "mail", applied=False, status=500)]
    assert named(twice) == [("I2", "key-mail")]


@pytest.mark.parametrize("tool", ["charge", "book", "mail"])
def test_i2_a_call_that_may_have_been_started_and_is_told_otherwise(tool: str) -> None:
    """Nobody knows, and the model is told that it failed."""
    told = kept()
    lose(told, tool, "It failed.")
    assert named(told) == [("I2", f"key-{tool}")]


def test_i2_a_call_that_was_never_started_and_is_told_otherwise() -> None:
    """Its result says that it went well."""
    never = kept()
    never.arrivals = never.arrivals[:2]
    assert named(never) == [("I2", "key-mail")]


@pytest.mark.parametrize("tool", ["charge", "book", "mail"])
def test_an_effect_of_which_the_failure_says_that_it_never_was(tool: str) -> None:
    """A call that ends as one that changed nothing has none; one that the target refused may."""
    denied = kept()
    lose(denied, tool, "It did not take effect.")
    of(denied, tool).end, of(denied, tool).failure = "failed", "RetryTool"
    assert named(denied) == [("I2" if tool == "mail" else "I1", f"key-{tool}")]
    denied.arrivals = [
        dataclasses.replace(row, applied=row.name != tool) for row in denied.arrivals
    ]
    assert named(denied) == []


def test_i2_a_person_may_settle_what_is_not_known() -> None:
    """Then the model reads the person's word."""
    settled = kept()
    lose(settled, "mail", "It is in the outbox.")
    assert settled.run.result is not None
    by_a_person = UnknownCall(
        turn=3, call_id="id-mail", tool="mail", key="key-mail", status="landed", actor="eve"
    )
    settled.run.result = settled.run.result.model_copy(update={"unknown": [by_a_person]})
    assert named(settled) == []


def test_i2_an_effect_without_a_key_belongs_to_nobody() -> None:
    """The ledger cannot tell whose it is."""
    nobody = kept()
    nobody.arrivals = [*nobody.arrivals, arrival(4, "mail", body={})]
    assert named(nobody) == [("I2", None)]


# --- I3 and I4: what was said ---------------------------------------------------------------------


def _changed(seen: Observed) -> None:
    assert seen.entries is not None
    entry = seen.entries[1].model_copy(update={"value": {"role": "assistant", "content": []}})
    seen.entries = [seen.entries[0], entry, *seen.entries[2:]]


def _short(seen: Observed) -> None:
    assert seen.entries is not None
    seen.entries = seen.entries[:-1]


def _reordered(seen: Observed) -> None:
    assert seen.entries is not None
    before, (one, two), after = seen.entries[:5], seen.entries[5:7], seen.entries[7:]
    seen.entries = [*before, two, one, *after]


def _lost(seen: Observed) -> None:
    seen.entries, seen.unreadable = None, "history has a gap"


@pytest.mark.parametrize("spoil", [_changed, _short, _reordered, _lost])
def test_i3_a_transcript_that_is_not_whole(spoil: Callable[[Observed], None]) -> None:
    """An entry changed, the last one lost, two in another order, a gap."""
    spoilt = kept()
    spoil(spoilt)
    assert "I3" in {invariant for invariant, _ in named(spoilt)}


def test_i3_a_transcript_unlike_the_controls() -> None:
    """Another text, an entry more, or another end than without faults."""
    other = kept()
    lose(other, "look", "It failed.")
    assert named(other, kept()) == [("I3", "key-look")]
    longer = kept()
    assert longer.entries is not None
    longer.entries = [*longer.entries, message("and?")]
    rechain(longer)
    assert named(longer, kept()) == [("I3", None)]
    ended = kept()
    assert ended.run.result is not None
    ended.run.result = ended.run.result.model_copy(update={"outcome": "stopped"})
    assert named(ended, kept()) == [("I3", None)]


def test_i4_a_request_that_the_provider_refused() -> None:
    """One 400 is one too many; an overload is the provider's own."""
    refused = kept()
    refused.requests = [*refused.requests[:-1], request(4, rule="x", problem="no result")]
    refused.requests[-1].status = 400
    assert named(refused) == [("I4", None)]
    refused.requests[-1].status = 529
    assert named(refused) == []


def test_i4_a_call_without_its_one_result() -> None:
    """None at all, or two, or one elsewhere than right after its reply."""
    without = kept()
    assert without.entries is not None
    without.entries = [*without.entries[:2], *without.entries[3:]]
    rechain(without)
    assert named(without) == [("I4", None)]
    twice = kept()
    assert twice.entries is not None
    twice.entries = [*twice.entries[:3], twice.entries[2], *twice.entries[3:]]
    rechain(twice)
    assert named(twice) == [("I4", None), ("I4", None)]


# --- I5 and I6: costs and ends --------------------------------------------------------------------


def test_i5_a_reply_that_was_paid_for_again() -> None:
    """A request for a turn whose reply was recorded; or more requests than faults explain."""
    again = kept()
    again.run.generations[1].attempt, again.run.generations[1].before_timed_out = 2, True
    again.requests = [*again.requests, request(1)]
    assert named(again) == []
    again.requests[-1].time = 1.5
    assert named(again) == [("I5", None)]
    more = kept()
    more.requests = [*more.requests, request(4)]
    assert named(more) == [("I5", None)]
    more.run.generations[4].attempt = 2
    assert named(more) == [("I5", None)]
    more.run.generations[4].before_timed_out = True
    assert named(more) == []
    cut_off = kept()
    cut_off.requests, cut_off.lost_replies = [*cut_off.requests, request(4)], 1
    assert named(cut_off) == []


@pytest.mark.parametrize("closed", [None, "terminated", "timed_out"])
def test_i6_a_run_without_an_end_of_its_own(closed: Any) -> None:
    """Open still, or ended by the server."""
    endless = kept()
    endless.run.closed = closed
    assert named(endless) == [("I6", None)]


def test_i6_an_end_without_a_name_or_with_something_open() -> None:
    """An outcome outside the closed set; a call that nobody waited for."""
    nameless = kept()
    assert nameless.run.result is not None
    nameless.run.result = nameless.run.result.model_copy(update={"outcome": "oops"})
    assert named(nameless) == [("I6", None)]
    open_ = kept()
    of(open_, "look").end = None
    assert named(open_) == [("I6", "key-look")]


# --- I9 and I11: afterwards -----------------------------------------------------------------------


def test_i9_a_history_that_does_not_replay() -> None:
    """Whatever the replay has found."""
    broken = kept()
    broken.unreplayable = {"1234.json": "TMPRL1100"}
    assert named(broken) == [("I9", None)]


def test_i11_what_outlives_a_run() -> None:
    """A process, and an effect more than two seconds after the end."""
    alive = kept()
    alive.living = ["17 python"]
    assert named(alive) == [("I11", None)]
    late = kept()
    late.arrivals = [*late.arrivals[:-1], arrival(3, "mail", time=END + 2.5)]
    assert named(late) == [("I11", "key-mail")]
    soon = kept()
    soon.arrivals = [*soon.arrivals[:-1], arrival(3, "mail", time=END + 1.5)]
    assert named(soon) == []
