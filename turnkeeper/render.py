"""Runs as people read them: summaries, run card, transcript, steps. Pure.

Everything here shows foreign text (of a model, a tool, a caller), so everything passes
`turnkeeper.text`: no control character reaches a terminal, and no markdown of a model can pass for
ours. What the workflow calls (`run_card`, the summaries) is cheap and bounded.
"""

from __future__ import annotations

import json
import re
import shlex
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from turnkeeper import replies
from turnkeeper.approvals import arguments_of
from turnkeeper.contract import (
    LOAD_AGENT,
    ApprovalAsked,
    Awaited,
    Paused,
    PauseRequest,
    RunResult,
    UnknownCall,
)
from turnkeeper.control import Raised, paused_words
from turnkeeper.entries import Entry
from turnkeeper.media import ImageRef, images_of
from turnkeeper.state import Call, Line, Phase, RunState
from turnkeeper.suggestion import deciding, replying, resuming, settling
from turnkeeper.text import (
    arguments_line,
    clock,
    dollars,
    escaped,
    one_line,
    printable,
    seen_line,
    utf8_size,
    well_formed,
)
from turnkeeper.usage import Usage
from turnkeeper.waiting import in_words

SUMMARY_BYTES = 200
"""Temporal refuses a summary of more than 400."""
CARD_BYTES = 8_000
"""The card is an answer to a query and travels in each of them."""
_CARD_LINES = 8
_CARD_CALLS = 8

# What starts an emphasis, code, link, image, HTML, entity, table cell or formula inside a line. At
# the start of a line our own words stand, so `#`, `-` and `1.` have no meaning there.
_MARKDOWN = re.compile(r"([\\`*_\[\]<>|~&$])")


# --- summaries --------------------------------------------------------------------------------


def generate_summary(turn: int, model: str) -> str:
    """The summary of a generation: `turn 3 · claude-sonnet-5-5`.

    Temporal's UI puts the activity's type in front of it, as it does with calls.
    """
    return _cut(f"turn {turn} · {one_line(model, 80)}")


def call_summary(
    turn: int, arguments: Mapping[str, Any], key: str | None = None, *, question: str = ""
) -> str:
    """The summary of a tool call: `turn 1 · q="annual revenue 2025"`, the key at its end.

    `question`: of an activity that asks, or may ask, a person instead.
    """
    told = arguments_line(arguments, SUMMARY_BYTES)
    end = f" · key {key}" if key else ""
    start = " · ".join(part for part in (f"turn {turn}", question, told) if part)
    return _cut(start, SUMMARY_BYTES - utf8_size(end)) + end


def _cut(text: str, limit: int = SUMMARY_BYTES) -> str:
    if utf8_size(text) <= limit:
        return text
    return text.encode()[: limit - 3].decode("utf-8", "ignore") + "…"


# --- the run card -----------------------------------------------------------------------------


def run_card(state: RunState, workflow_id: str = "ID") -> str:
    """The run at a glance, as markdown of at most `CARD_BYTES` bytes, for Temporal's details."""
    asked = [f"Asked: {_md(state.request.prompt)}"] if state.request.prompt else []
    parts = [_headline(state), *asked, *_approvals(state, workflow_id)]
    parts += [_replying(a, workflow_id) for a in state.awaited()[:_CARD_CALLS] if a.update]
    parts += ["\n".join(_limits_used(state)), *_decided(state)]
    if (fork := state.request.fork) is not None:
        parts.insert(2, f"A fork of {_code(fork.workflow_id, 250)} before turn {fork.turn}.")
    if state.unknown:
        parts.append(_unknown(state, workflow_id))
    if state.control.raised:
        parts.append("**Limits raised**\n\n" + "\n".join(map(_raised, state.control.raised)))
    if state.control.pause is not None and state.outcome is None:
        parts.append(_paused(state, workflow_id))
    if state.lines:
        last = (_last_turn(state, line) for line in state.lines[-_CARD_LINES:])
        parts.append("**Last turns**\n\n" + "\n".join(last))
    if state.outcome is None:
        command = _code(f"starter.py stop {_word(workflow_id)} --reason ...", 250)
        parts.append(f"To stop it: {command}, or the update `stop` with{_body(reason='...')}")
    return _cut("\n\n".join(parts), CARD_BYTES)


