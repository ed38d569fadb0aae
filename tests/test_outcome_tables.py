"""The page of outcomes says what runs do."""

from __future__ import annotations

from pathlib import Path

from temporalio.client import Client

from tests.outcome_tables import FAILURES, PAGE, STOPS, show


def test_there_are_enough_rows() -> None:
    """At least 12 stop reasons and 30 failures, each by a name of its own."""
    assert len(STOPS) >= 12
    assert len(FAILURES) >= 30
    assert len({row.name for row in (*STOPS, *FAILURES)}) == len(STOPS) + len(FAILURES)


async def test_the_page_says_what_runs_do(client: Client, tmp_path: Path) -> None:
    """Every row is run for real; after a wanted change: `python -m tests.outcome_tables`."""
    assert await show(client, tmp_path) == PAGE.read_text()
