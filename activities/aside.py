"""Work on megabytes, beside the event loop: it has other calls, and heartbeats, to serve."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

QUICK_BYTES: Final = 256_000
"""What is worked on at once."""

_T = TypeVar("_T")


async def aside(size: int, work: Callable[[], _T]) -> _T:
    """`work()` on about `size` bytes: in a thread, if that takes longer than a thread's switch.

    It should consist of several steps. While one step of Python's own C code is at work, such as
    `json.dumps`, all other threads wait for it.

    Raises:
        Exception: what the work raised.
    """
    return work() if size < QUICK_BYTES else await asyncio.to_thread(work)
