"""Failures that people met in public: tools that outlived their run, their time or their worker.

The ids are those of the collected reports. Timeouts are shorter than in those.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import socket
import time
import urllib.request
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client

from tests import effect_tools
from tests.faults.killable import read_notes
from tests.rig import Rig, RigFactory, until
from tests.workers import Site, SiteFactory, alive, open_site
from turnkeeper import Limits, StopRun, ToolContext, ToolFailed, tool
from turnkeeper.client import AgentRunHandle
from turnkeeper.contract import RunResult
from turnkeeper.errors import RunCancelled
from turnkeeper.metrics import ATTEMPTS_TIMED_OUT
from turnkeeper.testing import EffectLedger, call, calls, text
from turnkeeper.testing.effects import Arrival
from turnkeeper.testing.embedded import EmbeddedServer
from turnkeeper.testing.nursery import ForkedProcess

# Workers start slowly where much else is at work.
pytestmark = pytest.mark.timeout(300)

FAST = {"heartbeat_seconds": 1}
BEAT = ("--heartbeat-seconds", "2")
TOLD: Callable[[Any], Any] = lambda x: text(x.last_results[0].text)  # noqa: E731


async def cancel(r: Rig, run: AgentRunHandle) -> float:
    """Cancel a run through Temporal; the seconds until it had ended."""
    asked = time.monotonic()
    await r.client.get_workflow_handle(run.id).cancel()
    with pytest.raises(RunCancelled):
        await run.result(timeout=60)
    return time.monotonic() - asked


# --- cancelled runs -------------------------------------------------------------------------------


async def test_b23_a_tool_that_reads_for_ever_ends_with_its_run(
    rig: RigFactory, ledger: EffectLedger
) -> None:
    """A program that reads its standard input for ever, in a session of its own: the cancel answers
    the call, the program is dead, and what is asked next is served. (A closed run takes no message:
    the next one is a run of its own, on the same worker.)"""
    script = [[call("ask"), text("Hello again.")]]
    alone = {"heartbeat_seconds": 2, "max_activities": 1}
    async with rig(script, tools=[effect_tools.ask], settings=alone) as r:
        run = await r.start()
        (begun,) = await until(lambda: read_notes("begin"), timeout=90)
        assert alive(begun["pid"])
        assert await cancel(r, run) < 4
        assert not alive(begun["pid"])
        kinds = [e.event_type for e in await r.events(run.id)]
        assert kinds.count(EventType.EVENT_TYPE_ACTIVITY_TASK_CANCELED) == 1
        assert len((await r.transcript(run.id)).tail) == 1
        assert (await r.run()).answer == "Hello again."
        assert not r.provider.rejections
    assert not ledger.arrivals()


async def test_b38_a_process_writes_nothing_after_a_cancel_or_a_timeout(
    rig: RigFactory, ledger: EffectLedger
) -> None:
    """A synchronous tool that would write after 4 s, cancelled after 1 s, and timed out after
    1.5 s: its process is dead within the heartbeat timeout and two seconds, nothing is written,
    and the worker's only slot serves the next call."""
    brief = tool(effect="once", timeout=1.5, name="brief")(effect_tools.pay.function)
    first = {"cancel": call("pay", {"before": 4}), "time out": call("brief", {"before": 4})}

    def script(exchange: Any) -> Any:
        return TOLD(exchange) if exchange.turn else first.get(exchange.prompt, call("pay"))

    alone = FAST | {"max_activities": 1}
    async with rig(script, tools=[effect_tools.pay, brief], settings=alone) as r:
        run = await r.start("cancel")
        await until(lambda: read_notes("begin"))
        await asyncio.sleep(1)
        assert await cancel(r, run) < 3
        next_ones = [await r.run("next")]
        late = await r.run("time out")
        assert "did not finish within 1.5 seconds" in (late.answer or "")
        begun = read_notes("begin")[-1]
        await until(lambda: not alive(begun["pid"]), timeout=30)
        next_ones.append(await r.run("next"))
        await asyncio.sleep(max(0, begun["time"] + 4.5 - time.time()))
    assert [x.answer for x in next_ones] == [a.receipt for a in ledger.arrivals()]


