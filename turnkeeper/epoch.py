"""The opening of a new epoch: a shorter view of the same run. Pure.

A view is shortened at a closed turn alone, and never edited: another one begins. A call and its
result stay together, and no thinking block is taken along, since it is bound to the view in which
it was thought.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import BaseModel

from turnkeeper import replies
from turnkeeper.entries import Entry, admit, message
from turnkeeper.media import images_of
from turnkeeper.text import clip, one_line
from turnkeeper.view import size

TASK_BYTES = 6_000
"""Of the first message, which each opening repeats."""
_DIGEST_CHARACTERS = 160
ARTIFACTS_NAMED = "Artifacts that were named there: "
"""What stands before the ids at the end of an opening's first entry."""

HEADINGS = ("Decisions", "Unresolved work", "Evidence")
SUMMARISE = (
    "The conversation so far is about to be left out of your view; only your summary of it and the "
    "last turns will stay. Write that summary now, in at most {words} words, under exactly these "
    "headings:\n## Decisions\nWhat was decided or done, and why.\n## Unresolved work\nWhat is "
    "still open, and the next step.\n## Evidence\nFacts that matter, each with its source; copy "
    "ids, numbers and artifact ids exactly.\nDo not call tools. Answer with the summary alone."
)


class Opening(BaseModel):
    """As it lies in the artifact store."""

    task: str
    """The run's first message, cut."""
    entries: list[Entry]
    summary: str | None = None
    """The last one that was written, if it stands in the entries."""


def turn_starts(entries: Sequence[Entry]) -> list[int]:
    """Where a turn begins: at a reply, but not at one that goes on with a paused one."""
    return [
        i
        for i, entry in enumerate(entries)
        if entry.kind == "reply" and (i == 0 or entries[i - 1].kind != "reply")
    ]


def tail_from(entries: Sequence[Entry], turns: int, room: int) -> int:
    """Where the last `turns` turns begin, or fewer, if those have more than `room` bytes.

    The last turn is always kept: its calls wait for their results.
    """
    starts = turn_starts(entries)
    if not starts:
        return len(entries)
    kept, weight, end = starts[-1], 0, len(entries)
    for start in reversed(starts[-turns:]):
        weight += sum(map(size, entries[start:end]))
        if weight > room:
            break
        kept = end = start
    return kept


def used_results(entries: Sequence[Entry], at_least: int) -> list[int]:
    """Where results of at least so many bytes stand that the model has used: in a later reply it
    has said something."""
    claims = [i for i, e in enumerate(entries) if e.kind == "reply" and says_something(e)]
    last = claims[-1] if claims else 0
    return bulky_results(entries[:last], at_least)


def bulky_results(entries: Sequence[Entry], at_least: int) -> list[int]:
    """Where results of at least so many bytes stand, or with images, which are few in a request."""
    return [
        i
        for i, e in enumerate(entries)
        if e.kind == "result" and (size(e) >= at_least or images_of(e))
    ]


def reference(entry: Entry, artifact: str) -> Entry:
    """What stands for a result whose text lies in the artifact store."""
    text = entry.value["text"]
    start = one_line(text, _DIGEST_CHARACTERS)
    told = f"[{len(text.encode())} bytes, read before: read_artifact {artifact}] {start}"
    kept = {k: v for k, v in entry.value.items() if k in ("call_id", "tool", "error")}
    return admit("result", kept | {"text": told})


def carried(entries: Sequence[Entry], instead: Mapping[int, Entry]) -> list[Entry]:
    """Entries as the next epoch has them: with references, and without thinking."""
    found = []
    for i, entry in enumerate(entries):
        kept = instead.get(i) or _without_thinking(entry)
        if kept is not None:
            found.append(kept)
    return found


def checkpoint_entry(
    task: str, summary: str | None, left_out: int, artifacts: str, *, whole: bool
) -> Entry:
    """The first entry of an opening from which earlier turns were left out.

    whole: the summary covers all that was left out, not its beginning alone.
    """
    parts = [
        f"[This conversation was shortened: {left_out} earlier entries are kept, but not shown.]",
        f"The task:\n{task}",
    ]
    if summary is None:
        parts.append("There is no summary of them.")
    else:
        covers = "what is not shown" if whole else "the first of them; there is none of the others"
        parts.append(f"Summary of {covers}:\n{summary}")
    if artifacts:
        parts.append(f"{ARTIFACTS_NAMED}{artifacts}")
    return message("\n\n".join(parts))


def task_of(entries: Sequence[Entry]) -> str:
    """The run's first message, cut."""
    return clip(entries[0].value["text"], TASK_BYTES) if entries else ""


def problem_of_summary(text: str, tokens: int) -> str | None:
    """Why a text is no summary; None if it is one."""
    if not text.strip():
        return "it is empty"
    # Six bytes to a token are more than any prose has.
    if len(text.encode()) > tokens * 6:
        return f"it has {len(text.encode())} bytes, at most {tokens * 6} are kept"
    lowered = text.lower()
    if missing := [h for h in HEADINGS if h.lower() not in lowered]:
        return f"it lacks the heading {missing[0]!r}"
    return None


def says_something(reply: Entry) -> bool:
    """Whether a reply has text: what it read before is then in its own words."""
    return bool(replies.text(reply.value).strip())


def _without_thinking(entry: Entry) -> Entry | None:
    if entry.kind != "reply":
        return entry
    blocks = replies.blocks(entry.value)
    kept = [b for b in blocks if b.get("type") not in replies.THINKING]
    if len(kept) == len(blocks):
        return entry
    if not kept:
        return None
    return admit("reply", {**entry.value, "content": kept}, dialect=entry.dialect)
