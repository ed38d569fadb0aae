"""The views of recent runs, kept by this worker so that a generation needs only what is new."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterator

from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from activities.redact import Redactor
from turnkeeper.artifacts import ArtifactStore
from turnkeeper.entries import Position
from turnkeeper.errors import StateLost
from turnkeeper.history import HistoryReader
from turnkeeper.spec import AgentSpec, Limits
from turnkeeper.text import one_line
from turnkeeper.view import View

DEFAULT_CACHE_BYTES = 256_000_000
_SPEC_BYTES = 64_000_000


class Views:
    """One growing view per run, bounded by bytes; what is not here is read from history."""

    def __init__(
        self, client: Client, store: ArtifactStore, *, max_bytes: int = DEFAULT_CACHE_BYTES
    ) -> None:
        self._client = client
        self._store = store
        self._max_bytes = max_bytes
        self._views: OrderedDict[str, View] = OrderedDict()
        self._bytes = 0
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
        known = self._views.get(workflow_id)
        if known is not None and known.holds(base):
            self._views.move_to_end(workflow_id)
            return known.up_to(base), "cache"
        reader = HistoryReader(self._client, self._store, workflow_id, run_id)
        return await reader.view(base, known), "history"

    def keep(self, workflow_id: str, view: View) -> None:
        """Remember a run's view for its next turn."""
        replaced = self._views.pop(workflow_id, None)
        self._views[workflow_id] = view
        self._bytes += view.bytes - (replaced.bytes if replaced else 0)
        while len(self._views) > 1 and self._bytes > self._max_bytes:
            self._bytes -= self._views.popitem(last=False)[1].bytes

    async def spec(self, workflow_id: str, run_id: str, digest: str) -> AgentSpec:
        """What the run's requests are made of: its pinned spec, but without its limits.

        All runs with the same digest share it, and their limits may differ.

        Raises:
            StateLost: it cannot be found again.
        """
        if (known := self._specs.get(digest)) is not None:
            self._specs.move_to_end(digest)
            return known[0]
        reader = HistoryReader(self._client, self._store, workflow_id, run_id)
        spec = (await reader.spec()).model_copy(update={"limits": Limits()})
        if digest not in self._specs:
            # Others may have read it meanwhile, and are counted.
            size = len(spec.model_dump_json())
            self._specs[digest] = spec, size
            self._spec_bytes += size
        while len(self._specs) > 1 and self._spec_bytes > _SPEC_BYTES:
            self._spec_bytes -= self._specs.popitem(last=False)[1][1]
        return spec


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
        raise ApplicationError(message, type="store_unavailable") from None