async def test_b41_every_tool_has_a_heartbeat_timeout_so_that_a_cancel_arrives(
    rig: RigFactory,
) -> None:
    """Whether a tool heartbeats or not, and whatever its effect, the server is told how long it may
    be silent; a cancel reaches it within that time and two seconds."""
    reached: list[float] = []
    begun: list[str] = []

    def waiting(effect: str, *, beats: bool) -> Any:
        async def work(ctx: ToolContext) -> str:
            """Work for ever."""
            begun.append(ctx.tool)
            try:
                while True:
                    await asyncio.sleep(0.1)
                    if beats:
                        ctx.heartbeat("alive")
            except asyncio.CancelledError:
                reached.append(time.monotonic())
                raise

        return tool(effect=effect, name=f"{effect}_{beats}")(work)  # type: ignore[call-overload]

    effects = ("read", "idempotent", "once")
    tools = [waiting(e, beats=b) for e, b in itertools.product(effects, (True, False))]
    async with rig(lambda x: call(x.prompt), tools=tools, settings=FAST) as r:
        runs = [await r.start(t.name) for t in tools]
        await until(lambda: len(begun) == len(tools))
        asked = time.monotonic()
        await asyncio.gather(*(cancel(r, run) for run in runs))
        assert len(reached) == len(tools)
        assert max(reached) - asked < 1 + 2
        for run in runs:
            scheduled = [
                e.activity_task_scheduled_event_attributes
                for e in await r.events(run.id)
                if e.HasField("activity_task_scheduled_event_attributes")
            ]
            (asked_for,) = [s for s in scheduled if not s.activity_type.name.startswith("run.")]
            assert asked_for.heartbeat_timeout.ToTimedelta().total_seconds() == 1


# --- calls beside each other ----------------------------------------------------------------------


async def test_b25_each_of_four_calls_keeps_its_own_end(rig: RigFactory) -> None:
    """Two succeed, one raises, one is cancelled alone: four results in call order, each with its
    own status, and the model reads them all."""
    told: list[Any] = []

    @tool(effect="read")
    async def good(n: int) -> str:
        """Succeed, after the others have failed."""
        await asyncio.sleep(0.3)
        return f"good {n}"

    @tool(effect="read", retries=0)
    async def bad() -> str:
        """Raise."""
        raise OSError("no such page")

    @tool(effect="read", retries=0)
    async def lone() -> str:
        """Be cancelled, and no other."""
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(60)
        return "never"

    def answer(exchange: Any) -> Any:
        told.extend(exchange.last_results)
        return text("Done.")

    asked = calls([("good", {"n": 1}), ("bad", {}), ("lone", {}), ("good", {"n": 2})])
    async with rig([asked, answer], tools=[good, bad, lone]) as r:
        result = await r.run()
        assert (result.outcome, result.calls, result.errors) == ("completed", 4, 2)
        entries = [e for e in (await r.transcript()).entries if e.kind == "result"]
        assert [e.value["tool"] for e in entries] == ["good", "bad", "lone", "good"]
        assert not r.provider.rejections
    assert [t.is_error for t in told] == [False, True, True, False]
    texts = [t.text for t in told]
    assert (texts[0], texts[3]) == ("good 1", "good 2")
    assert "no such page" in texts[1]
    assert "CancelledError" in texts[2]


@pytest.mark.parametrize("how", ["stop", "limit"])
async def test_b27_no_sibling_acts_after_the_run_has_ended(
    rig: RigFactory, ledger: EffectLedger, how: str
) -> None:
    """One call raises at once and that ends the run, by StopRun or by the limit of errors; one
    beside it would write after 2 s: it is cancelled, or awaited, before the run's end."""

    @tool(effect="read")
    async def fail() -> str:
        """Fail."""
        raise StopRun("enough") if how == "stop" else ToolFailed("no")

    script = [calls([("fail", {}), ("peek", {"before": 2})]), text("Never.")]
    tools, limits = [fail, effect_tools.peek], Limits(consecutive_errors=1)
    async with rig(script, tools=tools, limits=limits, settings=FAST) as r:
        run = await r.start()
        await until(lambda: read_notes("begin"))
        result = await run.result(check=False, timeout=60)
        closed = (await r.client.get_workflow_handle(run.id).describe()).close_time
        assert closed is not None
        await asyncio.sleep(max(0, read_notes("begin")[0]["time"] + 2.5 - time.time()))
    if how == "stop":
        assert result.outcome == "stopped"
        assert (ledger.arrivals(), read_notes("posted")) == ([], [])
    else:
        assert len(ledger.arrivals()) == len(read_notes("end")) == 1
    assert all(a.time <= closed.timestamp() for a in ledger.arrivals())


