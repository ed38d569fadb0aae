"""A rig for tests: a worker in this process, a scripted provider over HTTP, a real server.

    async with rig([call("search", {"q": "x"}), text("Done.")], tools=[search]) as r:
        result = await r.run("question")

Every history that a rig's runs make is replayed in a cold process at the end of the test session.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType, WorkflowTaskFailedCause
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client, WorkflowHandle

import worker
from activities.notify import Webhook
from activities.providers.anthropic import AnthropicProvider
from activities.registry import Registry
from turnkeeper import Agent, Limits, RunResult, Tool
from turnkeeper.artifacts import ArtifactStore, FolderStore
from turnkeeper.client import AgentClient, AgentRunHandle
from turnkeeper.contract import WORKFLOW
from turnkeeper.history import Transcript
from turnkeeper.names import Kind
from turnkeeper.spec import HistoryPolicy, ModelSpec
from turnkeeper.state import RunState
from turnkeeper.testing import ScriptedProvider

AGENT = "tester"
FIRST_TASK_FINISHED = 4
"""Started, task scheduled, task started, task completed: before anything the run did."""


@dataclass
class Rig:
    """What a test holds in its hands."""

    agents: AgentClient
    provider: ScriptedProvider
    store: ArtifactStore
    task_queue: str
    ids: list[str] = field(default_factory=list)

    @property
    def client(self) -> Client:
        """The bare Temporal client."""
        return self.agents.client

    async def reset(self, run: AgentRunHandle, task: int = FIRST_TASK_FINISHED) -> None:
        """As an operator does by Temporal's own means, to where a workflow task finished."""
        described = await self.client.get_workflow_handle(run.id).describe()
        await self.client.workflow_service.reset_workflow_execution(
            ResetWorkflowExecutionRequest(
                namespace=self.client.namespace,
                workflow_execution=WorkflowExecution(workflow_id=run.id, run_id=described.run_id),
                reason="test",
                workflow_task_finish_event_id=task,
                request_id=str(uuid.uuid4()),
            )
        )

    async def start(self, prompt: str = "question", **request: Any) -> AgentRunHandle:
        """Start a run by the product's own client."""
        handle = await self.agents.start(request.pop("agent", AGENT), prompt, **request)
        self.ids.append(handle.id)
        return handle

    async def run(
        self, prompt: str = "question", *, timeout: float = 60, **request: Any
    ) -> RunResult:
        """Start a run and await its result, whatever the outcome."""
        handle = await self.start(prompt, **request)
        return await handle.result(check=False, timeout=timeout)

    async def start_raw(
        self, *args: Any, workflow: str = WORKFLOW, **options: Any
    ) -> WorkflowHandle[Any, Any]:
        """Start as a client of any language might: nothing is checked on this side."""
        options.setdefault("id", f"raw-{uuid.uuid4()}")
        self.ids.append(options["id"])
        return await self.client.start_workflow(
            workflow, args=args, task_queue=self.task_queue, **options
        )

    async def switch_off(
        self, kind: Kind, name: str, reason: str = "x", actor: str | None = None
    ) -> str:
        """For this rig alone: other tests share the namespace."""
        queue = self.task_queue
        return await self.agents.switch_off(kind, name, reason, actor, task_queue=queue)

    async def switch_on(self, kind: Kind, name: str) -> str:
        """As `switch_off`."""
        return await self.agents.switch_on(kind, name, task_queue=self.task_queue)

    async def transcript(self, run_id: str | None = None) -> Transcript:
        """Of the given run, or of the last one."""
        return await self.agents.transcript(run_id or self.ids[-1])

    async def events(self, run_id: str | None = None) -> list[Any]:
        """History events of the last execution of a run."""
        handle = self.client.get_workflow_handle(run_id or self.ids[-1])
        return [e async for e in handle.fetch_history_events()]

    async def executions(self, run_id: str | None = None) -> list[list[Any]]:
        """History events of each execution of a run, the first execution first."""
        workflow_id = run_id or self.ids[-1]
        execution = (await self.client.get_workflow_handle(workflow_id).describe()).run_id
        found: list[list[Any]] = []
        while execution:
            handle = self.client.get_workflow_handle(workflow_id, run_id=execution)
            found.insert(0, [e async for e in handle.fetch_history_events()])
            started = found[0][0].workflow_execution_started_event_attributes
            execution = started.continued_execution_run_id
        return found

    async def carried(self, run_id: str | None = None) -> list[tuple[int, RunState]]:
        """What each continued execution of a run began with, and its size in bytes."""
        found: list[tuple[int, RunState]] = []
        for events in (await self.executions(run_id))[1:]:
            payload = events[0].workflow_execution_started_event_attributes.input.payloads[0]
            found.append((len(payload.data), RunState.model_validate_json(payload.data)))
        return found

    async def task_failures(self) -> int:
        """Workflow tasks that failed in any run of this rig; every promise says none.

        Those count that a worker failed, or that the server refused: not those that the server
        itself began anew because messages came in meanwhile.
        """
        return sum(await asyncio.gather(*map(self._failures, self.ids)))

    async def _failures(self, workflow_id: str) -> int:
        found = 0
        async for run in self.client.list_workflows(f'WorkflowId = "{workflow_id}"'):
            handle = self.client.get_workflow_handle(workflow_id, run_id=run.run_id)
            found += sum([is_failed_task(e) async for e in handle.fetch_history_events()])
        return found


