"""What can be switched off or limited, and by which names. Pure."""

from __future__ import annotations

import re
from typing import Literal

from turnkeeper.text import one_line

Kind = Literal["tool", "agent", "tenant"]
"""What can be switched off."""
Limited = Literal["agent", "tenant"]
"""What can have a limit per day."""

_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,130}")


def check_name(kind: Kind, name: str) -> None:
    """Raises ValueError: nothing of that kind can have this name."""
    if kind == "tenant":
        if one_line(name, 512) != name:
            raise ValueError("name: is blank, or begins or ends so, or has control characters")
    elif not _NAME.fullmatch(name):
        raise ValueError(f"name: {one_line(name, 80)!r} is no name of a {kind}")
