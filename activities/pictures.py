"""The images of a request, read from the artifact store and kept for the next one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from activities.providers import ImageBounds, ProviderError
from turnkeeper.artifacts import ArtifactStore
from turnkeeper.entries import Entry
from turnkeeper.media import images_of

DEFAULT_CACHE_BYTES = 64_000_000


class Pictures:
    """Images by artifact id, bounded by bytes; what is not here is read from the store."""

    def __init__(self, store: ArtifactStore, *, max_bytes: int = DEFAULT_CACHE_BYTES) -> None:
        self._store = store
        self._max_bytes = max_bytes
        self._known: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0

    async def of(self, owner: str, entries: Sequence[Entry], most: ImageBounds) -> dict[str, bytes]:
        """The bytes of all images in a run's entries.

        Raises:
            ProviderError: `overflow`, of more than `most`; nothing is read then.
            StateLost: one is not in the store, or is not what was stored.
            OSError: the store cannot be read now.
        """
        refs = [ref for entry in entries for ref in images_of(entry)]
        size = sum(ref.bytes for ref in refs)
        if len(refs) > most.number or size > most.bytes:
            raise ProviderError(
                "overflow",
                "too_many_images",
                f"{len(refs)} images of {size:,} bytes; a request has at most {most.number} of "
                f"{most.bytes:,}",
            )
        return {ref.artifact: await self._read(owner, ref.artifact) for ref in refs}

    async def _read(self, owner: str, artifact: str) -> bytes:
        data = self._known.get(artifact)
        if data is None:
            data = await self._store.get(owner, artifact)
            if artifact not in self._known:
                # Another run may have read the same meanwhile.
                self._bytes += len(data)
            self._known[artifact] = data
        self._known.move_to_end(artifact)
        while len(self._known) > 1 and self._bytes > self._max_bytes:
            self._bytes -= len(self._known.popitem(last=False)[1])
        return data
