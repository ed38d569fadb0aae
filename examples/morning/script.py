"""What the scripted provider plays for the morning agent, where there is no real model."""

from __future__ import annotations

import csv

from turnkeeper.testing import Exchange, Reply, call, text

__all__ = ["script"]


def script(exchange: Exchange) -> Reply:
    """Look, then tell what is urgent, from what the tool said."""
    if not exchange.last_results:
        return call("open_tickets")
    day, *rows = exchange.last_results[-1].text.splitlines()
    tickets = list(csv.DictReader(rows))
    urgent = [f"{t['number']} {t['subject']}" for t in tickets if t["priority"] == "urgent"]
    return text(f"{day} {len(tickets)} tickets. Urgent: {'; '.join(urgent) or 'none'}.")
