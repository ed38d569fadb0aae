"""Which runs a command is about: options that become one of Temporal's queries."""

from __future__ import annotations

import argparse
import re

from turnkeeper.commands.place import USAGE, Complaint
from turnkeeper.outcomes import OUTCOMES
from turnkeeper.waiting import KINDS, PERSON

_ATTRIBUTES = {
    "agent": "TurnkeeperAgent",
    "outcome": "TurnkeeperOutcome",
    "tenant": "TurnkeeperTenant",
    "unknown": "TurnkeeperUnknown",
}
_OPEN = "ExecutionStatus = 'Running'"
_STATUS = {
    # One that no worker has taken yet has not said so itself.
    "running": f"({_OPEN} AND (TurnkeeperStatus IS NULL OR TurnkeeperStatus = 'running'))",
    "waiting": f"({_OPEN} AND TurnkeeperStatus = 'waiting')",
    # One that was terminated could not say so itself.
    "ended": "(ExecutionStatus != 'Running')",
}
_COMPARES = re.compile(r"[=<>]|\b(IS|IN|BETWEEN|STARTS_WITH)\b", re.IGNORECASE)
_QUERY = "such as \"StartTime > '2026-11-01'\""


def add_selection(parser: argparse.ArgumentParser, *, query: bool = False) -> None:
    """The options; with `query` the one of `--where` may also stand without its name."""
    parser.set_defaults(query="")
    if query:
        parser.add_argument("query", nargs="?", metavar="QUERY", help=f"{_QUERY}, as --where")
    chosen = parser.add_argument_group("which runs")
    chosen.add_argument("--agent", metavar="NAME", help="of that agent")
    chosen.add_argument("--status", choices=tuple(_STATUS), help="in that state")
    chosen.add_argument(
        "--outcome",
        choices=tuple(OUTCOMES),
        metavar="NAME",
        help="that ended so, such as token_limit",
    )
    chosen.add_argument("--tenant", metavar="NAME", help="of that tenant (metadata)")
    chosen.add_argument(
        "--unknown",
        choices=("waiting", "open", "settled"),
        help="with calls that may or may not have taken effect",
    )
    chosen.add_argument(
        "--waiting-for",
        choices=(PERSON, *KINDS),
        help="that wait for a person, or for one thing from a person",
    )
    chosen.add_argument("--where", default="", metavar="QUERY", help=_QUERY)


def query_of(options: argparse.Namespace) -> str:
    """All that was chosen but `--waiting-for`, as one query; empty for all runs.

    Raises:
        Complaint: a value cannot stand in a query, or what should be one is a mere word.
    """
    queries = [q for q in (options.query, options.where) if q.strip()]
    conditions = [f"({_compares(q)})" for q in queries]
    if options.status is not None:
        conditions.append(_STATUS[options.status])
    for name, attribute in _ATTRIBUTES.items():
        value = getattr(options, name)
        if value is None:
            continue
        if "'" in value or "\\" in value:
            raise Complaint(f"--{name} {value}: a name has no quotes and no backslashes", USAGE)
        conditions.append(f"{attribute} = '{value}'")
    return " AND ".join(conditions)


def _compares(query: str) -> str:
    if _COMPARES.search(query):
        return query
    raise Complaint(
        f"{query}: a query compares something, {_QUERY}; to see one run: show ID, or those of an "
        "agent: --agent NAME",
        USAGE,
    )
