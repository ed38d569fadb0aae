"""How Sphinx makes pages of this folder: `make docs`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

project = "Turnkeeper"
extensions = ["myst_parser"]
# So that a link to a heading is checked, too.
myst_heading_anchors = 3
html_theme = "alabaster"
html_theme_options = {"description": "AI agents that keep their place", "page_width": "1160px"}
html_copy_source = False
html_show_copyright = False


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("include-read", _from_above)


def _from_above(app: object, path: Path, name: str, content: list[str]) -> None:  # noqa: ARG001
    """The front page is the README, whose links begin a folder higher than this one."""
    content[0] = re.sub(r"\]\((?!#|\w+:)", "](../", content[0])
