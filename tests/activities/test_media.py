"""What bytes are, images as models take them, the text of PDFs."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import PIL.Image
import pypdf
import pytest

from activities import media_process
from activities.media import (
    BINARY,
    TEXT,
    UNKNOWN_TEXT,
    Pages,
    Undecodable,
    pdf_pages,
    picture,
    sniff,
)
from tests import media_samples as samples
from turnkeeper import ToolFailed


def _docx() -> bytes:
    file = BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("word/document.xml", "<w/>")
    return file.getvalue()


@pytest.mark.parametrize(
    ("data", "media_type"),
    [
        (b"", TEXT),
        ("naïve 漢字".encode(), TEXT),
        (b"BMW and ID3 are text, and so is OggS", TEXT),
        ("garçon, déjà vu".encode("latin-1"), UNKNOWN_TEXT),
        ("text".encode("utf-16"), "text/plain; charset=utf-16"),
        (bytes(range(256)) * 4, BINARY),
        (b"%PDF-1.7\nplain so far", "application/pdf"),
        (samples.plain(2, 2), "image/png"),
        (samples.plain(2, 2, "JPEG"), "image/jpeg"),
        (samples.plain(2, 2, "WEBP"), "image/webp"),
        (samples.plain(2, 2, "GIF"), "image/gif"),
        (samples.plain(2, 2, "BMP", colour="#ff8090"), "image/bmp"),
        (_docx(), "application/vnd.openxmlformats-officedocument.wordprocessingml.document"),
    ],
)
def test_bytes_are_known_by_what_they_begin_with(data: bytes, media_type: str) -> None:
    """Magic bytes count where they cannot be text; what is UTF-8 is text."""
    assert sniff(data) == media_type


async def test_an_image_that_fits_stays_as_it_is() -> None:
    """Not a byte is changed, so it is stored once."""
    data = samples.plain(300, 200)
    shown = await picture(data)
    assert shown.data is data
    assert (shown.media_type, shown.width, shown.height) == ("image/png", 300, 200)


@pytest.mark.parametrize(
    ("make", "size"),
    [
        (lambda: samples.plain(9_000, 4_500, "JPEG"), (1_568, 784)),
        (lambda: samples.plain(2_000, 1_000, "WEBP"), (1_568, 784)),
        (lambda: samples.plain(8_000, 1), (1_568, 1)),
        (lambda: samples.encoded(PIL.Image.new("CMYK", (1_600, 160)), "JPEG"), (1_568, 157)),
        (lambda: samples.encoded(PIL.Image.new("I;16", (1_600, 160), 40_000)), (1_568, 157)),
        (lambda: samples.encoded(PIL.Image.new("LA", (1_600, 160))), (1_568, 157)),
        (lambda: samples.noise(1_200, 1_200), (1_200, 1_200)),
    ],
)
async def test_an_image_is_made_small_enough(
    make: Callable[[], bytes], size: tuple[int, int]
) -> None:
    """Whatever its format and colours: 1,568 pixels a side, 750,000 bytes, and still an image."""
    shown = await picture(make())
    assert (shown.width, shown.height) == size
    assert len(shown.data) <= media_process.MAX_IMAGE_BYTES
    with PIL.Image.open(BytesIO(shown.data)) as made:
        made.load()
        assert made.size == size
        assert f"image/{str(made.format).lower()}" == shown.media_type


def test_an_image_gets_smaller_until_it_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no quality of a JPEG is enough, its sides shrink."""
    monkeypatch.setattr(media_process, "MAX_IMAGE_BYTES", 5_000)
    told, data = media_process.image(samples.noise(300, 300))
    assert len(data) <= 5_000
    assert told["size"][0] < 300


