"""Calls that a person has to allow: asked for, bound to what was shown, decided once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowUpdateFailedError
from temporalio.testing import WorkflowEnvironment

from activities.approving import wanted
from activities.redact import Redactor
from tests.rig import Rig, RigFactory, open_rig, until
from tests.test_pause import card
from turnkeeper import Agent, ApprovalPolicy, Limits, Tool, ToolContext, tool
from turnkeeper.client import AgentRunHandle
from turnkeeper.contract import APPROVE, DENY, ApprovalAsked, Asks, ExecuteInput, Signature
from turnkeeper.errors import DefinitionError, EffectsRepeated, InvalidRequest
from turnkeeper.outside import approvals_of
from turnkeeper.render import approval_text
from turnkeeper.spec import Effect, HistoryPolicy
from turnkeeper.testing import Exchange, Reply, call, calls, text
from turnkeeper.text import clock

DAYS = 86_400


class Shop:
    """Tools that note what they did."""

    def __init__(self) -> None:
        self.done: list[tuple[str, str]] = []

    def refund(self, approval: Any = None, effect: Effect = "idempotent") -> Tool:
        """A tool that refunds; over 100 a person has to allow it."""

        @tool(effect=effect, approval=large if approval is None else approval)
        async def refund(order: str, amount: Decimal = Decimal(150)) -> str:
            """Refund an order."""
            self.done.append((order, str(amount)))
            return f"refunded {amount} of {order}"

        return refund


def large(args: Mapping[str, Any]) -> bool | str:
    """Over 100."""
    return args["amount"] > 100 and f"{args['amount']} is over 100"


def told(exchange: Exchange) -> Reply:
    """Answer with what the calls brought."""
    return text(" | ".join(r.text for r in exchange.last_results))


async def asked(run: AgentRunHandle, number: int = 1) -> list[ApprovalAsked]:
    """What the run waits for, once it is so many, in the order of the calls."""

    async def found() -> list[ApprovalAsked] | None:
        waiting = [a for a in (await run.status()).approvals if a.status == "waiting"]
        in_order = sorted(waiting, key=lambda a: a.call_id)
        return in_order if len(waiting) == number else None

    return await until(found)  # type: ignore[no-any-return]


async def refused(decision: Any) -> str:
    """Why a decision is not taken."""
    with pytest.raises(InvalidRequest) as caught:
        await decision
    return str(caught.value)


# --- asked for --------------------------------------------------------------------------------


async def test_a_call_runs_after_it_was_allowed(rig: RigFactory) -> None:
    """It is shown with its arguments as the tool reads them, and not begun before."""
    shop = Shop()
    async with rig([call("refund", {"order": "o-1"}), told], tools=[shop.refund()]) as r:
        run = await r.start()
        (waiting,) = await asked(run)
        assert waiting.tool == "refund"
        assert waiting.effect == "idempotent"
        assert waiting.arguments == '{"order":"o-1","amount":"150"}'
        assert waiting.why == "150 is over 100"
        assert waiting.expires - waiting.since == DAYS
        status = await run.status()
        assert status.waiting_for == f"a person to allow refund (approval {waiting.id})"
        assert [c.status for c in status.calls] == ["waiting"]
        assert shop.done == []
        assert await run.approve(waiting.id, actor="ann") == "decided"
        result = await run.result()
        assert result.answer == "refunded 150 of o-1"
        assert shop.done == [("o-1", "150")]
        assert [(a.status, a.actor) for a in result.approvals] == [("approved", "ann")]
        assert result.errors == 0
        assert await r.task_failures() == 0


async def test_what_the_tool_lets_pass_is_not_asked_for(rig: RigFactory) -> None:
    """The predicate sees typed arguments; without a need nobody waits, and it costs no event."""
    shop, events = Shop(), []
    for approval in (None, "never"):
        script = [call("refund", {"order": "o-1", "amount": 20}), told]
        async with rig(script, tools=[shop.refund(approval)]) as r:
            assert (await r.run()).answer == "refunded 20 of o-1"
            events.append(len(await r.events()))
    assert events[0] == events[1]


async def test_a_denied_call_is_a_result(rig: RigFactory) -> None:
    """The model reads who denied it and why; it counts as no error of a tool."""
    shop = Shop()
    async with rig([call("refund", {"order": "o-1"}), told], tools=[shop.refund()]) as r:
        run = await r.start()
        (waiting,) = await asked(run)
        assert await run.deny(waiting.id, reason="Not before Monday.", actor="ann") == "decided"
        result = await run.result()
        assert result.answer is not None
        assert result.answer.startswith("Denied by ann: Not before Monday.\nIt was not run.")
        assert (result.errors, result.calls) == (0, 1)
        assert shop.done == []


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
async def test_several_at_once_in_any_order(rig: RigFactory, order: tuple[int, ...]) -> None:
    """All that a reply needs is asked for at once; effects happen in call order all the same."""
    shop = Shop()
    script = [calls([("refund", {"order": f"o-{n}"}) for n in range(3)]), told]
    async with rig(script, tools=[shop.refund()]) as r:
        run = await r.start()
        waiting = await asked(run, 3)
        for n in order:
            await run.approve(waiting[n].id)
        assert (await run.result()).outcome == "completed"
        assert [o for o, _ in shop.done] == ["o-0", "o-1", "o-2"]
        assert await r.task_failures() == 0


async def test_after_a_denial_what_needed_no_word_is_not_run(rig: RigFactory) -> None:
    """The model planned it on the assumption that the first would happen; what a person has
    allowed by itself is run."""
    shop = Shop()
    script = [
        calls([("refund", {"order": f"o-{n}", "amount": a}) for n, a in enumerate((200, 20, 300))]),
        told,
    ]
    async with rig(script, tools=[shop.refund()]) as r:
        run = await r.start()
        first, third = await asked(run, 2)
        await run.approve(third.id)
        await run.deny(first.id)
        answer = (await run.result()).answer or ""
        assert answer.split(" | ")[1:] == [
            "Not run: an earlier call of this reply failed.",
            "refunded 300 of o-2",
        ]
        assert shop.done == [("o-2", "300")]


async def test_a_read_can_be_asked_for(rig: RigFactory) -> None:
    """`always` holds for tools that change nothing, too, and also by the agent's policy alone."""
    seen: list[str] = []

    @tool(effect="read")
    def look() -> str:
        """Look."""
        seen.append("look")
        return "seen"

    policy = ApprovalPolicy(tools={"look": "always"})
    async with rig([call("look"), told], tools=[look], approvals=policy) as r:
        run = await r.start()
        (waiting,) = await asked(run)
        assert waiting.why == "the agent asks for each call of it"
        assert not seen
        await run.approve(waiting.id)
        assert (await run.result()).answer == "seen"


