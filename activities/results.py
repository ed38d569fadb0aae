"""A tool's return value as the text that the model reads."""

from __future__ import annotations

import inspect
from typing import Any

from pydantic_core import to_json

from turnkeeper.text import clip, well_formed

_NOTHING = "(the tool returned nothing)"


class Unreadable(Exception):
    """A return value that has no text; the tool itself has run to its end."""


def text_of(value: Any) -> str:
    """Text as it is; models, dataclasses and containers as JSON, NaN and Infinity as strings.

    Raises:
        Unreadable: bytes that are not UTF-8, generators, and what JSON cannot say.
    """
    if value is None:
        return _NOTHING
    if isinstance(value, str):
        return well_formed(value) or "(empty text)"
    if isinstance(value, (bytes, bytearray)):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            raise Unreadable(f"{len(value)} bytes that are not UTF-8 text") from None
    if inspect.isgenerator(value) or inspect.isasyncgen(value) or inspect.iscoroutine(value):
        raise Unreadable(f"a {type(value).__name__}")
    try:
        return to_json(value, inf_nan_mode="strings").decode()
    except Exception as error:  # noqa: BLE001
        # Anything may be returned, and its own serialiser may raise anything.
        raise Unreadable(f"a {type(value).__name__} ({type(error).__name__})") from None


def extract(text: str, limit: int, artifact: str | None) -> str:
    """Head and tail of a text that is too large, and how to read the rest."""
    size = len(text.encode())
    more = (
        f"The whole text is artifact {artifact}: read_artifact(artifact, offset, length)."
        if artifact
        else "The rest could not be stored and is lost."
    )
    note = f"[This result has {size} bytes, too many to show. {more}]\n"
    return note + clip(text, max(limit - len(note), 200))
