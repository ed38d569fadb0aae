"""A conversation that outgrows the model's window goes on in a shorter view, and loses nothing."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import pytest
from structlog.testing import capture_logs

from activities import shorten
from activities.results import extract
from tests.prose import prose
from tests.restoring import RestoringRun
from tests.rig import Rig, RigFactory, until
from turnkeeper import Limits, tool
from turnkeeper.entries import Entry, Position, message, result
from turnkeeper.epoch import ARTIFACTS_NAMED, reference
from turnkeeper.spec import ContextPolicy, HistoryPolicy, ModelSpec
from turnkeeper.testing import Exchange, Reply, call, calls, status, text
from turnkeeper.testing.provider import reply, thinking, unknown_delta
from turnkeeper.usage import Usage

WINDOW = 20_000
PATIENT = Limits(turns=1_000, consecutive_errors=100, repetition=100)
SUMMARY = "## Decisions\nNone.\n## Unresolved work\nRead on.\n## Evidence\nPages were read."


@tool(effect="read")
def page(number: int, size: int = 2_000) -> str:
    """Read a page of a report."""
    return f"page {number}: {prose(number, size)}"


def reading(
    turns: int,
    *,
    size: int = 2_000,
    says: str = "",
    summary: Callable[[int], Reply] = lambda _: text(SUMMARY),
    thinks: bool = False,
) -> Callable[[Exchange], Reply]:
    """A script that reads page after page: which one is next stands in the last result."""
    asked = 0

    def script(x: Exchange) -> Reply:
        nonlocal asked
        if x.wants_summary:
            asked += 1
            return summary(asked)
        last = re.match(r"page (\d+)", x.last_results[0].text) if x.last_results else None
        number = int(last[1]) + 1 if last else 0
        if number >= turns:
            return text("Read.")
        parts = [thinking(f"Page {number} is next.")] if thinks else []
        parts += [text(says)] if says else []
        return reply([*parts, call("page", {"number": number, "size": size})])

    return script


async def everything(rig: Rig, turns: int) -> list[Entry]:
    """The transcript, which holds each page once and in order."""
    entries = (await rig.transcript()).entries
    read = [e.value["text"] for e in entries if e.kind == "result"]
    assert [int(re.match(r"page (\d+)", t)[1]) for t in read] == list(range(turns))  # type: ignore[index]
    assert read[3] == page.function(3, 2_000)
    assert Position().after(entries).entries == len(entries) == 2 * turns + 2
    return entries


async def held(rig: Rig) -> None:
    """What always holds: nothing was refused, no workflow task failed."""
    assert not rig.provider.rejections
    assert await rig.task_failures() == 0
    assert max(r.tokens or 0 for r in rig.provider.requests) <= WINDOW


async def test_a_long_conversation_goes_on_from_summaries(rig: RigFactory) -> None:
    """Three windows full: few epochs, no request too large, the whole transcript kept."""
    async with rig(reading(100), tools=[page], limits=PATIENT, provider={"window": WINDOW}) as r:
        result = await r.run("Read the report.")
        assert result.outcome == "completed"
        assert 3 <= result.epochs <= 12
        # The summary that was prepared is the one that is used: its tail fits when the time comes.
        scheduled = [e.activity_task_scheduled_event_attributes for e in await r.events()]
        asked = [s.activity_type.name for s in scheduled].count("run.shorten")
        assert asked == result.epochs - 1
        entries = await everything(r, 100)
        assert result.transcript == Position().after(entries)
        begun = (await r.transcript()).epochs
        assert sorted(begun) == list(range(2, result.epochs + 1))
        assert sorted(begun.values()) == [begun[n] for n in sorted(begun)]
        exported = await r.agents.export(r.ids[-1])
        assert {epoch.number: epoch.entries for epoch in exported.epochs} == begun
        assert all(summary.text and summary.usage.total for summary in exported.summaries)
        charged = [generation.usage for generation in exported.generations]
        charged += [summary.usage for summary in exported.summaries]
        assert functools.reduce(Usage.plus, charged) == result.usage
        await held(r)


@pytest.mark.parametrize("thinks", [False, True], ids=["plain", "thinking"])
@pytest.mark.long
async def test_the_state_and_history_suffice_for_a_shortened_run(
    rig: RigFactory, thinks: bool
) -> None:
    """Restored before each step, and over many continue-as-new, it is the same run; no thinking
    block is sent back that is bound to another view."""
    async with rig(
        reading(60, thinks=thinks),
        tools=[page],
        limits=PATIENT,
        history=HistoryPolicy(events=60),
        workflow=RestoringRun,
        provider={"window": WINDOW},
    ) as r:
        result = await r.run("Read the report.")
        assert result.outcome == "completed"
        assert result.epochs > 2
        await everything(r, 60)
        assert len(await r.carried()) > 5
        await held(r)


async def test_a_shortened_view_is_found_again_by_another_worker(
    rig: RigFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is cached: each view is read from its opening, the segments and history."""
    monkeypatch.setattr("activities.views.Views.keep", lambda *_: None)
    async with rig(
        reading(40),
        tools=[page],
        limits=PATIENT,
        history=HistoryPolicy(events=90),
        provider={"window": WINDOW},
    ) as r:
        result = await r.run("Read the report.")
        assert (result.outcome, result.epochs > 2) == ("completed", True)
        await everything(r, 40)
        await held(r)


