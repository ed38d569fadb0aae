"""The effect ledger: an oracle that counts what really happened to the world.

A test agent's tool changes the world by a request to the ledger. Tests kill the worker, the server
and the connections between, never the ledger: what it has written is what has happened.

    with EffectLedger(tmp_path / "effects.db") as ledger:
        receipt = Effects(ledger.url).keyed("refund", ctx.idempotency_key, {"order": 7})
        ...
        assert [row.key for row in ledger.effects()] == [...]

Or as a process of its own, which outlives the death of any other:

    python -m turnkeeper.testing.effects --database effects.db --port 0

prints one line of JSON, `{"url": ..., "pid": ...}`, when it listens. Over HTTP on loopback:

    POST /plain/NAME          applied at each arrival
    POST /keyed/NAME          with the header `Idempotency-Key`: applied once per name and key. A
                              repeat gets the first receipt, with `"repeated": true`; the same key
                              with another body is a conflict, 409
    GET  /keyed/NAME/KEY      the probe: the receipt if it has landed, 404 if it has not
    POST /probed/NAME         with the header `Idempotency-Key`, which is only noted: applied at
                              each arrival. Whoever may send it twice has to ask before
    GET  /probed/NAME/KEY     the probe of those
    GET  /arrivals            every POST, applied or not, as JSON
    GET  /effects             those that were applied
    GET  /probes              every probe
    POST /behaviour/NAME      {"behaviour": ..., "times": n}: for the next n POSTs of that name

A POST's body is JSON; 200 answers `{"receipt": text, "arrival": n, "repeated": bool}`. An arrival's
row is durable (SQLite, synchronous=FULL) before its reply is sent, whether anyone reads it or not.

How to answer is asked of one request by the header `Ledger-Behaviour`, of the next ones of a name
by `POST /behaviour/NAME`:

    delay=SECONDS             after applying, wait before replying; goes with any of the others
    fail=STATUS               do not apply; reply with this status
    apply-then-fail=STATUS    apply, and reply with this status all the same
    apply-then-hang           apply, and never reply
    apply-then-drop           apply, and close the connection without a reply
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import signal
import socket
import sqlite3
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

from turnkeeper.errors import TurnkeeperError
from turnkeeper.testing.loopback import LoopbackServer
from turnkeeper.testing.process import ChildProcess
from turnkeeper.testing.provider.__main__ import _is_running, _write_whole
from turnkeeper.testing.provider.http import (
    BadRequest,
    HttpRequest,
    read_request,
    response_head,
)

__all__ = [
    "Arrival",
    "AsyncEffects",
    "EffectConflict",
    "EffectError",
    "EffectLedger",
    "Effects",
    "Probe",
    "Receipt",
    "read_arrivals",
    "read_probes",
    "start_ledger",
]

_MAX_BODY: Final = 1 << 20
_READY_SECONDS: Final = 60.0
_PARENT_POLL_SECONDS: Final = 0.2
_LONGEST_DELAY: Final = 3600

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS arrivals (
    arrival INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    key TEXT,
    digest TEXT NOT NULL,
    body TEXT,
    time REAL NOT NULL,
    applied INTEGER NOT NULL,
    status INTEGER NOT NULL,
    receipt TEXT,
    behaviour TEXT
) STRICT;
CREATE UNIQUE INDEX IF NOT EXISTS once_per_key ON arrivals (name, key)
    WHERE kind = 'keyed' AND applied;
CREATE TABLE IF NOT EXISTS probes (
    probe INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    key TEXT NOT NULL,
    time REAL NOT NULL,
    after INTEGER NOT NULL,
    landed INTEGER NOT NULL
) STRICT;
"""

_INSERT: Final = "INSERT INTO arrivals VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"