async def test_a_tool_that_cannot_tell_is_asked_for(rig: RigFactory) -> None:
    """A predicate that raises does not let a call pass."""

    def broken(args: Mapping[str, Any]) -> bool:
        raise KeyError(args["order"])

    shop = Shop()
    script = [call("refund", {"order": "o-1"}), told]
    async with rig(script, tools=[shop.refund(approval=broken)]) as r:
        run = await r.start()
        (waiting,) = await asked(run)
        assert "could not tell whether to ask (KeyError" in waiting.why
        await run.stop()
        assert shop.done == []


async def test_remembered_for_a_tool_in_a_run(rig: RigFactory) -> None:
    """On request nobody is asked again for that tool in that run; another run asks."""
    shop = Shop()
    script = [call("refund", {"order": "o-1"}), call("refund", {"order": "o-2"}), text("Done.")]
    async with rig(script, tools=[shop.refund()]) as r:
        run = await r.start()
        (waiting,) = await asked(run)
        await run.approve(waiting.id, remember=True)
        assert (await run.result()).answer == "Done."
        assert [o for o, _ in shop.done] == ["o-1", "o-2"]
        other = await r.start()
        await asked(other)
        await other.stop()


# --- the agent's policy ---------------------------------------------------------------------------


async def test_a_policy_denies_what_it_does_not_name(rig: RigFactory) -> None:
    """With a policy, tools that it does not name are never run, whatever they say themselves."""
    shop = Shop()

    @tool(effect="read")
    def look() -> str:
        """Look."""
        return "seen"

    policy = ApprovalPolicy(tools={"look": "declared"})
    script = [calls([("refund", {"order": "o-1", "amount": 1}), ("look", {})]), told]
    async with rig(script, tools=[shop.refund(), look], approvals=policy) as r:
        result = await r.run()
        assert result.answer == "refund is not allowed in this agent. It was not run. | seen"
        assert shop.done == []


