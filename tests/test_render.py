"""What people read: nothing foreign may break a line, a terminal or the markdown around it."""

from __future__ import annotations

import json
import os
import re
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnkeeper.approvals import Approvals, arguments_of, shortened
from turnkeeper.commands.show import _used, folding
from turnkeeper.contract import (
    ApprovalAsked,
    ContextStatus,
    RunRequest,
    RunResult,
    RunStatus,
    UnknownCall,
)
from turnkeeper.entries import Entry, admit, message, result
from turnkeeper.render import (
    CARD_BYTES,
    SUMMARY_BYTES,
    approval_text,
    call_summary,
    generate_summary,
    result_lines,
    run_card,
    step_line,
    transcript_text,
    unknown_text,
    usage_text,
    waiting_for,
)
from turnkeeper.spec import AgentSpec, Approval, ModelSpec, ToolSpec
from turnkeeper.state import Call, Line, Phase, RunState
from turnkeeper.text import arguments_line, escaped
from turnkeeper.usage import TurnUsage, Usage
from turnkeeper.waits import Held
from workflows import options

TEXT = st.text(st.characters(codec="utf-8"), max_size=400)
CONTROLS = {chr(c) for c in (*range(32), *range(127, 160))} - {"\t", "\n"}
# And what turns the direction of writing: letters in another order forge as well.
CONTROLS |= {
    chr(c) for c in (0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
}


def state_of(**fields: Any) -> RunState:
    """A run of the agent `finance` that waits for its first reply."""
    spec = AgentSpec(name="finance", model=ModelSpec(name="claude-sonnet-5-5"), instructions="x")
    made = {
        "request": RunRequest(agent="finance", prompt="How much?"),
        "key_base": "k",
        "started": 1_760_000_000.0,
        "spec": spec,
    }
    return RunState.model_validate(made | fields)


def call_of(tool: str = "search", **fields: Any) -> Call:
    """A call that runs."""
    made = {
        "index": 0,
        "call_id": "c",
        "tool": tool,
        "arguments": {"q": "annual revenue 2025"},
        "key": "k",
        "status": "running",
    }
    return Call.model_validate(made | fields)


def test_summaries_name_the_turn_and_what_is_asked() -> None:
    """The timeline reads as the story: which turn, which model, which arguments."""
    assert generate_summary(3, "claude-sonnet-5-5") == "turn 3 · claude-sonnet-5-5"
    assert call_summary(1, {"q": "annual revenue 2025"}) == 'turn 1 · q="annual revenue 2025"'
    assert call_summary(2, {}) == "turn 2"


@pytest.mark.parametrize(
    ("approval", "known", "told"),
    [
        ("never", {}, "turn 1 · order=7"),
        ("always", {}, "turn 1 · is it allowed? · order=7"),
        ("asks", {}, "turn 1 · is it allowed? if so, run · order=7"),
        ("asks", {"asks_only": True}, "turn 1 · is it allowed? · order=7"),
        ("always", {"granted": "digest"}, "turn 1 · order=7"),
        ("always", {"tool": "trusted"}, "turn 1 · order=7"),
    ],
)
def test_the_timeline_tells_the_question_from_the_call(
    approval: Approval, known: dict[str, Any], told: str
) -> None:
    """What has only asked whether it may be run is no call that was made, although it is done."""
    pay, trusted = (
        ToolSpec(name=name, description="Pay.", input_schema={}, effect="read", approval=approval)
        for name in ("pay", "trusted")
    )
    spec = AgentSpec(name="a", model=ModelSpec(name="m"), instructions="x", tools=[pay, trusted])
    state = state_of(spec=spec, turn=1, approvals=Approvals(trusted={"trusted": "definition"}))
    call = call_of(**{"tool": "pay", "arguments": {"order": 7}, **known})
    assert options.execute(state, call, pay)["summary"] == told


@given(st.dictionaries(TEXT, st.one_of(TEXT, st.integers(), st.lists(TEXT, max_size=5))))
def test_summaries_are_short_and_on_one_line(arguments: dict[str, Any]) -> None:
    """Temporal refuses long summaries, which would fail the workflow task: ours never are."""
    summary = call_summary(7, arguments)
    assert len(summary.encode()) <= SUMMARY_BYTES
    assert not CONTROLS & set(summary)
    assert "\n" not in summary


def test_large_arguments_are_cut_by_what_is_shown_of_them() -> None:
    """An argument of a megabyte is neither quoted whole nor hides the shorter ones before it."""
    line = arguments_line({"id": 7, "body": "x" * 1_000_000}, 100)
    assert line.startswith('id=7 body="xxx')
    assert len(line) <= 100


def test_the_card_says_what_the_run_waits_for_and_how_to_stop_it() -> None:
    """An operator sees phase, turn, running calls, limits used, last turns, and what to type."""
    state = state_of(
        phase=Phase.EXECUTE,
        turn=2,
        calls=[call_of()],
        lines=[Line(turn=1, text="I look it up")],
        turn_usage=[TurnUsage(turn=1, tokens=1_234, cost_usd=0.012)],
        usage=Usage(input_tokens=200, cache_read_tokens=1_000, output_tokens=34),
    )
    card = run_card(state, "finance-1")
    assert "**EXECUTE**" in card
    assert "waiting for results of search" in card
    assert '`search q="annual revenue 2025"`' in card
    assert "- turns: 2 of 50" in card
    assert "- tokens: 1,234, 83% of input cached\n" in card
    assert "- turn 1: I look it up · 1,234 tokens · $0.0120\n" in card
    assert "`starter.py stop finance-1 --reason ...`" in card


def test_the_card_of_an_ended_run_names_the_outcome_and_no_way_to_stop_it() -> None:
    """What can no longer be done is not offered."""
    card = run_card(state_of(outcome="turn_limit", reason="8 of 8 turns used"))
    assert "turn\\_limit" in card
    assert "8 of 8 turns used" in card
    assert "stop" not in card


@given(TEXT, TEXT)
def test_a_model_cannot_forge_markdown_in_the_card(said: str, argument: str) -> None:
    """Headings, links, code and HTML of a model stay text in the one line they are shown in."""
    hostile = f"# x\n[a](http://b) <script> ``` ![i](j) {said}"
    honest = run_card(
        state_of(phase=Phase.EXECUTE, calls=[call_of()], lines=[Line(turn=1, text="x")])
    )
    forged = run_card(
        state_of(
            phase=Phase.EXECUTE,
            calls=[call_of(arguments={"q": f"` **x** {argument}"})],
            lines=[Line(turn=1, text=hostile)],
        )
    )
    assert forged.count("\n") == honest.count("\n")
    line = next(n for n in forged.splitlines() if n.startswith("- turn 1:"))
    assert "\\[a\\](http" in line
    assert "\\<script\\>" in line
    running = next(n for n in forged.splitlines() if n.startswith("- running:"))
    assert running.count("`") == 2
    assert not CONTROLS & set(forged)


def test_bodies_in_the_card_are_laid_out_as_the_ui_does_and_have_a_place_for_a_name() -> None:
    """Each is JSON in a block of its own, which no id of a model ends early."""
    ended = "```\n"
    unsure = UnknownCall(turn=1, call_id=ended, tool="pay", key="k", status="waiting")
    asked = ApprovalAsked(id="a1", turn=1, call_id="c", tool="refund", effect="once")
    waits = call_of("ask_person", call_id=ended, status="waiting", awaits="answer")
    waits.held = Held(since=0, question="Which?")
    card = run_card(
        state_of(unknown=[unsure], calls=[waits], approvals=Approvals(asked=[asked])), "r-1"
    )
    blocks = re.findall(r"with:\n\n```\n(.+?)\n```(?=\n|$)", card, re.DOTALL)
    bodies = [json.loads(block) for block in blocks]
    assert blocks == [json.dumps(body, indent=2) for body in bodies]
    you = {"actor": "your name"}
    assert bodies == [
        {"approval": "a1"} | you,
        {"approval": "a1", "reason": "..."} | you,
        {"call_id": ended, "text": "..."} | you,
        {"call_id": ended, "landed": True, "result": "..."} | you,
        {"reason": "..."} | you,
    ]
    assert card.count("```") == 2 * len(bodies) + len(bodies[2:4])


@pytest.mark.parametrize(
    ("actor", "verified", "told"),
    [
        (None, False, "nobody named (unverified)"),
        ("ann", False, "ann (unverified)"),
        ("ann", True, "ann"),
    ],
)
def test_who_decided_is_told_with_how_far_it_is_known(
    actor: str | None, verified: bool, told: str
) -> None:
    """Of an approval and of a settled call alike; that nobody is named is no reason to say less."""
    asked = ApprovalAsked(
        id="a1",
        turn=1,
        call_id="c",
        tool="refund",
        effect="once",
        status="approved",
        actor=actor,
        verified=verified,
    )
    assert f"was approved by {told} (approval a1)" in approval_text(asked)
    if not verified:
        settled = UnknownCall(
            turn=1, call_id="c", tool="pay", key="k", status="landed", actor=actor
        )
        assert unknown_text(settled) == f"pay (call c) took effect, says {told}"


def test_the_card_is_bounded_whatever_the_run_holds() -> None:
    """The card travels in each answer to a query."""
    long = "😀" * 5_000
    state = state_of(
        phase=Phase.EXECUTE,
        calls=[call_of(index=i, arguments={"q": long}) for i in range(32)],
        lines=[Line(turn=i, text="*" * 5_000) for i in range(500)],
        request=RunRequest(agent="finance", prompt=long),
    )
    assert len(run_card(state, "r" * 200).encode()) <= CARD_BYTES


def test_what_is_waited_for_is_named_in_each_phase() -> None:
    """A run that stands still says for what, in every phase."""
    assert waiting_for(state_of()) == "a reply of claude-sonnet-5-5"
    assert "run.load_agent" in waiting_for(state_of(spec=None))
    two = [call_of(), call_of("calculator", index=1, status="done")]
    assert waiting_for(state_of(phase=Phase.EXECUTE, calls=two)) == "results of search"
    assert waiting_for(state_of(phase=Phase.RESUME)) == "a worker"
    assert waiting_for(state_of(outcome="completed")) == ""


def conversation() -> list[Entry]:
    """A question, a reply with a call, its result."""
    content = [
        {"type": "thinking", "thinking": "where?", "signature": "s"},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "c", "name": "search", "input": {"q": "x", "limit": 3}},
        {"type": "novelty", "data": 1},
    ]
    reply = admit("reply", {"role": "assistant", "content": content}, dialect="anthropic-messages")
    return [message("How much?\nExactly."), reply, result("c", "search", "none", error=True)]


