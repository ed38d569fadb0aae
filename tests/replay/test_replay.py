"""Recorded runs replay in a cold process, and a change that is not deterministic is caught."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, replay_cold
from tests.replay.record import HISTORIES, SCENARIOS


def recorded() -> list[Path]:
    """The corpus."""
    return sorted(HISTORIES.glob("*.json"))


def test_the_corpus_is_whole_and_small() -> None:
    """Each scenario has its history; a clone of the repository does not grow by megabytes."""
    stems = {p.stem for p in recorded()}
    missing = {n for n in SCENARIOS if n not in stems and f"{n}-1" not in stems}
    assert not missing, f"record them: python -m tests.replay.record {' '.join(missing)}"
    assert sum(p.stat().st_size for p in recorded()) < 4_000_000


def test_the_corpus_replays_under_the_eyes_of_the_sandbox() -> None:
    """A worker lets the loop's modules through, for their memory: here each impure call in them
    is refused."""
    found = replay_with(ROOT, strict=True)
    assert not found["failures"]
    assert found["replayed"] == len(recorded())


@pytest.mark.long
def test_an_impure_call_is_refused_by_the_sandbox(tmp_path: Path) -> None:
    """The control: a clock in the loop fails there, and only there is it noticed."""
    tree = edited(tmp_path, "pace.py", "if self._turn:", "if self._turn and read_clock():")
    with (tree / "workflows" / "pace.py").open("a") as file:
        file.write("\n\nfrom time import time as read_clock\n")
    assert not replay_with(tree)["failures"]
    assert "Cannot access time" in str(replay_with(tree, strict=True)["failures"])


def test_the_corpus_replays() -> None:
    """What any release recorded, this one replays."""
    found = replay_cold(HISTORIES)
    assert not found["failures"]
    assert found["replayed"] == len(recorded())


# --- changes that a replay has to catch -----------------------------------------------------------


def replay_with(tree: Path, histories: Path = HISTORIES, *, strict: bool = False) -> dict[str, Any]:
    """Replay histories with the `workflows` of another tree."""
    code = (
        "import sys; from pathlib import Path;"
        f"sys.path.insert(0, {str(tree)!r});"
        "from tests import archive; import workflows;"
        f"assert workflows.__file__.startswith({str(tree)!r});"
        f"archive.main(Path({str(histories)!r}), strict={strict})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def edited(folder: Path, file: str, old: str, new: str) -> Path:
    """A copy of `workflows` in which one line is another."""
    shutil.copytree(ROOT / "workflows", folder / "workflows")
    path = folder / "workflows" / file
    source = path.read_text()
    assert source.count(old) >= 1, f"{file} has no line {old!r}: mend this test"
    path.write_text(source.replace(old, new))
    return folder


@pytest.mark.long
def test_an_untouched_copy_replays(tmp_path: Path) -> None:
    """The control: the copy itself is no failure."""
    shutil.copytree(ROOT / "workflows", tmp_path / "workflows")
    assert not replay_with(tmp_path)["failures"]


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        pytest.param(
            "agent_run.py",
            "                contract.LOAD_AGENT,",
            '                "run.load_other",',
            id="another activity",
        ),
        pytest.param(
            "agent_run.py",
            "for call in state.startable():",
            "for call in reversed(state.startable()):",
            id="another order",
        ),
        pytest.param(
            "options.py",
            '"activity_id": f"turn-{state.turn}"',
            '"activity_id": f"t-{state.turn}"',
            id="another activity id",
        ),
        pytest.param(
            "agent_run.py",
            "self.timer = asyncio.create_task(self._deadline())",
            "await workflow.sleep(1); self.timer = asyncio.create_task(self._deadline())",
            id="another timer",
        ),
    ],
)
def test_a_change_of_the_commands_is_caught(tmp_path: Path, file: str, old: str, new: str) -> None:
    """Commands in another order or of another name fail the replay of the corpus."""
    some = tmp_path / "some"
    some.mkdir()
    for name in ("tools", "parallel", "turn-limit"):
        shutil.copy(HISTORIES / f"{name}.json", some)
    found = replay_with(edited(tmp_path, file, old, new), some)
    assert found["failures"], "histories replay with other commands than they recorded"
    assert "TMPRL1100" in str(found["failures"])


# --- releases that know other fields --------------------------------------------------------------


def rewritten(source: Path, target: Path, edit: Callable[[Any], Any]) -> None:
    """The corpus with `edit` done to each JSON object that a payload of our own holds."""

    def walk(value: Any) -> Any:
        if isinstance(value, list):
            return [walk(v) for v in value]
        if not isinstance(value, dict):
            return value
        encoding = value.get("metadata", {}) if isinstance(value.get("metadata"), dict) else {}
        if "data" in value and encoding.get("encoding") == _b64(b"json/plain"):
            data = json.loads(base64.b64decode(value["data"]))
            return {**value, "data": _b64(json.dumps(edit(data)).encode())}
        return {k: walk(v) for k, v in value.items()}

    for path in source.glob("*.json"):
        history = json.loads(path.read_text())
        for event in history["history"]["events"]:
            # What the workflow reads: results of activities, and the state it continues with.
            completed = event.get("activityTaskCompletedEventAttributes")
            started = event.get("workflowExecutionStartedEventAttributes")
            if completed:
                completed["result"] = walk(completed["result"])
            if started and started.get("continuedExecutionRunId"):
                started["input"] = walk(started["input"])
        (target / path.name).write_text(json.dumps(history))


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def with_news(value: Any) -> Any:
    """A field that this release does not know, in every object of ours."""
    if isinstance(value, list):
        return [with_news(v) for v in value]
    if isinstance(value, dict):
        # The provider's and the model's own JSON is theirs: entries keep their digest.
        foreign = ("value", "arguments", "input_schema", "options", "metadata", "refused_calls")
        inner = {k: v if k in foreign else with_news(v) for k, v in value.items()}
        return {**inner, "from_the_future": {"a": [1]}}
    return value


OPTIONAL = ("timing", "usage", "stop_details", "mended", "on_invalid_call", "ceiling")
"""Fields that a release before this one may not have had; all have defaults."""


def without_some(value: Any) -> Any:
    """The object as a release wrote it that had fewer fields."""
    if isinstance(value, list):
        return [without_some(v) for v in value]
    if isinstance(value, dict):
        return {k: without_some(v) for k, v in value.items() if k not in OPTIONAL}
    return value


def test_b19_fields_of_a_later_release_are_ignored(tmp_path: Path) -> None:
    """A rollback: histories with unknown fields in every object still decode and replay."""
    rewritten(HISTORIES, tmp_path, with_news)
    found = replay_cold(tmp_path)
    assert (found["failures"], found["replayed"]) == ({}, len(recorded()))


def test_b19_fields_of_this_release_are_defaulted(tmp_path: Path) -> None:
    """An upgrade: histories that lack fields which came later still decode and replay."""
    rewritten(HISTORIES, tmp_path, without_some)
    found = replay_cold(tmp_path)
    # What these do is what such a field says.
    told = (
        "token-limit",
        "invalid-call-stops",
        "summarised",
        "referred",
        "epochs",
        "window-full",
        "summary-",
    )
    assert all(name.startswith(told) for name in found["failures"]), found


@pytest.mark.long
def test_b11_a_random_draw_before_all_others_changes_nothing(tmp_path: Path) -> None:
    """No id and no key comes from the run's random stream: one more draw, and all replays."""
    tree = edited(
        tmp_path,
        "agent_run.py",
        "            if self.state.spec is None:\n",
        "            workflow.random().random(); workflow.uuid4()\n"
        "            if self.state.spec is None:\n",
    )
    assert not replay_with(tree)["failures"]
