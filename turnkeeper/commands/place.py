"""Where commands work: the checkout, its state folder, the server; and how they end."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from turnkeeper.commands.terminal import quiet_sdk
from turnkeeper.outcomes import OUTCOMES
from turnkeeper.suggestion import Suggestion

if TYPE_CHECKING:
    from turnkeeper.artifacts import ArtifactStore
    from turnkeeper.client import AgentClient

Option = str | tuple[str, str]
FAILED = 1
USAGE = 2


class Complaint(Exception):
    """Ends a command with a message for people and an exit code."""

    def __init__(self, message: str, code: int = FAILED) -> None:
        super().__init__(message)
        self.code = code


def exit_code(outcome: str) -> int:
    """The exit code that stands for an outcome."""
    known = OUTCOMES.get(outcome)
    return known.exit if known else FAILED


@dataclass(frozen=True)
class Place:
    """`root` is the checkout, `state` the folder of the embedded server and its data.

    `address`, `namespace` and `task_queue` are those given on the command line, if any.
    """

    root: Path
    state: Path
    address: str | None = None
    namespace: str | None = None
    task_queue: str | None = None

    def again(self, verb: str, *names: str, options: Sequence[Option] = ()) -> str:
        """As `write`, of a command of `starter.py`; names and options as in `Suggestion`."""
        return self.write(Suggestion(verb, names, tuple(options)))

    def command(self, verb: str, *names: str, options: Sequence[Option] = ()) -> str:
        """As `again`, of a command that starts the server itself, or goes to the embedded one."""
        here = dataclasses.replace(self, address=None, namespace=None)
        return here.again(verb, *names, options=options)

    def write(self, suggested: Suggestion) -> str:
        """A command for people to paste, whole and in any folder; it goes to the server that was
        named."""
        own = self.state == self.root / ".turnkeeper"
        named = {
            "--state": None if own else str(self.state),
            "--address": self.address,
            "--namespace": self.namespace,
        }
        place = [f"{name} {shlex.quote(value)}" for name, value in named.items() if value]
        program = shlex.quote(str(self.root / suggested.program))
        return " ".join([self.python, program, *place, str(suggested)])

    @property
    def python(self) -> str:
        """The Python that runs, for a shell: another one may lack what this one has."""
        return shlex.quote(str(Path(sys.executable).absolute()))

    @property
    def on_queue(self) -> list[Option]:
        """The task queue that was named, for a command that takes one."""
        return [("--task-queue", self.task_queue)] if self.task_queue else []

    def store(self, url: str | None = None) -> ArtifactStore:
        """The artifact store of `url`, else the environment's, else that of the state folder."""
        from turnkeeper.artifacts import open_store

        try:
            return open_store(self._store_url(url))
        except ValueError as error:
            raise Complaint(str(error), USAGE) from error

    def written_store(self, url: str | None = None) -> tuple[ArtifactStore, str]:
        """As `store`, of one that is there already, and its name for people.

        Raises:
            Complaint: the folder is not there.
        """
        from turnkeeper.artifacts import FolderStore

        store = self.store(url)
        if not isinstance(store, FolderStore):
            # What may be secret in a URL is not shown.
            parts = urlsplit(self._store_url(url))
            return store, f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        root = store.root.absolute()
        if not root.is_dir():
            named = "--artifacts, TURNKEEPER_ARTIFACTS, --state"
            raise Complaint(f"there is no folder {root} ({named})", USAGE)
        return store, str(root)

    def _store_url(self, url: str | None) -> str:
        return url or os.environ.get("TURNKEEPER_ARTIFACTS") or str(self.state / "artifacts")

    @contextlib.asynccontextmanager
    async def client(self, *, to_read: bool = False) -> AsyncIterator[AgentClient]:
        """As `reach`, for who does not mind how the server came to be."""
        async with self.reach(to_read=to_read) as (client, _):
            yield client

    @contextlib.asynccontextmanager
    async def reach(self, *, to_read: bool) -> AsyncIterator[tuple[AgentClient, bool]]:
        """A client for the server that is meant, and whether that was started for this command.

        That is the one that was named (on the command line, in the environment or in Temporal's own
        settings), else the embedded server of this checkout if it lives, else the default address.
        `to_read`: where no server runs, the embedded one is started for as long as it is asked.

        Raises:
            ConnectionError: it cannot be reached; the message says what to do.
        """
        from turnkeeper.testing.embedded import EmbeddedServer
        from turnkeeper.testing.stack import claim

        quiet_sdk()
        client = await self._reach(to_read=to_read)
        if client is not None:
            yield client, False
            return
        with (
            claim(self.state, _quiet),
            EmbeddedServer.start(self.state, announce=_quiet) as server,
        ):
            yield await self._embedded(server.address), True

    async def _reach(self, *, to_read: bool) -> AgentClient | None:
        """A client for a server that lives; None if the embedded one is to be started."""
        from turnkeeper.testing.stack import living_address

        named = self.address or self._configured()
        embedded = None if named else living_address(self.state)
        stored = named is None and to_read and (self.state / "temporal.db").exists()
        try:
            if embedded is not None:
                return await self._embedded(embedded)
            return None if stored else await self._connect(named)
        except ConnectionError as error:
            if stored:
                # On its way out: it holds its lock some seconds longer than its port.
                return None
            raise ConnectionError(f"{error}{self._advice(named)}") from error

    async def _embedded(self, address: str) -> AgentClient:
        from turnkeeper.testing.stack import connect

        return await connect(
            address, self.state, task_queue=self.task_queue, namespace=self.namespace
        )

    def _configured(self) -> str | None:
        from turnkeeper.connection import own_settings

        try:
            return own_settings().get("target_host")
        except ValueError as error:
            raise Complaint(str(error), USAGE) from error

    async def _connect(self, address: str | None) -> AgentClient:
        from turnkeeper.client import AgentClient
        from turnkeeper.testing.stack import own_task_queue

        client = await AgentClient.connect(address, namespace=self.namespace)
        queue = self.task_queue or own_task_queue()
        return AgentClient(client.client, task_queue=queue, store=self.store())

    def _advice(self, named: str | None) -> str:
        if named is not None:
            return "\nCheck the address (--address or TEMPORAL_ADDRESS) and that the server runs."
        return (
            f"\nStart one with `make dev` ({self.command('dev')}), or name another with --address "
            "or TEMPORAL_ADDRESS."
        )


def _quiet(line: str) -> None:
    """A port's number does not matter to a server that nobody else talks to."""
