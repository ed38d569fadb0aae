"""Settings from the environment that slow the example down, for demonstrations of crashes."""

from __future__ import annotations

import os

__all__ = ["seconds"]


def seconds(variable: str) -> float:
    """The environment's `variable` in seconds, within 0 and 60; 0 if unset or not a number."""
    try:
        # In this order a NaN becomes 0.
        return min(60.0, max(0.0, float(os.environ.get(variable) or 0)))
    except ValueError:
        return 0.0
