"""Transcript entries: what was said, numbered, append-only, never edited. Pure.

Everything from outside (a provider, a tool, a caller) passes `admit` once, in the activity or
handler that received it. `admit` refuses what JSON over Temporal would raise on or silently change,
and gives the entry its digest; transcripts are then compared, cached and sealed by a chain over
those digests.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from turnkeeper.errors import AdmissionError
from turnkeeper.text import is_well_formed

MAX_DEPTH = 64
"""Levels of nesting in an entry; pydantic's JSON reader stops near 200."""
MAX_INT_DIGITS = 4_000
"""Digits of an integer; Python refuses to read more than 4,300."""
MAX_ENTRY_BYTES = 1_000_000
"""One entry as JSON; Temporal refuses a payload of 2 MiB, and an entry may travel with others."""

Kind = Literal["message", "reply", "result"]


class Entry(BaseModel):
    """One thing said.

    `message`: a person's or the runtime's text, value `{"text": str}`, of one that was sent to the
    run with its `"id"`, and its `"actor"` where one was named.
    `reply`: the model's, in the provider's own JSON (`dialect` names it), value
    `{"role": "assistant", "content": [...]}`.
    `result`: a tool's, value `{"call_id": str, "tool": str, "text": str, "error"?: true,
    "images"?: [ImageRef as JSON], "actor"?: str}`; `actor` is the person who answered.
    """

    model_config = ConfigDict(frozen=True)

    kind: Kind
    value: Any
    digest: str
    dialect: str | None = None


class Position(BaseModel):
    """A place in a transcript: the chain digest of the first `entries` entries."""

    model_config = ConfigDict(frozen=True)

    digest: str = ""
    entries: int = 0

    def after(self, entries: Iterable[Entry]) -> Position:
        """The position once `entries` follow."""
        digest, count = self.digest, self.entries
        for entry in entries:
            digest, count = chain(digest, entry), count + 1
        return Position(digest=digest, entries=count)


def chain(digest: str, entry: Entry) -> str:
    """The digest of a transcript once `entry` follows the part that has `digest`."""
    return _hash(digest + entry.digest)


def admit(kind: Kind, value: Any, *, dialect: str | None = None) -> Entry:
    """Make an entry of `value`.

    Raises:
        AdmissionError: nested too deep, too large, not plain JSON, or text without a UTF-8 form.
    """
    check_json(value)
    data = _canonical([kind, dialect, value])
    if len(data) > MAX_ENTRY_BYTES:
        raise AdmissionError("$", f"{len(data)} bytes of JSON, at most {MAX_ENTRY_BYTES} are kept")
    return Entry(kind=kind, value=value, digest=_hash_bytes(data), dialect=dialect)


def verify(entry: Entry) -> bool:
    """Whether the entry's value still has the digest that `admit` gave it."""
    return _hash_bytes(_canonical([entry.kind, entry.dialect, entry.value])) == entry.digest


def message(text: str) -> Entry:
    """An admitted `message` entry."""
    return admit("message", {"text": text})


def result(
    call_id: str,
    tool: str,
    text: str,
    *,
    error: bool = False,
    images: Sequence[Mapping[str, Any]] = (),
) -> Entry:
    """An admitted `result` entry; every tool call gets exactly one.

    `images` are `turnkeeper.media.ImageRef`s as JSON.
    """
    value: dict[str, Any] = {"call_id": call_id, "tool": tool, "text": text}
    if error:
        value["error"] = True
    if images:
        value["images"] = [dict(image) for image in images]
    return admit("result", value)


def digest_of(value: Any) -> str:
    """A digest of plain JSON that keeps key order apart: `{"a":1,"b":2}` is not `{"b":2,"a":1}`."""
    return _hash_bytes(_canonical(value))


def arguments_digest(tool: str, arguments: Any) -> str:
    """A digest of a call that treats equal arguments as equal: key order and 1 against 1.0."""
    return _hash(tool + "\0" + json.dumps(_same_numbers(arguments), sort_keys=True))


def check_json(value: Any, *, depth: int = MAX_DEPTH) -> None:
    """Raise AdmissionError unless `value` is plain JSON that survives storage unchanged.

    Iterative, since the depth of the value is the attacker's choice.
    """
    stack: list[tuple[Any, str, int]] = [(value, "$", 0)]
    while stack:
        item, where, level = stack.pop()
        if isinstance(item, str):
            if not is_well_formed(item):
                raise AdmissionError(where, "text holds a lone surrogate, which UTF-8 cannot carry")
        elif isinstance(item, (dict, list)):
            if level >= depth:
                raise AdmissionError(where[:200], f"nested deeper than {depth} levels")
            if isinstance(item, list):
                stack.extend((v, f"{where}[{i}]", level + 1) for i, v in enumerate(item))
                continue
            for key, child in item.items():
                if not isinstance(key, str):
                    raise AdmissionError(where, "an object's keys are strings")
                if not is_well_formed(key):
                    raise AdmissionError(where, "a key holds a lone surrogate")
                stack.append((child, f"{where}.{key}"[:200], level + 1))
        else:
            _check_scalar(item, where)


def _check_scalar(item: Any, where: str) -> None:
    if item is None or isinstance(item, bool):
        return
    if isinstance(item, float):
        if not math.isfinite(item):
            raise AdmissionError(where, "NaN and Infinity are not JSON numbers")
    elif isinstance(item, int):
        # bit_length first: turning a huge integer into digits is itself slow, or refused.
        if item.bit_length() > MAX_INT_DIGITS * 3.32:
            raise AdmissionError(where, f"an integer of more than {MAX_INT_DIGITS} digits")
    else:
        raise AdmissionError(where, f"{type(item).__name__} is not a JSON value")


def strict_json(data: bytes | str, *, limit: int = 2 * MAX_ENTRY_BYTES) -> Any:
    """Read JSON from outside, refusing what readers disagree about.

    Raises:
        AdmissionError: invalid JSON or UTF-8, duplicate keys, NaN, numbers out of range, lone
            surrogates, more than `limit` bytes, nested deeper than `MAX_DEPTH`.
    """
    if len(data) > limit:
        raise AdmissionError("$", f"{len(data)} bytes, at most {limit} are read")
    try:
        value = json.loads(data, object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
    except AdmissionError:
        raise
    except RecursionError:
        raise AdmissionError("$", f"nested deeper than {MAX_DEPTH} levels") from None
    except ValueError as error:  # JSONDecodeError, UnicodeDecodeError, too many digits
        raise AdmissionError("$", f"not JSON ({error})") from None
    check_json(value)
    return value


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise AdmissionError("$", "an object has the same key twice")
    return found


def _no_constant(name: str) -> Any:
    raise AdmissionError("$", f"{name} is not JSON")


def _same_numbers(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {k: _same_numbers(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_same_numbers(v) for v in value]
    return value


def _canonical(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def _hash(text: str) -> str:
    return _hash_bytes(text.encode())


def _hash_bytes(data: bytes) -> str:
    # 128 bits of SHA-256: digests name entries within one run and stand four times in each turn's
    # history, so half the length halves what they cost there.
    return sha256(data).hexdigest()[:32]