def test_the_transcript_shows_everything_said_in_order() -> None:
    """Texts, thinking, calls with all arguments, errors and unknown blocks; nothing is cut."""
    assert transcript_text(conversation()).splitlines() == [
        "   1  message     How much?",
        "                  Exactly.",
        "   2  reply       (thinking) where?",
        "                  I look.",
        '                  -> search q="x" limit=3',
        "                  (novelty)",
        "   3  search      error: none",
    ]
    assert "x" * 100_000 in transcript_text([message("x" * 100_000)])


def test_the_transcript_says_where_an_epoch_begins() -> None:
    """From there on the model no longer has all that stands above."""
    shown = transcript_text(conversation(), epochs={2: 2}).splitlines()
    assert shown[-2] == "      --          epoch 2: from here on the model sees less of the above"
    assert shown[-1] == "   3  search      error: none"


def test_long_results_are_folded_for_people() -> None:
    """By lines, and one long line by its length; what was said is never cut."""
    said, long = message("word\n" * 50), result("c", "read", "line\n" * 50)
    shown = transcript_text([said, long], fold=20)
    assert shown.count("word") == 50
    assert shown.count("line") == 20
    assert shown.endswith("[151 characters more: show --full]")
    assert transcript_text([result("c", "read", "x" * 5_000)], fold=20).count("x") == 2_000
    for whole in ("x\n" * 20, "x" * 2_000, "x" * 2_300, "x\n" * 23):
        assert "--full" not in transcript_text([result("c", "read", whole.rstrip())], fold=20)


