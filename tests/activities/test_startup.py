"""What a worker tells before it takes work."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from activities import neighbours, startup
from activities.redact import Redactor
from activities.registry import Registry
from turnkeeper import Agent


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