def is_failed_task(event: Any) -> bool:
    """Whether an event says that a worker failed a workflow task, or that the server refused it;
    a reset is told as one that failed, too."""
    if event.event_type != EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED:
        return False
    return event.workflow_task_failed_event_attributes.cause not in (
        WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_FORCE_CLOSE_COMMAND,
        WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND,
        WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_RESET_WORKFLOW,
    )


RigFactory = Callable[..., contextlib.AbstractAsyncContextManager[Rig]]


@contextlib.asynccontextmanager
async def open_rig(
    client: Client,
    folder: Path,
    script: Any,
    *,
    tools: Sequence[Tool] = (),
    agents: Sequence[Agent] = (),
    limits: Limits | None = None,
    history: HistoryPolicy | None = None,
    settings: Mapping[str, Any] | None = None,
    workflow: type | None = None,
    provider: Mapping[str, Any] | None = None,
    silence: float = 120,
    webhook: Webhook | None = None,
    **agent: Any,
) -> AsyncIterator[Rig]:
    """A worker with the agent `tester` (or the given ones) on a task queue of its own.

    `settings` go to `worker.Settings`, `provider` to the scripted provider, `workflow` replaces the
    loop's class, a provider that says nothing for `silence` seconds has failed, everything else
    goes to `Agent`.
    """
    task_queue = f"test-{uuid.uuid4()}"
    store = FolderStore(folder / "artifacts")
    # A provider that is away for ever is to end a run.
    agent.setdefault("outage_seconds", 0)
    model = agent.pop("model", "claude-sonnet-5-5")
    if isinstance(model, str):
        # With its window, so that the requests of a test are those that its script answers.
        model = ModelSpec(name=model, window=(provider or {}).get("window", 1_000_000))
    known = list(agents) or [
        Agent(
            name=AGENT,
            model=model,
            instructions=agent.pop("instructions", "You are a test."),
            tools=tools,
            limits=limits,
            history=history,
            **agent,
        )
    ]
    async with ScriptedProvider(script, fsync=False, **(provider or {})) as scripted:
        anthropic = AnthropicProvider(
            api_key="test-key-0123456789", base_url=scripted.url, silence=silence
        )
        served = worker.build_worker(
            client,
            Registry(known),
            {"anthropic": anthropic},
            store,
            worker.Settings(
                **{
                    "task_queue": task_queue,
                    "grace_seconds": 1,
                    # There are no other workers to ask.
                    "unknown_agent_seconds": 1,
                    **(settings or {}),
                }
            ),
            workflow=workflow,
            webhook=webhook,
        )
        async with served:
            made = AgentClient(client, task_queue=task_queue, store=store)
            yield Rig(made, scripted, store, task_queue)
        await anthropic.close()


async def until(condition: Callable[[], Any], *, timeout: float = 60) -> Any:
    """Await a condition (sync or async) with a bound; answers its value."""
    async with asyncio.timeout(timeout):
        while True:
            value = condition()
            if asyncio.iscoroutine(value):
                value = await value
            if value:
                return value
            await asyncio.sleep(0.02)
