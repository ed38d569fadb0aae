"""Whether a name that is switched off is known at all: nothing refuses one that nobody has."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from turnkeeper.commands.place import Complaint, Place
from turnkeeper.text import one_line

if TYPE_CHECKING:
    from turnkeeper.client import AgentClient, RunSummary

_SECONDS = 10.0
_RUNS, _SPECS = 200, 20
"""Runs that are listed, and of which the tools are read: one for each agent, the newest."""
_ATTRIBUTES = {"agent": "TurnkeeperAgent", "tenant": "TurnkeeperTenant"}


async def doubt(place: Place, client: AgentClient, kind: str, name: str) -> str:
    """What speaks against a name, in words; empty if it is known, or that cannot be told."""
    try:
        async with asyncio.timeout(_SECONDS):
            if kind == "tool":
                return await _of_tool(place, client, name)
            return await _of_run(client, kind, name)
    except (Complaint, LookupError, OSError, ValueError):
        # No answer in time, or a namespace that cannot be searched: it was only a word more.
        return ""


async def _of_run(client: AgentClient, kind: str, name: str) -> str:
    if "'" in name or "\\" in name:
        return ""
    known = await client.count_runs(f"{_ATTRIBUTES[kind]} = '{name}'")
    return "" if known else f"no run yet is of {kind} {one_line(name, 80)}: is it spelled so?"


async def _of_tool(place: Place, client: AgentClient, name: str) -> str:
    agent, _, tool = name.rpartition(".")
    runs = sorted([r async for r in client.list_runs(limit=_RUNS)], key=_started, reverse=True)
    newest: dict[str, RunSummary] = {}
    for run in runs:
        if agent in ("", run.agent) and len(newest) < _SPECS:
            newest.setdefault(run.agent, run)
    found = await asyncio.gather(*(_tools(place, client, run) for run in newest.values()))
    known = sorted({named for names in found for named in names})
    if not known or tool in known:
        return ""
    whose = f"agent {agent}" if agent else "none of the agents that ran last"
    meant = difflib.get_close_matches(tool, known, n=3)
    told = f"; did you mean {', '.join(meant)}?" if meant else ": is it spelled so?"
    return f"{whose} has {'no' if agent else 'a'} tool {one_line(tool, 80)}{told}"


async def _tools(place: Place, client: AgentClient, run: RunSummary) -> Sequence[str]:
    from turnkeeper.history import HistoryReader

    try:
        spec = await HistoryReader(client.client, place.store(), run.id, run.run_id).spec()
    except Exception:  # noqa: BLE001 - of another release or store, not begun yet, gone by now
        return ()
    return [tool.name for tool in spec.tools]


def _started(run: RunSummary) -> float:
    return run.started.timestamp()
