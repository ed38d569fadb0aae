"""Bytes in a tool's result: what a tool returns, and what an entry keeps of it. Pure."""

from __future__ import annotations

import dataclasses

from pydantic import BaseModel, ConfigDict

from turnkeeper.entries import Entry

_PIXELS_PER_TOKEN = 750


@dataclasses.dataclass(frozen=True)
class Media:
    """Bytes that a tool returns: alone, or in a list together with text.

        @tool(effect="read")
        async def chart(year: int) -> list[str | Media]:
            return ["Revenue by month:", Media(await draw(year), name="revenue.png")]

    They become an artifact. The model sees a PNG, JPEG, GIF or WebP; of everything else it reads
    what it is, its size and its id.

    Raises:
        TypeError: `data` is not bytes.
        ValueError: `media_type` is none, such as `png`.
    """

    data: bytes = dataclasses.field(repr=False)
    media_type: str | None = None
    """For what cannot be told from the bytes themselves, such as `text/csv`."""
    name: str | None = None
    """For the model, such as a file's name."""

    def __post_init__(self) -> None:
        if not isinstance(self.data, (bytes, bytearray, memoryview)):
            raise TypeError(f"Media: data must be bytes, not {type(self.data).__name__}")
        if self.media_type is not None and "/" not in self.media_type:
            raise ValueError(
                f"Media: {self.media_type!r} is no media type, such as image/png; leave it out "
                "where the bytes tell it"
            )


class ImageRef(BaseModel):
    """An image in a result: where its bytes lie. They are in no history."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    artifact: str
    media_type: str
    width: int
    height: int
    """Both in pixels."""
    bytes: int

    @property
    def tokens(self) -> int:
        """What it costs in a request, as the providers estimate it."""
        return -(-self.width * self.height // _PIXELS_PER_TOKEN)


def images_of(entry: Entry) -> list[ImageRef]:
    """The images that are sent along with a result; none for other entries."""
    if entry.kind != "result" or not isinstance(entry.value, dict):
        return []
    return [ImageRef.model_validate(image) for image in entry.value.get("images", ())]
