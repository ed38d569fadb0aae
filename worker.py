"""The worker: serves agent runs from a task queue.

    python worker.py --agents examples.finance

Connection settings are Temporal's own (TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE, TEMPORAL_API_KEY,
TEMPORAL_TLS_*, or a profile in temporal.toml).
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from temporalio.client import Client
    from temporalio.worker import Interceptor, Worker, WorkflowRunner

    from activities.capacity import Caches
    from activities.notify import Webhook
    from activities.providers import Provider
    from activities.redact import Redactor
    from activities.registry import Registry
    from turnkeeper.artifacts import ArtifactStore
    from turnkeeper.commands.place import Place

HERE = Path(__file__).resolve().parent
WORKFLOW_TASKS = 16
"""Runs that take a step at once. They share one interpreter: a hundred, as many as the SDK takes
and a restart brings, answer no sooner, need more memory, and each comes closer to the two seconds
after which the SDK calls it hung. Fewer would wait for a server that is far away."""


@dataclass(frozen=True)
class Settings:
    """How a worker behaves; every wait and size has a bound."""

    task_queue: str = "turnkeeper"
    max_activities: int = 100
    """Model and tool calls at once; as many threads serve synchronous tools."""
    heartbeat_seconds: float = 10
    """How long this worker may be silent in a call before the server hands it to another."""
    sticky_seconds: float = 10
    """How long a run's next step waits for this worker before another may take it."""
    grace_seconds: float | None = None
    """At shutdown, for calls in flight. By default as long as the longest `once` tool may take,
    whose outcome would be unknown, and up to ten minutes for others, which are tried again."""
    blocked_seconds: float = 60
    """How long the event loop may stand still until the process ends itself; 0: for ever."""
    cache_mb: float | None = None
    """Megabytes for the caches of runs and of what was said in them; see `activities.capacity`. By
    default a quarter of the memory that this process may use."""
    unknown_agent_seconds: float = 8
    """How long other workers are asked for an agent that this one does not have."""
    keeps_switches: bool = False
    """Whether it serves the list of what is switched off in the whole namespace, too: once in a
    process, as the program does; two that poll one task queue do not end."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT. Returns the exit code: 0, or 2 when it cannot start."""
    options = _parser().parse_args(argv)
    try:
        _prepare_process()
        return asyncio.run(_serve(options))
    except KeyboardInterrupt:
        return 130
    except ModuleNotFoundError as error:
        if error.name not in ("pydantic", "structlog", "temporalio"):
            raise
        run = "run it with .venv/bin/python (`make set-up` makes it)"
        sys.stderr.write(f"worker.py: {error.name} is missing: {run}\n")
        return 2


def _prepare_process() -> None:
    from activities.capacity import give_memory_back

    # Before there are threads: each has its heap from then on.
    give_memory_back()


def _parser() -> argparse.ArgumentParser:
    env = os.environ.get
    parser = argparse.ArgumentParser(
        description="Serve agent runs. Stops on SIGTERM or Ctrl-C, after the calls in flight.",
        epilog="Needs ANTHROPIC_API_KEY. ANTHROPIC_BASE_URL points it to another endpoint.",
    )
    parser.add_argument(
        "--agents",
        action="append",
        metavar="MODULE",
        help="a module that defines agents, e.g. examples.finance; repeat it, or separate with "
        "commas [TURNKEEPER_AGENTS]",
    )
    parser.add_argument(
        "--address",
        help="of Temporal [TEMPORAL_ADDRESS, else where `starter.py dev` serves, else "
        "127.0.0.1:7233]",
    )
    parser.add_argument("--namespace", help="of Temporal [TEMPORAL_NAMESPACE, default]")
    parser.add_argument("--task-queue", default=env("TURNKEEPER_TASK_QUEUE", Settings.task_queue))
    parser.add_argument(
        "--artifacts", metavar="URL", help="folder or s3://, gs://, az:// [TURNKEEPER_ARTIFACTS]"
    )
    parser.add_argument(
        "--state",
        type=Path,
        default=HERE / ".turnkeeper",
        metavar="DIR",
        help="of `starter.py dev`, if it has another than the checkout's",
    )
    parser.add_argument(
        "--max-activities", type=_at_least(1, int), default=Settings.max_activities, metavar="N"
    )
    parser.add_argument(
        "--heartbeat-seconds",
        type=_at_least(1, float),
        default=env("TURNKEEPER_HEARTBEAT_SECONDS", str(Settings.heartbeat_seconds)),
        metavar="S",
        help="silence after which a call counts as lost [TURNKEEPER_HEARTBEAT_SECONDS, "
        f"{Settings.heartbeat_seconds:g}]",
    )
    parser.add_argument(
        "--sticky-seconds",
        type=_at_least(0.1, float),
        default=env("TURNKEEPER_STICKY_SECONDS", str(Settings.sticky_seconds)),
        metavar="S",
        help="how long a run's next step waits for this worker [TURNKEEPER_STICKY_SECONDS, "
        f"{Settings.sticky_seconds:g}]",
    )
    parser.add_argument(
        "--grace-seconds",
        type=_at_least(0, float),
        metavar="S",
        help="for calls in flight at SIGTERM [as long as the longest tool with effect `once` may "
        "take, at least 60]; what starts the worker must not kill it earlier",
    )
    parser.add_argument(
        "--blocked-seconds",
        type=_at_least(0, float),
        default=env("TURNKEEPER_BLOCKED_SECONDS", str(Settings.blocked_seconds)),
        metavar="S",
        help="how long a tool may block the event loop until the worker ends itself, with a "
        "traceback; 0 with a debugger [TURNKEEPER_BLOCKED_SECONDS, "
        f"{Settings.blocked_seconds:g}]",
    )
    parser.add_argument(
        "--cache-mb",
        type=_at_least(1, float),
        default=env("TURNKEEPER_CACHE_MB"),
        metavar="MB",
        help="memory for runs at hand and for what was said in them, in megabytes "
        "[TURNKEEPER_CACHE_MB, else a quarter of what the machine or container has]",
    )
    parser.add_argument(
        "--metrics",
        metavar="HOST:PORT",
        default=env("TURNKEEPER_METRICS"),
        help="where Prometheus finds Temporal's metrics and ours [TURNKEEPER_METRICS]",
    )
    parser.add_argument("--log-level", default=env("TURNKEEPER_LOG_LEVEL", "info"))
    parser.add_argument("--log-format", choices=["auto", "console", "json"], default="auto")
    parser.add_argument(
        "--ready-file", type=Path, metavar="FILE", help="written once the worker takes work"
    )
    return parser


