"""Messages in the loop: a turn ends for one, and a run that is kept open waits for the next."""

from __future__ import annotations

import asyncio

from temporalio import workflow

from turnkeeper.render import awaited_words
from turnkeeper.spec import ToolSpec
from turnkeeper.state import Call, Phase, RunState
from turnkeeper.text import clock
from turnkeeper.waiting_tools import hold
from turnkeeper.waits import answer_awaited
from workflows import cockpit


class Talks:
    """What a run does when somebody says something, and while nobody does."""

    state: RunState
    turns_here: int
    not_sent: bool
    summary: asyncio.Task[None] | None
    alarm: asyncio.Task[None] | None = None
    alarm_at: float = 0.0

    def _interrupted(self) -> bool:
        raise NotImplementedError

    def _end_interrupted(self) -> None:
        raise NotImplementedError

    def _outgrows(self) -> bool:
        raise NotImplementedError

    async def _continue_as_new(self) -> None:
        raise NotImplementedError

    async def _cancel(self) -> None:
        raise NotImplementedError

    def _abandon(self, call: Call) -> None:
        raise NotImplementedError

    def _note_waiting(self, call: Call, waiting_for: str, what: str = "") -> None:
        raise NotImplementedError

    # --- a message that interrupts --------------------------------------------------------------

    async def _end_generation(self) -> None:
        """Without its reply. The turn counts all the same: the next generation needs another
        activity id as long as a worker holds on to this one, and limits have to hold."""
        # Then no request was sent, and the activity of that id has ended.
        off = bool(self.state.switched_off)
        # Or it is a summary that waits. Asked for last: it leaves an event in the history.
        if off and not self.not_sent and workflow.patched("summary-waits-beside"):
            off = False
        await self._cancel()
        if self.state.phase is Phase.GENERATE and not off:
            self.state.cut_off()

    async def _end_calls(self) -> None:
        """What was not begun is not run; what runs is cancelled. A call that waits for a person to
        say what became of it goes on waiting: that is the agent's policy."""
        state = self.state
        state.inbox.heeded()
        reads = [
            c
            for c in state.calls
            if c.status == "running" and (c.asks_only or not state.mutates(c))
        ]
        self._not_begun()
        for call in (held := state.waiting("answer", "time")):
            call.finish("not_run", "Not answered: a message came first.")
        if held:
            cockpit.publish_waiting(state)
        await self._cancel()
        for call in state.calls:
            self._abandon(call)
        # Also what has found out, while it was cancelled, that a person has to allow it.
        self._not_begun()
        for call in reads:
            # Ended by us: that is no failure of the tool.
            call.outcome = "not_run" if call.outcome == "error" else call.outcome

    def _not_begun(self) -> None:
        state = self.state
        for call in state.calls:
            if call.status == "proposed":
                call.finish("not_run", "Not run: a message came first.")
        for call in (asked := state.waiting("approval")):
            state.approvals.withdraw(call)
            call.finish("not_run", "Not run: a message came first.")
        if asked:
            cockpit.publish_approvals(state)

    # --- calls that the run itself serves -------------------------------------------------------

    def _hold_call(self, call: Call, tool: ToolSpec) -> None:
        """Let a call wait for an answer or a time, without a coroutine of its own."""
        assert tool.awaits is not None
        if told := self.state.served_off.get(tool.name):
            call.finish("not_run", told)
            return
        try:
            held = hold(tool.name, call.arguments, workflow.time(), self.state.deadline)
        except ValueError as error:
            call.finish("error", str(error))
            call.invalid = True
            return
        call.status, call.awaits, call.held = "waiting", tool.awaits, held
        cockpit.publish_waiting(self.state)
        if call.awaits == "answer":
            self._note_waiting(call, awaited_words([answer_awaited(call.call_id, held)]))

    def _set_alarm(self) -> None:
        """One timer, for the nearest time that a call waits for."""
        due = self.state.next_due()
        if self.alarm is not None and due != self.alarm_at:
            self.alarm.cancel()
            self.alarm = None
        if due is not None and self.alarm is None:
            # Never none: where time is skipped, as in tests, a timer of no length never fires.
            left = max(0.001, due - workflow.time())
            self.alarm = asyncio.create_task(workflow.sleep(left, summary=clock(due)))
            self.alarm_at = due

    def _rings(self) -> bool:
        return self.alarm is not None and self.alarm.done()

    def _take_due(self) -> None:
        if self._rings():
            self.alarm = None
            # The timer's word counts: its time and the clock's may differ by a rounding.
            self.state.take_due(self.alarm_at, workflow.time())
            cockpit.publish_waiting(self.state)

    # --- between the turns ----------------------------------------------------------------------

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
        while True:
            cockpit.publish_waiting(state)
            bounds = state.idle_until, state.deadline
            try:
                await workflow.wait_condition(
                    lambda bounds=bounds: (  # type: ignore[misc]
                        self._is_called() or (state.idle_until, state.deadline) != bounds
                    ),
                    timeout=self._idle_left(),
                    timeout_summary="idle",
                )
            except TimeoutError:
                return
            if self._is_called():
                return
            # Its limits were raised meanwhile.

    def _is_called(self) -> bool:
        return self.state.inbox.has_mail or self._interrupted() or self._is_overlong()

    def _is_overlong(self) -> bool:
        """Whether to continue as new now."""
        # A summary that is being written would be waited for, and a message would wait with it.
        writing = self.summary is not None and not self.summary.done()
        return not writing and self._outgrows()

    def _idle_left(self) -> float | None:
        """Seconds; None where the timer of the run's own time limit comes first."""
        state = self.state
        assert state.idle_until is not None
        if state.idle_until >= state.deadline:
            return None
        return max(0.0, state.idle_until - workflow.time())
