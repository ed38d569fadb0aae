"""`run.load_agent`: what it pins, what it asks the server for, how long it looks for an agent."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from temporalio.api.operatorservice.v1 import ListSearchAttributesResponse
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import ActivityEnvironment

from activities import load_agent
from activities.redact import Redactor
from activities.registry import Registry
from turnkeeper import Agent
from turnkeeper.artifacts import FolderStore
from turnkeeper.contract import LoadAgentInput, LoadAgentOutput


class Server:
    """A client of a server with one search attribute, that can be away."""

    namespace = "default"

    def __init__(self) -> None:
        self.operator_service = self
        self.asked = 0
        self.away = False

    async def list_search_attributes(self, _request: Any) -> ListSearchAttributesResponse:
        """Count, and answer."""
        self.asked += 1
        await asyncio.sleep(0.01)
        if self.away:
            raise RPCError("away", RPCStatusCode.UNAVAILABLE, b"")
        return ListSearchAttributesResponse(custom_attributes={"TurnkeeperAgent": 2, "Other": 2})  # type: ignore[dict-item]


@pytest.fixture
def server() -> Server:
    """A server of its own for each test."""
    return Server()


@pytest.fixture
def made(server: Server, tmp_path: Path) -> load_agent.LoadAgent:
    """The activity with the agent `tester`."""
    client: Any = server
    agent = Agent(name="tester", model="m", instructions="i")
    redactor = Redactor(["hunter2-hunter2"])
    return load_agent.LoadAgent(Registry([agent]), client, FolderStore(tmp_path), {}, redactor)


async def loaded(made: load_agent.LoadAgent, attempt: int = 1, **asked: Any) -> LoadAgentOutput:
    """One attempt."""
    environment = ActivityEnvironment()
    environment.info = dataclasses.replace(environment.info, attempt=attempt)
    return await environment.run(made.run, LoadAgentInput(**{"agent": "tester", **asked}))


async def test_limits_are_no_part_of_the_digest(made: load_agent.LoadAgent) -> None:
    """Callers compute them for each run; what requests are made of is the same."""
    one, other = [await loaded(made, limits={"turns": n}) for n in (3, 4)]
    assert one.spec_digest == other.spec_digest
    assert (one.spec.limits.turns, other.spec.limits.turns) == (3, 4)


async def test_runs_that_begin_at_once_share_one_list(
    made: load_agent.LoadAgent, server: Server
) -> None:
    """Whoever comes while it is asked for waits for it: without, a run would never be in a list."""
    found = await asyncio.gather(*(loaded(made) for _ in range(5)))
    assert [f.attributes for f in found] == [["TurnkeeperAgent"]] * 5
    assert server.asked == 1


async def test_search_attributes_are_asked_for_once_a_minute(
    made: load_agent.LoadAgent, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what was known stays known while the server does not say."""
    for _ in range(3):
        assert (await loaded(made)).attributes == ["TurnkeeperAgent"]
    assert server.asked == 1
    monkeypatch.setattr(made, "_attributes_until", 0.0)
    server.away = True
    assert (await loaded(made)).attributes == ["TurnkeeperAgent"]
    assert server.asked == 2


async def test_an_agent_is_looked_for_some_seconds(made: load_agent.LoadAgent) -> None:
    """A rolling deploy takes its time; then the name is wrong, which is one warning."""
    waited, attempt, final = 0.0, 0, False
    with capture_logs() as logs:
        while not final:
            attempt += 1
            with pytest.raises(ApplicationError, match="Did you mean tester") as raised:
                await loaded(made, attempt, agent="testre")
            final = raised.value.non_retryable
            assert raised.value.next_retry_delay is not None
            waited += 0 if final else raised.value.next_retry_delay.total_seconds()
    assert (attempt, round(waited)) == (6, 8)
    assert [line["log_level"] for line in logs] == ["debug"] * 5 + ["warning"]
    assert (logs[-1]["agent"], logs[-1]["served"]) == ("testre", "tester")


async def test_a_store_that_is_down_is_waited_for(
    made: load_agent.LoadAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large spec is tried again for more than half a minute, and its end has a name."""

    async def full(*_: Any) -> str:
        raise OSError("No space left on device")

    monkeypatch.setattr(load_agent, "MAX_INLINE_SPEC_BYTES", 10)
    monkeypatch.setattr(FolderStore, "put", full)
    waits = 0.0
    for attempt in range(1, 10):
        with pytest.raises(ApplicationError, match="spec cannot be stored: No space left") as told:
            await loaded(made, attempt)
        assert told.value.type == "store_unavailable"
        assert not told.value.non_retryable
        assert told.value.next_retry_delay is not None
        waits += told.value.next_retry_delay.total_seconds()
    assert 35 < waits < 120


async def test_what_a_store_says_is_redacted(
    made: load_agent.LoadAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bucket's error may name its URL; it goes into history."""

    async def refused(*_: Any) -> str:
        raise OSError("PUT https://bucket.test/a?signature=hunter2-hunter2: 403")

    monkeypatch.setattr(load_agent, "MAX_INLINE_SPEC_BYTES", 10)
    monkeypatch.setattr(FolderStore, "put", refused)
    with pytest.raises(ApplicationError, match="cannot be stored: PUT https") as told:
        await loaded(made)
    assert "hunter2" not in str(told.value)
    assert told.value.__cause__ is None