def test_a_policy_cannot_loosen() -> None:
    """`declared` is what the tool says; there is no word for less."""
    refund = Shop().refund(approval="always")

    def level(**tools: str) -> str:
        policy = ApprovalPolicy(tools=tools)
        agent = Agent(name="a", model="m", instructions="", tools=[refund], approvals=policy)
        return agent.spec().approval(refund.spec)

    assert (level(refund="declared"), level(refund="always")) == ("always", "always")
    assert level(refund="deny") == "deny"
    with pytest.raises(DefinitionError, match=r"Input should be .declared., .always. or .deny."):
        level(refund="never")
    with pytest.raises(DefinitionError, match="there is no tool 'refnud'; tools: refund"):
        level(refnud="always")


@pytest.mark.parametrize("wrong", ["sometimes", 7, lambda: True])
def test_a_wrong_declaration_is_refused(wrong: Any) -> None:
    """When the module is imported, not when the model calls it."""
    with pytest.raises(DefinitionError, match="approval"):
        Shop().refund(approval=wrong)


# --- bound and decided once -------------------------------------------------------------------


async def test_b89_changed_arguments_are_asked_for_again(rig: RigFactory) -> None:
    """What a person allowed is one call with one set of arguments: the word for it is of no use for
    a later call, of the same place in another turn."""
    shop = Shop()
    script = [
        call("refund", {"order": "o-1"}),
        call("refund", {"order": "o-1", "amount": 900}),
        told,
    ]
    async with rig(script, tools=[shop.refund()]) as r:
        run = await r.start()
        (first,) = await asked(run)
        await run.approve(first.id)
        (second,) = await asked(run)
        assert second.id != first.id
        assert await run.approve(first.id) == "unchanged"
        assert shop.done == [("o-1", "150")]
        await run.deny(second.id)
        await run.result()
        assert shop.done == [("o-1", "150")]


async def test_b90_a_word_for_a_tool_is_none_for_other_arguments(rig: RigFactory) -> None:
    """The second call of an allowed tool asks again, also within one reply."""
    shop = Shop()
    script = [calls([("refund", {"order": "a.txt"}), ("refund", {"order": "/etc/shadow"})]), told]
    async with rig(script, tools=[shop.refund(approval="always")]) as r:
        run = await r.start()
        first, second = await asked(run, 2)
        await run.approve(first.id)
        await until(lambda: shop.done)
        (left,) = await asked(run)
        assert left.id == second.id
        await run.deny(second.id)
        await run.result()
        assert [o for o, _ in shop.done] == ["a.txt"]


async def asks(tool: Tool, **arguments: Any) -> Asks:
    """What a person is asked about a call of `refund`."""
    request = {"agent": "a", "tool": "refund", "effect": "once", "attempts": 1, "turn": 1}
    place = {"index": 0, "call_id": "c", "arguments_digest": "", "key": "k", "result_bytes": 9}
    given = ExecuteInput.model_validate({**request, **place, "arguments": arguments})
    context = ToolContext()
    bound = tool.bind(arguments, context)
    with ThreadPoolExecutor(1) as threads:
        asked, _ = await wanted(tool, given, bound, context, threads=threads, redactor=Redactor())
    return asked


