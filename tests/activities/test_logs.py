"""The log: bounded, without what could steer a terminal, and nothing told twice."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import structlog
from temporalio.exceptions import ApplicationError

from activities import logs
from activities.redact import Redactor

Told = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def told() -> Iterator[Told]:
    """What a worker that is not on a terminal has logged; as before afterwards."""
    root = logging.getLogger()
    before, handlers, level = structlog.get_config(), root.handlers[:], root.level
    logs.configure("info", json=True, redactor=Redactor.from_environment())
    structlog.configure(cache_logger_on_first_use=False)
    (handler,) = root.handlers
    assert isinstance(handler, logging.StreamHandler)
    written = io.StringIO()
    handler.setStream(written)
    yield lambda: [json.loads(line) for line in written.getvalue().splitlines()]
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.configure(**before)


def test_a_long_text_keeps_its_head_and_its_tail(told: Told) -> None:
    """The end of a traceback is what matters; what was left out is counted."""
    logging.getLogger("x").warning("Traceback %s ValueError: the reason", "frame " * 5_000)
    message = str(told()[0]["event"])
    assert message.startswith("Traceback frame")
    assert message.endswith("ValueError: the reason")
    assert "characters left out" in message
    assert len(message) < 4_100


@pytest.mark.parametrize(
    ("error", "lines"),
    [
        (ApplicationError("busy", type="provider_error"), 0),
        (ApplicationError("Tool t failed", "a traceback", type="tool_failed"), 0),
        (ApplicationError("Tool t was interrupted", type="tool_failed"), 1),
        (ApplicationError("again", type="RetryTool"), 0),
        (ApplicationError("Tool t failed", type="RetryTool", non_retryable=True), 1),
        (ApplicationError("nobody", type="unknown_agent"), 0),
        (ValueError("a bug"), 1),
    ],
)
def test_a_failure_is_told_once(told: Told, error: Exception, lines: int) -> None:
    """The SDK's line is left out where a line of ours told the same before."""
    try:
        raise error
    except Exception:
        logging.getLogger("temporalio.activity").warning(
            "Completing activity as failed", exc_info=True
        )
    assert len(told()) == lines


@pytest.mark.parametrize(("level", "whole"), [("info", False), ("debug", True)])
def test_a_failure_that_was_meant_is_told_without_a_traceback(
    told: Told, level: str, whole: bool
) -> None:
    """It would only show where we raise it. At `debug` there is all that the SDK says."""
    logging.getLogger().setLevel(level.upper())
    for kind in ("tool_failed", "provider_error"):
        try:
            raise ApplicationError("cut off", type=kind)
        except ApplicationError:
            logging.getLogger("temporalio.activity").warning(
                "Completing activity as failed", exc_info=True
            )
    lines = told()
    assert ["Traceback" in str(line.get("exception")) for line in lines] == [whole] * len(lines)
    assert len(lines) == (2 if whole else 1)
    assert "tool_failed: cut off" in str(lines[0])


def test_a_bug_is_told_with_its_traceback(told: Told) -> None:
    """What no activity of ours raised to be told."""
    try:
        raise ValueError("a bug")
    except ValueError:
        logging.getLogger("temporalio.activity").warning(
            "Completing activity as failed", exc_info=True
        )
    (line,) = told()
    assert "Traceback" in str(line["exception"])


def test_a_field_with_fields_of_its_own_is_json(told: Told) -> None:
    """Not a text in another notation; cleaned and cut as any other."""
    log = structlog.get_logger("x")
    log.info("agents", agents={"a": "read, say \u202e", "n": 1}, long={"a": "x" * 9_000})
    (line,) = told()
    assert line["agents"] == {"a": "read, say \ufffd", "n": 1}
    assert "characters left out" in str(line["long"])
