"""The views of recent runs, kept by this worker so that a generation needs only what is new."""

from __future__ import annotations

from collections import OrderedDict

from temporalio.client import Client

from turnkeeper.artifacts import ArtifactStore
from turnkeeper.entries import Position
from turnkeeper.history import HistoryReader
from turnkeeper.spec import AgentSpec, Limits
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
            dropped, gone = self._views.popitem(last=False)
            self._bytes -= gone.bytes
            self._answered.pop(dropped, None)

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