# --- attempts that take too long ------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.usefixtures("ledger")
async def test_b40_an_attempt_out_of_time_does_not_run_beside_the_next(rig: RigFactory) -> None:
    """30 s of work, 2.5 s of time, three attempts, no heartbeat of its own: each attempt is stopped
    by its worker, in a process as in the worker itself; two never live at once for longer than the
    heartbeat timeout, and none lives on."""
    asynchronous: list[tuple[int, float]] = []

    async def chime(ctx: ToolContext) -> str:
        """Say ten times a second that this attempt lives."""
        for _ in range(300):
            asynchronous.append((ctx.attempt, time.time()))
            await asyncio.sleep(0.1)
        return "chimed"

    short: dict[str, Any] = {"effect": "idempotent", "timeout": 2.5, "retries": 2}
    tools = [
        tool(**short, name="tick")(effect_tools.tick.function),
        tool(**short, name="chime")(chime),
    ]
    steps = {
        # The first one leaves a process behind, so that the second one begins at once.
        "tick": [call("pay"), call("tick", {"seconds": 30}), TOLD],
        "chime": [call("chime"), TOLD],
    }

    def script(exchange: Any) -> Any:
        step = steps[exchange.prompt][exchange.turn]
        return step(exchange) if callable(step) else step

    async with rig(script, tools=[effect_tools.pay, *tools], settings=FAST) as r:
        results = await asyncio.gather(r.run("tick"), r.run("chime"))
        await asyncio.sleep(1.5)
        ended = time.time()
        await asyncio.sleep(0.5)
    assert all("3 attempts" in (x.answer or "") for x in results)
    ticks = [(line["attempt"], line["time"]) for line in read_notes("tick")]
    for lived in (ticks, asynchronous):
        spans = [[t for n, t in lived if n == attempt] for attempt in (1, 2, 3)]
        # On a busy machine a new process may not have begun when its time is over.
        begun = [span for span in spans if span]
        assert spans[0]
        assert all(earlier[-1] - later[0] < 1 for earlier, later in itertools.pairwise(begun))
        assert lived[-1][1] < ended


@pytest.mark.long
@pytest.mark.crash
async def test_b62_a_worker_that_died_at_once_is_missed_as_soon_as_any(
    site: SiteFactory, ledger: EffectLedger
) -> None:
    """Two workers die in one call, the second 200 ms after it took it up: both times another worker
    has it within the heartbeat timeout and five seconds."""
    script = [call("refund", {"before": 60, "slow": 2}), TOLD]
    async with site(script, module="tests.effect_tools", environment=ledger_of(ledger)) as s:
        workers = await asyncio.gather(*(s.worker(*BEAT) for _ in range(3)))
        run = await s.start(agent="effects")
        for number, alive_for in ((1, 1.0), (2, 0.2)):
            await until(lambda number=number: len(s.calls("begin")) == number)  # type: ignore[misc]
            begun = s.calls("begin")[-1]
            await asyncio.sleep(max(0, begun["time"] + alive_for - time.time()))
            await s.kill(next(w for w in workers if w.pid == begun["pid"]))
            killed = time.time()
            await until(lambda number=number: len(s.calls("begin")) > number)  # type: ignore[misc]
            assert s.calls("begin")[-1]["time"] - killed < 2 + 5
        assert (await run.result(timeout=30)).errors == 0
    assert len(ledger.arrivals()) == 1


@pytest.mark.long
@pytest.mark.crash
async def test_b63_each_timeout_is_told_and_counted_and_their_number_bounded(
    site: SiteFactory,
) -> None:
    """A tool that blocks for ever in native code: two attempts are allowed and made, each that ran
    out of time is counted and has a line with the run's id in the log; then the model reads it."""
    where = f"127.0.0.1:{free_port()}"
    async with site([call("hang"), TOLD], module="tests.effect_tools") as s:
        worker = await s.worker(*BEAT, "--metrics", where)
        run = await s.start(agent="effects")
        result = await run.result(timeout=40)
        assert "failed after 2 attempts: it did not finish within 2 s" in (result.answer or "")
        begun = s.calls("begin")
        # Or fewer: on a busy machine a process may not have begun when its time is over.
        assert len(begun) <= 2
        assert not any(alive(line["pid"]) for line in begun)
        told = [x for x in s.logged(worker) if x["event"] == "attempts timed out"]
        assert [(x["workflow_id"], x["tool"], x["attempts"]) for x in told] == [
            (run.id, "hang", 1)
        ] * 2
        assert all(x["run_id"] for x in told)
        assert await asyncio.to_thread(counted, where) == 2


