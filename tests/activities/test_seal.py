"""Sealing while the artifact store is at fault."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from temporalio.exceptions import ActivityError, ApplicationError, RetryState
from temporalio.testing import ActivityEnvironment

from activities.redact import Redactor
from activities.seal import Seal
from activities.views import Views
from turnkeeper.artifacts import FolderStore
from turnkeeper.contract import SealInput
from turnkeeper.entries import Position, message
from turnkeeper.view import View
from workflows import failures

SECRET = "hunter2-hunter2"
URL = f"https://bucket.example/?X-Amz-Credential={SECRET}"
SAID = View([message("a"), message("b")])


class Broken(FolderStore):
    """A store whose errors name more than they should, in their cause, too."""

    async def put(self, owner: str, data: bytes) -> str:  # noqa: ARG002
        """See ArtifactStore."""
        raise OSError(f"cannot write to {URL}") from ValueError(URL)


async def sealed(store: FolderStore, position: Position) -> ApplicationError:
    """How sealing up to there fails."""
    environment = ActivityEnvironment()
    nothing: Any = None
    views = Views(nothing, store)
    views.keep(str(environment.info.workflow_id), SAID)
    seal = Seal(views, store, Redactor([SECRET]))
    with pytest.raises(ApplicationError) as raised:
        await environment.run(seal.run, SealInput(position=position))
    return raised.value


async def test_what_a_store_says_is_redacted(tmp_path: Path) -> None:
    """History keeps an activity's error, with its cause, for ever."""
    error = await sealed(Broken(tmp_path), SAID.position)
    assert "cannot write to https://bucket.example" in error.message
    assert SECRET not in repr(error)
    assert error.__cause__ is None


async def test_a_store_that_is_down_is_tried_again_and_no_end(tmp_path: Path) -> None:
    """When its attempts are over the loop reads an outcome that it goes on from, as before."""
    error = await sealed(Broken(tmp_path), SAID.position)
    assert (error.type, error.non_retryable) == ("not_sealed", False)
    failed = ActivityError(
        "failed",
        scheduled_event_id=1,
        started_event_id=2,
        identity="",
        activity_type="run.seal",
        activity_id="1",
        retry_state=RetryState.MAXIMUM_ATTEMPTS_REACHED,
    )
    failed.__cause__ = error
    end = failures.end_of(failed, "store_unavailable")
    assert end == ("store_unavailable", error.message)


async def test_what_is_lost_is_not_tried_again(tmp_path: Path) -> None:
    """There is nothing to seal: that is an end."""
    error = await sealed(FolderStore(tmp_path), Position())
    assert (error.type, error.non_retryable) == ("state_lost", True)