def _at_least(least: float, kind: type[int | float]) -> Callable[[str], float]:
    def number(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = kind(-1)
        if not least <= value <= 1_000_000:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least {least:g}")
        return value

    return number


async def _serve(options: argparse.Namespace) -> int:
    from activities import logs, telemetry
    from activities.redact import Redactor
    from activities.watchdog import LAST_SECONDS, Watchdog

    on_terminal = options.log_format == "console" or (
        options.log_format == "auto" and sys.stderr.isatty()
    )
    redactor = Redactor.from_environment()
    logs.configure(options.log_level, json=not on_terminal, redactor=redactor)
    import structlog

    from turnkeeper.errors import TurnkeeperError

    log = structlog.get_logger("turnkeeper.worker")
    try:
        telemetry.configure(options.metrics)
        worker, served, grace = await _prepare(options, redactor)
    except (TurnkeeperError, ValueError, ConnectionError) as error:
        log.error("cannot start", error=str(error))
        return 2
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    # Before the first run is taken: the SDK takes seconds to import on a busy machine, and the loop
    # that heartbeats would starve meanwhile.
    importlib.import_module("anthropic")
    watchdog = Watchdog(
        tell_after=float(options.heartbeat_seconds) / 2, end_after=float(options.blocked_seconds)
    )
    async with watchdog.watching(), worker:
        log.info("worker takes work", task_queue=worker.task_queue, pid=os.getpid())
        if options.ready_file:
            _write(options.ready_file, "\n".join([str(os.getpid()), *served, ""]))
        await stopped.wait()
        log.info("worker stops", note="calls in flight are finished first", grace_seconds=grace)
        watchdog.leave_after(grace + LAST_SECONDS)
    log.info("worker stopped")
    return 0


async def _prepare(
    options: argparse.Namespace, redactor: Redactor
) -> tuple[Worker, list[str], float]:
    """The worker, its agents and its grace time in seconds: all that can be wrong is found before
    the first run is taken.

    Raises:
        TurnkeeperError: agents that cannot be served.
        ConnectionError: no Temporal server.
        ValueError: a setting.
    """
    from activities import readiness, startup
    from activities.notify import Webhook
    from activities.registry import Registry, find_agents
    from turnkeeper.artifacts import open_store

    _check_house()
    sys.path.insert(0, str(Path.cwd()))
    named = ",".join(options.agents or [os.environ.get("TURNKEEPER_AGENTS", "")])
    modules = [m.strip() for m in named.split(",") if m.strip()]
    if not modules:
        raise ValueError("no agents: give --agents MODULE, e.g. --agents examples.finance")
    registry = Registry(find_agents(modules))
    playing = [("--agents", ",".join(modules)), ("--script", "MODULE:NAME")]
    script = _place(options).command("dev", options=playing)
    providers = startup.providers(registry, redactor, script)
    webhook = Webhook.from_environment()
    client, artifacts = await _connect(options)
    namespace = await startup.namespace(client)
    store = open_store(options.artifacts or artifacts, namespace=namespace)
    readiness.check(registry, client.data_converter)
    await startup.report(registry, client, options.task_queue, redactor)
    await startup.report_store(store, client, options.task_queue)
    settings = Settings(
        task_queue=options.task_queue,
        max_activities=options.max_activities,
        heartbeat_seconds=float(options.heartbeat_seconds),
        sticky_seconds=float(options.sticky_seconds),
        grace_seconds=options.grace_seconds,
        blocked_seconds=float(options.blocked_seconds),
        cache_mb=options.cache_mb,
        keeps_switches=True,
    )
    grace = _grace(registry, settings)
    startup.warn_of_grace(grace)
    startup.tell_webhook(webhook)
    startup.tell_caches(_caches(registry, settings))
    made = build_worker(
        client, registry, providers, store, settings, redactor=redactor, webhook=webhook
    )
    return made, list(registry.agents), grace


def _place(options: argparse.Namespace) -> Place:
    """As `starter.py` has it: for commands that people are told."""
    from turnkeeper.commands.place import Place

    return Place(HERE, options.state.absolute(), options.address, options.namespace)


async def _connect(options: argparse.Namespace) -> tuple[Client, str | None]:
    """To the server that is named, else that of `starter.py dev`, else the default address.

    Also where the artifacts of `dev` are: those who read its runs look there.
    """
    import structlog

    from turnkeeper.client import AgentClient
    from turnkeeper.connection import own_settings
    from turnkeeper.testing.embedded import NAMESPACE
    from turnkeeper.testing.stack import living_dev

    named = options.address or own_settings().get("target_host")
    dev = None if named else living_dev(options.state)
    try:
        if dev is None:
            connected = await AgentClient.connect(options.address, namespace=options.namespace)
        else:
            log = structlog.get_logger("turnkeeper.worker")
            log.info("the server of `starter.py dev` is used", address=dev.address, pid=dev.pid)
            namespace = options.namespace or NAMESPACE
            connected = await AgentClient.connect(dev.address, namespace=namespace, settings={})
    except ConnectionError as error:
        raise ConnectionError(
            f"{error}. Start one with `make dev` (server and UI only: "
            f"{_place(options).command('dev', options=['--no-worker'])}), or name another with "
            "--address or TEMPORAL_ADDRESS"
        ) from error
    default = os.environ.get("TURNKEEPER_ARTIFACTS") or str(options.state / "artifacts")
    return connected.client, default if dev else None


def _check_house() -> None:
    """`workflows` and `activities` are also names of packages on PyPI: serve ours or nothing."""
    import activities
    import workflows
    from turnkeeper.errors import DefinitionError

    for package in (workflows, activities):
        found = Path(str(package.__file__)).resolve().parent.parent
        if found != HERE:
            raise DefinitionError(
                f"package {package.__name__!r} was found in {found}, not in {HERE}: "
                "remove the other one from PYTHONPATH or the environment"
            )


def build_worker(
    client: Client,
    registry: Registry,
    providers: Mapping[str, Provider],
    store: ArtifactStore,
    settings: Settings | None = None,
    *,
    redactor: Redactor | None = None,
    webhook: Webhook | None = None,
    workflow: type | None = None,
) -> Worker:
    """A worker with the loop and its activities, for this program and for tests.

    At its shutdown it closes the providers. `redactor` is that of the environment unless another is
    given; without a `webhook` runs tell nobody; `workflow` stands in for the loop's own class.
    """
    from concurrent.futures import ThreadPoolExecutor
    from contextlib import nullcontext
    from datetime import timedelta

    from temporalio.worker import Worker

    from activities import neighbours
    from activities.asking import Asking
    from activities.execute import Execute
    from activities.fork import Fork
    from activities.gate import Gate
    from activities.generate import Generate
    from activities.load_agent import LoadAgent
    from activities.memory import Memories
    from activities.notify import Notify
    from activities.outputs import Outputs
    from activities.pictures import Pictures
    from activities.redact import Redactor
    from activities.resets import Resets
    from activities.runners import Runners
    from activities.seal import Seal
    from activities.shorten import Shorten
    from activities.summarise import Summarise
    from activities.switched import Switched
    from activities.switched_on import SwitchedOn
    from activities.verify import Verifying
    from activities.views import Views
    from workflows.agent_run import AgentRun
    from workflows.notices import Delivery
    from workflows.switches import Switches

    settings = settings or Settings()
    grace = _grace(registry, settings)
    redactor = redactor or Redactor.from_environment()
    caches = _caches(registry, settings)
    keeps_switches = settings.keeps_switches
    views = Views(client, store, max_bytes=caches.view_bytes, max_runs=caches.runs)
    # As many threads as slots: a call that waits for a thread would burn its own timeout.
    threads = ThreadPoolExecutor(settings.max_activities, thread_name_prefix="tool")
    asking = Asking(Pictures(store), providers, redactor)
    runners = Runners(most=min(settings.max_activities, 16))
    memories = Memories(client, store)
    resets = Resets(client, redactor)
    switched = Switched(client, settings.task_queue)
    gate = Gate(client, switched)
    outputs = Outputs(registry, store, redactor)
    execute = Execute(
        registry,
        store,
        redactor,
        threads,
        runners,
        memories=memories,
        resets=resets,
        switched=switched,
    )

    class Serving(Worker):
        async def run(self) -> None:
            everywhere = _namespace_switches(client, registry) if keeps_switches else nullcontext()
            async with everywhere:
                await super().run()

        async def shutdown(self) -> None:
            telling = asyncio.create_task(execute.in_flight.tell(grace))
            await super().shutdown()
            telling.cancel()
            await runners.close()
            await notify.close()
            for provider in providers.values():
                await provider.close()

    load_agent = LoadAgent(
        registry,
        client,
        store,
        providers,
        redactor,
        heartbeat_seconds=settings.heartbeat_seconds,
        patience_seconds=settings.unknown_agent_seconds,
        notifies=webhook is not None,
    )
    notify = Notify(webhook, redactor)
    return Serving(
        client,
        task_queue=settings.task_queue,
        identity=neighbours.identity(registry.agents),
        workflows=[workflow or AgentRun, Switches, Delivery],
        activities=[
            load_agent.run,
            Generate(views, asking, redactor, gate, outputs).run,
            execute.run,
            Verifying(registry, threads, redactor).run,
            Fork(client, views, store, redactor).run,
            Seal(views, store, redactor).run,
            Summarise(views, asking, redactor, gate).run,
            Shorten(views, store, redactor).run,
            SwitchedOn(gate).run,
            notify.run,
        ],
        workflow_runner=_sandbox(),
        interceptors=[_clock()],
        max_cached_workflows=caches.runs,
        max_concurrent_workflow_tasks=WORKFLOW_TASKS,
        max_concurrent_activities=settings.max_activities,
        max_eager_activity_reservations_per_workflow_task=8,
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=settings.sticky_seconds),
        graceful_shutdown_timeout=timedelta(seconds=grace),
    )