def test_only_a_person_reads_folded_results(tmp_path: Path) -> None:
    """On a terminal, unless all of it was asked for; never in a file or pipe."""
    _, terminal = os.openpty()
    with os.fdopen(terminal, "w") as person, (tmp_path / "shown").open("w") as file:
        assert folding(person, full=False) == 20
        assert folding(person, full=True) is None
        assert folding(file, full=False) is None


def test_long_names_keep_the_transcript_aligned() -> None:
    """All texts begin in one column, that of the longest name; a closed run waits for nothing."""
    entries = [message("Hi"), result("c", "look_up_the_weather", "sun\nshine")]
    assert transcript_text(entries, unanswered=["slow: not finished"], ended=True).splitlines() == [
        "   1  message              Hi",
        "   2  look_up_the_weather  sun",
        "                           shine",
        "      unread               slow: not finished",
    ]


def test_estimated_tokens_are_marked() -> None:
    """What was charged for a reply that was cut off is a guess, and shown as one."""
    usage = Usage(input_tokens=100, output_tokens=20, estimated_tokens=30)
    assert usage_text(usage) == "150 tokens (50 out, 30 estimated)"


def test_the_share_of_the_cache_is_that_of_the_input() -> None:
    """Written tokens were not read from it; without any nothing is said."""
    usage = Usage(input_tokens=100, cache_read_tokens=600, cache_write_tokens=100, output_tokens=50)
    assert usage.cache_share == 0.75
    assert usage_text(usage) == "850 tokens (50 out, 75% of input cached)"
    assert Usage().cache_share == 0
    assert usage_text(Usage(input_tokens=100)) == "100 tokens (0 out)"


