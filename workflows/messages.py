"""What comes in while a run goes on. Handlers only take note: the loop decides."""

from __future__ import annotations

from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from turnkeeper import contract
from turnkeeper.contract import CallStatus, ContextStatus, RunStatus
from turnkeeper.render import waiting_for
from turnkeeper.state import RunState
from turnkeeper.text import arguments_line, one_line
from workflows import boundary


class Messages:
    """The updates, signals and queries of a run.

    Named, so that the UI offers them, but with `*args`: a signal with a missing argument would
    raise inside the SDK and fail the workflow task for ever.
    """

    refused: str | None
    """Why the start was not one: then there is no state."""
    state: RunState
    acknowledging: bool
    """Whether an update's answer may still be on its way."""

    @workflow.update(name=contract.STOP)
    async def stop_update(self, *args: Any) -> dict[str, str]:
        """End the run. Body: {"reason": "...", "actor": "..."}, both optional."""
        # The first one stays: it says who ended the run, and why.
        self.state.stop = self.state.stop or boundary.stop_request(args)
        self.acknowledging = True
        return {"accepted": "stop"}

    @stop_update.validator
    def check_stop(self, *args: Any) -> None:
        """Refused here, an update leaves nothing in history."""
        if self.refused is not None:
            raise boundary.refusal(self.refused)
        try:
            boundary.stop_request(args)
        except ValueError as error:
            raise ApplicationError(str(error), type="invalid_request", non_retryable=True) from None

    @workflow.signal(name=contract.STOP)
    def stop_signal(self, *args: Any) -> None:
        """End the run, also while no worker is up. Body as above; a wrong one is dropped."""
        try:
            if self.refused is None:
                self.state.stop = self.state.stop or boundary.stop_request(args)
        except ValueError as error:
            workflow.logger.warning("stop signal dropped: %s", one_line(str(error), 300))

    @workflow.update(name=contract.RESOLVE)
    async def resolve_update(self, *args: Any) -> dict[str, str]:
        """Say whether a call happened. Body: {"call_id": "...", "landed": true, "result": "..."}"""
        self.state.resolutions.append(boundary.resolve_request(args))
        self.acknowledging = True
        return {"accepted": "resolve"}

    @resolve_update.validator
    def check_resolve(self, *args: Any) -> None:
        """Refused here, an update leaves nothing in history."""
        if self.refused is not None:
            raise boundary.refusal(self.refused)
        try:
            problem = self.state.not_waiting(boundary.resolve_request(args).call_id)
        except ValueError as error:
            problem = str(error)
        if problem:
            raise ApplicationError(problem, type="invalid_request", non_retryable=True) from None

    @workflow.signal(name=contract.RESOLVE)
    def resolve_signal(self, *args: Any) -> None:
        """As the update, also while no worker is up; what would be refused there is dropped."""
        if self.refused is not None:
            return
        try:
            said = boundary.resolve_request(args)
            problem = self.state.not_waiting(said.call_id)
        except ValueError as error:
            problem = str(error)
        if problem:
            workflow.logger.warning("resolve signal dropped: %s", one_line(problem, 300))
        else:
            self.state.resolutions.append(said)

    @workflow.query(name=contract.STATUS)
    def status(self, *_args: Any) -> RunStatus:
        """Where the run stands."""
        if self.refused is not None:
            return RunStatus(
                agent="", model="", phase="", turn=0, waiting_for="", outcome="invalid_request"
            )
        state = self.state
        return RunStatus(
            agent=state.request.agent,
            model=state.spec.model.name if state.spec else "",
            phase=state.phase,
            turn=state.turn,
            waiting_for=waiting_for(state),
            calls=[
                CallStatus(
                    call_id=c.call_id,
                    tool=c.tool,
                    status=c.status,
                    arguments=arguments_line(c.arguments, 200),
                )
                for c in state.calls
            ],
            usage=state.usage,
            limits=state.limits,
            context=self._context(),
            outcome=state.outcome,
            unknown=state.unknown,
        )

    def _context(self) -> ContextStatus | None:
        state = self.state
        if state.spec is None:
            return None
        return ContextStatus(
            tokens=state.context.tokens, window=state.window, epoch=state.context.number + 1
        )