async def test_transparent_parts_are_white_where_they_are_lost() -> None:
    """Black text on nothing stays legible in a JPEG."""
    clear = PIL.Image.frombytes("RGBA", (1_000, 1_000), os.urandom(4_000_000))
    clear.putalpha(0)
    shown = await picture(samples.encoded(clear))
    assert shown.media_type == "image/jpeg"
    with PIL.Image.open(BytesIO(shown.data)) as made:
        assert made.getpixel((500, 500)) == (255, 255, 255)


@pytest.mark.parametrize("clear", [None, 7 * 257])
async def test_gray_of_sixteen_bits_keeps_its_shades(clear: int | None) -> None:
    """As scientific images have it: from black to white, and what is transparent stays so."""
    shown = await picture(samples.deep_gray(clear))
    with PIL.Image.open(BytesIO(shown.data)) as made:
        seen = [made.convert("RGBA").getpixel((x, 0)) for x in range(256)]
    assert seen == [(x, x, x, 0 if clear == x * 257 else 255) for x in range(256)]


async def test_a_photograph_stands_upright() -> None:
    """A camera's note on how it was held is obeyed, and goes with all other notes."""
    exif = PIL.Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "taken at home"
    shown = await picture(samples.plain(300, 200, "JPEG", exif=exif))
    assert (shown.width, shown.height) == (200, 300)
    assert b"taken at home" not in shown.data


async def test_of_an_animation_the_first_frame_is_shown() -> None:
    """And the picture says so."""
    shown = await picture(samples.animation(30, 20))
    assert shown.animated
    with PIL.Image.open(BytesIO(shown.data)) as made:
        assert made.convert("RGB").getpixel((5, 5)) == (255, 0, 0)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (samples.corrupt(), "it is damaged"),
        (samples.noise(100, 100)[:20_000], "it is damaged"),
        (samples.plain(300, 200, "JPEG")[:-500], "it is damaged"),
        (b"\x89PNG\r\n\x1a\n and no more", "it is damaged"),
        (samples.bomb(), "of its 50000x50000 pixels at most 90,000,000 are decoded"),
    ],
)
async def test_what_is_no_sound_image_is_refused_in_words(data: bytes, why: str) -> None:
    """A provider would refuse it with every later request of the run."""
    with pytest.raises(Undecodable, match=why):
        await picture(data)


async def test_a_decoder_that_takes_too_long_is_ended() -> None:
    """The time for an image is bounded."""
    began = time.monotonic()
    with pytest.raises(Undecodable, match=r"not decoded within 0\.2 s"):
        await picture(samples.noise(2_000, 2_000), 0.2)
    assert time.monotonic() - began < 60


async def test_a_decoder_that_dies_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one does that was led astray, or had not enough memory."""
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(Undecodable, match="ended without an answer"):
        await picture(samples.plain(2, 2))


async def test_without_the_extra_the_way_to_it_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A decoder's process that has no Pillow says what to install."""
    bare = tmp_path / "python"
    bare.write_text(
        f"""#!/bin/sh
exec {sys.executable} -c 'import runpy, sys
sys.modules["PIL"] = None
sys.argv[1:] = sys.argv[4:]
runpy.run_module("activities.media_process", run_name="__main__")' "$@"
"""
    )
    bare.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(bare))
    with pytest.raises(Undecodable, match=r"no PIL.*, which `pip install 'turnkeeper\[media\]'`"):
        await picture(samples.plain(2, 2))


async def test_the_loop_goes_on_while_an_image_is_decoded() -> None:
    """A worker has heartbeats to send meanwhile."""
    longest, running = 0.0, asyncio.create_task(picture(samples.noise(2_000, 2_000)))
    while not running.done():
        before = time.monotonic()
        await asyncio.sleep(0.01)
        longest = max(longest, time.monotonic() - before)
    await running
    assert longest < 3


# --- PDF --------------------------------------------------------------------------------------

REPORT = samples.pdf(["Revenue 2025", "Costs 2025", "Profit 2025"])


