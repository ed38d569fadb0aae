"""The page of a run, looked at with a real browser, on a wide screen and on a phone.

With TURNKEEPER_SCREENSHOTS=FOLDER pictures of it are kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.commands.test_unknown import Shell
from tests.page import returns_desk as desk
from tests.page.runs import asks, generated, page_of, replied, returned, run_of
from tests.page.test_escaping import HOSTILE, hostile_page
from tests.rig import RigFactory, until
from tests.test_ui import CHROMIUM, browser
from turnkeeper.client import AgentRunHandle
from turnkeeper.testing.embedded import EmbeddedServer

if TYPE_CHECKING:
    from playwright.async_api import Page, ViewportSize

pytestmark = [
    pytest.mark.ui,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH to look at the page with"),
]
WIDE: ViewportSize = {"width": 1200, "height": 900}
PHONE: ViewportSize = {"width": 360, "height": 740}


class Looked:
    """What a browser did beyond showing a page."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.did: list[str] = []
        page.on("dialog", self._dialog)
        page.on("pageerror", lambda error: self.did.append(f"error {error}"))
        page.on("request", lambda request: self._asked(request.url))
        page.on("popup", lambda popup: self.did.append(f"popup {popup.url}"))

    def _asked(self, url: str) -> None:
        if not url.startswith(("file:", "data:image/")):
            self.did.append(f"request {url}")

    async def _dialog(self, dialog: Any) -> None:
        self.did.append(f"dialog {dialog.message}")
        await dialog.dismiss()

    async def open(self, file: Path) -> None:
        """Show a page, with all that is folded, and try what a reader may click."""
        await self.page.goto(file.as_uri())
        await self.page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        await self.page.evaluate("document.querySelectorAll('a[href]').forEach(a => a.click?.())")

    async def is_quiet(self) -> bool:
        """Whether nothing ran and nothing was asked of anybody; `did` says what was."""
        hacked = await self.page.evaluate("window.hacked")
        return hacked is None and not self.did

    async def is_as_wide_as_the_screen(self) -> bool:
        """Whether the page itself never has to be moved sideways."""
        return bool(
            await self.page.evaluate(
                "document.documentElement.scrollWidth <= innerWidth"
                " && document.body.scrollWidth <= innerWidth"
            )
        )


@contextlib.asynccontextmanager
async def looking() -> AsyncIterator[Looked]:
    """A browser that is watched."""
    async with browser() as page:
        yield Looked(page)


async def _decide(run: AgentRunHandle) -> None:
    """Decide what the run asks, until it is over."""
    while (status := await run.status()).outcome is None:
        for asked in status.approvals:
            if asked.status == "waiting" and "1008" in asked.arguments:
                await run.deny(asked.id, reason="The lamp was used for a year.", actor="bo")
            elif asked.status == "waiting":
                await run.approve(asked.id, actor="ann")
        await asyncio.sleep(0.1)


# On a busy machine a run of sixty turns takes a minute.
@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_the_page_of_a_run(rig: RigFactory, server: EmbeddedServer, tmp_path: Path) -> None:
    """Sixty turns with errors, approvals and an image are readable on a wide screen, on a phone and
    on paper; what is hostile in them is text. While it waits, the page says for what."""
    shell = Shell(server, tmp_path)
    async with rig(desk.script(), tools=desk.TOOLS) as r:
        run = await r.start(desk.PROMPT, limits={"turns": 80})

        async def waits() -> bool:
            return any(a.status == "waiting" for a in (await run.status()).approvals)

        await until(waits, timeout=120)
        waiting = tmp_path / "waiting.html"
        waiting.write_text(await r.agents.page(run.id))
        await _decide(run)
        done = await shell.starter("show", run.id, "--html", str(tmp_path / "page.html"))
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'page.html'}\n")
    async with looking() as look:
        page = look.page
        await page.set_viewport_size(WIDE)
        await look.open(waiting)
        assert await page.get_by_text("It waits for a person to allow issue_refund").is_visible()
        assert await page.get_by_text(f"starter.py approve {run.id}").is_visible()
        await look.open(tmp_path / "page.html")
        await _reads_well(page)
        assert await look.is_quiet(), look.did
        assert await look.is_as_wide_as_the_screen()
        await page.set_viewport_size(PHONE)
        assert await look.is_as_wide_as_the_screen()
        await page.goto((tmp_path / "page.html").as_uri())
        await _pictures(page)
        await page.emulate_media(media="print")
        folded = page.locator("details:not([open]) .prose").first
        assert await folded.is_visible()


