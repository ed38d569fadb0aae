"""One real Temporal server for the whole session, and the replay of everything it recorded.

With `-n` each process of the session has its own server and replays its own histories; the summary
adds them up.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment

from tests import archive
from tests.rig import RigFactory, open_rig
from tests.sizes import FULL
from tests.workers import SiteFactory, open_site
from turnkeeper.client import AgentClient
from turnkeeper.converter import data_converter
from turnkeeper.testing import EffectLedger
from turnkeeper.testing.embedded import EmbeddedServer, dev_server_arguments, find_temporal

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"
REPLAYED = pytest.StashKey[dict[str, Any]]()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """The session's Temporal server, on a file database, tuned as in the product."""
    with EmbeddedServer.start(tmp_path_factory.mktemp("temporal"), ui=False) as running:
        yield running


@pytest.fixture(scope="session")
async def histories(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> AsyncIterator[archive.Archive]:
    """Every history of the session; at the end all are replayed cold.

    A test with a server or namespace of its own hands it over before it ends: `take(client)`.
    """
    kept = archive.Archive(tmp_path_factory.mktemp("histories"))
    yield kept
    # The replay has a bound of its own: that of the test which happens to be the last is too short.
    signal.setitimer(signal.ITIMER_REAL, 0)
    replayed = await asyncio.to_thread(replay_cold, kept.folder)
    request.config.stash[REPLAYED] = {"started": kept.started, **replayed}
    assert not replayed["failures"], replayed["failures"]
    assert kept.started == replayed["exported"] == replayed["replayed"]


@pytest.fixture(scope="session")
async def client(server: EmbeddedServer, histories: archive.Archive) -> AsyncIterator[Client]:
    """Connected as the product connects."""
    connected = histories.watched((await AgentClient.connect(server.address)).client)
    yield connected
    await histories.take(connected)


@pytest.fixture(scope="session")
async def virtual(histories: archive.Archive) -> AsyncIterator[WorkflowEnvironment]:
    """A server on which each run's time is skipped while it waits."""
    environment = await WorkflowEnvironment.start_time_skipping_v2(
        data_converter=data_converter,
        dev_server_existing_path=find_temporal(),
        dev_server_extra_args=dev_server_arguments(time_skipping=True),
        dev_server_log_level="error",
    )
    async with environment:
        yield environment
        await histories.take(environment.client)


def replay_cold(folder: Path) -> dict[str, Any]:
    """Replay a folder of histories in a process that has never seen them."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.archive", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without what is for `make test-full`. What kills workers and servers comes first: it takes
    longest."""
    long = [] if FULL else [item for item in items if item.get_closest_marker("long")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in set(long)]
    items.sort(key=lambda item: not kills(item.path))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file stays in one process, and those that kill workers and servers share two: more of them
    at once would starve each other of the seconds that their timeouts count."""
    made: Any = importlib.import_module("xdist.scheduler").LoadScopeScheduling(config, log)
    made._split_scope = _scope
    return made


def _scope(nodeid: str) -> str:
    file = nodeid.partition("::")[0]
    if not kills(ROOT / file):
        return file
    return "kills" if file.count("/") == 1 else "kills of the rig"


@functools.cache
def kills(file: Path) -> bool:
    """Whether its tests kill real processes."""
    return "pytest.mark.crash" in file.read_text()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A process of the session tells the controlling one what it replayed."""
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["replayed"] = session.config.stash.get(REPLAYED, None)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add up what the processes of the session replayed."""
    told = getattr(node, "workeroutput", {}).get("replayed")
    if told is not None:
        sums: dict[str, Any] = node.config.stash.setdefault(REPLAYED, {})
        for name in ("started", "exported", "replayed"):
            sums[name] = sums.get(name, 0) + told[name]


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say how many histories were made and replayed."""
    found = config.stash.get(REPLAYED, None)
    if found is not None:
        terminalreporter.write_line(
            f"histories: {found['started']} workflows started = {found['exported']} exported = "
            f"{found['replayed']} replayed in a cold process"
        )


@pytest.fixture
def rig(client: Client, tmp_path: Path) -> RigFactory:
    """Opens rigs on the session's server."""
    return functools.partial(open_rig, client, tmp_path)


@pytest.fixture
def site(client: Client, server: EmbeddedServer, tmp_path: Path) -> SiteFactory:
    """Opens sites, with worker processes, on the session's server."""
    return functools.partial(open_site, client, server.address, tmp_path)


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EffectLedger]:
    """The oracle, where the tools of this process find it."""
    with EffectLedger(tmp_path / "effects.db") as running:
        monkeypatch.setenv("LEDGER_URL", running.url)
        monkeypatch.setenv("CALL_LOG", str(tmp_path / "calls.jsonl"))
        yield running


@pytest.fixture(scope="session")
def shared() -> Path:
    """Data that is read where it lies and never copied here."""
    if not SHARED.is_dir():
        pytest.skip(f"no shared data at {SHARED.name}/")
    return SHARED
