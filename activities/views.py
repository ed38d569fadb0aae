"""The views of recent runs, kept by this worker so that a generation needs only what is new."""

from __future__ import annotations

from collections import OrderedDict

from temporalio.client import Client

from turnkeeper.artifacts import ArtifactStore
from turnkeeper.entries import Position
from turnkeeper.history import HistoryReader
from turnkeeper.spec import AgentSpec
from turnkeeper.view import View

DEFAULT_CACHE_BYTES = 256_000_000
_MAX_SPECS = 1_000


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
        self._specs: OrderedDict[str, AgentSpec] = OrderedDict()

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
        """The pinned spec; the same for all runs of an agent until it is redeployed."""
        if digest not in self._specs:
            reader = HistoryReader(self._client, self._store, workflow_id, run_id)
            self._specs[digest] = await reader.spec(digest)
            if len(self._specs) > _MAX_SPECS:
                self._specs.popitem(last=False)
        return self._specs[digest]