@given(TEXT)
def test_the_transcript_has_no_control_characters(said: str) -> None:
    """Escape sequences of a tool or a model never reach the terminal."""
    shown = transcript_text(
        [message("\x1b[2J\x9b31m\u202e" + said), result("c", "\x1b]0;x\x07", said)]
    )
    assert not CONTROLS & set(shown)


# --- what nobody sees -----------------------------------------------------------------------------

UNSEEN = "\u00ad\u034f\u200b\u200c\u2060\ufe0f\ufeff\U000e0041"


def asked_of(arguments: str, **fields: Any) -> ApprovalAsked:
    """A call that waits for a person."""
    made = {"id": "a1", "turn": 1, "call_id": "c", "tool": "pay", "effect": "once"}
    return ApprovalAsked.model_validate(made | {"arguments": arguments, "why": "w"} | fields)


def test_every_format_character_is_escaped() -> None:
    """Whatever Unicode calls one: no font shows it."""
    formats = [c for c in map(chr, range(0x110000)) if unicodedata.category(c) == "Cf"]
    assert len(formats) > 150
    for c in [*formats, *UNSEEN]:
        assert escaped(c).isascii()
        assert json.loads(f'"{escaped(c)}"') == c
    assert escaped('a\n\t\\ "é" 日本 😀') == 'a\n\t\\ "é" 日本 😀'


@given(TEXT)
def test_arguments_that_differ_by_what_nobody_sees_look_different(said: str) -> None:
    """Also from a text that spells the escape."""
    shown = {
        arguments_line({"order": f"o-1{tail}"}, 2_000)
        for tail in ("", "\u200b", r"\u200b", "\u2060")
    }
    assert len(shown) == 4
    line = arguments_line({said: [UNSEEN, {said: UNSEEN}], "q": said}, 2_000)
    assert not set(UNSEEN) & set(line)


