"""`python -m tests.crash` is `worker.py` with the loop that has crash points."""

from __future__ import annotations

import functools
import sys

import worker
from tests.crash.run import CrashingRun

if __name__ == "__main__":
    worker.build_worker = functools.partial(worker.build_worker, workflow=CrashingRun)
    sys.exit(worker.main())
