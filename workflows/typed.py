"""Typed answers in the loop: one that does not fit is corrected, a bounded number of times."""

from __future__ import annotations

from temporalio import workflow

from turnkeeper.contract import Checked
from turnkeeper.entries import message
from turnkeeper.state import Phase, RunState
from turnkeeper.typed import correction

NOT_CHECKED = "It was not checked. Give it once more."


class ChecksAnswers:
    """What a run does with an answer, which the activity that got it has checked."""

    state: RunState

    def _answered(self) -> None:
        state, typed = self.state, self.state.typed
        output = state.pinned.output
        if output is not None and typed.checked is None:
            # By a worker of before there were output types.
            typed.checked = Checked(problems=[NOT_CHECKED])
        if not typed.problems or output is None:
            typed.corrections = 0
            state.answered(workflow.time)
            return
        state.lines[-1].text += " → does not fit"
        state.continued = 0
        # Somebody has said more meanwhile: that was not the last answer.
        if typed.corrections >= output.retries and not state.inbox.has_mail:
            state.end("invalid_output", typed.why())
            return
        typed.corrections += 1
        state.pending.append(message(correction(typed.problems, output.json_schema)))
        state.phase = Phase.RESUME
