"""The images of a run's page: read from the artifact store, within bounds, as data: URLs."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from pydantic import ValidationError

from turnkeeper.entries import Entry
from turnkeeper.errors import TurnkeeperError
from turnkeeper.media import ImageRef, images_of

if TYPE_CHECKING:
    from turnkeeper.artifacts import ArtifactStore

__all__ = ["MAX_BYTES", "MAX_IMAGES", "pictures", "refs"]

MAX_IMAGES = 20
MAX_BYTES = 4_000_000
"""Of all of them; as data: URLs they take a third more."""
_PATIENCE = 30.0
"""Seconds for all: a store that hangs holds up no page."""

_KINDS = {
    "image/png": (b"\x89PNG\r\n\x1a\n",),
    "image/jpeg": (b"\xff\xd8\xff",),
    "image/gif": (b"GIF87a", b"GIF89a"),
    "image/webp": (b"RIFF",),
}
"""What is shown, and how it begins."""


def refs(entry: Entry) -> list[ImageRef]:
    """The images of an entry, whatever stands there."""
    with contextlib.suppress(ValidationError, TypeError):
        return images_of(entry)
    return []


async def pictures(store: ArtifactStore, owner: str, entries: Iterable[Entry]) -> dict[str, str]:
    """A data: URL by artifact, for the first images that fit, as far as the store has them."""
    found: dict[str, str] = {}
    room = MAX_BYTES
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_PATIENCE):
            for ref in (ref for entry in entries for ref in refs(entry)):
                if len(found) == MAX_IMAGES:
                    break
                if ref.artifact in found or not 0 < ref.bytes <= room:
                    continue
                if data := await _read(store, owner, ref):
                    found[ref.artifact] = _url(ref.media_type, data)
                    room -= len(data)
    return found


async def _read(store: ArtifactStore, owner: str, ref: ImageRef) -> bytes | None:
    """The bytes, if they are those of the image that was told of."""
    try:
        data = await store.get(owner, ref.artifact)
    except (TurnkeeperError, OSError, ValueError):
        return None
    begins = _KINDS.get(ref.media_type, ())
    return data if len(data) == ref.bytes and data.startswith(begins) else None


def _url(media_type: str, data: bytes) -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"
