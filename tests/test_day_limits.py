"""Limits per day: over all runs of an agent or a tenant."""

from __future__ import annotations

import asyncio
import functools
import uuid
from typing import Any

import pytest
from temporalio.client import Client, WorkflowUpdateFailedError

from activities import gate, switched, switched_on
from tests.rig import Rig, RigFactory, until
from turnkeeper import Agent, days, switchboard, tool
from turnkeeper.client import AgentClient, AgentRunHandle
from turnkeeper.contract import DAY, DAY_LIMIT, RESERVE, SETTLE, SWITCHED_ON
from turnkeeper.day_limits import (
    MAX_DAY_LIMITS,
    DayLimit,
    DayLimitRequest,
    Estimate,
    Settled,
    Used,
    refusal,
    take,
)
from turnkeeper.errors import InvalidRequest
from turnkeeper.spec import ModelSpec, Price
from turnkeeper.switches import EVERYWHERE, SwitchList
from turnkeeper.testing import Exchange, Reply, call, text

PRICE = Price(input=10, output=100)
MODEL = ModelSpec(name="claude-sonnet-5-5", prices=(PRICE,), max_output_tokens=1_000)
KEEPS = {"keeps_switches": True}
DAY_SECONDS = 86_400


@tool(effect="read")
async def look(n: int = 0) -> str:
    """Look."""
    return "seen"


# --- what a limit allows --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("used", "asked", "allowed"),
    [
        ((0, 0), (1_000, 1), True),
        ((400, 0), (601, 0), False),
        ((400, 0), (600, 0), True),
        ((0, 0.4), (0, 0.61), False),
        ((0, 0.4), (0, 0.6), True),
        ((1_000, 0), (0, 0.1), True),
        ((999, 1.0), (0, 0.000001), False),
    ],
)
def test_both_bounds_hold(used: tuple[int, float], asked: tuple[int, float], allowed: bool) -> None:
    """What is used, and what the request may use, within each of them."""
    limit = DayLimit(kind="tenant", name="acme", cost_usd=1, tokens=1_000)
    so_far = Used(tokens=used[0], usd=used[1])
    assert limit.allows(so_far, Estimate(tokens=asked[0], usd=asked[1])) is allowed


def test_a_day_begins_at_midnight_and_none_comes_again() -> None:
    """Of UTC; a clock that goes back forgets nothing."""
    used = Used().at(19_000 * DAY_SECONDS + 5).plus(10, 0.5)
    assert used.at(19_001 * DAY_SECONDS - 1) == used
    assert used.at(19_001 * DAY_SECONDS) == Used(day=19_001)
    assert used.at(18_999 * DAY_SECONDS) == used


def test_what_is_given_back_is_never_more_than_was_used() -> None:
    """A count never goes below nothing."""
    assert Used(day=3, tokens=5, usd=0.1).plus(-9, -0.2) == Used(day=3)


def test_what_is_waited_for_is_told() -> None:
    """How much is used, how much is needed, and when there is more."""
    limit = DayLimit(kind="tenant", name="acme", cost_usd=5, tokens=1_000_000)
    told = limit.awaited(Used(day=20_787, tokens=12_000, usd=4.99), Estimate(tokens=900, usd=0.012))
    assert told == (
        "the limit per day of tenant acme until 2026-12-01 00:00 UTC, when a day begins: $4.99 of "
        "$5.00, 12,000 of 1,000,000 tokens used or set aside, the next request and its reply need "
        "about $0.0120 and about 900 tokens"
    )
    never = limit.awaited(Used(), Estimate(tokens=2_000_000))
    assert "has to be raised, since one request needs more than a day has" in never


def test_a_limit_is_set_replaced_and_taken_away() -> None:
    """What changes nothing says so, and keeps who has set it."""
    limits: list[DayLimit] = []

    def ask(**fields: Any) -> bool:
        return take(limits, DayLimitRequest(kind="agent", name="finance", **fields), now=7)

    assert not ask()
    assert ask(cost_usd=5, actor="ann")
    assert not ask(cost_usd=5, actor="bob")
    assert [(x.cost_usd, x.tokens, x.actor, x.since) for x in limits] == [(5, None, "ann", 7)]
    assert ask(tokens=9)
    assert [(x.cost_usd, x.tokens) for x in limits] == [(None, 9)]
    assert ask()
    assert limits == []