async def _reads_well(page: Page) -> None:
    """Everything that a reader looks for is where it belongs."""
    assert await page.locator("section.turn").count() == desk.TURNS
    assert await page.locator(".bars a").count() == 4 * desk.TURNS
    shown = await page.locator("img").evaluate_all("all => all.map(i => i.naturalWidth)")
    assert shown == [640]
    turn = page.locator("#turn-19")
    assert "Approved by ann (unverified)" in await turn.inner_text()
    assert "Denied by bo" in await page.locator("#turn-39").inner_text()
    assert "outcome unknown" in await page.locator("#turn-25").inner_text()
    links = await page.locator("nav p").all_inner_texts()
    assert links[0].split("turn")[0].strip() == "Errors"
    assert [link.split(maxsplit=1)[1] for link in links[:1]] == ["turn 7 turn 12 turn 25 turn 52"]
    assert desk.HOSTILE in await page.locator("#turn-41 .result pre").inner_text()
    assert "Eleven were refunded" in await page.locator("#turn-60").inner_text()


async def _pictures(page: Page) -> None:
    """To be looked at, where they are asked for."""
    if not (folder := os.environ.get("TURNKEEPER_SCREENSHOTS")):
        return
    await page.screenshot(path=Path(folder) / "page-narrow.png", full_page=True)
    await page.set_viewport_size(WIDE)
    await page.screenshot(path=Path(folder) / "page.png")


async def test_nothing_hostile_runs_or_breaks_out(tmp_path: Path) -> None:
    """A text in every field of a run: no script, no request, no element of its own, and no page
    that is wider than a phone."""
    files = []
    for number, bad in enumerate(HOSTILE.values()):
        files.append(tmp_path / f"{number}.html")
        files[-1].write_text(hostile_page(bad))
    async with looking() as look:
        await look.page.set_viewport_size(PHONE)
        for name, file in zip(HOSTILE, files, strict=True):
            await look.open(file)
            assert await look.is_quiet(), (name, look.did)
            assert await look.is_as_wide_as_the_screen(), name
            foreign = (
                "script, iframe, object, embed, form, link, base, h1 ~ h1, [onload], [onerror]"
            )
            assert await look.page.locator(foreign).count() == 0, name


async def test_long_words_and_marks_stay_in_their_place(tmp_path: Path) -> None:
    """Words without an end, tables, and letters with a hundred marks: the page is as wide as the
    phone, and what is drawn stays within its own block."""
    word, tower = "w" * 30_000, "e" + "\u0301" * 2_000
    table = "\n".join("a  " + "b" * 300 + "  c" for _ in range(20))
    run = run_of(
        [
            replied("r1", *(asks(f"c{n}", word, **{word: t}) for n, t in enumerate((word, tower)))),
            returned("c0", table),
            returned("c1", tower),
        ],
        id=word,
        agent=word,
        model=word,
        generations=[generated(1, "r1", stop_reason=word)],
    )
    (tmp_path / "long.html").write_text(page_of(run))
    async with looking() as look:
        await look.page.set_viewport_size(PHONE)
        await look.open(tmp_path / "long.html")
        assert await look.is_as_wide_as_the_screen()
        sideways = "all => all.filter(p => p.scrollWidth > p.clientWidth).length"
        assert await look.page.locator(".result pre").evaluate_all(sideways) == 1


async def test_the_policy_stops_what_would_get_through(tmp_path: Path) -> None:
    """Were there ever markup in a text: it runs nothing and reaches nobody."""
    reached: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.append(await reader.readline())
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as heard, looking() as look:
        here = f"127.0.0.1:{heard.sockets[0].getsockname()[1]}"
        hole = desk.HOSTILE.replace("127.0.0.1:9", here)
        (tmp_path / "holed.html").write_text(page_of(run_of()).replace("</main>", f"{hole}</main>"))
        await look.page.goto((tmp_path / "holed.html").as_uri(), wait_until="networkidle")
        assert await look.page.locator("iframe, script").count() == 2
        assert await look.page.evaluate("window.hacked") is None
        assert [d for d in look.did if d.startswith("dialog")] == []
        assert reached == []
