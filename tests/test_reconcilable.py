"""Reconcilable tools: the target is asked before a second attempt, and after the last one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from temporalio.common import WorkflowIDReusePolicy

from tests.rig import RigFactory
from turnkeeper import Landed, NotLanded, RetryTool, Tool, ToolContext, ToolFailed, Unknown, tool
from turnkeeper.contract import RunResult
from turnkeeper.testing import Exchange, Reply, call, text

SCRIPT: list[Any] = [call("book", {"order": "7"}), lambda x: text(x.last_results[0].text)]


class Carrier:
    """A target without protection: every request books, but it can be asked for a key."""

    def __init__(self, *plan: Callable[[], BaseException] | None) -> None:
        self.plan = list(plan)
        """What each further request ends with, before or after it was booked."""
        self.booked: list[str] = []
        self.asked: list[Mapping[str, Any]] = []
        self.begun = 0
        self.answers: list[Any] = []
        """Instead of the truth."""

    def tool(self, *, lands: bool, **options: Any) -> Tool:
        """The tool `book`; `lands` says whether a request that fails has booked before."""

        async def book(order: str, ctx: ToolContext) -> str:
            """Book a pickup."""
            assert order == "7"
            self.begun += 1
            failure = self.plan.pop(0) if self.plan else None
            if failure is None or lands:
                self.booked.append(ctx.idempotency_key)
            if failure is not None:
                raise failure()
            return f"booking {len(self.booked)}"

        return tool(effect="reconcilable", probe=self.probe, **options)(book)

    async def probe(self, ctx: ToolContext, args: Mapping[str, Any]) -> Any:
        """Whether it was booked."""
        self.asked.append(args)
        if self.answers:
            answer = self.answers.pop(0)
            if isinstance(answer, BaseException):
                raise answer
            return answer
        number = self.booked.count(ctx.idempotency_key)
        return Landed(f"booking {number}") if number else NotLanded()


def lost() -> BaseException:
    """The reply did not come."""
    return ConnectionResetError("reply lost")


async def run(rig: RigFactory, *tools: Tool, **request: Any) -> RunResult:
    """The whole run; no workflow task fails."""
    async with rig(SCRIPT, tools=tools) as r:
        result = await r.run(**request)
        assert await r.task_failures() == 0
    return result


async def test_the_receipt_of_what_landed_is_the_result(rig: RigFactory) -> None:
    """The effect happened and its reply was lost: it is not sent again."""
    carrier = Carrier(lost)
    result = await run(rig, carrier.tool(lands=True))
    assert (result.answer, result.errors) == ("booking 1", 0)
    assert (carrier.begun, len(carrier.booked)) == (1, 1)
    # By the tool's own types and without the context.
    assert carrier.asked == [{"order": "7"}]


async def test_what_did_not_land_is_sent_again(rig: RigFactory) -> None:
    """The request was lost: the second one books, once."""
    carrier = Carrier(lost)
    result = await run(rig, carrier.tool(lands=False))
    assert (result.answer, result.errors) == ("booking 1", 0)
    assert (carrier.begun, len(carrier.booked), len(carrier.asked)) == (2, 1, 1)


@pytest.mark.parametrize("lands", [True, False])
async def test_asked_after_the_last_failure(rig: RigFactory, lands: bool) -> None:
    """No attempt is left, and still nothing is unknown: a receipt, or a plain error."""
    carrier = Carrier(lost)
    result = await run(rig, carrier.tool(lands=lands, retries=0))
    assert (carrier.begun, len(carrier.asked)) == (1, 1)
    assert result.unknown == []
    if lands:
        assert result.answer == "booking 1"
    else:
        assert result.answer == (
            "Tool book failed after 1 attempt: ConnectionResetError: reply lost "
            "It did not take effect."
        )


async def test_a_bug_is_not_repeated_but_asked_about(rig: RigFactory) -> None:
    """A TypeError after the request: the body would fail again, the target knows."""
    carrier = Carrier(lambda: TypeError("a bug"))
    result = await run(rig, carrier.tool(lands=True))
    assert (result.answer, carrier.begun) == ("booking 1", 1)
    carrier = Carrier(lambda: TypeError("a bug"))
    result = await run(rig, carrier.tool(lands=False))
    assert result.answer is not None
    assert result.answer.endswith("It did not take effect.")
    assert carrier.begun == 1


NO_ANSWERS = [
    Unknown("not indexed yet"),
    OSError("carrier down"),
    ToolFailed("no"),
    RetryTool("later"),
    SystemExit(1),
    StopIteration(),
    asyncio.CancelledError(),
    True,
    None,
    "landed",
]


async def test_without_an_answer_it_is_unknown(rig: RigFactory) -> None:
    """Three times asked, never sent again; what is no answer is not guessed at."""

    async def asked(answer: Any) -> None:
        carrier = Carrier(lost)
        carrier.answers = [answer] * 3
        result = await run(rig, carrier.tool(lands=True))
        assert result.answer is not None, answer
        assert "reply lost" in result.answer, answer
        assert "may or may not have taken effect" in result.answer, answer
        assert (carrier.begun, len(carrier.asked)) == (1, 3), answer
        assert [u.tool for u in result.unknown] == ["book"], answer

    # Side by side: each waits for its probes' backoff.
    await asyncio.gather(*map(asked, NO_ANSWERS))


async def test_an_answer_may_come_late(rig: RigFactory) -> None:
    """The target did not know at first."""
    carrier = Carrier(lost)
    carrier.answers = [Unknown("not indexed yet"), OSError("down")]
    result = await run(rig, carrier.tool(lands=True))
    assert (result.answer, carrier.begun, len(carrier.asked)) == ("booking 1", 1, 3)


async def test_each_attempt_is_asked_about(rig: RigFactory) -> None:
    """Three attempts of which the last one lands: asked before the second, the third, the end."""
    carrier = Carrier(lost, lost, lost)
    result = await run(rig, carrier.tool(lands=False, retries=2))
    assert (carrier.begun, len(carrier.asked), carrier.booked) == (3, 3, [])
    assert result.answer is not None
    assert "failed after 3 attempts" in result.answer
    assert result.unknown == []


async def test_retry_tool_needs_no_probe(rig: RigFactory) -> None:
    """Nothing happened, says the author."""
    carrier = Carrier(lambda: RetryTool("busy", delay=0.01))
    result = await run(rig, carrier.tool(lands=False))
    assert (result.answer, carrier.begun, carrier.asked) == ("booking 1", 2, [])


async def test_asked_after_a_timeout(rig: RigFactory) -> None:
    """The server ended the attempt: what it had done is found out."""
    booked: list[str] = []

    async def probe(ctx: ToolContext, args: Mapping[str, Any]) -> Any:
        return Landed("found") if ctx.idempotency_key in booked else NotLanded()

    @tool(effect="reconcilable", probe=probe, timeout=1)
    async def book(order: str, ctx: ToolContext) -> str:
        """Book."""
        booked.append(ctx.idempotency_key)
        await asyncio.sleep(3600)
        return order

    result = await run(rig, book)
    assert (result.answer, len(booked)) == ("found", 1)


async def test_a_synchronous_probe(rig: RigFactory) -> None:
    """A plain function may ask, too: in a thread."""
    carrier = Carrier(lost)

    def probe(ctx: ToolContext, args: Mapping[str, Any]) -> Any:
        return Landed({"number": len(carrier.booked)})

    asked = carrier.tool(lands=True)
    asked.probe = probe
    result = await run(rig, asked)
    assert result.answer == '{"number":1}'


async def test_a_repeated_start_asks_first(rig: RigFactory) -> None:
    """The same `request_key` again after the first run closed: its effect is found, not doubled."""
    carrier = Carrier()

    def script(exchange: Exchange) -> Reply:
        return (
            text(exchange.last_results[0].text) if exchange.turn else call("book", {"order": "7"})
        )

    async with rig(script, tools=[carrier.tool(lands=True)]) as r:
        request = {"agent": "tester", "prompt": "question", "request_key": "q-1"}
        again = WorkflowIDReusePolicy.ALLOW_DUPLICATE
        for _ in range(2):
            handle = await r.start_raw(request, id="order-7", id_reuse_policy=again)
            assert (await handle.result())["answer"] == "booking 1"
    assert (len(carrier.booked), len(carrier.asked)) == (1, 2)


@pytest.mark.parametrize(("key_ttl", "ran"), [(1.5, 1), (3600, 2)])
async def test_a_key_that_may_be_forgotten_is_not_sent_again(
    rig: RigFactory, key_ttl: float, ran: int
) -> None:
    """A retry that would come after the key's time to live is not blind: it is unknown."""
    begun: list[str] = []

    @tool(effect="idempotent", timeout=1, key_ttl=key_ttl)
    async def book(order: str, ctx: ToolContext) -> str:
        """Book."""
        begun.append(ctx.idempotency_key)
        if len(begun) == 1:
            raise OSError("reply lost")
        return f"{order} booked"

    result = await run(rig, book)
    assert len(begun) == ran
    if ran == 1:
        assert result.answer is not None
        assert "too late to try again under the same key" in result.answer
        assert "may or may not have taken effect" in result.answer
    else:
        assert result.answer == "7 booked"


async def test_a_probe_past_the_keys_time_proves_nothing(rig: RigFactory) -> None:
    """The target may have forgotten that it landed: `NotLanded` is not believed."""
    carrier = Carrier(lost)
    result = await run(rig, carrier.tool(lands=False, timeout=1, key_ttl=1.5))
    assert (carrier.begun, len(carrier.asked)) == (1, 1)
    assert len(result.unknown) == 1
