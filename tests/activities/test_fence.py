"""A tool's coroutine behind its lease: unseen while the lease holds, decisive when it does not."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest

from activities import fence
from activities.fence import fenced as under
from activities.lease import Lease, Loss

NAME = contextvars.ContextVar("name", default="outer")


class Held:
    """A lease that a test brings in doubt, and answers for."""

    def __init__(self) -> None:
        self.in_doubt = False
        self.loss: Loss | None = None
        self.why = "given to another worker"
        self.over = False
        self.children = set[asyncio.Future[Any]]()
        self.asked = 0
        self.answer: Callable[[], Awaitable[bool]] = self.yes

    async def yes(self) -> bool:
        """It still holds."""
        await asyncio.sleep(0)
        self.in_doubt = False
        return True

    async def no(self) -> bool:
        """It does not."""
        await asyncio.sleep(0)
        self.loss = "superseded"
        return False

    async def assured(self) -> bool:
        """As `Lease` does."""
        self.asked += 1
        return await self.answer()


async def fenced(coroutine: Coroutine[Any, Any, Any], held: Held | None = None) -> Any:
    """The coroutine under a lease, which is over with it."""
    held = held or Held()
    try:
        return await under(coroutine, cast(Lease, held))
    finally:
        held.over = True


async def test_a_result_and_an_exception_pass() -> None:
    """As they are, the exception with its own traceback and nothing added as its context."""

    async def fails() -> None:
        await asyncio.sleep(0)
        raise KeyError("order")

    async def stops() -> None:
        raise StopIteration("end")

    assert await fenced(asyncio.sleep(0, "slept")) == "slept"
    with pytest.raises(KeyError) as raised:
        await fenced(fails())
    assert raised.value.__context__ is None
    with pytest.raises(RuntimeError, match="StopIteration"):
        await fenced(stops())


async def test_the_tool_runs_in_the_same_task_and_context() -> None:
    """What it sets is seen outside, and the current task is the activity's."""

    async def tool() -> asyncio.Task[Any] | None:
        NAME.set("inner")
        await asyncio.sleep(0)
        return asyncio.current_task()

    assert await fenced(tool()) is asyncio.current_task()
    assert NAME.get() == "inner"


async def test_timeouts_and_task_groups_of_the_tool_work() -> None:
    """Those of asyncio and anyio: what they cancel is caught where it belongs."""

    async def tool() -> list[str]:
        seen = []
        try:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(5)
        except TimeoutError:
            seen.append("asyncio timeout")
        with anyio.move_on_after(0.01) as scope:
            await anyio.sleep(5)
        seen.append(f"anyio cancelled: {scope.cancelled_caught}")
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(5))
                await asyncio.sleep(0)
                raise LookupError("first")
        except* LookupError:
            seen.append("asyncio group")
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(anyio.sleep, 5)
                await anyio.lowlevel.checkpoint()
                raise LookupError("first")
        except* LookupError:
            seen.append("anyio group")
        await asyncio.sleep(0)
        return seen

    assert await asyncio.wait_for(fenced(tool()), 3) == [
        "asyncio timeout",
        "anyio cancelled: True",
        "asyncio group",
        "anyio group",
    ]
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_cancel_reaches_the_tool_and_may_be_caught() -> None:
    """As without the fence: at its `await`, with the message, and its cleaning up may wait."""
    seen: list[str] = []

    async def tool() -> str:
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError as error:
            seen.append(str(error))
            await asyncio.sleep(0)
            return "cleaned up"
        return "never"

    async def call() -> Any:
        return await fenced(tool())

    task = asyncio.create_task(call())
    await asyncio.sleep(0)
    task.cancel("enough")
    assert await task == "cleaned up"
    assert seen == ["enough"]


async def test_in_doubt_the_server_is_asked_before_the_next_step() -> None:
    """The step waits for the answer, and is made when the answer is yes."""
    held = Held()
    steps: list[tuple[str, int]] = []

    async def tool() -> None:
        steps.append(("first", held.asked))
        held.in_doubt = True
        await asyncio.sleep(0)
        steps.append(("second", held.asked))
        await asyncio.sleep(0)
        steps.append(("third", held.asked))

    await fenced(tool(), held)
    assert steps == [("first", 0), ("second", 1), ("third", 1)]


