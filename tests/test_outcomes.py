"""The closed set of ends says the same everywhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from turnkeeper.errors import RunError, RunFailed, error_for
from turnkeeper.outcomes import OUTCOMES

README = (Path(__file__).parent.parent / "README.md").read_text()


@pytest.mark.parametrize("outcome", sorted(set(OUTCOMES) - {"completed"}))
def test_every_outcome_has_an_error_that_carries_it(outcome: str) -> None:
    """Callers branch on the class; only those that cannot go on are RunFailed."""
    error = error_for(outcome, "why")
    assert isinstance(error, RunError)
    assert error.outcome == outcome
    assert (type(error) is RunFailed) == (OUTCOMES[outcome].exit == 1)


@pytest.mark.parametrize("outcome", sorted(OUTCOMES))
def test_the_readme_has_every_outcome_with_its_exit_code(outcome: str) -> None:
    """A reader finds each outcome in one table."""
    [row] = [r for r in README.splitlines() if r.startswith("| `") and f"`{outcome}`" in r]
    assert row.rstrip(" |").endswith(str(OUTCOMES[outcome].exit))
    assert OUTCOMES[outcome].closes in row.lower()
