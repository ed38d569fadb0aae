"""A run that continues as new, however often, is the run that it would have been without."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.client import WorkflowExecutionStatus, WorkflowHandle
from temporalio.common import RawValue

from activities.views import Views
from tests import conversations
from tests.conversations import conversation
from tests.prose import prose
from tests.restoring import RestoringRun
from tests.rig import RigFactory
from tests.sizes import FULL
from turnkeeper import Limits, RunResult, Tool, ToolContext, artifacts, tool
from turnkeeper.artifacts import FolderStore
from turnkeeper.entries import Position, message
from turnkeeper.errors import StateLost
from turnkeeper.history import HistoryReader
from turnkeeper.spec import BUILT_IN, HistoryPolicy
from turnkeeper.testing import Exchange, Reply, call, calls, text
from turnkeeper.view import View

OFTEN = HistoryPolicy(events=50)
"""The smallest threshold: a switch about every fourth turn."""
PATIENT = Limits(turns=1_000, consecutive_errors=100, repetition=100)
OPEN = {"window": 10**7}
TURNS = 14


@tool(effect="read")
def page(number: int, size: int = 300) -> str:
    """Read a page of a report."""
    return prose(number, size)


@tool(effect="read")
async def nap(seconds: float) -> str:
    """Sleep."""
    await asyncio.sleep(seconds)
    return "slept"


def pages(turns: int, size: int = 300) -> Callable[[Exchange], Reply]:
    """A script that reads two pages a turn, then answers."""

    def script(x: Exchange) -> Reply:
        if x.turn >= turns:
            return text("Read.")
        return calls([("page", {"number": x.turn * 2 + i, "size": size}) for i in range(2)])

    return script


Case = tuple[int, str]
"""A conversation's seed and the name of its limits."""
LIMITS: dict[str, dict[str, Any]] = {
    "to the end": {},
    "turns": {"turns": 6, "on_limit": "answer"},
    "errors": {"consecutive_errors": 3, "on_limit": "answer"},
    "tokens": {"tokens": 30_000},
}


async def ends(
    rig: RigFactory, cases: Sequence[Case], **options: Any
) -> dict[Case, tuple[str, Position, int, int]]:
    """How conversations end, all of them at once; asserts what holds for each."""
    scripts = {f"conversation {seed}": conversation(seed, TURNS) for seed, _ in cases}

    def script(x: Exchange) -> Reply:
        answered: Reply = scripts[x.prompt.split("\n")[0]](x)
        return answered

    async with rig(
        script, tools=conversations.TOOLS, limits=PATIENT, provider=OPEN, **options
    ) as r:
        results = await asyncio.gather(
            # With the limits' name: a body of another run's would count as one that was repeated.
            *(r.run(f"conversation {seed}\n{name}", limits=LIMITS[name]) for seed, name in cases)
        )
        assert r.provider.rejections == {}
        assert await r.task_failures() == 0
        if "history" in options:
            for workflow_id in r.ids:
                assert len(await r.carried(workflow_id)) >= 2
    return {
        case: (result.outcome, result.transcript, result.calls, result.errors)
        for case, result in zip(cases, results, strict=True)
    }


# --- the same run -------------------------------------------------------------------------------


@pytest.mark.long
async def test_the_transcript_is_the_same_with_and_without(rig: RigFactory) -> None:
    """Conversations of every kind end with equal digests, whether they continued as new or not."""
    cases = [(seed, "to the end") for seed in range(2_000, 2_003 if FULL else 2_002)]
    assert await ends(rig, cases, history=OFTEN) == await ends(rig, cases)


@pytest.mark.long
async def test_the_state_is_all_that_a_run_keeps(rig: RigFactory) -> None:
    """Restored from JSON before every step, a run ends as it does otherwise."""
    cases = [(seed, name) for seed in range(3_000, 3_003 if FULL else 3_002) for name in LIMITS]
    plain = await ends(rig, cases)
    assert await ends(rig, cases, workflow=RestoringRun) == plain
    assert {outcome for outcome, *_ in plain.values()} == {
        "completed",
        "turn_limit",
        "error_limit",
        "token_limit",
    }