def _last_turn(state: RunState, line: Line) -> str:
    used = state.used_in(line.turn)
    cost = "" if used is None or used.cost_usd is None else f" · {dollars(used.cost_usd)}"
    tokens = "" if used is None else f" · {used.tokens:,} tokens{cost}"
    return f"- turn {line.turn}: {_md(line.text)}{tokens}"


def waiting_for(state: RunState) -> str:
    """What the run waits for, in words; empty for a run that has ended."""
    if state.outcome is not None:
        return ""
    if state.spec is None:
        return f"the agent's definition ({LOAD_AGENT})"
    if state.sealing or (state.making_room and not state.switched_off):
        outgrown = "a shorter view, since the conversation has outgrown the model's window"
        return "the artifact store" if state.sealing else outgrown
    if told := _waits(state):
        return told
    if state.phase is Phase.GENERATE:
        held = state.control.held if state.control.waits else None
        off = resume_awaited(held) if held else one_line(state.switched_off, 300)
        off = off or state.outage.words
        return off or f"a reply of {one_line(state.spec.model.name, 80)}"
    open_calls = [one_line(c.tool, 64) for c in state.calls if c.status != "done"]
    if state.phase is Phase.EXECUTE and open_calls:
        more = len(open_calls) - _CARD_CALLS
        shown = ", ".join(open_calls[:_CARD_CALLS])
        return f"results of {shown}" + (f" and {more} more" if more > 0 else "")
    return "a worker"


def _waits(state: RunState) -> str:
    unsure, asked, awaited = state.waiting("outcome"), state.approvals.waiting, state.awaited()
    told = [person_awaited(unsure)] if unsure else []
    told += [approval_awaited(asked)] if asked else []
    return "; ".join([*told, *([awaited_words(awaited)] if awaited else [])])


def person_awaited(waiting: Sequence[Call | UnknownCall]) -> str:
    """What a run with waiting calls waits for, in words."""
    return in_words("outcome", [{"tool": c.tool, "call_id": c.call_id} for c in waiting])


def approval_awaited(asked: Sequence[ApprovalAsked]) -> str:
    """What a run waits for whose calls a person has to allow, in words."""
    return in_words("approval", [{"tool": a.tool, "id": a.id} for a in asked])


def resume_awaited(paused: Paused | PauseRequest) -> str:
    """What a paused run waits for, in words."""
    return f"a person to resume it, {paused_words(paused)}"


def awaited_words(awaited: Sequence[Awaited]) -> str:
    """What a run waits for that waits for somebody's words, or for a time."""
    return "; ".join(in_words(a.kind, [a.model_dump(mode="json")]) for a in awaited)


def _replying(one: Awaited, workflow_id: str) -> str:
    """How to say what the run waits for."""
    command = _code(f"starter.py {replying(workflow_id, one.call_id)}", 600)
    body = _body(**json.loads(one.body))
    if one.kind == "answer":
        asked = f"**Asked:** {_md(one.question, 500)}\n\n"
        return f"{asked}To answer: {command}, or the update `{one.update}` with{body}"
    return f"To send a message: {command}, or the update `{one.update}` with{body}"


def _unknown(state: RunState, workflow_id: str) -> str:
    rows = [
        f"- {u.status.replace('_', ' ')}: turn {u.turn}, "
        f"{_code(escaped(f'{u.tool} {u.arguments}'), 120)}, call {_code(u.call_id, 80)}, "
        f"key {_code(u.key, 40)}: {_md(escaped(u.what))}"
        for u in state.unknown[-_CARD_CALLS:]
    ]
    if waiting := [u for u in state.unknown if u.status == "waiting"]:
        call_id = waiting[0].call_id
        landed, not_landed = (
            _code(f"starter.py {settling(workflow_id, call_id, landed=verdict)}", 600)
            for verdict in (True, False)
        )
        body = _body(call_id=call_id, landed=True, result="...")
        rows.append(
            f"\nTo settle it, if it took effect: {landed}; if it did not: {not_landed}; "
            f"or the update `resolve` with{body}"
        )
    return "**Outcome unknown**\n\n" + "\n".join(rows)


