"""The controls of the crash suite: `make crash-controls`.

Each mechanism is switched off in turn; a suite that does not notice proves nothing.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections import Counter
from pathlib import Path

from tests.faults import suite
from tests.faults.crash import say
from tests.faults.crew import PRELOAD
from tests.faults.plan import MECHANISMS, relevant
from turnkeeper.testing.embedded import EmbeddedServer
from turnkeeper.testing.nursery import Nursery


def main() -> int:
    """Run all of them; 0 if every one was caught."""
    folder = Path(tempfile.mkdtemp(prefix="crash-controls-"))
    say(f"logs, ledgers and histories in {folder}")
    with (
        EmbeddedServer.start(folder / "server", announce=say) as server,
        Nursery.start(suite.ROOT, PRELOAD) as nursery,
    ):
        caught = {m: _without(m, server.address, nursery, folder / m) for m in MECHANISMS}
    for mechanism, found in caught.items():
        broken = ", ".join(f"{n} of {i}" for i, n in sorted(found.items())) or "NOT CAUGHT"
        say(f"without {mechanism:<12} {found.total():>3} violations: {broken}")
    return 0 if all(found.total() for found in caught.values()) else 1


def _without(mechanism: str, address: str, nursery: Nursery, folder: Path) -> Counter[str]:
    """How many violations of which invariants the suite has found."""
    cases = list(relevant(mechanism))
    say(f"without {mechanism}: {len(cases)} cases")
    report = asyncio.run(suite.run(cases, address, nursery, folder, say, without=mechanism))
    return Counter(v.invariant for v in report.violations)


if __name__ == "__main__":
    code = main()
    # As in `crash`.
    os._exit(code)