class EffectError(TurnkeeperError):
    """Raised when the ledger answers otherwise than 200; `status` is what it answered."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class EffectConflict(EffectError):
    """Raised for a key that was used before with another body (409); nothing was applied."""


@dataclass(frozen=True)
class Receipt:
    """What the ledger answers for an effect that it has applied.

    receipt: of a keyed effect the same whenever and however often it arrives, in every ledger.
    arrival: number of the POST that applied it. repeated: it had been applied before.
    """

    receipt: str
    arrival: int
    repeated: bool


@dataclass(frozen=True)
class Arrival:
    """One POST.

    arrival: its number, from 1. kind: `plain`, `keyed` or `probed`. key: None of a plain one.
    digest: SHA-256 of the body in canonical form. body: the JSON, None if it was none. time:
    seconds since 1970. applied: whether it changed the world. status: what was to be answered.
    receipt: also of a repeat. behaviour: the fault that was asked for, or None.
    """

    arrival: int
    kind: str
    name: str
    key: str | None
    digest: str
    body: Any
    time: float
    applied: bool
    status: int
    receipt: str | None
    behaviour: str | None


@dataclass(frozen=True)
class Probe:
    """One question whether a key has landed. after: the number of POSTs that came before it."""

    probe: int
    name: str
    key: str
    time: float
    after: int
    landed: bool


# --- behaviours -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Behaviour:
    """How to answer one POST; `parse` has the grammar."""

    text: str | None = None
    delay: float = 0.0
    status: int = 200
    applies: bool = True
    ends: str = "reply"

    @classmethod
    def parse(cls, text: str) -> _Behaviour:
        """Read `delay=0.5,apply-then-drop` and the like. Raises ValueError."""
        found: dict[str, Any] = {"text": text}
        for word in filter(None, (part.strip() for part in text.split(","))):
            match word.partition("="):
                case ("delay", "=", seconds):
                    found["delay"] = float(seconds)
                case ("fail", "=", status):
                    found |= {"status": int(status), "applies": False}
                case ("apply-then-fail", "=", status):
                    found["status"] = int(status)
                case ("apply-then-hang" | "apply-then-drop", "", _):
                    found["ends"] = word.removeprefix("apply-then-")
                case _:
                    raise ValueError(f"the ledger has no behaviour {word!r}")
        behaviour = cls(**found)
        if not 0 <= behaviour.delay <= _LONGEST_DELAY or not 200 <= behaviour.status <= 599:
            raise ValueError(f"the ledger has no behaviour {text!r}")
        return behaviour


# --- the database -----------------------------------------------------------------------------


class _Book:
    """The ledger's database, written by one thread."""

    def __init__(self, path: Path) -> None:
        self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._database.execute("PRAGMA journal_mode = WAL")
        # In WAL mode a commit is synced at FULL only, and the reply follows the commit.
        self._database.execute("PRAGMA synchronous = FULL")
        self._database.executescript(_SCHEMA)

    def post(
        self, kind: str, name: str, key: str | None, raw: bytes | None, how: _Behaviour
    ) -> tuple[int, Any]:
        """Record a POST, and apply it if it is to be; status and JSON to answer with."""
        digest, body = _read(raw)
        problem = None if body is not None else "the body is not JSON of at most 1 MiB"
        if kind != "plain" and not key:
            problem = f"a {kind} effect needs the header Idempotency-Key"
        with self._transaction():
            arrival = self._last() + 1
            first = self._landed(kind, name, key) if kind == "keyed" and key else None
            if problem is None and first is not None and first.digest != digest:
                problem = "this key was used with another body"
            applied = problem is None and how.applies and first is None
            landed = _Landed(_receipt(name, key, arrival), arrival, digest) if applied else first
            status = how.status if problem is None or not how.applies else 409 if first else 400
            receipt = landed.receipt if landed is not None and status == 200 else None
            row = (kind, name, key, digest, body, time.time(), applied, status, receipt, how.text)
            self._database.execute(_INSERT, (arrival, *row))
        if landed is None or status != 200:
            return status, {"error": problem if how.applies and problem else f"told to {how.text}"}
        return 200, landed.answer(repeated=not applied)

    def probe(self, kind: str, name: str, key: str) -> tuple[int, Any]:
        """Whether an effect has landed; status and JSON to answer with."""
        with self._transaction():
            landed = self._landed(kind, name, key)
            self._database.execute(
                "INSERT INTO probes (name, key, time, after, landed) VALUES (?, ?, ?, ?, ?)",
                (name, key, time.time(), self._last(), landed is not None),
            )
        return (404, {"error": "not landed"}) if landed is None else (200, landed.answer())

    def close(self) -> None:
        self._database.close()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")

    def _last(self) -> int:
        found = self._database.execute("SELECT coalesce(max(arrival), 0) FROM arrivals")
        return int(found.fetchone()[0])

    def _landed(self, kind: str, name: str, key: str) -> _Landed | None:
        found = self._database.execute(
            "SELECT receipt, arrival, digest FROM arrivals"
            " WHERE kind = ? AND applied AND name = ? AND key = ? ORDER BY arrival",
            (kind, name, key),
        ).fetchone()
        return None if found is None else _Landed(*found)


