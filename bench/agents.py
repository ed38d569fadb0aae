"""What the benchmarks' workers serve, and the scripts that stand in for a model.

The scripts run in the provider's process and are told by its environment: ENDLESS_TURNS, and
ENDLESS_BYTES for each tool result.
"""

from __future__ import annotations

import os
import re
import time

from tests.prose import prose
from turnkeeper import Agent, Limits, ModelSpec, tool
from turnkeeper.testing import Exchange, Reply, call, reply, text

FOR_EVER = 366 * 86_400
WINDOW = 64_000
"""Tokens, of the endless agent's model."""


# --- planted faults, which the benchmarks have to notice (`bench.controls`) ---------------------

_LEAK = int(os.environ.get("BENCH_LEAK", "0"))
"""Bytes that each call of `page` or `send` never gives back."""
_SLOWER = float(os.environ.get("BENCH_SLOWER", "0"))
"""Seconds by which each page takes longer than the one before it."""
_leaked: list[bytes] = []


def _planted(number: int = 0) -> None:
    if _LEAK:
        _leaked.append(os.urandom(_LEAK))
    time.sleep(number * _SLOWER)


# --- a run that waits for a person ------------------------------------------------------------


@tool
async def send(to: str) -> str:
    """Send a letter."""
    _planted()
    raise OSError(f"the connection was lost after the letter to {to} had been handed over")


@tool(effect="read")
def page(number: int, size: int) -> str:
    """Read a page of a report that has very many."""
    _planted(number)
    return f"Page {number}. {prose(number, size)}"


waiting = Agent(
    name="waiting",
    model="claude-sonnet-5-5",
    instructions="Write to the customer, and say what became of it.",
    tools=[send],
    on_unknown="wait",
    limits=Limits(wall_seconds=FOR_EVER),
)


grown = Agent(
    name="grown",
    model="claude-sonnet-5-5",
    instructions="Read all of it, and write to the customer.",
    tools=[page, send],
    on_unknown="wait",
    limits=Limits(turns=1_000, wall_seconds=FOR_EVER),
)

GROWN_TURNS, GROWN_BYTES = 30, 23_000
"""Pages that a `grown` run reads before it waits."""


def waits(exchange: Exchange) -> Reply:
    """A letter whose fate a person has to tell; then what the person said."""
    if "page" in exchange.tools and exchange.turn < GROWN_TURNS:
        return call("page", {"number": exchange.turn, "size": GROWN_BYTES})
    if not exchange.last_results or exchange.last_results[0].text.startswith("Page"):
        said = prose(exchange.prompt, 500)
        return reply([text(said), call("send", {"to": exchange.prompt})])
    return text(exchange.last_results[0].text)


@tool(effect="read")
def look(about: str, size: int) -> str:
    """Look something up."""
    return prose(about, size)


heavy = Agent(
    name="heavy",
    model="claude-sonnet-5-5",
    instructions="Look everything up, and write to the customer.",
    tools=[look, send],
    on_unknown="wait",
    limits=Limits(wall_seconds=FOR_EVER),
)


def waits_with_much(exchange: Exchange) -> Reply:
    """As `waits`, beside arguments and results of a megabyte, the most that a reply may have; or
    of less, with fewer `HEAVY_CALLS`."""
    if exchange.turn:
        return text(exchange.last_results[-1].text)
    calls = int(os.environ.get("HEAVY_CALLS", "20"))
    asked = [
        call("look", {"about": prose(f"{exchange.prompt} {n}", 12_000), "size": 23_500})
        for n in range(calls)
    ]
    return reply([*asked, call("send", {"to": prose(exchange.prompt, 12_000 * calls)})])


# --- a run without end ------------------------------------------------------------------------


def _reader(name: str, window: int) -> Agent:
    return Agent(
        name=name,
        model=ModelSpec(name="claude-sonnet-5-5", window=window, max_output_tokens=1_000),
        instructions="Read the report page by page to its end.",
        tools=[page],
        limits=Limits(turns=100_000, wall_seconds=FOR_EVER, consecutive_errors=100),
    )


endless = _reader("endless", WINDOW)
reader = _reader("reader", 1_000_000)


SUMMARY = (
    "## Decisions\nThe pages are read in order.\n## Unresolved work\nThe pages to come.\n"
    "## Evidence\nNothing to note so far."
)


def reads(exchange: Exchange) -> Reply:
    """The next page, by the number of the last one: a summary may stand for all before it."""
    if exchange.wants_summary:
        return text(SUMMARY)
    turns, size = int(os.environ["ENDLESS_TURNS"]), int(os.environ["ENDLESS_BYTES"])
    read = [int(n) for r in exchange.last_results for n in re.findall(r"^Page (\d+)\.", r.text)]
    number = max(read, default=0) + 1
    if number >= turns:
        return text(f"All {number} pages are read.")
    return reply([text(f"On to page {number}."), call("page", {"number": number, "size": size})])
