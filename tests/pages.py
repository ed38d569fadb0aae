"""The code on the pages that people copy it from, so that what is tested is what they read."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def code(page: str, language: str, containing: str = "") -> str:
    """The only block of a page in this language that contains this text."""
    text = (ROOT / page).read_text()
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (block,) = [b for b in blocks if containing in b]
    return str(block)


def write_refunds(folder: Path) -> None:
    """A folder of an author who follows `docs/prove-your-tool.md`, with this checkout's worker."""
    page = "docs/prove-your-tool.md"
    (folder / "refunds.py").write_text(code(page, "python", "issue_refund(order"))
    (folder / "test_refunds.py").write_text(code(page, "python", "def test_refund"))
    (folder / "pytest.ini").write_text(code(page, "ini").replace("REPO", str(ROOT)))