@dataclass(frozen=True)
class _Landed:
    """The arrival that applied a key."""

    receipt: str
    arrival: int
    digest: str

    def answer(self, *, repeated: bool = True) -> dict[str, Any]:
        return {"receipt": self.receipt, "arrival": self.arrival, "repeated": repeated}


def read_arrivals(database: str | os.PathLike[str]) -> list[Arrival]:
    """Every POST in a ledger's database, in order of arrival; while it serves, or afterwards.

    Raises:
        sqlite3.Error: it is no ledger's database.
    """
    return [Arrival(**row) for row in _rows(database, "arrivals")]


def read_probes(database: str | os.PathLike[str]) -> list[Probe]:
    """Every probe in a ledger's database. Raises sqlite3.Error if it is none."""
    return [Probe(**row) for row in _rows(database, "probes")]


def _rows(database: str | os.PathLike[str], table: str) -> list[dict[str, Any]]:
    # Never made by asking: an empty ledger would look like a world in which nothing happened.
    where = f"{Path(database).absolute().as_uri()}?mode=rw"
    with contextlib.closing(sqlite3.connect(where, uri=True)) as reading:
        found = reading.execute(f"SELECT * FROM {table} ORDER BY 1")  # noqa: S608 our own names
        names = [column[0] for column in found.description]
        return [_row(dict(zip(names, values, strict=True))) for values in found]


def _row(row: dict[str, Any]) -> dict[str, Any]:
    for name in row.keys() & {"applied", "landed"}:
        row[name] = bool(row[name])
    if row.get("body") is not None:
        row["body"] = json.loads(row["body"])
    return row


def _read(raw: bytes | None) -> tuple[str, str | None]:
    """Digest and canonical text of a body; no text if it is not JSON."""
    if raw is not None:
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(raw, parse_constant=_refuse)
            text = json.dumps(value, sort_keys=True, separators=(",", ":"))
            return hashlib.sha256(text.encode()).hexdigest(), text
    return hashlib.sha256(raw or b"").hexdigest(), None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _receipt(name: str, key: str | None, arrival: int) -> str:
    # By the key where there is one: a run with faults, where others arrived in between, is to get
    # the receipts of the run without.
    return f"{name}-{arrival if key is None else hashlib.sha256(key.encode()).hexdigest()[:12]}"


# --- the server -------------------------------------------------------------------------------


