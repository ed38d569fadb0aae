"""The built-in tool with which a model finds what was said earlier in its run."""

from __future__ import annotations

import asyncio
from typing import Annotated

from pydantic import Field

from activities.excerpts import excerpt
from activities.memory import Memory
from turnkeeper.errors import ToolFailed
from turnkeeper.tools import ToolContext, tool

_SHOWN = 8
_WHOLE_BYTES = 8_000


@tool(effect="read", timeout=60, retries=5)
async def recall(
    ctx: ToolContext,
    query: Annotated[str, Field(max_length=1_000, description="Words to find.")] = "",
    entry: Annotated[int, Field(ge=0, description="Or the number of one to read whole.")] = 0,
    offset: Annotated[int, Field(ge=0, description="First byte of it.")] = 0,
) -> str:
    """Search all that was said in this run, also what you no longer see."""
    memory: Memory = await ctx.memory()
    if entry:
        return _whole(memory, entry, offset)
    found = await asyncio.to_thread(memory.search, query, _SHOWN)
    if not found:
        return f"Nothing found among {len(memory)} entries. Try other words."
    head = f"[the best of {len(memory)} entries; recall(entry=N) reads one whole]"
    return "\n".join([head, *(f"entry {f.number}, {f.who}: {f.snippet}" for f in found)])


def _whole(memory: Memory, number: int, offset: int) -> str:
    said = memory.entry(number)
    if said is None:
        raise ToolFailed(f"There is no entry {number}: they are numbered 1 to {len(memory)}.")
    data = said.text.encode()
    part = excerpt(data, min(offset, len(data)), offset + _WHOLE_BYTES)
    told = f"entry {number}, {said.who}, bytes {part.start} to {part.end} of {len(data)}"
    return f"[{told}]\n{part.text}"
