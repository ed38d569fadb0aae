"""Run a worker that has crash points, and is otherwise as it is.

    CRASH_AT=tool.done:2 CRASH_LOG=passings.jsonl \\
        python -m turnkeeper.testing.crashing worker.py --agents examples.finance

The script (or `-m MODULE`) gets its own arguments. `--list` prints the points.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from turnkeeper.testing import crash_points, crash_seams


def main(arguments: list[str]) -> None:
    """Lay the points and run the program in this process; or list them.

    Raises:
        SystemExit: no program, or a point that does not exist.
    """
    if arguments == ["--list"]:
        for point in crash_points.POINTS:
            sys.stdout.write(f"{point.name:<22} {point.text}\n")
        return
    if not arguments or arguments == ["-m"]:
        raise SystemExit("usage: python -m turnkeeper.testing.crashing [-m] PROGRAM [ARGUMENT...]")
    try:
        crash_points.orders()
    except crash_points.UnknownPoint as error:
        raise SystemExit(str(error)) from None
    crash_points.be_the_worker()
    crash_seams.lay()
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = arguments
    # As Python does it for a script.
    sys.path[0] = str(Path(arguments[0]).resolve().parent)
    runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
