"""Structured logs: readable on a terminal, JSON otherwise, Temporal's own in the same form."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog
from temporalio import activity, workflow
from temporalio.exceptions import ApplicationError

from activities.redact import Redactor
from turnkeeper.contract import (
    DAY_IS_SPENT,
    NOT_DELIVERED,
    NOT_HERE,
    NOTHING_HAPPENED,
    SWITCHED_OFF,
)
from turnkeeper.text import printable, well_formed

Event = MutableMapping[str, Any]
_MAX_TEXT = 4_000
# Of a text over the bound: where it began, and its end, which is what matters of a traceback.
_HEAD = 1_000
# Types of failures that activities log in a line of their own before they raise.
_TOLD = frozenset(
    {
        DAY_IS_SPENT,
        NOT_DELIVERED,
        NOT_HERE,
        SWITCHED_OFF,
        "context_overflow",
        "model_rejected",
        "model_unavailable",
        "provider_error",
        "unknown_agent",
    }
)
_STANDARD = frozenset(vars(logging.LogRecord("", 0, "", 0, "", None, None)))


def configure(level: str, *, json: bool, redactor: Redactor) -> None:
    """Send everything that is logged in this process to standard error, in one form."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        _bind_activity,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    last: list[Any] = [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        structlog.processors.format_exc_info,
        _Clean(redactor),
        structlog.processors.JSONRenderer()
        if json
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, _extra_fields, _in_a_line], processors=last
        )
    )
    root = logging.getLogger()
    handler.addFilter(_is_news)
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # Requests to the provider are logged by run.generate, with the run's id.
    for chatty in ("httpx2", "httpcore2", "anthropic", "asyncio"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    for logger in (workflow.logger, activity.logger):
        # As fields of their own, below, instead of a dict at the end of the message.
        for place in ("workflow_info_on_message", "activity_info_on_message"):
            if hasattr(logger, place):
                setattr(logger, place, False)


def _is_news(record: logging.LogRecord) -> bool:
    """Whether a record says what no line of ours did: the SDK, too, tells of failed activities."""
    error = _meant(record)
    if error is None or _wants_all():
        return True
    if error.type == NOTHING_HAPPENED:
        return error.non_retryable
    # A tool that raised: what was logged of it is in the details. One that was cut off has none.
    return error.type not in _TOLD and not (error.type == "tool_failed" and error.details)


def _meant(record: logging.LogRecord) -> ApplicationError | None:
    """What an activity failed with, if it was raised to be told and is no bug of ours."""
    if record.msg != "Completing activity as failed":
        return None
    error = record.exc_info[1] if record.exc_info else None
    return error if isinstance(error, ApplicationError) else None


def _wants_all() -> bool:
    return logging.getLogger().isEnabledFor(logging.DEBUG)


def _in_a_line(_logger: Any, _method: str, event: Event) -> Event:
    """A failure that was meant by its words: its traceback shows where we raise, no more."""
    record = event.get("_record")
    error = _meant(record) if record is not None and not _wants_all() else None
    if error is not None:
        event.pop("exc_info", None)
        event["error"] = str(error)
    return event


def _bind_activity(_logger: Any, _method: str, event: Event) -> Event:
    """Every line of an activity names its run."""
    if activity.in_activity():
        info = activity.info()
        event.setdefault("workflow_id", info.workflow_id)
        event.setdefault("run_id", info.workflow_run_id)
    return event


def _extra_fields(_logger: Any, _method: str, event: Event) -> Event:
    """Fields that standard loggers were given as `extra`, Temporal's among them."""
    record = event.get("_record")
    for name, value in vars(record).items() if record is not None else ():
        if name in ("temporal_workflow", "temporal_activity") and isinstance(value, dict):
            event.setdefault("workflow_id", value.get("workflow_id"))
            event.setdefault("run_id", value.get("run_id") or value.get("workflow_run_id"))
        elif name not in _STANDARD and not name.startswith("_") and name != "message":
            event.setdefault(name, value)
    return event


class _Clean:
    """Texts bounded, without secrets and without what could steer a terminal."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor

    def __call__(self, _logger: Any, _method: str, event: Event) -> Event:
        return {
            name: self._text(value) if isinstance(value, str) else self._value(value)
            for name, value in event.items()
            if value is not None
        }

    def _text(self, text: str) -> str:
        text = self._redactor.error(printable(well_formed(text)))
        if len(text) <= _MAX_TEXT:
            return text
        left_out = len(text) - _MAX_TEXT
        tail = text[len(text) - (_MAX_TEXT - _HEAD) :]
        return f"{text[:_HEAD]} [… {left_out} characters left out …] {tail}"

    def _value(self, value: Any) -> Any:
        if isinstance(value, (bool, int, float)):
            return value
        if isinstance(value, dict):
            # Cleaned as one text, since a name may say that its value is secret.
            told = self._text(json.dumps(value, ensure_ascii=False, default=str))
            with contextlib.suppress(ValueError):
                return json.loads(told)
            return told
        return self._text(str(value))
