"""What Temporal's runtime tells: its log in ours, its metrics to Prometheus."""

from __future__ import annotations

import logging

from temporalio.runtime import (
    LogForwardingConfig,
    LoggingConfig,
    PrometheusConfig,
    Runtime,
    TelemetryConfig,
    TelemetryFilter,
)

_MAX_FIELDS = 1_000


def configure(metrics: str | None) -> None:
    """For the whole process, before it connects; `metrics` is where to serve them, HOST:PORT.

    Raises:
        ValueError: they cannot be served there.
    """
    core = logging.getLogger("temporalio.core")
    core.addFilter(_fields)
    forwarding = LogForwardingConfig(
        logger=core,
        append_target_to_name=False,
        prepend_target_on_message=False,
        append_log_fields_to_message=False,
    )
    telemetry = TelemetryConfig(
        logging=LoggingConfig(
            # Such as results that the server refuses, since they come too late.
            filter=TelemetryFilter(core_level="WARN", other_level="ERROR"),
            forwarding=forwarding,
        ),
        metrics=PrometheusConfig(bind_address=metrics) if metrics else None,
    )
    try:
        runtime = Runtime(telemetry=telemetry)
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"metrics cannot be served at {metrics!r}: {error}") from error
    Runtime.set_default(runtime, error_if_already_set=False)


def _fields(record: logging.LogRecord) -> bool:
    """The fields as one text, in place of the entry itself."""
    entry = record.__dict__.pop("temporal_log", None)
    if entry is not None:
        record.fields = str(entry.fields)[:_MAX_FIELDS]
    return True
