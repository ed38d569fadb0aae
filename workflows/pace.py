"""How long each phase of a turn took, for the log. Nothing here reaches the state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from temporalio import workflow

from turnkeeper.contract import ExecuteOutput, GenerateOutput

CLOCK = "turnkeeper.clock"
"""The worker's extern function for a real clock. A workflow's own clock stands still in a task."""


class Pace:
    """Measures one turn; logs it once, and never while a history is replayed."""

    def __init__(self) -> None:
        self._clock: Callable[[], float] | None = workflow.extern_functions().get(CLOCK)
        self._turn: dict[str, Any] = {}

    def measured(self, phase: str, step: Callable[[], None]) -> None:
        """Run a pure phase and note its time in milliseconds."""
        began = self._clock() if self._clock else 0.0
        step()
        if self._clock:
            self._turn[f"{phase}_ms"] = round((self._clock() - began) * 1000, 2)

    def generated(self, output: GenerateOutput) -> None:
        """Note a reply."""
        self._turn |= {
            f"generate_{k}": v for k, v in output.timing.model_dump(exclude_none=True).items()
        }

    def executed(self, output: ExecuteOutput) -> None:
        """Calls run side by side: the slowest counts."""
        for name in ("queue_ms", "run_ms"):
            key = f"execute_{name}"
            self._turn[key] = max(self._turn.get(key, 0), getattr(output.timing, name))
        size = len(output.entry.value["text"])
        self._turn["execute_bytes"] = self._turn.get("execute_bytes", 0) + size

    def log_turn(self, turn: int, calls: int) -> None:
        """Once per turn, with everything noted since the last one."""
        if self._turn:
            workflow.logger.info("turn", extra={"turn": turn, "calls": calls, **self._turn})
            self._turn = {}
