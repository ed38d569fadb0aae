"""A carrier that picks parcels up: a small HTTP service with a database of its own.

    python -m examples.refunds.carrier_service --port 0 --database carrier.db

prints one line of JSON, `{"url": ..., "pid": ...}`, when it listens on loopback. As many carriers,
it books whatever it is asked to: two requests under one reference are two pickups. But it can be
asked what was booked, and refuses what arrives too late, so that a client can be sure of a no.

    POST /pickups               {"reference", "order_id", "address", "expires"}: 201, the booking.
                                After `expires`, in seconds since 1970, it is 410 and nothing is
                                booked. 422 without an address
    GET  /pickups?reference=R   {"pickups": [...]}, the first one first

A booking is durable (SQLite, synchronous=FULL) before its answer is sent.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sqlite3
import sys
import threading
import time
from datetime import UTC, date, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import parse_qs, urlsplit

__all__ = ["CarrierService"]

_MAX_BODY: Final = 64_000
_IDLE_SECONDS: Final = 10
_POLL_SECONDS: Final = 0.05
"""Until it notices that it is to end."""
_SATURDAY: Final = 5


class CarrierService:
    """The service in threads of this process: `with CarrierService(file) as carrier`.

    `port` 0 takes a free one. Raises OSError if the port is taken.
    """

    def __init__(self, database: Path, *, port: int = 0) -> None:
        self._book = _Book(database)
        book = self._book

        class Handler(_Handler):
            pickups = book

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_SECONDS,), daemon=True
        )

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """For `REFUNDS_CARRIER_URL`."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._book.close()


class Refusal(Exception):
    """A request that is not carried out."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class _Book:
    """The bookings."""

    def __init__(self, database: Path) -> None:
        self._lock = threading.Lock()
        self._database = sqlite3.connect(database, isolation_level=None, check_same_thread=False)
        self._database.row_factory = sqlite3.Row
        self._database.execute("PRAGMA synchronous = FULL")
        self._database.execute(
            "CREATE TABLE IF NOT EXISTS pickups (number INTEGER PRIMARY KEY, reference TEXT NOT"
            " NULL, order_id INTEGER NOT NULL, address TEXT NOT NULL, day TEXT NOT NULL) STRICT"
        )

    def add(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Book a pickup. Raises Refusal."""
        reference, order_id = asked.get("reference"), asked.get("order_id")
        address, expires = asked.get("address"), asked.get("expires")
        if not isinstance(reference, str) or not isinstance(order_id, int):
            raise Refusal(400, "a booking has a reference and the number of an order")
        if not isinstance(address, str) or not address.strip():
            raise Refusal(422, "there is no address to pick up from")
        if not isinstance(expires, (int, float)):
            raise Refusal(400, "a request says when it expires")
        with self._lock:
            # Under the lock: a request may have waited for it.
            if time.time() > expires:
                raise Refusal(410, "this request has expired")
            row = self._database.execute(
                "INSERT INTO pickups (reference, order_id, address, day) VALUES (?, ?, ?, ?)"
                " RETURNING *",
                (reference, order_id, address, _next_working_day().isoformat()),
            ).fetchall()
        return _booking(row[0])

    def of(self, reference: str) -> list[dict[str, Any]]:
        """The bookings under a reference."""
        with self._lock:
            rows = self._database.execute(
                "SELECT * FROM pickups WHERE reference = ? ORDER BY number", (reference,)
            ).fetchall()
        return [_booking(row) for row in rows]

    def close(self) -> None:
        with self._lock:
            self._database.close()


def _booking(row: sqlite3.Row) -> dict[str, Any]:
    return {
        "pickup": f"P-{row['number']}",
        "reference": row["reference"],
        "order_id": row["order_id"],
        "day": row["day"],
    }


def _next_working_day() -> date:
    day = datetime.now(UTC).date() + timedelta(days=1)
    while day.weekday() >= _SATURDAY:
        day += timedelta(days=1)
    return day


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    pickups: _Book
    protocol_version = "HTTP/1.1"
    timeout = _IDLE_SECONDS

    def do_POST(self) -> None:
        """Book."""
        self._answer(self._post)

    def do_GET(self) -> None:
        """Tell what is booked."""
        self._answer(self._get)

    def _post(self) -> tuple[int, Any]:
        length = self.headers.get("Content-Length", "")
        if self.path != "/pickups" or not length.isdigit() or int(length) > _MAX_BODY:
            raise Refusal(400, f"POST /pickups takes JSON of at most {_MAX_BODY} bytes")
        try:
            asked = json.loads(self.rfile.read(int(length)))
        except ValueError:
            raise Refusal(400, "this is no JSON") from None
        if not isinstance(asked, dict):
            raise Refusal(400, "a booking is a JSON object")
        return 201, self.pickups.add(asked)

    def _get(self) -> tuple[int, Any]:
        where = urlsplit(self.path)
        reference = parse_qs(where.query).get("reference")
        if where.path != "/pickups" or not reference:
            raise Refusal(404, "ask for /pickups?reference=...")
        return 200, {"pickups": self.pickups.of(reference[0])}

    def _answer(self, work: Any) -> None:
        try:
            status, answer = work()
        except Refusal as refusal:
            # What was sent may not have been read.
            self.close_connection = True
            status, answer = refusal.status, {"error": str(refusal)}
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """One line for each request."""
        sys.stderr.write(f"carrier: {format % args}\n")


def main() -> None:
    """Serve until told to stop."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.refunds.carrier_service", description="The carrier's service."
    )
    parser.add_argument("--database", type=Path, required=True, help="SQLite file to keep it in")
    parser.add_argument("--port", type=int, default=0, help="on loopback; 0 takes a free one")
    parser.add_argument("--ready-file", type=Path, help="written as well, once it listens")
    options = parser.parse_args()
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    with CarrierService(options.database, port=options.port) as carrier:
        ready = json.dumps({"url": carrier.url, "pid": os.getpid()})
        if options.ready_file is not None:
            fresh = options.ready_file.with_suffix(".new")
            fresh.write_text(ready)
            # Whoever waits for the file never sees half of it.
            fresh.replace(options.ready_file)
        sys.stdout.write(ready + "\n")
        sys.stdout.flush()
        stopping.wait()


if __name__ == "__main__":
    main()