async def test_a_lost_lease_is_a_cancel_in_place_of_what_was_waited_for() -> None:
    """Whether the answer says so or it was known before; no further step is made."""
    for known in (False, True):
        held, steps = Held(), list[str]()
        held.answer = held.no

        async def tool(held: Held, steps: list[str], known: bool) -> None:
            held.in_doubt = True
            held.loss = "silent" if known else None
            try:
                await asyncio.sleep(0)
                steps.append("sent")
            finally:
                await asyncio.sleep(0)
                steps.append("cleaned up")

        with pytest.raises(asyncio.CancelledError, match="another worker"):
            await fenced(tool(held, steps, known), held)
        assert steps == ["cleaned up"]


async def test_a_tool_that_swallows_the_cancel_is_interrupted_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After the time for cleaning up, at every step until it ends."""
    monkeypatch.setattr(fence, "CLEAN_UP_SECONDS", 0.02)
    held, cancels = Held(), list[BaseException]()

    async def tool() -> str:
        held.loss = "superseded"
        while len(cancels) < 3:
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError as error:
                cancels.append(error)
        return "late"

    assert await asyncio.wait_for(fenced(tool(), held), 3) == "late"


async def test_a_cancel_while_the_server_is_asked_reaches_the_tool() -> None:
    """It is not lost in the question; a timeout of the tool's own, too, is its own."""
    held = Held()
    held.answer = lambda: asyncio.sleep(60, True)

    async def tool() -> str:
        try:
            async with asyncio.timeout(0.05):
                held.in_doubt = True
                await asyncio.sleep(0)
        except TimeoutError:
            held.in_doubt = False
            return "timed out"
        return "never"

    assert await asyncio.wait_for(fenced(tool(), held), 3) == "timed out"


async def test_child_tasks_are_fenced_with_their_parent() -> None:
    """A child that was woken makes no step either; one that was never begun leaves no warning."""
    held, steps = Held(), list[str]()
    held.answer = held.no
    woken = asyncio.Event()

    async def child(name: str) -> None:
        steps.append(f"{name} begins")
        await woken.wait()
        steps.append(f"{name} sent")

    async def tool() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(child("first"))
            await asyncio.sleep(0)
            group.create_task(child("second"))
            held.in_doubt = True
            woken.set()

    with pytest.raises(asyncio.CancelledError):
        await fenced(tool(), held)
    assert steps == ["first begins"]


async def test_a_task_that_outlives_the_call_is_on_its_own() -> None:
    """A client that calls share keeps its tasks; what is made outside of a tool has no fence."""
    held, left = Held(), list[asyncio.Task[str]]()

    async def background() -> str:
        await asyncio.sleep(0.02)
        return "alive"

    async def tool() -> None:
        left.append(asyncio.create_task(background()))

    await fenced(tool(), held)
    held.in_doubt = True
    held.answer = held.no
    assert await left[0] == "alive"
    assert await asyncio.create_task(background()) == "alive"
    assert held.asked == 0


@pytest.mark.parametrize("failure", [OSError, asyncio.CancelledError])
async def test_a_failed_call_leaves_nothing_running(failure: type[BaseException]) -> None:
    """A `gather` leaves the others running: they would write beside the next attempt. What was made
    in a context of its own, as a client that calls share may do, goes on."""
    held, steps, shared = Held(), list[str](), list[asyncio.Task[None]]()

    async def effect(name: str) -> None:
        try:
            await asyncio.sleep(0.02)
        finally:
            await asyncio.sleep(0.02)
            steps.append(f"{name} ends")
        steps.append(f"{name} sent")

    async def fails() -> None:
        await asyncio.sleep(0)
        raise failure

    async def tool() -> None:
        alone = contextvars.Context()
        shared.append(asyncio.get_running_loop().create_task(effect("shared"), context=alone))
        await asyncio.gather(effect("stray"), fails())

    with pytest.raises(failure):
        await fenced(tool(), held)
    assert steps == ["stray ends"]
    await shared[0]
    assert steps == ["stray ends", "shared ends", "shared sent"]


async def test_an_abandoned_tool_is_closed() -> None:
    """Its `finally` runs when the activity's own coroutine is closed."""
    seen: list[str] = []

    async def tool() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            seen.append("closed")

    async def call() -> None:
        await fenced(tool())

    waiting = call()
    waiting.send(None)
    waiting.close()
    assert seen == ["closed"]