async def test_the_same_arguments_written_otherwise_are_the_same() -> None:
    """Key order, 150 for 150.00 and a default that is written out make no other call of it; another
    amount, or another definition of the tool, does."""
    refund, stricter = Shop().refund(), Shop().refund(effect="once")
    first = (await asks(refund, order="o")).digest
    assert (await asks(refund, amount="150.00", order="o")).digest == first
    assert (await asks(refund, amount="150.01", order="o")).digest != first
    assert (await asks(stricter, order="o")).digest != first


async def test_a_person_is_shown_every_character_and_how_many_are_left_out() -> None:
    """Of arguments as JSON: what nobody sees is escaped, and what is cut is counted."""
    shown = await asks(Shop().refund(), order="o-1\u200b\u00ad\U000e0041\n")
    assert shown.arguments == r'{"order":"o-1\u200b\u00ad\udb40\udc41\n","amount":"150"}'
    assert json.loads(shown.arguments)["order"] == "o-1\u200b\u00ad\U000e0041\n"
    assert shown.left_out == 0
    shown = await asks(Shop().refund(), order="x" * 1_200)
    assert len(shown.arguments) == 1_000
    assert shown.left_out == len(f'{{"order":"{"x" * 1_200}","amount":"150"}}') - 1_000


async def test_a_tool_that_was_redefined_is_asked_for_again(
    rig: RigFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its description or types have changed between the word and the run: it stands no more."""
    shop = Shop()
    refund = shop.refund()
    async with rig([call("refund", {"order": "o-1"}), told], tools=[refund]) as r:
        run = await r.start()
        (first,) = await asked(run)
        changed = refund.spec.model_copy(update={"description": "Refund, and close the account."})
        monkeypatch.setattr(refund, "spec", changed)
        await run.approve(first.id)
        (second,) = await asked(run)
        assert second.id != first.id
        assert shop.done == []
        await run.approve(second.id)
        assert (await run.result()).answer == "refunded 150 of o-1"
        assert len(shop.done) == 1


async def test_decided_once(rig: RigFactory) -> None:
    """The same word again changes nothing, the opposite is refused with who decided."""
    shop = Shop()
    script = [calls([("refund", {"order": "o-1"}), ("refund", {"order": "o-2"})]), told]
    async with rig(script, tools=[shop.refund()]) as r:
        run = await r.start()
        first, second = await asked(run, 2)
        assert await run.approve(first.id, actor="ann") == "decided"
        assert await run.approve(first.id, actor="bob") == "unchanged"
        why = await refused(run.deny(first.id, actor="bob"))
        assert why.startswith(f"approval: {first.id} is decided: it was approved by ann")
        assert f"waiting: {second.id} (refund)" in await refused(run.approve("0" * 16))
        other = await r.start()
        assert "is none of this run" in await refused(other.approve(second.id))
        await other.stop()
        both = await asyncio.gather(
            run.approve(second.id), run.deny(second.id), return_exceptions=True
        )
        assert sorted(type(b).__name__ for b in both) == ["InvalidRequest", "str"]
        result = await run.result()
        word = "denied" if both[1] == "decided" else "approved"
        decided = {a.id: (a.status, a.actor) for a in result.approvals}
        assert decided == {first.id: ("approved", "ann"), second.id: (word, None)}
        assert len(shop.done) == (1 if word == "denied" else 2)
        assert await run.approve(first.id) == "ended"
        assert await r.task_failures() == 0


async def test_malformed_decisions_change_nothing(rig: RigFactory) -> None:
    """As updates they are told why; as signals they are dropped."""
    shop = Shop()
    async with rig([call("refund", {"order": "o-1"}), told], tools=[shop.refund()]) as r:
        run = await r.start()
        (waiting,) = await asked(run)
        handle = r.client.get_workflow_handle(run.id)
        bodies: list[list[Any]] = [
            [],
            [None],
            ["yes"],
            [{"approval": waiting.id}, 1],
            [{"approval": 7}],
            [{"approval": ""}],
            [{"approval": waiting.id, "remember": "yes"}],
            [{"approval": waiting.id, "arguments": {"amount": 1}}],
            [{"approval": "x" * 100_000}],
        ]
        for body in bodies:
            for name in (APPROVE, DENY):
                with pytest.raises(WorkflowUpdateFailedError):
                    await handle.execute_update(name, args=body)
                await handle.signal(name, args=body)
        assert [a.id for a in await asked(run)] == [waiting.id]
        await handle.signal(APPROVE, {"approval": waiting.id})
        assert (await run.result()).answer == "refunded 150 of o-1"
        assert await r.task_failures() == 0


@pytest.mark.parametrize("end", ["stop", "time", "cancel"])
async def test_a_run_that_waits_can_be_ended(rig: RigFactory, end: str) -> None:
    """Its call is not run; what was asked for is withdrawn, and a word that comes now refused."""
    shop = Shop()
    limits = Limits(wall_seconds=3 if end == "time" else 600)
    script = [call("refund", {"order": "o-1"}), told]
    async with rig(script, tools=[shop.refund()], limits=limits) as r:
        run = await r.start()
        (waiting,) = await asked(run)
        if end == "stop":
            await run.stop("enough")
        elif end == "cancel":
            await r.client.get_workflow_handle(run.id).cancel()
        result = await run.result(check=False)
        wanted = {"stop": "stopped", "time": "time_limit", "cancel": "cancelled"}[end]
        assert result.outcome == wanted
        assert await run.approve(waiting.id) == "ended"
        status = await run.status()
        assert [a.status for a in status.approvals] in (["withdrawn"], [])
        assert shop.done == []
        assert await r.task_failures() == 0


# --- who decides ------------------------------------------------------------------------------


def signed(signature: Signature) -> str:
    """Ann has signed it."""
    if signature.proof != f"ann:{signature.approval.id}:{signature.verdict}":
        raise PermissionError(f"that is no signature of {signature.actor}")
    return "ann@example.com"


async def test_who_decides_is_verified(rig: RigFactory) -> None:
    """A word without a proof does not count, and the call waits on for one that has it."""
    shop = Shop()
    script = [call("refund", {"order": "o-1"}), told]
    async with rig(script, tools=[shop.refund()], verify=signed) as r:
        run = await r.start()
        (waiting,) = await asked(run)
        assert await run.approve(waiting.id, actor="bob") == "decided"

        async def refused_once() -> str:
            return (await asked(run))[0].refused

        assert await until(refused_once) == "approved by bob: that is no signature of bob"
        # A signature for a yes is none for a no, nor for another approval.
        await run.deny(waiting.id, actor="bob", proof=f"ann:{waiting.id}:approve")
        await until(lambda: _refused_as(run, "denied by bob"))
        assert shop.done == []
        await run.approve(waiting.id, actor="ann", proof=f"ann:{waiting.id}:approve")
        result = await run.result()
        assert shop.done == [("o-1", "150")]
        (approval,) = result.approvals
        assert (approval.actor, approval.verified) == ("ann@example.com", True)
        assert "was approved by ann@example.com (approval" in approval_text(approval)
        assert await r.task_failures() == 0


async def _refused_as(run: AgentRunHandle, words: str) -> bool:
    return (await asked(run))[0].refused.startswith(words)


async def test_a_directory_that_is_away_is_asked_again(rig: RigFactory) -> None:
    """Meanwhile another word is refused; then the first one counts."""
    shop, away = Shop(), [OSError("away"), OSError("away")]

    def slowly(signature: Signature) -> str:
        if away:
            raise away.pop()
        return f"{signature.actor} of sales"

    script = [call("refund", {"order": "o-1"}), told]
    async with rig(script, tools=[shop.refund()], verify=slowly) as r:
        run = await r.start()
        (waiting,) = await asked(run)
        await run.approve(waiting.id, actor="ann")
        assert "is being verified" in await refused(run.deny(waiting.id, actor="bob"))
        result = await run.result()
        assert [a.actor for a in result.approvals] == ["ann of sales"]
        assert len(shop.done) == 1


async def test_who_it_was_is_found_out_too_late(rig: RigFactory) -> None:
    """The call was denied by the clock meanwhile: the word is of no use any more, and the run goes
    on."""

    async def slowly(signature: Signature) -> str:
        await asyncio.sleep(3)
        return str(signature.actor)

    shop, policy = Shop(), ApprovalPolicy(expires=1)
    script = [call("refund", {"order": "o-1"}), told]
    async with rig(script, tools=[shop.refund()], verify=slowly, approvals=policy) as r:
        run = await r.start()
        (waiting,) = await asked(run)
        await run.approve(waiting.id, actor="ann")
        result = await run.result(timeout=60)
        assert result.answer == "Nobody allowed it within 1 s: it was not run."
        assert [a.status for a in result.approvals] == ["expired"]
        assert shop.done == []
        assert await r.task_failures() == 0


# --- while it waits ---------------------------------------------------------------------------


async def test_it_continues_as_new_while_it_waits(rig: RigFactory) -> None:
    """The call waits on in the next execution, under the same id, and is run once."""
    shop = Shop()
    script = [
        *[call("look", {"n": n}) for n in range(6)],
        calls([("refund", {"order": "o-1"}), ("refund", {"order": "o-2"})]),
        told,
    ]

    @tool(effect="read")
    def look(n: int) -> str:
        """Look."""
        return f"seen {n}"

    often = HistoryPolicy(events=80)
    async with rig(script, tools=[look, shop.refund()], history=often) as r:
        run = await r.start()
        first, second = await asked(run, 2)
        handle = r.client.get_workflow_handle(run.id)
        for _ in range(25):
            # They are dropped, but stand in its history.
            await handle.signal(APPROVE, {"approval": "0"})
            await asyncio.sleep(0.05)
        carried = await until(lambda: _carried_waiting(r, run.id))
        assert [c.status for c in carried.calls] == ["waiting", "waiting"]
        assert [a.id for a in await asked(run, 2)] == [first.id, second.id]
        await run.approve(second.id)
        await run.approve(first.id)
        result = await run.result()
        assert result.answer == "refunded 150 of o-1 | refunded 150 of o-2"
        assert shop.done == [("o-1", "150"), ("o-2", "150")]
        assert [a.status for a in result.approvals] == ["approved", "approved"]
        assert (await r.transcript()).entries[-1].kind == "reply"
        assert await r.task_failures() == 0


async def _carried_waiting(r: Rig, run_id: str) -> Any:
    states = [state for _, state in await r.carried(run_id)]
    return next((s for s in states if s.phase == "EXECUTE"), None)


@pytest.fixture
def patient(
    virtual: WorkflowEnvironment, tmp_path: Path
) -> Iterator[tuple[RigFactory, WorkflowEnvironment]]:
    """Rigs on a server whose time can be skipped."""

    def made(script: Any, **options: Any) -> Any:
        return open_rig(virtual.client, tmp_path, script, **options)

    # Only where a test says so: a run would be days ahead before anybody has looked at it.
    with virtual.with_time_skipping_disabled():
        yield made, virtual


async def after(r: Rig, environment: WorkflowEnvironment, run: AgentRunHandle, days: float) -> None:
    """Let that much time pass for the run."""
    handle = r.client.get_workflow_handle(run.id)
    await environment.fast_forward(handle, timedelta(days=days))


WEEK = Limits(wall_seconds=7 * DAYS)


async def test_nobody_decides_in_time(patient: tuple[RigFactory, WorkflowEnvironment]) -> None:
    """By default the call is denied then, and a word that comes later is refused."""
    rig, environment = patient
    shop = Shop()
    script = [call("refund", {"order": "o-1"}), call("look"), told]

    @tool(effect="read", approval="always")
    def look() -> str:
        """Look."""
        return "seen"

    async with rig(script, tools=[shop.refund(), look], limits=WEEK) as r:
        run = await r.start()
        (first,) = await asked(run)
        await after(r, environment, run, 1.1)
        (second,) = await asked(run)
        assert second.tool == "look"
        assert "it has expired" in await refused(run.approve(first.id))
        await run.approve(second.id)
        result = await run.result()
        assert [a.status for a in result.approvals] == ["expired", "approved"]
        said = [e.value["text"] for e in (await r.transcript()).entries if e.kind == "result"]
        assert said == ["Nobody allowed it within 24 h: it was not run.", "seen"]
        assert shop.done == []


async def test_three_days_are_waited(patient: tuple[RigFactory, WorkflowEnvironment]) -> None:
    """A person may have days, if the agent says so."""
    rig, environment = patient
    shop, policy = Shop(), ApprovalPolicy(expires=5 * DAYS)
    script = [call("refund", {"order": "o-1"}), told]
    async with rig(script, tools=[shop.refund()], limits=WEEK, approvals=policy) as r:
        run = await r.start()
        (waiting,) = await asked(run)
        await after(r, environment, run, 3)
        assert [a.id for a in await asked(run)] == [waiting.id]
        await run.approve(waiting.id)
        assert (await run.result()).answer == "refunded 150 of o-1"


@pytest.mark.parametrize("on_expiry", ["stop", "escalate"])
async def test_what_becomes_of_it_is_the_agents_policy(
    patient: tuple[RigFactory, WorkflowEnvironment], on_expiry: Any
) -> None:
    """The run stops; or it is asked for once more, and denied after as long again."""
    rig, environment = patient
    shop, policy = Shop(), ApprovalPolicy(on_expiry=on_expiry)
    script = [call("refund", {"order": "o-1"}), told]
    async with rig(script, tools=[shop.refund()], limits=WEEK, approvals=policy) as r:
        run = await r.start()
        (waiting,) = await asked(run)
        await after(r, environment, run, 1.1)
        if on_expiry == "escalate":
            (again,) = await asked(run)
            assert (again.id, again.escalated) == (waiting.id, True)
            await after(r, environment, run, 1)
        result = await run.result(check=False)
        ended = {"stop": "stopped", "escalate": "completed"}[on_expiry]
        assert result.outcome == ended
        assert [a.status for a in result.approvals] == ["expired"]
        assert shop.done == []
        assert await r.task_failures() == 0


async def test_a_person_is_told_how_long_the_run_waits(rig: RigFactory) -> None:
    """The run's time may be over before an approval expires. Raised, the new end is told, also to
    whoever asks no worker."""
    shop = Shop()
    script = [call("refund", {"order": "o-1"}), told]
    async with rig(script, tools=[shop.refund()], limits=Limits(wall_seconds=300)) as r:
        run = await r.start()
        (waiting,) = await asked(run)
        assert waiting.until == waiting.run_ends < waiting.expires
        assert waiting.until - waiting.since <= 300
        assert waiting.until_why == "when the run's time is over"
        handle = r.client.get_workflow_handle(run.id)
        assert f"Until {clock(waiting.until)}, {waiting.until_why}." in await card(r, run)
        await run.raise_limits({"wall_seconds": 2 * DAYS})

        async def published() -> ApprovalAsked | None:
            (found,) = await approvals_of(await handle.describe())
            return found if found.until_why == "when it expires" else None

        raised = await until(published)
        assert raised.until == raised.expires == waiting.expires
        assert await run.approve(waiting.id) == "decided"
        assert (await run.result()).outcome == "completed"
        assert await r.task_failures() == 0


async def test_each_has_its_own_time(rig: RigFactory) -> None:
    """The second of two expires, though it was asked for later, and the first was decided."""
    shop, policy = Shop(), ApprovalPolicy(expires=3)

    async def later(args: Mapping[str, Any]) -> bool:
        await asyncio.sleep(float(args["amount"]) - 150)
        return True

    script = [
        calls([("refund", {"order": "o-1"}), ("refund", {"order": "o-2", "amount": 151})]),
        told,
    ]
    async with rig(script, tools=[shop.refund(later)], approvals=policy) as r:
        run = await r.start()
        first, second = await asked(run, 2)
        assert second.expires > first.expires
        await run.approve(first.id)
        result = await run.result(timeout=60)
        assert [a.status for a in result.approvals] == ["approved", "expired"]
        assert [o for o, _ in shop.done] == ["o-1"]


async def test_nothing_begins_once_the_time_to_decide_has_ended_the_run(rig: RigFactory) -> None:
    """Neither the call that was allowed meanwhile nor a read that stood behind it."""
    shop, seen = Shop(), []

    @tool(effect="read")
    async def look() -> str:
        """Look."""
        seen.append("begun")
        return "seen"

    script = [calls([("refund", {"order": "o-1"}), ("refund", {"order": "o-2"}), ("look", {})])]
    policy = ApprovalPolicy(expires=4, on_expiry="stop")
    async with rig(script, tools=[shop.refund(), look], approvals=policy) as r:
        run = await r.start()
        _, second = await asked(run, 2)
        await run.approve(second.id)
        result = await run.result(check=False)
        assert (result.outcome, shop.done, seen) == ("stopped", [], [])
        assert await r.task_failures() == 0


async def test_a_retry_does_not_ask_for_what_was_done(rig: RigFactory) -> None:
    """What was begun `once` before the reset is not begun again, so nobody has to allow it."""
    shop = Shop()
    script = [call("refund", {"order": "o-1"}), told]
    async with rig(script, tools=[shop.refund("always", effect="once")]) as r:
        run = await r.start()
        (waiting,) = await asked(run)
        await run.approve(waiting.id)
        assert (await run.result()).answer == "refunded 150 of o-1"
        with pytest.raises(EffectsRepeated) as caught:
            await run.retry_from(1)
        assert [e.tool for e in caught.value.effects] == ["refund"]
        again = await run.retry_from(1, again=True)
        assert (await again.result(timeout=60)).answer == "refunded 150 of o-1"
        assert shop.done == [("o-1", "150")]


@pytest.mark.parametrize("word", ["approve", "deny"])
async def test_a_decision_from_before_a_reset_decides_no_call_after_it(
    rig: RigFactory, word: str
) -> None:
    """Temporal's reset to the beginning applies the update again before its call is there: it is
    refused, and the call is asked for anew."""
    shop = Shop()
    async with rig([call("refund", {"order": "o-1"}), told], tools=[shop.refund()]) as r:
        run = await r.start()
        (waiting,) = await asked(run)
        await getattr(run, word)(waiting.id, actor="ann")
        await run.result()
        before = list(shop.done)
        await r.reset(run)
        (again,) = await asked(run)
        await run.deny(again.id, actor="bob")
        result = await run.result()
        assert [(a.status, a.actor) for a in result.approvals] == [("denied", "bob")]
        assert shop.done == before
        assert await r.task_failures() == 0


async def test_decisions_that_a_reset_applies_again_are_taken_once(rig: RigFactory) -> None:
    """Reset to where the calls waited, the same words count, and the effect is not repeated."""
    shop = Shop()
    script = [calls([("refund", {"order": "o-1"}), ("refund", {"order": "o-2"})]), told]
    async with rig(script, tools=[shop.refund("always", effect="once")]) as r:
        run = await r.start()
        first, second = await asked(run, 2)
        tasks = len(await _finished_tasks(r, run))
        await run.deny(second.id, actor="bob")
        await run.approve(first.id, actor="ann")
        before = await run.result()
        await r.reset(run, (await _finished_tasks(r, run))[tasks])
        after = await run.result()
        decided = {a.id: (a.status, a.actor) for a in after.approvals}
        assert decided == {first.id: ("approved", "ann"), second.id: ("denied", "bob")}
        assert after.answer == before.answer
        assert shop.done == [("o-1", "150")]
        assert await r.task_failures() == 0


async def _finished_tasks(r: Rig, run: AgentRunHandle) -> list[int]:
    """Where workflow tasks of a run finished."""
    finished = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
    return [e.event_id for e in await r.events(run.id) if e.event_type == finished]
