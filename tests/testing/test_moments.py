"""Which moments a run without kills leads to, and when it is no measure for them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.testing.test_checker import arrival
from turnkeeper.contract import ExecuteInput, ExecuteOutput
from turnkeeper.entries import admit
from turnkeeper.spec import Effect
from turnkeeper.testing import findings
from turnkeeper.testing.checker import NEVER_APPLIED, Observed, Violation
from turnkeeper.testing.crash_points import UnknownPoint
from turnkeeper.testing.crash_rig import Case
from turnkeeper.testing.moments import Moment, chosen, way_to
from turnkeeper.testing.recorded import RecordedCall, RecordedRun

REFUND = Moment("tool.done", 1)


def call(tool: str, effect: Effect, status: str = "ok", text: str = "fine") -> RecordedCall:
    """A call that came to its end."""
    entry = admit("result", {"call_id": tool, "tool": tool, "text": text})
    return RecordedCall(
        0.0,
        attempt=1,
        end="completed",
        input=ExecuteInput(
            agent="tester",
            tool=tool,
            effect=effect,
            attempts=3,
            turn=1,
            index=0,
            call_id=tool,
            arguments={},
            arguments_digest="",
            key=f"key-of-{tool}",
            result_bytes=1_000,
        ),
        output=ExecuteOutput.model_validate({"entry": entry, "status": status}),
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a case."""
    return tmp_path


def ran(folder: Path, calls: list[RecordedCall], *passed: str) -> Case:
    """A case with these calls that passed these points."""
    lines = [
        {"name": name, "number": passed[: n + 1].count(name), "pid": 1, "time": 0, "killed": False}
        for n, name in enumerate(passed)
    ]
    if lines:
        (folder / "passings.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    seen = Observed(run=RecordedRun("run", calls=calls), entries=[])
    return Case(crash_at="", folder=folder, seen=seen, kills=[], reached=True)


def test_a_point_that_the_run_passes_is_met_there(folder: Path) -> None:
    """First and second call: the passing of that number."""
    calls = [call("refund", "idempotent"), call("refund", "idempotent")]
    control = ran(folder, calls, "tool.done", "tool.done")
    assert way_to(Moment("tool.done", 1), control) == "tool.done:1"
    assert way_to(Moment("tool.done", 2), control) == "tool.done:2"
    assert way_to(Moment("artifact.before", 1), control) is None


def test_of_one_call_the_second_passing_is_that_of_the_second_attempt(folder: Path) -> None:
    """It follows a kill at the first one, where the tool is run again at all."""
    again = ran(folder, [call("refund", "idempotent")], "tool.done")
    assert way_to(Moment("tool.done", 2), again) == "tool.done:1,tool.done:2"
    assert way_to(Moment("tool.done", 3), again) is None
    once = ran(folder, [call("mail", "once")], "tool.done")
    assert way_to(Moment("tool.done", 2), once) is None


def test_a_probe_is_asked_once_the_call_is_lost(folder: Path) -> None:
    """The kill that leads there is that of the reconcilable call, not of another one."""
    calls = [call("look", "read"), call("refund", "idempotent"), call("book", "reconcilable")]
    control = ran(folder, calls, "tool.done", "tool.done")
    assert way_to(Moment("probe.before", 1), control) == "tool.done:2,probe.before:1"
    two = "tool.done:2,probe.before:1,probe.before:2"
    assert way_to(Moment("probe.before", 2), control) == two
    without = ran(folder, calls[:2], "tool.done")
    assert way_to(Moment("probe.before", 1), without) is None


def test_points_are_chosen_by_name_or_passing() -> None:
    """A name alone is the first and second passing; nothing is all that a tool call meets."""
    assert chosen("tool.done, effect.sent:3") == [
        Moment("tool.done", 1),
        Moment("tool.done", 2),
        Moment("effect.sent", 3),
    ]
    usual = {m.point for m in chosen()}
    assert {"tool.done", "probe.before", "ledger.committed", "artifact.stored"} <= usual
    assert "model.half" not in usual


@pytest.mark.parametrize("names", ["tool.dnoe", "tool.done:0", "tool.done:x"])
def test_what_no_worker_would_pass_is_refused(names: str) -> None:
    """Nobody waits for a kill that never comes."""
    with pytest.raises(UnknownPoint):
        chosen(names)


@pytest.mark.parametrize(
    ("calls", "passed", "problem"),
    [
        ([call("look", "read")], [], "never has refund called (tools called: look;"),
        ([call("refund", "read")], ["tool.done"], "refund is declared to be a read"),
        ([call("refund", "once", "error", "no bank")], ["tool.done"], "without any kill: no bank"),
        ([call("refund", "once")], [], "no crash point was passed"),
        ([call("refund", "once")], ["tool.polled"], "no crash point is ever reached"),
    ],
)
def test_a_run_that_could_show_nothing_is_no_measure(
    folder: Path, calls: list[RecordedCall], passed: list[str], problem: str
) -> None:
    """Each reason is told by its own words; a call that did its work at a point is a measure."""
    assert problem in findings.useless(ran(folder, calls, *passed), "refund", [REFUND])
    measure = ran(folder, [call("refund", "once")], "tool.done")
    assert findings.useless(measure, "refund", [REFUND]) == ""


def test_that_no_effect_was_seen_at_all_is_told(folder: Path) -> None:
    """An author's `effects` may look at another database; one that has rows does not."""
    case = ran(folder, [call("refund", "idempotent")], "tool.done")
    broken = [Violation("I1", "run", "key-of-refund", f"refund {NEVER_APPLIED}, and")]
    assert "hint      no effect of any tool was seen" in findings.report(case, broken, "refund")
    case.seen.arrivals = [arrival(1, "mail")]
    assert "hint" not in findings.report(case, broken, "refund")


def test_an_idempotent_tool_says_again_what_it_said(folder: Path) -> None:
    """A last attempt that ends in an error, where the call without kills was fine, is told."""
    control = ran(folder, [call("refund", "idempotent")])
    killed = ran(folder, [call("refund", "idempotent", "error", "done already")])
    (found,) = findings.changed(killed, control)
    assert "refund ended with status error ('done already')" in str(found)
    assert findings.changed(control, control) == []
