"""What the page of a run tells, in which order, and how much of it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.page.runs import (
    START,
    asks,
    at,
    called,
    generated,
    page_of,
    replied,
    returned,
    run_of,
    said,
    status_of,
    text,
)
from tests.page.test_escaping import Skeleton
from turnkeeper.contract import (
    ApprovalAsked,
    Awaited,
    ContextStatus,
    ForkRequest,
    RunRequest,
    RunResult,
    UnknownCall,
)
from turnkeeper.export import ExportedEpoch, ExportedMessage, ExportedSummary, RunExport
from turnkeeper.outcomes import OUTCOMES
from turnkeeper.page.chart import Column, Panel, Series, chart
from turnkeeper.page.conversation import FIRST_TURNS, LAST_TURNS
from turnkeeper.page.document import _OUTCOMES
from turnkeeper.page.ink import PAGE_CHARACTERS, TEXT_CHARACTERS, span
from turnkeeper.page.story import story_of
from turnkeeper.spec import Limits
from turnkeeper.usage import Usage

THOUGHT = {"type": "thinking", "thinking": "Hm."}


def sent(seconds: float, name: str, **body: Any) -> ExportedMessage:
    """An update."""
    return ExportedMessage(at=at(seconds), name=name, how="update", body=body)


def told(run: RunExport, **status: Any) -> str:
    """The text of its page, on one line."""
    shown = re.sub(r"(?s)<style>.*?</style>", "", page_of(run, **status))
    return " ".join(Skeleton(re.sub(r"<(?!/)", " <", shown)).text.split())


def in_order(words: str, *parts: str) -> None:
    """Each of the parts stands there after the one before."""
    place = 0
    for part in parts:
        assert part in words[place:], f"{part!r} is not in {words[place:]!r}"
        place = words.index(part, place) + len(part)


def asked(call_id: str, status: Any, **fields: Any) -> ApprovalAsked:
    """What a person had to allow, from the third second of the run on."""
    made = {
        "id": f"approval-{call_id}",
        "turn": 1,
        "call_id": call_id,
        "tool": "pay",
        "effect": "idempotent",
        "arguments": '{"amount": 240}',
        "why": "240 is more than 100",
        "since": START.timestamp() + 3,
        "expires": START.timestamp() + 7_200,
    }
    return ApprovalAsked(**(made | fields), status=status)


# --- the order ------------------------------------------------------------------------------------


def test_a_run_is_told_in_its_order() -> None:
    """Outcome, limits, chart, then turn by turn what was said, called, sent and changed."""
    run = run_of(
        [
            said("How much is it?"),
            replied(
                "r1", {"type": "thinking", "thinking": "Hm."}, text("I look."), asks("c1", q="x")
            ),
            returned("c1", "about 40"),
            said("Be exact.", id="m-1", actor="ann"),
            replied("r2", text("42.")),
        ],
        generations=[generated(1, "r1"), generated(2, "r2", stop_reason="end_turn")],
        calls=[called("c1", attempts=2)],
        messages=[
            sent(14, "raise_limits", limits={"turns": 50}, actor="bo", reason="it is long"),
            ExportedMessage(
                at=at(15),
                name="send",
                how="update",
                body={"message_id": "m-1", "text": "Be exact."},
            ),
        ],
        summaries=[ExportedSummary(turn=1, at=at(16), entries=2, text="So far: little.")],
        epochs=[ExportedEpoch(number=2, at=at(17), entries=3, how="summary", left_out=2)],
        request=RunRequest(agent="finance", prompt="-", metadata={"tenant": "acme"}),
    )
    in_order(
        told(run),
        "q-17 completed the model ended its turn",
        "Agent finance Tenant acme Model",
        "Limits used Turns 2 of 50 Time 1 min 40 s of 1 d",
        "Turn by turn Tokens in from cache 600 new 200",
        "Answer turn 2",
        "Conversation Turn 1 09:00:10 400 tokens in (75% cached) 20 out model 1.0 s tools 0.50 s",
        "Prompt How much is it?",
        "Thinking 3 characters Hm. I look.",
        'search read ok 0.50 s 2 attempts q "x" about 40',
        "Limits raised by bo: it is long 09:00:14 turns: 50",
        "A summary of earlier turns was written 09:00:16 So far: little.",
        "Epoch 2: from here on the model sees less of the above (entries left out: 2;",
        "Turn 2 09:00:20",
        "Message from ann 09:00:15 Be exact.",
        "42.",
        "About this run Namespace default",
    )


def test_a_turn_tells_its_waiting_apart() -> None:
    """Overlapping calls are counted once; what is neither model nor tools was waited."""
    run = run_of(
        [said("Go."), replied("r1", asks("c1"), asks("c2")), replied("r2", text("Done."))],
        generations=[generated(1, "r1"), generated(2, "r2")],
        calls=[called("c1"), called("c2", scheduled=at(12.25), ended=at(12.75))],
    )
    first, second = story_of(run, status_of(run)).turns
    assert (first.model_seconds, first.tool_seconds, first.waited_seconds) == (1, 0.75, 8.25)
    assert (second.seconds, second.waited_seconds) == (80, 79)
    assert "waited 8.2 s" in told(run)


def test_what_a_run_cost() -> None:
    """In sum, by turn, as bars and of its limit; nothing is said of it where it is not known."""
    usage = Usage(input_tokens=100, output_tokens=20, cost_usd=0.002)
    entries = [said("Go."), replied("r1", text("A.")), replied("r2", text("B."))]
    run = run_of(
        entries,
        generations=[generated(n, f"r{n}", usage=usage) for n in (1, 2)],
        limits=Limits(cost_usd=0.05),
    )
    in_order(
        told(run),
        "Cost $0.0040",
        "Limits used",
        "Cost $0.0040 of $0.0500",
        "Turn by turn",
        "Cost $0.0040 most $0.0020",
        "Turn 1 09:00:10 100 tokens in 20 out $0.0020",
    )
    assert "Cost" not in told(run_of(entries, generations=[generated(1, "r1")]))


def test_what_did_not_become_a_reply() -> None:
    """Generations that failed, were cut off for a message or not kept stand in their turns."""
    run = run_of(
        [said("Go."), replied("r1", text("Done."))],
        generations=[
            generated(1, None, status="cancelled"),
            generated(2, "other", stop_reason="max_tokens"),
            generated(2, "r1", scheduled=at(25), ended=at(26), attempts=3),
            generated(3, None, status="failed", failure="connection refused", attempts=7),
        ],
    )
    in_order(
        told(run),
        "Errors turn 3",
        "Turn 1",
        "The generation was cancelled",
        "Turn 2",
        "A reply was not kept (stop reason max_tokens)",
        "The reply took 3 attempts. Done.",
        "Turn 3",
        "The model did not answer in 7 attempts: connection refused",
    )


def test_equal_replies_keep_their_turns() -> None:
    """They have equal digests, and come in the order of their generations."""
    run = run_of(
        [replied("same", asks("c1")), returned("c1", "x"), replied("same", asks("c2"))],
        generations=[generated(1, "same"), generated(4, "same")],
    )
    turns = story_of(run, status_of(run)).turns
    assert [(t.number, len(t.calls)) for t in turns] == [(1, 1), (4, 1)]


def test_what_another_run_said() -> None:
    """A fork counts on from the turns that it began with, and names the run."""
    run = run_of(
        [said("Go."), replied("old", text("A.")), said("No, B."), replied("new", text("B."))],
        generations=[generated(2, "new")],
        request=RunRequest(agent="finance", prompt="B", fork=ForkRequest(workflow_id="w", turn=2)),
    )
    in_order(told(run), "A fork of w before its turn 2", "Turn 1", "A.", "Turn 2", "No, B.", "B.")


# --- calls ----------------------------------------------------------------------------------------


def unknown(status: Any, actor: str | None = None) -> dict[str, Any]:
    """Fields of a run whose call had an unknown outcome."""
    call = UnknownCall(
        turn=1, call_id="c1", tool="pay", key="k", what="timed out", status=status, actor=actor
    )
    return {"unknown": [call], "calls": [called("c1", status="timed_out", effect="once")]}


CALLS: dict[str, tuple[dict[str, Any], str]] = {
    "ok": ({"calls": [called("c1")]}, "ok"),
    "error": ({"calls": [called("c1", status="error")]}, "error"),
    "invalid": ({"calls": [called("c1", status="invalid")]}, "invalid arguments"),
    "stop": ({"calls": [called("c1", status="stop")]}, "ended the run"),
    "timed out": ({"calls": [called("c1", status="timed_out", failure="late")]}, "timed out"),
    "cut off": ({"calls": [called("c1", status="open", ended=None)]}, "not finished"),
    "running": ({"calls": [called("c1", status="open", ended=None)], "result": None}, "running"),
    "not begun": ({"result": None}, "not begun"),
    "never begun": ({}, "not run"),
    "unknown": (unknown("open"), "outcome unknown"),
    "settled": (unknown("landed", "ann"), "took effect"),
    "not landed": (unknown("not_landed"), "did not take effect"),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_became_of_a_call(name: str) -> None:
    """Each end has its word."""
    fields, word = CALLS[name]
    written = page_of(run_of([said("Go."), replied("r1", asks("c1", "pay"))], **fields))
    assert re.findall(r'class="chip \w+">([^<]+)<', written)[-1] == word


def test_who_settled_an_unknown_outcome() -> None:
    """The page says who, and how it came about."""
    run = run_of([said("Go."), replied("r1", asks("c1", "pay"))], **unknown("landed", "ann"))
    in_order(told(run), "Outcome unknown turn 1", "It took effect, says ann. timed out")


@pytest.mark.parametrize(
    ("status", "verb", "words"),
    [
        ("approved", "approve", "Approved by ann (unverified) 09:00:44 after 41.0 s"),
        ("denied", "deny", "Denied by ann (unverified) 09:00:44 after 41.0 s: too much"),
        ("expired", None, "Nobody decided in time"),
        ("withdrawn", None, "Nobody decided: the run ended"),
    ],
)
def test_who_decided_a_call_when_and_why(status: Any, verb: str | None, words: str) -> None:
    """The person, whether anybody verified that, the time that it took, and the reason."""
    person = {"actor": "ann", "reason": "too much" if status == "denied" else ""} if verb else {}
    run = run_of(
        [said("Go."), replied("r1", asks("c1", "pay", amount=240))],
        result=RunResult(outcome="completed", approvals=[asked("c1", status, **person)]),
        messages=[sent(44, verb, approval="approval-c1")] if verb else [],
        generations=[generated(1, "r1")],
        calls=[called("c1", status="needs_approval")],
    )
    shown = told(run)
    in_order(shown, "Decided by people turn 1", "Asked because 240 is more than 100.", words)
    assert "Errors" not in shown
    # It is told with the call, not once more as a message.
    assert "Approved 0" not in shown
    assert "Denied 0" not in shown


def test_an_open_run_says_so_and_how_to_answer() -> None:
    """It is not over; what it waits for stands on top, with the commands that decide it."""
    run = run_of(
        [said("Go."), replied("r1", asks("c1", "pay", amount=240))],
        result=None,
        generations=[generated(1, "r1")],
        calls=[called("c1", status="needs_approval")],
    )
    shown = told(
        run,
        waiting_for="a person to allow pay",
        approvals=[asked("c1", "waiting")],
        awaited=[Awaited(kind="answer", question="Which?", call_id="c2", update="answer")],
        context=ContextStatus(tokens=3_000, window=12_000, epoch=1),
        usage=Usage(input_tokens=5),
    )
    in_order(
        shown,
        "not over when this page was made: EXECUTE, turn 2",
        "It waits for a person to allow pay.",
        "starter.py approve q-17 approval-c1",
        "starter.py deny q-17 approval-c1",
        "starter.py answer q-17 c2 '...'",
        "Time 1 h of 1 d",
        "Window 3,000 of 12,000",
        "pay idempotent waits for a person",
        "Waits for a person until 11:00:00",
    )


def test_a_result_that_the_model_did_not_read() -> None:
    """It is shown, and said to be unread; so is a message."""
    run = run_of(
        [said("Go."), replied("r1", asks("c1"))],
        calls=[called("c1")],
        unread=[returned("c1", "too late")],
        messages=[
            ExportedMessage(
                at=at(20), name="send", how="signal", body={"text": "Stop!", "actor": "bo"}
            )
        ],
        generations=[generated(1, "r1")],
    )
    in_order(
        told(run),
        "The model did not read it. too late",
        "Unread message by bo 09:00:20 Stop!",
    )


def test_a_run_that_ended_before_it_began() -> None:
    """Its prompt and its end are there, without a chart or limits."""
    run = run_of(
        result=RunResult(outcome="unknown_agent", reason="no agent fnance"),
        request=RunRequest(agent="fnance", prompt="How much?"),
        limits=None,
    )
    shown = told(run)
    in_order(shown, "unknown agent no worker knows an agent of that name", "no agent fnance")
    in_order(shown, "Conversation Prompt How much?")
    assert "Limits used" not in shown
    assert "Turn by turn" not in shown


def test_what_is_missing_is_said() -> None:
    """A page that lacks something says so on top."""
    shown = told(run_of(missing=["the transcript after entry 7: segment ab is gone"]))
    in_order(shown, "not complete. It lacks the transcript after entry 7", "Conversation")


def test_every_outcome_has_words() -> None:
    """Also those that Temporal makes."""
    assert set(OUTCOMES) | {"terminated", "timed_out", "failed"} == set(_OUTCOMES)


# --- bounds ---------------------------------------------------------------------------------------


def test_a_text_that_is_too_long_is_cut_and_counted() -> None:
    """A line of a megabyte, in a message, a result and an argument."""
    line = "x" * 1_000_000
    run = run_of(
        [said(line), replied("r1", text(line), asks("c1", q=line)), returned("c1", line)],
        calls=[called("c1")],
    )
    written = page_of(run)
    assert len(written) < 4 * TEXT_CHARACTERS + 30_000
    assert written.count("960,000 characters more are not on this page.") == 4


def test_a_page_is_bounded_and_says_so() -> None:
    """Many long texts: all of them begin, and the last ones are short."""
    results = [returned(f"c{n}", f"<{n}>" + "&" * TEXT_CHARACTERS) for n in range(200)]
    run = run_of([said("Go."), replied("r1", *(asks(f"c{n}") for n in range(200))), *results])
    written = page_of(run)
    assert len(written) < 5 * PAGE_CHARACTERS + 500_000
    assert "&lt;199&gt;" in written
    assert written.count("characters more are not on this page") == 200


def test_of_very_many_turns_the_first_and_the_last_are_shown() -> None:
    """The chart has them all, a few to a bar; what is left out is named."""
    count = FIRST_TURNS + LAST_TURNS + 600
    run = run_of(
        [replied(f"r{n}", text(f"reply {n}.")) for n in range(1, count + 1)],
        generations=[generated(n, f"r{n}") for n in range(1, count + 1)],
    )
    shown = told(run)
    in_order(
        shown, "7 turns a bar", "reply 100.", "Turns 101 to 700 are not on this page", "reply 701."
    )
    assert "reply 101." not in shown
    written = page_of(run)
    links = set(re.findall(r'href="#([^"]+)"', written))
    assert links <= set(re.findall(r'id="([^"]+)"', written))
    assert written.count("<rect") < 1_500


@pytest.mark.parametrize("what", ["calls", "arguments", "messages"])
def test_very_many_things_of_a_turn(what: str) -> None:
    """Two hundred are shown, and the others counted."""
    blocks, heard = [text("Hm.")], [said("Go.")]
    if what == "calls":
        blocks = [asks(f"c{n}") for n in range(5_000)]
    elif what == "arguments":
        blocks = [asks("c1", **{f"k{n}": "x" for n in range(5_000)})]
    else:
        heard = [said(f"message {n}", id=f"m{n}") for n in range(4_999)]
    run = run_of([*heard, replied("r1", *blocks)], generations=[generated(1, "r1")])
    written = page_of(run)
    assert "4,800 more" in written
    assert len(written) < 200_000


def test_an_image_stands_on_the_page_once() -> None:
    """However often it was returned; one that was not read is named."""
    fields = {"media_type": "image/png", "width": 640, "height": 400, "bytes": 70}
    image, other = {"artifact": "ab12", **fields}, {"artifact": "cd34", **fields}
    run = run_of(
        [
            replied("r1", asks("c1"), asks("c2"), asks("c3")),
            returned("c1", "", images=[image]),
            returned("c2", "", images=[image, other]),
            returned("c3", "", images=[{"artifact": "no image"}]),
        ]
    )
    written = page_of(run, {"ab12": "data:image/png;base64,AAAA"})
    assert written.count("data:image/png;base64,AAAA") == 1
    assert written.count("Image, shown above: 640 x 400 png, 70 bytes, artifact ab12") == 1
    assert written.count("Image, not on this page: 640 x 400 png, 70 bytes, artifact cd34") == 1


# --- numbers --------------------------------------------------------------------------------------


def bars(values: list[float]) -> list[tuple[str, float]]:
    """The tone and the height of each bar of a chart."""
    columns = [Column(n, f"#turn-{n}") for n in range(1, len(values) + 1)]
    drawn = chart(columns, [Panel("P", [Series("s", "in", values)], str)])
    found = re.findall(r'height="([\d.]+)" class="(in|gap)"', drawn)
    return [(tone, float(height)) for height, tone in found]


def test_bars_are_as_high_as_their_values() -> None:
    """The highest fills its panel; zero has none."""
    assert bars([1, 0, 4, 2]) == [("in", 25), ("in", 100), ("in", 50)]


def test_one_that_is_far_too_high_is_cut() -> None:
    """The others stay visible, and the bar shows that it is longer; among a few none is."""
    assert bars([1, 1_000]) == [("in", 0.1), ("in", 100)]
    assert bars([1.0] * 20 + [1_000]) == [("in", 50)] * 20 + [("in", 100), ("gap", 8)]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0, "0.00 s"),
        (0.42, "0.42 s"),
        (4.2, "4.2 s"),
        (59.96, "60.0 s"),
        (60, "1 min"),
        (200, "3 min 20 s"),
        (3_600, "1 h"),
        (86_400 * 2 + 5 * 3_600, "2 d 5 h"),
    ],
)
def test_times_are_in_their_two_largest_units(seconds: float, words: str) -> None:
    """As people say them."""
    assert span(seconds) == words
