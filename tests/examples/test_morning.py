"""The morning agent on a real Schedule: one run at each firing, and never two at once."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from temporalio.client import (
    Client,
    ScheduleActionExecutionStartWorkflow,
    ScheduleDescription,
    ScheduleOverlapPolicy,
)
from temporalio.service import RPCError

from examples.morning import schedule
from examples.morning.agent import agent, open_tickets
from examples.morning.script import script
from tests.rig import RigFactory, until
from turnkeeper import AgentClient, ToolFailed
from turnkeeper.testing import Exchange, Reply


@pytest.fixture
async def removed(client: Client) -> AsyncIterator[None]:
    """No schedule stays behind to start runs of other tests' agents."""
    yield
    await schedule.delete(AgentClient(client))


async def described(client: Client) -> ScheduleDescription:
    """The schedule as the server has it."""
    return await client.get_schedule_handle(schedule.SCHEDULE).describe()


async def started(client: Client) -> list[str]:
    """The ids of the runs that it has started."""
    actions = [a.action for a in (await described(client)).info.recent_actions]
    return [a.workflow_id for a in actions if isinstance(a, ScheduleActionExecutionStartWorkflow)]


@pytest.mark.usefixtures("removed")
async def test_each_firing_is_a_run_of_its_own(rig: RigFactory) -> None:
    """With an id of its own, by the firing's time; each is completed."""
    async with rig(script, agents=[agent]) as r:
        assert await schedule.apply(r.agents) == "made"
        for firing in (1, 2):
            await schedule.trigger(r.agents)

            async def has_fired(count: int = firing) -> bool:
                return len(await started(r.client)) == count

            await until(has_fired)
            r.ids = await started(r.client)
            result = await r.agents.result(r.ids[-1], timeout=30)
            assert result.answer is not None
            assert "4 tickets. Urgent: 1041 Checkout answers with an error." in result.answer
            # An id has the second of its firing.
            await asyncio.sleep(1.1)
        assert len(set(r.ids)) == 2
        assert all(name.startswith("morning-20") for name in r.ids)

        async def listed() -> bool:
            query = f"TaskQueue = '{r.task_queue}'"
            found = [(x.id, x.agent) async for x in r.agents.list_runs(query)]
            return sorted(found) == sorted((name, "morning") for name in r.ids)

        await until(listed)
        assert await r.task_failures() == 0


@pytest.mark.usefixtures("removed")
async def test_a_run_that_goes_on_is_not_joined_by_another(rig: RigFactory) -> None:
    """The firing is skipped, and counted as such."""

    def slow(exchange: Exchange) -> Reply:
        return dataclasses.replace(script(exchange), delay=1.5)

    async with rig(slow, agents=[agent]) as r:
        await schedule.apply(r.agents)
        await schedule.trigger(r.agents)

        async def has_fired() -> list[str]:
            return await started(r.client)

        r.ids = await until(has_fired)
        await asyncio.sleep(1.1)
        await schedule.trigger(r.agents)

        async def is_skipped() -> bool:
            return (await described(r.client)).info.num_actions_skipped_overlap == 1

        await until(is_skipped)
        assert await started(r.client) == r.ids
        assert (await r.agents.result(r.ids[0], timeout=30)).outcome == "completed"


@pytest.mark.usefixtures("removed")
async def test_a_schedule_is_changed_where_it_is(client: Client) -> None:
    """Its times and policies are those of the last `apply`; one that was paused stays paused."""
    agents = AgentClient(client, task_queue="morning-test")
    assert await schedule.apply(agents, hour=7) == "made"
    await client.get_schedule_handle(schedule.SCHEDULE).pause(note="holidays")
    assert await schedule.apply(agents, hour=6, zone="Europe/Berlin") == "changed"
    found = (await described(client)).schedule
    assert [c.hour[0].start for c in found.spec.calendars] == [6]
    assert found.spec.time_zone_name == "Europe/Berlin"
    assert found.policy.overlap is ScheduleOverlapPolicy.SKIP
    assert found.policy.catchup_window == timedelta(hours=3)
    assert found.state.paused
    assert await schedule.delete(agents)
    assert not await schedule.delete(agents)
    with pytest.raises(RPCError):
        await schedule.trigger(agents)


def test_tickets_that_are_not_there_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the model, as a failure that it can tell on."""
    monkeypatch.setenv("MORNING_TICKETS", "/nowhere/tickets.csv")
    with pytest.raises(ToolFailed, match="cannot be read"):
        open_tickets()