def test_there_is_a_most_of_limits() -> None:
    """A new one is refused then; another bound, or none, is not."""
    limits = [DayLimit(kind="agent", name=f"a{n}", tokens=1) for n in range(MAX_DAY_LIMITS)]
    assert "take one away" in str(
        refusal(limits, DayLimitRequest(kind="agent", name="b", tokens=1))
    )
    for again in ({"tokens": 2}, {}):
        assert refusal(limits, DayLimitRequest(kind="agent", name="a1", **again)) is None


def test_a_memo_of_another_kind_is_passed_over() -> None:
    """Any program may have written it."""

    def read(published: Any) -> list[DayLimit]:
        return SwitchList.read(None, published).day_limits

    good = {"kind": "agent", "name": "finance", "tokens": 5, "later": 1}
    assert [x.name for x in read([good, {"kind": "planet"}, 5, None])] == ["finance"]
    for bad in (None, "x", {"kind": "agent"}, 5):
        assert read(bad) == []


def test_only_what_concerns_a_run_bounds_it() -> None:
    """Its agent and its tenant."""
    known = [("agent", "a"), ("tenant", "a"), ("tenant", "t"), ("agent", "b")]
    limits = [DayLimit(kind=kind, name=name, tokens=1) for kind, name in known]
    found = SwitchList(day_limits=limits)
    assert [(x.kind, x.name) for x in found.limits_of("a", "t")] == [
        ("agent", "a"),
        ("tenant", "t"),
    ]
    assert [(x.kind, x.name) for x in found.limits_of("a", None)] == [("agent", "a")]


# --- over runs ------------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks every half second."""
    monkeypatch.setattr(switched, "FRESH_SECONDS", 0.2)
    monkeypatch.setattr(switched_on, "FIRST_WAIT_SECONDS", 0.2)
    monkeypatch.setattr(switched_on, "MOST_WAIT_SECONDS", 0.5)


@pytest.fixture
def tenant() -> str:
    """The namespace is shared with other tests."""
    return f"tenant-{uuid.uuid4()}"


def billed(r: Rig, output: int = 500) -> float:
    """What the provider has been asked for, in US dollars, whose replies have so many tokens."""
    asked = [x for x in r.provider.requests if x.status == 200 and x.tokens]
    return sum(((x.tokens or 0) * 10 + output * 100) / 1e6 for x in asked)


def works_on(exchange: Exchange) -> Reply:
    """Without end; each reply costs five cents and its request."""
    return call("look", {"n": exchange.turn}, usage={"output_tokens": 500})


async def waits_for(run: AgentRunHandle, what: str) -> bool:
    """Whether the run says so."""
    return what in (await run.status()).waiting_for


async def use_of(agents: AgentClient, name: str) -> days.DayUse | None:
    """Under the limit of that name, if there is one."""
    return next((x for x in await agents.day_limits() if x.limit.name == name), None)


@pytest.mark.usefixtures("quick")
async def test_runs_of_a_tenant_share_a_limit(rig: RigFactory, tenant: str) -> None:
    """Together they use nearly all of it and at most a call each more, then wait visibly; others
    go on; the count is the provider's; a raised limit lets them go on, and so does none."""
    acme = {"tenant": tenant}
    async with rig(works_on, tools=[look], model=MODEL, settings=KEEPS) as r:
        ended = asyncio.create_task(r.run(limits={"turns": 12}))
        assert await r.agents.limit_day("tenant", tenant, cost_usd=0.6, actor="ann") == "changed"
        runs = [await r.start(metadata=acme, limits={"turns": 9}) for _ in range(3)]
        for run in runs:
            await until(functools.partial(waits_for, run, f"the limit per day of tenant {tenant}"))
        assert (await ended).outcome == "turn_limit"
        mine = billed(r) - (await ended).usage.cost_usd  # type: ignore[operator]
        assert 0.8 * 0.6 < mine < 0.6 + 3 * 0.06

        async def counted() -> bool:
            use = await use_of(r.agents, tenant)
            assert use is not None
            return use.used.usd == pytest.approx(mine)

        await until(counted)
        listed = [x.id async for x in r.agents.list_runs(waiting_for="switch")]
        assert {run.id for run in runs} <= set(listed)
        why = await r.agents.why(runs[0].id)
        assert any(f"limit per day of tenant {tenant}" in f.what for f in why.findings)
        assert any("day-limit list" in str(s) for f in why.findings for s in f.commands)
        await r.agents.limit_day("tenant", tenant, cost_usd=0.9)
        await until(lambda: _at_least(r, mine + 0.15))
        assert await r.agents.remove_day_limit("tenant", tenant) == "changed"
        assert {(await run.result(check=False)).outcome for run in runs} == {"turn_limit"}
        assert await use_of(r.agents, tenant) is None
        assert await r.task_failures() == 0


