"""What bytes are, an image as a model takes it, a PDF's pages as text.

Decoding is done by `activities.decoding`, with the packages of `turnkeeper[media]`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import time
from collections.abc import AsyncIterator, Sequence
from typing import Final

from activities.decoding import Refused, decoded, turn
from turnkeeper.errors import ToolFailed

PDF_TYPE: Final = "application/pdf"
IMAGE_TYPES: Final = frozenset({"image/gif", "image/jpeg", "image/png", "image/webp"})
"""What models see."""
TEXT: Final = "text/plain"
UNKNOWN_TEXT: Final = "text/plain; charset=unknown-8bit"
"""Text of one byte a character, perhaps Latin-1."""
BINARY: Final = "application/octet-stream"
MOST_SECONDS: Final = 20.0
"""For decoding one image or one reading of a PDF, from when its turn has come."""
WAIT_SECONDS: Final = 30.0
"""For a turn, while others decode."""

_MAGIC: Final = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", PDF_TYPE),
    (b"PK\x03\x04", "application/zip"),
    (b"\x1f\x8b", "application/gzip"),
    (b"BZh", "application/x-bzip2"),
    (b"\xfd7zXZ\x00", "application/x-xz"),
    (b"\x28\xb5\x2f\xfd", "application/zstd"),
    (b"7z\xbc\xaf\x27\x1c", "application/x-7z-compressed"),
    (b"II*\x00", "image/tiff"),
    (b"MM\x00*", "image/tiff"),
    (b"BM", "image/bmp"),
    (b"SQLite format 3\x00", "application/vnd.sqlite3"),
    (b"PAR1", "application/vnd.apache.parquet"),
    (b"\x7fELF", "application/x-executable"),
    (b"OggS", "application/ogg"),
    (b"ID3", "audio/mpeg"),
    (b"fLaC", "audio/flac"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "application/x-ole-storage"),
)
# These cannot be text, whatever follows; other magics count only where the bytes are not UTF-8.
_SURE: Final = frozenset({PDF_TYPE, *IMAGE_TYPES})
_IN_RIFF: Final = {b"WEBP": "image/webp", b"WAVE": "audio/wav", b"AVI ": "video/x-msvideo"}
_OFFICE: Final = "application/vnd.openxmlformats-officedocument."
_IN_ZIP: Final = {
    b"word/": _OFFICE + "wordprocessingml.document",
    b"xl/": _OFFICE + "spreadsheetml.sheet",
    b"ppt/": _OFFICE + "presentationml.presentation",
}
_UTF_16: Final = (b"\xff\xfe", b"\xfe\xff")
_HEAD: Final = 65_536
# What no text has: control characters other than white space and escape.
_CONTROL: Final = re.compile(rb"[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f\x7f]")
_HIGH: Final = re.compile(rb"[\x80-\xff]")


class Undecodable(Exception):
    """Raised for an image that cannot be shown; the message says why, for the model."""


@dataclasses.dataclass(frozen=True)
class Picture:
    """An image as a model takes it."""

    data: bytes
    """The very bytes that were given, if it fits as it is."""
    media_type: str
    width: int
    height: int
    original: tuple[int, int]
    """Width and height before."""
    animated: bool
    """There was more than this, its first frame."""


def sniff(data: bytes) -> str:
    """The media type that bytes have by themselves; `TEXT` for UTF-8, `BINARY` if unknown."""
    found = _by_magic(data)
    if found in _SURE or not _is_utf8(data):
        return found or _by_sight(data)
    return TEXT


def _by_magic(data: bytes) -> str | None:
    if data[:4] == b"RIFF":
        return _IN_RIFF.get(data[8:12])
    if data[4:8] == b"ftyp":
        return "video/mp4"
    found = next((type_ for magic, type_ in _MAGIC if data.startswith(magic)), None)
    if found == "application/zip":
        head = data[:_HEAD]
        return next((type_ for name, type_ in _IN_ZIP.items() if name in head), found)
    return found


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _by_sight(data: bytes) -> str:
    if data.startswith(_UTF_16):
        return "text/plain; charset=utf-16"
    head = data[:_HEAD]
    if _CONTROL.search(head) or len(_HIGH.findall(head)) * 3 > len(head):
        return BINARY
    return UNKNOWN_TEXT


async def picture(data: bytes, seconds: float = MOST_SECONDS, *, run: str = "") -> Picture:
    """The image within what every model takes: at most 1,568 pixels a side, 1 MB as base64.

    seconds: for waiting for the run's turn and for decoding; either has a bound of its own.

    Raises:
        Undecodable: it is damaged, too large, not done in time, or the extra is not installed.
    """
    ends = time.monotonic() + seconds
    wait = min(seconds, WAIT_SECONDS)
    try:
        async with turn("image", run, wait):
            left = min(ends - time.monotonic(), MOST_SECONDS)
            told, made = await decoded("image", data, left)
    except TimeoutError:
        raise Undecodable(f"other images were being decoded for {wait:.1f} s") from None
    except Refused as error:
        raise Undecodable(str(error)) from None
    width, height = told["size"]
    return Picture(
        # Nothing comes back where nothing was changed.
        data=made or data,
        media_type=told["media_type"],
        width=width,
        height=height,
        original=tuple(told["original"]),
        animated=told["animated"],
    )


@dataclasses.dataclass(frozen=True)
class Pages:
    """The texts of pages of a PDF that follow each other."""

    first: int
    """Number of the first of them, from 1."""
    texts: Sequence[str]
    """Never none; one is empty if the page has no text, as a scan."""
    count: int
    """Of all pages of the PDF."""
    cut: bool
    """The last one has more text than is read at once."""

    @property
    def last(self) -> int:
        """Number of the last of them."""
        return self.first + len(self.texts) - 1

    def told(self) -> str:
        """For the model; the first line says which pages these are, and of how many."""
        pages = [
            f"[page {number}]\n{text or '(no text: perhaps a scan)'}"
            for number, text in enumerate(self.texts, start=self.first)
        ]
        cut = f"\n[the rest of page {self.last} is not shown]" if self.cut else ""
        head = f"[pages {self.first} to {self.last} of {self.count}]\n"
        return head + "\n\n".join(pages) + cut


class Busy(ToolFailed):
    """Raised where the decoders of PDFs have others' to read; the message is for the model."""


@contextlib.asynccontextmanager
async def pdf_turn(run: str, seconds: float = WAIT_SECONDS) -> AsyncIterator[None]:
    """A run's turn to have a PDF in memory and to call `pdf_pages`.

    Raises:
        Busy: it did not come within so many seconds.
    """
    async with contextlib.AsyncExitStack() as held:
        try:
            await held.enter_async_context(turn("pdf", run, seconds))
        except TimeoutError:
            raise Busy(
                f"Other PDFs were being read for {seconds:.0f} s: ask again, one reading at a time."
            ) from None
        yield


async def pdf_pages(data: bytes, first: int, last: int) -> Pages:
    """The text of the pages `first` to `last` of a PDF, both included and counted from 1.

    At most 50 pages and 200,000 characters are read at once, for about 10 s.

    Raises:
        ToolFailed: it is damaged, encrypted, has no such page, is not done in time, or the extra is
            not installed; in words for the model.
    """
    if not 1 <= first <= last:
        raise ToolFailed(f"Pages {first} to {last} are no range: count from 1, first to last.")
    try:
        told, texts = await decoded("pdf", data, MOST_SECONDS, first=first, last=last)
    except Refused as error:
        raise ToolFailed(f"The PDF cannot be read: {error}.") from None
    return Pages(first, json.loads(texts), told["pages"], told["cut"])
