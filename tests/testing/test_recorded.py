"""A run as its histories tell it, of histories that real runs have left."""

from __future__ import annotations

from pathlib import Path

import pytest
from temporalio.client import WorkflowHistory

from turnkeeper.testing.recorded import RecordedCall, RecordedRun, load, read, save

HISTORIES = Path(__file__).resolve().parents[1] / "replay" / "histories"


def run(*names: str) -> RecordedRun:
    """A run of the corpus."""
    return read("run", load(HISTORIES / f"{name}.json" for name in names))


def test_all_executions_are_one_run() -> None:
    """Its generations count on; the end is that of the last execution."""
    told = run("continued-1", "continued-2", "continued-3")
    assert told.executions == 3
    assert [g.turn for g in told.generations] == list(range(1, len(told.generations) + 1))
    assert (told.closed, told.result and told.result.outcome) == ("completed", "completed")
    assert told.ended is not None
    assert all(g.scheduled < (g.ended or 0) <= told.ended for g in told.generations)


def test_a_call_has_its_input_and_its_end() -> None:
    """A result; or the type of the failure, and whether it was given up."""
    call = run("tools").calls[0]
    assert call.end == "completed"
    assert call.output is not None
    assert call.output.entry.value["call_id"] == call.input.call_id
    unknown = run("once-unknown").calls[0]
    assert (unknown.input.effect, unknown.output, unknown.mutates) == ("once", None, True)
    assert (unknown.end, unknown.failure) == ("timed_out", None)
    (failed,) = [c for c in run("reconciled").calls if c.end == "failed"]
    assert (failed.failure, failed.attempt, failed.before_timed_out) == ("RetryTool", 4, False)


def test_an_attempt_that_was_given_up_is_told_apart() -> None:
    """The next one's start says how it ended."""
    (history,) = load([HISTORIES / "reconciled.json"])
    starts = (e.activity_task_started_event_attributes for e in history.events)
    last = next(s.last_failure for s in starts if s.attempt == 4)
    last.ClearField("application_failure_info")
    last.timeout_failure_info.SetInParent()
    (failed,) = [c for c in read("run", [history]).calls if c.end == "failed"]
    assert failed.before_timed_out


@pytest.mark.parametrize(
    ("name", "closed", "outcome"),
    [
        ("model-rejected", "failed", "model_rejected"),
        ("cancelled", "canceled", "cancelled"),
        ("turn-limit", "completed", "turn_limit"),
    ],
)
def test_every_kind_of_end_has_its_outcome(name: str, closed: str, outcome: str) -> None:
    """Also where it is the detail of a failure, or no result at all."""
    told = run(name)
    assert (told.closed, told.result and told.result.outcome) == (closed, outcome)


def test_an_open_run_has_no_end() -> None:
    """Its history stops where it stands."""
    (history,) = load([HISTORIES / "tools.json"])
    told = read("run", [WorkflowHistory(history.workflow_id, history.events[:-1])])
    assert (told.closed, told.ended, told.result) == (None, None, None)


def test_what_is_saved_is_loaded_again(tmp_path: Path) -> None:
    """Each execution in a file of its own, by its id."""
    histories = load(HISTORIES / f"continued-{n}.json" for n in (1, 2, 3))
    save(tmp_path / "new", histories)
    files = sorted((tmp_path / "new").iterdir())
    assert len(files) == 3
    again = {h.events[0].event_time.ToNanoseconds(): h for h in load(files)}
    assert [list(h.events) for _, h in sorted(again.items())] == [list(h.events) for h in histories]


def test_an_attempt_is_lost_while_its_call_is_open() -> None:
    """To a later attempt, or to none at all; never a call that ended by itself at its first one."""
    call = run("tools").calls[0]
    assert call.ended is not None
    during = (call.scheduled + call.ended) / 2

    def lost(call: RecordedCall, time: float) -> bool:
        return call.lost_at(time)

    assert not lost(call, during)
    call.attempt = 2
    assert lost(call, during)
    assert not lost(call, call.scheduled - 1)
    assert not lost(call, call.ended)
    call.attempt, call.end = 1, "timed_out"
    assert lost(call, during)
