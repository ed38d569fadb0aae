"""The views of recent runs, kept by this worker so that a generation needs only what is new."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Iterator

from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from activities.redact import Redactor
from turnkeeper.artifacts import ArtifactStore
from turnkeeper.contract import STORE_UNAVAILABLE
from turnkeeper.entries import Position
from turnkeeper.errors import StateLost
from turnkeeper.history import HistoryReader
from turnkeeper.spec import AgentSpec, Limits
from turnkeeper.text import one_line
from turnkeeper.view import View

DEFAULT_CACHE_BYTES = 256_000_000
DEFAULT_RUNS = 1_000
COLD_READS = 8
"""Histories read at once: pages of one take some megabytes, and a worker that was started anew
needs those of all its runs."""
_SPEC_BYTES = 64_000_000


class Views:
    """One growing view per run, bounded in bytes and number; what is not here is read from history.

    max_bytes: of all views. max_runs: as many as workflows are cached, so that a run which waits
    for long leaves nothing behind.
    """

    def __init__(
        self,
        client: Client,
        store: ArtifactStore,
        *,
        max_bytes: int = DEFAULT_CACHE_BYTES,
        max_runs: int = DEFAULT_RUNS,
    ) -> None:
        self._client = client
        self._store = store
        self._max_bytes = max_bytes
        self._max_runs = max_runs
        self._cold = asyncio.Semaphore(COLD_READS)
        self._reading: dict[str, asyncio.Event] = {}
        """Digests of specs that are being read."""
        self._views: OrderedDict[str, tuple[View, int]] = OrderedDict()
        """With what each was counted for: an attempt that is at work on one lets it grow."""
        self._bytes = 0
        self._answered: dict[str, tuple[Position, str]] = {}
        """Of views that are kept: up to where the model last read, and the id of its reply."""
        self._specs: OrderedDict[str, tuple[AgentSpec, int]] = OrderedDict()
        self._spec_bytes = 0

    async def view(self, workflow_id: str, run_id: str, base: Position) -> tuple[View, str]:
        """The view that ends at `base`, and where it came from: `new`, `cache` or `history`.

        The view is the caller's own: another attempt may be at work on the same run.

        Raises:
            StateLost: it cannot be found again.
        """
        if base == Position():
            return View(), "new"
        known = self._kept(workflow_id)
        if known is not None and known.holds(base):
            self._views.move_to_end(workflow_id)
            return known.up_to(base), "cache"
        reader = HistoryReader(self._client, self._store, workflow_id, run_id)
        async with self._cold:
            return await reader.view(base, known), "history"

    def keep(self, workflow_id: str, view: View) -> None:
        """Remember a run's view for its next turn, unless one is kept that goes on from it."""
        known = self._kept(workflow_id)
        if known is not None and known is not view and known.holds(view.position):
            self._views.move_to_end(workflow_id)
            return
        _, counted = self._views.pop(workflow_id, (None, 0))
        self._views[workflow_id] = view, view.bytes
        self._bytes += view.bytes - counted
        while len(self._views) > 1 and (
            self._bytes > self._max_bytes or len(self._views) > self._max_runs
        ):
            dropped, (_, counted) = self._views.popitem(last=False)
            self._bytes -= counted
            self._answered.pop(dropped, None)

    def _kept(self, workflow_id: str) -> View | None:
        known = self._views.get(workflow_id)
        return known[0] if known else None

    def remember_reply(self, workflow_id: str, asked: Position, message_id: str | None) -> None:
        """Remember the provider's id of the reply to a request that ended at `asked`."""
        self._answered.pop(workflow_id, None)
        if message_id is not None and workflow_id in self._views:
            self._answered[workflow_id] = asked, message_id

    def previous_message_id(self, workflow_id: str, view: View) -> str | None:
        """The provider's id of the reply to an earlier request that `view` continues, if this
        worker has it."""
        asked, message_id = self._answered.get(workflow_id, (None, None))
        return message_id if asked is not None and view.holds(asked) else None

    async def spec(self, workflow_id: str, run_id: str, digest: str) -> AgentSpec:
        """What the run's requests are made of: its pinned spec, but without its limits.

        All runs with the same digest share it, and their limits may differ.

        Raises:
            StateLost: it cannot be found again.
        """
        while (known := self._specs.get(digest)) is None:
            if (read := self._reading.get(digest)) is None:
                return await self._read_spec(workflow_id, run_id, digest)
            # By another run. Should that fail, this one reads its own history.
            await read.wait()
        self._specs.move_to_end(digest)
        return known[0]

    async def _read_spec(self, workflow_id: str, run_id: str, digest: str) -> AgentSpec:
        reader = HistoryReader(self._client, self._store, workflow_id, run_id)
        read = self._reading[digest] = asyncio.Event()
        try:
            async with self._cold:
                spec = (await reader.spec()).model_copy(update={"limits": Limits()})
        finally:
            del self._reading[digest]
            read.set()
        self._specs[digest] = spec, len(spec.model_dump_json())
        self._spec_bytes += self._specs[digest][1]
        while len(self._specs) > 1 and self._spec_bytes > _SPEC_BYTES:
            self._spec_bytes -= self._specs.popitem(last=False)[1][1]
        return spec


async def read(
    views: Views, redactor: Redactor, spec_digest: str, base: Position
) -> tuple[AgentSpec, View, str]:
    """The spec and view of the run that this activity belongs to, and where the view came from.

    Raises:
        ApplicationError: as `as_failures` has it.
    """
    info = activity.info()
    workflow_id, run_id = str(info.workflow_id), str(info.workflow_run_id)
    with as_failures(redactor):
        spec = await views.spec(workflow_id, run_id, spec_digest)
        view, source = await views.view(workflow_id, run_id, base)
    # Kept before anything is done with it: a long way back is gone only once.
    views.keep(workflow_id, view)
    return spec, view, source


@contextlib.contextmanager
def as_failures(redactor: Redactor) -> Iterator[None]:
    """Lets what goes wrong with what was said fail an activity in the words that the loop knows.

    Raises:
        ApplicationError: of type `state_lost`, or `store_unavailable` to be tried again.
    """
    try:
        yield
    except StateLost as error:
        raise ApplicationError(str(error), type="state_lost", non_retryable=True) from None
    except (OSError, RPCError) as error:
        message = one_line(redactor.error(f"what was said cannot be reached: {error}"), 600)
        raise ApplicationError(message, type=STORE_UNAVAILABLE) from None
