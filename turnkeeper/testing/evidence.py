"""What happened in a run whose workers were killed: history, the provider's log, the tools' log.

Three witnesses that do not know each other. History says what was recorded; the provider's request
log what was asked of the model (and would have been paid for); the tools' log what really ran.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

from turnkeeper.contract import GENERATE

__all__ = ["Activity", "Evidence", "read_lines"]


@dataclass
class Activity:
    """An activity in history; times in seconds since 1970."""

    scheduled: int
    name: str
    activity_id: str
    completed: int | None = None
    completed_at: float | None = None
    attempt: int = 0
    """Of the start that was recorded with its end."""
    identity: str = ""

    @property
    def turn(self) -> int:
        """Counted from 1."""
        return int(self.activity_id.removeprefix("turn-").split("/")[0])


@dataclass
class Evidence:
    """The three witnesses of one run."""

    activities: list[Activity]
    """Generations and tool calls, in order."""
    requests: list[dict[str, Any]]
    """The provider's request lines."""
    calls: list[dict[str, Any]]
    """The tools' begin and end lines, in order."""
    failed_tasks: int = 0
    problems: list[str] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        events: Iterable[HistoryEvent],
        requests: Sequence[dict[str, Any]],
        calls: Sequence[dict[str, Any]],
    ) -> Evidence:
        """Gather it."""
        activities: dict[int, Activity] = {}
        failed_tasks = 0
        for event in events:
            if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
                scheduled = event.activity_task_scheduled_event_attributes
                activities[event.event_id] = Activity(
                    event.event_id, scheduled.activity_type.name, scheduled.activity_id
                )
            elif event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED:
                started = event.activity_task_started_event_attributes
                known = activities[started.scheduled_event_id]
                known.attempt, known.identity = started.attempt, started.identity
            elif event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
                known = activities[
                    event.activity_task_completed_event_attributes.scheduled_event_id
                ]
                known.completed = event.event_id
                known.completed_at = event.event_time.ToNanoseconds() / 1e9
            failed_tasks += event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED
        return cls(
            activities=[a for a in activities.values() if a.activity_id.startswith("turn-")],
            requests=[r for r in requests if r["event"] == "request"],
            calls=list(calls),
            failed_tasks=failed_tasks,
        )

    @property
    def generations(self) -> list[Activity]:
        """The generations that were recorded."""
        return [a for a in self.activities if a.name == GENERATE and a.completed is not None]

    def requests_of(self, turn: int) -> list[dict[str, Any]]:
        """What the provider was asked for a turn; it counts the replies before it, from 0."""
        return [r for r in self.requests if r.get("turn") == turn - 1]

    def attempts_of(self, tool: str) -> tuple[int, int]:
        """How often a tool began and how often it ended."""
        lines = [c["event"] for c in self.calls if c["tool"] == tool]
        return lines.count("begin"), lines.count("end")

    def repeated_generations(self) -> list[str]:
        """Requests for a generation that was recorded already."""
        return [
            f"turn {g.turn} was asked for again after event {g.completed} had recorded it"
            for g in self.generations
            for r in self.requests_of(g.turn)
            if g.completed_at is not None and r["time"] > g.completed_at
        ]

    def repeated_calls(self) -> list[str]:
        """Calls that began again after they had ended."""
        ended: set[str] = set()
        repeated = []
        for line in self.calls:
            if line["event"] == "end":
                ended.add(line["key"])
            elif line["key"] in ended:
                repeated.append(f"{line['tool']} (key {line['key'][:8]}) ran again")
        return repeated


def read_lines(log: Path) -> list[dict[str, Any]]:
    """The JSON lines of a log; one that was cut off by a kill is left out."""
    found = []
    for line in log.read_bytes().splitlines() if log.exists() else []:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found
