"""Room in the model's window: a summary in good time, and a new epoch when the next request would
not fit. Both are activities, since the workflow holds no text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError

from turnkeeper import contract
from turnkeeper.context import MAX_IN_VAIN, Room
from turnkeeper.contract import ShortenInput, ShortenOutput, SummariseInput, SummariseOutput
from turnkeeper.prices import priced
from turnkeeper.state import RunState
from turnkeeper.usage import Usage
from workflows import cockpit, failures, options
from workflows.switched_off import StandsStill


class MakesRoom(StandsStill):
    """What a run does before a generation so that it fits."""

    state: RunState
    summary: asyncio.Task[None] | None = None
    """A summary that is being written while the turns go on."""

    def _interrupted(self) -> bool:
        raise NotImplementedError

    async def _alone(self, activity: Coroutine[Any, Any, None]) -> None:
        raise NotImplementedError

    async def _make_room(self) -> None:
        """Until the next request fits, or the run has ended."""
        self._take_summary()
        state = self.state
        room = state.room()
        if room is Room.SCARCE:
            self._prepare()
        if room is not Room.NONE:
            return
        state.making_room = True
        cockpit.show(state)
        while state.room() is Room.NONE and state.outcome is None and not self._interrupted():
            if why := state.no_room():
                self._no_answer("context_overflow", why)
                break
            await self._summary_written()
            if not self._interrupted():
                await self._alone(self._shorten())
        state.making_room = False

    def _no_answer(self, outcome: str, why: str) -> None:
        """End the run: at the limit that it has reached, if only its last answer is missing."""
        state = self.state
        # Asked for last: it leaves an event in the history.
        if state.closing and workflow.patched("limit-outlives-overflow"):
            state.end(state.closing, state.reason)
        state.end(outcome, why)

    def _prepare(self) -> None:
        """Begin a summary beside the turns, so that no turn has to wait for it."""
        state, policy, context = self.state, self.state.shortens, self.state.context
        if policy is None or policy.mode != "checkpoint" or self.summary is not None:
            return
        needed = context.needs_summary(state.opening_bytes(), policy.frees)
        if needed and context.checkpoint is None and context.unsummarised < MAX_IN_VAIN:
            self.summary = asyncio.create_task(self._summarise())

    async def _summary_written(self) -> None:
        """Wait for the summary that is being written, if one is."""
        summary = self.summary
        if summary is not None:
            await workflow.wait_condition(lambda: summary.done() or self._interrupted())
            self._take_summary()

    def _take_summary(self) -> None:
        """Let go of a summary that has ended; a bug in it reaches the run's own coroutine."""
        if self.summary is not None and self.summary.done():
            ended, self.summary = self.summary, None
            if not ended.cancelled():
                ended.result()

    async def _summarise(self) -> None:
        state, policy = self.state, self.state.shortens
        assert policy is not None
        asked = SummariseInput(
            turn=state.turn,
            spec_digest=state.spec_digest,
            base=state.base,
            epoch=state.context.epoch,
            keep_turns=policy.keep_turns,
            room=state.tail_bytes(),
            drop_thinking=True if state.drop_thinking else None,
            tenant=state.tenant,
        )
        try:
            written: SummariseOutput = await workflow.execute_activity(
                contract.SUMMARISE,
                asked,
                result_type=SummariseOutput,
                **options.summarise(state),
            )
        except ActivityError as error:
            if failures.is_cancelled(error):
                # Its count never comes: charge what it may have cost.
                asks = policy.summariser or state.pinned.model
                lost = priced(Usage(estimated_tokens=policy.checkpoint_tokens), asks.prices)
            elif failures.is_held_back(error):
                await self._until_switched_on(error)
                return
            else:
                lost = failures.lost_usage(error)
                self.state.context.unsummarised += 1
            self.state.charge(lost)
            return
        # Other turns may have gone by: the state is read anew.
        state = self.state
        state.charge(written.usage)
        if written.checkpoint is None:
            state.context.unsummarised += 1
        elif written.checkpoint.epoch == state.context.number:
            # Its entries are counted from the beginning of that epoch's view.
            state.context.checkpoint, state.context.unsummarised = written.checkpoint, 0

    async def _shorten(self) -> None:
        """Begin a new epoch; or ask for the summary that it needs first."""
        state, policy = self.state, self.state.shortens
        assert policy is not None
        context = state.context
        summarised = policy.mode == "checkpoint" and context.unsummarised < MAX_IN_VAIN
        asked = ShortenInput(
            turn=state.turn,
            spec_digest=state.spec_digest,
            base=state.base,
            epoch=context.epoch,
            sealed=state.sealed,
            checkpoint=context.checkpoint,
            room=state.opening_bytes(),
            last_resort=not summarised,
        )
        try:
            shorter: ShortenOutput = await workflow.execute_activity(
                contract.SHORTEN, asked, result_type=ShortenOutput, **options.shorten(state)
            )
        except ActivityError as error:
            if not failures.is_cancelled(error):
                self._no_answer(*failures.end_of(error, "state_lost"))
            return
        if shorter.epoch is None:
            await self._summarise()
            return
        state.base, state.sealed = shorter.epoch.opening, shorter.sealed
        context.begin(shorter.epoch, shorter.bytes)
