"""A call that may or may not have taken effect: told, waited for, or the end of the run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from temporalio.client import WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

from tests.rig import Rig, RigFactory, until
from turnkeeper import Limits, tool
from turnkeeper.client import AgentRunHandle
from turnkeeper.contract import RESOLVE
from turnkeeper.testing import call, calls, text

TELL: list[Any] = [call("send"), lambda x: text(x.last_results[0].text)]


@tool
async def send() -> str:
    """Send."""
    raise OSError("connection lost")


async def waiting(r: Rig, script_prompt: str = "question") -> tuple[AgentRunHandle, str]:
    """A run of the rig that waits for a person, and the call it waits for."""
    run = await r.start(script_prompt)
    unknown = await until(lambda: _unknown(run))
    assert unknown[0].status == "waiting"
    return run, unknown[0].call_id


async def _unknown(run: AgentRunHandle) -> Any:
    return (await run.status()).unknown


async def resolve(r: Rig, run: AgentRunHandle, *args: Any) -> Any:
    """Send the update as any client might."""
    return await r.client.get_workflow_handle(run.id).execute_update(RESOLVE, args=list(args))


async def memo(r: Rig, run: AgentRunHandle) -> Any:
    """What lists read without a worker."""
    described = await r.client.get_workflow_handle(run.id).describe()
    return await described.memo_value("unknown")


async def test_told_to_the_model(rig: RigFactory) -> None:
    """The default: the model reads that it may or may not have happened; operators find it."""
    async with rig(TELL, tools=[send]) as r:
        run = await r.start()
        result = await run.result()
        assert result.answer is not None
        assert "may or may not have taken effect, and was not tried again" in result.answer
        (unknown,) = result.unknown
        assert (unknown.tool, unknown.turn, unknown.status) == ("send", 1, "open")
        assert "connection lost" in unknown.what
        (noted,) = await memo(r, run)
        assert noted == unknown.model_dump(mode="json")
        assert await r.task_failures() == 0


async def test_ends_the_run(rig: RigFactory) -> None:
    """`stop`: a failed run of type `outcome_unknown`, and no further request to the model."""
    async with rig([call("send")], tools=[send], on_unknown="stop") as r:
        result = await r.run()
        assert result.outcome == "outcome_unknown"
        assert result.reason is not None
        assert result.reason.startswith("turn 1, call ")
        assert "connection lost" in result.reason
        assert [u.status for u in result.unknown] == ["open"]
        assert len(r.provider.requests) == 1


@pytest.mark.parametrize(
    ("landed", "said", "read", "errors"),
    [
        (True, "receipt 7", "receipt 7", 0),
        (True, "", "It took effect: ann has checked.", 0),
        (False, "", "send did not take effect: ann has checked.", 1),
        (False, "the mailbox is full", "ann has checked. the mailbox is full", 1),
    ],
)
async def test_a_person_resolves_it(
    rig: RigFactory, landed: bool, said: str, read: str, errors: int
) -> None:
    """`wait`: the model goes on with what the person says."""
    async with rig(TELL, tools=[send], on_unknown="wait") as r:
        run, called = await waiting(r)
        status = await run.status()
        assert status.waiting_for.startswith("a person to say whether send (call ")
        assert [c.status for c in status.calls] == ["waiting"]
        body = {"call_id": called, "landed": landed, "result": said, "actor": "ann"}
        assert await resolve(r, run, body) == {"accepted": "resolve"}
        result = await run.result()
        assert result.answer is not None
        assert read in result.answer
        assert result.errors == errors
        (unknown,) = result.unknown
        assert (unknown.status, unknown.actor) == ("landed" if landed else "not_landed", "ann")
        assert (await memo(r, run))[0]["actor"] == "ann"
        assert await r.task_failures() == 0


async def test_found_by_search_attribute(rig: RigFactory) -> None:
    """Operators list what waits over all runs, and what nobody has settled."""
    async with rig(TELL, tools=[send], on_unknown="wait") as r:
        run, called = await waiting(r)

        async def found(query: str) -> list[str]:
            every = r.client.list_workflows(f"{query} AND WorkflowId = '{run.id}'")
            return [w.id async for w in every]

        await until(lambda: found("TurnkeeperUnknown='waiting' AND TurnkeeperStatus='waiting'"))
        await resolve(r, run, {"call_id": called, "landed": True})
        await run.result()
        await until(lambda: found("TurnkeeperUnknown='settled' AND TurnkeeperStatus='ended'"))


async def test_resolved_by_signal(rig: RigFactory) -> None:
    """A signal does the same, and works while no worker is up; one that does not fit is dropped."""
    async with rig(TELL, tools=[send], on_unknown="wait") as r:
        run, called = await waiting(r)
        handle = r.client.get_workflow_handle(run.id)
        for body in ([], [1, 2], [{"call_id": "other", "landed": True}], [{"landed": True}]):
            await handle.signal(RESOLVE, args=body)
        await handle.signal(RESOLVE, {"call_id": called, "landed": True, "result": "sent"})
        assert (await run.result()).answer == "sent"
        assert await r.task_failures() == 0


async def test_what_does_not_wait_is_refused(rig: RigFactory) -> None:
    """A wrong id, a second answer, a wrong body: each is told why, and the run is unharmed."""
    async with rig(TELL, tools=[send], on_unknown="wait") as r:
        run, called = await waiting(r)

        async def refused(*args: Any) -> str:
            with pytest.raises(WorkflowUpdateFailedError) as caught:
                await resolve(r, run, *args)
            assert isinstance(caught.value.cause, ApplicationError)
            assert caught.value.cause.type == "invalid_request"
            return str(caught.value.cause)

        assert f"waiting: {called}" in await refused({"call_id": "nobody", "landed": True})
        assert "landed" in await refused({"call_id": called})
        assert "one JSON object" in await refused()
        assert "no such field" in await refused({"call_id": called, "landed": True, "x": 1})
        body = {"call_id": called, "landed": True, "result": "first"}
        both = await asyncio.gather(
            resolve(r, run, body), resolve(r, run, body), return_exceptions=True
        )
        assert sum(isinstance(b, WorkflowUpdateFailedError) for b in both) == 1
        assert (await run.result()).answer == "first"
        assert await r.task_failures() == 0


@pytest.mark.parametrize("end", ["stop", "time", "cancel"])
async def test_a_run_that_waits_can_be_ended(rig: RigFactory, end: str) -> None:
    """Its call stays unknown: on record for operators, and in the result."""
    limits = Limits(wall_seconds=3 if end == "time" else 600)
    async with rig(TELL, tools=[send], on_unknown="wait", limits=limits) as r:
        run, _ = await waiting(r)
        if end == "stop":
            await run.stop("enough")
        elif end == "cancel":
            await r.client.get_workflow_handle(run.id).cancel()
        result = await run.result(check=False)
        wanted = {"stop": "stopped", "time": "time_limit", "cancel": "cancelled"}[end]
        assert result.outcome == wanted
        assert (await memo(r, run))[0]["status"] == "open"
        assert await r.task_failures() == 0


async def test_later_mutating_calls_wait_for_the_person(rig: RigFactory) -> None:
    """Reads go on beside it; what changes the world waits, and is not run after a `not landed`."""
    ran: list[str] = []

    @tool(effect="read")
    async def look() -> str:
        """Look."""
        ran.append("look")
        return "seen"

    @tool(effect="idempotent")
    async def pay() -> str:
        """Pay."""
        ran.append("pay")
        return "paid"

    script = [
        calls([("look", {}), ("send", {}), ("pay", {})]),
        lambda x: text(" | ".join(e.text for e in x.last_results)),
    ]
    async with rig(script, tools=[send, look, pay], on_unknown="wait") as r:
        run, called = await waiting(r)
        assert ran == ["look"]
        await resolve(r, run, {"call_id": called, "landed": False})
        result = await run.result()
        assert result.answer is not None
        assert "Not run: an earlier call of this reply failed." in result.answer
        assert ran == ["look"]


@pytest.mark.long
async def test_a_call_that_ignores_its_cancel_is_on_record(rig: RigFactory) -> None:
    """A stopped run whose mutating call did not end: its outcome is unknown, and found later."""

    @tool
    async def stubborn() -> str:
        """Go on."""
        for _ in range(150):
            try:
                await asyncio.sleep(0.1)
            except asyncio.CancelledError:
                continue
        return "done"

    settings = {"heartbeat_seconds": 1}
    async with rig([call("stubborn")], tools=[stubborn], settings=settings) as r:
        run = await r.start()
        await until(lambda: r.provider.requests and _running(run))
        await run.stop("enough")
        result = await run.result(check=False)
        assert [(u.tool, u.status) for u in result.unknown] == [("stubborn", "open")]


async def _running(run: AgentRunHandle) -> bool:
    return [c.status for c in (await run.status()).calls] == ["running"]
