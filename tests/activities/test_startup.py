"""What a worker tells before it takes work."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from obstore.store import MemoryStore
from structlog.testing import capture_logs
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from activities import neighbours, readiness, startup
from activities.redact import Redactor
from activities.registry import Registry
from tests.namespaces import bare_namespace
from tests.rig import RigFactory, until
from turnkeeper import Agent
from turnkeeper.artifacts import ArtifactStore, FolderStore, ObjectStore
from turnkeeper.converter import data_converter
from turnkeeper.errors import DefinitionError
from turnkeeper.spec import ContextPolicy, ModelSpec


async def test_agents_and_redacted_variables_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """By name: an agent may be called as a log line's own field, values are secret."""

    async def nothing(*_: Any) -> list[str]:
        return []

    monkeypatch.setattr(startup, "registered_attributes", nothing)
    monkeypatch.setattr(neighbours, "of_another_application", nothing)
    registry = Registry([Agent(name=n, model="m", instructions="i") for n in ("event", "level")])
    redactor = Redactor.from_environment({"API_KEY": "0123456789abc", "SORT_KEY": "customer_id"})
    client: Any = None
    with capture_logs() as told:
        await startup.report(registry, client, "queue", redactor)
    assert told[0]["event"] == "agents"
    assert told[0]["agents"] == {"event": "no tools", "level": "no tools"}
    assert (told[1]["everywhere"], told[1]["in_errors_and_logs"]) == ("API_KEY", "SORT_KEY")
    assert "0123456789abc" not in str(told)


def test_the_provider_of_a_summariser_has_to_be_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the start, where somebody looks: later each summary of each run would fail."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "test-key-0123456789")
    context = ContextPolicy(summariser=ModelSpec(provider="other", name="m"))
    agent = Agent(name="tester", model="m", instructions="i", context=context)
    with pytest.raises(ValueError, match="agent 'tester': provider 'other' is unknown"):
        startup.providers(Registry([agent]), Redactor(), "")


def test_the_options_of_a_summariser_have_to_be_json() -> None:
    """As those of the agent's own model."""
    summariser = ModelSpec(name="m", options={"a": float("nan")})
    context = ContextPolicy(summariser=summariser)
    agent = Agent(name="tester", model="m", instructions="i", context=context)
    with pytest.raises(DefinitionError, match=r"context.summariser.options.a: NaN"):
        readiness.check(Registry([agent]), data_converter)


# --- a store that not all workers share -----------------------------------------------------------


@pytest.fixture
async def elsewhere(
    rig: RigFactory, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Client, str]]:
    """A client, and a task queue that a worker of the host `elsewhere` polls."""
    with monkeypatch.context() as there:
        there.setattr(socket, "gethostname", lambda: "elsewhere")
        opened = rig([])
        serving = await opened.__aenter__()
    client, queue = serving.client, serving.task_queue

    async def polls() -> bool:
        return await neighbours.hosts(client, queue) == {"elsewhere"}

    await until(polls)
    yield client, queue
    await opened.__aexit__(None, None, None)


async def told_of(store: ArtifactStore, client: Client, queue: str) -> list[Any]:
    """What the worker says of its store."""
    with capture_logs() as told:
        await startup.report_store(store, client, queue)
    return list(told)


async def test_a_local_folder_that_other_hosts_do_not_use_is_told(
    elsewhere: tuple[Client, str], tmp_path: Path
) -> None:
    """By the names of all hosts, in one line that says what to do."""
    (line,) = await told_of(FolderStore(tmp_path / "own"), *elsewhere)
    assert line["log_level"] == "warning"
    assert line["event"].startswith("artifacts are in a local folder, but workers")
    assert line["hosts"] == ", ".join(sorted(["elsewhere", socket.gethostname()]))
    assert "TURNKEEPER_ARTIFACTS" in line["mend"]


async def test_a_folder_that_all_hosts_use_is_no_matter(
    elsewhere: tuple[Client, str], tmp_path: Path
) -> None:
    """Mounted on all of them: each leaves its name there."""
    store = FolderStore(tmp_path / "shared")
    await store.meet("elsewhere")
    assert await told_of(store, *elsewhere) == []
    assert await told_of(ObjectStore(MemoryStore()), *elsewhere) == []


async def test_a_folder_that_cannot_be_written_is_told(
    elsewhere: tuple[Client, str], tmp_path: Path
) -> None:
    """At the start, not with the first result that is lost."""
    (tmp_path / "file").write_text("in the way")
    (line,) = await told_of(FolderStore(tmp_path / "file" / "store"), *elsewhere)
    assert line["log_level"] == "error"
    assert line["event"].startswith("artifacts cannot be stored")


async def test_a_namespace_is_recorded_by_its_id(client: Client, tmp_path: Path) -> None:
    """Two servers have a `default` each; what is stored says which one it was."""
    name = await startup.namespace(client)
    assert name is not None
    assert name.startswith(f"{client.namespace}.")
    other = await bare_namespace(client)
    assert await startup.namespace(other) not in (None, name)
    store = FolderStore(tmp_path, namespace=name)
    await store.put("run", b"a")
    assert [h.namespaces async for h in store.holdings()] == [{name}]


async def test_a_namespace_that_is_not_told_is_not_recorded(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some keys may not ask for it: the worker serves, and says what that means."""

    async def refused(*_: Any, **__: Any) -> Any:
        raise RPCError("no", RPCStatusCode.PERMISSION_DENIED, b"")

    monkeypatch.setattr(client.workflow_service, "describe_namespace", refused)
    with capture_logs() as told:
        assert await startup.namespace(client) is None
    assert told[0]["log_level"] == "warning"
