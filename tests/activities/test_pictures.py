"""The images of a request: read once, kept within a bound."""

from __future__ import annotations

from pathlib import Path

import pytest

from activities.pictures import Pictures
from activities.providers import ImageBounds, ProviderError
from turnkeeper.artifacts import FolderStore
from turnkeeper.entries import Entry, message, result
from turnkeeper.errors import StateLost

MANY = ImageBounds(number=9, bytes=1_000)


class CountingStore(FolderStore):
    """A folder that counts how often it is read."""

    reads = 0

    async def get(self, owner: str, artifact: str) -> bytes:
        """As a folder does."""
        self.reads += 1
        return await super().get(owner, artifact)


async def seen(store: FolderStore, *images: bytes) -> Entry:
    """A result that refers to these images of the run `w`."""
    refs = [
        {
            "artifact": await store.put("w", data),
            "media_type": "image/png",
            "width": 1,
            "height": 1,
            "bytes": len(data),
        }
        for data in images
    ]
    return result("c", "t", "told", images=refs)


async def test_an_image_is_read_once(tmp_path: Path) -> None:
    """However many requests have it; entries without images cost nothing."""
    store = CountingStore(tmp_path)
    entry = await seen(store, b"a" * 100, b"b" * 100)
    kept = Pictures(store)
    for _ in range(3):
        found = await kept.of("w", [message("Hi"), entry, entry], MANY)
        assert sorted(found.values()) == [b"a" * 100, b"b" * 100]
    assert store.reads == 2


async def test_what_is_kept_is_bounded_by_bytes(tmp_path: Path) -> None:
    """The image that was not used for longest goes first; a request has all of its own anyway."""
    store = CountingStore(tmp_path)
    entries = [await seen(store, bytes([n]) * 100) for n in range(3)]
    kept = Pictures(store, max_bytes=250)
    assert len(await kept.of("w", entries, MANY)) == 3
    await kept.of("w", entries[1:], MANY)
    assert store.reads == 3
    await kept.of("w", entries[:1], MANY)
    assert store.reads == 4


async def test_too_many_bytes_are_not_even_read(tmp_path: Path) -> None:
    """A request that would be refused for its size is none; the store is left alone."""
    store = CountingStore(tmp_path)
    entries = [await seen(store, b"a" * 100), await seen(store, b"b" * 100)]
    with pytest.raises(ProviderError, match="2 images of 200 bytes") as refused:
        await Pictures(store).of("w", entries, ImageBounds(number=9, bytes=150))
    assert refused.value.kind == "overflow"
    assert store.reads == 0


async def test_a_lost_image_is_named(tmp_path: Path) -> None:
    """Not another one, and not nothing, is sent in its place."""
    store = FolderStore(tmp_path)
    kept = (await seen(store, b"a" * 100)).value["images"][0]
    entry = result("c", "t", "told", images=[kept, {**kept, "artifact": "ab" * 32}])
    with pytest.raises(StateLost, match="artifact abababababab is not in"):
        await Pictures(store).of("w", [entry], MANY)
