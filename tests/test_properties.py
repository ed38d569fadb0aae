"""Properties of the pure core, over generated values: what holds for every input, not for one."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from pydantic_core import from_json, to_json

from turnkeeper.contract import GenerateOutput, RunRequest
from turnkeeper.converter import data_converter
from turnkeeper.entries import (
    MAX_DEPTH,
    MAX_INT_DIGITS,
    Entry,
    Position,
    admit,
    digest_of,
    message,
    result,
    strict_json,
    verify,
)
from turnkeeper.errors import AdmissionError
from turnkeeper.history import _Edge, _Walk
from turnkeeper.parse import Decision, ProposedCall, parse
from turnkeeper.spec import AgentSpec, Limits, ModelSpec, ToolSpec
from turnkeeper.state import Phase, RunState
from turnkeeper.text import (
    clip,
    clip_json,
    is_well_formed,
    json_size,
    one_line,
    printable,
    utf8_size,
    well_formed,
)
from turnkeeper.usage import Usage
from turnkeeper.view import View, call_ids

QUICK = settings(max_examples=300, deadline=None)
FEW = settings(max_examples=100, deadline=None)

any_text = st.text(st.characters(), max_size=60) | st.text(
    '\ud800\udfff\x00\x1b\n"é😀a', max_size=60
)
good_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
numbers = st.integers(-(10**40), 10**40) | st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | numbers | good_text
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(good_text, inner, max_size=4),
    max_leaves=20,
)
anything = st.recursive(
    scalars | any_text | st.floats(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(any_text, inner, max_size=4),
    max_leaves=20,
)


# --- PARSE --------------------------------------------------------------------------------------

field_names = st.sampled_from(["type", "id", "name", "input", "text", "content", "role"])
block_types = st.sampled_from(["text", "tool_use", "thinking", "server_tool_use", "future"])
blocks = st.dictionaries(field_names, anything, max_size=5).flatmap(
    lambda block: block_types.map(lambda type_: {**block, "type": type_})
)
contents = st.lists(blocks | anything, max_size=6)
replies = anything | contents.map(lambda content: {"role": "assistant", "content": content})
stop_reasons = (
    any_text
    | st.none()
    | st.sampled_from(
        [
            "end_turn",
            "tool_use",
            "max_tokens",
            "stop_sequence",
            "pause_turn",
            "compaction",
            "refusal",
            "model_context_window_exceeded",
        ]
    )
)


@QUICK
@given(replies, stop_reasons, anything, st.dictionaries(any_text, any_text), st.booleans())
def test_parse_is_total(
    value: Any, stop: str | None, details: Any, refused: dict[str, str], can_grow: bool
) -> None:
    """Whatever a reply holds, PARSE answers with one of its decisions, consistent in itself."""
    entry = Entry.model_construct(kind="reply", value=value, digest="d", dialect="x")
    reply = GenerateOutput.model_construct(
        entry=entry, stop_reason=stop, stop_details=details, refused_calls=refused
    )
    parsed = parse(reply, can_grow=can_grow)
    assert parsed.decision in Decision
    assert (parsed.decision is Decision.CALLS) == bool(parsed.calls)
    assert parsed.decision is not Decision.GROW or can_grow
    if parsed.decision is Decision.ANSWER:
        assert parsed.text.strip()
    if parsed.decision not in (Decision.CALLS, Decision.ANSWER, Decision.CONTINUE):
        assert parsed.reason
    if stop == "max_tokens":
        # A cut call may look whole: it is never run.
        assert all(c.refused for c in parsed.calls)


# --- RESUME -------------------------------------------------------------------------------------

TOOLS = {
    "read": ToolSpec(name="read", description="", input_schema={}, effect="read"),
    "write": ToolSpec(name="write", description="", input_schema={}, effect="idempotent"),
    "once": ToolSpec(name="once", description="", input_schema={}, effect="once"),
}
plans = st.lists(
    st.tuples(
        st.sampled_from(["read", "read", "write", "once", "unknown"]),
        st.sampled_from(["ok", "ok", "error", "unknown"]),
        st.booleans(),
    ),
    min_size=1,
    max_size=9,
)
limits = st.builds(
    Limits,
    turns=st.integers(1, 6),
    calls_per_turn=st.integers(1, 8),
    parallel_calls=st.integers(1, 4),
    consecutive_errors=st.integers(1, 6),
    recent_errors=st.none() | st.integers(1, 5),
    recent_calls=st.integers(5, 8),
    repetition=st.integers(2, 4),
    tokens=st.none() | st.integers(1, 100),
)


def begun(bounds: Limits) -> RunState:
    """A run before its first generation."""
    return RunState(
        request=RunRequest(agent="a", prompt="p"),
        key_base="k",
        started=0,
        spec=AgentSpec(
            name="a",
            model=ModelSpec(name="m"),
            instructions="",
            tools=tuple(TOOLS.values()),
            limits=bounds,
        ),
        pending=[message("p")],
    )


def restored(state: RunState) -> RunState:
    """The state as another worker reads it."""
    return RunState.model_validate_json(state.model_dump_json(exclude_none=True))


def executed(state: RunState, plan: list[tuple[str, str, bool]], seed: int) -> list[list[int]]:
    """EXECUTE, with ends in an order of chance; asserts its rules. Which calls ran side by side."""
    chosen = random.Random(seed)
    beside: list[list[int]] = []
    running: list[int] = []
    for _ in range(10 * len(plan)):
        for ready in state.startable():
            assert ready.status == "proposed"
            ready.status = "running"
            running.append(ready.index)
        if not running:
            break
        beside.append(sorted(running))
        index = running.pop(chosen.randrange(len(running)))
        ended = state.calls[index]
        _, outcome, _ = plan[index]
        ended.finish(outcome, f"result {index}")  # type: ignore[arg-type]
        ended.finish("ok", "a second result is ignored")
    assert all(c.status == "done" for c in state.calls), "no progress"
    return beside


def turn(state: RunState, plan: list[tuple[str, str, bool]], seed: int) -> list[list[int]]:
    """One turn of the loop, from GENERATE on."""
    content = [
        {"type": "tool_use", "id": f"c{state.turn}_{i}", "name": name, "input": {"n": i}}
        for i, (name, _, _) in enumerate(plan)
    ]
    entry = admit("reply", {"role": "assistant", "content": content}, dialect="x")
    state.heard(GenerateOutput(entry=entry, stop_reason="tool_use", usage=Usage(output_tokens=7)))
    state.keep_reply()
    state.propose(
        [
            ProposedCall(
                call_id=f"c{state.turn}_{i}",
                tool=name,
                arguments={"n": i},
                refused="Not run: no." if refused and name != "unknown" else None,
            )
            for i, (name, _, refused) in enumerate(plan)
        ]
    )
    return executed(state, plan, seed)


@QUICK
@given(limits, plans, st.integers())
def test_execute_keeps_its_order(
    bounds: Limits, plan: list[tuple[str, str, bool]], seed: int
) -> None:
    """No mutating call beside another call, never too many at once, one result each, in order."""
    state = begun(bounds)
    beside = turn(state, plan, seed)
    for running in beside:
        assert len(running) <= bounds.parallel_calls
        if any(plan[i][0] != "read" for i in running):
            assert len(running) == 1
    ran = {i for running in beside for i in running}
    assert all(i < bounds.calls_per_turn for i in ran)
    assert all(plan[i][0] != "unknown" and not plan[i][2] for i in ran)
    failed = False
    for i, (name, outcome, refused) in enumerate(plan[: bounds.calls_per_turn]):
        if name != "read" and failed:
            assert i not in ran
        failed = failed or (
            name != "read"
            and (name == "unknown" or refused or (i in ran and outcome in ("error", "unknown")))
        )
    state.take_results()
    answered = [e.value["call_id"] for e in state.pending]
    assert answered == [f"c1_{i}" for i in range(len(plan))]
    assert state.total_calls == len(plan)
    assert state.calls == []


@FEW
@given(limits, st.lists(plans, min_size=1, max_size=6), st.integers(), st.integers(0, 400))
def test_a_state_restored_at_any_point_goes_on_the_same(
    bounds: Limits, turns: list[list[tuple[str, str, bool]]], seed: int, every: int
) -> None:
    """Serialised and read again between any two steps, a run ends with an equal state."""

    def run(keep: Any) -> RunState:
        state = keep(begun(bounds))
        for number, plan in enumerate(turns):
            turn(state, plan, seed + number)
            state = keep(state)
            state.take_results()
            state = keep(state)
            reached = state.limit_reached()
            if reached is not None:
                state.end(*reached)
                return state  # type: ignore[no-any-return]
            state.next_turn()
            state = keep(state)
        return state  # type: ignore[no-any-return]

    plain = run(lambda state: state)
    assert run(restored) == plain
    assert restored(plain) == plain
    # The arithmetic, said another way.
    done = turns[: plain.turn]
    assert plain.total_calls == sum(map(len, done))
    assert plain.usage.output_tokens == 7 * len(done)
    assert plain.turn <= bounds.turns
    if plain.outcome is None:
        assert plain.phase is Phase.GENERATE
        assert len(done) == len(turns)
    elif plain.outcome == "turn_limit":
        assert plain.turn == bounds.turns
    elif plain.outcome == "token_limit":
        assert bounds.tokens is not None
        assert plain.usage.total >= bounds.tokens
    assert len(plain.recent) <= max(bounds.consecutive_errors, bounds.recent_calls)


@FEW
@given(limits, plans, st.integers())
def test_a_call_in_flight_is_a_state(
    bounds: Limits, plan: list[tuple[str, str, bool]], seed: int
) -> None:
    """EXECUTE entered again with some calls done and others not comes to the same results."""
    whole = begun(bounds)
    turn(whole, plan, seed)
    halves = begun(bounds)
    turn(halves, plan, seed)
    # As if the second half had never been begun.
    for made in halves.calls[len(plan) // 2 :]:
        if made.index < bounds.calls_per_turn and made.tool in TOOLS and not plan[made.index][2]:
            made.status, made.outcome, made.entry = "proposed", None, None
    halves = restored(halves)
    executed(halves, plan, seed + 1)
    assert [c.outcome for c in halves.calls] == [c.outcome for c in whole.calls]
    assert [c.entry for c in halves.calls] == [c.entry for c in whole.calls]


# --- admission ----------------------------------------------------------------------------------


class Carrier(BaseModel):
    """Something with a JSON value in it."""

    value: Any
    unset: str | None = None


def same(a: Any, b: Any) -> bool:
    """Equal with types and key order."""
    return json.dumps(a) == json.dumps(b)


@QUICK
@given(json_values)
def test_admitted_values_survive_storage(value: Any) -> None:
    """Value, key order, nulls and digest are the same after every reader and writer we use."""
    entry = admit("message", {"text": value})
    assert verify(entry)
    stored = Entry.model_validate(from_json(to_json(entry, exclude_none=True)))
    assert same(stored.value, entry.value)
    assert verify(stored)
    payload = data_converter.payload_converter.to_payload(entry)
    read = data_converter.payload_converter.from_payload(payload, Entry)
    assert same(read.value, entry.value)
    assert read == entry
    carried = data_converter.payload_converter.from_payload(
        data_converter.payload_converter.to_payload(Carrier(value=[value])), Carrier
    )
    assert same(carried.value, [value])
    assert digest_of(carried.value) == digest_of([value])
    assert same(strict_json(to_json(value)), value)
    assert same(strict_json(json.dumps(value)), value)


@QUICK
@given(anything)
def test_admission_refuses_or_keeps(value: Any) -> None:
    """A value is kept as it is or refused by AdmissionError; nothing else is raised."""
    try:
        entry = admit("message", value)
    except AdmissionError:
        return
    assert same(from_json(to_json(entry.value)), value)


@QUICK
@given(st.binary(max_size=60) | st.text(max_size=60) | json_values.map(json.dumps))
def test_strict_json_reads_or_refuses(data: bytes | str) -> None:
    """Bytes from outside become a JSON value or an AdmissionError."""
    try:
        value = strict_json(data)
    except AdmissionError:
        return
    admit("message", value)


@pytest.mark.parametrize(
    "bad",
    [
        "NaN",
        "[Infinity]",
        "-Infinity",
        "1e999",
        '"\\ud800"',
        '{"\\udfff": 1}',
        '{"a": 1, "a": 1}',
        "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1),
        "[" * 100_000,
        "9" * 5_000,
        b"\xff\xfe",
        "",
        "{",
    ],
)
def test_strict_json_refuses(bad: str | bytes) -> None:
    """What readers disagree about, or cannot store, is refused by its name."""
    with pytest.raises(AdmissionError):
        strict_json(bad)


def test_the_bounds_of_admission_are_met() -> None:
    """The deepest value and the longest integer that are admitted survive, the next are refused."""
    deep: Any = "x"
    for _ in range(MAX_DEPTH):
        deep = [deep]
    longest = 10 ** (MAX_INT_DIGITS - 5)
    for value in (deep, longest, -longest):
        entry = admit("message", value)
        assert Entry.model_validate_json(to_json(entry, exclude_none=True)) == entry
    for value in ([deep], 10 ** (MAX_INT_DIGITS + 1), float("nan"), "\ud800", {1: 2}, b"x"):
        with pytest.raises(AdmissionError):
            admit("message", value)


# --- text ---------------------------------------------------------------------------------------


@QUICK
@given(any_text.map(lambda t: t * 9), st.integers(64, 400))
def test_clipped_text_is_within_its_bound(text: str, limit: int) -> None:
    """In bytes of UTF-8, or of JSON; well-formed; and untouched where it fits."""
    shown = clip(text, limit)
    assert is_well_formed(shown)
    assert utf8_size(shown) <= limit
    if utf8_size(well_formed(text)) <= limit:
        assert shown == well_formed(text)
    shown = clip_json(text, limit)
    assert json_size(shown) <= limit
    assert json_size(shown) == len(to_json(shown)) - 2
    if json_size(well_formed(text)) <= limit:
        assert shown == well_formed(text)


@QUICK
@given(any_text.map(lambda t: t * 9), st.integers(1, 100))
def test_one_line_is_one_bounded_line(text: str, limit: int) -> None:
    """No line break, no control character, no lone surrogate, at most so many characters."""
    line = one_line(text, limit)
    assert len(line) <= limit
    assert len(line.splitlines()) <= 1
    assert is_well_formed(line)
    assert printable(line) == line
    assert is_well_formed(well_formed(text))
    assert len(well_formed(text)) == len(text)


# --- views and walks ----------------------------------------------------------------------------


def said(number: int) -> Entry:
    """An entry of its own."""
    if number % 3 == 1:
        content = [{"type": "tool_use", "id": f"c{number}", "name": "n", "input": {}}]
        return admit("reply", {"role": "assistant", "content": content}, dialect="x")
    return result(f"c{number - 1}", "n", "é" * (number % 7)) if number % 3 else message(f"{number}")


@FEW
@given(st.integers(0, 25), st.integers(0, 25))
def test_a_view_knows_each_of_its_positions(length: int, cut: int) -> None:
    """A view holds exactly the positions on its way, and what is cut is as if never added."""
    entries = [said(n) for n in range(length)]
    view = View(entries)
    cut = min(cut, length)
    position = Position().after(entries[:cut])
    assert view.holds(position)
    assert view.position == Position().after(entries)
    shorter = view.up_to(position)
    fresh = View(entries[:cut])
    assert shorter.__dict__ == fresh.__dict__
    shorter.extend([message("another")])
    assert not view.holds(shorter.position)
    assert view.position == Position().after(entries)
    assert view.call_ids == {i for e in entries for i in call_ids(e)}


@FEW
@given(st.lists(st.integers(1, 3), min_size=1, max_size=12), st.integers(0, 12), st.integers())
def test_a_walk_finds_the_way_among_others(sizes: list[int], known: int, seed: int) -> None:
    """Following edges back gives the entries in order, whatever discarded replies lie beside."""
    chosen = random.Random(seed)
    edges: dict[Position, _Edge] = {}
    at, entries, places = Position(), list[Entry](), [Position()]
    for size in sizes:
        step = tuple(message(f"{chosen.random()}") for _ in range(size))
        if chosen.random() < 0.5:
            aside = message(f"discarded {chosen.random()}")
            edges[at.after([aside])] = _Edge(at, (aside,))
        edges[at.after(step)] = _Edge(at, step)
        at = at.after(step)
        entries += step
        places.append(at)
    earlier = View(entries[: places[min(known, len(sizes))].entries])
    walk = _Walk(at)
    while not walk.done(earlier):
        walk.step(edges[walk.at])
    view = walk.view(earlier)
    assert view.entries == entries
    assert view.position == at