def _namespace_switches(client: Client, registry: Registry) -> Worker:
    """Keeps what is switched off everywhere, and what is used under limits per day: each worker of
    the namespace does, for all of them."""
    from temporalio.worker import Worker

    from activities import neighbours
    from turnkeeper.switches import EVERYWHERE
    from workflows.day import Day
    from workflows.switches import Switches

    return Worker(
        client,
        task_queue=EVERYWHERE,
        identity=neighbours.identity(registry.agents),
        workflows=[Switches, Day],
        workflow_runner=_sandbox(),
        no_remote_activities=True,
        # With a cache the one that had it last would be waited for, also after its death.
        max_cached_workflows=0,
        max_concurrent_workflow_task_polls=1,
    )


def _sandbox() -> WorkflowRunner:
    """Workflows are imported once for all runs: their types and code, kept by each, are most of its
    memory."""
    from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

    return SandboxedWorkflowRunner(
        restrictions=SandboxRestrictions.default.with_passthrough_modules("turnkeeper", "workflows")
    )


def _clock() -> Interceptor:
    """Lends workflows a real clock, for the duration of phases in the log."""
    import time

    from temporalio.worker import Interceptor, WorkflowInterceptorClassInput

    from workflows.pace import CLOCK

    class Clock(Interceptor):
        def workflow_interceptor_class(self, input: WorkflowInterceptorClassInput) -> None:  # noqa: A002
            input.unsafe_extern_functions[CLOCK] = time.perf_counter

    return Clock()


def _caches(registry: Registry, settings: Settings) -> Caches:
    from activities import capacity
    from turnkeeper.spec import HistoryPolicy

    policies = [agent.spec().history for agent in registry.agents.values()] or [HistoryPolicy()]
    return capacity.caches(settings.cache_mb, max(policy.bytes for policy in policies))


def _grace(registry: Registry, settings: Settings) -> float:
    if settings.grace_seconds is not None:
        return settings.grace_seconds
    tools = [tool for agent in registry.agents.values() for tool in agent.spec().tools]
    once = max((t.timeout for t in tools if t.effect == "once"), default=0)
    others = max((t.timeout for t in tools if t.effect != "once"), default=0)
    return max(once, min(others, 600), 60)


def _write(path: Path, text: str) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text)
    draft.replace(path)


if __name__ == "__main__":
    exit_code = main()
    # Not sys.exit: a process that used temporalio may abort while the interpreter is taken down
    # (temporalio/sdk-python#300), which would turn a clean end into exit code 134.
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(exit_code)
