"""A throw-away PostgreSQL server: data in a temporary folder, nothing left behind.

Its binaries come with the system (`apt-get install postgresql`); where there are none, the tests
that need them are skipped by name.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

# The kernel closes the tests' end of its input whatever ends them, SIGKILL included. SIGINT is
# PostgreSQL's "fast" stop: open connections are closed.
_WATCHDOG = """
read -r _
kill -INT "$1"
while kill -0 "$1" 2>/dev/null; do sleep 0.1; done
rm -rf "$2"
"""
_FAST = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")


def find_postgres() -> Path | None:
    """The folder of `initdb` and `postgres`, the newest where there are several."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: -int(p.parts[-2]))
    found = shutil.which("postgres")
    for folder in [*debian, *([Path(found).resolve().parent] if found else [])]:
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    return None


class Postgres:
    """A running server; any program on this machine may connect as `app`."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._names = (f"test{n}" for n in count(1))

    def new_database(self) -> str:
        """Make an empty database; its address without the scheme."""
        name = next(self._names)
        self.run(f"CREATE DATABASE {name}")
        return f"app@127.0.0.1:{self.port}/{name}"

    def run(self, statement: str) -> None:
        """Run one statement as the superuser."""
        import psycopg

        address = f"postgresql://app@127.0.0.1:{self.port}/postgres"
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute(statement.encode())


@contextlib.contextmanager
def running_postgres() -> Iterator[Postgres]:
    """Start a server and stop it at the end; skips the test where there are no binaries."""
    found = find_postgres()
    if found is None:
        pytest.skip("no PostgreSQL server here: apt-get install postgresql")
    binaries = str(found)
    # Not pytest's folder: another user than root may not enter it, and a socket's path is short.
    folder = Path(tempfile.mkdtemp(prefix="postgres-"))
    as_user: dict[str, Any] = {"cwd": folder, "env": {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}}
    if os.geteuid() == 0:
        # PostgreSQL refuses to run as root.
        user = pwd.getpwnam("postgres")
        os.chown(folder, user.pw_uid, user.pw_gid)
        as_user |= {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    try:
        data = str(folder / "data")
        initdb = [f"{binaries}/initdb", "-D", data, "-U", "app", "-A", "trust", "--no-sync"]
        subprocess.run(initdb, check=True, stdout=subprocess.DEVNULL, **as_user)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        server = [f"{binaries}/postgres", "-D", data, "-p", str(port), "-h", "127.0.0.1"]
        options = [part for option in _FAST for part in ("-c", option)]
        with (folder / "log").open("wb") as log:
            process: subprocess.Popen[bytes] = subprocess.Popen(
                [*server, "-k", str(folder), *options],
                stdout=log,
                stderr=log,
                start_new_session=True,
                **as_user,
            )
        watchdog = subprocess.Popen(
            ["/bin/sh", "-c", _WATCHDOG, "sh", str(process.pid), str(folder)],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            _wait_until_ready(binaries, port, process, folder / "log")
            yield Postgres(port)
        finally:
            assert watchdog.stdin is not None
            watchdog.stdin.close()
            process.wait(60)
            watchdog.wait(60)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _wait_until_ready(
    binaries: str, port: int, process: subprocess.Popen[bytes], log: Path
) -> None:
    deadline = time.monotonic() + 30
    ask = [f"{binaries}/pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port)]
    while subprocess.run(ask, check=False).returncode != 0:
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"PostgreSQL does not start:\n{log.read_text()[-2_000:]}")
        time.sleep(0.05)