class EffectLedger(LoopbackServer):
    """The ledger in this process, in a thread of its own; the module's docstring has the requests.

    database: file that is made, or continued if it exists: numbers count on and keys are known.

    Raises ValueError for a host that is not loopback, OSError if the port cannot be used,
    sqlite3.Error if the database cannot.
    """

    def __init__(
        self, database: str | os.PathLike[str], *, host: str = "127.0.0.1", port: int = 0
    ) -> None:
        super().__init__(host, port)
        self.database = Path(database)
        self._book = _Book(self.database)
        self._planned: dict[str, deque[_Behaviour]] = {}

    def arrivals(self) -> list[Arrival]:
        """Every POST so far, in order of arrival."""
        return read_arrivals(self.database)

    def effects(self) -> list[Arrival]:
        """The arrivals that were applied."""
        return [row for row in self.arrivals() if row.applied]

    def probes(self) -> list[Probe]:
        """Every probe so far."""
        return read_probes(self.database)

    def behave(self, name: str, behaviour: str, times: int = 1) -> None:
        """Answer the next `times` POSTs of a name like this, after those asked for before.

        Raises:
            ValueError: there is no such behaviour.
            RuntimeError: the ledger does not run.
        """
        self._in_loop(self._plan(name, behaviour, times))

    def stop(self) -> None:
        """End all connections, and close the database."""
        super().stop()
        self._book.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._exchange(reader, writer):
                pass
        except BadRequest as error:
            _send(writer, 400, {"error": str(error)}, keep_alive=False)
            await writer.drain()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Serve one request; whether the connection can be used for another."""
        request = await read_request(reader, writer, _MAX_BODY)
        if request is None:
            return False
        how = _Behaviour()
        try:
            how = self._behaviour(request)
            status, answer = await self._answer(request, how)
        except ValueError as error:
            status, answer = 400, {"error": str(error)}
        except sqlite3.Error as error:
            # Nothing was recorded, so nothing may be claimed.
            status, answer = 500, {"error": str(error)}
        await asyncio.sleep(how.delay)
        if how.ends == "drop":
            return False
        if how.ends == "hang":
            while not reader.at_eof():
                await reader.read(_MAX_BODY)
            return False
        _send(writer, status, answer, keep_alive=request.keep_alive)
        await writer.drain()
        return request.keep_alive

    def _behaviour(self, request: HttpRequest) -> _Behaviour:
        match _parts(request.path):
            case ["plain" | "keyed" | "probed", name] if request.method == "POST":
                asked = request.headers.get("ledger-behaviour")
                if asked is not None:
                    return _Behaviour.parse(asked)
                if self._planned.get(name):
                    return self._planned[name].popleft()
        return _Behaviour()

    async def _answer(self, request: HttpRequest, how: _Behaviour) -> tuple[int, Any]:
        match (request.method, *_parts(request.path)):
            case ("POST", "plain", name):
                return self._book.post("plain", name, None, request.body, how)
            case ("POST", "keyed" | "probed" as kind, name):
                key = request.headers.get("idempotency-key")
                return self._book.post(kind, name, key, request.body, how)
            case ("POST", "behaviour", name):
                match json.loads(request.body or b"null"):
                    case {"behaviour": str(behaviour), "times": int(times)}:
                        await self._plan(name, behaviour, times)
                        return 200, None
                raise ValueError('{"behaviour": text, "times": n} is required')
            case ("GET", "keyed" | "probed" as kind, name, key):
                return self._book.probe(kind, name, key)
            case ("GET", "arrivals" | "probes" as table):
                return 200, _rows(self.database, table)
            case ("GET", "effects"):
                return 200, [row for row in _rows(self.database, "arrivals") if row["applied"]]
        return 404, {"error": f"the ledger has no {request.method} {request.path}"}

    async def _plan(self, name: str, behaviour: str, times: int) -> None:
        planned = [_Behaviour.parse(behaviour)] * times
        self._planned.setdefault(name, deque()).extend(planned)


def _parts(path: str) -> list[str]:
    return [unquote(part) for part in path.split("/")[1:]]


def _send(writer: asyncio.StreamWriter, status: int, answer: Any, *, keep_alive: bool) -> None:
    data = json.dumps(answer).encode()
    headers = {"content-type": "application/json", "content-length": str(len(data))}
    if not keep_alive:
        headers["connection"] = "close"
    writer.write(response_head(status, headers) + data)


# --- the clients ------------------------------------------------------------------------------


class _Requests:
    """What both clients send, and how they read the answers."""

    def __init__(self, url: str, timeout: float = 10) -> None:
        where = urlsplit(url)
        if where.hostname is None or where.port is None:
            raise ValueError(f"the ledger's URL is http://HOST:PORT, not {url!r}")
        self._host, self._port = where.hostname, where.port
        self._timeout = timeout

    def _request(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> bytes:
        data = json.dumps(body).encode() if method == "POST" else b""
        # One connection per request: its end is the end of the reply, and no connection that
        # died in between is ever used.
        lines = [f"{method} {path} HTTP/1.1", f"host: {self._host}", "connection: close"]
        own = {"content-type": "application/json", "content-length": str(len(data))}
        lines += [f"{name}: {value}" for name, value in {**own, **(headers or {})}.items()]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + data

    def _plain(self, name: str, body: Any, behaviour: str | None) -> bytes:
        return self._request("POST", f"/plain/{quote(name, safe='')}", body, _asking(behaviour))

    def _under_key(self, kind: str, name: str, key: str, body: Any, behaviour: str | None) -> bytes:
        if not key.isascii() or not key.isprintable():
            raise ValueError(f"a key is printable ASCII, not {key!r}")
        headers = {"idempotency-key": key, **_asking(behaviour)}
        return self._request("POST", f"/{kind}/{quote(name, safe='')}", body, headers)

    def _probe(self, kind: str, name: str, key: str) -> bytes:
        return self._request("GET", f"/{kind}/{quote(name, safe='')}/{quote(key, safe='')}")


class Effects(_Requests):
    """A client for tools and tests. It never retries: that is what is being tested.

    timeout: seconds for one whole request, its connection included.

    Every method raises TimeoutError if the ledger does not answer in time, ConnectionRefusedError
    if nothing was sent, another ConnectionError if the connection ended before the whole answer:
    after any but the second the effect may have been applied. EffectError, EffectConflict for
    what the ledger refuses.
    """

    def plain(self, name: str, body: Any, *, behaviour: str | None = None) -> Receipt:
        """Apply an effect; each call is one more."""
        return Receipt(**_answered(self._send(self._plain(name, body, behaviour))))

    def keyed(self, name: str, key: str, body: Any, *, behaviour: str | None = None) -> Receipt:
        """Apply an effect once per name and key."""
        request = self._under_key("keyed", name, key, body, behaviour)
        return Receipt(**_answered(self._send(request)))

    def probed(self, name: str, key: str, body: Any, *, behaviour: str | None = None) -> Receipt:
        """Apply an effect, each time anew; by its key it can be asked whether it has landed."""
        request = self._under_key("probed", name, key, body, behaviour)
        return Receipt(**_answered(self._send(request)))

    def probe(self, name: str, key: str) -> Receipt | None:
        """The receipt of a keyed effect that has landed, None if it has not."""
        return _found(self._send(self._probe("keyed", name, key)))

    def landed(self, name: str, key: str) -> Receipt | None:
        """The same of a probed effect."""
        return _found(self._send(self._probe("probed", name, key)))

    def rows(self) -> list[Arrival]:
        """Every POST so far, in order of arrival."""
        return [Arrival(**row) for row in _answered(self._send(self._request("GET", "/arrivals")))]

    def probes(self) -> list[Probe]:
        """Every probe so far."""
        return [Probe(**row) for row in _answered(self._send(self._request("GET", "/probes")))]

    def behave(self, name: str, behaviour: str, times: int = 1) -> None:
        """Have the next `times` POSTs of a name answered like this. Raises EffectError (400)."""
        asked = {"behaviour": behaviour, "times": times}
        path = f"/behaviour/{quote(name, safe='')}"
        _answered(self._send(self._request("POST", path, asked)))

    def _send(self, request: bytes) -> tuple[int, Any]:
        deadline = time.monotonic() + self._timeout
        with socket.create_connection((self._host, self._port), self._timeout) as connection:
            connection.sendall(request)
            return self._reply(request, connection, deadline)

    def _reply(self, request: bytes, connection: socket.socket, deadline: float) -> tuple[int, Any]:
        """Read the answer to what was just sent."""
        reply = bytearray()
        while True:
            # A server that sends a byte now and then must not keep us for ever.
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"the ledger did not answer {_first_line(request)} in time")
            connection.settimeout(left)
            piece = connection.recv(1 << 16)
            if not piece:
                return _parse(request, bytes(reply))
            reply += piece


class AsyncEffects(_Requests):
    """`Effects` for coroutines: a cancelled call closes its connection."""

    async def plain(self, name: str, body: Any, *, behaviour: str | None = None) -> Receipt:
        """Apply an effect; each call is one more."""
        return Receipt(**_answered(await self._send(self._plain(name, body, behaviour))))

    async def keyed(
        self, name: str, key: str, body: Any, *, behaviour: str | None = None
    ) -> Receipt:
        """Apply an effect once per name and key."""
        request = self._under_key("keyed", name, key, body, behaviour)
        return Receipt(**_answered(await self._send(request)))

    async def probed(
        self, name: str, key: str, body: Any, *, behaviour: str | None = None
    ) -> Receipt:
        """Apply an effect, each time anew; by its key it can be asked whether it has landed."""
        request = self._under_key("probed", name, key, body, behaviour)
        return Receipt(**_answered(await self._send(request)))

    async def probe(self, name: str, key: str) -> Receipt | None:
        """The receipt of a keyed effect that has landed, None if it has not."""
        return _found(await self._send(self._probe("keyed", name, key)))

    async def landed(self, name: str, key: str) -> Receipt | None:
        """The same of a probed effect."""
        return _found(await self._send(self._probe("probed", name, key)))

    async def rows(self) -> list[Arrival]:
        """Every POST so far, in order of arrival."""
        answer = await self._send(self._request("GET", "/arrivals"))
        return [Arrival(**row) for row in _answered(answer)]

    async def _send(self, request: bytes) -> tuple[int, Any]:
        async with asyncio.timeout(self._timeout):
            reader, writer = await asyncio.open_connection(self._host, self._port)
            try:
                writer.write(request)
                await writer.drain()
                return await self._reply(request, reader)
            finally:
                writer.close()

    async def _reply(self, request: bytes, reader: asyncio.StreamReader) -> tuple[int, Any]:
        """Read the answer to what was just sent."""
        return _parse(request, await reader.read())


def _first_line(request: bytes) -> str:
    return request.split(b" HTTP/", 1)[0].decode("latin-1")


def _asking(behaviour: str | None) -> dict[str, str]:
    return {} if behaviour is None else {"ledger-behaviour": behaviour}


def _parse(request: bytes, reply: bytes) -> tuple[int, Any]:
    head, end, body = reply.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").lower().split("\r\n")
    length = next((int(x[15:]) for x in lines if x.startswith("content-length:")), None)
    if not end or length != len(body):
        raise ConnectionResetError(
            f"the connection ended before {_first_line(request)} was answered"
        )
    return int(lines[0].split(" ")[1]), json.loads(body)


def _answered(answer: tuple[int, Any]) -> Any:
    status, value = answer
    if status != 200:
        raise (EffectConflict if status == 409 else EffectError)(status, value["error"])
    return value


def _found(answer: tuple[int, Any]) -> Receipt | None:
    return None if answer[0] == 404 else Receipt(**_answered(answer))


# --- the process ------------------------------------------------------------------------------


def start_ledger(folder: Path, *, database: Path | None = None) -> tuple[ChildProcess, str]:
    """Start the ledger as a process, and wait until it listens; the process and its URL.

    `folder` gets `effects.db` (unless `database` is another file), `ledger.log`, `ledger.ready`.
    It ends with this process, or by `end()`.

    Raises:
        ProcessError: it does not start; the message has its log.
    """
    command = [sys.executable, "-m", "turnkeeper.testing.effects", "--port", "0"]
    child = ChildProcess.start(
        "ledger",
        [*command, "--database", str(database or folder / "effects.db")],
        folder=folder,
        cwd=Path.cwd(),
        environment=os.environ,
    )
    return child, str(json.loads(child.wait_ready(_READY_SECONDS))["url"])


def main() -> None:
    """Serve until told to stop."""
    options = _parser().parse_args()
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    with EffectLedger(options.database, host=options.host, port=options.port) as ledger:
        ready = json.dumps({"url": ledger.url, "pid": os.getpid()})
        if options.ready_file is not None:
            _write_whole(options.ready_file, ready)
        sys.stdout.write(ready + "\n")
        sys.stdout.flush()
        while not stopping.wait(_PARENT_POLL_SECONDS):
            if options.parent_pid is not None and not _is_running(options.parent_pid):
                break


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m turnkeeper.testing.effects",
        description="The effect ledger: counts what tools do to the world, durably.",
    )
    parser.add_argument("--database", required=True, type=Path, help="SQLite file to keep it in")
    parser.add_argument("--host", default="127.0.0.1", help="a loopback address")
    parser.add_argument("--port", type=int, default=0, help="0 (default) takes a free one")
    parser.add_argument("--ready-file", type=Path, help="file to write the ready line to")
    parser.add_argument("--parent-pid", type=int, help="end when this process is gone")
    return parser


if __name__ == "__main__":
    main()
