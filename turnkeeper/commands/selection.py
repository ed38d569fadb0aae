"""Which runs a command is about: options that become one of Temporal's queries."""

from __future__ import annotations

import argparse

from turnkeeper.commands.place import USAGE, Complaint
from turnkeeper.waiting import KINDS, PERSON

_ATTRIBUTES = {
    "agent": "TurnkeeperAgent",
    "status": "TurnkeeperStatus",
    "outcome": "TurnkeeperOutcome",
    "tenant": "TurnkeeperTenant",
    "unknown": "TurnkeeperUnknown",
}


def add_selection(parser: argparse.ArgumentParser, *, where: bool = True) -> None:
    """The options; without `--where` for a command that has a query of that name already."""
    chosen = parser.add_argument_group("which runs")
    chosen.add_argument("--agent", metavar="NAME", help="of that agent")
    chosen.add_argument("--status", choices=("running", "waiting", "ended"), help="in that state")
    chosen.add_argument("--outcome", metavar="NAME", help="that ended so, such as token_limit")
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
    if where:
        chosen.add_argument(
            "--where", default="", metavar="QUERY", help="such as \"StartTime > '2026-11-01'\""
        )


def query_of(options: argparse.Namespace) -> str:
    """All that was chosen but `--waiting-for`, as one query; empty for all runs.

    Raises:
        Complaint: a value cannot stand in a query.
    """
    conditions = [f"({options.where})"] if options.where.strip() else []
    for name, attribute in _ATTRIBUTES.items():
        value = getattr(options, name)
        if value is None:
            continue
        if "'" in value or "\\" in value:
            raise Complaint(f"--{name} {value}: a name has no quotes and no backslashes", USAGE)
        conditions.append(f"{attribute} = '{value}'")
    return " AND ".join(conditions)
