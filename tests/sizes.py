"""How much a test does: every day as little as shows it, in full what the reports are about."""

from __future__ import annotations

import os

FULL = os.environ.get("TURNKEEPER_TESTS") == "full"
"""Set by `make test-full`."""
