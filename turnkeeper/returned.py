"""A tool's return value as the text that the model is told. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_json

from turnkeeper.blocks import MAX_ARTIFACT_BYTES
from turnkeeper.text import well_formed

BYTES = (bytes, bytearray, memoryview)
_NOTHING = "(the tool returned nothing)"
_SCALARS = frozenset({bool, float, int, str, type(None)})


class Unreadable(Exception):
    """A return value that has no text; the tool itself has run to its end."""


def text_of(value: Any) -> str:
    """Text as it is; models, dataclasses and containers as JSON, NaN and Infinity as strings.

    Raises:
        Unreadable: iterators, and what is too large even for the artifact store.
        PydanticSerializationError: what JSON cannot say; an author's own serialiser may raise more.
    """
    if value is None:
        return _NOTHING
    if isinstance(value, str):
        refuse_size(str.__len__(value), "characters of text")
        # The plain text of a subclass, whose own methods may do anything.
        return well_formed(str.__str__(value)) or "(empty text)"
    if isinstance(value, BYTES):
        return bytes(value).decode() or "(empty text)"
    _refuse_endless(value)
    text = _json(value)
    refuse_size(len(text), "characters of JSON")
    return text


def _json(value: Any) -> str:
    try:
        return to_json(value, inf_nan_mode="strings").decode()
    except PydanticSerializationError:
        # Of halves of characters, which UTF-8 has not; what fails for another reason fails again.
        return to_json(_mended(value), inf_nan_mode="strings").decode()


def _mended(value: Any) -> Any:
    """The same with all its text well-formed."""
    if isinstance(value, str):
        return well_formed(str.__str__(value))
    if isinstance(value, dict):
        return {_mended(k): _mended(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_mended(v) for v in value]
    if isinstance(value, BaseModel):
        return _mended(value.model_dump())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _mended(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return value


def refuse_size(size: int, what: str) -> None:
    """Before anything copies it.

    Raises:
        Unreadable: it is more than the artifact store keeps.
    """
    if size > MAX_ARTIFACT_BYTES:
        raise Unreadable(f"{size:,} {what}, more than the {MAX_ARTIFACT_BYTES:,} that are kept")


def _refuse_endless(value: Any) -> None:
    """Iterators, which the serialiser would read to an end that some do not have; huge texts."""
    stack, seen, size = [value], set[int](), 0
    while stack:
        item = stack.pop()
        if type(item) in _SCALARS:
            if type(item) is str:
                size += len(item)
                refuse_size(size, "characters of text or more")
            continue
        if isinstance(item, (Iterator, AsyncIterator, Coroutine)):
            raise Unreadable(f"a {type(item).__name__}")
        if isinstance(item, (dict, list, tuple, set, frozenset)) and id(item) not in seen:
            seen.add(id(item))
            stack.extend(item.values() if isinstance(item, dict) else item)
