"""The benchmarks run, small, and say whether their bounds hold."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.picture import Chart, draw
from bench.report import Check, Report
from tests.conftest import ROOT

pytestmark = pytest.mark.timeout(300)


def kept(folder: Path, name: str) -> dict[str, float]:
    """The values of a report, by name."""
    told = json.loads((folder / f"{name}.json").read_text())
    assert told["holds"] is True
    return {check["name"]: check["value"] for check in told["checks"]}


@pytest.mark.long
def test_a_long_run_and_its_history_are_measured(tmp_path: Path) -> None:
    """As many turns as asked for, without a failed task; and less history than a loop that passes
    everything, the more so the longer the run."""
    command = [sys.executable, "-m", "bench.endless", "--results", str(tmp_path)]
    small = ["--only", "turns,history", "--turns", "40", "--history-turns", "15"]
    done = subprocess.run([*command, *small], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    turns = kept(tmp_path, "turns")
    assert turns["turns of the run, if it completed"] == 40
    assert turns["activities run.generate"] >= 40
    assert turns["samples of memory"] >= 2
    assert kept(tmp_path, "history")["times less"] > 3
    assert (tmp_path / "turns.svg").read_text().startswith("<svg")


def test_a_bound_that_does_not_hold_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the table and in the file."""
    report = Report("case", {"runs": 3})
    report.checks = [Check("small", 1, most=2), Check("large", 1, least=2), Check("told", 7)]
    report.show()
    report.write(tmp_path)
    assert not report.holds
    assert json.loads((tmp_path / "case.json").read_text())["holds"] is False
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in shown[1:4]] == ["ok", "FAIL", "told"]


def test_a_line_of_many_points_is_drawn_by_few(tmp_path: Path) -> None:
    """A picture of 10,000 turns stays small."""
    x = list(range(10_000))
    draw(tmp_path / "many.svg", [Chart("many", x, x, bound=5)], x_title="turn")
    assert (tmp_path / "many.svg").stat().st_size < 30_000


def test_a_chart_without_points_is_refused(tmp_path: Path) -> None:
    """By its title."""
    with pytest.raises(ValueError, match="empty: 0 x and 0 y"):
        draw(tmp_path / "none.svg", [Chart("empty", [], [])], x_title="turn")
