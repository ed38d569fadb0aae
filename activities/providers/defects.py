"""What keeps a value from being stored or sent, and what can be mended of it.

`turnkeeper.entries.check_json` refuses a value at its first defect. Admission has to know all of
them: invalid Unicode can be mended, the others cannot.
"""

from __future__ import annotations

import json
import math
from enum import StrEnum
from typing import Any, Final

from activities.providers.wire_json import RepeatedKeys
from turnkeeper.entries import MAX_DEPTH, MAX_INT_DIGITS
from turnkeeper.spec import MAX_ARGUMENTS_BYTES, MAX_REPLY_ARGUMENTS_BYTES
from turnkeeper.text import is_well_formed, well_formed

BLOCK_DEPTH: Final = MAX_DEPTH - 2
"""Levels that a content block may have: it lies in a content, in an entry."""
FIELD_DEPTH: Final = BLOCK_DEPTH - 1
"""Levels that a field of a block may have, such as a call's arguments."""


class Defect(StrEnum):
    """Why a value cannot be stored or sent as it is; each with the words for the model."""

    NOT_JSON = "the arguments were not valid JSON. Send one JSON object that fits the schema."
    NOT_OBJECT = "the arguments were not a JSON object. Send one that fits the tool's schema."
    REPEATED = "an object in the arguments had the same key twice. Send each key once."
    NUMBER = "the arguments held NaN, Infinity or a number out of range. Send finite numbers."
    DIGITS = (
        f"the arguments held an integer of over {MAX_INT_DIGITS} digits. "
        "Send a smaller number, or a string."
    )
    DEPTH = f"the arguments were nested deeper than {FIELD_DEPTH} levels. Send them flatter."
    SIZE = (
        f"the arguments were longer than {MAX_ARGUMENTS_BYTES} bytes. "
        "Send less, or divide it over several calls."
    )
    TOTAL = (
        f"the arguments of all calls together were longer than {MAX_REPLY_ARGUMENTS_BYTES} bytes. "
        "Send this call again in your next reply."
    )
    UNICODE = "the arguments held invalid Unicode (lone surrogates). Send them again as valid text."
    NAME = "there is no tool of this name. Call a tool that you were given, by its exact name."


def usable_arguments(arguments: Any) -> tuple[Any, Defect | None]:
    """The arguments, with their Unicode mended, and what is wrong with them."""
    if not isinstance(arguments, dict):
        return arguments, Defect.NOT_OBJECT
    defects = defects_of(arguments, FIELD_DEPTH)
    # Invalid Unicode comes last: it is the only one that can be mended.
    defect = min(defects, key=list(Defect).index, default=None)
    if defect is Defect.UNICODE:
        try:
            return mend_unicode(arguments), defect
        except ValueError:
            return arguments, Defect.REPEATED
    return arguments, defect


def defects_of(value: Any, depth: int) -> set[Defect]:
    """All that keeps `value` from being stored. Iterative: its depth is anybody's choice."""
    found: set[Defect] = set()
    stack: list[tuple[Any, int]] = [(value, 0)]
    while stack:
        item, level = stack.pop()
        if not isinstance(item, (dict, list)):
            if (defect := _scalar_defect(item)) is not None:
                found.add(defect)
            continue
        if level >= depth:
            found.add(Defect.DEPTH)
            continue
        if isinstance(item, dict):
            if isinstance(item, RepeatedKeys):
                found.add(Defect.REPEATED)
            if not all(map(is_well_formed, item)):
                found.add(Defect.UNICODE)
            item = item.values()
        stack.extend((child, level + 1) for child in item)
    return found


def _scalar_defect(item: Any) -> Defect | None:
    if isinstance(item, str):
        return None if is_well_formed(item) else Defect.UNICODE
    if isinstance(item, float):
        return None if math.isfinite(item) else Defect.NUMBER
    # As `check_json` counts: turning a huge integer into digits is itself slow, or refused.
    if isinstance(item, int) and item.bit_length() > MAX_INT_DIGITS * 3.32:
        return Defect.DIGITS
    return None


def mend_unicode(value: Any) -> Any:
    """`value`, of bounded depth, with each lone surrogate replaced by U+FFFD.

    Raises:
        ValueError: two keys of an object are the same then.
    """
    if isinstance(value, str):
        return well_formed(value)
    if isinstance(value, list):
        return [mend_unicode(child) for child in value]
    if isinstance(value, dict):
        mended = {well_formed(key): mend_unicode(child) for key, child in value.items()}
        if len(mended) != len(value):
            raise ValueError("keys of an object are the same without their invalid Unicode")
        return mended
    return value


def compact_size(value: Any) -> int:
    """Bytes of a value without defects, as compact JSON."""
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())
