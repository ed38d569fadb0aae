"""Which schemas the API is asked to enforce, and in what form."""

from __future__ import annotations

from typing import Any

import pytest

from activities.providers import ModelRequest
from activities.providers.anthropic_output import enforceable
from activities.providers.anthropic_request import build_request
from turnkeeper import Agent
from turnkeeper.entries import message
from turnkeeper.output_type import OutputType


def an_object(**properties: Any) -> dict[str, Any]:
    """A schema with these properties, all of them required."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def test_bounds_are_left_out_and_keys_closed() -> None:
    """What is sent is what the API takes; references are written out."""
    schema = {
        **an_object(
            n={"type": "integer", "minimum": 1, "description": "How many."},
            when={"type": "string", "format": "date", "maxLength": 10},
            rows={"type": "array", "items": {"$ref": "#/$defs/row"}, "minItems": 2, "maxItems": 9},
            kind={"type": ["string", "null"]},
        ),
        "$defs": {"row": an_object(kind={"const": "row", "type": "string"})},
    }
    row = {"kind": {"enum": ["row"]}}
    assert enforceable(schema) == {
        "type": "object",
        "properties": {
            "n": {"type": "integer", "description": "How many."},
            "when": {"type": "string", "format": "date"},
            "rows": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": row,
                    "additionalProperties": False,
                    "required": ["kind"],
                },
            },
            "kind": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
        "additionalProperties": False,
        "required": ["n", "when", "rows", "kind"],
    }


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": {"type": "string"}},
        OutputType(dict[str, int]).json_schema,
        an_object(a={}),
        an_object(a=True),
        an_object(a={"type": "array"}),
        an_object(a={"type": "array", "prefixItems": [{"type": "string"}], "items": False}),
        an_object(a={"type": "object", "additionalProperties": {"type": "string"}}),
        an_object(a={"allOf": [{"type": "string"}]}),
        an_object(a={"enum": [{"a": 1}]}),
        {**an_object(a={"$ref": "#/$defs/a"}), "$defs": {"a": an_object(a={"$ref": "#/$defs/a"})}},
        an_object(a={"$ref": "#"}),
        {**an_object(a={"type": "string"}), "if": {}},
        {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(25)}},
        an_object(**{f"p{i}": {"type": ["string", "null"]} for i in range(17)}),
        an_object(**{f"p{i}": {"type": "string"} for i in range(101)}),
    ],
)
def test_nothing_is_sent_of_what_would_mean_something_else(schema: dict[str, Any]) -> None:
    """Free keys, recursion, tuples, conditions, and more than the API takes."""
    assert enforceable(schema) is None


FORM = {
    "type": "json_schema",
    "schema": {**an_object(a={"type": "string"}), "additionalProperties": False},
}


@pytest.mark.parametrize(
    ("options", "config"),
    [
        ({}, {"format": FORM}),
        ({"output_config": {"effort": "low"}}, {"effort": "low", "format": FORM}),
        ({"output_config": None}, None),
        ({"output_config": {"format": None}}, {"format": None}),
    ],
)
def test_the_models_options_have_the_last_word(
    options: dict[str, Any], config: dict[str, Any] | None
) -> None:
    """The form stands beside an effort; options that have a say about it are left alone."""
    agent = Agent(
        name="a",
        model="m",
        instructions="i",
        output=an_object(a={"type": "string", "minLength": 1}),
        model_options=options,
    )
    body = build_request(ModelRequest(agent.spec(), [message("q")], max_tokens=10))
    assert body.get("output_config") == config
