"""Where a run can be forked: which part of its transcript another run begins with. Pure.

Turn N is the one of the Nth reply. A fork before it begins with all that was said until then; what
the model had not read yet is read by the fork's first generation. No cut comes between a call and
its result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from turnkeeper import replies
from turnkeeper.entries import Entry, message, result
from turnkeeper.errors import AdmissionError
from turnkeeper.state import EMPTY_REPLY, LAST_ANSWER

__all__ = ["Prefix", "prefix_of"]

_LAST_ANSWER = LAST_ANSWER.split("{limit}")


class Prefix(NamedTuple):
    """What a fork begins with."""

    read: list[Entry]
    """What the model has read or said."""
    unread: list[Entry]
    """What its next generation reads."""


def prefix_of(
    entries: Sequence[Entry],
    turn: int,
    *,
    edit: str | None = None,
    results: Mapping[str, Entry | None] | None = None,
    ended: bool = False,
) -> Prefix:
    """The part of a transcript before the generation of a turn.

    Args:
        entries: the whole transcript.
        turn: from 1 to the one after the last reply.
        edit: what stands for the last message if it is unread, else what is said after it.
        results: by call id, those of the last reply's calls that the model never read; None for a
            call that was begun and brought none.
        ended: whether nothing more is said in that run.

    Raises:
        ValueError: there is no such turn, or nothing to go on with; says why.
    """
    if not entries:
        raise ValueError("workflow_id: nothing was said in that run yet")
    said = [i for i, entry in enumerate(entries) if entry.kind == "reply"]
    last = len(said) + 1
    if not 1 <= turn <= last:
        raise ValueError(
            f"turn: the run has replies of {len(said)} turns: 1 to {last} can be forked"
        )
    kept = list(entries[: said[turn - 1]] if turn < last else entries)
    start = said[turn - 2] + 1 if turn > 1 else 0
    read, unread = kept[:start], [e for e in kept[start:] if not _of_the_runtime(e)]
    if turn == last and turn > 1:
        unread = _answered(read[-1], unread, results or {}, turn - 1, ended=ended)
    if turn < last and not unread:
        raise ValueError(f"turn: {turn} goes on with a reply that was paused; fork an earlier one")
    if edit is not None:
        unread = _edited(unread, edit)
    if not unread:
        raise ValueError("edit: the run has ended with an answer: say what the model is to read")
    return Prefix(read, unread)


def _edited(unread: list[Entry], edit: str) -> list[Entry]:
    try:
        said = message(edit)
    except AdmissionError as error:
        raise ValueError(f"edit: {error.why}") from None
    return [*(unread[:-1] if unread and unread[-1].kind == "message" else unread), said]


def _of_the_runtime(entry: Entry) -> bool:
    """Whether it was said because of a limit, or a reply, that the fork does not have."""
    if entry.kind != "message":
        return False
    text, (begin, end) = str(entry.value["text"]), _LAST_ANSWER
    return text == EMPTY_REPLY or (text.startswith(begin) and text.endswith(end))


def _answered(
    reply: Entry,
    unread: list[Entry],
    results: Mapping[str, Entry | None],
    turn: int,
    *,
    ended: bool,
) -> list[Entry]:
    """With the results of all its calls, in their order."""
    asked = replies.calls(reply.value)
    known: dict[str, Entry | None] = {
        **results,
        **{e.value["call_id"]: e for e in unread if e.kind == "result"},
    }
    if not ended and (not asked or any(known.get(c.call_id) is None for c in asked)):
        raise ValueError(f"turn: turn {turn} is not finished yet; fork an earlier one, or wait")
    told = [known.get(c.call_id) or _without_result(c, begun=c.call_id in known) for c in asked]
    return [*told, *(e for e in unread if e.kind != "result")]


def _without_result(call: replies.Call, *, begun: bool) -> Entry:
    told = (
        f"Tool {call.tool} was begun, and its run ended. It may or may not have taken effect."
        if begun
        else "Not run: the run was ended."
    )
    return result(call.call_id, call.tool, told, error=True)
