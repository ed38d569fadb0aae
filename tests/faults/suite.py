"""Run cases of the crash suite side by side, and add up what came of them."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.faults.agents import recorded_changes
from tests.faults.plan import Planned
from tests.faults.scenarios import SCENARIOS, Scenario
from turnkeeper.testing.checker import Violation
from turnkeeper.testing.crash_rig import Case, CrashRig
from turnkeeper.testing.nursery import Nursery

ROOT = Path(__file__).resolve().parents[2]
_CASES_AT_ONCE = 6
"""On two cores: most of a case is waiting for the server to give a dead worker up."""
_REPLAY_SECONDS = 600


@dataclasses.dataclass
class Outcome:
    """One planned case and what came of it; `problem` tells why it did not come to its end."""

    planned: Planned
    case: Case | None = None
    problem: str = ""

    @property
    def reached(self) -> bool:
        """Whether the point has ended its worker."""
        return self.case is not None and self.case.reached


@dataclasses.dataclass
class Report:
    """All that was found."""

    outcomes: list[Outcome]
    violations: list[Violation]
    seconds: float

    @property
    def kills(self) -> int:
        """Workers that died at a crash point."""
        return sum(len(o.case.kills) for o in self.outcomes if o.case)

    @property
    def in_flight(self) -> int:
        """Of these, how many with a mutating call under way."""
        return sum(o.case.in_flight for o in self.outcomes if o.case)

    @property
    def points(self) -> dict[str, bool]:
        """Whether a point was reached at every passing that was planned."""
        found: dict[str, bool] = {}
        for o in self.outcomes:
            found[o.planned.point] = found.get(o.planned.point, True) and o.reached
        return found


async def run(
    planned: Iterable[Planned],
    address: str,
    nursery: Nursery,
    folder: Path,
    say: Callable[[str], None],
    *,
    without: str = "",
) -> Report:
    """Run the cases on the Temporal server there; `folder` gets every log, ledger and history.

    `without` switches a mechanism off in the workers.
    """
    began = time.monotonic()
    cases = list(planned)
    rigs = {
        name: _rig(scenario, address, nursery, folder / name, without)
        for name, scenario in SCENARIOS.items()
        if any(c.scenario == name for c in cases)
    }
    suite = _Suite(rigs, len(cases), say)
    outcomes = await asyncio.gather(*map(suite.case, cases))
    controls = await asyncio.gather(
        *(rig.control() for rig in rigs.values()), return_exceptions=True
    )
    # A control that failed has failed its cases, too.
    violations = [v for c in controls if isinstance(c, Case) for v in c.violations]
    violations += [v for o in outcomes if o.case for v in o.case.violations]
    return Report(outcomes, violations, time.monotonic() - began)


def _rig(
    scenario: Scenario, address: str, nursery: Nursery, folder: Path, without: str
) -> CrashRig:
    return CrashRig(
        worker=["worker.py", "--agents", "tests.faults.agents"],
        root=ROOT,
        folder=folder,
        address=address,
        agent=scenario.agent,
        script=scenario.script,
        meanwhile=scenario.meanwhile,
        compare=scenario.compare,
        environment={"WITHOUT": without},
        effects=recorded_changes,
        nursery=nursery,
    )


class _Suite:
    def __init__(self, rigs: dict[str, CrashRig], total: int, say: Callable[[str], None]) -> None:
        self._rigs = rigs
        self._total = total
        self._say = say
        self._done = 0
        self._room = asyncio.Semaphore(_CASES_AT_ONCE)

    async def case(self, planned: Planned) -> Outcome:
        outcome = Outcome(planned)
        async with self._room:
            try:
                outcome.case = await self._rigs[planned.scenario].run(planned.crash_at)
            except Exception as error:  # noqa: BLE001 - the others go on; this one has failed
                outcome.problem = f"{type(error).__name__}: {error}"
        self._done += 1
        self._say(f"[{self._done:>3}/{self._total}] {_line(outcome)}")
        return outcome


def _line(outcome: Outcome) -> str:
    planned, case = outcome.planned, outcome.case
    what = f"{planned.crash_at:<44} {planned.scenario:<9}"
    if case is None:
        return f"{what} FAILED {outcome.problem}"
    told = "ok" if case.reached else "NOT REACHED"
    if case.violations:
        told = f"{told}, {len(case.violations)} VIOLATIONS: {case.violations[0]}"
    flying = "in flight" if case.in_flight else ""
    return f"{what} {flying:<9} {case.seconds:5.1f} s  {told}"


async def replayed(folder: Path, say: Callable[[str], None]) -> list[Violation]:
    """Replay every history of the suite in a process that has seen none of them."""
    everything = folder / "histories"
    everything.mkdir()
    runs = {}
    for path in sorted(folder.glob("*/*/histories/*.json")):  # noqa: ASYNC240
        shutil.copy(path, everything)
        runs[path.name] = json.loads(path.read_text())["id"]
    replaying = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.archive", str(everything)),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(_REPLAY_SECONDS):
        told, _ = await replaying.communicate()
    found = json.loads(told.splitlines()[-1])
    say(f"histories: {len(runs)} exported = {found['replayed']} replayed in a cold process")
    return [
        Violation("I9", runs[name], None, f"execution {name} does not replay: {why}")
        for name, why in found["failures"].items()
    ]
