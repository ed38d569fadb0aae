"""The log of requests: what the provider was asked, durably, before it answers.

Two JSON lines per request. The first, `"event": "request"`, is on disk (fsync) before the reply's
first byte; the second, `"event": "reply"`, follows when the reply was handed over completely or
its end is known. A request line without a reply line is one whose provider died in between. The
credentials of a request never get here: headers are not logged.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from turnkeeper.testing.provider.emitted import Fact
from turnkeeper.testing.provider.replies import Json


@dataclass
class Record:
    """One request and what became of it.

    arrival: its number, from 1. time: seconds since 1970, when it arrived. digest: SHA-256 of the
    body, without its `diagnostics`. turn, repeat, model, stream, messages (how many), tokens
    (estimated input), metadata, prompt (head of the first user text): of the body, None if it could
    not be read. cache_read, cache_written: of these tokens, None if there was no message.
    status: HTTP status answered. rule: the rule it broke, or None. problem: the error message, if
    the provider itself refused it. step: kind of the script's reply. body: the request, with
    `log_bodies=True`. emitted: what the provider must remember of its reply.
    sent: bytes of the reply's body handed over, None while it is being sent. outcome: None, then
    `sent`, `cut:close`, `cut:reset`, `cut:stall`, `client_gone`, or `stopped` with the provider.
    """

    arrival: int
    time: float
    method: str
    path: str
    digest: str | None = None
    request_id: str | None = None
    turn: int | None = None
    repeat: int | None = None
    model: str | None = None
    stream: bool | None = None
    messages: int | None = None
    tokens: int | None = None
    cache_read: int | None = None
    cache_written: int | None = None
    metadata: Json | None = None
    prompt: str | None = None
    status: int = 0
    rule: str | None = None
    problem: str | None = None
    step: str | None = None
    body: Any = None
    emitted: Fact | None = None
    sent: int | None = None
    outcome: str | None = None

    @property
    def asks_model(self) -> bool:
        """Whether it asked for a reply, and not for what a model is."""
        return self.method == "POST" and self.path == "/v1/messages"


_FIELDS = frozenset(field.name for field in fields(Record))
_REPLY_FIELDS = ("sent", "outcome")


class Journal:
    """Records in memory and, with a `path`, in a file to which it appends.

    A file that exists is continued: `earlier` holds what it records, for the provider to go on
    from. `fsync=False` leaves durability to the operating system: enough against a killed
    process, not against a power cut. Raises OSError if the file cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str] | None, *, fsync: bool) -> None:
        self.records: list[Record] = []
        self._fsync = fsync
        self._file: int | None = None
        self.earlier: list[Record] = []
        if path is not None:
            self.earlier = read_log(path) if Path(path).exists() else []
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            _end_torn_line(self._file)

    def request(self, record: Record) -> None:
        """Write the request line; on return it is durable."""
        self.records.append(record)
        line = {
            name: value
            for name, value in vars(record).items()
            if value is not None and name not in _REPLY_FIELDS
        }
        self._write({"event": "request", **line})
        if self._file is not None and self._fsync:
            os.fdatasync(self._file)

    def reply(self, record: Record) -> None:
        """Write the reply line."""
        ends = {name: getattr(record, name) for name in _REPLY_FIELDS}
        self._write({"event": "reply", "arrival": record.arrival, **ends})

    def _write(self, line: Json) -> None:
        if self._file is not None:
            data = json.dumps(line).encode() + b"\n"
            while data:
                data = data[os.write(self._file, data) :]

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def read_log(path: str | os.PathLike[str]) -> list[Record]:
    """The requests in a log file, in order of arrival, each with the end of its reply if that was
    written. A torn last line, left by a killed process, is passed over: nothing of a reply to it
    was sent. Raises OSError if the file cannot be read."""
    records: list[Record] = []
    by_arrival: dict[int, Record] = {}
    for line in _lines(Path(path)):
        if line.get("event") == "request":
            record = Record(**{name: line[name] for name in line.keys() & _FIELDS})
            records.append(record)
            by_arrival[record.arrival] = record
        elif line.get("arrival") in by_arrival:
            for name in _REPLY_FIELDS:
                setattr(by_arrival[line["arrival"]], name, line[name])
    return records


def _end_torn_line(file: int) -> None:
    size = os.fstat(file).st_size
    if size and os.pread(file, 1, size - 1) != b"\n":
        os.write(file, b"\n")


def _lines(path: Path) -> Iterator[Json]:
    with path.open("rb") as file:
        for line in file:
            try:
                yield json.loads(line)
            except ValueError:
                continue
