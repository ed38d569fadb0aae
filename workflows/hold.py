"""A run that persons have paused: it waits at a turn boundary, where nothing is in flight."""

from __future__ import annotations

from temporalio import workflow

from turnkeeper.state import RunState
from workflows import cockpit


class Holds:
    """How a run waits for a person to resume it."""

    state: RunState
    turns_here: int

    def _interrupted(self) -> bool:
        raise NotImplementedError

    def _outgrows(self) -> bool:
        raise NotImplementedError

    async def _continue_as_new(self) -> None:
        raise NotImplementedError

    async def _hold(self) -> None:
        """Until the run is resumed, or is to end: its time limit goes on.

        Also of a run that was resumed while it continued as new: it has to publish that.
        """
        state, control = self.state, self.state.control
        while control.pause is not None and self._goes_on():
            # Resumed and paused again in one breath, it publishes who pauses it now.
            if control.held is None or control.released:
                control.hold(workflow.time())
                cockpit.publish_hold(state)
            cockpit.show(state)
            if self._outgrows():
                await self._continue_as_new()
            await workflow.wait_condition(
                lambda: control.released or self._outgrows() or not self._goes_on()
            )
        control.go_on()
        cockpit.publish_hold(state)

    def _goes_on(self) -> bool:
        return self.state.outcome is None and not self._interrupted()