def _approvals(state: RunState, workflow_id: str) -> list[str]:
    """Those that wait, each with all that decides it: in paragraphs, since the UI shows no lists
    within lists."""
    told = []
    for asked in state.approvals.waiting[:_CARD_CALLS]:
        late = ", nobody decided in time" if asked.escalated else ""
        late += f", not accepted: {_md(escaped(asked.refused))}" if asked.refused else ""
        until = f"{clock(asked.until)}, {asked.until_why}{late}"
        allow, deny = (
            _code(f"starter.py {deciding(workflow_id, asked.id, allow=word)}", 400)
            for word in (True, False)
        )
        body, why = _body(approval=asked.id), _body(approval=asked.id, reason="...")
        called = f"{asked.tool} {arguments_of(asked, 400)}"
        told += [
            f"**Waits for a person to allow** {_code(called, 600)}",
            f"Effect: {asked.effect}. Asked because {_md(escaped(asked.why))}. Until {until}.",
            f"To allow it: {allow}, or the update `approve` with{body}",
            f"To deny it: {deny}, or the update `deny` with{why}",
        ]
    return told


def _decided(state: RunState) -> list[str]:
    settled = [a for a in state.approvals.asked if a.status != "waiting"][-_CARD_CALLS:]
    rows = [f"- {_md(approval_text(a), 300)}" for a in settled]
    return ["**Decided**\n\n" + "\n".join(rows)] if rows else []


def _raised(raised: Raised) -> str:
    by = f" by {_md(raised.actor, 100)}" if raised.actor else ""
    why = f": {_md(raised.reason)}" if raised.reason else ""
    return f"- {_md(raised.what, 300)}{by}{why}"


def _paused(state: RunState, workflow_id: str) -> str:
    pause = state.control.pause
    assert pause is not None
    when = "" if state.control.waits else " It waits once this turn is done."
    told = _md(paused_words(pause), 400).removeprefix("paused")
    command = _code(f"starter.py {resuming(workflow_id)}", 350)
    return (
        f"**Paused**{told}.{when} The time limit goes on.\n\n"
        f"To resume it: {command}, or the update `resume` with{_body()}"
    )


def _body(**fields: Any) -> str:
    """The body of an update, in a block to copy, with a name to put in."""
    # Laid out as the UI's editor does it: were it to do so itself, when the field loses the focus,
    # its button would move away from under the click. No line but ours begins with a fence.
    told = json.dumps({**fields, "actor": "your name"}, indent=2)
    return f":\n\n```\n{printable(told)}\n```"


def _word(text: str) -> str:
    """For a shell: ids are chosen by callers and models."""
    return shlex.quote(one_line(text, 250))


def _headline(state: RunState) -> str:
    agent = _code(state.request.agent, 64)
    if state.outcome is not None:
        reason = f": {_md(state.reason)}" if state.reason else ""
        return f"**{_md(state.outcome)}** · {agent} · {_count(state.turn, 'turn')}{reason}"
    waiting = _md(waiting_for(state))
    parts = [f"**{state.phase.value}** · {agent} · turn {state.turn} · waiting for {waiting}"]
    if state.stop is not None:
        who = f" by {_md(state.stop.actor)}" if state.stop.actor else ""
        parts.append(f"Stop asked for{who}: {_md(state.stop.reason or 'no reason given')}")
    if state.closing is not None:
        parts.append(f"A last answer is asked for: {_md(state.closing)}.")
    running = [c for c in state.calls if c.status == "running"][:_CARD_CALLS]
    if running:
        told = (f"{c.tool} {arguments_line(c.arguments, 100)}" for c in running)
        parts.append("\n".join(f"- running: {_code(t, 160)}" for t in told))
    return "\n\n".join(parts)


def _limits_used(state: RunState) -> list[str]:
    limits = state.limits
    ends = clock(state.deadline)
    tokens = f"{state.usage.total:,}" + (f" of {limits.tokens:,}" if limits.tokens else "")
    tokens += _cached(state.usage)
    errors = f"{state.total_errors} of {_count(state.total_calls, 'call')}"
    row = f"{_in_a_row(state.recent)} of {limits.consecutive_errors} in a row"
    used = [
        "**Limits used**",
        "",
        f"- turns: {state.turn} of {limits.turns}",
        f"- tokens: {tokens}",
        *_cost_used(state),
        f"- tool errors: {errors}, {row}",
    ]
    if state.spec is not None and state.shortens is not None:
        context = state.context
        used.append(f"- window: {window_text(context.tokens, state.window, context.number + 1)}")
    return used if state.outcome else [*used, f"- time: ends by {ends}"]


def _cost_used(state: RunState) -> list[str]:
    used, limit = state.usage.cost_usd, state.limits.cost_usd
    if used is None and limit is None:
        return []
    return [f"- cost: {dollars(used or 0)}" + (f" of {dollars(limit)}" if limit else "")]


