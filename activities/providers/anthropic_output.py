"""The form of an answer, for the API to enforce, where it can.

`output_config.format` takes a part of JSON schema, and a request with any other keyword is refused.
What only bounds a value (lengths, ranges, patterns) is left out here: the whole schema stands in
the instructions, and every answer is checked. Of a schema that would mean something else then (free
keys, recursion, tuples, conditions) nothing is sent.

Source: the API's page on structured outputs and anthropic 2.14.0 (`lib._parse._transform`). A
change here changes the requests of open runs: their cached prompt is lost once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

MAX_PROPERTIES: Final = 100
MAX_OPTIONAL: Final = 24
"""Properties that may be left out."""
MAX_UNIONS: Final = 16
MAX_NODES: Final = 500
"""Of a schema that is written out along its references."""
MAX_LEVELS: Final = 32
"""Of the same: one whose references lead back to itself has more."""

_SCALARS: Final = frozenset({"string", "integer", "number", "boolean", "null"})
_FORMATS: Final = frozenset(
    {
        *("date-time", "time", "date", "duration", "email", "hostname", "uri"),
        *("ipv4", "ipv6", "uuid"),
    }
)
_KEPT: Final = ("title", "description")
_BOUNDS: Final = frozenset(
    {
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
        *("minLength", "maxLength", "pattern", "format"),
        *("minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties"),
        *("default", "examples", "deprecated", "readOnly", "writeOnly", "discriminator"),
        *("$schema", "$id", "$comment"),
    }
)
"""Keywords that are left out: they bound a value, or only describe it."""
_DEFS: Final = "#/$defs/"


class _Unfit(Exception):
    """The API cannot enforce a schema."""


def enforceable(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """The part of a schema that the API can enforce; None if it would mean something else."""
    if schema.get("type") != "object" and "$ref" not in schema:
        return None
    try:
        return _Form(schema).made()
    except _Unfit:
        return None


class _Form:
    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = dict(schema)
        self._defs = self._schema.pop("$defs", {})
        self._properties = self._optional = self._unions = 0
        self._nodes = self._level = 0

    def made(self) -> dict[str, Any]:
        # Written out: what the API counts, it may count so, and recursion shows.
        form = self._node(self._schema)
        if (
            self._properties > MAX_PROPERTIES
            or self._optional > MAX_OPTIONAL
            or self._unions > MAX_UNIONS
        ):
            raise _Unfit
        return form

    def _node(self, schema: Any) -> dict[str, Any]:
        self._nodes += 1
        self._level += 1
        known = isinstance(schema, dict)
        if not known or self._nodes > MAX_NODES or self._level > MAX_LEVELS:
            raise _Unfit
        rest = {k: v for k, v in schema.items() if k not in _BOUNDS}
        kept = {k: v for k in _KEPT if isinstance(v := rest.pop(k, None), str)}
        if "$ref" in rest:
            form = self._referred(rest.pop("$ref"))
        elif "enum" in rest or "const" in rest:
            form = _literal(rest)
        elif "anyOf" in rest or "oneOf" in rest:
            form = self._union(rest.pop("anyOf", None) or rest.pop("oneOf", None))
        else:
            form = self._of_type(rest.pop("type", None), rest, schema)
        if rest:
            raise _Unfit
        self._level -= 1
        return {**form, **kept}

    def _referred(self, ref: Any) -> dict[str, Any]:
        name = ref.removeprefix(_DEFS) if isinstance(ref, str) and ref.startswith(_DEFS) else None
        if name not in self._defs:
            raise _Unfit
        return self._node(self._defs[name])

    def _union(self, parts: Any) -> dict[str, Any]:
        if not isinstance(parts, list):
            raise _Unfit
        self._unions += 1
        return {"anyOf": [self._node(part) for part in parts]}

    def _of_type(self, type_: Any, rest: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
        if type_ == "object":
            return self._object(rest)
        if type_ == "array":
            least = {"minItems": n} if (n := schema.get("minItems")) in (0, 1) else {}
            return {"type": "array", "items": self._node(rest.pop("items", None)), **least}
        if isinstance(type_, list) and _SCALARS.issuperset(type_):
            self._unions += 1
            return {"anyOf": [{"type": one} for one in type_]}
        if type_ not in _SCALARS:
            raise _Unfit
        form = {"type": type_}
        if type_ == "string" and schema.get("format") in _FORMATS:
            form["format"] = schema["format"]
        return form

    def _object(self, rest: dict[str, Any]) -> dict[str, Any]:
        properties = rest.pop("properties", None)
        # Other keys would not be allowed any more.
        if not isinstance(properties, dict) or rest.pop("additionalProperties", False) is not False:
            raise _Unfit
        required = [name for name in rest.pop("required", ()) if name in properties]
        self._properties += len(properties)
        self._optional += len(properties) - len(required)
        return {
            "type": "object",
            "properties": {name: self._node(part) for name, part in properties.items()},
            "additionalProperties": False,
            "required": required,
        }


def _literal(rest: dict[str, Any]) -> dict[str, Any]:
    rest.pop("type", None)
    values = [rest.pop("const")] if "const" in rest else rest.pop("enum")
    if not values or not all(v is None or isinstance(v, str | int | float) for v in values):
        raise _Unfit
    return {"enum": list(values)}
