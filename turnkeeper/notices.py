"""What the webhook tells: a run waits for a person, failed, or has an unknown outcome. Pure.

A notice is also what the workflow that delivers it is started with, so it replays for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Event = Literal["run.waiting", "run.failed", "run.unknown"]

RUN_WAITING: Event = "run.waiting"
"""The run waits for a person; `waiting_for` says for what."""
RUN_FAILED: Event = "run.failed"
"""The run has ended and failed; `outcome` and `reason` say how."""
RUN_UNKNOWN: Event = "run.unknown"
"""Nobody can tell whether a call took effect; `calls` has it."""

MAX_CALLS = 32
"""Of one notice."""


class NoticedCall(BaseModel):
    """A tool call that a notice is about."""

    model_config = ConfigDict(extra="ignore")

    turn: int
    call_id: str
    tool: str
    key: str = ""
    """The idempotency key: what the target may know the effect by."""
    arguments: str = ""
    """One line, cut."""
    what: str = ""
    """What is the matter with it: one line, cut."""


class Notice(BaseModel):
    """The body of a webhook's request."""

    model_config = ConfigDict(extra="ignore")

    version: int = 1
    id: str
    """The same whenever this is told again."""
    event: Event
    time: str
    """When it happened, in ISO 8601, by Temporal's clock."""
    workflow_id: str
    """The run's id."""
    run_id: str
    """Temporal's id of the execution."""
    agent: str
    tenant: str | None = None
    waiting_for: str | None = None
    outcome: str | None = None
    reason: str | None = None
    calls: list[NoticedCall] = Field(default_factory=list)

    def cleaned(self, clean: Callable[[str], str]) -> Notice:
        """With every text that a model, a tool or a caller has written passed through `clean`."""

        def done(text: str | None) -> str | None:
            return None if text is None else clean(text)

        changed = {name: done(getattr(self, name)) for name in ("waiting_for", "reason", "tenant")}
        calls = [
            c.model_copy(update={"arguments": clean(c.arguments), "what": clean(c.what)})
            for c in self.calls
        ]
        return self.model_copy(update={**changed, "calls": calls})
