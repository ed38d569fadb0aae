"""What the scripted provider plays for the desk, where there is no real model."""

from __future__ import annotations

import re

from turnkeeper.testing import Exchange, Reply, call, text

__all__ = ["script"]


def script(exchange: Exchange) -> Reply:
    """Refund the order that the last message names; repeat a message that names none."""
    if exchange.last_results:
        return text(exchange.last_results[-1].text)
    order = re.search(r"\border ([0-9]{1,9})\b", exchange.last_text)
    if order is None:
        return text(f"You said: {exchange.last_text}")
    return call("issue_refund", {"order": int(order[1])})
