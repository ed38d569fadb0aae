"""Hold a tool against its promise: a run in which its worker is killed, and what is wrong with it.

    with Prover(server.address, folder) as prover:
        prover.prove(trial, Moment("tool.done", 1))

It raises `PromiseBroken`, whose message is a report in words, or `NeverReached`. The pytest plugin
is made of this.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from temporalio.service import RPCError

from turnkeeper.client import AgentRunHandle
from turnkeeper.errors import TurnkeeperError
from turnkeeper.testing import findings
from turnkeeper.testing.crash_rig import Case, CrashRig
from turnkeeper.testing.effects import Arrival
from turnkeeper.testing.moments import Moment, way_to
from turnkeeper.testing.nursery import Nursery
from turnkeeper.testing.provider import Script

__all__ = ["Applied", "NeverReached", "PromiseBroken", "Prover", "Trial"]

_PRELOAD: Final = ("anthropic", "docstring_parser", "structlog", "temporalio.worker")
"""What any worker imports, and turnkeeper depends on."""
_CLOSING_SECONDS: Final = 30.0
_LOOK_SECONDS: Final = 0.5


class PromiseBroken(TurnkeeperError):
    """Raised for a tool that does not keep its promise, or whose test could not have told."""


class NeverReached(TurnkeeperError):
    """Raised when the agent does not come to a moment: nothing is proved there."""


@dataclass(frozen=True)
class Applied:
    """A row of an author's own ledger: this was done to the world, under this key.

    key: `ctx.idempotency_key` of the call, None where it is not known (a violation). time: seconds
    since 1970; without it nobody sees an effect that comes after the run's end.
    """

    tool: str
    key: str | None
    time: float = 0.0


@dataclass(kw_only=True)
class Trial:
    """What is to be held against its promise: `tool`, in runs of `agent` with this script.

    identity: trials that have it in common have one run without kills. chosen: all moments that are
    asked for. The rest as for `CrashRig`, but for `effects`, which returns rows of a kind of their
    own; those of earlier runs may be among them.
    """

    identity: Hashable
    worker: Sequence[str]
    root: Path
    agent: str
    tool: str
    script: Script
    prompt: str
    chosen: Sequence[Moment]
    environment: Mapping[str, str] = field(default_factory=dict)
    effects: Callable[[Path], Iterable[Applied]] | None = None
    unwitnessed: Sequence[str] = ()
    compare: bool = False


class Prover:
    """Proves one trial after the other, in a thread with an event loop of its own.

    address: of a Temporal server. folder: gets a folder for each run.
    """

    def __init__(self, address: str, folder: Path) -> None:
        self._address = address
        self._folder = folder
        self._rigs: dict[Hashable, CrashRig] = {}
        self._nurseries: dict[Path, Nursery] = {}
        self._cases = 0
        self._counted: Counter[Applied] = Counter()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name=type(self).__name__, daemon=True
        )

    def prove(self, trial: Trial, moment: Moment) -> Case:
        """Kill the worker at the moment; the run, if the promise was kept. From any thread.

        Raises:
            PromiseBroken: it was not, or nothing would have shown it.
            NeverReached: the run does not come to the moment.
            ProcessError, Stuck: the worker does not start, or the run does not end.
        """
        future = asyncio.run_coroutine_threadsafe(self._prove(trial, moment), self._loop)
        try:
            return future.result()
        finally:
            # After Ctrl-C; otherwise it is done.
            future.cancel()

    async def _prove(self, trial: Trial, moment: Moment) -> Case:
        rig = self._rig(trial)
        control = await rig.control()
        if problem := findings.useless(control, trial.tool, trial.chosen):
            raise PromiseBroken(problem)
        crash_at = way_to(moment, control)
        if crash_at is None:
            raise NeverReached(f"this agent never comes to {moment.text}")
        case = await rig.run(crash_at)
        if found := [*case.violations, *findings.changed(case, control)]:
            raise PromiseBroken(findings.report(case, found, trial.tool))
        if not case.kills:
            raise PromiseBroken(
                f"the run without kills came to {moment.text}, and this one did not: {case.folder}"
            )
        if not case.reached:
            raise NeverReached(f"once killed at {crash_at}, it never came to {moment.text}")
        return case

    def _rig(self, trial: Trial) -> CrashRig:
        """The trial's rig, which has its control; what may differ from test to test is renewed."""
        self._cases += 1
        rig = self._rigs.get(trial.identity)
        if rig is None:
            rig = self._rigs[trial.identity] = CrashRig(
                worker=trial.worker,
                root=trial.root,
                folder=self._folder,
                address=self._address,
                agent=trial.agent,
                script=trial.script,
                prompt=trial.prompt,
                unwitnessed=trial.unwitnessed,
                compare=trial.compare,
                meanwhile=_nobody_resolves,
                nursery=self._nursery(trial.root),
            )
        rig.folder = self._folder / f"{self._cases:03}-{trial.tool}"
        rig.script, rig.environment = trial.script, trial.environment
        rig.effects = None if trial.effects is None else self._rows_of(trial.effects)
        return rig

    def _nursery(self, root: Path) -> Nursery:
        if root not in self._nurseries:
            self._nurseries[root] = Nursery.start(root, _PRELOAD)
        return self._nurseries[root]

    def _rows_of(
        self, effects: Callable[[Path], Iterable[Applied]]
    ) -> Callable[[Path], list[Arrival]]:
        """Read the author's ledger, without the rows of earlier runs."""

        def rows(folder: Path) -> list[Arrival]:
            found = Counter(effects(folder))
            new = found - self._counted
            self._counted |= found
            return [_arrival(number, row) for number, row in enumerate(new.elements(), 1)]

        return rows

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._in_loop(_end_all())
        self._in_loop(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSING_SECONDS)
        self._loop.close()
        for nursery in self._nurseries.values():
            nursery.stop()

    def _in_loop(self, last: Coroutine[Any, Any, None]) -> None:
        # Whatever does not end in time ends with this process: it is told by its watchdogs.
        with contextlib.suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(last, self._loop).result(_CLOSING_SECONDS)


async def _end_all() -> None:
    """Runs that were interrupted kill their workers now."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _arrival(number: int, row: Applied) -> Arrival:
    return Arrival(
        arrival=number,
        kind="own",
        name=row.tool,
        key=row.key,
        digest="",
        body=None,
        time=row.time,
        applied=True,
        status=200,
        receipt=None,
        behaviour=None,
    )


async def _nobody_resolves(run: AgentRunHandle) -> None:
    """End a run that waits for a person to resolve a call: it stays unknown, as was promised."""
    handle = run.client.client.get_workflow_handle(run.id)
    while True:
        with contextlib.suppress(RPCError):
            calls = await (await handle.describe()).memo_value("unknown", [])
            if any(call["status"] == "waiting" for call in calls):
                await run.stop("nobody resolves its call here")
                return
        await asyncio.sleep(_LOOK_SECONDS)
