"""Bytes in a tool's result become artifacts, and a line each in what the model reads."""

from __future__ import annotations

import time

import structlog

from activities.aside import aside
from activities.media import IMAGE_TYPES, PDF_TYPE, Undecodable, picture, sniff
from activities.redact import Redactor
from activities.results import Parts
from turnkeeper.artifacts import ArtifactStore
from turnkeeper.media import ImageRef, Media
from turnkeeper.spec import MAX_RESULT_IMAGES
from turnkeeper.text import one_line

MAX_KEPT = 32
"""Media of one result; each is an object in the store."""
_LONGEST_NAME = 100
_READABLE = ("text/", "application/json", "application/xml")

log = structlog.get_logger("turnkeeper.attachments")


class Attachments:
    """Keeps the media of one result.

    most: images that the model may see.
    seconds: for decoding images. What takes longer is kept and not shown: an attempt that ran into
    its timeout over an image would be made again, or its outcome be called unknown.
    """

    def __init__(
        self, store: ArtifactStore, redactor: Redactor, owner: str, *, most: int, seconds: float
    ) -> None:
        self.images: list[ImageRef] = []
        """What the model sees of the result, in order."""
        self._store = store
        self._redactor = redactor
        self._owner = owner
        self._most = most
        self._deadline = time.monotonic() + seconds
        self._kept = 0

    async def told(self, content: Parts) -> str:
        """The result as text, with a line where each of the media stood."""
        lines = [p if isinstance(p, str) else await self._line(p) for p in content.parts]
        media = sum(isinstance(p, Media) for p in content.parts)
        if media > MAX_KEPT:
            lines.append(f"[Of these {media} only the first {MAX_KEPT} were kept.]")
        return "\n".join(line for line in lines if line)

    async def _line(self, media: Media) -> str:
        self._kept += 1
        if self._kept > MAX_KEPT:
            return ""
        found, data = await aside(len(media.data), lambda: self._sniffed(media.data))
        media_type = one_line(media.media_type or found, _LONGEST_NAME)
        name = f' "{one_line(media.name, _LONGEST_NAME)}"' if media.name else ""
        artifact = await self._put(data)
        where = f"artifact {artifact}" if artifact else "which could not be stored"
        if found in IMAGE_TYPES:
            what = await self._shown(data, artifact)
        elif not artifact:
            what = "it is lost"
        elif found == PDF_TYPE:
            what = "read it with read_artifact(artifact, page)"
        elif media_type.startswith(_READABLE):
            what = "read it with read_artifact"
        else:
            what = "binary; give the id to a tool that takes one"
        return f"[{media_type}{name}, {len(data):,} bytes, {where}: {what}]"

    def _sniffed(self, data: bytes) -> tuple[str, bytes]:
        """What bytes are, and without known secrets if they are text."""
        found = sniff(data)
        if found.startswith("text/"):
            # In these as in other texts. Latin-1 takes any bytes there and back.
            data = self._redactor.known(data.decode("latin-1")).encode("latin-1")
        return found, data

    async def _shown(self, data: bytes, artifact: str | None) -> str:
        """Have the model see an image; in words, whether and how it does."""
        if len(self.images) >= self._most:
            few = self._most < MAX_RESULT_IMAGES
            mend = "; ask again, with fewer calls in one reply" if few else ""
            return f"not shown: at most {self._most} images of this result are{mend}"
        left = self._deadline - time.monotonic()
        if left <= 0:
            return "not shown: the tool left no time to decode it"
        try:
            made = await picture(data, left, run=self._owner)
        except Undecodable as error:
            log.warning("image not shown", bytes=len(data), artifact=artifact, why=str(error))
            return f"not shown: {error}"
        shown = artifact if made.data is data else await self._put(made.data)
        if shown is None:
            return "not shown: it could not be stored"
        self.images.append(
            ImageRef(
                artifact=shown,
                media_type=made.media_type,
                width=made.width,
                height=made.height,
                bytes=len(made.data),
            )
        )
        frame = ", its first frame" if made.animated else ""
        size = f"{made.width}x{made.height} of {made.original[0]}x{made.original[1]} pixels"
        return f"shown as image {len(self.images)}{frame}, {size}"

    async def _put(self, data: bytes) -> str | None:
        try:
            return await self._store.put(self._owner, data)
        except (OSError, ValueError) as error:
            # The effect has happened: a store that is down must not have it repeated.
            log.error("result not stored", bytes=len(data), error=str(error))
            return None
