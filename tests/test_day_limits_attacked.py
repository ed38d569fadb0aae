"""Limits per day, where names, counts and moments are the worst that there are."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from activities import gate, switched
from activities.asking import Attempt
from tests.rig import Rig, RigFactory, until
from tests.test_context import SUMMARY, WINDOW, page, reading
from tests.test_day_limits import DAY_SECONDS, KEEPS, MODEL, quick, tenant, waits_for
from turnkeeper import days
from turnkeeper.budget import Budget
from turnkeeper.contract import DAY, SUMMARISE, SWITCHED_ON
from turnkeeper.day_limits import DayLimit, Estimate, Settled, Used
from turnkeeper.spec import ContextPolicy, ModelSpec, Price
from turnkeeper.switches import EVERYWHERE, SwitchList
from turnkeeper.testing import text

__all__ = ["quick", "tenant"]
TODAY = 20_787


def test_no_price_makes_an_estimate_that_fails_a_run() -> None:
    """It is made in workflow code: one beyond all bounds is as much as there can be. Nor does one
    fail a reply that is paid for."""
    for price in (1e300, float("inf")):
        prices = [Price(input=price, output=price)]
        asked = Budget().estimate(prices, tokens=10**18, new=10, most=1_000)
        assert (asked.tokens, asked.usd) == (10**15, 1e9)
        settled = Settled.of(TODAY, Estimate(), 10**18, price)
        assert (settled.tokens, settled.usd) == (10**15, 1e9)


@pytest.mark.parametrize(
    "published",
    [
        {"day": 10**9, "tokens": 600},
        {"day": -1},
        {"day": TODAY, "tokens": -5},
        {"day": TODAY, "usd": float("inf")},
        {"day": TODAY, "usd": float("nan")},
        {"day": TODAY + 2, "tokens": 600},
    ],
)
def test_a_count_that_cannot_be_is_none(published: dict[str, Any]) -> None:
    """Nothing is used, and a day that is far off holds up no run until it comes."""
    assert Used.read(published).at(TODAY * DAY_SECONDS) == Used(day=TODAY)


def test_names_of_any_length_have_ids_that_a_server_takes() -> None:
    """Others for others: none is that of a name that stands in it as it is."""
    named = ["x" * 512, "\N{GRINNING FACE}" * 512, "\N{GRINNING FACE}" * 511, "a:b", "a:b:c"]
    ids = [days.workflow_id(DayLimit(kind="tenant", name=n)) for n in named]
    ids += [days.workflow_id(DayLimit(kind="agent", name=n)) for n in named]
    assert len(set(ids)) == len(ids)
    assert max(len(each.encode()) for each in ids) <= 255
    assert ids[3] == "turnkeeper-day:tenant:a:b"


async def test_a_long_name_is_counted(rig: RigFactory, tenant: str) -> None:
    """As any other."""
    limit = DayLimit(kind="tenant", name=tenant + "\N{GRINNING FACE}" * 470, tokens=500)
    async with rig([], settings=KEEPS) as r:
        (answer,) = await days.reserve(r.client, limit, [Estimate(tokens=400)], 30)
        assert answer.admitted
        assert await days.used(r.client, limit, answer.used.day * DAY_SECONDS) == answer.used


async def test_who_ends_the_count_forgets_nothing(rig: RigFactory, tenant: str) -> None:
    """The next request, or what the last one has used, goes on from there."""
    limit = DayLimit(kind="tenant", name=tenant, tokens=500)
    async with rig([], settings=KEEPS) as r:
        handle = r.client.get_workflow_handle(days.workflow_id(limit))
        (answer,) = await days.reserve(r.client, limit, [Estimate(tokens=400)], 30)
        assert answer.admitted
        await handle.terminate("tidy")
        (answer,) = await days.reserve(r.client, limit, [Estimate(tokens=400)], 30)
        assert (answer.admitted, answer.used.tokens) == (False, 400)
        await handle.terminate("tidy")
        day = answer.used.day
        await days.settle(r.client, limit, [Settled(day=day, tokens=-100, usd=0)])

        async def counted() -> bool:
            return (await days.used(r.client, limit, day * DAY_SECONDS)).tokens == 300

        await until(counted)


async def test_where_another_workflow_has_its_id_nobody_counts(
    rig: RigFactory, tenant: str
) -> None:
    """That is waited for; it fails no generation."""
    limit = DayLimit(kind="tenant", name=tenant, tokens=500)
    async with rig([], settings=KEEPS) as r:
        await r.client.start_workflow(
            "TurnkeeperSwitches", id=days.workflow_id(limit), task_queue=EVERYWHERE
        )
        with pytest.raises(days.NotCounted):
            await days.reserve(r.client, limit, [Estimate(tokens=400)], 30)
        await r.client.get_workflow_handle(days.workflow_id(limit)).terminate("tidy")
        (answer,) = await days.reserve(r.client, limit, [Estimate(tokens=400)], 30)
        assert answer.admitted


async def test_a_count_of_a_day_far_off_is_begun_anew(rig: RigFactory, tenant: str) -> None:
    """Somebody has started it by hand."""
    limit = DayLimit(kind="tenant", name=tenant, tokens=500)
    async with rig([], settings=KEEPS) as r:
        await r.client.start_workflow(
            DAY,
            args=[{"day": 10**6, "tokens": 600}],
            id=days.workflow_id(limit),
            task_queue=EVERYWHERE,
        )
        (answer,) = await days.reserve(r.client, limit, [Estimate(tokens=400)], 30)
        assert (answer.admitted, answer.used.tokens) == (True, 400)


@pytest.mark.parametrize(("sent", "counted"), [(0, 0), (5, 100)])
async def test_what_was_not_sent_is_given_back(
    rig: RigFactory, tenant: str, monkeypatch: pytest.MonkeyPatch, sent: int, counted: int
) -> None:
    """Whatever has failed before; what was sent, and ended nobody knows how, stays counted."""
    limit = DayLimit(kind="tenant", name=tenant, tokens=500)

    async def now(_: object) -> SwitchList:
        return SwitchList(day_limits=[limit])

    monkeypatch.setattr(switched.Switched, "now", now)
    async with rig([], settings=KEEPS) as r:
        guarded = gate.Gate(r.client, switched.Switched(r.client, r.task_queue))

        async def fails() -> None:
            attempt = Attempt("generation failed", 1)
            async with guarded.within("tester", tenant, MODEL, Estimate(tokens=100), attempt):
                attempt.progress.sent_bytes = sent
                raise LookupError

        with pytest.raises(LookupError):
            await ActivityEnvironment().run(fails)
        # Behind what was settled.
        (answer,) = await days.reserve(r.client, limit, [Estimate()], 30)
        assert answer.used.tokens == counted


def _scheduled(events: list[Any], activity: str) -> int:
    named = [
        e.activity_task_scheduled_event_attributes.activity_type.name
        for e in events
        if e.HasField("activity_task_scheduled_event_attributes")
    ]
    return named.count(activity)


@pytest.mark.usefixtures("quick")
async def test_a_summary_waits_until_there_is_enough_for_it(rig: RigFactory, tenant: str) -> None:
    """It may need more than the generation that it makes room for; it is asked for once, and the
    wait leaves nothing in history."""
    dear = ModelSpec(name="summariser", prices=(Price(input=1_000, output=1_000),))
    async with rig(
        reading(40, summary=lambda _: text(SUMMARY)),
        tools=[page],
        model=ModelSpec(
            name="claude-sonnet-5-5",
            window=WINDOW,
            prices=(Price(input=1, output=1),),
            max_output_tokens=1_000,
        ),
        context=ContextPolicy(mode="checkpoint", summariser=dear),
        provider={"window": WINDOW},
        settings=KEEPS,
    ) as r:
        await r.agents.limit_day("tenant", tenant, cost_usd=3)
        run = await r.start(metadata={"tenant": tenant}, limits={"turns": 60})
        await until(functools.partial(_stands, r, run.id))
        assert await waits_for(run, f"the limit per day of tenant {tenant}")
        assert _scheduled(await r.events(), SUMMARISE) == 1
        await r.agents.remove_day_limit("tenant", tenant)
        assert (await run.result(check=False)).outcome == "completed"
        assert _scheduled(await r.events(), SWITCHED_ON) < 10
        assert await r.task_failures() == 0


async def _stands(r: Rig, run: str) -> bool:
    """Whether it waits, and adds nothing to its history for some looks."""
    before = await r.events(run)
    await asyncio.sleep(2)
    return _scheduled(before, SWITCHED_ON) > 0 and len(await r.events(run)) == len(before)