@pytest.mark.long
async def test_results_that_were_used_become_references_first(rig: RigFactory) -> None:
    """Where that frees enough no summary is asked for, and the whole text can still be read."""
    async with rig(
        reading(60, says="Noted."), tools=[page], limits=PATIENT, provider={"window": WINDOW}
    ) as r:
        result = await r.run("Read the report.")
        assert (result.outcome, result.epochs > 1) == ("completed", True)
        events = await r.events()
        kinds = [
            e.activity_task_scheduled_event_attributes.activity_type.name
            for e in events
            if e.HasField("activity_task_scheduled_event_attributes")
        ]
        assert "run.shorten" in kinds
        await everything(r, 60)
        await held(r)


BAD_SUMMARIES = {
    "empty": lambda _: text("  "),
    "too long": lambda _: text(SUMMARY + "x" * 20_000),
    "no headings": lambda _: text("All is well."),
    "a tool call": lambda _: call("page", {"number": 0}),
    "cut": lambda _: text(SUMMARY, stop_reason="max_tokens"),
    "refused by the provider": lambda _: status(400),
}


@pytest.mark.parametrize(
    "summary",
    [
        pytest.param(summary, id=name, marks=[] if name in ("cut", "empty") else pytest.mark.long)
        for name, summary in BAD_SUMMARIES.items()
    ],
)
async def test_without_a_usable_summary_the_last_turns_stay(
    rig: RigFactory, summary: Callable[[int], Reply]
) -> None:
    """Two tries for each epoch; then earlier turns are left out as they are, and kept."""
    summaries = 0

    def counted(number: int) -> Reply:
        nonlocal summaries
        summaries = number
        return summary(number)

    async with rig(
        reading(40, summary=counted), tools=[page], limits=PATIENT, provider={"window": WINDOW}
    ) as r:
        result = await r.run("Read the report.")
        assert (result.outcome, result.epochs > 1) == ("completed", True)
        assert 2 <= summaries <= 2 * result.epochs
        await everything(r, 40)
        assert max(q.tokens or 0 for q in r.provider.requests) <= WINDOW
        assert not r.provider.rejections


async def test_recent_asks_for_no_summary(rig: RigFactory) -> None:
    """The policy `recent` only leaves earlier turns out."""
    summaries: list[int] = []

    def counted(number: int) -> Reply:
        summaries.append(number)
        return text(SUMMARY)

    script = reading(40, summary=counted)
    policy = ContextPolicy(mode="recent", keep_turns=4)
    async with rig(
        script, tools=[page], limits=PATIENT, context=policy, provider={"window": WINDOW}
    ) as r:
        result = await r.run("Read the report.")
        assert (result.outcome, result.epochs > 1, summaries) == ("completed", True, [])
        await everything(r, 40)
        await held(r)


async def test_a_view_that_is_never_shortened_ends_by_name(rig: RigFactory) -> None:
    """The policy `all`: the provider's refusal is the run's end."""
    async with rig(
        reading(40),
        tools=[page],
        limits=PATIENT,
        context=ContextPolicy(mode="all"),
        provider={"window": WINDOW},
    ) as r:
        result = await r.run("Read the report.")
        assert (result.outcome, result.epochs) == ("context_overflow", 1)