async def test_pages_of_a_pdf_are_read_as_text() -> None:
    """Pages count from 1, both ends are included, and the first line says where one is."""
    assert (await pdf_pages(REPORT, 2, 3)).told() == (
        "[pages 2 to 3 of 3]\n[page 2]\nCosts 2025\n\n[page 3]\nProfit 2025"
    )
    assert (await pdf_pages(REPORT, 3, 99)).told().startswith("[pages 3 to 3 of 3]\n")


async def test_a_reading_of_a_pdf_is_bounded() -> None:
    """At most 50 pages, and the first line says which: the next call goes on from there."""
    book = samples.pdf([f"number {n}" for n in range(1, 61)])
    first = await pdf_pages(book, 1, 60)
    assert first.told().startswith("[pages 1 to 50 of 60]\n")
    assert (await pdf_pages(book, 51, 60)).told().endswith("[page 60]\nnumber 60")


def test_text_beyond_the_bound_is_left_for_the_next_reading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whole pages as long as they fit; a first page that is larger than all is cut, and says so."""
    monkeypatch.setattr(media_process, "MAX_TEXT", 25)
    told, texts = media_process.pdf(REPORT, 1, 3)
    assert told == {"pages": 3, "cut": False}
    assert json.loads(texts) == ["Revenue 2025", "Costs 2025"]
    monkeypatch.setattr(media_process, "MAX_TEXT", 7)
    told, texts = media_process.pdf(REPORT, 1, 3)
    shown = Pages(1, json.loads(texts), told["pages"], told["cut"]).told()
    assert shown == "[pages 1 to 1 of 3]\n[page 1]\nRevenue\n[the rest of page 1 is not shown]"


def test_pages_that_take_long_are_left_for_the_next_reading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first one is read in any case."""
    monkeypatch.setattr(media_process, "PAGES_SECONDS", 0)
    assert json.loads(media_process.pdf(REPORT, 2, 3)[1]) == ["Costs 2025"]


def _locked(password: str) -> bytes:
    writer = pypdf.PdfWriter(clone_from=BytesIO(REPORT))
    writer.encrypt(password, "owner", algorithm="RC4-128")
    file = BytesIO()
    writer.write(file)
    return file.getvalue()


def _ciphered() -> bytes:
    """By AES, which pypdf alone cannot undo."""
    digits = " ".join(f"/{name} <{'00' * size}>" for name, size in _HASHES.items())
    filters = "/CF << /StdCF << /CFM /AESV3 /Length 32 >> >> /StmF /StdCF /StrF /StdCF"
    locked = f"/Encrypt << /Filter /Standard /V 5 /R 6 /Length 256 /P -4 {digits} {filters} >>"
    return REPORT.replace(b"/Root", f"/ID [<00> <00>] {locked} /Root".encode())


_HASHES = {"O": 48, "U": 48, "OE": 32, "UE": 32, "Perms": 16}


async def test_a_pdf_may_be_encrypted_without_a_password() -> None:
    """As those are that only forbid printing."""
    assert (await pdf_pages(_locked(""), 1, 1)).told().endswith("Revenue 2025")


@pytest.mark.parametrize(
    ("data", "first", "last", "why"),
    [
        (REPORT, 4, 5, "it has 3 pages, and no page 4"),
        (REPORT, 0, 5, "Pages 0 to 5 are no range"),
        (REPORT, 2, 1, "Pages 2 to 1 are no range"),
        (REPORT[:200], 1, 1, "it is damaged"),
        (b"%PDF-1.4 and no more", 1, 1, "it is damaged"),
        (_locked("secret"), 1, 1, "it is encrypted"),
        (_ciphered(), 1, 1, "it is encrypted"),
    ],
)
async def test_a_pdf_that_cannot_be_read_is_an_error_in_words(
    data: bytes, first: int, last: int, why: str
) -> None:
    """The model learns what to do next."""
    with pytest.raises(ToolFailed, match=why):
        await pdf_pages(data, first, last)
