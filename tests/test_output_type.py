"""What answers have to be: how a type or a schema is declared, and how an answer is read."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field, computed_field, field_validator

from turnkeeper import Agent
from turnkeeper.contract import Checked
from turnkeeper.errors import DefinitionError
from turnkeeper.output_type import OutputType, Unfit, read_as
from turnkeeper.text import utf8_size
from turnkeeper.typed import CORRECTION_BYTES, Typed, correction


class Line(BaseModel):
    """A line of an invoice."""

    item: str = Field(min_length=2)
    amount: Decimal
    kind: Literal["goods", "fee"] = "goods"

    @field_validator("item")
    @classmethod
    def _known(cls, value: str) -> str:
        if value == "nothing":
            raise ValueError("nothing is no item")
        if value == "bug":
            raise KeyError(value)
        return value

    @computed_field
    def shown(self) -> str:
        """For people."""
        return f"{self.item} {self.amount}"


LINE = OutputType(Line)
GOOD = '{"item":"pen","amount":"1.50","kind":"goods"}'


def problems(output: OutputType, text: str) -> str:
    """Why a text is no answer."""
    with pytest.raises(Unfit) as refused:
        output.canonical(text)
    assert len(refused.value.problems) <= 10
    assert all(len(p) < 400 for p in refused.value.problems)
    return str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        '{"item": "pen", "amount": 1.50}',
        ' \n{"kind": "goods", "amount": "1.50", "item": "pen"}\n',
        '```json\n{"item": "pen", "amount": "1.50"}\n```',
        '```\r\n{"item": "pen", "amount": "1.50"}\n```\n',
    ],
)
def test_an_answer_is_read_as_its_type_writes_it(text: str) -> None:
    """With defaults and one spelling, without a fence; what is read can be read again."""
    read = LINE.canonical(text)
    assert json.loads(read)["amount"] in ("1.50", "1.5")
    assert list(json.loads(read)) == ["item", "amount", "kind"]
    assert read_as(Line, json.loads(read)).item == "pen"
    assert LINE.canonical(read) == read


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not JSON"),
        (f"Here it is: {GOOD}", "not JSON"),
        (f"```json\n{GOOD}\n```\nAnd so on.", "not JSON"),
        ("[" * 100_000, "nested deeper"),
        ('{"item": ' * 200 + "1" + "}" * 200, "nested deeper"),
        ('{"item": "pen", "amount": NaN}', "NaN is not JSON"),
        ('{"item": "pen", "amount": 1e999}', "not JSON numbers"),
        ('{"item": "pen", "item": "ink", "amount": 1}', "same key twice"),
        ('{"item": "\\ud800", "amount": 1}', "lone surrogate"),
        (f'{{"item": "pen", "amount": {"9" * 5_000}}}', "not JSON"),
        (f'"{"x" * 1_000_001}"', "1000003 bytes"),
        ('{"item": "x", "amount": "a lot"}', r"$.item: String should have at least 2 characters"),
        ('{"item": "nothing", "amount": 1}', "$.item: nothing is no item"),
    ],
)
def test_what_is_no_answer_is_refused_with_a_reason(text: str, why: str) -> None:
    """Whatever a model writes: in bounded words for it, and without a crash."""
    assert why in problems(LINE, text)


def test_every_wrong_field_is_named() -> None:
    """Each problem has its place, up to ten."""
    told = problems(OutputType(list[int]), json.dumps(["a"] * 50))
    assert told.count("valid integer") == 10
    assert "$.3: " in told
    told = problems(OutputType({"items": {"type": "integer"}}), json.dumps(["a"] * 50))
    assert told.count("is not of type 'integer'") == 10


def test_text_that_is_read_as_no_number_is_refused() -> None:
    """A type may read the text "NaN" as a number, which could not be stored."""
    assert "NaN" in problems(OutputType(float), '"NaN"')


def test_a_schema_is_enforced_as_it_is() -> None:
    """Of an answer to a JSON schema nothing is changed but white space."""
    output = OutputType(
        {
            "type": "object",
            "properties": {
                "n": {"$ref": "#/$defs/count"},
                "tags": {"type": "array", "uniqueItems": True},
                "code": {"type": "string", "pattern": "^(a+)+$"},
            },
            "required": ["n"],
            "additionalProperties": False,
            "$defs": {"count": {"type": "integer", "minimum": 1}},
        }
    )
    assert output.canonical('{"n": 3, "code": "aa"}') == '{"n":3,"code":"aa"}'
    assert "$.n: 0 is less than the minimum of 1" in problems(output, '{"n": 0}')
    assert "'x' was unexpected" in problems(output, '{"n": 1, "x": 2}')
    assert "$.tags: has non-unique items" in problems(
        output, '{"n": 1, "tags": [{"a": 1}, {"a": 1.0}]}'
    )
    # Would take a backtracking engine for ever, and a comparison of each with each very long.
    assert "does not match" in problems(output, json.dumps({"n": 1, "code": "a" * 50_000 + "!"}))
    many = [[i] if i % 2 else {"i": i} for i in range(20_000)]
    assert json.loads(output.canonical(json.dumps({"n": 1, "tags": many})))["tags"] == many


@pytest.mark.parametrize(
    ("output", "why"),
    [
        ({"type": "objekt"}, r"\$\.type: 'objekt'"),
        ({"$ref": "http://127.0.0.1:9/schema"}, "leads to nothing within the schema"),
        ({"properties": {"a": {"$ref": "#/$defs/a"}}}, "leads to nothing within the schema"),
        ({"$ref": "#"}, "leads back to itself"),
        ({"type": "string", "pattern": "(?=a)"}, "look-around"),
        ({"patternProperties": {"^a": {}}}, "use propertyNames"),
        ({"enum": ["x" * 32_000]}, "at most 32000"),
        ({"const": float("nan")}, "NaN"),
        (object(), "no JSON schema can be made of it"),
        (type("Own", (), {}), "no JSON schema can be made of it"),
    ],
)
def test_what_cannot_be_checked_is_refused_where_it_is_declared(output: Any, why: str) -> None:
    """With the agent's name and what is wrong, before any run."""
    with pytest.raises(DefinitionError, match=f"agent 'a': output: .*{why}"):
        Agent(name="a", model="m", instructions="i", output=output)


