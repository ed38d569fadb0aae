"""The whole stack as processes: Temporal server, provider, worker.

    with Stack.start(root, state_dir) as stack:
        client = await AgentClient.connect(stack.address, namespace=NAMESPACE)

Everything ends with the `with` block, and also if this process is killed. Without ANTHROPIC_API_KEY
in the environment the worker talks to a scripted provider on loopback.

A state directory has one stack at a time, whose process holds `stack.lock`. While `dev` serves,
`dev.json` says where.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from turnkeeper.contract import TASK_QUEUE
from turnkeeper.errors import TurnkeeperError
from turnkeeper.testing.embedded import NAMESPACE, EmbeddedServer
from turnkeeper.testing.process import ChildProcess
from turnkeeper.testing.succession import Succession

if TYPE_CHECKING:
    from turnkeeper.client import AgentClient

__all__ = [
    "DemoAgent",
    "DevRecord",
    "Stack",
    "StackError",
    "claim",
    "connect",
    "living_address",
    "living_dev",
    "own_task_queue",
    "provider_command",
    "uses_real_provider",
    "worker_command",
    "worker_environment",
]

# Imports of anthropic and temporalio on a busy machine, before the first bytecode is cached.
READY_SECONDS = 60.0
_CLAIM_SECONDS = 60.0
GRACE_SECONDS = 10
"""For calls in flight when the stack is stopped."""
# The worker tells its calls that their time is over before it ends.
_END_SECONDS = GRACE_SECONDS + 5.0


class StackError(TurnkeeperError):
    """Raised when the stack cannot be started as asked."""


FINANCE = "examples.finance"


@dataclass(frozen=True)
class DemoAgent:
    """What the worker serves: modules of agents, and the script that stands in for a model.

    Both are found in the checkout and in the folder that the command was called in.
    """

    agents: str = FINANCE
    """None at all for a server without a worker."""
    script: str = "examples.finance.script:script"
    reload: bool = False
    """Whether the script is read again when its file changes."""


class Stack:
    """A running stack; made by `start`.

    `provider` is None, and `provider_url` too, where the real one is used, `worker` where none was
    asked for.
    """

    def __init__(
        self,
        state_dir: Path,
        *,
        server: EmbeddedServer,
        workers: Succession | None,
        provider: ChildProcess | None,
        provider_url: str | None,
        held: contextlib.ExitStack,
    ) -> None:
        self.state_dir = state_dir
        self.server = server
        self._workers = workers
        self.provider = provider
        self.provider_url = provider_url
        self._held = held

    @classmethod
    def start(
        cls,
        root: Path,
        state_dir: Path,
        *,
        demo: DemoAgent = DemoAgent(),
        ui: bool = False,
        console: bool = False,
        announce: Callable[[str], None],
    ) -> Stack:
        """Start all of it, which takes a second or two; then wait for the worker with `ready`.

        `root` is the checkout that has `worker.py`. `console` shows the worker's log on our stderr;
        else it is in `worker.log`, beside those of the others, in the state directory.

        Raises:
            StackError: another stack serves this state directory.
            EmbeddedServerError, ProcessError: a part does not start; the message has its log.
        """
        with contextlib.ExitStack() as parts:
            parts.enter_context(claim(state_dir, announce))
            provider, url, workers = None, None, None
            if demo.agents and not uses_real_provider(os.environ):
                # Begun first and awaited last: it comes up while the server does.
                provider = start_provider(root, state_dir, demo.script, reload=demo.reload)
                parts.callback(provider.end)
            server = EmbeddedServer.start(state_dir, ui=ui, announce=announce)
            parts.callback(server.stop)
            if provider is not None:
                url = provider_url(provider)
            if demo.agents:
                command = worker_command(demo.agents, server.address, own_task_queue())
                workers = Succession(
                    functools.partial(
                        ChildProcess.start,
                        command=[*command, "--grace-seconds", str(GRACE_SECONDS)],
                        folder=state_dir,
                        cwd=root,
                        environment=worker_environment(os.environ, state_dir, url),
                        console=console,
                    ),
                    ready_seconds=READY_SECONDS,
                    end_seconds=_END_SECONDS,
                )
                # Last in, first out: the worker ends first, so that it can finish what it does.
                parts.callback(workers.end)
            return cls(
                state_dir,
                server=server,
                workers=workers,
                provider=provider,
                provider_url=url,
                held=parts.pop_all(),
            )

    @property
    def worker(self) -> ChildProcess | None:
        """The one that serves now."""
        return self._workers.current if self._workers else None

    @property
    def address(self) -> str:
        """Of the Temporal server, `host:port`."""
        return self.server.address

    def ready(self) -> list[str]:
        """Wait until the worker takes work; the names of the agents it serves.

        Raises:
            ProcessError: it does not; the message has its log.
        """
        if self.worker is None:
            return []
        return self.worker.wait_ready(READY_SECONDS).splitlines()[1:]

    def renew_worker(self) -> None:
        """Have another worker take over, with the code as it is now; `renewed` tells."""
        assert self._workers is not None
        self._workers.renew()

    def renewed(self) -> bool | None:
        """Whether another worker has taken over since the last call; False if it could not, and the
        one before it goes on; None if there is no news."""
        return self._workers.look() if self._workers else None

    def publish(self, agents: str) -> DevRecord:
        """Tell other terminals of this stack, until it stops."""
        record = DevRecord(
            pid=os.getpid(),
            address=self.address,
            ui_url=self.server.ui_url,
            agents=agents,
            provider=self.provider_url,
        )
        path = self.state_dir / "dev.json"
        fresh = path.with_suffix(".json.new")
        fresh.write_text(json.dumps(asdict(record)) + "\n")
        fresh.replace(path)
        self._held.callback(path.unlink, missing_ok=True)
        return record

    def fallen(self) -> ChildProcess | None:
        """A part that ended by itself."""
        parts = (self.worker, self.provider)
        return next((p for p in parts if p is not None and p.status is not None), None)

    def hurry(self) -> None:
        """Wait no longer for calls in flight, while `stop` is at work or before it is."""
        for part in (self._workers, self.provider):
            if part is not None:
                part.kill()

    def stop(self) -> None:
        """End it all; calls in flight have `GRACE_SECONDS` to end."""
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()


# --- parts ------------------------------------------------------------------------------------


def uses_real_provider(environment: Mapping[str, str]) -> bool:
    """Whether the worker will talk to the provider itself."""
    return bool(environment.get("ANTHROPIC_API_KEY"))


def provider_command(script: str, log: Path, *, reload: bool = False) -> list[str]:
    """The scripted provider on a free port; every request is appended to `log`."""
    module = ["-m", "turnkeeper.testing.provider", "--script", script]
    again = ["--reload"] if reload else []
    return [sys.executable, *module, "--port", "0", "--log", str(log), *again]


def start_provider(
    root: Path,
    folder: Path,
    script: str,
    environment: Mapping[str, str] = os.environ,
    *,
    reload: bool = False,
) -> ChildProcess:
    """Start the scripted provider; its requests are logged in `provider-requests.jsonl`."""
    log = folder / "provider-requests.jsonl"
    log.unlink(missing_ok=True)
    return ChildProcess.start(
        "provider",
        provider_command(script, log, reload=reload),
        folder=folder,
        cwd=root,
        environment=_importing_from_here(environment),
    )


def provider_url(provider: ChildProcess) -> str:
    """Wait until the provider listens; where."""
    return str(json.loads(provider.wait_ready(READY_SECONDS))["url"])


def worker_command(agents: str, address: str, task_queue: str) -> list[str]:
    """The worker of this checkout."""
    where = ["--address", address, "--task-queue", task_queue]
    return [sys.executable, "worker.py", "--agents", agents, *where]


def worker_environment(
    environment: Mapping[str, str], state_dir: Path, provider: str | None
) -> dict[str, str]:
    """The worker's environment: the embedded server's namespace, our artifacts, the provider."""
    # A person's own Temporal settings (a cloud's key, TLS) do not belong to the embedded server.
    own = {k: v for k, v in environment.items() if not k.startswith("TEMPORAL_")}
    own |= {"TEMPORAL_NAMESPACE": NAMESPACE, "TEMPORAL_CONFIG_FILE": os.devnull}
    own.setdefault("TURNKEEPER_ARTIFACTS", str(state_dir / "artifacts"))
    own = _importing_from_here(own)
    if provider is not None:
        own |= {"ANTHROPIC_BASE_URL": provider, "ANTHROPIC_API_KEY": "scripted"}
    return own


def _importing_from_here(environment: Mapping[str, str]) -> dict[str, str]:
    """For a process of the checkout that imports modules of the folder we were called in."""
    # Absolute: the process has another working directory.
    given = [Path(p).absolute() for p in environment.get("PYTHONPATH", "").split(os.pathsep) if p]
    return dict(environment) | {"PYTHONPATH": os.pathsep.join(map(str, [Path.cwd(), *given]))}


def own_task_queue() -> str:
    """The task queue of this environment's runs: TURNKEEPER_TASK_QUEUE, else the usual one."""
    return os.environ.get("TURNKEEPER_TASK_QUEUE") or TASK_QUEUE


