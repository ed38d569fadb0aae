"""What an attempt knows of those before it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from activities.attempts import Attempts, earlier_attempts


@pytest.mark.parametrize("details", ["page 7", {"begun": "often"}, [], None])
def test_details_of_another_kind_are_taken_for_the_worse(details: Any) -> None:
    """A tool may heartbeat past us, as may another release: all attempts may have taken effect."""
    environment = ActivityEnvironment()
    environment.info = dataclasses.replace(environment.info, attempt=3, heartbeat_details=[details])
    assert environment.run(earlier_attempts) == Attempts(begun=2, unsure=2)
