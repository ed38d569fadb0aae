"""What an operator sees in Temporal's UI, looked at with a real browser.

With TURNKEEPER_SCREENSHOTS=docs/images the pictures of the README are made anew.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from examples.finance.agent import agent
from examples.finance.script import script
from tests.archive import Archive
from tests.rig import open_rig, until
from turnkeeper import tool
from turnkeeper.client import AgentClient, AgentRunHandle
from turnkeeper.contract import ApprovalAsked
from turnkeeper.testing import call, text
from turnkeeper.testing.embedded import EmbeddedServer

if TYPE_CHECKING:
    from playwright.async_api import Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
_FLAGS = [
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
pytestmark = [
    pytest.mark.ui,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH to look at the UI with"),
]


@asynccontextmanager
async def browser() -> AsyncIterator[Page]:
    """A page in a headless Chromium that is already installed."""
    from playwright.async_api import async_playwright

    async with async_playwright() as play:
        chromium = await play.chromium.launch(executable_path=CHROMIUM, args=_FLAGS)
        page = await chromium.new_page(viewport={"width": 1400, "height": 1020})
        yield page
        await chromium.close()


async def test_the_ui_tells_the_story_of_a_run(tmp_path: Path, histories: Archive) -> None:
    """The timeline shows tools with turn and arguments; the run card shows limits and turns."""
    import anthropic  # noqa: F401  as a worker has it: loaded before the first generation

    pictures = Path(os.environ.get("TURNKEEPER_SCREENSHOTS") or tmp_path)
    with EmbeddedServer.start(tmp_path / "server", ui=True) as server:
        client = (await AgentClient.connect(server.address)).client
        async with open_rig(client, tmp_path, script, agents=[agent]) as r, browser() as page:
            question = "What is 7% of last year's revenue?"
            handle = await r.start(question, agent="finance", id="finance-demo")
            assert (await handle.result(timeout=30)).answer == "About $28.84M."
            described = await client.get_workflow_handle(handle.id).describe()
            run = f"{server.ui_url}/namespaces/default/workflows/{handle.id}/{described.run_id}"

            await page.goto(f"{run}/timeline", wait_until="networkidle")
            # The timeline is drawn on SVG text nodes, one per activity.
            await page.get_by_text('turn 1 · q="annual revenue 2025"').first.wait_for()
            await page.get_by_text("turn 3 · claude-sonnet-5-5").first.wait_for()
            await page.get_by_text("time limit").first.wait_for()
            await page.screenshot(path=pictures / "timeline.png")

            await page.goto(f"{run}/user-metadata", wait_until="networkidle")
            # The UI renders markdown in frames of its own: the summary's, then the card's.
            card = page.frame_locator("iframe").last
            await card.get_by_text("Limits used").wait_for()
            assert await card.get_by_text("turns: 3 of 8").is_visible()
            assert await card.get_by_text("turn 3: answer About $28.84M.").is_visible()
            await page.screenshot(path=pictures / "run-card.png")
        await histories.take(client)


@tool(effect="idempotent", approval="always")
async def issue_refund(order: int, amount: Decimal) -> str:
    """Refund an order."""
    return f"Refunded {amount} EUR for order {order}."


async def test_a_person_decides_in_the_ui(tmp_path: Path, histories: Archive) -> None:
    """The card of a run that waits has the call and the text to paste; the UI sends it as an update
    at the first click, and who has decided is on record."""
    pictures = Path(os.environ.get("TURNKEEPER_SCREENSHOTS") or tmp_path)
    played = [
        call("issue_refund", {"order": 1012, "amount": "249.00"}),
        lambda x: text(x.last_results[0].text),
    ]
    with EmbeddedServer.start(tmp_path / "server", ui=True) as server:
        client = (await AgentClient.connect(server.address)).client
        async with open_rig(client, tmp_path, played, tools=[issue_refund]) as r, browser() as page:
            handle = await r.start("Refund order 1012, it arrived broken.", id="refund-1012")
            waiting = await until(lambda: _waiting(handle))
            described = await client.get_workflow_handle(handle.id).describe()
            run = f"{server.ui_url}/namespaces/default/workflows/{handle.id}/{described.run_id}"
            # Not until the network is idle: of an open run the UI asks again and again.
            await page.goto(f"{run}/user-metadata")
            card = page.frame_locator("iframe").last
            await card.get_by_text("Waits for a person to allow").wait_for()
            body = await card.locator("pre", has_text=waiting.id).first.inner_text()
            assert json.loads(body) == {"approval": waiting.id, "actor": "your name"}
            await page.screenshot(path=pictures / "approval.png")
            await page.get_by_role("button", name="More Actions").click()
            await page.get_by_role("menuitem", name="Send an Update").click()
            # Of the page's two, one for each width of a window, that which is open.
            dialog = page.locator("dialog#update-confirmation-modal[open]")
            await dialog.get_by_role("button", name="Select an Update").click()
            await page.get_by_role("option", name="approve").click()
            await dialog.get_by_role("textbox", name="Data").fill(body.replace("your name", "ann"))
            await page.screenshot(path=pictures / "update.png")
            await dialog.get_by_role("button", name="Submit").click()
            assert (await handle.result()).answer == "Refunded 249.00 EUR for order 1012."
            assert (await handle.status()).approvals[0].actor == "ann"
        await histories.take(client)


async def _waiting(run: AgentRunHandle) -> ApprovalAsked | None:
    found = [a for a in (await run.status()).approvals if a.status == "waiting"]
    return found[0] if found else None