# --- cold readers -------------------------------------------------------------------------------


def nothing_kept(views: Views, workflow_id: str, view: View) -> None:
    """A worker that has never seen the run."""


def one_turn_behind(views: Views, workflow_id: str, view: View) -> None:
    """A worker that missed the last turn."""
    earlier = View(view.entries[: max(len(view.entries) - 3, 0)])
    views._views[workflow_id] = earlier, earlier.bytes


def many_turns_behind(views: Views, workflow_id: str, view: View) -> None:
    """A worker that only saw the beginning."""
    views._views.setdefault(workflow_id, (View(view.entries[:4]), 0))


def other_content(views: Views, workflow_id: str, view: View) -> None:
    """A worker that holds another conversation under the same id."""
    views._views[workflow_id] = View([message(f"other {n}") for n in range(30)]), 0


WORKERS = (nothing_kept, one_turn_behind, many_turns_behind, other_content)


@pytest.mark.parametrize("history", [OFTEN, None], ids=["often", "never"])
async def test_a_worker_that_lacks_the_view_reads_it(
    rig: RigFactory, monkeypatch: pytest.MonkeyPatch, history: HistoryPolicy | None
) -> None:
    """What the cache does not have comes from history and segments, and it is the same."""
    reads: Counter[str] = Counter()
    read = HistoryReader.view

    async def counted(self: HistoryReader, wanted: Position, known: View | None = None) -> View:
        reads[self._id] += 1
        view = await read(self, wanted, known)
        assert view.position == wanted
        assert View(view.entries).digests == view.digests
        return view

    def forgetful(views: Views, workflow_id: str, view: View) -> None:
        behind = {f"{w.__name__}-{history is None}": w for w in WORKERS}.get(workflow_id)
        (behind or keep)(views, workflow_id, view)

    keep = Views.keep
    monkeypatch.setattr(HistoryReader, "view", counted)
    monkeypatch.setattr(Views, "keep", forgetful)
    options = {"history": history} if history else {}
    async with rig(pages(12), tools=[page], limits=PATIENT, provider=OPEN, **options) as r:
        names = [f"{w.__name__}-{history is None}" for w in WORKERS]
        plain, *others = await asyncio.gather(r.run(), *(r.run(id=name) for name in names))
        assert plain.outcome == "completed"
        for name, result in zip(names, others, strict=True):
            assert (result.outcome, result.transcript) == ("completed", plain.transcript), name
            assert reads[name] >= 10
        assert r.provider.rejections == {}


# --- segments that are not what was stored ------------------------------------------------------


def missing(path: Path) -> None:
    """Deleted."""
    path.unlink()


