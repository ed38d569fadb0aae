"""A conversation whose early facts are asked for long after they left the view.

    python -m bench.endless --only needles,needles-bad

Folios of a report in a window of 20,000 tokens. Twenty early ones hold a fact each; two hundred
folios later each is asked for. The script's summaries leave all of them out, so that it can answer
only from what the tool `recall` finds. In the second case the summaries are empty, too long or
without headings in turn. Each entry that was said is read back and checked by its digest.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from bench.agents import FOR_EVER, SUMMARY
from bench.histories import executions
from bench.place import opened
from bench.report import Check, Report, unharmed
from tests.prose import prose
from turnkeeper import Agent, Limits, ModelSpec, tool
from turnkeeper.entries import Entry, Position, verify
from turnkeeper.testing import Exchange, Reply, call, reply, text

NEEDLES = 20
WINDOW = 20_000
_FIRST_QUESTION = 200
_APART = 4
"""Pages from one question to the next."""
# fmt: off
_PLACES = (
    "Lisbon", "Bergen", "Cordoba", "Dublin", "Esbjerg", "Florence", "Gdansk", "Helsinki",
    "Innsbruck", "Jaffa", "Kyoto", "Lagos", "Montreal", "Nairobi", "Oslo", "Porto", "Quito",
    "Riga", "Seville", "Tallinn",
)
# fmt: on
_FACT = re.compile(r"The vault of (\w+) opens with (\d{6})\.")
_QUESTION = re.compile(r"QUESTION: what opens the vault of (\w+)\?")
_SAID = re.compile(r"It is (\d{6}) for (\w+)\.")


def code(place: str) -> str:
    """What opens a place's vault."""
    return f"{int(sha256(place.encode()).hexdigest()[:12], 16) % 900_000 + 100_000}"


@tool(effect="read")
def folio(number: int) -> str:
    """Read a folio of a report."""
    said = f"Folio {number}. {prose(f'folio {number}', 1_000)}"
    asked = number - _FIRST_QUESTION
    if 0 < number <= NEEDLES:
        place = _PLACES[number - 1]
        said += f" The vault of {place} opens with {code(place)}."
    elif 0 <= asked < NEEDLES * _APART and asked % _APART == 0:
        said += f" QUESTION: what opens the vault of {_PLACES[asked // _APART]}?"
    return said


needles = Agent(
    name="needles",
    model=ModelSpec(name="claude-sonnet-5-5", window=WINDOW, max_output_tokens=1_000),
    instructions="Read the report folio by folio, and answer the questions in it.",
    tools=[folio],
    limits=Limits(turns=10_000, wall_seconds=FOR_EVER, consecutive_errors=100, repetition=100),
)


def seeks(exchange: Exchange) -> Reply:
    """The next folio; a question is answered from what `recall` says, or not at all."""
    if exchange.wants_summary:
        return text(SUMMARY)
    return _reads_on(exchange)


def seeks_without_summaries(exchange: Exchange) -> Reply:
    """As `seeks`, but no summary can be used."""
    if exchange.wants_summary:
        return text(("", "x" * 100_000, "Nothing happened.")[exchange.arrival % 3])
    return _reads_on(exchange)


def _reads_on(exchange: Exchange) -> Reply:
    last = exchange.last_results[-1].text if exchange.last_results else ""
    if question := _QUESTION.search(last):
        return call("recall", {"query": f"vault {question[1]} opens"})
    said = []
    number = _number(exchange)
    if last and not last.startswith("Folio"):
        place = _PLACES[(number - _FIRST_QUESTION) // _APART]
        found = next((c for p, c in _FACT.findall(last) if p == place), None)
        said.append(text(f"It is {found} for {place}." if found else f"Nobody knows {place}."))
    if number >= _last():
        return reply([*said, text("All folios are read.")])
    return reply([*said, call("folio", {"number": number + 1})])


def _number(exchange: Exchange) -> int:
    """Of the last folio that was read: among the last turns, which stay as they are."""
    for message in reversed(exchange.body["messages"]):
        content = message["content"] if isinstance(message["content"], list) else []
        for block in reversed(content):
            if block["type"] == "tool_use" and block["name"] == "folio":
                return int(block["input"]["number"])
    return 0


def _last() -> int:
    return _FIRST_QUESTION + NEEDLES * _APART + 4


async def case(folder: Path, options: argparse.Namespace) -> Report:  # noqa: ARG001
    """With summaries that leave the facts out."""
    return await _case(folder, "needles", "seeks")


async def bad_summaries(folder: Path, options: argparse.Namespace) -> Report:  # noqa: ARG001
    """Without a summary that could be used."""
    return await _case(folder, "needles-bad", "seeks_without_summaries")


async def _case(folder: Path, name: str, script: str) -> Report:
    report = Report(name, {"needles": NEEDLES, "window": WINDOW, "folios": _last()})
    async with opened(folder, f"bench.needles:{script}", window=WINDOW) as place:
        worker = await place.worker("--agents", "bench.needles")
        run = await place.agents.start("needles", "Read it.", limits={"turns": 1_000})
        result = await run.result(check=False, timeout=600)
        entries = (await place.agents.transcript(run.id)).entries
        links = await executions(place.client, run.id)
        requests = place.requests()
        await place.stop(worker)
    whole = sum(map(verify, entries))
    report.checks = [
        Check("turns of the run, if it completed", result.turns * (result.outcome == "completed")),
        Check("entries said", result.transcript.entries),
        Check("of these retrieved with their digest", whole, least=result.transcript.entries),
        Check("chain of them all", Position().after(entries) == result.transcript, least=1),
        Check("needles found by recall", _found(entries), least=NEEDLES),
        Check("epochs", result.epochs, least=2, most=result.turns // 10),
        Check("largest request", max(r.tokens or 0 for r in requests), most=WINDOW, unit="tokens"),
        *unharmed(requests, links),
    ]
    return report


def _found(entries: Sequence[Entry]) -> int:
    """Places whose code the model has said, rightly."""
    said = set()
    for entry in entries:
        if entry.kind == "reply":
            blocks = entry.value["content"]
            said |= set(_SAID.findall(" ".join(b.get("text", "") for b in blocks)))
    return sum((code(place), place) in said for place in _PLACES)