def test_a_deep_schema_is_refused() -> None:
    """Its depth is bounded, as that of everything that is stored."""
    schema: dict[str, Any] = {}
    for _ in range(5_000):
        schema = {"items": schema}
    with pytest.raises(DefinitionError, match="nested deeper"):
        Agent(name="a", model="m", instructions="i", output=schema)


def test_the_schema_is_pinned_and_told() -> None:
    """Into the instructions of agents that have one; others are as they were."""
    spec = Agent(name="a", model="m", instructions="Be brief.", output=Line).spec()
    assert spec.output is not None
    assert spec.instructions.startswith("Be brief.\n\n# Form of your answer\n")
    assert json.dumps(spec.output.json_schema, separators=(",", ":")) in spec.instructions
    assert spec.output.json_schema["properties"]["item"] == {"minLength": 2, "type": "string"}
    assert spec.outline("x").output == spec.output
    assert Agent(name="a", model="m", instructions="Be brief.").spec().instructions == "Be brief."
    with pytest.raises(DefinitionError, match=r"output\.retries"):
        Agent(name="a", model="m", instructions="i", output=int, output_retries=11)


def test_a_correction_is_bounded() -> None:
    """It names the problems and the schema, or where the schema stands if it is long."""
    short = correction(["$.n: wrong"], {"type": "integer"})
    assert "- $.n: wrong\n" in short
    assert '{"type":"integer"}' in short
    long = correction(["x" * 400] * 10, {"enum": ["y" * 20_000]})
    assert "the JSON schema in your instructions" in long
    assert utf8_size(correction(["é" * 9_000], {"type": "integer"})) < 2 * CORRECTION_BYTES + 500
    assert Typed(checked=Checked(problems=["z" * 9_000])).why("1 of 1 turns used")[:17] == (  # type: ignore[index]
        "1 of 1 turns used"
    )
