"""`starter.py day-limit` as people use it: real processes, a real server."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

from tests.commands.test_unknown import Shell
from tests.rig import RigFactory
from turnkeeper import days
from turnkeeper.day_limits import DayLimit, Estimate
from turnkeeper.testing.embedded import EmbeddedServer


async def test_set_listed_and_removed(
    rig: RigFactory, server: EmbeddedServer, tmp_path: Path
) -> None:
    """An operator sets a limit, sees what was used of it today, and takes it away."""
    name = f"acme-{uuid.uuid4()}"
    async with rig([], settings={"keeps_switches": True}) as r:
        shell, by = Shell(server, tmp_path), ("--actor", "ann")
        nothing = await shell.starter("day-limit", "set", "tenant", name)
        assert (nothing.returncode, "--cost-usd" in nothing.stderr) == (2, True)
        bounds = ("--cost-usd", "2.5", "--tokens", "1000")
        done = await shell.starter("day-limit", "set", "tenant", name, *bounds, *by)
        assert done.stdout == (f"the limit per day of tenant {name} is set: it holds from 2 s on\n")
        assert f"no run yet is of tenant {name}" in done.stderr
        limit = DayLimit(kind="tenant", name=name, cost_usd=2.5, tokens=1000)
        await days.reserve(r.client, limit, [Estimate(tokens=120, usd=0.25)], 30)
        listed = await shell.starter("day-limit", "list")
        line = f"tenant {name}: $0.2500 of $2.50, 120 of 1,000 tokens used today, set by ann\n"
        assert line in listed.stdout
        other = await shell.starter("day-limit", "set", "tenant", name, "--tokens", "500", *by)
        assert "is set, in place of $2.50, 1,000 tokens: it holds" in other.stdout
        removed = await shell.starter("day-limit", "remove", "tenant", name, "--json", *by)
        told = {"kind": "tenant", "name": name, "day_limit": "changed"}
        assert json.loads(removed.stdout) == told
        again = await shell.starter("day-limit", "remove", "tenant", name, *by)
        assert again.stdout == f"the limit per day of tenant {name} was removed already\n"
        assert name not in (await shell.starter("day-limit", "list", "--json")).stdout
