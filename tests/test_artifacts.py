"""The artifact store in a folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from turnkeeper import artifacts
from turnkeeper.errors import StateLost

LARGE = b"x" * 1_000_000


def change(root: Path, artifact: str) -> None:
    """As a disk or a person might."""
    (path,) = root.rglob(artifact)
    path.write_bytes(LARGE[1:])


async def test_large_content_is_stored_found_and_checked(tmp_path: Path) -> None:
    """Hashed beside the loop, with the same id and the same refusal of changed content."""
    store = artifacts.FolderStore(tmp_path)
    artifact = await store.put("run", LARGE)
    assert await store.get("run", artifact) == LARGE
    change(tmp_path, artifact)
    with pytest.raises(StateLost, match="is not what was stored"):
        await store.get("run", artifact)


async def test_the_name_of_a_new_folder_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once per owner, before anything is in it: a loss of power could take the folder otherwise."""
    synced: list[Path] = []
    monkeypatch.setattr(artifacts, "_sync", synced.append)
    store = artifacts.FolderStore(tmp_path)
    await store.put("run", b"one")
    await store.put("run", b"two")
    assert synced[0] == tmp_path
    assert synced.count(tmp_path) == 1
    assert len({os.fspath(p) for p in synced}) == 2
