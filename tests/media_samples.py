"""Bytes of known formats, sound and broken, for tests."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Sequence
from io import BytesIO
from typing import Any

import PIL.Image


def encoded(image: PIL.Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """An image as the bytes of a file."""
    file = BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def noise(width: int, height: int) -> bytes:
    """A PNG that cannot be compressed: three bytes a pixel."""
    image = PIL.Image.frombytes("RGB", (width, height), os.urandom(width * height * 3))
    return encoded(image, compress_level=1)


def plain(width: int, height: int, kind: str = "PNG", colour: str = "red", **options: Any) -> bytes:
    """An image of one colour."""
    return encoded(PIL.Image.new("RGB", (width, height), colour), kind, **options)


def animation(width: int, height: int) -> bytes:
    """A GIF of two frames."""
    frames = [PIL.Image.new("RGB", (width, height), colour) for colour in ("red", "blue")]
    return encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])


def corrupt() -> bytes:
    """A PNG with a sound head, and a byte in the middle that is not what it was."""
    data = bytearray(noise(100, 100))
    data[len(data) // 2] ^= 0xFF
    return bytes(data)


def bomb() -> bytes:
    """A PNG of a kilobyte that says it has 2.5 billion pixels."""
    head = struct.pack(">IIBBBBB", 50_000, 50_000, 8, 2, 0, 0, 0)
    return _png((b"IHDR", head), (b"IDAT", zlib.compress(bytes(1_000_000))))


def deep_gray(clear: int | None = None) -> bytes:
    """A PNG of 256 pixels, gray of 16 bits from black to white; one of the grays may be clear."""
    head = struct.pack(">IIBBBBB", 256, 1, 16, 0, 0, 0, 0)
    body = zlib.compress(b"\0" + struct.pack(">256H", *range(0, 65_536, 257)))
    marks = [] if clear is None else [(b"tRNS", struct.pack(">H", clear))]
    return _png((b"IHDR", head), *marks, (b"IDAT", body))


def _png(*chunks: tuple[bytes, bytes]) -> bytes:
    ended = [*chunks, (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*chunk) for chunk in ended)


def _chunk(name: bytes, data: bytes) -> bytes:
    check = zlib.crc32(name + data)
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", check)


def pdf(texts: Sequence[str]) -> bytes:
    """A PDF with one line of text on each page."""
    kids = " ".join(f"{4 + 2 * n} 0 R" for n in range(len(texts)))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(texts)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for n, text in enumerate(texts):
        page = f"/Contents {5 + 2 * n} 0 R /Resources << /Font << /F 3 0 R >> >>"
        drawn = f"BT /F 12 Tf 72 700 Td ({text}) Tj ET"
        objects += [
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] {page} >>",
            f"<< /Length {len(drawn)} >>\nstream\n{drawn}\nendstream",
        ]
    file = BytesIO(b"")
    file.write(b"%PDF-1.4\n")
    places = []
    for number, content in enumerate(objects, 1):
        places.append(file.tell())
        file.write(f"{number} 0 obj\n{content}\nendobj\n".encode())
    start = file.tell()
    file.write(f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n".encode())
    for place in places:
        file.write(f"{place:010} 00000 n \n".encode())
    root = f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R >>\nstartxref\n{start}\n%%EOF\n"
    file.write(root.encode())
    return file.getvalue()