def free_port() -> int:
    """One that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def counted(where: str) -> float:
    """The timeouts of the tool `hang`, as Prometheus reads them."""
    with urllib.request.urlopen(f"http://{where}/metrics", timeout=10) as page:
        lines = page.read().decode().splitlines()
    wanted = [x for x in lines if x.startswith(ATTEMPTS_TIMED_OUT) and 'tool="hang"' in x]
    return sum(float(line.split()[-1]) for line in wanted)


# --- workers that are stopped ---------------------------------------------------------------------


def ledger_of(ledger: EffectLedger) -> dict[str, str]:
    """What worker processes have to know."""
    return {"LEDGER_URL": ledger.url}


@dataclasses.dataclass
class Rolled:
    """A worker was told to stop while it had a call, then the next one while it had three."""

    site: Site
    arrivals: list[Arrival]
    """At the ledger."""
    results: dict[str, RunResult]
    """By prompt."""
    slow: ForkedProcess
    """The first worker: it has the grace that a worker has by default."""
    hasty: ForkedProcess
    """The second one: it has none."""


@pytest.fixture(scope="module")
async def rolled(
    client: Client, server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Rolled]:
    """A restart of two workers, one after the other, and a third that stays."""

    def script(exchange: Any) -> Any:
        if exchange.turn:
            return TOLD(exchange)
        name, _, seconds = exchange.prompt.partition(" ")
        return call(name, {"before": float(seconds)} if seconds else {})

    folder = tmp_path_factory.mktemp("rolled")
    gate = folder / "gate"
    with EffectLedger(folder / "effects.db") as oracle:
        known = {"LEDGER_URL": oracle.url, "GATE": str(gate)}
        async with open_site(
            client, server.address, folder, script, module="tests.effect_tools", environment=known
        ) as s:
            slow = await s.worker(*BEAT)
            runs = {"wait": await s.start("wait", agent="effects")}
            await until(lambda: s.calls("begin"))
            hasty = await s.worker(*BEAT, "--grace-seconds", "0")
            ending = asyncio.create_task(asyncio.to_thread(slow.end, 60))
            await until(lambda: any(x["event"] == "worker stops" for x in s.logged(slow)))
            for prompt in ("send 0", "send 0.1", "send 0.2"):
                runs[prompt] = await s.start(prompt, agent="effects")
                await runs[prompt].result(timeout=60)
            gate.touch()
            await ending
            for prompt in ("send 30", "pay 30", "refund 30"):
                runs[prompt] = await s.start(prompt, agent="effects")
            await until(lambda: len(s.calls("begin")) == 7)
            await asyncio.gather(asyncio.to_thread(hasty.end, 30), s.worker(*BEAT))
            results = {prompt: await run.result(timeout=60) for prompt, run in runs.items()}
            yield Rolled(s, oracle.arrivals(), results, slow, hasty)


@pytest.mark.long
@pytest.mark.crash
async def test_b81_sigterm_lets_a_running_tool_finish(rolled: Rolled) -> None:
    """Without any option the worker takes no more work, its one attempt ends and is recorded, and
    what is started meanwhile is done by the next worker."""
    begun, ended = rolled.site.calls("begin"), rolled.site.calls("end")
    first, others = rolled.slow.pid, [rolled.hasty.pid] * 3
    assert [line["pid"] for line in begun[:4]] == [first, *others]
    assert [line["pid"] for line in ended[:4]] == [*others, first]
    assert rolled.slow.status == 0
    (sent,) = (a for a in rolled.arrivals if a.name == "wait")
    assert (rolled.results["wait"].answer, rolled.results["wait"].errors) == (sent.receipt, 0)


@pytest.mark.crash
async def test_b81_without_grace_a_tool_is_interrupted_by_name(rolled: Rolled) -> None:
    """Grace that is not enough: `once`, in the worker or in a process, is interrupted, said to be,
    and not begun again; what is safe to repeat is repeated under its key."""
    for prompt in ("send 30", "pay 30"):
        answer = str(rolled.results[prompt].answer)
        assert "was interrupted" in answer
        assert "may or may not have taken effect" in answer
    repeated = rolled.site.calls("begin", "refund")
    assert [line["attempt"] for line in repeated] == [1, 2]
    assert len({line["key"] for line in repeated}) == 1
    assert len(rolled.site.calls("begin")) == 4 + 3 + 1
    (refunded,) = (a for a in rolled.arrivals if a.name in ("pay", "refund"))
    assert rolled.results["refund 30"].answer == refunded.receipt
