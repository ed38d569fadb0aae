"""Recorded conversations, played while workers are killed: what is said is what was recorded.

    python -m tests.faults.recorded_conversations PATH [--times 2] [--at-once 20] [--gap 10]

Each user's turn is a message to a run that is kept open, each recorded reply is played by the
scripted provider, each tool answers as recorded. One of two workers is killed every --gap seconds,
and every run continues as new several times. In the end each transcript is the recording, and the
same conversation has the same digest each time. The exit code is 1 if not.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from temporalio.api.enums.v1 import PendingActivityState
from temporalio.service import RPCError

from tests.faults import recorded
from tests.faults.recorded import Conversation, conversations
from tests.workers import Site, open_site
from turnkeeper import replies
from turnkeeper.client import AgentClient, AgentRunHandle
from turnkeeper.contract import GENERATE
from turnkeeper.entries import Entry, digest_of
from turnkeeper.testing.embedded import EmbeddedServer

REPLY_SECONDS = 300.0
"""Until an answer comes, whoever was killed meanwhile."""


@dataclass
class Report:
    """What came of it. digests: of each conversation's transcripts; executions: of all runs."""

    digests: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    played: int = 0
    executions: int = 0
    kills: int = 0
    generating: int = 0
    """Kills of a worker that was at a generation."""
    wrong: list[str] = field(default_factory=list)

    @property
    def violations(self) -> list[str]:
        """In words."""
        unequal = [f"{n}: {len(d)} digests" for n, d in self.digests.items() if len(d) != 1]
        return [*self.wrong, *unequal]


def said(entry: Entry) -> list[Any]:
    """An entry as recordings tell it."""
    value: Any = entry.value
    if entry.kind == "message":
        return ["message", value["text"]]
    if entry.kind == "result":
        return ["result", value["tool"], value["text"]]
    made = [[c.tool, c.arguments] for c in replies.calls(value)]
    return ["reply", replies.text(value), made]


class Play:
    """All conversations, so many at once."""

    def __init__(self, site: Site, *, at_once: int, gap: float) -> None:
        self.report = Report()
        self._site = site
        self._room = asyncio.Semaphore(at_once)
        self._gap = gap
        self._open: dict[str, AgentRunHandle] = {}

    async def run(self, chosen: list[tuple[Conversation, int]]) -> Report:
        """Until every conversation is over."""
        await asyncio.gather(self._site.worker(), self._site.worker())
        killing = asyncio.create_task(self._kill())
        try:
            await asyncio.gather(*(self._converse(one, time) for one, time in chosen))
        finally:
            killing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await killing
        assert not self._site.provider.rejections, self._site.provider.rejections
        return self.report

    async def _converse(self, one: Conversation, number: int) -> None:
        async with self._room:
            run = await self._site.agents.start(
                one.id, keep_open=True, id=f"{one.id}.{number}", task_timeout=2
            )
            self._open[run.id] = run
            for place, message in enumerate(one.said):
                named = f"m{place}"
                await run.send(message, message_id=named)
                await run.reply(named, timeout=REPLY_SECONDS)
            await run.stop("the recording is over")
            await run.result(check=False, timeout=REPLY_SECONDS)
            del self._open[run.id]
        entries = (await run.transcript()).entries
        self.report.played += 1
        digest = digest_of([said(e) for e in entries])
        self.report.digests[one.id].add(digest)
        if digest != digest_of(list(one.told())):
            self.report.wrong.append(f"{run.id}: not what was recorded")
        counted = await run.client.client.count_workflows(f"WorkflowId = '{run.id}'")
        self.report.executions += counted.count

    async def _kill(self) -> None:
        """One of two workers at a time; another takes its place."""
        for place in itertools.count():
            await asyncio.sleep(self._gap)
            victim = self._site.workers[place]
            at_work = await asyncio.gather(*(self._generates(victim.pid, r) for r in self._runs()))
            await self._site.kill(victim)
            self.report.kills += 1
            self.report.generating += any(at_work)
            await self._site.worker()

    def _runs(self) -> list[AgentRunHandle]:
        return list(self._open.values())

    async def _generates(self, pid: int, run: AgentRunHandle) -> bool:
        """Whether this worker has a generation of the run at hand."""
        try:
            described = await run.client.client.get_workflow_handle(run.id).describe()
        except RPCError:
            return False
        return any(
            p.activity_type.name == GENERATE
            and p.state == PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
            and p.last_worker_identity.startswith(f"{pid}@")
            for p in described.raw_description.pending_activities
        )


async def play(
    folder: Path, address: str, path: Path, chosen: list[tuple[Conversation, int]], **options: Any
) -> Report:
    """Play conversations on a server; the folder keeps logs and artifacts."""
    client = (await AgentClient.connect(address)).client
    async with open_site(
        client,
        address,
        folder,
        recorded.script,
        module="tests.faults.recorded",
        environment={"RECORDED": str(path)},
    ) as site:
        return await Play(site, **options).run(chosen)


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("path", type=Path, help="of the recordings, one a line")
    parser.add_argument("--times", type=int, default=2, help="that each is played")
    parser.add_argument("--at-once", type=int, default=20)
    parser.add_argument("--gap", type=float, default=10.0, help="seconds between two kills")
    options = parser.parse_args(arguments)
    # The provider of this process reads them by that name, too.
    os.environ["RECORDED"] = str(options.path.resolve())
    known = conversations(options.path.resolve())
    chosen = [(one, number) for number in range(options.times) for one in known.values()]
    folder = Path(tempfile.mkdtemp(prefix="recorded-"))
    began = time.monotonic()
    with EmbeddedServer.start(folder / "server", port=0) as server:
        report = asyncio.run(
            play(
                folder,
                server.address,
                options.path.resolve(),
                chosen,
                at_once=options.at_once,
                gap=options.gap,
            )
        )
    for line in report.violations:
        sys.stdout.write(f"violation: {line}\n")
    sys.stdout.write(
        f"recorded conversations: {report.played} of {len(chosen)} played in "
        f"{time.monotonic() - began:.0f} s, {report.kills} kills ({report.generating} during a "
        f"generation), {report.executions} executions, "
        f"{len(report.violations)} violations; logs in {folder}\n"
    )
    return int(bool(report.violations) or report.played != len(chosen))


if __name__ == "__main__":
    sys.exit(main())