async def connect(
    address: str, state_dir: Path, *, task_queue: str | None = None, namespace: str | None = None
) -> AgentClient:
    """A client for the embedded server, whatever Temporal settings a person has of their own.

    Raises:
        ConnectionError: it does not answer.
    """
    # Here, since `--help` of commands that use this module must not wait for it.
    from turnkeeper.artifacts import open_store
    from turnkeeper.client import AgentClient

    client = await AgentClient.connect(address, namespace=namespace or NAMESPACE, settings={})
    where = os.environ.get("TURNKEEPER_ARTIFACTS") or str(state_dir / "artifacts")
    queue = task_queue or own_task_queue()
    return AgentClient(client.client, task_queue=queue, store=open_store(where))


# --- one stack per state directory ------------------------------------------------------------


@dataclass(frozen=True)
class DevRecord:
    """The content of `dev.json`."""

    pid: int
    address: str
    ui_url: str | None
    agents: str
    provider: str | None
    """URL of the scripted provider, None for the real one."""


@contextlib.contextmanager
def claim(state_dir: Path, announce: Callable[[str], None]) -> Iterator[None]:
    """Hold the state directory's one stack: whoever starts a server there ends it, too.

    Waits for a demo to end.

    Raises:
        StackError: `dev` serves there, or the other one does not end.
    """
    state_dir.mkdir(parents=True, exist_ok=True)
    deadline, waiting = time.monotonic() + _CLAIM_SECONDS, False
    with (state_dir / "stack.lock").open("a") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if dev := living_dev(state_dir):
                    raise StackError(
                        f"`dev` serves {state_dir} already (pid {dev.pid}). Stop it there with "
                        "Ctrl-C, or use another folder: --state DIR"
                    ) from None
                if time.monotonic() > deadline:
                    raise StackError(f"another process serves {state_dir}, and goes on") from None
            if not waiting:
                announce(f"Another process serves {state_dir}: waiting for its end.")
                waiting = True
            time.sleep(0.1)
        # Of a `dev` that was killed.
        (state_dir / "dev.json").unlink(missing_ok=True)
        yield


def living_dev(state_dir: Path) -> DevRecord | None:
    """The stack that `dev` serves in another terminal, if it lives."""
    try:
        if _is_held(state_dir / "stack.lock"):
            return DevRecord(**json.loads((state_dir / "dev.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None
    return None


def living_address(state_dir: Path) -> str | None:
    """Where the embedded server of a state directory answers, if it lives."""
    try:
        if _is_held(state_dir / "server.lock"):
            return str(json.loads((state_dir / "server.json").read_text())["address"])
    except (OSError, ValueError, KeyError):
        return None
    return None


def _is_held(lock: Path) -> bool:
    with lock.open("r") as file:
        try:
            # Shared and let go at once: two that look at the same time do not deceive each other.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
