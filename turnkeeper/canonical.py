"""Arguments as plain JSON in which the same call is always the same, and another never is. Pure.

What a digest of arguments is made of: neither how a number, a decimal, a date or a set is spelt,
nor a default that is written out, left out or added by a later release, makes another call of it.
"""

from __future__ import annotations

import dataclasses
import json
import typing
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final, Literal

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

__all__ = ["canonical", "given"]

_ABSENT: Final = object()


def given(model: BaseModel) -> dict[str, Any]:
    """The fields that were given and are not what they would be anyway, by alias."""
    told = {n: canonical(v) for n, v in (model.model_extra or {}).items()}
    for name, field in type(model).model_fields.items():
        # Not by its value alone: a factory's may be another one each time.
        if name in model.model_fields_set:
            value = canonical(getattr(model, name))
            if _is_tag(field.annotation) or not _same(value, _default(field)):
                told[field.alias or name] = value
    return told


def canonical(value: Any) -> Any:
    """The value as plain JSON."""
    if isinstance(value, BaseModel):
        return given(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _given_fields(value)
    if isinstance(value, Mapping):
        return {_key(k): canonical(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, deque)):
        return [canonical(v) for v in value]
    if isinstance(value, (set, frozenset)):
        return sorted((canonical(v) for v in value), key=_text)
    return _scalar(value)


def _scalar(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Decimal):
        return _decimal(value)
    if isinstance(value, datetime) and value.tzinfo is not None:
        return _moment(value)
    if isinstance(value, (bytes, bytearray)):
        return value.hex()
    # pydantic's secrets, which all look alike otherwise.
    if callable(reveal := getattr(value, "get_secret_value", None)):
        return canonical(reveal())
    return to_jsonable_python(value, fallback=str, inf_nan_mode="strings")


def _decimal(value: Decimal) -> str:
    """With every digit: arithmetic, `normalize` too, would round to the context's precision."""
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        return str(value)
    significant = "".join(map(str, digits)).lstrip("0")
    shown = significant.rstrip("0")
    exponent += len(significant) - len(shown)
    return f"{'-' if sign else ''}{shown}e{exponent}" if shown else "0"


def _moment(value: datetime) -> str:
    try:
        return value.astimezone(UTC).isoformat()
    except OverflowError:
        # In the first or last hours of the calendar.
        return value.isoformat()


def _key(key: Any) -> str:
    return key if isinstance(key, str) else _text(canonical(key)).strip('"')


def _given_fields(value: Any) -> dict[str, Any]:
    """Of a dataclass, which does not know what it was given: the fields unlike their defaults."""
    told = {}
    # Of pydantic's, a default is a field's own description.
    described: Mapping[str, FieldInfo] = getattr(value, "__pydantic_fields__", {})
    hints = _hints(type(value))
    for field in dataclasses.fields(value):
        shown = canonical(getattr(value, field.name))
        default = (
            _default(described[field.name])
            if field.name in described
            else _made(field.default, field.default_factory, dataclasses.MISSING)
        )
        if _is_tag(hints.get(field.name)) or not _same(shown, default):
            told[field.name] = shown
    return told


def _hints(kind: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(kind)
    except Exception:  # noqa: BLE001  what cannot be resolved is no tag that pydantic has read
        return {}


def _default(field: FieldInfo) -> Any:
    if field.is_required() or field.default_factory_takes_validated_data:
        return _ABSENT
    return canonical(field.get_default(call_default_factory=True, validated_data={}))


def _made(default: Any, factory: Any, missing: Any) -> Any:
    if default is not missing:
        return canonical(default)
    make: Callable[[], Any] | None = None if factory is missing else factory
    return _ABSENT if make is None else canonical(make())


def _is_tag(annotation: Any) -> bool:
    """Whether a field can have one value only: it tells the members of a union apart."""
    return typing.get_origin(annotation) is Literal and len(typing.get_args(annotation)) == 1


def _same(value: Any, default: Any) -> bool:
    # As text: in Python, True equals 1.
    return default is not _ABSENT and _text(value) == _text(default)


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
