"""A tool's return value as what the model is told: text, and bytes that are none."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_json

from activities.media import TEXT, sniff
from turnkeeper.artifacts import MAX_ARTIFACT_BYTES
from turnkeeper.entries import strict_json
from turnkeeper.errors import AdmissionError
from turnkeeper.media import Media
from turnkeeper.text import clip_json, json_size, well_formed

_NOTHING = "(the tool returned nothing)"
_SCALARS = frozenset({bool, float, int, str, type(None)})
_MAX_DETAILS_BYTES = 64_000


_BYTES = (bytes, bytearray, memoryview)
_PLAIN = (str, Media, *_BYTES)


class Unreadable(Exception):
    """A return value that has no text; the tool itself has run to its end."""


@dataclasses.dataclass(frozen=True)
class Parts:
    """A result that is not text alone."""

    parts: Sequence[str | Media]

    def packed(self) -> bytes:
        """As it leaves a tool's process: a line of JSON, then the bytes of all media."""
        media = [p for p in self.parts if isinstance(p, Media)]
        heads = [
            p if isinstance(p, str) else [len(p.data), p.media_type, p.name] for p in self.parts
        ]
        return b"".join([json.dumps(heads).encode(), b"\n", *(m.data for m in media)])

    @classmethod
    def unpacked(cls, packed: bytes) -> Parts:
        """What `packed` gave."""
        at = packed.index(b"\n") + 1
        parts: list[str | Media] = []
        for head in json.loads(packed[:at]):
            if isinstance(head, str):
                parts.append(head)
                continue
            size, media_type, name = head
            parts.append(Media(packed[at : at + size], media_type, name))
            at += size
        return cls(parts)


def heft(value: Any) -> int:
    """About how many bytes `content_of` has to look at, of text and media; 0 for anything else.

    What an author's own serialiser reads is read where the author expects it: not in a thread.
    """
    items: Any = value.parts if type(value) is Parts else value
    # By `type`, here and below: what an author returns may raise where `isinstance` asks it.
    items = items if type(items) in (list, tuple) else [items]
    if not all(type(i) in _PLAIN for i in items):
        return 0
    return sum(len(i.data if isinstance(i, Media) else i) for i in items)


def content_of(value: Any) -> str | Parts:
    """Text as it is; models, dataclasses and containers as JSON, NaN and Infinity as strings.

    `Media`, and bytes that are not text, alone or in a list or tuple, as `Parts`.

    Raises:
        Unreadable: iterators, what JSON cannot say, and what is too large even for the artifact
            store: it is told before anything copies it.
    """
    try:
        return _parts(value) or _text(value)
    except Unreadable:
        raise
    except BaseException as error:  # noqa: BLE001 - see below
        # Anything may be returned, and its own serialiser may raise anything, SystemExit too.
        raise Unreadable(f"a {type(value).__name__} ({type(error).__name__})") from None


def _parts(value: Any) -> Parts | None:
    """None if there are no media in it."""
    # By its very type: what only says that it is one may be anything.
    if type(value) is Parts:
        return value
    items = value if isinstance(value, (list, tuple)) else [value]
    binary = [i for i in items if isinstance(i, (Media, *_BYTES))]
    if not binary:
        return None
    _refuse_size(sum(len(i.data if isinstance(i, Media) else i) for i in binary), "bytes")
    media = {id(i): m for i in binary if (m := _media(i))}
    return Parts([media.get(id(i)) or _text(i) for i in items]) if media else None


def _media(item: Media | bytes | bytearray | memoryview) -> Media | None:
    """None for bytes that are text."""
    if isinstance(item, Media):
        return dataclasses.replace(item, data=bytes(item.data))
    data = bytes(item)
    return None if sniff(data) == TEXT else Media(data)


def _text(value: Any) -> str:
    if value is None:
        return _NOTHING
    if isinstance(value, str):
        _refuse_size(str.__len__(value), "characters of text")
        # The plain text of a subclass, whose own methods may do anything.
        return well_formed(str.__str__(value)) or "(empty text)"
    if isinstance(value, _BYTES):
        return bytes(value).decode() or "(empty text)"
    _refuse_endless(value)
    text = _json(value)
    _refuse_size(len(text), "characters of JSON")
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


def _refuse_size(size: int, what: str) -> None:
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
                _refuse_size(size, "characters of text or more")
            continue
        if isinstance(item, (Iterator, AsyncIterator, Coroutine)):
            raise Unreadable(f"a {type(item).__name__}")
        if isinstance(item, (dict, list, tuple, set, frozenset)) and id(item) not in seen:
            seen.add(id(item))
            stack.extend(item.values() if isinstance(item, dict) else item)


def sendable(details: Any) -> Any:
    """Heartbeat details as the plain JSON that the next attempt reads.

    Raises:
        TypeError: JSON cannot say it.
        ValueError: it is too large or too deep.
    """
    try:
        data = to_json(details, inf_nan_mode="strings")
    except Exception as error:  # noqa: BLE001  a model's own serialiser may raise anything
        raise TypeError(f"heartbeat details cannot be sent: {error}") from None
    if len(data) > _MAX_DETAILS_BYTES:
        raise ValueError(f"heartbeat details of {len(data)} bytes; {_MAX_DETAILS_BYTES} are kept")
    try:
        return strict_json(data)
    except AdmissionError as error:
        raise ValueError(f"heartbeat details cannot be sent: {error}") from None


def extract(text: str, limit: int, artifact: str | None) -> str:
    """Head and tail of a text that is too large, and how to read the rest."""
    size = len(text.encode())
    more = (
        f"The whole text is artifact {artifact}: read_artifact(artifact, offset or line), "
        "search_artifact(artifact, query)."
        if artifact
        else "The rest could not be stored and is lost."
    )
    note = f"[This result has {size} bytes, too many to show. {more}]\n"
    return note + clip_json(text, max(limit - json_size(note), 200))
