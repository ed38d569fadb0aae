"""The artifact store at fault: it is named, nothing is silently wrong, other runs go on.

Damaged segments are in test_continue_as_new.py. With TURNKEEPER_TESTS=full in the environment the
store is away for 30 s; otherwise for less.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from activities import execute
from activities.views import Views
from tests.rig import Rig, RigFactory, until
from tests.sizes import FULL
from tests.test_continue_as_new import DAMAGES, many_tools, nothing_kept
from turnkeeper import Agent, Limits, ToolContext, artifacts, tool
from turnkeeper.artifacts import FolderStore
from turnkeeper.spec import HistoryPolicy
from turnkeeper.testing import Exchange, Reply, call, calls, text

OUTAGE = 30.0 if FULL else 5.0
OFTEN = HistoryPolicy(events=50, bytes=20_000)
SIZE = 200_000
"""Of a result that is stored: one block of the store's and more would be 262,144."""


@tool(effect="read")
async def export(ctx: ToolContext) -> str:
    """A result that is too large to show, another one for each run."""
    return f"{ctx.workflow_id} " * (SIZE // (len(ctx.workflow_id) + 1))


@tool(effect="read")
async def small(q: str) -> str:
    """A result that is shown as it is."""
    return f"about {q}: " + "x" * 1_000


def artifact_of(x: Exchange) -> str:
    """The id that the last result names."""
    return x.last_results[0].text.partition("artifact ")[2].partition(":")[0]


def flipped(path: Path) -> None:
    """One bit is another, far from both ends."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


RESULT_DAMAGES = DAMAGES | {"flipped": flipped}


def folder_of(r: Rig, run: str) -> Path:
    """Where a run's objects are."""
    assert isinstance(r.store, FolderStore)
    return r.store.root / artifacts._owner_key(run)


# --- objects --------------------------------------------------------------------------------------


@pytest.mark.parametrize("reader", ["read_artifact", "search_artifact", "whole"])
async def test_a_damaged_result_is_told_by_name(rig: RigFactory, reader: str) -> None:
    """Each way of reading it says which artifact it was, in every case; the run goes on, and a run
    beside it reads what it has."""

    @tool(effect="read")
    async def whole(artifact: str, ctx: ToolContext) -> str:
        """As a tool of a team's own reads an artifact."""
        return (await ctx.artifact(artifact))[:100].decode()

    def script(x: Exchange) -> Reply:
        if x.turn == 0:
            return call("export")
        if x.turn > 1:
            return text(x.last_results[0].text)
        artifact = artifact_of(x)
        if x.prompt in RESULT_DAMAGES:
            path = folder_of(r, f"{x.prompt}-{reader}") / artifact
            # Another object of the run, for the damage that puts it in place of this one.
            (path.parent / ("0" * 64)).write_text("another one")
            RESULT_DAMAGES[x.prompt](path)
        asked = {"artifact": artifact}
        return call(reader, asked | ({"query": "sound"} if reader == "search_artifact" else {}))

    async with rig(script, tools=[export, whole]) as r:
        names = [*RESULT_DAMAGES, "sound"]
        runs = [await r.start(name, id=f"{name}-{reader}") for name in names]
        results = [await run.result(check=False, timeout=60) for run in runs]
        for name, result in zip(names, results, strict=True):
            assert result.outcome == "completed", name
            answer = result.answer or ""
            if name == "sound":
                assert f"sound-{reader} sound-{reader}" in answer
                assert result.errors == 0
            else:
                told = (await r.transcript(f"{name}-{reader}")).entries[-2].value
                assert told["error"] is True
                named = r"Artifact [0-9a-f]{64} does not exist in this run, or was damaged"
                assert re.match(named, answer)
                assert str(r.store.root) not in answer  # type: ignore[attr-defined]
        assert await r.task_failures() == 0


async def test_an_artifact_of_another_run_is_not_read(rig: RigFactory) -> None:
    """Whoever knows its id is told that there is none."""

    def script(x: Exchange) -> Reply:
        if x.turn == 0:
            return call("export")
        if x.turn == 1:
            other = next(p.name for p in folder_of(r, "owner-one").iterdir() if len(p.name) == 64)
            return call("read_artifact", {"artifact": other})
        return text(x.last_results[0].text)

    async with rig(script, tools=[export]) as r:
        assert "owner-one owner-one" in ((await r.run("one", id="owner-one")).answer or "")
        answer = (await r.run("two", id="owner-two")).answer or ""
    assert "does not exist in this run" in answer


async def test_a_made_up_id_is_told_at_once(rig: RigFactory) -> None:
    """Also where the run has stored nothing yet: not as a store that is away, which is tried for a
    minute."""

    def script(x: Exchange) -> Reply:
        if x.turn == 0:
            return call("read_artifact", {"artifact": "a" * 64})
        return text(x.last_results[0].text)

    async with rig(script, tools=[small]) as r:
        await r.store.put("another run", b"one")
        with capture_logs() as logs:
            answer = (await r.run("Read.")).answer or ""
    assert "does not exist in this run" in answer
    assert not [line for line in logs if line["event"] == "tool raised"]


async def test_a_damaged_segment_is_told_to_who_recalls(
    rig: RigFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that still has the view goes on without the segment; what would have to be read from
    it is refused by name, never answered from the rest."""

    def script(x: Exchange) -> Reply:
        if x.turn == 20:
            (segment, *_) = (p for p in folder_of(r, "recalls").iterdir() if len(p.name) == 64)
            flipped(segment)
            return calls([("recall", {"query": "needle"}), ("read_notes", {})])
        if x.turn == 21:
            return text(" | ".join(result.text for result in x.last_results))
        return call("small", {"q": f"{x.turn}"})

    limits = Limits(turns=50)
    async with rig(script, tools=[small], notes=True, limits=limits, history=OFTEN) as r:
        result = await r.run("The needle is here.", id="recalls")
        assert len(await r.executions()) >= 2
    assert result.outcome == "completed"
    recalled, read = (result.answer or "").split(" | ")
    for told in (recalled, read):
        assert "What was said earlier cannot be read: artifact " in told
        assert "is not what was stored" in told


# --- a full disk ----------------------------------------------------------------------------------


@contextmanager
def really_full(folder: Path, _patch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """A file system without room; yields what makes some."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a file system may not be mounted here")
    ballast = folder / "ballast"
    try:
        with pytest.raises(OSError, match="No space left"):
            ballast.write_bytes(b"x" * 2_000_000)
        yield ballast.unlink
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextmanager
def said_to_be_full(_folder: Path, patch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """The same error where nothing may be mounted."""
    publish, full = artifacts._publish, ["full"]

    def refused(path: Path, data: bytes) -> None:
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        publish(path, data)

    patch.setattr(artifacts, "_publish", refused)
    yield full.clear


@pytest.mark.parametrize("disk", [really_full, said_to_be_full])
async def test_a_full_disk_loses_a_result_by_name(
    rig: RigFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disk: Any
) -> None:
    """The tool has run, and is not run again: the model reads what there was room for and that the
    rest is lost. A run with small results is not concerned; with room again all is as it was."""
    ran: list[str] = []
    full = disk.__name__

    @tool(effect="once")
    async def work(ctx: ToolContext) -> str:
        """Work, and say a lot."""
        ran.append(ctx.workflow_id)
        return "y" * SIZE

    def script(x: Exchange) -> Reply:
        if x.turn == 0:
            return call("small", {"q": "a"}) if x.prompt == "other" else call("work")
        if x.turn == 1 and x.prompt == "room":
            return call("read_artifact", {"artifact": artifact_of(x), "offset": SIZE - 3})
        return text(x.last_results[0].text[:200])

    with disk(tmp_path / "artifacts", monkeypatch) as make_room:
        async with rig(script, tools=[work, small]) as r:
            with capture_logs() as logged:
                lost, other = await asyncio.gather(r.run("full", id=full), r.run("other"))
            assert (lost.outcome, other.outcome) == ("completed", "completed")
            told = f"[This result has {SIZE} bytes, too many to show. The rest could not be stored"
            assert (lost.answer or "").startswith(told)
            (line,) = [x for x in logged if x["event"] == "result not stored"]
            assert (line["tool"], line["log_level"]) == ("work", "error")
            assert "No space left" in line["error"]
            assert not [p for p in folder_of(r, full).glob(".*") if p.is_file()]
            make_room()
            found = await r.run("room", id=f"{full}-room")
            assert (found.answer or "").endswith("yyy")
            assert ran == [full, f"{full}-room"]
            assert await r.task_failures() == 0


# --- a store that is away -------------------------------------------------------------------------


@contextmanager
def away(root: Path) -> Iterator[None]:
    """Neither read nor written: in the folder's place there is something else."""
    root.rename(root.with_name("away"))
    root.write_text("not a folder")
    try:
        yield
    finally:
        root.unlink()
        root.with_name("away").rename(root)


@pytest.mark.long
async def test_a_store_that_comes_back_is_waited_for(
    rig: RigFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An artifact is read, and so is what was said in a run that its worker has forgotten; a new
    run of a large agent waits. What had to be stored is called lost. Others notice nothing."""
    monkeypatch.setattr(Views, "keep", nothing_kept)
    waiting: list[str] = []
    gone = asyncio.Event()
    known = ""

    @tool(effect="read")
    async def wait(ctx: ToolContext) -> str:
        """Until the store is away."""
        waiting.append(ctx.workflow_id)
        await gone.wait()
        return "It is away."

    def steps(kind: str, x: Exchange) -> Sequence[Reply]:
        told = x.last_results[0].text if x.last_results else ""
        done = text(told[-200:] or "Done.")
        pages = [call("small", {"q": f"{n}"}) for n in range(20)]
        return {
            "reads": [
                call("export"),
                call("wait"),
                call("read_artifact", {"artifact": known}),
                done,
            ],
            "forgets": [*pages, call("wait"), text("All was read.")],
            "writes": [call("wait"), call("export"), text(told[:200] or "-")],
            "other": [call("wait"), *pages[:3], done],
            "new": [done],
        }[kind]

    def script(x: Exchange) -> Reply:
        nonlocal known
        if x.prompt == "reads" and x.turn == 1:
            known = artifact_of(x)
        return steps(x.prompt, x)[x.turn]

    tools = [export, small, wait]
    agents = [
        Agent(name="short", model="m", instructions="i", tools=tools),
        Agent(name="sealed", model="m", instructions="i", tools=tools, history=OFTEN),
        Agent(name="large", model="m", instructions="i", tools=many_tools(300)),
    ]
    async with rig(script, agents=agents) as r:
        assert isinstance(r.store, FolderStore)
        kinds = {"reads": "short", "writes": "short", "other": "short", "forgets": "sealed"}
        runs = {k: await r.start(k, id=f"store-{k}", agent=a) for k, a in kinds.items()}
        await until(lambda: len(waiting) == len(kinds), timeout=60)
        assert len(await r.executions("store-forgets")) >= 2
        with away(r.store.root):
            gone.set()
            runs["new"] = await r.start("new", agent="large")
            other = await runs.pop("other").result(timeout=30)
            assert other.outcome == "completed"
            await asyncio.sleep(OUTAGE)
            assert {(await run.status()).outcome for run in runs.values()} <= {None, "completed"}
        answers = {}
        for name, run in runs.items():
            result = await run.result(check=False, timeout=90)
            assert result.outcome == "completed", (name, result)
            answers[name] = result.answer or ""
        assert await r.task_failures() == 0
    assert "store-reads store-reads " in answers["reads"]
    assert "could not be stored and is lost" in answers["writes"]
    assert answers["forgets"] == "All was read."


async def test_a_store_that_stays_away_is_told_by_name(
    rig: RigFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An end after the last attempt: the model reads which artifact it was, not that it is lost."""
    monkeypatch.setattr(execute, "backoff", lambda _: timedelta(seconds=0.05))

    def script(x: Exchange) -> Reply:
        if x.turn == 0:
            return call("export")
        if x.turn == 1:
            gone.enter_context(away(r.store.root))  # type: ignore[attr-defined]
            return call("read_artifact", {"artifact": artifact_of(x)})
        gone.close()
        return text(x.last_results[0].text)

    with ExitStack() as gone:
        async with rig(script, tools=[export]) as r:
            result = await r.run()
    assert result.outcome == "completed"
    told = r"Tool read_artifact failed after 6 attempts: OSError: Artifact [0-9a-f]{64} cannot be "
    assert re.match(told, result.answer or "")
