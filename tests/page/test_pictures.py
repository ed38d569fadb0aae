"""Which images stand on the page of a run."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests import media_samples as samples
from tests.page.runs import returned, said
from turnkeeper.artifacts import FolderStore
from turnkeeper.entries import Entry
from turnkeeper.page import pictures as module
from turnkeeper.page.pictures import MAX_IMAGES, pictures

PNG = samples.plain(4, 3)


def shows(artifact: str, size: int = len(PNG), media_type: str = "image/png") -> Entry:
    """A result with an image."""
    image = {"artifact": artifact, "media_type": media_type, "width": 4, "height": 3}
    return returned("c1", "an image", images=[{**image, "bytes": size}])


async def stored(folder: Path, data: bytes = PNG) -> tuple[FolderStore, str]:
    """A store with one image of the run `q`."""
    store = FolderStore(folder)
    return store, await store.put("q", data)


async def test_an_image_becomes_a_url_that_holds_it(tmp_path: Path) -> None:
    """By its artifact, once, whatever else was said."""
    store, artifact = await stored(tmp_path)
    found = await pictures(store, "q", [said("Go."), shows(artifact), shows(artifact)])
    assert list(found) == [artifact]
    assert found[artifact].startswith("data:image/png;base64,iVBORw0KGgo")


@pytest.mark.parametrize(
    ("size", "media_type"),
    [
        (len(PNG), "image/svg+xml"),
        (len(PNG), "text/html"),
        (len(PNG), "image/jpeg"),
        (len(PNG) + 1, "image/png"),
        (0, "image/png"),
        (-1, "image/png"),
        (module.MAX_BYTES + 1, "image/png"),
    ],
)
async def test_what_is_not_as_it_was_told_is_left_out(
    tmp_path: Path, size: int, media_type: str
) -> None:
    """Another type or size than the entry says, or a type that may hold more than an image."""
    store, artifact = await stored(tmp_path)
    assert await pictures(store, "q", [shows(artifact, size, media_type)]) == {}


async def test_the_store_may_lack_it(tmp_path: Path) -> None:
    """What is gone, or is of another run, is left out; the others are there."""
    store, artifact = await stored(tmp_path)
    gone = "0" * len(artifact)
    assert list(await pictures(store, "q", [shows(gone), shows(artifact)])) == [artifact]
    assert await pictures(store, "another", [shows(artifact)]) == {}
    assert await pictures(FolderStore(tmp_path / "none"), "q", [shows(artifact)]) == {}


async def test_there_are_only_so_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first ones that fit, in number and in bytes."""
    store = FolderStore(tmp_path)
    images = [samples.plain(4, 3 + n) for n in range(MAX_IMAGES + 2)]
    entries = [shows(await store.put("q", image), len(image)) for image in images]
    assert len(await pictures(store, "q", entries)) == MAX_IMAGES
    monkeypatch.setattr(module, "MAX_BYTES", len(images[0]) + len(images[1]))
    assert len(await pictures(store, "q", entries)) == 2


async def test_a_store_that_hangs_holds_up_no_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read until then is shown."""
    store, artifact = await stored(tmp_path)

    class Hangs(FolderStore):
        async def get(self, owner: str, artifact: str) -> bytes:
            if artifact == "hangs":
                await asyncio.Event().wait()
            return await store.get(owner, artifact)

    monkeypatch.setattr(module, "_PATIENCE", 1.0)
    entries = [shows(artifact), shows("hangs"), shows(artifact)]
    async with asyncio.timeout(60):
        assert list(await pictures(Hangs(tmp_path), "q", entries)) == [artifact]