def window_text(tokens: int, window: int, epoch: int) -> str:
    """How full the window is: `10,638 of 12,000 tokens, epoch 3`; the first is not named."""
    told = f", epoch {epoch:,}" if epoch > 1 else ""
    return f"{tokens:,} of {window:,} tokens{told}"


def _in_a_row(recent: Sequence[bool]) -> int:
    count = 0
    for failed in reversed(recent):
        if not failed:
            break
        count += 1
    return count


def _md(text: str, limit: int = 160) -> str:
    """Foreign text as inert markdown on one line."""
    return _MARKDOWN.sub(r"\\\1", one_line(text, limit))


def _code(text: str, limit: int) -> str:
    """Foreign text as a code span on one line; nothing but a backtick ends one."""
    return "`" + (one_line(text, limit).replace("`", "'") or " ") + "`"


# --- the transcript ---------------------------------------------------------------------------

_FOLDED_WIDTH = 100
"""Characters that a line of a folded text counts for: some results are one long line."""
_FEW = 300
"""Characters that are not worth folding."""


def transcript_text(
    entries: Sequence[Entry],
    *,
    first: int = 1,
    unanswered: Sequence[str] = (),
    ended: bool = False,
    epochs: Mapping[int, int] | None = None,
    fold: int | None = None,
) -> str:
    """The whole transcript for a terminal: a number, who speaks, what is said.

    `first` is the number of the first entry; `unanswered` are lines on calls whose results the
    model has not read: it still waits for them unless the run has `ended`. `epochs` says by number
    how many entries there were when one began. Nothing is cut, but results after `fold` lines.
    """
    begun = {entries + 1: number for number, entries in (epochs or {}).items()}
    rows = []
    for n, entry in enumerate(entries, start=first):
        if n in begun:
            rows.append(
                ("", "--", f"epoch {begun[n]}: from here on the model sees less of the above")
            )
        rows.append((str(n), *_told(entry, fold)))
    open_call = "unread" if ended else "waiting"
    rows += [("", open_call, one_line(line, 500)) for line in unanswered]
    names = max((len(one_line(who, 40)) for _, who, _ in rows), default=0)
    return "\n".join(_row(*row, width=max(names, 10)) for row in rows)


def _row(number: str, who: str, text: str, *, width: int) -> str:
    first, *others = printable(well_formed(text)).split("\n")
    head = f"{number:>4}  {one_line(who, 40):<{width}}  {first}"
    return "\n".join([head.rstrip(), *((" " * (width + 8) + line).rstrip() for line in others)])


def _told(entry: Entry, fold: int | None) -> tuple[str, str]:
    value = entry.value if isinstance(entry.value, dict) else {}
    if entry.kind == "message":
        who = f"message ({one_line(str(value['actor']), 25)})" if value.get("actor") else "message"
        return who, str(value.get("text"))
    if entry.kind == "result":
        failed = "error: " if value.get("error") else ""
        text = failed + str(value.get("text"))
        told = [_folded(text, fold) if fold else text, *map(image_line, images_of(entry))]
        return str(value.get("tool")), "\n".join(told)
    return "reply", "\n".join(_block(b) for b in replies.blocks(value)) or "(empty)"


def _folded(text: str, lines: int) -> str:
    head = "\n".join(text.split("\n", lines)[:lines])[: lines * _FOLDED_WIDTH]
    rest = text[len(head) :]
    if len(rest) <= _FEW and rest.count("\n") <= _FEW // _FOLDED_WIDTH:
        # Not much more than the line that would stand for it.
        return text
    return f"{head}\n[{len(rest):,} characters more: show --full]"


def image_line(image: ImageRef) -> str:
    """An image that the model was shown: `[image 1568x1045 png, artifact ab12cd34ef56…]`."""
    kind = one_line(image.media_type.removeprefix("image/"), 20)
    artifact = one_line(image.artifact, 64)[:12]
    return f"[image {image.width}x{image.height} {kind}, artifact {artifact}…]"


def _block(block: Mapping[str, Any]) -> str:
    kind = block.get("type")
    if kind == "text":
        return str(block.get("text"))
    if kind == "thinking":
        return f"(thinking) {block.get('thinking') or '...'}"
    if kind == "tool_use":
        arguments = block.get("input")
        told = (
            " ".join(f"{k}={json.dumps(v, ensure_ascii=False)}" for k, v in arguments.items())
            if isinstance(arguments, dict)
            else json.dumps(arguments, ensure_ascii=False)
        )
        # A person decides by them whether a call is made.
        return f"-> {block.get('name')} {escaped(told)}".rstrip()
    return f"({kind})"


