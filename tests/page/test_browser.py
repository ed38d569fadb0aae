"""The page of a run, looked at with a real browser, on a wide screen and on a phone.

With TURNKEEPER_SCREENSHOTS=FOLDER the pictures are kept.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.page import returns_desk as desk
from tests.rig import RigFactory
from tests.test_ui import CHROMIUM, browser
from turnkeeper.client import AgentRunHandle

pytestmark = [
    pytest.mark.ui,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH to look at the page with"),
]


async def _decide(run: AgentRunHandle) -> None:
    """Decide what the run asks, until it is over."""
    while (status := await run.status()).outcome is None:
        for asked in status.approvals:
            if asked.status == "waiting" and "1008" in asked.arguments:
                await run.deny(asked.id, reason="The lamp was used for a year.", actor="bo")
            elif asked.status == "waiting":
                await run.approve(asked.id, actor="ann")
        await asyncio.sleep(0.1)


async def test_a_run_of_sixty_turns(rig: RigFactory, tmp_path: Path) -> None:
    """It reads well."""
    pictures = Path(os.environ.get("TURNKEEPER_SCREENSHOTS") or tmp_path)
    async with rig(desk.script(), tools=desk.TOOLS, limits=None) as r:
        run = await r.start(desk.PROMPT, id="returns-2026-11-30", limits={"turns": 80})
        await _decide(run)
        (pictures / "page.html").write_text(await r.agents.page(run.id))
    async with browser() as page:
        for name, width, scheme in (
            ("wide", 1200, "light"),
            ("dark", 1200, "dark"),
            ("narrow", 360, "light"),
        ):
            await page.set_viewport_size({"width": width, "height": 900})
            await page.emulate_media(color_scheme=scheme)
            await page.goto((pictures / "page.html").as_uri())
            await page.screenshot(path=pictures / f"{name}.png", full_page=True)
