"""The page of a run: what became of it, its limits, its turns as a chart, then all that was said.

Sections stand in the order in which `starter.py show` prints them. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from turnkeeper.page.chart import Column, Panel, Series, chart
from turnkeeper.page.conversation import FIRST_TURNS, LAST_TURNS, Conversation, anchor
from turnkeeper.page.ink import Ink, clock_of, count, span
from turnkeeper.page.markup import Html, join, tag
from turnkeeper.page.story import Story, Turn
from turnkeeper.page.style import STYLE
from turnkeeper.render import approval_text, person_awaited
from turnkeeper.suggestion import Suggestion, deciding, ending_waits, settling
from turnkeeper.text import dollars, one_line

__all__ = ["page"]

POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'"
)
"""Were there ever a way for a script or an address into the page: nothing runs, nothing loads."""
_LISTED = 30
"""Turns, calls and the like that are listed."""
_LINE = 1_000


def page(story: Story, images: Mapping[str, str]) -> str:
    """The whole file; `images` are data: URLs by artifact."""
    ink = Ink()
    run = story.run
    title = f"{one_line(run.id, 100)} · {one_line(run.agent, 64)}"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", title),
        tag("style", Html(STYLE)),
    )
    sections = [
        _header(story),
        _waiting(story),
        _limits(story),
        _chart(story.turns),
        _look_at(story),
        _conversation(story, images, ink),
        _footer(story),
    ]
    body = tag("body", tag("main", *sections))
    return Html("<!doctype html>\n") + tag("html", head, body, lang="en") + "\n"


# --- what became of it ----------------------------------------------------------------------------


class _Became(NamedTuple):
    words: str
    tone: str


_OUTCOMES = {
    "completed": _Became("the model ended its turn", "ok"),
    "turn_limit": _Became("the limit on turns was reached", "warn"),
    "token_limit": _Became("the limit on tokens was reached", "warn"),
    "cost_limit": _Became("the limit on cost was reached", "warn"),
    "invalid_output": _Became("no answer was of the agent's type", "warn"),
    "time_limit": _Became("the limit on time was reached", "warn"),
    "error_limit": _Became("too many tool calls failed", "warn"),
    "repetition": _Became("the same calls came again and again", "warn"),
    "refused": _Became("the model declined", "warn"),
    "truncated": _Became("the reply was cut off and could not be mended", "warn"),
    "stopped": _Became("a person or a tool ended it", "warn"),
    "cancelled": _Became("cancelled through Temporal", "warn"),
    "invalid_request": _Became("the request was refused", "bad"),
    "unknown_agent": _Became("no worker knows an agent of that name", "bad"),
    "model_rejected": _Became("the model's provider refused the request", "bad"),
    "model_unavailable": _Became("the model did not answer", "bad"),
    "context_overflow": _Became("the conversation outgrew the model's window", "bad"),
    "outcome_unknown": _Became("nobody can tell whether a call took effect", "bad"),
    "state_lost": _Became("a stored part of it is missing or was changed", "bad"),
    "terminated": _Became("terminated through Temporal", "bad"),
    "timed_out": _Became("it ran into a time limit of Temporal", "bad"),
    "failed": _Became("the workflow itself failed", "bad"),
}


def _header(story: Story) -> Html:
    run, result = story.run, story.run.result
    parts = [tag("p", "Agent run", class_="kicker"), tag("h1", one_line(run.id, 250))]
    if result is None:
        stands = f"{story.status.phase}, turn {story.status.turn:,}"
        parts.append(_outcome("not over", f"when this page was made: {stands}", "wait"))
    else:
        words, tone = _OUTCOMES.get(result.outcome, _Became("", "bad"))
        parts.append(_outcome(one_line(result.outcome, 64).replace("_", " "), words, tone))
        if result.reason:
            parts.append(tag("p", one_line(result.reason, _LINE), class_="reason"))
    rows = [tag("div", tag("dt", name), tag("dd", *said)) for name, *said in _facts(story)]
    parts.append(tag("dl", *rows, class_="facts"))
    if run.missing:
        lacks = "; ".join(one_line(what, _LINE) for what in run.missing[:_LISTED])
        parts.append(tag("p", f"This page is not complete. It lacks {lacks}.", class_="lacks"))
    return tag("header", *parts)


def _outcome(word: str, why: str, tone: str) -> Html:
    return tag("p", tag("span", word, class_=f"chip {tone}"), " ", why, class_="outcome")


def _facts(story: Story) -> list[tuple[str, str] | tuple[str, str, Html]]:
    """What there is to know of it at once."""
    run, usage = story.run, story.usage
    calls, turns = story.calls, [t for t in story.turns if t.number]
    errors = run.result.errors if run.result else sum(call.failed for call in calls)
    cached = f", {usage.cache_share:.0%} of input cached" if usage.cache_read_tokens else ""
    guess = f", {usage.estimated_tokens:,} estimated" if usage.estimated_tokens else ""
    until = f"until {clock_of(run.closed, run.started)}" if run.closed else "not over; in"
    cost = [("Cost", dollars(usage.cost_usd))] if usage.cost_usd is not None else []
    tenant = run.request.metadata.get("tenant") if run.request else None
    return [
        ("Agent", one_line(run.agent, 64)),
        *([("Tenant", one_line(tenant, 200))] if tenant else []),
        ("Model", one_line(run.model, 200) or "none yet"),
        ("When", clock_of(run.started), tag("small", f"{until} UTC")),
        ("How long", span(story.seconds)),
        ("Turns", f"{run.result.turns if run.result else len(turns):,}"),
        (
            "Tool calls",
            f"{run.result.calls if run.result else len(calls):,}",
            tag("small", count(errors, "error")),
        ),
        (
            "Tokens",
            f"{usage.total:,}",
            tag("small", f"{usage.all_input:,} in, {usage.output_tokens:,} out{guess}{cached}"),
        ),
        *cost,
    ]


def _waiting(story: Story) -> Html | None:
    """What an open run waits for, and how to answer it."""
    status = story.status
    if story.run.result is not None or not status.waiting_for:
        return None
    parts = [tag("p", f"It waits for {one_line(status.waiting_for, _LINE)}.")]
    run = story.run.id
    for asked in [a for a in story.approvals if a.status == "waiting"][:_LISTED]:
        parts.append(tag("p", f"Approval: {approval_text(asked)}"))
        parts += [_command(deciding(run, asked.id, allow=word)) for word in (True, False)]
    for call in [c for c in story.unknown if c.status == "waiting"][:_LISTED]:
        parts.append(tag("p", f"Unknown: {person_awaited([call])}"))
        parts += [_command(settling(run, call.call_id, landed=word)) for word in (True, False)]
    others = ending_waits(run, status.awaited, paused=status.paused is not None)
    parts += map(_command, others[:_LISTED])
    return tag("section", tag("h2", "Waiting"), *parts, class_="waiting")


def _command(suggested: Suggestion) -> Html:
    # Not whole: who reads the page is elsewhere.
    return tag("pre", f"{suggested.program} {suggested}", class_="wrap")


# --- limits ---------------------------------------------------------------------------------------


def _limits(story: Story) -> Html | None:
    result, status, run = story.run.result, story.status, story.run
    limits = (result.limits if result else None) or (
        status.limits if "limits" in status.model_fields_set else run.limits
    )
    if limits is None:
        return None
    turns = result.turns if result else status.turn
    bars = [
        _limit("Turns", turns, limits.turns, str),
        _limit("Time", story.seconds, limits.wall_seconds, span),
    ]
    if limits.tokens is not None:
        bars.append(_limit("Tokens", story.usage.total, limits.tokens, "{:,.0f}".format))
    if limits.cost_usd is not None:
        cost = story.usage.cost_usd or 0
        bars.append(_limit("Cost", cost, limits.cost_usd, dollars))
    if status.context is not None:
        window = status.context
        bars.append(_limit("Window", window.tokens, window.window, "{:,.0f}".format))
    return tag("section", tag("h2", "Limits used"), *bars, class_="limits")


def _limit(name: str, used: float, most: float, words: Callable[[float], str]) -> Html:
    share = min(used / most, 1) if most else 1
    tone = "full" if used >= most else ("near" if share >= 0.8 else "used")
    bar = tag(
        "svg",
        tag("rect", width=f"{max(share * 100, 0.6):.2f}", height=10, class_=tone),
        viewBox="0 0 100 10",
        preserveAspectRatio="none",
        aria_hidden="true",
    )
    told = tag("span", f"{words(used)} of {words(most)}", class_="told")
    return tag("div", tag("span", name), bar, told, class_="limit")


# --- the chart ------------------------------------------------------------------------------------


def _chart(turns: Sequence[Turn]) -> Html | None:
    turns = [t for t in turns if t.number]
    if not any(t.usage.total or t.seconds for t in turns):
        return None
    shown = {id(t) for t in (turns[:FIRST_TURNS] + turns[-LAST_TURNS:])}
    columns = [
        Column(t.number, f"#{anchor(t.number)}" if id(t) in shown else "#conversation", _tone(t))
        for t in turns
    ]
    usage = [t.usage for t in turns]
    tokens = "{:,.0f}".format
    panels = [
        Panel(
            "Tokens in",
            [
                Series("from cache", "cached", [u.cache_read_tokens for u in usage]),
                Series("new", "in", [u.input_tokens + u.cache_write_tokens for u in usage]),
            ],
            tokens,
        ),
        Panel("Tokens out", [Series("", "out", [u.output_tokens for u in usage])], tokens),
        Panel(
            "Time",
            [
                Series("model", "model", [t.model_seconds for t in turns]),
                Series("tools", "tools", [t.tool_seconds for t in turns]),
            ],
            span,
        ),
    ]
    if any(u.cost_usd is not None for u in usage):
        cost = Series("", "cost", [u.cost_usd or 0 for u in usage])
        panels.insert(2, Panel("Cost", [cost], dollars))
    return tag("section", tag("h2", "Turn by turn"), chart(columns, panels))


def _tone(turn: Turn) -> str:
    if turn.errors or any(c.unknown and c.unknown.status == "open" for c in turn.calls):
        return "bad"
    return "warn" if any(c.approval or c.unknown for c in turn.calls) else ""


def _look_at(story: Story) -> Html | None:
    """Links to the turns that a reader looks for."""
    turns, answer = story.turns, story.run.result is not None and story.run.result.answer
    rows = [
        _links("Errors", "bad", [t for t in turns if t.errors]),
        _links("Decided by people", "warn", [t for t in turns if any(c.approval for c in t.calls)]),
        _links("Outcome unknown", "bad", [t for t in turns if any(c.in_doubt for c in t.calls)]),
        _links("Answer", "ok", turns[-1:] if answer else []),
    ]
    found = [row for row in rows if row is not None]
    return tag("nav", *found) if found else None


def _links(name: str, tone: str, turns: Sequence[Turn]) -> Html | None:
    if not turns:
        return None
    links = [tag("a", f"turn {t.number:,}", href=f"#{anchor(t.number)}") for t in turns[:_LISTED]]
    more = len(turns) - _LISTED
    rest = f" and {more:,} more" if more > 0 else None
    key = tag("i", class_=f"key {tone}")
    return tag("p", key, tag("b", name), " ", join(links, " "), rest)


# --- what was said --------------------------------------------------------------------------------


def _conversation(story: Story, images: Mapping[str, str], ink: Ink) -> Html:
    request = story.run.request
    told = Conversation(story, images, ink).write()
    if not story.run.entries and request is not None and request.prompt:
        head = tag("p", tag("b", "Prompt"), class_="who")
        asked = tag("div", head, ink.prose(request.prompt), class_="said")
        told = join([asked, told])
    if not told:
        told = tag("p", "Nothing was said.", class_="mark")
    return tag("section", tag("h2", "Conversation"), told, id="conversation", class_="conversation")


def _footer(story: Story) -> Html:
    run = story.run
    request = run.request
    rows = [
        ("Namespace", run.namespace),
        ("Executions", ", ".join(run.run_ids[-_LISTED:])),
        ("Agent as pinned", run.spec_digest),
        ("Request key", (request.request_key or "") if request else ""),
        *(("Metadata: " + k, v) for k, v in (request.metadata.items() if request else ())),
    ]
    facts = [
        join([tag("dt", one_line(name, 90)), tag("dd", one_line(said, _LINE))])
        for name, said in rows
        if said
    ]
    made = f"Made by Turnkeeper {clock_of(run.exported)} UTC, as are all times here."
    about = tag("details", tag("summary", tag("span", "About this run")), tag("dl", *facts))
    return tag("footer", about, tag("p", made))
