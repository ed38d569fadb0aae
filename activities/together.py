"""Many requests in few messages: what comes while one is under way goes with the next."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")


class Together(Generic[_Item, _Answer]):
    """Sends what several tasks have to say to the same receiver.

    Args:
        send: takes up to `most` of them; answers each, or fails for all.
        most: in one message.
    """

    def __init__(
        self, send: Callable[[Sequence[_Item]], Awaitable[Sequence[_Answer]]], most: int
    ) -> None:
        self._send = send
        self._most = most
        self._waiting: list[tuple[_Item, asyncio.Future[_Answer]]] = []
        self._sending: asyncio.Task[None] | None = None

    async def send(self, item: _Item) -> _Answer:
        """Its answer, or the failure of the message that it went with."""
        answer: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, answer))
        if self._sending is None or self._sending.done():
            # In a task of its own: the one that began it may be cancelled while others wait.
            self._sending = asyncio.create_task(self._run())
        return await answer

    async def _run(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
            try:
                answers = await self._send([item for item, _ in batch])
                told = list(zip(batch, answers, strict=True))
            except Exception as error:  # noqa: BLE001  each of those who wait raises it
                for _, answer in batch:
                    if not answer.done():
                        answer.set_exception(error)
                continue
            for (_, answer), said in told:
                if not answer.done():
                    answer.set_result(said)
