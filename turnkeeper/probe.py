"""What a probe answers: did the effect under this key happen? Pure.

async def find_pickup(ctx: ToolContext, args: Mapping[str, Any]) -> Answer:
    found = await carrier.pickup(reference=ctx.idempotency_key)
    return Landed(found) if found else NotLanded()

@tool(effect="reconcilable", probe=find_pickup)
async def book_pickup(order_id: str, day: date, ctx: ToolContext) -> Pickup: ...
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from turnkeeper.tools import ToolContext

__all__ = ["Answer", "Landed", "NotLanded", "Probe", "Unknown"]


@dataclasses.dataclass(frozen=True)
class Landed:
    """The effect happened.

    Under this key: a start that is repeated with its `request_key`, and asks for something else the
    second time, has the same one. A target that keeps `ctx.arguments_digest` beside it can tell.
    """

    receipt: Any = None
    """The call's result: what the tool itself would have returned."""


@dataclasses.dataclass(frozen=True)
class NotLanded:
    """It did not, and no request that is on its way can bring it any more: it may be sent again."""


@dataclasses.dataclass(frozen=True)
class Unknown:
    """The target does not know, or not yet."""

    why: str = ""
    """For the operator's log."""


Answer = Landed | NotLanded | Unknown

Probe = Callable[["ToolContext", Mapping[str, Any]], Answer | Awaitable[Answer]]
"""Called with the context of the call and its arguments by name, as the tool's types read them.
What it raises counts as `Unknown`."""
