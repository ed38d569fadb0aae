"""A tool's return value as what the model is told: text, and bytes that are none."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from pydantic_core import to_json

from activities.media import TEXT, sniff
from turnkeeper.entries import strict_json
from turnkeeper.errors import AdmissionError
from turnkeeper.media import Media
from turnkeeper.returned import BYTES, Unreadable, refuse_size, text_of
from turnkeeper.text import clip_json, json_size

_MAX_DETAILS_BYTES = 64_000


_PLAIN = (str, Media, *BYTES)


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
        return _parts(value) or text_of(value)
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
    binary = [i for i in items if isinstance(i, (Media, *BYTES))]
    if not binary:
        return None
    refuse_size(sum(len(i.data if isinstance(i, Media) else i) for i in binary), "bytes")
    media = {id(i): m for i in binary if (m := _media(i))}
    return Parts([media.get(id(i)) or text_of(i) for i in items]) if media else None


def _media(item: Media | bytes | bytearray | memoryview) -> Media | None:
    """None for bytes that are text."""
    if isinstance(item, Media):
        return dataclasses.replace(item, data=bytes(item.data))
    data = bytes(item)
    return None if sniff(data) == TEXT else Media(data)


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