def truncated(path: Path) -> None:
    """Half of it."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def emptied(path: Path) -> None:
    """A name without content, as a crash may leave it."""
    path.write_bytes(b"")


def flipped(path: Path) -> None:
    """One bit is another, inside a text: it stays good JSON."""
    data = bytearray(path.read_bytes())
    data[data.index(b'"text":"') + 10] ^= 1
    path.write_bytes(data)


def swapped(path: Path) -> None:
    """Another artifact of the same run, whole and valid."""
    others = [p for p in path.parent.iterdir() if p.name not in (path.name, "owner")]
    path.write_bytes(others[0].read_bytes())


DAMAGES = {d.__name__: d for d in (missing, truncated, emptied, flipped, swapped)}


@pytest.mark.long
async def test_a_damaged_segment_ends_the_run_by_name(
    rig: RigFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that must read a segment which is not what was stored gives up: `state_lost`."""
    sealed: dict[str, list[Path]] = {}
    put = FolderStore.put

    async def noted(self: FolderStore, owner: str, data: bytes) -> str:
        artifact = await put(self, owner, data)
        sealed.setdefault(owner, []).append(self.root / artifacts._key(owner, artifact))
        return artifact

    @tool(effect="read")
    def harm(ctx: ToolContext) -> str:
        """Damage what was sealed."""
        damage, which = ctx.workflow_id.split("-")
        segments = sealed[ctx.workflow_id]
        assert len(segments) >= 2
        DAMAGES[damage](segments[0 if which == "oldest" else -1])
        return "done"

    def script(x: Exchange) -> Reply:
        return call("harm") if x.turn == 12 else pages(20)(x)

    monkeypatch.setattr(FolderStore, "put", noted)
    monkeypatch.setattr(Views, "keep", nothing_kept)
    async with rig(script, tools=[page, harm], limits=PATIENT, history=OFTEN, provider=OPEN) as r:
        places = ("oldest", "newest")
        names = [
            f"{damage}-{place}"
            for n, damage in enumerate(DAMAGES)
            for place in (places if FULL else [places[n % 2]])
        ]
        results = await asyncio.gather(*(r.run(id=name) for name in names))
        for name, result in zip(names, results, strict=True):
            assert (result.outcome, result.turns) == ("state_lost", 14), name
            assert "artifact" in (result.reason or ""), name
            with pytest.raises(StateLost):
                await r.transcript(name)
        assert len(r.provider.requests) == 13 * len(names)
        assert await r.task_failures() == 0


# --- messages, limits and ends around a switch --------------------------------------------------


SECRET = "writer:hunter2-hunter2"


class Gate:
    """Holds the store's writes of segments, or fails them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached = asyncio.Event()
        self.open = asyncio.Event()
        self.failures = 0
        put = FolderStore.put

        async def held(store: FolderStore, owner: str, data: bytes) -> str:
            self.reached.set()
            if self.failures > 0:
                self.failures -= 1
                raise OSError(f"the disk is full: https://{SECRET}@bucket.example/a")
            await self.open.wait()
            return await put(store, owner, data)

        monkeypatch.setattr(FolderStore, "put", held)


@contextlib.asynccontextmanager
async def at_the_switch(rig: RigFactory, monkeypatch: pytest.MonkeyPatch, **start: Any) -> Any:
    """A run whose first switch hangs in the artifact store."""
    gate = Gate(monkeypatch)
    async with rig(
        pages(20), tools=[page], limits=PATIENT, history=OFTEN, settings={"heartbeat_seconds": 1}
    ) as r:
        handle = await r.start(**start)
        async with asyncio.timeout(60):
            await gate.reached.wait()
        yield r, handle, gate
        gate.open.set()


async def test_a_stop_is_heard_while_the_run_continues_as_new(
    rig: RigFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that hangs does not hold up a stop."""
    async with at_the_switch(rig, monkeypatch) as (_, handle, _):
        assert await handle.stop("enough", actor="ann") == "stopping"
        result = await handle.result(check=False, timeout=60)
        assert (result.outcome, result.reason) == ("stopped", "stopped by ann: enough")


