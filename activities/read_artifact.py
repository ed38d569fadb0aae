"""The built-in tool with which a model reads what was too large for a result."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from pydantic import Field

from activities.excerpts import bytes_of, find, is_pdf, pages_of, whole_lines
from turnkeeper.errors import ToolFailed
from turnkeeper.text import clip, json_size
from turnkeeper.tools import ToolContext, tool

_MAX_COUNT = 10_000
_LINES = 1_000
_PAGES = 5
"""As many lines, rows and pages as are read unless told otherwise."""
_PAGE_BYTES = 20_000
_HEADER_BYTES = 2_000
_TRIES = 6
"""To read as much as the result has room for."""
_NOTE_BYTES = 100
"""That what was asked for in vain may take."""


# More attempts than a tool has otherwise: a store that is down for half a minute is waited for.
@tool(effect="read", timeout=60, retries=5)
async def read_artifact(
    artifact: Annotated[str, Field(description="The artifact's id, from a result.")],
    ctx: ToolContext,
    *,
    offset: Annotated[int, Field(ge=0, description="First byte to read.")] = 0,
    length: Annotated[int, Field(ge=1, le=20_000, description="Bytes to read.")] = 8_000,
    line: Annotated[int, Field(ge=0, description="First line (from 1), not offset.")] = 0,
    row: Annotated[int, Field(ge=0, description="First CSV row after the header (from 1).")] = 0,
    page: Annotated[int, Field(ge=0, description="First page of a PDF (from 1).")] = 0,
    count: Annotated[int, Field(ge=0, le=_MAX_COUNT, description="Most lines, rows, pages.")] = 0,
) -> str:
    """Read a part of what was too large to show, by bytes, lines, CSV rows or PDF pages."""
    pdf = await is_pdf(ctx, artifact)
    if page and not pdf:
        raise ToolFailed("It is no PDF and has no pages: read it by line, or by offset.")
    by = "page" if pdf else "row" if row else "line" if line else "offset"
    places = {"offset": offset, "line": line, "row": row}
    ignored = ", ".join(name for name, given in places.items() if given and name != by)
    told = f"[read by {by}; {ignored} was not used]\n" if ignored else ""
    if pdf:
        return told + await _pages(ctx, artifact, page or 1, count or _PAGES)
    count = count or _LINES
    if row:
        return told + await _rows(ctx, artifact, row, count=count, length=length)
    if line:
        return told + await _lines(ctx, artifact, line, count=count, length=length)
    return await _bytes(ctx, artifact, offset, length)


async def _pages(ctx: ToolContext, artifact: str, first: int, count: int) -> str:
    pages = await pages_of(ctx, artifact, first, first + count - 1)
    return clip(pages.told(), _PAGE_BYTES)


async def _fitting(
    ctx: ToolContext, length: int, taken: int, read: Callable[[int], Awaitable[str]]
) -> str:
    """What `read` gives for `length` bytes, or for as many as the result has room for beside what
    is `taken`: what does not fit would become an artifact itself."""
    shown = await read(length)
    if ctx.result_bytes is None:
        return shown
    room = max(ctx.result_bytes - taken - _NOTE_BYTES, 0)
    for _ in range(_TRIES):
        size = json_size(shown)
        if size <= room:
            break
        # A tenth less: what it says of itself takes room, too, and escapes are unevenly dense.
        length = max(length * room // size * 9 // 10, 1)
        shown = await read(length)
    return shown


async def _bytes(ctx: ToolContext, artifact: str, offset: int, length: int) -> str:
    return await _fitting(ctx, length, 0, lambda most: _excerpt(ctx, artifact, offset, most))


async def _excerpt(ctx: ToolContext, artifact: str, offset: int, length: int) -> str:
    found, size = await bytes_of(ctx, artifact, offset, length)
    if offset > size:
        raise ToolFailed(f"There is no byte {offset}: the artifact has {size}.")
    return f"[bytes {found.start} to {found.end} of {size}]\n{found.text}"


async def _lines(ctx: ToolContext, artifact: str, line: int, **most: int) -> str:
    at, ended = await find(ctx, artifact, line - 1, rows=False)
    if at is None:
        raise ToolFailed(f"There is no line {line}: the artifact has {ended} line ends.")
    return await _from(ctx, artifact, at, line, rows=False, **most)


async def _rows(ctx: ToolContext, artifact: str, row: int, **most: int) -> str:
    at, ended = await find(ctx, artifact, row, rows=True)
    if at is None:
        raise ToolFailed(f"There is no row {row}: the table has {max(ended - 1, 0)} whole rows.")
    begin, _ = await find(ctx, artifact, 1, rows=True)
    header, _ = await bytes_of(ctx, artifact, 0, min(begin or at, 2 * _HEADER_BYTES))
    head = clip(header.text.rstrip(), _HEADER_BYTES) + "\n"
    rows = await _from(ctx, artifact, at, row, rows=True, taken=json_size(head), **most)
    told, _, text = rows.partition("\n")
    return f"{told}\n{head}{text}"


async def _from(
    ctx: ToolContext, artifact: str, at: int, first: int, *, length: int, taken: int = 0, **how: Any
) -> str:
    return await _fitting(
        ctx, length, taken, lambda most: _whole(ctx, artifact, at, first, length=most, **how)
    )


async def _whole(
    ctx: ToolContext, artifact: str, at: int, first: int, *, rows: bool, count: int, length: int
) -> str:
    """Whole lines or rows from a byte on, as many as may be and fit."""
    part = await ctx.artifact_part(artifact, at, length)
    end, number = whole_lines(part.data, count, rows=rows)
    if number < count and at + len(part.data) >= part.size > at + end:
        # The last one needs no line end.
        end, number = len(part.data), number + 1
    unit = "rows" if rows else "lines"
    if number:
        told = f"{unit} {first} to {first + number - 1}, bytes {at} to {at + end} of {part.size}"
        return f"[{told}]\n" + part.data[:end].decode("utf-8", "replace")
    cut, size = await bytes_of(ctx, artifact, at, length)
    told = f"{unit[:-1]} {first} is cut: bytes {cut.start} to {cut.end} of {size}"
    return f"[{told}; read on by offset]\n{cut.text}"
