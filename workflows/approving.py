"""A person's word before a call is run: asked for, decided, expired."""

from __future__ import annotations

import asyncio
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError

from turnkeeper import contract
from turnkeeper.approvals import Decision
from turnkeeper.contract import ExecuteOutput, Signature, VerifyOutput
from turnkeeper.render import approval_awaited
from turnkeeper.spec import ToolSpec
from turnkeeper.state import Call, RunState
from workflows import cockpit, failures, options


class AsksPeople:
    """What a run does so that calls wait for a person, and go on."""

    state: RunState
    _expiry: asyncio.Task[None] | None = None
    _expiry_at: float = 0
    """Workflow time for which that timer is set."""
    _passed: float = 0
    """The latest of such times that is over, whatever the clock says in its rounding."""

    def _interrupted(self) -> bool:
        raise NotImplementedError

    def _begin(self, activity: Any) -> None:
        raise NotImplementedError

    def _note_waiting(self, call: Call, waiting_for: str, what: str = "") -> None:
        raise NotImplementedError

    def _allowed(self, call: Call) -> dict[str, Any]:
        """What an attempt is told of the people's word; nothing where none is needed."""
        level = self.state.must_ask(call)
        return {
            "approval": None if level == "never" else level,
            "granted": call.granted,
            "trusted": self.state.approvals.trusted.get(call.tool),
            "asks_only": call.asks_only or None,
        }

    def _needs_word(self, call: Call, tool: ToolSpec, output: ExecuteOutput) -> None:
        """An attempt has done nothing: it was to find out whether a person has to allow it."""
        state, asks = self.state, output.asks
        assert asks is not None
        call.asks_only = False
        if self._interrupted() or state.outcome is not None:
            call.finish("not_run", "Not run: the run was ended.")
        elif output.status == "cleared":
            call.status, call.granted = "proposed", asks.digest
        else:
            state.approvals.ask(
                call,
                asks,
                turn=state.turn,
                effect=tool.effect,
                now=workflow.time(),
                seconds=state.pinned.approvals.expires,
                run_ends=state.deadline,
            )
            cockpit.publish_approvals(state)
            self._note_asked(call)

    def _note_asked(self, call: Call) -> None:
        asked = [a for a in self.state.approvals.waiting if a.id == call.approval]
        late = "nobody decided in time; " if asked[0].escalated else ""
        self._note_waiting(call, approval_awaited(asked), f"{late}asked because {asked[0].why}")

    def _take_decisions(self) -> None:
        """What people have said counts before the clock does."""
        state = self.state
        if not state.approvals.waiting:
            return
        if state.pinned.verifies:
            for decision in [d for d in state.approvals.news if not d.verified]:
                decision.checking = True
                self._begin(self._verify(decision))
        later = state.approvals.is_behind(state.deadline)
        state.approvals.catch_up(state.deadline)
        changed = state.approvals.apply(state.calls)
        if self._has_expired():
            policy, changed = state.pinned.approvals, True
            late = state.approvals.expire(state.calls, self._now(), policy)
            if policy.on_expiry == "stop":
                tools = ", ".join(a.tool for a in late)
                state.end("stopped", f"nobody decided in time about a call of {tools}")
            for call in state.waiting("approval"):
                if any(a.id == call.approval for a in late):
                    self._note_asked(call)
        # Asked for last: it leaves an event in the history.
        if changed or (later and workflow.patched("approvals-tell-the-runs-end")):
            cockpit.publish_approvals(state)

    async def _verify(self, decision: Decision) -> None:
        """Find out who made a decision: it counts once that is known, else not at all."""
        state = self.state
        asked = next(a for a in state.approvals.asked if a.id == decision.approval)
        signature = Signature(
            agent=state.request.agent,
            approval=asked,
            verdict="approve" if decision.allow else "deny",
            actor=decision.actor,
            proof=decision.proof,
            metadata=state.request.metadata,
        )
        try:
            found: VerifyOutput = await workflow.execute_activity(
                contract.VERIFY,
                signature,
                result_type=VerifyOutput,
                **options.verify(signature),
            )
        except ActivityError as error:
            why = failures.end_of(error, "state_lost").reason
            self.state.approvals.refuse(decision, why)
            cockpit.publish_approvals(self.state)
            return
        decision.actor, decision.verified, decision.checking = found.actor, True, False

    def _has_expired(self) -> bool:
        nearest = self.state.approvals.nearest
        return nearest is not None and nearest <= self._now()

    def _now(self) -> float:
        return max(workflow.time(), self._passed)

    def _await_expiry(self) -> None:
        """One timer for all of them: for the one that expires first."""
        nearest = self.state.approvals.nearest
        running = self._expiry is not None and not self._expiry.done()
        if running and nearest != self._expiry_at:
            assert self._expiry is not None
            self._expiry.cancel()
            running = False
        if nearest is not None and not running:
            self._expiry_at = nearest
            self._expiry = asyncio.create_task(self._expires(nearest))

    async def _expires(self, due: float) -> None:
        await workflow.sleep(max(due - workflow.time(), 0.001), summary="an approval expires")
        self._passed = due
