"""One agent run: the four-state cycle, durably.

    GENERATE -> PARSE -> EXECUTE -> RESUME -> GENERATE ...

Everything that survives lies in `RunState`. Calls in flight are states in it, never coroutines that
hold something: the run may be replayed, or continue as new, at any quiet point.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError, ApplicationError

from turnkeeper import contract
from turnkeeper.contract import (
    ExecuteInput,
    ExecuteOutput,
    GenerateInput,
    GenerateOutput,
    LoadAgentInput,
    LoadAgentOutput,
    RunResult,
    SealInput,
    SealOutput,
)
from turnkeeper.entries import arguments_digest, message
from turnkeeper.inbox import message_id
from turnkeeper.outcomes import OUTCOMES
from turnkeeper.parse import Decision, Parsed, parse
from turnkeeper.prices import Allowance, priced
from turnkeeper.spec import ToolSpec
from turnkeeper.state import EMPTY_REPLY, MAX_CONTINUED, MAX_DISCARDED, Call, Phase, RunState
from turnkeeper.text import clip, one_line
from turnkeeper.usage import Usage
from workflows import boundary, cockpit, failures, options
from workflows.approving import AsksPeople
from workflows.beginning import Forks
from workflows.hold import Holds
from workflows.messages import Messages
from workflows.notices import Notices
from workflows.outage import OutlastsOutages
from workflows.pace import Pace
from workflows.room import MakesRoom
from workflows.talk import Talks

DRAIN_SECONDS = 10.0
"""Beside the heartbeat timeout: how long calls that were cancelled are waited for."""
TURNS_WITHOUT_STORE = 20
"""Turns until sealing is tried again after the artifact store was down."""
MAX_CARRIED_BYTES = 1_000_000
"""Of a state that continues as new while calls wait; one with more waits where it is."""
FULL_EVENTS, FULL_BYTES = 20_000, 20_000_000
"""The history beyond which a run does not go on unsealed; 51,200 and 50 MB end it."""


# Dynamic, so that every start reaches our own validation instead of the converter's.
@workflow.defn(dynamic=True)
class AgentRun(Notices, Forks, Holds, OutlastsOutages, Talks, MakesRoom, AsksPeople, Messages):
    """The workflow `AgentRun`."""

    @workflow.init
    def __init__(self, args: Sequence[RawValue]) -> None:
        self.refused: str | None = None
        self.state: RunState
        try:
            self.state = boundary.open_state(args)
        except boundary.Refused as refusal:
            self.refused = str(refusal)
        self.tasks: list[asyncio.Task[None]] = []
        """Activities in flight, in the order they were begun: a set has none that replays."""
        self.expired = False
        self.turns_here = 0
        """Generations begun since the run last continued as new."""
        self.pace = Pace()
        self.seal_from = 0
        """The turn from which the run may continue as new."""
        self.acknowledging = False
        self.notices = []

    @workflow.run
    async def run(self, args: Sequence[RawValue]) -> RunResult:  # noqa: ARG002
        """From the first to the last turn; see `_step` for the cycle."""
        if self.refused is not None:
            raise boundary.refusal(self.refused)
        try:
            if self.state.spec is None:
                await self._alone(self._load())
                await self._take_over()
            self.timer = asyncio.create_task(self._deadline())
            while not await self._has_ended():
                await self._step()
        except asyncio.CancelledError:
            # Temporal's cancel reaches this coroutine only: what it had begun is cancelled and
            # awaited here, or a tool would go on after the run's end.
            self.state.cancel(workflow.cancellation_reason() or None)
            await self._drain()
            await self._notices_begun()
            self._close()
            raise
        self._close()
        return self._result()

    async def _has_ended(self) -> bool:
        """Whether the run closes: what comes in until then it goes on with."""
        if self.state.outcome is None:
            return False
        await self._settle()
        return not self.state.reopens()

    async def _step(self) -> None:
        state = self.state
        if state.inbox.idle_since is not None:
            await self._await_message()
        elif self._interrupted():
            self._end_interrupted()
        elif state.phase == Phase.GENERATE and (state.control.pause or state.control.held):
            await self._hold()
        elif state.phase == Phase.GENERATE and state.outage.until:
            await self._await_provider()
        elif state.phase == Phase.GENERATE:
            await self._generate()
        elif state.phase == Phase.PARSE:
            self.pace.measured("parse", self._parse)
        elif state.phase == Phase.EXECUTE:
            await self._execute()
        else:
            turn, calls = state.turn, len(state.calls)
            self.pace.measured("resume", self._resume)
            self.pace.log_turn(turn, calls)
        cockpit.show(state)

    # --- GENERATE -------------------------------------------------------------------------------

    async def _generate(self) -> None:
        state = self.state
        if self._is_long() and self.turns_here > 0 and self._may_continue():
            await self._continue_as_new()
            return
        self._take_messages()
        await self._make_room()
        if state.outcome is not None or self._interrupted() or state.control.pause is not None:
            return
        if state.hears and state.inbox.interrupts:
            # It came meanwhile: it is taken, too, before anything is asked.
            return
        allowance = state.allowance()
        if self._is_spent(allowance):
            return
        self.turns_here += 1
        asked = GenerateInput(
            turn=state.turn,
            spec_digest=state.spec_digest,
            base=state.base,
            new=state.pending,
            max_tokens=state.output_limit,
            answer_only=True if state.closing else None,
            drop_thinking=True if state.drop_thinking else None,
            seconds_left=max(0.0, state.deadline - workflow.time()),
            tenant=state.tenant,
            allowance=allowance,
            estimate=state.estimate(),
        )
        cockpit.show(state)
        with self._turn_group():
            await self._alone(self._ask(asked), hears=state.hears)

    def _is_spent(self, allowance: Allowance | None) -> bool:
        """Whether limits on tokens or cost leave too little for another reply."""
        state = self.state
        reached = state.spent(allowance)
        if reached is None:
            return False
        # Runs of before were told by what they had used alone. Asked for last: it leaves an event.
        if reached[0] == "token_limit" and not workflow.patched("admission"):
            return False
        state.asks_last_answer(*reached)
        return True

    def _take_messages(self) -> None:
        for entry in self.state.take_messages():
            named = {"turn": self.state.turn, "message_id": message_id(entry)}
            workflow.logger.info("message", extra=named)

    async def _ask(self, asked: GenerateInput) -> None:
        state = self.state
        try:
            reply: GenerateOutput = await workflow.execute_activity(
                contract.GENERATE,
                asked,
                result_type=GenerateOutput,
                **options.generate(state, asked.max_tokens),
            )
        except ActivityError as error:
            if failures.is_cancelled(error):
                # Its count never comes: charge what it may have cost.
                lost = Usage(estimated_tokens=asked.max_tokens)
                state.charge(priced(lost, state.pinned.model.prices))
                return
            if failures.is_held_back(error):
                self.not_sent = True
                try:
                    await self._until_switched_on(error)
                finally:
                    self.not_sent = False
                return
            if failures.needs_other_thinking(error) and not state.drop_thinking:
                state.drop_thinking = True
                return
            state.charge(failures.lost_usage(error))
            if failures.is_overflow(error) and state.shortens is not None:
                state.context.overflow = failures.end_of(error, "").reason
                return
            if self._parks(error):
                return
            if state.closing:
                # The limit was reached all the same.
                state.end(state.closing, state.reason)
            state.end(*failures.end_of(error, "model_unavailable"))
            return
        self.pace.generated(reply)
        state.heard(reply)

    # --- PARSE ----------------------------------------------------------------------------------

    def _parse(self) -> None:
        state = self.state
        assert state.reply is not None
        limit, ceiling = state.output_limit, state.pinned.model.ceiling
        cut_by = state.reply.cut_by
        can_grow = limit < ceiling and state.discarded < MAX_DISCARDED and cut_by is None
        parsed = parse(state.reply, can_grow=can_grow and not state.closing)
        state.text = clip(parsed.text, boundary.ANSWER_BYTES) if parsed.text else state.text
        state.note(parsed)
        if state.closing:
            state.keep_reply()
            state.end(state.closing, state.typed.why(state.reason))
        elif parsed.decision == Decision.CALLS:
            state.keep_reply()
            state.propose(parsed.calls)
        elif parsed.decision == Decision.ANSWER:
            state.keep_reply()
            if not state.correct():
                state.answered(workflow.time)
        elif parsed.decision == Decision.CONTINUE and state.continued < MAX_CONTINUED:
            state.keep_reply()
            state.continued += 1
            state.phase = Phase.RESUME
        elif parsed.decision == Decision.GROW:
            state.discard_reply()
            state.max_tokens = min(limit * 4, ceiling)
        elif parsed.decision == Decision.TRUNCATED and cut_by is not None:
            state.end(cut_by, "the last reply was cut off where the limit allowed no more")
        else:
            self._without_a_reply(parsed)

    def _without_a_reply(self, parsed: Parsed) -> None:
        """The reply cannot be part of the conversation: ask once more, or end."""
        state = self.state
        if parsed.decision == Decision.AGAIN and state.discard_reply():
            return
        overflowed = parsed.decision == Decision.OVERFLOW and state.shortens is not None
        if overflowed and state.discard_reply():
            state.context.overflow = parsed.reason or "the reply did not fit into the window"
            return
        if parsed.decision == Decision.NUDGE and state.discard_reply(at_most=1):
            state.pending.append(message(EMPTY_REPLY))
            return
        outcome = {
            Decision.REFUSED: "refused",
            Decision.TRUNCATED: "truncated",
            Decision.CONTINUE: "truncated",
            Decision.OVERFLOW: "context_overflow",
            Decision.UNKNOWN: "model_rejected",
        }.get(parsed.decision, "model_unavailable")
        state.end(outcome, parsed.reason or f"the provider paused {MAX_CONTINUED} times in a row")

    # --- EXECUTE --------------------------------------------------------------------------------

    async def _execute(self) -> None:
        """A pump over the calls' states: start what may start, wait, again until all are done."""
        state = self.state
        while True:
            self._take_news()
            self._take_due()
            if state.inbox.interrupts:
                await self._end_calls()
                if state.outcome is not None:
                    await self._drain()
            if self._ends_with_calls_open():
                await self._drain()
            for call in state.startable():
                self._start(call)
            self._set_alarm()
            self._await_expiry()
            if not self.tasks and not any(c.status == "waiting" for c in state.calls):
                if all(c.status == "done" for c in state.calls):
                    break
                # One was answered at once: what stands behind it may start.
                continue
            cockpit.show(state)
            if self._may_leave():
                await self._continue_as_new()
            await self._wait(hears=True)
            if self._interrupted() or state.outcome is not None:
                await self._drain()
        state.phase = Phase.RESUME

    def _ends_with_calls_open(self) -> bool:
        """Whether what was just heard ends the run: then nothing more begins."""
        state = self.state
        ends = state.outcome is not None and any(c.status != "done" for c in state.calls)
        # Asked for last: it leaves an event in the history.
        return ends and workflow.patched("ends-before-calls-begin")

    def _start(self, call: Call) -> None:
        tool = self.state.tool(call)
        assert tool is not None
        if tool.awaits is not None:
            self._hold_call(call, tool)
            return
        call.status = "running"
        with self._turn_group():
            self._begin(self._call(call, tool))

    async def _call(self, call: Call, tool: ToolSpec) -> None:
        state = self.state
        asked = ExecuteInput(
            agent=state.request.agent,
            tool=call.tool,
            effect=tool.effect,
            attempts=tool.attempts,
            turn=state.turn,
            index=call.index,
            call_id=call.call_id,
            arguments=call.arguments,
            arguments_digest=arguments_digest(call.tool, call.arguments),
            key=call.key,
            result_bytes=state.result_bytes(),
            images=state.result_images(call),
            metadata=state.request.metadata,
            repeated=self._is_repeated(),
            reset=True if self._was_reset() else None,
            key_ttl=tool.key_ttl,
            **self._allowed(call),
        )
        try:
            output: ExecuteOutput = await workflow.execute_activity(
                call.tool, asked, result_type=ExecuteOutput, **options.execute(state, call, tool)
            )
        except ActivityError as error:
            if failures.is_in_doubt(error):
                # Before the run was reset, or by one that was started with the same key.
                call.asks_only = False
            self._without_result(call, failures.told(error, tool))
            return
        self.pace.executed(output)
        if output.asks is not None:
            self._needs_word(call, tool, output)
            return
        call.finish("ok" if output.status in ("ok", "stop") else "error", output.entry)
        if output.status == "stop":
            state.end("stopped", output.reason)
        elif output.status == "invalid":
            call.invalid = True

    def _is_repeated(self) -> bool:
        """Whether another run, or this one before it was reset, may have used the same keys."""
        info = workflow.info()
        return (
            self.state.request.request_key is not None or info.run_id != info.first_execution_run_id
        )

    def _was_reset(self) -> bool:
        """Whether turns of this run may have been run before, in an execution that was replaced."""
        info = workflow.info()
        if info.run_id != info.original_execution_run_id:
            # Noted: the execution that this one continues as does not differ so.
            self.state.was_reset = True
        return self.state.was_reset

    def _without_result(self, call: Call, told: failures.Told) -> None:
        if call.asks_only:
            # Nothing was to happen.
            unsure = f"Whether {call.tool} is allowed could not be found out. It was not run."
            call.finish(
                "not_run" if told.outcome == "not_run" else "error",
                unsure if told.outcome == "unknown" else told.text,
            )
            return
        if told.outcome != "unknown" or self.state.pinned.on_unknown is None:
            call.finish(*told)
            return
        goes_on = self.state.outcome is None and not self._interrupted()
        self.state.doubt(call, told.text, workflow.time(), may_wait=goes_on)
        cockpit.publish_unknown(self.state)
        self._note_unknown(call, told.text)

    def _take_news(self) -> None:
        self._take_decisions()
        state = self.state
        if state.take_answers():
            cockpit.publish_waiting(state)
        if not state.resolutions:
            return
        for said in state.resolutions:
            state.resolve(said)
        state.resolutions = []
        cockpit.publish_unknown(state)

    # --- RESUME ---------------------------------------------------------------------------------

    def _resume(self) -> None:
        state = self.state
        invalid = next((c for c in state.calls if c.invalid), None)
        state.take_results()
        if invalid is not None and state.pinned.on_invalid_call == "stop":
            state.end("stopped", f"policy: an invalid call of {one_line(invalid.tool, 64)}")
            return
        state.go_on()

    # --- activities in flight -------------------------------------------------------------------

    def _begin(self, activity: Any) -> None:
        self.tasks.append(asyncio.create_task(activity))

    async def _alone(self, activity: Any, *, hears: bool = False) -> None:
        """Run an activity to its end, or until the run is to end.

        In a task too: cancelled, or stopped, the run must not take the activity's end for its own.
        `hears`: it is a generation that a message may end.
        """
        self._begin(activity)
        await self._wait(hears=hears)
        if self._interrupted():
            await self._drain()
        elif self.tasks and hears and self.state.inbox.interrupts:
            await self._end_generation()

    async def _wait(self, *, hears: bool = False) -> None:
        """Until an activity in flight is done, somebody has spoken, or the run is to end."""
        await workflow.wait_condition(
            lambda: (
                self._interrupted()
                or any(t.done() for t in self.tasks)
                or self.state.has_news
                or self._has_expired()
                or self._may_leave()
                or self._rings()
                or (hears and self.state.inbox.interrupts)
            )
        )
        self._reap()

    def _reap(self) -> None:
        done = [t for t in self.tasks if t.done()]
        self.tasks = [t for t in self.tasks if not t.done()]
        for task in done:
            # An exception in a child task would otherwise be lost and the run wait in silence.
            if not task.cancelled():
                task.result()

    async def _drain(self) -> None:
        """Cancel what is in flight and wait until it has ended, within a bound."""
        if self.summary is not None:
            self.tasks.append(self.summary)
            self.summary = None
        await self._cancel()
        self._take_news()
        for call in self.state.calls if self.state.phase == Phase.EXECUTE else []:
            self._abandon(call)
            if call.status == "waiting":
                self.state.give_up(call)
                cockpit.publish_given_up(self.state, call)
            call.finish("not_run", "Not run: the run was ended.")

    def _abandon(self, call: Call) -> None:
        """Let go of a call that did not heed its cancel."""
        tool = self.state.tool(call)
        if call.status == "running" and tool is not None:
            self._without_result(call, failures.abandoned(tool))

    async def _cancel(self) -> None:
        """Cancel the activities in flight and wait until they have ended, within a bound."""
        for task in self.tasks:
            task.cancel()
        if self.tasks:
            patience = self.state.heartbeat_seconds + DRAIN_SECONDS
            await asyncio.shield(workflow.wait(self.tasks, timeout=patience))
            self._reap()
            # What does not heed a cancel holds the run no longer than this.
            self.tasks = []

    # --- interruptions --------------------------------------------------------------------------

    async def _deadline(self) -> None:
        # One timer for the whole run: a timeout on each wait would cost two events each time.
        deadline = 0.0
        while deadline < self.state.deadline:
            # Again if it was raised meanwhile, and only then: a replay makes the same timers.
            deadline = self.state.deadline
            left = max(0.0, deadline - workflow.time())
            await workflow.sleep(left, summary="time limit")
        self.expired = True

    def _interrupted(self) -> bool:
        return self.expired or self.state.stop is not None

    def _end_interrupted(self) -> None:
        state = self.state
        if state.stop is not None:
            by = f" by {state.stop.actor}" if state.stop.actor else ""
            state.end("stopped", f"stopped{by}: {state.stop.reason or 'no reason given'}")
        else:
            state.end("time_limit", f"{state.limits.wall_seconds:g} seconds are over")

    # --- begin, continue, end -------------------------------------------------------------------

    async def _load(self) -> None:
        state = self.state
        try:
            loaded: LoadAgentOutput = await workflow.execute_activity(
                contract.LOAD_AGENT,
                LoadAgentInput(agent=state.request.agent, limits=state.request.limits),
                result_type=LoadAgentOutput,
                **options.load_agent(state.request.agent),
            )
        except ActivityError as error:
            if not failures.is_cancelled(error):
                state.end(*failures.end_of(error, "state_lost"))
            return
        state.spec, state.spec_digest = loaded.spec, loaded.spec_digest
        state.context.head_tokens = loaded.head_tokens
        state.attributes = loaded.attributes
        state.heartbeat_seconds = loaded.heartbeat_seconds
        state.raise_early()
        state.notifies = loaded.notifies
        cockpit.publish_start(state)
        cockpit.show(state)

    def _is_long(self, *, by_size: bool = True) -> bool:
        # Before anything was said there is nothing to seal; and the agent may not be loaded, if the
        # run was stopped meanwhile.
        if self.state.base.entries == 0 or self.state.turn < self.seal_from:
            return False
        info, history = workflow.info(), self.state.pinned.history
        return (
            info.is_continue_as_new_suggested()
            or info.get_current_history_length() >= history.events
            or (by_size and info.get_current_history_size() >= history.bytes)
        )

    def _outgrows(self) -> bool:
        """Whether a run that waits has a long history: messages that are dropped add to it, too."""
        # A state of more bytes than the threshold would otherwise go on for ever.
        return self._is_long(by_size=self.turns_here > 0)

    def _may_continue(self) -> bool:
        """Whether it need not wait long: a summary may take minutes, and turns can go on."""
        writing = self.summary is not None and not self.summary.done()
        # Asked for last: it leaves an event in the history.
        return not writing or self._is_full() or not workflow.patched("summary-before-continuing")

    def _may_leave(self) -> bool:
        """Whether it may continue as new while calls wait: their arguments and results go along."""
        if self.tasks or not self._outgrows():
            return False
        fits = len(self.state.model_dump_json()) <= MAX_CARRIED_BYTES
        # Asked for last: it leaves an event in the history.
        return fits and workflow.patched("continues-while-waiting")

    def _is_full(self) -> bool:
        info = workflow.info()
        return (
            info.get_current_history_length() >= FULL_EVENTS
            or info.get_current_history_size() >= FULL_BYTES
        )

    async def _continue_as_new(self) -> None:
        """Seal what was said and go on in a new execution. Nothing is in flight here."""
        state = self.state
        await self._summary_written()
        state.sealing = True
        cockpit.show(state)
        await self._alone(self._seal())
        state.sealing = False
        sealed = state.sealed is not None and state.sealed.position == state.transcript
        if self._interrupted() or not sealed:
            return
        await self._notices_begun()
        await workflow.wait_condition(workflow.all_handlers_finished)
        # No await between that and this: a message that came in between would be lost.
        workflow.continue_as_new(state, memo=cockpit.memo(state))

    async def _seal(self) -> None:
        state = self.state
        try:
            sealed: SealOutput = await workflow.execute_activity(
                contract.SEAL,
                SealInput(position=state.base, sealed=state.sealed, epoch=state.context.epoch),
                result_type=SealOutput,
                **options.seal(state),
            )
        except ActivityError as error:
            if not failures.is_cancelled(error):
                self._not_sealed(failures.end_of(error, contract.STORE_UNAVAILABLE))
            return
        state.sealed = sealed.sealed

    def _not_sealed(self, why: failures.End) -> None:
        """A store that is down delays continue-as-new; the run goes on while there is room."""
        if why.outcome == "state_lost" or self._is_full():
            self.state.end("state_lost", f"what was said could not be sealed: {why.reason}")
        else:
            self.seal_from = self.state.turn + TURNS_WITHOUT_STORE

    async def _settle(self) -> None:
        """Nothing is in flight, and nobody waits for an answer."""
        await self._drain()
        self._note_end()
        await self._notices_begun()
        if self.acknowledging:
            # In a task of its own: a task that ends the run is thrown away when another event comes
            # meanwhile, and an update in it is given back to its caller as an error.
            await workflow.sleep(0.001, summary="acknowledge")
        await workflow.wait_condition(workflow.all_handlers_finished)

    def _close(self) -> None:
        self.pace.log_turn(self.state.turn, len(self.state.calls))
        if self.state.calls:
            self.state.take_results()
        self.state.count_unread()
        cockpit.publish_end(self.state)

    def _result(self) -> RunResult:
        result = boundary.result_of(self.state)
        if OUTCOMES[result.outcome].closes == "completed":
            return result
        raise ApplicationError(
            result.reason or result.outcome, result, type=result.outcome, non_retryable=True
        )

    def _turn_group(self) -> Any:
        turn = self.state.turn
        return workflow.create_event_group(f"turn-{turn}", label=f"Turn {turn}").scope()
