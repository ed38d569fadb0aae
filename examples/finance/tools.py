"""The tools of the finance agent. Their docstrings and types are what the model reads.

Environment:

* `FINANCE_DOCUMENTS`: the folder of `*.md` documents to search; default the one beside this file.
* `FINANCE_SEARCH_DELAY`: seconds, 0 to 60, that each search waits before it looks, so that there is
  time to kill a worker in the middle of one. More than the tool's timeout lets every attempt fail.
* `TURNKEEPER_TOOL_LOG`: see `call_log`.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from examples.finance.arithmetic import MAX_LENGTH, ExpressionError, calculate
from examples.finance.call_log import logged
from examples.finance.library import Hit, LibraryError, open_library
from examples.finance.settings import seconds
from turnkeeper import ToolContext, ToolFailed, tool

__all__ = ["calculator", "search"]

# What `ctx` is when a tool is called as the plain function that it also is.
_CALLED_DIRECTLY: Final = ToolContext()

_PACKAGED_DOCUMENTS: Final = Path(__file__).parent / "documents"


@tool(effect="read", timeout=10)
def search(
    q: Annotated[
        str,
        Field(
            description="Words to look for, such as 'annual revenue 2025'. Name the figure and "
            "the year; there are no operators.",
            max_length=400,
        ),
    ],
    limit: Annotated[int, Field(ge=1, le=10, description="Passages to return.")] = 3,
    ctx: ToolContext = _CALLED_DIRECTLY,
) -> str:
    """Search the company's annual reports for 2021 to 2025.

    Returns the best matching passages, best first, each with its document, page and heading.
    Amounts are in millions of US dollars ($M) unless the passage says otherwise.
    """
    with logged("search", ctx):
        time.sleep(seconds("FINANCE_SEARCH_DELAY"))
        folder = Path(os.environ.get("FINANCE_DOCUMENTS") or _PACKAGED_DOCUMENTS)
        try:
            hits = open_library(folder).search(q, limit)
        except LibraryError as error:
            raise ToolFailed(str(error)) from None
        if not hits:
            return "No passage has any of these words. Try other words."
        return "\n\n".join(f"[{rank}] {_shown(hit)}" for rank, hit in enumerate(hits, start=1))


@tool(effect="read", timeout=5)
def calculator(
    expression: Annotated[
        str,
        Field(
            description="For example '412000000 * 0.07', '7% of 412000000' or 'round(412 / 376.3 "
            "- 1, 4)'. Numbers without thousands commas, currency signs and units.",
            max_length=MAX_LENGTH,
        ),
    ],
    ctx: ToolContext = _CALLED_DIRECTLY,
) -> str:
    """Compute an arithmetic expression exactly. Returns the plain number.

    Knows + - * / // % ** and parentheses, percentages (7% is 0.07, 7% of 250 is 17.5) and abs, max,
    min, round, sqrt.
    """
    with logged("calculator", ctx):
        try:
            return calculate(expression)
        except ExpressionError as error:
            raise ToolFailed(str(error)) from None


def _shown(hit: Hit) -> str:
    place = [hit.title, f"page {hit.page}" if hit.page else "", hit.heading]
    return f"{', '.join(filter(None, place))} ({hit.document}.md)\n{hit.text}"
