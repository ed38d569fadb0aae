"""Every history that the tests make, exported and replayed in a cold process.

As a program (`python -m tests.archive FOLDER [strict]`) it replays what lies there and answers with
one JSON line. `strict`: the sandbox watches the loop too, which a worker lets through.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from temporalio.client import (
    Client,
    Interceptor,
    OutboundInterceptor,
    StartWorkflowInput,
    WorkflowHandle,
    WorkflowHistory,
)
from temporalio.worker import Replayer
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from tests.codec import Masking
from tests.probes import PROBES
from turnkeeper.converter import data_converter

_HANGS = "TMPRL1101"
"""The SDK says so of a workflow that does not yield: also of one that gets no time to."""
_TRIES = 3


class _Starts(Interceptor):
    """Notes each execution that a client starts."""

    def __init__(self) -> None:
        self.run_ids: set[str] = set()

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:  # noqa: A002
        """See Interceptor."""
        return _NotingStarts(next, self.run_ids)


class _NotingStarts(OutboundInterceptor):
    def __init__(self, following: OutboundInterceptor, run_ids: set[str]) -> None:
        super().__init__(following)
        self._run_ids = run_ids

    async def start_workflow(self, input: StartWorkflowInput) -> WorkflowHandle[Any, Any]:  # noqa: A002
        handle = await super().start_workflow(input)
        if handle.first_execution_run_id:
            self._run_ids.add(handle.first_execution_run_id)
        return handle


class Archive:
    """The histories of a test session, over all the servers and namespaces that its tests use."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started = 0
        """Executions: those that the servers list, at least those that watched clients started."""
        self._starts: dict[Client, _Starts] = {}

    def watched(self, client: Client) -> Client:
        """The same client; what it starts has to be found at the end."""
        starts = _Starts()
        settings = client.config()
        settings["interceptors"] = [*settings["interceptors"], starts]
        watched = Client(**settings)
        self._starts[watched] = starts
        return watched

    async def take(self, client: Client, *, settle: float = 15) -> None:
        """Write the history of every execution in the client's namespace, open ones included.

        Raises:
            AssertionError: an execution that the client started is not among them.
        """
        expected = self._starts[client].run_ids if client in self._starts else set[str]()
        runs = await _listed(client, expected, settle)
        assert expected <= runs.keys(), f"not listed: {expected - runs.keys()}"
        for run_id, workflow_id in runs.items():
            handle = client.get_workflow_handle(workflow_id, run_id=run_id)
            history = await handle.fetch_history()
            recorded = json.dumps({"id": workflow_id, "history": history.to_json()})
            (self.folder / f"{run_id}.json").write_text(recorded)
        self.started += len(runs)


async def _listed(client: Client, expected: set[str], settle: float) -> dict[str, str]:
    """Workflow ids by run id, once the server's list, which is late, has become complete."""
    clock = asyncio.get_running_loop().time
    deadline, seen = clock() + settle, -1
    while True:
        runs = {run.run_id: run.id async for run in client.list_workflows()}
        if (expected <= runs.keys() and len(runs) == seen) or clock() > deadline:
            return runs
        seen = len(runs)
        await asyncio.sleep(0.5)


async def replay(folder: Path, workflow: Any = None, *, strict: bool = False) -> dict[str, Any]:
    """Replay all histories of a folder; answers counts and the failures by file."""
    from workflows.agent_run import AgentRun
    from workflows.day import Day
    from workflows.notices import Delivery
    from workflows.switches import Switches

    replayer = Replayer(
        workflows=[workflow or AgentRun, Switches, Day, Delivery, *PROBES],
        data_converter=dataclasses.replace(data_converter, payload_codec=Masking()),
        workflow_runner=SandboxedWorkflowRunner(
            restrictions=SandboxRestrictions.default.with_passthrough_modules(
                "turnkeeper", *([] if strict else ["workflows"])
            )
        ),
    )
    files = sorted(folder.glob("*.json"))  # noqa: ASYNC240
    failures: dict[str, str] = {}
    again = files
    for _ in range(_TRIES):
        failures = await _failures(replayer, again)
        again = [path for path in files if _HANGS in failures.get(path.name, "")]
        if not again:
            break
    return {"exported": len(files), "replayed": len(files) - len(failures), "failures": failures}


async def _failures(replayer: Replayer, files: Sequence[Path]) -> dict[str, str]:
    """What fails, by file name."""
    names: dict[str, str] = {}

    async def histories() -> AsyncIterator[WorkflowHistory]:
        for path in files:
            recorded = json.loads(path.read_text())
            history = WorkflowHistory.from_json(recorded["id"], recorded["history"])
            names[history.run_id] = path.name
            yield history

    # In one go: each replay on its own would make a worker of its own.
    outcome = await replayer.replay_workflows(histories(), raise_on_replay_failure=False)
    return {names[run]: str(failure)[:500] for run, failure in outcome.replay_failures.items()}


def main(folder: Path, *, strict: bool = False) -> None:
    """Replay a folder, say what came of it, and end at once.

    Without the interpreter's own end: the SDK's threads may abort it then, long after the replay.
    """
    print(json.dumps(asyncio.run(replay(folder, strict=strict))), flush=True)  # noqa: T201
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), strict="strict" in sys.argv[2:])
