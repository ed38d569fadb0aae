"""`starter.py fork` and `retry` as people use them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.commands.test_unknown import Shell
from tests.rig import RigFactory
from turnkeeper import tool
from turnkeeper.testing import Exchange, Reply, call, text
from turnkeeper.testing.embedded import EmbeddedServer


@pytest.fixture
def shell(server: EmbeddedServer, tmp_path: Path) -> Shell:
    """See `Shell`."""
    return Shell(server, tmp_path)


@tool(effect="idempotent")
def pay(order: str) -> str:
    """Pay an order."""
    return f"paid {order}"


def script(x: Exchange) -> Reply:
    """Pays, then answers; another order if somebody says so."""
    if x.turn == 0:
        return call("pay", {"order": "o-8" if "o-8" in str(x.body) else "o-7"})
    return text(x.last_results[0].text)


async def test_a_fork_prints_the_new_runs_id(rig: RigFactory, shell: Shell) -> None:
    """On stdout alone, so that it can be handed on; it is on the other run's task queue. A wrong
    turn is a wrong request."""
    async with rig(script, tools=[pay]) as r:
        run = await r.start()
        await run.result()
        forked = await shell.starter(
            "fork", run.id, "--turn", "1", "--edit", "Pay o-8.", "--limit", "turns=5"
        )
        assert forked.returncode == 0, forked.stderr
        new = forked.stdout.strip()
        r.ids.append(new)
        described = await r.client.get_workflow_handle(new).describe()
        assert described.task_queue == r.task_queue
        assert f"watch {new}" in forked.stderr
        result = await r.agents.result(new, timeout=60)
        assert result.answer == "paid o-8"
        assert (await r.agents.status(new)).limits.turns == 5
        wrong = await shell.starter("fork", run.id, "--turn", "7")
        assert wrong.returncode == 2
        assert "1 to 3 can be forked" in wrong.stderr


async def test_a_retry_lists_what_was_done_first(rig: RigFactory, shell: Shell) -> None:
    """Without `--again` nothing happens; with it the run goes on under its own id."""
    async with rig(script, tools=[pay]) as r:
        run = await r.start()
        await run.result()
        refused = await shell.starter("retry", run.id, "--turn", "1")
        assert refused.returncode == 1
        assert 'done: turn 1, pay order="o-7" (idempotent, key ' in refused.stderr
        assert len(r.provider.requests) == 2
        done = await shell.starter(
            "retry", run.id, "--turn", "1", "--again", "--actor", "ann", "--json"
        )
        told = json.loads(done.stdout)
        assert told["id"] == run.id
        assert (await run.result(timeout=60)).answer == "paid o-7"
        described = await r.client.get_workflow_handle(run.id).describe()
        assert described.run_id == told["run_id"]
        assert len(r.provider.requests) == 4
        followed = await shell.starter("show", run.id, "--follow")
        assert "the run was reset: retry from turn 1 by ann" in followed.stderr