async def _at_least(r: Rig, dollars: float) -> bool:
    return billed(r) >= dollars


async def test_a_burst_is_counted_in_few_messages(rig: RigFactory, tenant: str) -> None:
    """More requests at once than the server takes updates: each has its answer, what is over the
    limit is refused, and what was not used is given back."""
    limit = DayLimit(kind="tenant", name=tenant, tokens=500)
    async with rig([], settings=KEEPS) as r:
        lane = gate._Lane(r.client)
        asked = [lane.reserve.send((limit, Estimate(tokens=10))) for _ in range(70)]
        answers = await asyncio.gather(*asked)
        assert [x.admitted for x in answers].count(True) == 50
        day = answers[0].used.day
        given_back = Settled(day=day, tokens=-4, usd=0)
        yesterday = Settled(day=day - 1, tokens=-1_000, usd=0)
        told = [given_back] * 50 + [yesterday]
        await asyncio.gather(*(lane.settle.send((limit, x)) for x in told))

        async def counted() -> bool:
            return (await days.used(r.client, limit, day * DAY_SECONDS)).tokens == 300

        await until(counted)
        r.ids.append(days.workflow_id(limit))
        assert await r.task_failures() == 0
        assert len(await r.events()) < 40


@pytest.mark.usefixtures("quick")
async def test_a_new_day_lets_runs_go_on(
    rig: RigFactory, monkeypatch: pytest.MonkeyPatch, tenant: str
) -> None:
    """What was used the day before is forgotten. Days have five seconds here: each workflow has a
    clock of its own where time is skipped."""
    monkeypatch.setattr("turnkeeper.day_limits._DAY", 5)
    async with rig(works_on, tools=[look], model=MODEL, settings=KEEPS) as r:
        await r.agents.limit_day("tenant", tenant, tokens=3_000)
        result = await r.run(metadata={"tenant": tenant}, limits={"turns": 7})
        assert (result.outcome, result.turns) == ("turn_limit", 7)
        # Two or three turns a day.
        assert result.usage.total > 2 * 3_000
        assert SWITCHED_ON in [
            e.activity_task_scheduled_event_attributes.activity_type.name for e in await r.events()
        ]
        assert await r.task_failures() == 0
        await r.agents.remove_day_limit("tenant", tenant)


@pytest.mark.usefixtures("quick")
async def test_a_run_waits_while_nobody_counts(
    rig: RigFactory, monkeypatch: pytest.MonkeyPatch, tenant: str
) -> None:
    """No request is sent of which it is not known whether it is within the limit."""
    limit = DayLimit(kind="tenant", name=tenant, tokens=5_000)
    monkeypatch.setattr(gate, "ANSWER_SECONDS", 0.5)

    async def known(*_: Any) -> SwitchList:
        return SwitchList(day_limits=[limit])

    monkeypatch.setattr(switchboard, "in_force", known)
    async with rig(works_on, tools=[look], model=MODEL) as r:
        run = await r.start(metadata={"tenant": tenant}, limits={"turns": 2})
        await until(functools.partial(waits_for, run, f"what tenant {tenant} has used today"))
        assert not [x for x in r.provider.requests if x.tokens]
        await run.stop("enough")
        await run.result(check=False)


@pytest.mark.usefixtures("quick")
async def test_a_limit_on_cost_needs_a_price(rig: RigFactory, tenant: str) -> None:
    """A run of a model of which none is known ends by name, before anything is asked."""
    model = ModelSpec(name="nobody-knows-this")
    async with rig([text("Done.")], model=model, settings=KEEPS) as r:
        await r.agents.limit_day("tenant", tenant, cost_usd=1)
        result = await r.run(metadata={"tenant": tenant})
        assert result.outcome == "cost_limit"
        assert f"the limit per day of tenant {tenant} is one on cost" in (result.reason or "")
        assert not [x for x in r.provider.requests if x.tokens]
        await r.agents.remove_day_limit("tenant", tenant)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"name": ""}, "name"),
        ({"name": " acme"}, "name"),
        ({"name": "a\x00b"}, "name"),
        ({"cost_usd": 0}, "cost_usd"),
        ({"cost_usd": float("nan")}, "cost_usd"),
        ({"tokens": -1}, "tokens"),
        ({"tokens": 10**20}, "tokens"),
        ({"kind": "tool", "name": "pay"}, "kind"),
    ],
)
async def test_a_malformed_limit_is_refused(
    client: Client, fields: dict[str, Any], problem: str
) -> None:
    """By name, before it is sent."""
    agents = AgentClient(client)
    said = {"kind": "tenant", "name": "acme", "tokens": 5, **fields}
    with pytest.raises(InvalidRequest, match=problem):
        await agents.limit_day(said.pop("kind"), said.pop("name"), **said)


