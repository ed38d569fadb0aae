"""A request's body as bytes: what `json.dumps` would write."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from activities.providers import ProviderError

_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
_LEVELS: Final = 8
"""Of objects and lists from the body down to an image's bytes."""


class Base64(str):
    """Text that stands between JSON's quotes as it is."""

    __slots__ = ()


def encoded(body: dict[str, Any], *, images: bool) -> bytes:
    """The body as JSON.

    images: it holds some. It is then written in parts, and they are copied: `json.dumps` would look
        for escapes in all of it, and have every other thread wait for that.

    Raises:
        ProviderError: `stop`, for options that are not JSON.
    """
    try:
        return b"".join(_parts(body, _LEVELS if images else 0))
    except (TypeError, ValueError, RecursionError) as error:
        # Entries were admitted; only options can be of this kind.
        raise ProviderError(
            "stop", "invalid_options", f"the request is not JSON ({type(error).__name__})"
        ) from None


def _parts(value: Any, levels: int) -> Iterator[bytes]:
    if type(value) is Base64:
        yield b'"'
        yield value.encode()
        yield b'"'
    elif levels and isinstance(value, dict) and value:
        for before, (name, child) in zip(_commas(b"{"), value.items(), strict=False):
            yield before + _ENCODER.encode(name).encode() + b":"
            yield from _parts(child, levels - 1)
        yield b"}"
    elif levels and isinstance(value, list) and value:
        for before, child in zip(_commas(b"["), value, strict=False):
            yield before
            yield from _parts(child, levels - 1)
        yield b"]"
    else:
        yield _ENCODER.encode(value).encode()


def _commas(first: bytes) -> Iterator[bytes]:
    yield first
    while True:
        yield b","
