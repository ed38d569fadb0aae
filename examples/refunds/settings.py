"""Where the order database, the mail server and the carrier are: from the environment.

* `REFUNDS_HOME`: the folder of the services' data; default `.turnkeeper/refunds` of this checkout.
* `REFUNDS_DATABASE_URL`: SQLAlchemy's, such as `postgresql+psycopg://app@db/orders`; default a
  SQLite file in that folder.
* `REFUNDS_SMTP`: `host:port` of a mail server that takes mail from this machine.
* `REFUNDS_CARRIER_URL`: `http://host:port`.

The last two have as their default what `python -m examples.refunds.services` serves.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from turnkeeper import ToolFailed

__all__ = ["carrier", "database_url", "home", "smtp"]

_HOME: Final = Path(__file__).resolve().parents[2] / ".turnkeeper" / "refunds"


def home() -> Path:
    """The folder of the services' data; the same wherever a process was started."""
    return Path(os.environ.get("REFUNDS_HOME") or _HOME).absolute()


def database_url() -> str:
    """Of the order database; it may hold a password."""
    return os.environ.get("REFUNDS_DATABASE_URL") or f"sqlite:///{home() / 'orders.db'}"


def smtp() -> tuple[str, int]:
    """Host and port of the mail server.

    Raises:
        ToolFailed: the setting is not `host:port`.
    """
    given = os.environ.get("REFUNDS_SMTP") or "127.0.0.1:8025"
    return _host_and_port(f"smtp://{given}", "REFUNDS_SMTP is not host:port.")


def carrier() -> tuple[str, int]:
    """Host and port of the carrier's service.

    Raises:
        ToolFailed: the setting is not `http://host:port`.
    """
    given = os.environ.get("REFUNDS_CARRIER_URL") or "http://127.0.0.1:8026"
    return _host_and_port(given, "REFUNDS_CARRIER_URL is not http://host:port.")


def _host_and_port(url: str, problem: str) -> tuple[str, int]:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ToolFailed(problem) from None
    if parts.scheme not in ("smtp", "http") or not host or not port:
        raise ToolFailed(problem)
    return host, port
