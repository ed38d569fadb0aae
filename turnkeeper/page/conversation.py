"""The turns of a run as HTML: what was said, each call and what became of it. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from turnkeeper import replies
from turnkeeper.contract import ApprovalAsked, UnknownCall
from turnkeeper.media import ImageRef
from turnkeeper.page.ink import Ink, clock_of, count, size, span
from turnkeeper.page.markup import Html, join, tag
from turnkeeper.page.pictures import refs
from turnkeeper.page.story import CallTold, Mark, Reply, Said, Story, Turn
from turnkeeper.text import dollars, one_line

__all__ = ["FIRST_TURNS", "LAST_TURNS", "Conversation", "anchor", "usage_words"]

FIRST_TURNS, LAST_TURNS = 100, 300
"""Turns of a long run that are on its page."""
_THINGS = 200
"""Messages, replies and marks of one turn; blocks of one reply; arguments of one call."""
_NAME = 80
_LINE = 1_000
_LONG_WAIT = 5.0
"""Seconds that are worth telling."""
_SHORT_VALUE = 80


def anchor(turn: int) -> str:
    """Where a turn stands on the page."""
    return f"turn-{turn}"


def usage_words(turn: Turn) -> list[str]:
    """Tokens of a turn, and what they cost."""
    usage = turn.usage
    if not usage.total:
        return []
    cached = f" ({usage.cache_share:.0%} cached)" if usage.cache_read_tokens else ""
    cost = [dollars(usage.cost_usd)] if usage.cost_usd is not None else []
    return [f"{usage.all_input:,} tokens in{cached}", f"{usage.output_tokens:,} out", *cost]


class Conversation:
    """Writes turns; `images` are data: URLs by artifact."""

    def __init__(self, story: Story, images: Mapping[str, str], ink: Ink) -> None:
        self._story = story
        self._images = images
        self._ink = ink
        self._shown: set[str] = set()
        """Images that stand on the page: each does once, however often it was returned."""
        self._day = story.run.started
        self._open = story.run.result is None and story.run.closed is None

    def write(self) -> Html:
        """All turns, or the first and the last of very many."""
        turns = self._story.turns
        if len(turns) <= FIRST_TURNS + LAST_TURNS:
            return join(map(self._turn, turns))
        left_out = turns[FIRST_TURNS:-LAST_TURNS]
        told = (
            f"Turns {left_out[0].number:,} to {left_out[-1].number:,} are not on this page: "
            "`starter.py show` and `export` have them."
        )
        return join(
            [
                *map(self._turn, turns[:FIRST_TURNS]),
                tag("p", told, class_="cut"),
                *map(self._turn, turns[-LAST_TURNS:]),
            ]
        )

    def _turn(self, turn: Turn) -> Html:
        facts = usage_words(turn)
        if turn.model_seconds:
            facts.append(f"model {span(turn.model_seconds)}")
        if turn.runs:
            facts.append(f"tools {span(turn.tool_seconds)}")
        if turn.waited_seconds > _LONG_WAIT:
            facts.append(f"waited {span(turn.waited_seconds)}")
        began = tag("time", clock_of(turn.began, self._day)) if turn.began else None
        name = tag("a", f"Turn {turn.number:,}", href=f"#{anchor(turn.number)}")
        head = tag(
            "header",
            tag("h2", name if turn.number else "Before the first turn"),
            tag("p", began, *_facts(facts)),
        )
        items = [self._item(item) for item in turn.items[:_THINGS]]
        more = _more(turn.items, "things of this turn")
        return tag(
            "section",
            head,
            *items,
            more,
            self._silence(turn),
            class_="turn",
            id=anchor(turn.number),
        )

    def _silence(self, turn: Turn) -> Html | None:
        """Of a turn whose reply has not come."""
        if not any(g.status == "open" for g in turn.generations):
            return None
        told = "The model has not replied yet." if self._open else "The model had not replied."
        return tag("p", told, class_="mark")

    def _item(self, item: Said | Reply | Mark) -> Html:
        if isinstance(item, Said):
            return self._said(item)
        return self._reply(item) if isinstance(item, Reply) else self._mark(item)

    # --- what was said --------------------------------------------------------------------------

    def _said(self, said: Said) -> Html:
        value = said.entry.value if isinstance(said.entry.value, dict) else {}
        first = said.entry is self._story.run.entries[0]
        who = one_line(str(value["actor"]), _NAME) if value.get("actor") else ""
        name = "Prompt" if first else "Message"
        at = tag("time", clock_of(said.at, self._day)) if said.at else None
        head = tag("p", tag("b", name), f" from {who}" if who else None, at, class_="who")
        return tag("div", head, self._ink.prose(str(value.get("text"))), class_="said")

    def _reply(self, reply: Reply) -> Html:
        blocks = replies.blocks(reply.entry.value)
        calls = iter(reply.calls)
        shown = [self._block(b, calls) for b in blocks[:_THINGS]]
        generation = reply.generation
        stop = generation.stop_reason if generation else None
        odd = stop not in (None, "end_turn", "tool_use")
        why = tag("p", f"Stop reason: {one_line(str(stop), _NAME)}", class_="mark") if odd else None
        tried = generation.attempts if generation else 0
        again = (
            tag("p", f"The reply took {tried:,} attempts.", class_="mark") if tried > 1 else None
        )
        empty = None if blocks else tag("p", "(an empty reply)", class_="mark")
        return tag("div", again, *shown, empty, _more(blocks, "blocks"), why, class_="reply")

    def _block(self, block: Mapping[str, Any], calls: Iterable[CallTold]) -> Html | None:
        kind = block.get("type")
        if kind == "text":
            text = str(block.get("text"))
            return self._ink.prose(text) if text.strip() else None
        if kind == "tool_use":
            told = next(iter(calls), None)
            return self._call(told) if told is not None else None
        if kind in replies.THINKING:
            thought = block.get("thinking")
            if not isinstance(thought, str) or not thought:
                return tag("p", "Thinking (not shown by the provider)", class_="mark")
            return self._ink.fold("Thinking", size(thought), self._ink.prose(thought))
        data = json.dumps(block, ensure_ascii=False, indent=1)
        return self._ink.fold(
            f"Block {one_line(str(kind), _NAME)}", size(data), self._ink.plain(data)
        )

    def _mark(self, mark: Mark) -> Html:
        at = tag("time", clock_of(mark.at, self._day)) if mark.at else None
        line = tag("p", one_line(mark.text, _LINE), at, class_="mark bad" if mark.bad else "mark")
        if not mark.body:
            return line
        return tag("div", line, self._ink.folded(mark.body), class_="marked")

    # --- calls ----------------------------------------------------------------------------------

    def _call(self, told: CallTold) -> Html:
        word, tone = _became(told, open_=self._open)
        run = told.run
        facts = [span(told.seconds)] if told.seconds is not None else []
        if run is not None and run.attempts > 1:
            facts.append(count(run.attempts, "attempt"))
        known = run or told.approval
        effect = known.effect if known is not None else None
        head = tag(
            "p",
            tag("b", one_line(told.call.tool, _NAME), class_="name"),
            tag("span", effect, class_="effect") if effect else None,
            tag("span", word, class_=f"chip {tone}"),
            tag("span", *_facts(facts), class_="took") if facts else None,
            class_="head",
        )
        parts = [self._arguments(told.call), self._approval(told), self._doubt(told)]
        parts += [self._result(told), self._fine(told)]
        return tag("div", head, *parts, class_=f"call {tone}")

    def _arguments(self, call: replies.Call) -> Html | None:
        if call.arguments is None:
            return tag("p", "Its arguments are no JSON object.", class_="mark bad")
        rows: list[Html] = []
        for name, value in list(call.arguments.items())[:_THINGS]:
            rows.append(tag("dt", one_line(name, _NAME)))
            rows.append(tag("dd", self._value(value)))
        more = _more(list(call.arguments), "arguments")
        return join([tag("dl", *rows, class_="arguments"), more]) if rows else None

    def _value(self, value: Any) -> Html:
        if isinstance(value, str) and (len(value) > _SHORT_VALUE or "\n" in value):
            return self._ink.folded(value)
        whole = json.dumps(value, ensure_ascii=False)
        if len(whole) > _SHORT_VALUE:
            whole = json.dumps(value, ensure_ascii=False, indent=2)
        return self._ink.folded(whole)

    def _approval(self, told: CallTold) -> Html | None:
        if (asked := told.approval) is None:
            return None
        since = _moment(asked.since)
        parts = [f"Asked because {one_line(asked.why, 300)}." if asked.why else "", _decided(asked)]
        if told.decided is not None:
            parts.append(clock_of(told.decided, self._day))
            if since is not None:
                waited = max((told.decided - since).total_seconds(), 0)
                parts.append(f"after {span(waited)}")
        elif asked.status == "waiting" and (until := _moment(asked.until)) is not None:
            parts.append(f"until {clock_of(until, self._day)}, {asked.until_why}")
        reason = f": {one_line(asked.reason, _LINE)}" if asked.reason else ""
        line = " ".join(filter(None, parts)) + reason
        return tag("p", tag("b", "Approval "), line, class_="person")

    def _doubt(self, told: CallTold) -> Html | None:
        if (unknown := told.unknown) is None:
            return None
        value = told.result.value if told.result is not None else None
        said = value.get("text") if isinstance(value, dict) else None
        # What the model reads of it often says the same.
        why = (
            unknown.what if unknown.what and unknown.what not in one_line(str(said), _LINE) else ""
        )
        parts = [tag("b", "Outcome unknown "), _settled(unknown), one_line(why, _LINE)]
        return tag("p", join(parts, " "), class_="person")

    def _result(self, told: CallTold) -> Html | None:
        if told.result is None:
            return self._failure(told)
        value = told.result.value if isinstance(told.result.value, dict) else {}
        who = one_line(str(value["actor"]), _NAME) if value.get("actor") else ""
        notes = [
            tag("p", f"Answered by {who}", class_="note") if who else None,
            tag("p", "The model did not read it.", class_="note") if told.unread else None,
        ]
        text = str(value.get("text"))
        shown = self._ink.folded(text, open_=told.failed) if text else None
        images = [self._image(ref) for ref in refs(told.result)]
        return tag("div", *notes, shown, *images, class_="result")

    def _failure(self, told: CallTold) -> Html | None:
        """Why a call has no result, if that is not told as what is unknown of it."""
        why = told.run.failure if told.run is not None else None
        if not why or (told.unknown is not None and why in told.unknown.what):
            return None
        return tag("div", self._ink.folded(why, open_=True), class_="result")

    def _image(self, ref: ImageRef) -> Html:
        kind = one_line(ref.media_type.removeprefix("image/"), 20)
        told = f"{ref.width:,} x {ref.height:,} {kind}, {ref.bytes:,} bytes"
        named = f"{told}, artifact {one_line(ref.artifact, 64)}"
        if (url := self._images.get(ref.artifact)) is None:
            return tag("p", f"Image, not on this page: {named}", class_="note")
        if ref.artifact in self._shown:
            return tag("p", f"Image, shown above: {named}", class_="note")
        self._shown.add(ref.artifact)
        picture = tag("img", src=url, alt=f"Image, {told}", width=ref.width, height=ref.height)
        return tag("figure", picture, tag("figcaption", named))

    def _fine(self, told: CallTold) -> Html | None:
        """What a call is found by elsewhere, where somebody may look for it."""
        run = told.run
        parts = []
        if run is None or run.effect != "read" or told.failed:
            parts.append(f"call {one_line(told.call.call_id, _NAME)}")
        if run is not None and run.effect != "read":
            parts.append(f"key {one_line(run.key, _NAME)}")
        if run is not None and run.artifact:
            parts.append(f"whole result: artifact {one_line(run.artifact, 64)}")
        return tag("p", *_facts(parts), class_="fine") if parts else None


def _became(told: CallTold, *, open_: bool) -> tuple[str, str]:
    """What became of a call in a word or two, and its tone."""
    if told.unknown is not None:
        return _UNKNOWN[told.unknown.status]
    status = told.approval.status if told.approval else ""
    if found := _DECIDED.get(status):
        return found
    if told.run is None:
        if told.result is None:
            return ("not begun", "wait") if open_ else ("not run", "warn")
        return ("not run", "bad") if told.failed else ("answered", "ok")
    if told.run.status == "open":
        return ("running", "wait") if open_ else ("not finished", "bad")
    if told.run.status == "ok" and told.failed:
        return "error", "bad"
    return _STATUS.get(told.run.status, (one_line(told.run.status, 20), "bad"))


_STATUS = {
    "ok": ("ok", "ok"),
    "error": ("error", "bad"),
    "invalid": ("invalid arguments", "bad"),
    "stop": ("ended the run", "warn"),
    "failed": ("failed", "bad"),
    "timed_out": ("timed out", "bad"),
    "cancelled": ("cancelled", "warn"),
}
_UNKNOWN = {
    "waiting": ("outcome unknown", "wait"),
    "open": ("outcome unknown", "bad"),
    "landed": ("took effect", "ok"),
    "not_landed": ("did not take effect", "warn"),
}
_DECIDED = {
    "waiting": ("waits for a person", "wait"),
    "denied": ("denied", "warn"),
    "expired": ("nobody decided", "warn"),
    "withdrawn": ("not run", "warn"),
}


def _decided(asked: ApprovalAsked) -> str:
    doubt = "" if asked.verified else " (unverified)"
    by = f" by {one_line(asked.actor, 100)}{doubt}" if asked.actor else ""
    return {
        "waiting": "Waits for a person",
        "approved": f"Approved{by}",
        "denied": f"Denied{by}",
        "expired": "Nobody decided in time",
        "withdrawn": "Nobody decided: the run ended, or a message came first",
    }[asked.status]


def _settled(call: UnknownCall) -> str:
    by = f", says {one_line(call.actor, 100)}" if call.actor else ""
    return {
        "waiting": "Waits for a person to say whether it took effect.",
        "open": "It may or may not have taken effect.",
        "landed": f"It took effect{by}.",
        "not_landed": f"It did not take effect{by}.",
    }[call.status]


def _moment(seconds: float) -> datetime | None:
    """Workflow time; None if it is none."""
    try:
        return datetime.fromtimestamp(seconds, UTC) if seconds > 0 else None
    except (ValueError, OverflowError, OSError):
        return None


def _facts(facts: Sequence[str]) -> list[Html]:
    return [tag("span", fact) for fact in facts]


def _more(things: Sequence[Any], name: str) -> Html | None:
    rest = len(things) - _THINGS
    return (
        tag("p", f"{rest:,} more {name} are not on this page.", class_="cut") if rest > 0 else None
    )
