"""The built-in tool with which a model reads what was too large for a result."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from turnkeeper.tools import ToolContext, tool


@tool(effect="read", timeout=30)
async def read_artifact(
    artifact: Annotated[str, Field(description="The artifact's id, from a result.")],
    ctx: ToolContext,
    offset: Annotated[int, Field(ge=0, description="First byte to read.")] = 0,
    length: Annotated[int, Field(ge=1, le=20_000, description="Bytes to read.")] = 8_000,
) -> str:
    """Read a part of a tool result that was too large to show."""
    data = await ctx.artifact(artifact)
    part = data[offset : offset + length].decode("utf-8", "replace")
    end = min(offset + length, len(data))
    return f"[bytes {min(offset, end)} to {end} of {len(data)}]\n{part}"
