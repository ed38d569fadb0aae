"""Decoders at work: processes of `activities.media_process`, a few at once, by turns of runs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal
from weakref import WeakKeyDictionary, WeakValueDictionary

Job = Literal["image", "pdf"]

AT_ONCE: Final = 2
"""Decoders of one kind, each of which may take two gigabytes."""
_HOUSE: Final = Path(__file__).resolve().parent.parent


class Refused(Exception):
    """Raised for what was not decoded; the message says why, for the model."""


class Turns:
    """A few at once, and of one run no more than one: a run that asks for much delays itself."""

    def __init__(self, most: int) -> None:
        self._slots = asyncio.Semaphore(most)
        self._runs: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @contextlib.asynccontextmanager
    async def of(self, run: str, seconds: float) -> AsyncIterator[None]:
        """A run's turn, waited for at most so long.

        Raises:
            TimeoutError: it did not come.
        """
        async with contextlib.AsyncExitStack() as held:
            async with asyncio.timeout(seconds):
                await held.enter_async_context(self._runs.setdefault(run, asyncio.Lock()))
                await held.enter_async_context(self._slots)
            yield


# By kind: nobody's PDFs hold up images. By loop, since locks belong to one.
_TURNS: WeakKeyDictionary[asyncio.AbstractEventLoop, defaultdict[Job, Turns]] = WeakKeyDictionary()


def turn(job: Job, run: str, seconds: float) -> contextlib.AbstractAsyncContextManager[None]:
    """See `Turns.of`; whoever has a turn may call `decoded`."""
    kinds = _TURNS.setdefault(asyncio.get_running_loop(), defaultdict(lambda: Turns(AT_ONCE)))
    return kinds[job].of(run, seconds)


async def decoded(
    job: Job, data: bytes, seconds: float, **arguments: Any
) -> tuple[Mapping[str, Any], bytes]:
    """What the decoder tells of `data`, and the bytes that it made of it.

    Its process has ended when this returns or raises, also when this is cancelled.

    Raises:
        Refused: it is not done in time, or for the reason that the decoder gave.
    """
    asked = json.dumps({"seconds": seconds, **arguments})
    try:
        answer = await _answer([job, asked], data, seconds)
    except TimeoutError:
        raise Refused(f"it was not decoded within {seconds:.1f} s") from None
    except OSError as error:
        raise Refused(f"its decoder could not be started ({error})") from None
    head, _, result = answer.partition(b"\n")
    told: dict[str, Any] = json.loads(head)
    if refused := told.get("refused"):
        raise Refused(refused)
    if missing := told.get("missing"):
        raise Refused(
            f"this worker has no {missing}, which `pip install 'turnkeeper[media]'` brings"
        )
    return told, result


async def _answer(arguments: list[str], data: bytes, seconds: float) -> bytes:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "activities.media_process", *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={"PYTHONPATH": str(_HOUSE)},
    )
    try:
        async with asyncio.timeout(seconds):
            answer, _ = await process.communicate(data)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise Refused(f"its decoder ended without an answer (status {process.returncode})")
    return answer