@pytest.mark.long
async def test_the_opening_holds_the_task_and_the_summary(rig: RigFactory) -> None:
    """What was asked for is repeated word for word, in every epoch."""
    seen: list[str] = []

    def script(x: Exchange) -> Reply:
        if not x.wants_summary and x.prompt not in seen:
            seen.append(x.prompt)
        return inner(x)

    inner = reading(80)
    async with rig(script, tools=[page], limits=PATIENT, provider={"window": WINDOW}) as r:
        result = await r.run("Read the report on needle 4711.")
        assert result.epochs == len(seen) > 2
        for number, opening in enumerate(seen[1:], 1):
            assert "The task:\nRead the report on needle 4711." in opening, number
            assert SUMMARY in opening
        await held(r)


@pytest.mark.parametrize("covers", ["what is not shown", "the first of them"])
@pytest.mark.long
async def test_a_summary_outlives_an_epoch_that_gets_none(rig: RigFactory, covers: str) -> None:
    """The last one that was written stays in every later opening, which says that it covers the
    beginning alone; also if it covered too little for the first one."""
    written = 0
    openings: list[str] = []

    def summary(number: int) -> Reply:
        nonlocal written
        in_vain = openings[1:] if covers == "what is not shown" else number > 1
        written += not in_vain
        return text("None." if in_vain else f"{SUMMARY} ({written})")

    inner = reading(80, summary=summary)

    def script(x: Exchange) -> Reply:
        if not x.wants_summary and x.prompt not in openings:
            openings.append(x.prompt)
        return inner(x)

    # Begun early, it covers little of what there is when the window is full.
    context = ContextPolicy(soft=0.6 if covers == "what is not shown" else 0.2)
    async with rig(
        script, tools=[page], limits=PATIENT, context=context, provider={"window": WINDOW}
    ) as r:
        result = await r.run("Read the report.")
        assert result.epochs == len(openings) > 3
        assert f"Summary of {covers}" in openings[1]
        for opening in openings[2:]:
            assert "Summary of the first of them; there is none of the others" in opening
        assert all(f"{SUMMARY} ({written})" in opening for opening in openings[1:])
        await everything(r, 80)
        await held(r)


@pytest.mark.long
async def test_attempts_at_a_summary_whose_reply_is_unusable_are_bounded_and_charged(
    rig: RigFactory,
) -> None:
    """As a generation's: three of each, and what they may have cost counts."""
    summaries = 0

    def unusable(number: int) -> Reply:
        nonlocal summaries
        summaries = number
        return reply([thinking("\ud800"), text(SUMMARY)])

    async with rig(
        reading(25, summary=unusable), tools=[page], limits=PATIENT, provider={"window": WINDOW}
    ) as r:
        result = await r.run("Read the report.")
        assert (result.outcome, result.epochs, summaries) == ("completed", 2, 6)
        # Each sent a good part of the window.
        assert result.usage.estimated_tokens > 6 * WINDOW / 4
        await everything(r, 25)


