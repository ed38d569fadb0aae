"""A run that meets what is far too large, one thing after another, and goes on.

    python -m bench.endless --only huge

A result of 25 MB of text, one of 25 MB of random bytes, an image of about 25 MB, 200 calls in one
reply, an argument of 1.2 MB, and five results of 40,000 tokens each, in a window of 200,000. After
each the script says what it was told.
"""

from __future__ import annotations

import argparse
import functools
import io
import random
from collections.abc import Sequence
from pathlib import Path

from bench.agents import FOR_EVER
from bench.histories import executions
from bench.place import opened
from bench.report import Check, Report, unharmed
from tests.prose import prose
from turnkeeper import Agent, Limits, ModelSpec, tool
from turnkeeper.entries import Entry
from turnkeeper.testing import Exchange, Reply, call, calls, reply, text

WINDOW = 200_000
_LARGE = 25_000_000
_STEPS = (
    ("text of 25 MB", lambda: call("fetch", {"kind": "text", "size": _LARGE})),
    ("25 MB of random bytes", lambda: call("fetch", {"kind": "bytes", "size": _LARGE})),
    ("an image of 25 MB", lambda: call("fetch", {"kind": "image", "size": _LARGE})),
    ("200 calls", lambda: calls([("fetch", {"kind": "text", "size": n + 1}) for n in range(200)])),
    ("an argument of 1.2 MB", lambda: call("keep", {"what": prose("argument", 1_200_000)})),
    (
        "five results of 40,000 tokens",
        lambda: calls([("fetch", {"kind": "text", "size": 160_000 + n}) for n in range(5)]),
    ),
)


@tool(effect="read", timeout=120)
def fetch(kind: str, size: int) -> str | bytes:
    """Fetch something large."""
    if kind == "bytes":
        return random.Random(size).randbytes(size)  # noqa: S311
    return image() if kind == "image" else prose(size, size)


@tool(effect="read")
def keep(what: str) -> str:
    """Take something large."""
    return f"{len(what)} characters"


@functools.cache
def image() -> bytes:
    """A PNG of about 25 MB: noise cannot be compressed."""
    from PIL import Image

    noise = random.Random(0).randbytes(2_900 * 2_900 * 3)  # noqa: S311
    file = io.BytesIO()
    Image.frombytes("RGB", (2_900, 2_900), noise).save(file, "PNG")
    return file.getvalue()


huge = Agent(
    name="huge",
    model=ModelSpec(name="claude-sonnet-5-5", window=WINDOW, max_output_tokens=8_000),
    instructions="Fetch everything.",
    tools=[fetch, keep],
    limits=Limits(turns=50, wall_seconds=FOR_EVER, consecutive_errors=100),
)


def fetches(exchange: Exchange) -> Reply:
    """One step after another, with a word on what the last one has told."""
    said = [text(f"I was told {len(exchange.last_results)} results.")] if exchange.turn else []
    if exchange.turn == len(_STEPS):
        return text("Done.")
    return reply([*said, _STEPS[exchange.turn][1]()])


async def case(folder: Path, options: argparse.Namespace) -> Report:  # noqa: ARG001
    """All of it in one run."""
    report = Report("huge", {"window": WINDOW})
    async with opened(folder, "bench.huge:fetches", window=WINDOW) as place:
        worker = await place.worker("--agents", "bench.huge")
        run = await place.agents.start("huge", "Fetch it.", limits={"turns": 50})
        result = await run.result(check=False, timeout=300)
        entries = (await place.agents.transcript(run.id)).entries
        links = await executions(place.client, run.id)
        requests = place.requests()
        await place.stop(worker)
    report.checks = [
        Check(
            "turns of the run, if it completed",
            result.turns * (result.outcome == "completed"),
            least=len(_STEPS) + 1,
        ),
        *_told(entries),
        Check("largest request", max(r.tokens or 0 for r in requests), most=WINDOW, unit="tokens"),
        Check("largest history", max(x.size for x in links), most=10_000_000, unit="bytes"),
        *unharmed(requests, links),
    ]
    return report


def _told(entries: Sequence[Entry]) -> list[Check]:
    """How many results the model read after each step."""
    turns: list[list[Entry]] = []
    for entry in entries:
        if entry.kind == "reply":
            turns.append([])
        elif entry.kind == "result":
            turns[-1].append(entry)
    for (name, _), results in zip(_STEPS, turns, strict=False):
        print(f"  {name}: {results[0].value['text'][:200]!r}")
    wanted = (1, 1, 1, 200, 1, 5)
    return [
        Check(f"results told after {name}", len(results), least=number, most=number)
        for (name, _), results, number in zip(_STEPS, turns, wanted, strict=False)
    ]
