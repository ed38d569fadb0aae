"""Following runs, whatever is in their histories."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType, WorkflowTaskFailedCause
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHistory
from temporalio.converter import DataConverter

from tests.codec import Masking
from tests.replay.record import HISTORIES
from tests.rig import Rig, RigFactory
from tests.test_context import PATIENT, WINDOW, page, reading
from turnkeeper.contract import RunResult
from turnkeeper.converter import data_converter
from turnkeeper.follow import Step, _Narrator
from turnkeeper.spec import HistoryPolicy
from turnkeeper.usage import Usage

ROOT = Path(__file__).resolve().parent.parent
MASKED = dataclasses.replace(data_converter, payload_codec=Masking())


# Not the history of the list of switches, which is no run.
NAMES = sorted(p.stem for p in HISTORIES.glob("*.json") if p.stem not in ("day", "switches"))


def recorded(name: str) -> str:
    """A history of the corpus."""
    return (HISTORIES / f"{name}.json").read_text()


async def told(exported: str, converter: DataConverter = MASKED) -> tuple[list[Step], Usage]:
    """The steps of a recorded history, and the tokens that they add up to."""
    narrator = _Narrator(converter)
    history = WorkflowHistory.from_json("recorded", json.loads(exported)["history"])
    steps = [step for event in history.events for step in await narrator.take(event)]
    return steps, narrator._usage


def texts(steps: list[Step], phase: str) -> list[str]:
    """Of the steps of a phase."""
    return [s.text for s in steps if s.phase == phase]


# --- recorded histories ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cause", "steps"),
    [
        (WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND, 0),
        (WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_NON_DETERMINISTIC_ERROR, 1),
    ],
)
async def test_a_task_that_the_server_began_anew_is_no_problem(cause: Any, steps: int) -> None:
    """Another event came meanwhile; a task that a worker failed is one."""
    event = HistoryEvent(event_type=EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED)
    event.workflow_task_failed_event_attributes.cause = cause
    told = await _Narrator(MASKED).take(event)
    assert [s.phase for s in told] == ["PROBLEM"] * steps


@pytest.mark.parametrize("name", NAMES)
async def test_every_recorded_run_can_be_followed(name: str) -> None:
    """To the end that it came to, and nothing in it is unreadable."""
    steps, _ = await told(recorded(name))
    assert not texts(steps, "PROBLEM")
    last = json.loads(recorded(name))["history"]["events"][-1]
    if "workflowExecutionContinuedAsNewEventAttributes" not in last:
        assert steps[-1].phase == "END"


async def test_a_summary_and_an_epoch_are_steps() -> None:
    """With what they brought; the tokens of summaries count, as they do in the result."""
    steps, usage = await told(recorded("summarised"))
    resumed = texts(steps, "RESUME")
    assert "a summary of earlier turns is begun" in resumed
    assert any(t.startswith("-> a summary of ") for t in resumed)
    assert "the view is too long for the model's window" in resumed
    (begins, *_) = [t for t in resumed if t.startswith("-> epoch 2 begins: ")]
    assert begins.endswith(" entries left out, a summary stands for them")
    (payload,) = (
        WorkflowHistory.from_json("recorded", json.loads(recorded("summarised"))["history"])
        .events[-1]
        .workflow_execution_completed_event_attributes.result.payloads
    )
    assert usage == RunResult.model_validate_json(payload.data).usage


async def test_why_there_is_no_summary_is_told() -> None:
    """And that earlier turns were left out without one."""
    steps, _ = await told(recorded("summarised-in-vain"))
    resumed = texts(steps, "RESUME")
    assert any(t.startswith("-> no summary: it lacks the heading") for t in resumed)
    assert any(t.startswith("-> epoch 2 begins: ") and "summary" not in t for t in resumed)


async def test_results_that_became_references_are_told() -> None:
    """By their number."""
    steps, _ = await told(recorded("referred"))
    assert any(t.endswith(" results as references") for t in texts(steps, "RESUME"))


@pytest.mark.parametrize("known", ["run.summarise", "run.shorten", "run.seal", "run.load_agent"])
async def test_an_activity_of_a_later_release_is_passed_over(known: str) -> None:
    """Whatever it was asked and answers; the other steps are told."""
    concerned = [name for name in NAMES if f'"{known}"' in recorded(name)]
    assert concerned
    for name in concerned:
        steps, _ = await told(recorded(name).replace(f'"{known}"', '"run.reflect"'))
        assert not texts(steps, "PROBLEM")
        before, _ = await told(recorded(name))
        for phase in ("PARSE", "EXECUTE", "END"):
            assert texts(steps, phase) == texts(before, phase), name


async def test_what_cannot_be_read_is_told_as_that() -> None:
    """By who has no key, or where another program wrote it: how the run went on is still told."""
    steps, _ = await told(recorded("codec"), data_converter)
    assert all(" is not readable: " in t for t in texts(steps, "PROBLEM"))
    assert texts(steps, "PROBLEM")
    assert texts(steps, "END") == ["completed"]


# --- runs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("events", [pytest.param(4_000, marks=pytest.mark.long), 120])
async def test_a_run_of_several_epochs_is_followed(rig: RigFactory, events: int) -> None:
    """While it runs and once more when it is over, also over continue-as-new: the same steps, and
    for each epoch that it began one that says so."""
    async with rig(
        reading(40),
        tools=[page],
        limits=PATIENT,
        history=HistoryPolicy(events=events),
        provider={"window": WINDOW},
    ) as r:
        run = await r.start("Read the report.")
        live = [step async for step in run.follow()]
        result = await run.result(timeout=60)
        later = [step async for step in run.follow()]
        printed = shown(r, run.id)
    assert live == later
    assert (live[-1].phase, live[-1].text) == ("END", "completed")
    begun = [t.split(":")[0] for t in texts(live, "RESUME") if t.startswith("-> epoch ")]
    assert begun == [f"-> epoch {n} begins" for n in range(2, result.epochs + 1)]
    assert result.epochs > 2
    assert any(t.startswith("-> a summary of ") for t in texts(live, "RESUME"))
    assert not texts(live, "PROBLEM")
    for epoch in begun:
        assert epoch in printed


def shown(r: Rig, run: str) -> str:
    """What `starter.py show --follow` prints of its steps."""
    address = r.client.service_client.config.target_host
    done = subprocess.run(
        [sys.executable, "starter.py", "--address", address, "show", run, "--follow"],
        cwd=ROOT,
        env=os.environ | {"COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "Read.\n"
    return done.stderr
