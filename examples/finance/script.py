"""What the scripted provider plays for the finance agent, where there is no real model.

    python -m turnkeeper.testing.provider --script examples.finance.script:script

It reads what the tools returned and computes on from that, as a model would: change a figure in
the documents and the answer changes. It answers a percentage of a year's revenue ("What is 7% of
last year's revenue?") and looks up the figures of `_LOOKUPS`; asked anything else, it says so.

`FINANCE_REPLY_DELAY`: seconds, 0 to 60, before each reply, so that there is time to kill a worker
in the middle of a generation.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from typing import Final

from examples.finance.settings import seconds
from turnkeeper.testing import Exchange, Reply, call, reply, text

__all__ = ["script"]

_LAST_YEAR: Final = "2025"
_CENTS: Final = Decimal("0.01")


def script(exchange: Exchange) -> Reply:
    """The reply to `exchange`. It depends on nothing else, so a repeated request gets it again."""
    # A later message may be a new question; one that is not leaves the first in force.
    question = _question(exchange.last_text) or _question(exchange.prompt)
    if question is None:
        answer: Reply = text(_CAPABILITIES)
    elif exchange.last_results:
        result = exchange.last_results[-1]
        answer = (
            text(f"I got stuck: {result.text}") if result.is_error else question.go_on(result.text)
        )
    elif exchange.tools:
        answer = reply(
            [text(f"I look it up: {question.query}."), call("search", {"q": question.query})]
        )
    else:
        answer = text("I cannot look it up without a tool.")
    return dataclasses.replace(answer, delay=seconds("FINANCE_REPLY_DELAY"))


@dataclass(frozen=True)
class _Lookup:
    """A figure to be found: `pattern` captures it in a passage, `sentence` tells it."""

    query: str
    pattern: str
    sentence: str

    def go_on(self, result: str) -> Reply:
        found = re.search(self.pattern, result)
        if found is None:
            return text(f"The reports do not say: {self.query}.")
        return text(self.sentence.format(figure=found[1]))


@dataclass(frozen=True)
class _Percentage:
    """A percentage of a year's revenue: search, then calculate, then answer."""

    percent: Decimal
    year: str

    @property
    def query(self) -> str:
        return f"annual revenue {self.year}"

    def go_on(self, result: str) -> Reply:
        if re.fullmatch(r"-?[0-9.]+", result):
            millions = Decimal(result) / 10**6
            return text(f"About ${millions.quantize(_CENTS, ROUND_HALF_UP):,}M.")
        found = re.search(rf"Revenue {self.year}: \$([0-9.]+)M", result)
        if found is None:
            return text(f"The reports do not say: {self.query}.")
        dollars = Decimal(found[1]) * 10**6
        return reply(
            [
                text(f"Revenue was ${found[1]}M; I take {self.percent}% of it."),
                call("calculator", {"expression": f"{dollars:.0f} * {self.percent / 100}"}),
            ]
        )


# By the words that a question must have; the first row that fits is taken. The texts are templates:
# first the year is filled in, then, in the sentence, the figure.
_LOOKUPS: Final[dict[tuple[str, ...], _Lookup]] = {
    ("services", "revenue"): _Lookup(
        "Services segment revenue {year}",
        r"Services segment revenue {year} was (\$[0-9.]+M)",
        "Services revenue in {year} was {{figure}}.",
    ),
    ("revenue", "euro"): _Lookup(
        "group revenue {year} in euros",
        "group revenue {year} in euros was (€[0-9.]+M)",
        "Revenue in {year} was {{figure}}, at the year's average rate.",
    ),
    ("operating margin",): _Lookup(
        "operating margin {year}",
        "Operating margin {year}: ([0-9.]+%)",
        "The operating margin in {year} was {{figure}}.",
    ),
    ("employees",): _Lookup(
        "employees at year end {year}",
        "Annual Report {year}, [^[]*Employees at year end: ([0-9,]+)",
        "There were {{figure}} employees at the end of {year}.",
    ),
    ("revenue",): _Lookup(
        "annual revenue {year}",
        r"Revenue {year}: (\$[0-9.]+M)",
        "Revenue in {year} was {{figure}}, by that year's report.",
    ),
}

_CAPABILITIES: Final = (
    "I am a script that stands in for a model. I can tell a percentage of a year's revenue (What "
    "is 7% of last year's revenue?) and, for 2021 to 2025, revenue, operating margin and "
    "employees, for 2025 also the revenue of Services and that in euros."
)


def _question(words: str) -> _Percentage | _Lookup | None:
    asked = words.lower()
    named = re.search(r"\b20[0-9]{2}\b", asked)
    year = named[0] if named else _LAST_YEAR
    percent = re.search(r"\b([0-9]{1,6}(?:\.[0-9]{1,6})?) ?(?:%|percent|per cent) of\b", asked)
    if percent and "revenue" in asked:
        return _Percentage(Decimal(percent[1]), year)
    for needed, lookup in _LOOKUPS.items():
        if all(word in asked for word in needed):
            return _Lookup(*(part.format(year=year) for part in dataclasses.astuple(lookup)))
    return None
