"""A run that stays open: between its answer and the next message it waits, and costs nothing."""

from __future__ import annotations

import asyncio
import contextlib

from temporalio import workflow

from turnkeeper.state import RunState
from workflows import cockpit


class StaysOpen:
    """What a run does while nobody says anything."""

    state: RunState
    turns_here: int

    def _interrupted(self) -> bool:
        raise NotImplementedError

    def _end_interrupted(self) -> None:
        raise NotImplementedError

    def _is_long(self, *, by_size: bool = True) -> bool:
        raise NotImplementedError

    async def _continue_as_new(self) -> None:
        raise NotImplementedError

    async def _await_message(self) -> None:
        """Until somebody says something, or the time for it is over: then the run is complete."""
        state = self.state
        if self._is_overlong():
            await self._continue_as_new()
        if state.outcome is not None:
            return
        if not state.inbox.has_mail:
            await self._idle()
        if state.inbox.has_mail or state.stop is not None:
            state.inbox.idle_since = None
            cockpit.publish_waiting(state)
        elif not self._is_overlong() or self._interrupted():
            # Also when the run's own time is over: nothing was left undone.
            state.end("completed")

    async def _idle(self) -> None:
        state = self.state
        cockpit.publish_waiting(state)
        with contextlib.suppress(asyncio.TimeoutError):
            await workflow.wait_condition(
                lambda: state.inbox.has_mail or self._interrupted() or self._is_overlong(),
                timeout=self._idle_left(),
                timeout_summary="idle",
            )

    def _is_overlong(self) -> bool:
        """Whether to continue as new now: signals that are dropped add to history as well."""
        # A state of more bytes than the threshold would otherwise go on for ever.
        return self._is_long(by_size=self.turns_here > 0)

    def _idle_left(self) -> float | None:
        """Seconds; None where the timer of the run's own time limit comes first."""
        state = self.state
        assert state.idle_until is not None
        if state.idle_until >= state.deadline:
            return None
        return max(0.0, state.idle_until - workflow.time())