async def test_whoever_counts_cannot_be_wedged(rig: RigFactory, tenant: str) -> None:
    """What is malformed is refused or dropped; a start by hand, with anything, counts from nothing;
    a limit is not for one task queue."""
    limit = DayLimit(kind="tenant", name=tenant, tokens=500)
    async with rig([], settings=KEEPS) as r:
        handle = await r.client.start_workflow(
            DAY, args=["no count"], id=days.workflow_id(limit), task_queue=EVERYWHERE
        )
        r.ids.append(handle.id)
        malformed: list[list[Any]] = [[], [5], [{}], [{"limit": 1, "estimates": []}], [{}, {}]]
        for body in malformed:
            with pytest.raises(WorkflowUpdateFailedError):
                await handle.execute_update(RESERVE, args=body)
            await handle.signal(SETTLE, args=body)
        (answer,) = await days.reserve(r.client, limit, [Estimate(tokens=500)], 30)
        assert (answer.admitted, answer.used.tokens) == (True, 500)
        await r.switch_off("tool", "nothing")
        here = r.client.get_workflow_handle(switchboard.workflow_id(r.task_queue))
        r.ids.append(here.id)
        malformed = [[{"kind": "tenant", "name": "acme", "tokens": 5}], [], [{"kind": 5}]]
        for body in malformed:
            with pytest.raises(WorkflowUpdateFailedError):
                await here.execute_update(DAY_LIMIT, args=body)
            await here.signal(DAY_LIMIT, args=body)
        assert (await switchboard.read(r.client, r.task_queue)).day_limits == []
        assert await r.task_failures() == 0


async def test_no_run_has_an_id_of_these(rig: RigFactory) -> None:
    """Or a run would stand where a tenant's use is counted."""
    async with rig([]) as r:
        with pytest.raises(InvalidRequest, match="turnkeeper's own"):
            await r.agents.start("tester", "x", id=f"{days.PREFIX}tenant:acme")


async def test_a_count_goes_on_as_a_new_one(rig: RigFactory, tenant: str) -> None:
    """After a hundred messages, in the middle of others: each is counted once, and answered."""
    limit = DayLimit(kind="tenant", name=tenant, tokens=10**6)
    async with rig([], settings=KEEPS) as r:
        lane = gate._Lane(r.client)
        (first,) = await days.reserve(r.client, limit, [Estimate(tokens=1)], 30)
        settled = Settled(day=first.used.day, tokens=-1, usd=0)
        for _ in range(60):
            await asyncio.gather(
                *(lane.reserve.send((limit, Estimate(tokens=10))) for _ in range(3)),
                lane.settle.send((limit, settled)),
            )

        async def counted() -> bool:
            now = first.used.day * DAY_SECONDS
            return (await days.used(r.client, limit, now)).tokens == 1 + 60 * (3 * 10 - 1)

        await until(counted)
        r.ids.append(days.workflow_id(limit))
        assert len(await r.executions()) > 1
        assert await r.task_failures() == 0


@pytest.mark.usefixtures("quick")
async def test_what_another_limit_refuses_is_given_back(rig: RigFactory, tenant: str) -> None:
    """A run of an agent and a tenant needs the word of both."""
    two = Agent(name="two", model=MODEL, instructions="You are a test.", tools=[look])
    async with rig(works_on, agents=[two], settings=KEEPS) as r:
        await r.agents.limit_day("agent", "two", tokens=10**6)
        await r.agents.limit_day("tenant", tenant, tokens=100)
        run = await r.start(agent="two", metadata={"tenant": tenant})
        await until(functools.partial(waits_for, run, f"the limit per day of tenant {tenant}"))

        async def given_back() -> bool:
            use = await use_of(r.agents, "two")
            return use is not None and use.used.tokens == 0

        await until(given_back)
        await run.stop("enough")
        await run.result(check=False)
        await r.agents.remove_day_limit("agent", "two")
