"""Answers that get lost: the request arrives, and whoever sent it is not told. `make answers-lost`.

    python -m tests.faults.answers_lost [--times N] [--only TEXT...] [--folder DIR]

On each link of `links.py` the proxy delivers a request and drops its answer, N times, each time in
a run of its own, which has to say what it says without faults. Of several requests in a run another
one is meant each time. Ends with `answers lost: N injected, 0 violations` and exit code 0, or 1.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import os
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowHistory

from tests.faults import links
from tests.faults.crew import PRELOAD, ROOT, TASK_SECONDS, hired, surroundings
from tests.faults.links import LINKS, Between, Link, Nth
from tests.faults.observe import Witness, judged, witness
from turnkeeper.artifacts import FolderStore
from turnkeeper.client import AgentClient, AgentRunHandle
from turnkeeper.testing import EffectLedger, FaultProxy, ScriptedProvider
from turnkeeper.testing.checker import SETTLED_SECONDS, UNKNOWN, Violation
from turnkeeper.testing.embedded import NAMESPACE, EmbeddedServer
from turnkeeper.testing.nursery import Nursery

LANES = 6
"""Runs at once: on two cores most of a run is waiting."""
_RUN_SECONDS = 120.0
_TRIES = 3
_MESSAGES = (
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED,
)


@dataclasses.dataclass(eq=False)
class Played:
    """One run. requests: how many there were on the link; injected: how many went unanswered."""

    link: Link
    witness: Witness
    requests: int
    injected: int
    seconds: float

    @property
    def unknown(self) -> bool:
        """Whether the model was told of an unknown outcome."""
        entries = self.witness.seen.entries or ()
        return any(UNKNOWN in e.value["text"] for e in entries if e.kind == "result")


@dataclasses.dataclass
class Report:
    """All that was found. missed: runs in which no answer was lost."""

    played: list[Played]
    violations: list[Violation]
    missed: int
    seconds: float

    @property
    def injected(self) -> int:
        """Answers that were lost."""
        return sum(p.injected for p in self.played)


# --- one run at a time ------------------------------------------------------------------------


@dataclasses.dataclass
class Lane:
    """A worker with a provider and a ledger of its own, and a proxy on each link."""

    agents: AgentClient
    acting: AgentClient
    """Its answers get lost."""
    provider: ScriptedProvider
    ledger: EffectLedger
    proxies: dict[Between, FaultProxy]
    histories: Path

    async def play(self, link: Link, number: int) -> Played:
        """A run in which the answer to the `number`th request on the link is lost; 0: none."""
        began, proxy = time.monotonic(), self.proxies[link.between]
        nth, hits = Nth(link.path, number), proxy.injected["drop_reply"]
        known, asked = len(self.ledger.arrivals()), len(self.provider.requests)
        proxy.drop_reply(nth)
        try:
            run = await self._run(link)
        finally:
            proxy.heal()
        found = await witness(self.agents, run.id, self.histories)
        # Nothing of it may come later; what did would be the next run's, under no key of that.
        await asyncio.sleep(SETTLED_SECONDS if link.between == "worker and ledger" else 0)
        injected = proxy.injected["drop_reply"] - hits
        found.seen.arrivals = self.ledger.arrivals()[known:]
        found.seen.requests = [r for r in self.provider.requests[asked:] if r.asks_model]
        return Played(link, found, nth.seen, injected, time.monotonic() - began)

    async def _run(self, link: Link) -> AgentRunHandle:
        acting = await self.acting.start(
            link.agent, link.play, id=f"lost-{uuid.uuid4()}", task_timeout=TASK_SECONDS
        )
        run = AgentRunHandle(self.agents, acting.id)
        try:
            if link.person is not None:
                await link.person(run, acting)
            await run.result(check=False, timeout=_RUN_SECONDS)
        except TimeoutError:
            # The checker has the word: it has not ended.
            sys.stderr.write(f"{link.name}: {run.id} does not end\n")
        return run


@contextlib.asynccontextmanager
async def _lane(folder: Path, address: str, nursery: Nursery) -> AsyncIterator[Lane]:
    folder.mkdir(parents=True)  # noqa: ASYNC240
    task_queue, store = f"lost-{uuid.uuid4()}", FolderStore(folder / "artifacts")
    async with contextlib.AsyncExitStack() as opened:
        ledger = opened.enter_context(EffectLedger(folder / "effects.db"))
        provider = opened.enter_context(ScriptedProvider(links.script, fsync=False))
        upstreams: dict[Between, str] = {
            "worker and ledger": ledger.address,
            "worker and provider": provider.url.removeprefix("http://"),
            "worker and server": address,
            "us and server": address,
        }
        proxies = {name: opened.enter_context(_proxy(u)) for name, u in upstreams.items()}
        environment = surroundings(
            folder,
            address=proxies["worker and server"].address,
            task_queue=task_queue,
            provider=proxies["worker and provider"].url,
            EFFECTS_URL=proxies["worker and ledger"].url,
        )
        await opened.enter_async_context(
            hired(nursery, "tests.faults.teller", folder, environment, size=1)
        )

        async def client(address: str) -> AgentClient:
            made = await AgentClient.connect(address, namespace=NAMESPACE, settings={})
            return AgentClient(made.client, task_queue=task_queue, store=store)

        yield Lane(
            await client(address),
            await client(proxies["us and server"].address),
            provider,
            ledger,
            proxies,
            folder.parent / "histories",
        )


def _proxy(upstream: str) -> FaultProxy:
    host, _, port = upstream.rpartition(":")
    return FaultProxy(host, int(port))


# --- all of them ------------------------------------------------------------------------------


class _Suite:
    def __init__(self, lanes: Sequence[Lane], times: int, say: Callable[[str], None]) -> None:
        self._free: asyncio.Queue[Lane] = asyncio.Queue()
        for lane in lanes:
            self._free.put_nowait(lane)
        self._times = times
        self._say = say
        self.missed: list[Played] = []

    async def link(self, link: Link) -> list[Played]:
        """The run without faults, then those with."""
        control = await self._play(link, 0)
        numbers = [1 + n % max(control.requests, 1) for n in range(self._times)]
        played = await asyncio.gather(*(self._injected(link, n) for n in numbers))
        for each in played:
            each.witness.control = control.witness.seen
        self._say(_line(link, played, control.requests))
        return [control, *played]

    async def _injected(self, link: Link, number: int) -> Played:
        for _ in range(_TRIES):
            played = await self._play(link, number)
            if played.injected:
                break
            # A run has not always as many requests.
            self.missed.append(played)
            number = 1 + number % max(played.requests, 1)
        return played

    async def _play(self, link: Link, number: int) -> Played:
        lane = await self._free.get()
        try:
            return await lane.play(link, number)
        finally:
            self._free.put_nowait(lane)


async def run(
    chosen: Sequence[Link],
    times: int,
    folder: Path,
    say: Callable[[str], None],
    *,
    address: str,
    lanes: int = LANES,
) -> Report:
    """Lose the answers; `folder` keeps logs, ledgers and histories, `address` is the server's."""
    began = time.monotonic()
    async with contextlib.AsyncExitStack() as opened:
        nursery = opened.enter_context(Nursery.start(ROOT, PRELOAD))
        made = await _entered(
            opened, [_lane(folder / f"lane-{n}", address, nursery) for n in range(lanes)]
        )
        suite = _Suite(made, times, say)
        played = [p for found in await asyncio.gather(*map(suite.link, chosen)) for p in found]
    played += [p for p in suite.missed if p not in played]
    violations = await judged([p.witness for p in played], folder / "histories")
    violations += [v for p in played for v in _applied_once(p)]
    return Report(played, violations, len(suite.missed), time.monotonic() - began)


