"""The process that decodes what a tool returned: `python -m activities.media_process JOB JSON`.

The bytes come on standard input. The answer goes to standard output: a line of JSON, then bytes.
It is a process and no thread since the bytes are anybody's: a decoder that is led astray has
neither the worker's memory nor its keys, a time that can be ended, and nobody else's GIL.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFile import ImageFile
    from pypdf import PdfReader

MEMORY_BYTES: Final = 2_000_000_000
"""Address space: room for an image of `MAX_PIXELS` in four channels, twice."""
MAX_PIXELS: Final = 90_000_000
"""More are not decoded; a small file can hold any number of them."""
LONG_SIDE: Final = 1568
"""Pixels; providers make larger images smaller themselves."""
MAX_IMAGE_BYTES: Final = 750_000
"""1 MB in a request, where they are base64."""
MAX_PAGES: Final = 50
"""Pages of a PDF that are read at once."""
MAX_TEXT: Final = 200_000
"""Characters of a PDF that are read at once."""
PAGES_SECONDS: Final = 10.0
"""After which no further page is begun: what was read is worth having."""
_QUALITIES: Final = (85, 70, 50)
_PASSED_MODES: Final = frozenset({"1", "L", "LA", "P", "RGB", "RGBA"})
_FORMATS: Final = ("PNG", "JPEG", "GIF", "WEBP")
_ORIENTATION: Final = 0x0112


class Refused(Exception):
    """Raised for bytes that cannot be used; the message is for the model."""


def main() -> None:
    """Do one job."""
    job, arguments = sys.argv[1], json.loads(sys.argv[2])
    _bound(arguments.pop("seconds"))
    data = sys.stdin.buffer.read()
    try:
        told, result = image(data) if job == "image" else pdf(data, **arguments)
    except Refused as error:
        told, result = {"refused": str(error)}, b""
    except ImportError as error:
        told, result = {"missing": error.name}, b""
    except MemoryError:
        told, result = {"refused": "it takes too much memory to decode"}, b""
    except Exception as error:  # noqa: BLE001  hostile bytes may make a decoder raise anything
        told, result = {"refused": f"it is damaged ({type(error).__name__})"}, b""
    sys.stdout.buffer.write(json.dumps(told).encode() + b"\n" + result)


def _bound(seconds: float) -> None:
    import resource

    # Where the system does not know a limit, the worker's own timeout has to do.
    for limit, most in (
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_CPU, int(seconds) + 1),
        (resource.RLIMIT_CORE, 0),
    ):
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(limit, (most, most))


# --- images -----------------------------------------------------------------------------------


def image(data: bytes) -> tuple[dict[str, Any], bytes]:
    """The image as the model gets it, and its measures before and after.

    One that fits stays as it is, for which no bytes are returned: it has been decoded to its end.
    """
    import PIL.Image
    import PIL.ImageOps

    # Sizes are judged below, by our own bound.
    PIL.Image.MAX_IMAGE_PIXELS = None
    opened = PIL.Image.open(BytesIO(data), formats=_FORMATS)
    width, height = opened.size
    if width * height > MAX_PIXELS:
        raise Refused(f"of its {width}x{height} pixels at most {MAX_PIXELS:,} are decoded")
    moves = bool(getattr(opened, "is_animated", False))
    told: dict[str, Any] = {"original": [width, height], "animated": moves}
    if _goes_as_it_is(opened, len(data)):
        opened.load()
        media_type = f"image/{str(opened.format).lower()}"
        return {**told, "media_type": media_type, "size": [width, height]}, b""
    # A JPEG is decoded at a fraction of its size, which saves most of the memory.
    opened.draft(None, (LONG_SIDE, LONG_SIDE))
    # Its first frame, in a mode that can be made smaller and written.
    frame = _eight_bit(opened)
    made: Image = frame.convert("RGBA" if frame.has_transparency_data else "RGB")
    made.thumbnail((LONG_SIDE, LONG_SIDE))
    made = PIL.ImageOps.exif_transpose(made)
    media_type, encoded, made = _encoded(made, lossless=opened.format in ("PNG", "GIF"))
    return {**told, "media_type": media_type, "size": list(made.size)}, encoded


def _goes_as_it_is(opened: ImageFile, size: int) -> bool:
    return (
        max(opened.size) <= LONG_SIDE
        and size <= MAX_IMAGE_BYTES
        and opened.mode in _PASSED_MODES
        and opened.format in _FORMATS
        and not getattr(opened, "is_animated", False)
        and opened.getexif().get(_ORIENTATION, 1) == 1
    )


def _eight_bit(opened: Image) -> Image:
    """As it is unless it has gray of sixteen bits: converting that would cut it off at 255."""
    if not opened.mode.startswith("I"):
        return opened
    deep = opened.convert("I")
    made = deep.point([round(gray / 257) for gray in range(65_536)], "L")
    clear = made.info.pop("transparency", None)
    if isinstance(clear, int):
        made.putalpha(deep.point([255 * (gray != clear) for gray in range(65_536)], "L"))
    return made


def _encoded(made: Image, *, lossless: bool) -> tuple[str, bytes, Image]:
    """As PNG if that is small enough, else as JPEG, smaller and smaller until it fits."""
    if lossless and len(data := _written(made, "PNG")) <= MAX_IMAGE_BYTES:
        return "image/png", data, made
    made = _on_white(made)
    while True:
        for quality in _QUALITIES:
            if len(data := _written(made, "JPEG", quality=quality)) <= MAX_IMAGE_BYTES:
                return "image/jpeg", data, made
        made = made.resize((max(1, made.width * 3 // 4), max(1, made.height * 3 // 4)))


def _on_white(made: Image) -> Image:
    import PIL.Image

    if made.mode != "RGBA":
        return made
    flat = PIL.Image.new("RGB", made.size, "white")
    flat.paste(made, mask=made.getchannel("A"))
    return flat


def _written(made: Image, kind: str, **options: Any) -> bytes:
    file = BytesIO()
    made.save(file, kind, exif=b"", icc_profile=None, **options)
    return file.getvalue()


# --- PDF --------------------------------------------------------------------------------------


def pdf(data: bytes, first: int, last: int) -> tuple[dict[str, Any], bytes]:
    """The texts of pages, the first of which is 1, as JSON; and how many pages there are."""
    until = time.monotonic() + PAGES_SECONDS
    reader = _opened(data)
    count = len(reader.pages)
    if first > count:
        raise Refused(f"it has {count} pages, and no page {first}")
    texts: list[str] = []
    room, cut = MAX_TEXT, False
    for number in range(first, min(last, count, first + MAX_PAGES - 1) + 1):
        if texts and time.monotonic() > until:
            break
        text = reader.pages[number - 1].extract_text().strip()
        if len(text) > room and texts:
            break
        cut = len(text) > room
        texts.append(text[:room].encode("utf-8", "replace").decode())
        room = max(room - len(text), 0)
    return {"pages": count, "cut": cut}, json.dumps(texts).encode()


def _opened(data: bytes) -> PdfReader:
    from pypdf import PdfReader
    from pypdf.errors import DependencyError

    try:
        reader = PdfReader(BytesIO(data))
        # Many are encrypted without a password, to forbid printing.
        locked = reader.is_encrypted and not reader.decrypt("")
    except DependencyError:
        locked = True  # by a cipher that needs a further package
    if locked:
        raise Refused("it is encrypted: ask for a copy that is not")
    return reader


if __name__ == "__main__":
    main()