def test_a_person_who_decides_sees_every_character() -> None:
    """In the card, and in what the commands print: a call that waits, and one that is unknown."""
    asked = asked_of(f'{{"to":"ann{UNSEEN}"}}', why=f"of {UNSEEN}", refused=f"x{UNSEEN}")
    unknown = UnknownCall(turn=1, call_id="c", tool="pay", key="k", arguments=UNSEEN, what=UNSEEN)
    state = state_of(approvals={"asked": [asked.model_dump()]}, unknown=[unknown.model_dump()])
    use = {"type": "tool_use", "name": "pay", "input": {"to": f"ann{UNSEEN}"}}
    transcript = transcript_text([admit("reply", {"content": [use]})])
    for shown in (run_card(state), approval_text(asked), transcript, arguments_of(asked, 100)):
        assert r"\u200b" in shown
        assert not set(UNSEEN) & set(shown)


def test_arguments_that_are_cut_say_so() -> None:
    """How much is missing, at the first cut and at every further one, and where it is."""
    asked = asked_of("x" * 1_000, left_out=216)
    assert arguments_of(asked, 1_000) == "x" * 1_000 + "… [216 characters more: starter.py show]"
    card = run_card(state_of(approvals={"asked": [asked.model_dump()]}))
    assert f"`pay {'x' * 400}… [816 characters more: starter.py show]`" in card
    assert "… [916 characters more: starter.py show]" in approval_text(asked)
    assert (shortened(asked, 200).left_out, len(shortened(asked, 200).arguments)) == (1_016, 200)
    assert arguments_of(asked_of('{"n":1}'), 1_000) == '{"n":1}'


def test_replies_that_make_no_sense_are_shown_all_the_same() -> None:
    """The reader of a transcript never fails on a provider's odd value."""
    for value in ({}, {"content": "x"}, {"content": [1, {"type": "tool_use", "input": []}]}):
        assert transcript_text([admit("reply", value)])


def test_a_result_is_told_in_two_lines() -> None:
    """The outcome with its sums, and the reason where there is one."""
    told = RunResult(outcome="turn_limit", reason="1 of 1\nturns", turns=1, calls=2, seconds=1.25)
    assert result_lines(told) == [
        "turn_limit · 1 turn · 2 tool calls · 0 tokens (0 out) · 1.2 s",
        "reason: 1 of 1 turns",
    ]
    assert result_lines(told.model_copy(update={"epochs": 3}))[0].endswith("1.2 s · 3 epochs")


def test_an_open_run_says_how_full_its_window_is() -> None:
    """As the run card does, with the epoch from the second one on."""
    usage, context = Usage(input_tokens=100), ContextStatus(tokens=10_638, window=12_000, epoch=3)
    asked = {"agent": "a", "model": "m", "phase": "GENERATE", "turn": 1, "waiting_for": "x"}
    status = RunStatus.model_validate({**asked, "usage": usage, "context": context})
    told = "100 tokens (0 out) · window 10,638 of 12,000 tokens, epoch 3"
    assert _used(status) == told
    assert _used(status.model_copy(update={"context": None})) == "100 tokens (0 out)"


def test_steps_align_and_are_coloured_only_where_asked() -> None:
    """The same columns with and without colour; long texts wrap below their own beginning."""
    plain = step_line("turn 1", "PARSE", "one two " * 40, colour=False, width=80)
    assert plain.splitlines()[0].startswith("turn 1    PARSE     one two")
    assert all(n[:20].isspace() and n[20] in "ot" for n in plain.splitlines()[1:])
    assert len(plain.splitlines()) == 3
    assert max(len(n) for n in plain.splitlines()) <= 80
    coloured = step_line("", "PARSE", "x", colour=True, width=80)
    assert "\x1b[35mPARSE   \x1b[0m  x" in coloured
