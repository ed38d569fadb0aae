"""What can be switched off or limited, and by which names. Pure."""

from __future__ import annotations

import re
from typing import Literal

from pydantic.config import JsonDict

from turnkeeper.text import WHITE, one_line

Kind = Literal["tool", "agent", "tenant"]
"""What can be switched off."""
Limited = Literal["agent", "tenant"]
"""What can have a limit per day."""

_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,130}")
_SEEN = rf"[^{WHITE}\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]+"
"""What `one_line` leaves as it is."""
NAME_OF_KIND: JsonDict = {
    "if": {"properties": {"kind": {"const": "tenant"}}, "required": ["kind"]},
    "then": {"properties": {"name": {"pattern": f"^{_SEEN}( {_SEEN})*$"}}},
    "else": {"properties": {"name": {"pattern": f"^{_NAME.pattern}$"}}},
}
"""The rule for names as a part of a JSON schema."""


def check_name(kind: Kind, name: str) -> None:
    """Raises ValueError: nothing of that kind can have this name."""
    if kind == "tenant":
        if one_line(name, 512) != name:
            raise ValueError("name: is blank, or begins or ends so, or has control characters")
    elif not _NAME.fullmatch(name):
        raise ValueError(f"name: {one_line(name, 80)!r} is no name of a {kind}")
