"""Every history that the tests make, exported and replayed in a cold process.

As a program (`python -m tests.archive FOLDER`) it replays what lies there and answers with one
JSON line.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from temporalio.client import Client, WorkflowHistory
from temporalio.worker import Replayer, WorkflowReplayResult
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from tests.codec import Masking
from turnkeeper.converter import data_converter


async def export(client: Client, folder: Path) -> int:
    """Write the history of every execution in the namespace; answers how many were started."""
    folder.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240
    started = 0
    async for run in client.list_workflows():
        started += 1
        handle = client.get_workflow_handle(run.id, run_id=run.run_id)
        history = await handle.fetch_history()
        path = folder / f"{run.run_id}.json"
        path.write_text(json.dumps({"id": run.id, "history": history.to_json()}))
    return started


async def replay(folder: Path, workflow: Any = None) -> dict[str, Any]:
    """Replay all histories of a folder; answers counts and the failures by file."""
    from workflows.agent_run import AgentRun

    replayer = Replayer(
        workflows=[workflow or AgentRun],
        data_converter=dataclasses.replace(data_converter, payload_codec=Masking()),
        workflow_runner=SandboxedWorkflowRunner(
            restrictions=SandboxRestrictions.default.with_passthrough_modules("turnkeeper")
        ),
    )
    failures: dict[str, str] = {}
    files = sorted(folder.glob("*.json"))  # noqa: ASYNC240
    for path in files:
        recorded = json.loads(path.read_text())
        history = WorkflowHistory.from_json(recorded["id"], recorded["history"])
        outcome: WorkflowReplayResult = await replayer.replay_workflow(
            history, raise_on_replay_failure=False
        )
        if outcome.replay_failure is not None:
            failures[path.name] = str(outcome.replay_failure)[:500]
    return {"exported": len(files), "replayed": len(files) - len(failures), "failures": failures}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(replay(Path(sys.argv[1])))))  # noqa: T201
