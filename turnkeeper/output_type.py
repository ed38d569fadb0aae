"""What an agent's answers have to be: a type that pydantic knows, or a JSON schema. Pure.

    Agent(..., output=Report)           # a pydantic model, a dataclass, list[Row], int | None, ...
    Agent(..., output={"type": ...})    # a JSON schema

No workflow imports this: a type is its author's code, and is run by activities and callers only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import to_json

from turnkeeper.entries import check_json, strict_json
from turnkeeper.errors import AdmissionError
from turnkeeper.json_schema import MAX_PROBLEMS, PROBLEM_CHARACTERS, JsonSchema
from turnkeeper.text import one_line

MAX_SCHEMA_BYTES = 32_000
"""Of the schema as JSON: it is part of the instructions, and of the state that a run carries."""
MAX_ANSWER_BYTES = 1_000_000
"""Of an answer as JSON, as it was written and as its type writes it."""

_FENCED = re.compile(r"```[a-zA-Z0-9_-]*[ \t]*\r?\n(.*)\n[ \t]*```", re.DOTALL)


class Unfit(ValueError):
    """An answer is not of the type; `problems` say why, for the model that wrote it."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


class OutputType:
    """Reads answers.

    output: a JSON schema, if it is a dict; else a type that pydantic's `TypeAdapter` takes.

    Raises:
        ValueError: no JSON schema can be made of it, or it is wrong or too large.
    """

    def __init__(self, output: Any) -> None:
        self._adapter: TypeAdapter[Any] | None = None
        self._schema: JsonSchema | None = None
        if isinstance(output, dict):
            self._schema, self.json_schema = JsonSchema(output), output
        else:
            self._adapter, self.json_schema = _adapter_of(output)
        if (size := len(_compact(self.json_schema).encode())) > MAX_SCHEMA_BYTES:
            raise ValueError(f"its JSON schema has {size} bytes, at most {MAX_SCHEMA_BYTES} may be")

    @property
    def typed(self) -> bool:
        """Whether the author's code checks answers, not the schema alone."""
        return self._adapter is not None

    def canonical(self, text: str) -> str:
        """An answer as compact JSON, as the type writes it: with its defaults, numbers as numbers.

        Raises:
            Unfit: it is none.
            Exception: whatever a validator of the author's raises beside ValueError.
        """
        value = _json_in(text)
        if self._schema is not None and (problems := self._schema.problems(value)):
            raise Unfit(problems)
        if self._adapter is not None:
            value = _written(self._adapter, _read(self._adapter, value))
        return _compact(value)


def read_as(output: Any, value: Any) -> Any:
    """The output of a run as a type that pydantic's `TypeAdapter` takes.

    Raises:
        Unfit: it is none.
    """
    return _read(TypeAdapter(output), value)


def _adapter_of(output: Any) -> tuple[TypeAdapter[Any], dict[str, Any]]:
    try:
        adapter = TypeAdapter(output)
        return adapter, adapter.json_schema(schema_generator=_Lean)
    except PydanticUserError as error:
        raise ValueError(
            f"no JSON schema can be made of it ({one_line(error.message, 200)})"
        ) from None


class _Lean(GenerateJsonSchema):
    """Without the titles that repeat each name: the model pays for every token of a schema."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002
        """Never."""
        return False


def _json_in(text: str) -> Any:
    """The JSON that a text consists of, without the code fence that may stand around it."""
    text = text.strip()
    if fenced := _FENCED.fullmatch(text):
        text = fenced[1]
    try:
        return strict_json(text, limit=MAX_ANSWER_BYTES)
    except AdmissionError as error:
        told = f"It is not one JSON value and nothing else: {one_line(error.why, 200)}"
        raise Unfit([told]) from None


def _read(adapter: TypeAdapter[Any], value: Any) -> Any:
    try:
        # As JSON: dates, tuples and enums follow JSON's rules, not Python's.
        return adapter.validate_json(to_json(value))
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False, include_input=False)
        told = [
            one_line(
                f"{'.'.join(('$', *map(str, p['loc'])))}: {p['msg'].removeprefix('Value error, ')}",
                PROBLEM_CHARACTERS,
            )
            for p in problems[:MAX_PROBLEMS]
        ]
        raise Unfit(told) from None


def _written(adapter: TypeAdapter[Any], value: Any) -> Any:
    # To be read again by a caller's type: without computed fields, and by alias.
    plain = adapter.dump_python(value, mode="json", by_alias=True, round_trip=True, warnings=False)
    try:
        check_json(plain)
    except AdmissionError as error:
        # Text such as "NaN" was read as a number.
        raise Unfit([one_line(str(error), PROBLEM_CHARACTERS)]) from None
    return plain


def _compact(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    if len(text) > MAX_ANSWER_BYTES:
        raise Unfit([f"It has {len(text)} characters as JSON, at most {MAX_ANSWER_BYTES} may be."])
    return text