# --- results and steps ------------------------------------------------------------------------


def result_lines(result: RunResult) -> list[str]:
    """How a run ended, for people: outcome and sums, then the reason if there is one."""
    counts = f"{_count(result.turns, 'turn')} · {_count(result.calls, 'tool call')}"
    sums = f"{usage_text(result.usage)} · {result.seconds:.1f} s"
    epochs = f" · {result.epochs:,} epochs" if result.epochs > 1 else ""
    lines = [f"{one_line(result.outcome, 64)} · {counts} · {sums}{epochs}"]
    if result.reason:
        lines.append(f"reason: {one_line(result.reason, 1_000)}")
    for what, artifact in (("answer", result.answer_artifact), ("output", result.output_artifact)):
        if artifact:
            lines.append(f"{what}: artifact {one_line(artifact, 100)}")
    return lines


def unknown_text(call: UnknownCall) -> str:
    """What became of a call with an unknown outcome: `send (call c1) took effect, says ann`."""
    by = f", says {_somebody(call.actor)}"
    became = {
        "waiting": "waits for a person to say whether it took effect",
        "open": "may or may not have taken effect",
        "landed": f"took effect{by}",
        "not_landed": f"did not take effect{by}",
    }[call.status]
    return f"{one_line(call.tool, 64)} (call {one_line(call.call_id, 100)}) {became}"


def approval_text(asked: ApprovalAsked) -> str:
    """What became of a call that a person has to allow."""
    by = f" by {_somebody(asked.actor, verified=asked.verified)}"
    why = f": {one_line(asked.reason, 200)}" if asked.reason else ""
    became = {
        "waiting": f"waits for a person to allow it, asked because {seen_line(asked.why, 300)}",
        "approved": f"was approved{by}",
        "denied": f"was denied{by}{why}",
        "expired": "was decided by nobody in time",
        "withdrawn": "was decided by nobody: the run ended, or a message came first",
    }[asked.status]
    called = f"{one_line(asked.tool, 64)} {arguments_of(asked, 300)}"
    return f"turn {asked.turn}, {called} {became} (approval {one_line(asked.id, 64)})"


def _somebody(actor: str | None, *, verified: bool = False) -> str:
    """Who has said something: a name that nobody has verified says so wherever it is shown."""
    doubt = "" if verified else " (unverified)"
    return f"{one_line(actor, 100) if actor else 'nobody named'}{doubt}"


def unknown_line(call: UnknownCall) -> str:
    """As `unknown_text`, with all that it may be looked up by."""
    return f"unknown: turn {call.turn}, {unknown_text(call)}; key {one_line(call.key, 100)}"


def usage_text(usage: Usage) -> str:
    """In a few words: `1,234 tokens (56 out, 20 estimated, 87% of input cached) · $0.0123`."""
    out = usage.output_tokens + usage.estimated_tokens
    estimated = usage.estimated_tokens + usage.estimated_input_tokens
    guess = f", {estimated:,} estimated" if estimated else ""
    cost = "" if usage.cost_usd is None else f" · {dollars(usage.cost_usd)}"
    return f"{usage.total:,} tokens ({out:,} out{guess}{_cached(usage)}){cost}"


def _cached(usage: Usage) -> str:
    return f", {usage.cache_share:.0%} of input cached" if usage.cache_read_tokens else ""


def step_line(turn: str, phase: str, text: str, *, colour: bool, width: int) -> str:
    """A step for a terminal of `width` columns, wrapped to at most three lines.

    `turn` stands in the first column: empty for further steps of the same turn.
    """
    lines = textwrap.wrap(
        one_line(text, 1_000),
        max(width - _STEP_INDENT, 40),
        max_lines=3,
        placeholder=" …",
        break_on_hyphens=False,
    )
    start = f"{turn:<8}  {phase:<8}  "
    if colour:
        start = f"{turn:<8}  \x1b[{_COLOURS.get(phase, '1')}m{phase:<8}\x1b[0m  "
    return (start + ("\n" + " " * _STEP_INDENT).join(lines)).rstrip()


_STEP_INDENT = 20
_COLOURS = {"GENERATE": "36", "PARSE": "35", "EXECUTE": "33", "RESUME": "32"}


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