async def _entered(
    opened: contextlib.AsyncExitStack,
    lanes: Sequence[contextlib.AbstractAsyncContextManager[Lane]],
) -> list[Lane]:
    """All at once. Where one fails the others come up first: they are to end in order."""
    entering = map(opened.enter_async_context, lanes)
    found = await asyncio.gather(*entering, return_exceptions=True)
    for each in found:
        if isinstance(each, BaseException):
            raise each
    return [lane for lane in found if isinstance(lane, Lane)]


def _applied_once(played: Played) -> list[Violation]:
    """I10: what was sent to a run is recorded once; so is its start."""
    found, sent = played.witness, played.link.person is not None
    messages = sum(_messages(h) for h in found.histories)
    if messages == sent:
        return []
    return [Violation("I10", found.seen.run.id, None, f"{messages} messages, {sent:d} was sent")]


def _messages(history: WorkflowHistory) -> int:
    return sum(event.event_type in _MESSAGES for event in history.events)


def _line(link: Link, played: Sequence[Played], requests: int) -> str:
    injected, unknown = sum(p.injected for p in played), sum(p.unknown for p in played)
    seconds = statistics.median(p.seconds for p in played)
    return (
        f"{link.name:<34} {link.between:<20} {injected:>3} of {len(played)} lost"
        f"  {requests:>3} a run  {unknown:>3} told unknown  {seconds:5.1f} s"
    )


def main(argv: list[str] | None = None) -> int:
    """Run it; the exit code."""
    parser = argparse.ArgumentParser(description="Lose the answers to requests that arrived.")
    parser.add_argument("--times", type=int, default=20, help="on each link (20)")
    parser.add_argument("--only", nargs="+", metavar="TEXT", help="links with this in the name")
    parser.add_argument("--lanes", type=int, default=LANES, help=f"runs at once ({LANES})")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="new; default a temporary one")
    options = parser.parse_args(argv)
    chosen = [k for k in LINKS if not options.only or any(t in k.name for t in options.only)]
    folder = options.folder or Path(tempfile.mkdtemp(prefix="answers-lost-"))
    say(f"{len(chosen)} links, {options.times} times each; logs and histories in {folder}")
    with EmbeddedServer.start(folder / "server", port=0, announce=say) as server:
        report = asyncio.run(
            run(
                *(chosen, options.times, folder, say),
                address=server.address,
                lanes=options.lanes,
            )
        )
    for violation in report.violations:
        say(f"VIOLATION {violation}")
    say(f"{report.seconds:.0f} s, {len(report.played)} runs, {report.missed} without a loss")
    say(f"answers lost: {report.injected} injected, {len(report.violations)} violations")
    enough = report.injected >= len(chosen) * options.times > 0
    return 0 if enough and not report.violations else 1


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    code = main()
    # Not sys.exit: a process that used temporalio may abort while the interpreter is taken down.
    os._exit(code)
