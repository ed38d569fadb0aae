"""A scratchpad for the model: two built-in tools.

A note is the call that wrote it, as the transcript has it; nothing else is stored.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from activities.memory import Memory
from turnkeeper.tools import ToolContext, tool

_SHOWN_BYTES = 16_000


@tool(effect="read", timeout=30)
async def note(
    title: Annotated[str, Field(min_length=1, max_length=100)],
    text: Annotated[str, Field(max_length=4_000, description="Empty: remove it.")],
) -> str:
    """Keep a note for later in this run. One of the same title is replaced."""
    return f"Noted: {title}" if text else f"Removed: {title}"


@tool(effect="read", timeout=60, retries=5)
async def read_notes(ctx: ToolContext, title: str = "") -> str:
    """Read your notes, or the one of a title. Those of this same reply are not among them yet."""
    memory: Memory = await ctx.memory()
    notes = memory.notes
    if title:
        return notes.get(title) or f"There is no note {title!r}. Titles: {_titles(list(notes))}"
    shown: list[str] = []
    room = _SHOWN_BYTES
    # The last ones first: they are what is left where not all fit.
    left = list(notes)
    while left and room >= (size := len(notes[left[-1]].encode()) + len(left[-1].encode())):
        room -= size
        shown.append(f"# {left[-1]}\n{notes[left.pop()]}")
    if left:
        shown.append(f"Read by title: {_titles(left)}")
    return "\n\n".join(shown) or "There are no notes."


def _titles(titles: list[str]) -> str:
    return ", ".join(titles[-100:]) or "none"
