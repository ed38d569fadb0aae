"""What is known of runs from outside, for the checker, and their replay in a cold process."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from temporalio.client import WorkflowHistory

from tests.faults.crew import ROOT
from turnkeeper.client import AgentClient
from turnkeeper.errors import StateLost
from turnkeeper.testing import recorded
from turnkeeper.testing.checker import Observed, Violation, check

_REPLAY_SECONDS = 600.0


@dataclass
class Witness:
    """A run's histories, and what the checker is told of the run."""

    histories: list[WorkflowHistory]
    seen: Observed
    control: Observed | None = None


async def witness(agents: AgentClient, run: str, folder: Path) -> Witness:
    """Read a run; `folder` gets its histories."""
    histories = await recorded.fetch(agents.client, run)
    recorded.save(folder, histories)
    told = recorded.read(run, histories)
    # One request for each attempt that the server began, whatever ended the one before.
    lost = sum(max(g.attempt - 1, 0) for g in told.generations)
    seen = Observed(run=told, entries=None, lost_replies=lost)
    try:
        seen.entries = (await agents.transcript(run)).entries
    except (StateLost, OSError) as error:
        seen.unreadable = str(error)
    return Witness(histories, seen)


async def judged(witnesses: Iterable[Witness], folder: Path) -> list[Violation]:
    """Hold all runs against what was promised; `folder` has their histories, which are replayed."""
    unreplayable = await _replayed(folder)
    found: list[Violation] = []
    for each in witnesses:
        each.seen.unreplayable = unreplayable.get(each.seen.run.id, {})
        found += check(each.seen, each.control)
    return found


async def _replayed(folder: Path) -> Mapping[str, Mapping[str, str]]:
    """By run: the executions that do not replay in a process that has never seen them, and why."""
    replaying = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.archive", str(folder)),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(_REPLAY_SECONDS):
        told, _ = await replaying.communicate()
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for name, why in json.loads(told.splitlines()[-1])["failures"].items():
        found[json.loads((folder / name).read_text())["id"]][name] = why
    return found
