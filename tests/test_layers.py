"""Imports point one way: what import-linter's contracts in pyproject.toml leave open."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

OURS = {"activities", "examples", "starter", "turnkeeper", "worker", "workflows"}

# The modules of `turnkeeper` that do I/O; all others are replayed or could be.
DOES_IO = {
    "answers",
    "artifacts",
    "asking",
    "client",
    "connection",
    "converter",
    "days",
    "diagnosis",
    "ends",
    "export",
    "finding",
    "follow",
    "handle",
    "history",
    "ledger",
    "messages",
    "outputs",
    "outside",
    "pending",
    "retry",
    "source",
    "starting",
    "status",
    "switchboard",
    "turns",
}


def imported_by(path: Path) -> set[str]:
    """The top-level names of all imports of a file, those inside functions included."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
    return names


def test_the_command_line_uses_only_turnkeeper() -> None:
    """`starter.py` talks to runs as any client does (a single module is not import-linter's)."""
    assert imported_by(ROOT / "starter.py") & OURS <= {"turnkeeper"}


def test_the_pure_core_is_all_of_turnkeeper_but_its_io() -> None:
    """A new module of `turnkeeper` is in the `pure-core` contract or known to do I/O."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = settings["tool"]["importlinter"]["contracts"]
    (pure,) = [c["source_modules"] for c in contracts if c["id"] == "pure-core"]
    modules = {path.stem for path in (ROOT / "turnkeeper").glob("*.py")} - {"__init__"}
    assert modules - DOES_IO == {name.removeprefix("turnkeeper.") for name in pure}


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("workflows/planted.py", "import os"),
        ("workflows/planted.py", "import asyncio\nasyncio.as_completed([])"),
        ("workflows/planted.py", "import asyncio\nasyncio.wait([])"),
        ("turnkeeper/state.py", "import random"),
        ("turnkeeper/view.py", "from datetime import UTC, datetime\ndatetime.now(UTC)"),
    ],
)
def test_impure_calls_are_banned_where_code_is_replayed(path: str, source: str) -> None:
    """The same line is refused in the workflow and the pure core, and allowed in activities."""

    def refused(name: str) -> bool:
        command = [sys.executable, "-m", "ruff", "check", "--select=TID251", "--stdin-filename"]
        done = subprocess.run(
            [*command, name, "-"],
            cwd=ROOT,
            input=source,
            check=False,
            capture_output=True,
            text=True,
        )
        return "TID251" in done.stdout

    assert refused(path)
    assert not refused("activities/planted.py")
    assert not refused("turnkeeper/testing/planted.py")