async def test_a_cancel_is_heard_while_the_run_continues_as_new(
    rig: RigFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is cancelled while it seals is cancelled, not lost."""
    async with at_the_switch(rig, monkeypatch) as (r, handle, _):
        workflow = r.client.get_workflow_handle(handle.id)
        await workflow.cancel(reason="a person")
        result = await handle.result(check=False, timeout=60)
        assert result.outcome == "cancelled"
        described = await workflow.describe()
        assert described.status == WorkflowExecutionStatus.CANCELED


async def test_the_time_limit_holds_while_the_run_continues_as_new(
    rig: RigFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that hangs does not hold up the time limit."""
    async with at_the_switch(rig, monkeypatch, limits={"wall_seconds": 3}) as (_, handle, _):
        result = await handle.result(check=False, timeout=60)
        assert result.outcome == "time_limit"
        assert 3 <= result.seconds < 6


async def test_a_store_that_is_down_only_delays(
    rig: RigFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run whose store fails for a while goes on when it is back, and is the same run."""
    async with rig(pages(8), tools=[page], limits=PATIENT) as r:
        plain = await r.run()
    gate = Gate(monkeypatch)
    gate.failures = 2
    gate.open.set()
    async with rig(pages(8), tools=[page], limits=PATIENT, history=OFTEN) as r:
        result = await r.run()
        assert (result.outcome, result.transcript) == ("completed", plain.transcript)
        assert gate.failures == 0
        recorded = str(await r.executions())
        assert "the disk is full: https://[redacted]@bucket.example" in recorded
        assert SECRET not in recorded


async def test_the_deadline_is_one_for_the_whole_run(rig: RigFactory) -> None:
    """The time limit counts from the first start, over every switch."""

    def script(x: Exchange) -> Reply:
        return call("nap", {"seconds": 0.1})

    limits = PATIENT.model_copy(update={"wall_seconds": 4})
    async with rig(script, tools=[nap], limits=limits, history=OFTEN) as r:
        result = await r.run()
        assert result.outcome == "time_limit"
        assert 4 <= result.seconds < 6
        carried = [state for _, state in await r.carried()]
        assert len(carried) >= 2
        assert len({state.deadline for state in carried}) == 1
        first = (await r.executions())[0][0]
        assert carried[0].started == pytest.approx(first.event_time.ToMicroseconds() / 1e6, abs=1)


async def test_what_the_caller_gave_is_kept(rig: RigFactory) -> None:
    """Metadata, limits and the request key are those of the start in every execution."""
    seen: list[dict[str, str]] = []

    @tool(effect="idempotent")
    def note(number: int, ctx: ToolContext) -> str:
        """See the context."""
        seen.append(dict(ctx.metadata))
        return f"noted {number}"

    def script(x: Exchange) -> Reply:
        return call("note", {"number": x.turn})

    given = {"tenant": "acme", "principal": "ann"}
    async with rig(script, tools=[note], limits=PATIENT, history=OFTEN) as r:
        result = await r.run(metadata=given, request_key="q-17", limits={"turns": 15})
        assert (result.outcome, result.turns) == ("turn_limit", 15)
        assert seen == [given] * 15
        carried = [state for _, state in await r.carried()]
        assert len(carried) >= 2
        for state in carried:
            assert state.request.metadata == given
            assert state.request.request_key == "q-17"
            assert state.limits.turns == 15
            assert state.limits.repetition == 100


async def keys_of(rig: RigFactory, workflow_id: str, **options: Any) -> list[str]:
    """The keys that the tools of a run see, in order."""
    seen: list[str] = []

    @tool(effect="idempotent")
    def pay(number: int, ctx: ToolContext) -> str:
        """See the key."""
        seen.append(ctx.idempotency_key)
        return f"paid {number}"

    def script(x: Exchange) -> Reply:
        if x.turn == 10:
            return text("Paid.")
        return calls([("pay", {"number": 1}) for _ in range(2)])

    async with rig(script, tools=[pay], limits=PATIENT, **options) as r:
        request = {"agent": "tester", "prompt": "question", "request_key": "q-17"}
        handle: WorkflowHandle[Any, RunResult] = await r.start_raw(request, id=workflow_id)
        await handle.result()
        if options:
            assert len(await r.carried(workflow_id)) >= 2
    return seen


async def test_keys_are_the_same_and_unique(rig: RigFactory) -> None:
    """A call's key comes from its place in the run: not from executions, never the same twice."""
    plain = await keys_of(rig, "keys-of-one-run")
    assert len(set(plain)) == len(plain) == 20
    assert await keys_of(rig, "keys-of-one-run", history=OFTEN) == plain
    assert not set(plain) & set(await keys_of(rig, "keys-of-another-run"))


# --- large things -------------------------------------------------------------------------------


def many_tools(count: int) -> list[Tool]:
    """Tools with long descriptions."""
    made = [page]
    for number in range(count - 1):

        def act(text: str) -> str:
            return text

        act.__doc__ = prose(number, 1_000)
        made.append(tool(effect="read", name=f"act_{number}")(act))
    return made


async def test_a_large_spec_is_not_carried(
    rig: RigFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A spec of 300 tools goes to the artifact store; a worker that lacks it reads it there."""

    async def cold(self: Views, *args: Any) -> Any:
        self._specs.clear()
        return await spec(self, *args)

    spec = Views.spec
    monkeypatch.setattr(Views, "spec", cold)
    monkeypatch.setattr(Views, "keep", nothing_kept)
    async with rig(pages(9), tools=many_tools(300), limits=PATIENT, history=OFTEN) as r:
        result = await r.run()
        assert result.outcome == "completed"
        carried = await r.carried()
        assert len(carried) >= 2
        for size, state in carried:
            assert state.spec is not None
            assert state.spec.artifact is not None
            assert len(state.spec.tools) == 300 + len(BUILT_IN)
            assert size < 100_000
        for events in await r.executions():
            assert max(e.ByteSize() for e in events) < 100_000
        assert {len(record.model or "") for record in r.provider.requests} == {17}
        assert not r.provider.rejections


@pytest.mark.parametrize("character", ["p", "\x01"], ids=["letters", "control characters"])
async def test_results_that_wait_at_a_switch_are_bounded(rig: RigFactory, character: str) -> None:
    """The most that a reply's calls may return travels in the state, which stays under 1 MB."""

    @tool(effect="read")
    def flood(number: int) -> str:
        """Return a lot."""
        return f"{number}" + character * 16_000

    def script(x: Exchange) -> Reply:
        if x.turn == 2:
            return text("Read.")
        return calls([("flood", {"number": n}) for n in range(32)])

    history = HistoryPolicy(bytes=20_000)
    async with rig(script, tools=[flood], limits=PATIENT, history=history, provider=OPEN) as r:
        result = await r.run()
        assert result.outcome == "completed"
        sizes = [size for size, _ in await r.carried()]
        assert len(sizes) == 2
        assert max(sizes) < 1_000_000
        if character == "p":
            assert max(sizes) > 500_000
        assert await r.task_failures() == 0


async def test_a_thousand_calls_of_unknown_tools_are_answered_in_short(rig: RigFactory) -> None:
    """Each call gets its result, and all of them together fit a payload."""
    names = [f"{'very_' * 8}long_name_of_a_tool_{n}" for n in range(100)]
    known = [tool(effect="read", name=name)(page.function) for name in names]

    def script(x: Exchange) -> Reply:
        if x.turn == 1:
            return text(f"{len(x.last_results)} results")
        return calls([(f"no_such_tool_{n}", {}) for n in range(1_000)])

    limits = PATIENT.model_copy(update={"on_limit": "answer"})
    history = HistoryPolicy(bytes=20_000)
    async with rig(script, tools=known, limits=limits, history=history, provider=OPEN) as r:
        result = await r.run()
        assert (result.outcome, result.answer) == ("completed", "1000 results")
        assert r.provider.rejections == {}


@pytest.mark.parametrize("odd", [False, True], ids=["json", "another encoding"])
async def test_a_callers_memo_is_carried_over(rig: RigFactory, odd: bool) -> None:
    """What another service noted at the start stays; one that cannot be read wedges nothing."""
    script = [*[call("page", {"number": n}) for n in range(12)], text("Done.")]
    payload = Payload(metadata={"encoding": b"binary/odd"}, data=b"\x00\xff")
    async with rig(script, tools=[page], history=OFTEN) as r:
        note = RawValue(payload) if odd else 7
        run = await r.start_raw({"agent": "tester", "prompt": "q"}, memo={"order": note})
        await run.result()
        assert len(await r.executions()) > 1
        described = await run.describe()
        assert await described.memo_value("agent") == "tester"
        if not odd:
            assert await described.memo_value("order") == 7
        assert await r.task_failures() == 0
