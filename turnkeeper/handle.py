"""AgentRunHandle: one run, with the calls of `AgentClient` for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, overload

from turnkeeper import asking
from turnkeeper.contract import RunResult, RunStatus
from turnkeeper.follow import Step
from turnkeeper.history import Transcript

if TYPE_CHECKING:
    from turnkeeper.client import AgentClient

__all__ = ["AgentRunHandle"]

_T = TypeVar("_T")


class AgentRunHandle:
    """A run that was started; all its methods are those of `AgentClient` for this run."""

    def __init__(
        self, client: AgentClient, id: str, *, run_id: str | None = None, existed: bool = False
    ) -> None:
        self.client = client
        self.id = id
        self.run_id = run_id
        """Temporal's id of the execution that was started; None for a run that existed."""
        self.existed = existed
        """Whether the id was taken: the run goes by its own, earlier request."""

    @overload
    async def result(self, *, check: bool = True, timeout: float | None = None) -> RunResult: ...
    @overload
    async def result(self, *, output: type[_T], timeout: float | None = None) -> _T: ...

    async def result(
        self, *, check: bool = True, output: Any = None, timeout: float | None = None
    ) -> Any:
        """See `AgentClient.result`."""
        if output is not None:
            return await self.client.result(self.id, output=output, timeout=timeout)
        return await self.client.result(self.id, check=check, timeout=timeout)

    async def status(self) -> RunStatus:
        """See `AgentClient.status`."""
        return await self.client.status(self.id)

    async def transcript(self) -> Transcript:
        """See `AgentClient.transcript`."""
        return await self.client.transcript(self.id)

    def follow(self) -> AsyncIterator[Step]:
        """See `AgentClient.follow`."""
        return self.client.follow(self.id)

    async def stop(self, reason: str = "", actor: str | None = None) -> asking.Stopped:
        """See `AgentClient.stop`."""
        return await self.client.stop(self.id, reason, actor)

    async def approve(
        self,
        approval: str,
        *,
        actor: str | None = None,
        proof: str | None = None,
        remember: bool = False,
    ) -> asking.Decided:
        """See `AgentClient.approve`."""
        return await self.client.approve(
            self.id, approval, actor=actor, proof=proof, remember=remember
        )

    async def deny(
        self, approval: str, *, reason: str = "", actor: str | None = None, proof: str | None = None
    ) -> asking.Decided:
        """See `AgentClient.deny`."""
        return await self.client.deny(self.id, approval, reason=reason, actor=actor, proof=proof)

    async def pause(self, reason: str = "", actor: str | None = None) -> asking.Held:
        """See `AgentClient.pause`."""
        return await self.client.pause(self.id, reason, actor)

    async def resume(self, actor: str | None = None) -> asking.Resumed:
        """See `AgentClient.resume`."""
        return await self.client.resume(self.id, actor)

    async def fork(self, turn: int, edit: str | None = None, **options: Any) -> AgentRunHandle:
        """See `AgentClient.fork`."""
        return await self.client.fork(self.id, turn, edit, **options)

    async def retry_from(
        self, turn: int, *, again: bool = False, reason: str = "", actor: str | None = None
    ) -> AgentRunHandle:
        """See `AgentClient.retry_from`."""
        return await self.client.retry_from(self.id, turn, again=again, reason=reason, actor=actor)

    async def raise_limits(
        self, limits: Mapping[str, Any], reason: str = "", actor: str | None = None
    ) -> asking.Widened:
        """See `AgentClient.raise_limits`."""
        return await self.client.raise_limits(self.id, limits, reason, actor)

    async def resolve(
        self, call_id: str, *, landed: bool, result: str = "", actor: str | None = None
    ) -> asking.Resolved:
        """See `AgentClient.resolve`."""
        return await self.client.resolve(
            self.id, call_id, landed=landed, result=result, actor=actor
        )

    async def answer(self, call_id: str, text: str, *, actor: str | None = None) -> asking.Answered:
        """See `AgentClient.answer`."""
        return await self.client.answer(self.id, call_id, text, actor=actor)

    async def send(
        self, text: str, *, message_id: str, interrupt: bool = False, actor: str | None = None
    ) -> asking.Sent:
        """See `AgentClient.send`."""
        return await self.client.send(
            self.id, text, message_id=message_id, interrupt=interrupt, actor=actor
        )

    @overload
    async def reply(self, message_id: str, *, timeout: float | None = None) -> str: ...
    @overload
    async def reply(
        self, message_id: str, *, output: type[_T], timeout: float | None = None
    ) -> _T: ...

    async def reply(
        self, message_id: str, *, output: Any = None, timeout: float | None = None
    ) -> Any:
        """See `AgentClient.reply`."""
        return await self.client.reply(self.id, message_id, output=output, timeout=timeout)

    async def chat(self, text: str, *, timeout: float | None = None) -> str:
        """See `AgentClient.chat`."""
        return await self.client.chat(self.id, text, timeout=timeout)