async def test_a_summary_is_asked_for_whole_where_streams_are_unusable(rig: RigFactory) -> None:
    """As a generation is: the first attempt fails, and is charged, the second brings it."""
    streamed: list[bool] = []
    prompts: list[str] = []
    inner = reading(25, summary=lambda _: unknown_delta(text(SUMMARY), after=4))

    def script(x: Exchange) -> Reply:
        if x.wants_summary:
            streamed.append(x.stream)
        prompts.append(x.prompt)
        return inner(x)

    async with rig(script, tools=[page], limits=PATIENT, provider={"window": WINDOW}) as r:
        result = await r.run("Read the report.")
        assert (result.outcome, result.epochs) == ("completed", 2)
        assert streamed == [True, False] * (len(streamed) // 2)
        assert result.usage.estimated_tokens > 0
        assert SUMMARY in prompts[-1]


@pytest.mark.parametrize("window", [12_000, 40_000], ids=["too small", "large enough"])
@pytest.mark.long
async def test_a_summariser_that_could_not_read_the_view_is_not_asked(
    rig: RigFactory, window: int
) -> None:
    """Its window is asked for when the run begins; the agent's own model takes its place."""
    summarised: list[str] = []
    inner = reading(60)

    def script(x: Exchange) -> Reply:
        if x.wants_summary:
            summarised.append(x.body["model"])
        return inner(x)

    models = {"own": {"max_input_tokens": WINDOW}, "other": {"max_input_tokens": window}}
    context = ContextPolicy(summariser=ModelSpec(name="other", max_output_tokens=4_000))
    agent: dict[str, Any] = {"model": ModelSpec(name="own"), "context": context}
    with capture_logs() as lines:
        async with rig(
            script, tools=[page], limits=PATIENT, provider={"models": models}, **agent
        ) as r:
            result = await r.run("Read the report.")
            assert result.outcome == "completed"
            await held(r)
    asked = {"other"} if window > WINDOW else {"own"}
    assert set(summarised) == asked
    told = [line for line in lines if "the summariser's window is too small" in line["event"]]
    assert [(line["summariser"], line["window"]) for line in told] == (
        [] if window > WINDOW else [("other", window)]
    )


async def test_no_turn_waits_for_a_summary(rig: RigFactory) -> None:
    """It is written beside the turns, and is there when the window is full."""
    course: list[str] = []
    inner = reading(60, size=600, summary=lambda _: text(SUMMARY, delay=0.5))

    def script(x: Exchange) -> Reply:
        course.append("summary" if x.wants_summary else "turn")
        return inner(x)

    async with rig(script, tools=[page], limits=PATIENT, provider={"window": WINDOW}) as r:
        result = await r.run("Read the report.")
        assert (result.outcome, result.epochs) == ("completed", 2)
        assert course.count("summary") == 1
        names = [
            e.activity_task_scheduled_event_attributes.activity_type.name
            for e in await r.events()
            if e.HasField("activity_task_scheduled_event_attributes")
        ]
        began, ended = names.index("run.summarise"), names.index("run.shorten")
        assert names[began:ended].count("run.generate") > 3


@pytest.mark.long
async def test_turns_go_on_beside_a_slow_summary_when_the_history_is_long(rig: RigFactory) -> None:
    """Continuing as new waits for the summary, and no turn does."""
    slow = reading(30, summary=lambda _: text(SUMMARY, delay=4))
    async with rig(
        slow,
        tools=[page],
        limits=PATIENT,
        context=ContextPolicy(soft=0.2),
        history=HistoryPolicy(events=60),
        provider={"window": WINDOW},
    ) as r:
        assert (await r.run("Read the report.")).outcome == "completed"
        beside = [_turns_beside_summary(events) for events in await r.executions()]
        # There is room for five in a history of that length.
        assert max(beside) >= 8, beside
        await held(r)


def _turns_beside_summary(events: list[Any]) -> int:
    """Generations asked for while a summary was being written, that of a run's end not counted."""
    names = {
        e.event_id: e.activity_task_scheduled_event_attributes.activity_type.name
        for e in events
        if e.HasField("activity_task_scheduled_event_attributes")
    }
    begun = [i for i, name in names.items() if name == "run.summarise"]
    ended = [
        e.event_id
        for e in events
        if names.get(e.activity_task_completed_event_attributes.scheduled_event_id)
        == "run.summarise"
    ]
    return sum(
        name == "run.generate" and any(b < i < d for b, d in zip(begun, ended, strict=False))
        for i, name in names.items()
    )


async def test_a_summary_that_covers_too_little_is_used_if_there_is_no_better(
    rig: RigFactory,
) -> None:
    """What was summarised is not lost because a further summary fails."""
    seen: list[str] = []

    def script(x: Exchange) -> Reply:
        seen.append(x.prompt)
        # Long after the summary was made, and in one go: its tail does not fit.
        last = x.last_results[0].text if x.last_results else ""
        if last.startswith("page 19:"):
            return calls([("page", {"number": n, "size": 9_000}) for n in range(20, 24)])
        return text("Read.") if len(x.last_results) == 4 else inner(x)

    inner = reading(20, size=1_300, summary=lambda n: text(SUMMARY if n == 1 else "No."))
    policy = ContextPolicy(soft=0.3)
    async with rig(
        script, tools=[page], limits=PATIENT, context=policy, provider={"window": WINDOW}
    ) as r:
        result = await r.run("Read the report.")
        assert (result.outcome, result.epochs) == ("completed", 2)
        assert SUMMARY in seen[-1]
        await held(r)


@tool(effect="once")
def pay(note: str) -> str:
    """Pay."""
    return f"receipt 4711 for {len(note)}"


async def test_a_limit_outlives_a_last_answer_that_does_not_fit(rig: RigFactory) -> None:
    """The run had reached its limit: it ends so, and not as one that failed."""
    script = [call("page", {"number": 0}), call("pay", {"note": "w" * 60_000}), text("Never.")]
    limits = Limits(turns=2, on_limit="answer")
    async with rig(script, tools=[page, pay], limits=limits, provider={"window": WINDOW}) as r:
        result = await r.run("Read the report.")
        assert (result.outcome, result.reason) == ("turn_limit", "2 of 2 turns used")
        await held(r)


async def test_the_last_results_of_a_run_that_just_continued_are_told(rig: RigFactory) -> None:
    """It ends before another generation: what its last call returned is in its state alone."""

    def script(x: Exchange) -> Reply:
        if x.turn == 3:
            return call("pay", {"note": "w" * 60_000})
        return call("page", {"number": x.turn, "size": 300})

    async with rig(
        script,
        tools=[page, pay],
        limits=PATIENT,
        history=HistoryPolicy(events=50),
        context=ContextPolicy(mode="recent"),
        provider={"window": WINDOW},
    ) as r:
        result = await r.run("Read the report.")
        assert result.outcome == "context_overflow"
        assert len(await r.executions()) > 1
        told = (await r.transcript()).entries
        assert told[-1].value["text"] == "receipt 4711 for 60000"
        assert sum(e.kind == "result" for e in told) == 4


def test_what_a_reference_stands_for_is_named() -> None:
    """Both what lies there, and what that told of itself; not if the summary names it."""
    whole, told = "a" * 64, "b" * 64
    long = result("c1", "export", extract("x" * 10_000, 1_000, told))
    named = shorten._artifacts([reference(long, whole), message(f"artifact {'c' * 64}")], "")
    assert named == f"{whole}, {told}"
    assert shorten._artifacts([reference(long, whole)], f"See {told}.") == whole


async def test_hashes_of_a_tools_own_are_no_artifacts(rig: RigFactory) -> None:
    """However many it prints: what an opening names, and the next one again, are the artifacts that
    the runtime told of, a long result and bytes."""
    openings: list[str] = []

    @tool(effect="read")
    def export() -> list[Any]:
        """Something too large to show."""
        return ["x" * 60_000, b"\xff\x00"]

    @tool(effect="read")
    def sums(number: int) -> str:
        """As sha256sum prints them."""
        named = [f"{number}-{i}" for i in range(25)]
        return "\n".join(f"{sha256(n.encode()).hexdigest()}  {n}" for n in named)

    def script(x: Exchange) -> Reply:
        if x.wants_summary:
            return text(SUMMARY)
        if "was shortened" in x.prompt and x.prompt not in openings:
            openings.append(x.prompt)
        if x.turn == 0:
            return call("export")
        return text("Done.") if len(openings) == 2 else call("sums", {"number": x.turn})

    async with rig(script, tools=[export, sums], limits=PATIENT, provider={"window": WINDOW}) as r:
        assert (await r.run("Read.", id="run")).outcome == "completed"
        await held(r)
        for opening in openings:
            named = opening.partition(ARTIFACTS_NAMED)[2].split(", ")
            stored = [await r.store.get("run", artifact) for artifact in named]
            assert b"\xff\x00" in stored
            assert any(b"x" * 60_000 in data for data in stored)
    assert len(openings) == 2


@pytest.mark.parametrize("how", ["stop", "cancel"])
async def test_a_summary_does_not_hold_up_an_end(rig: RigFactory, how: str) -> None:
    """A run that waits for one is stopped, or cancelled, at once; what it may have cost counts."""
    begun: list[int] = []

    def never(number: int) -> Reply:
        begun.append(number)
        return text(SUMMARY, delay=60)

    async with rig(
        reading(100, summary=never), tools=[page], limits=PATIENT, provider={"window": WINDOW}
    ) as r:
        run = await r.start("Read the report.")
        await until(lambda: begun)

        async def waits() -> bool:
            return "shorter view" in (await run.status()).waiting_for

        await until(waits)
        if how == "stop":
            await run.stop("enough")
        else:
            await r.client.get_workflow_handle(run.id).cancel()
        result = await run.result(check=False, timeout=60)
        assert result.outcome == ("stopped" if how == "stop" else "cancelled")
        if how == "stop":
            assert result.usage.estimated_tokens == ContextPolicy().checkpoint_tokens
        assert await r.task_failures() == 0
