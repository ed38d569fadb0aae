"""Check plain JSON against a JSON schema. Pure; no workflow imports it.

The schema is its author's, the value a model's. Therefore nothing is fetched (references stay
inside the schema), patterns run in linear time, and unique items are told apart by their digests:
neither a text nor a list of the model's choice can hold a worker up.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from pydantic_core import SchemaError, SchemaValidator, core_schema

from turnkeeper.entries import arguments_digest, check_json
from turnkeeper.errors import AdmissionError
from turnkeeper.text import one_line

MAX_PROBLEMS = 10
"""That are told of one value."""
PROBLEM_CHARACTERS = 300
"""Of each."""


class JsonSchema:
    """A schema, of draft 2020-12 unless its `$schema` says otherwise; `format` is not enforced.

    Raises:
        ValueError: says what is wrong with the schema.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        from jsonschema import exceptions, validators  # type: ignore[import-untyped]
        from referencing import Registry

        try:
            check_json(schema)
            _refuse_unfit(schema)
            known = validators.validator_for(schema, default=validators.Draft202012Validator)
            known.check_schema(schema)
        except AdmissionError as error:
            raise ValueError(str(error)) from None
        except exceptions.SchemaError as error:
            told = one_line(error.message, PROBLEM_CHARACTERS)
            raise ValueError(f"{error.json_path}: {told}") from None
        own = validators.extend(known, {"pattern": _pattern, "uniqueItems": _unique})
        # A registry of its own: the default one would fetch what a reference names.
        self._validator = own(schema, registry=Registry())
        try:
            self.problems(None)
        except RecursionError:
            raise ValueError("a reference leads back to itself") from None

    def problems(self, value: Any) -> list[str]:
        """What is wrong with the value, each problem on a line with its place; none if it fits."""
        found = itertools.islice(self._validator.iter_errors(value), MAX_PROBLEMS)
        return [f"{e.json_path}: {one_line(e.message, PROBLEM_CHARACTERS)}" for e in found]


def _refuse_unfit(schema: Any) -> None:
    """What cannot be checked without a network or in bounded time. Iterative: as deep as it is."""
    from referencing import Registry, Resource
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    whole = Resource.from_contents(schema, default_specification=DRAFT202012)
    # There is nothing else in the registry.
    resolver = Registry().resolver_with_root(whole)
    stack = [schema]
    while stack:
        item = stack.pop()
        if isinstance(item, list):
            stack.extend(item)
        if not isinstance(item, dict):
            continue
        for name in ("$ref", "$dynamicRef"):
            if not isinstance(ref := item.get(name), str):
                continue
            try:
                resolver.lookup(ref)
            except Unresolvable:
                told = f"{name} {one_line(ref, 100)!r} leads to nothing within the schema"
                raise ValueError(told) from None
        if "patternProperties" in item and isinstance(item["patternProperties"], dict):
            raise ValueError(
                "patternProperties is not supported; use propertyNames with a pattern, and "
                "additionalProperties"
            )
        if isinstance(pattern := item.get("pattern"), str):
            _matcher(pattern)
        stack.extend(item.values())


@lru_cache(maxsize=256)
def _matcher(pattern: str) -> SchemaValidator:
    """Of pydantic's own engine, whose time is linear in the text."""
    try:
        return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
    except SchemaError as error:
        why = one_line(str(error).replace("regex parse error:", ""), 200)
        raise ValueError(
            f"pattern {one_line(pattern, 80)!r} cannot be used ({why}); look-around and "
            "back-references are not supported"
        ) from None


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[Exception]:  # noqa: ARG001
    from jsonschema import ValidationError

    if isinstance(instance, str) and not _matcher(pattern).isinstance_python(instance):
        yield ValidationError(f"{one_line(repr(instance), 80)} does not match {pattern!r}")


def _unique(validator: Any, wanted: bool, instance: Any, schema: Any) -> Iterator[Exception]:  # noqa: ARG001
    from jsonschema import ValidationError

    if not (wanted and isinstance(instance, list)):
        return
    if len({arguments_digest("", item) for item in instance}) < len(instance):
        yield ValidationError("has non-unique items")
