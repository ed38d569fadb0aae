"""What `@tool` makes of a function: schema, validation, digest, and clear errors."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field

from tests import option_tables
from tests.pages import code
from turnkeeper import Agent, ContextPolicy, Limits, ModelSpec, ToolContext, tool
from turnkeeper.errors import DefinitionError


class Item(BaseModel):
    """A line of an order."""

    sku: str
    count: int = 1


@tool(effect="idempotent")
def order(
    items: list[Item],
    amount: Decimal,
    when: datetime,
    weight: float = 1,
    *,
    tags: frozenset[str] = frozenset(),
    ctx: ToolContext | None = None,
) -> str:
    """Order things.

    Args:
        items: what is ordered.
        amount: in dollars.
    """
    return "ok"


def digest(**arguments: Any) -> str:
    """The digest of a call of `order` with these arguments over the usual ones."""
    usual = {"items": [{"sku": "a"}], "amount": "10.5", "when": "2026-01-02T03:04:05Z"}
    context = ToolContext()
    order.bind({**usual, **arguments}, context)
    return context.arguments_digest


@pytest.mark.parametrize(
    "same",
    [
        {"amount": "10.50"},
        {"amount": 10.5},
        {"weight": 1.0},
        {"weight": 1},
        {"items": [{"count": 1, "sku": "a"}]},
        {"when": "2026-01-02T04:04:05+01:00"},
        {"tags": []},
    ],
)
def test_equal_arguments_have_one_digest(same: dict[str, Any]) -> None:
    """Key order, written-out defaults, 1 and 1.0, decimals and dates do not make another call."""
    assert digest(**same) == digest()


@pytest.mark.parametrize(
    "other",
    [
        {"amount": "10.51"},
        {"weight": 2},
        {"items": [{"sku": "b"}]},
        {"items": [{"sku": "a"}, {"sku": "a"}]},
        {"when": "2026-01-02T03:04:06Z"},
        {"tags": ["x"]},
    ],
)
def test_other_arguments_have_another_digest(other: dict[str, Any]) -> None:
    """Whatever the tool would do differently is another call."""
    assert digest(**other) != digest()


def test_the_order_of_a_set_is_no_difference() -> None:
    """A set has no order, so neither has its digest."""
    assert digest(tags=["x", "y"]) == digest(tags=["y", "x"])


def test_docstring_and_types_are_the_schema() -> None:
    """The model sees descriptions, types, defaults and what is required; never the context."""
    schema = order.spec.input_schema
    assert schema["required"] == ["items", "amount", "when"]
    assert schema["properties"]["amount"]["description"] == "in dollars."
    assert set(schema["properties"]) == {"items", "amount", "when", "weight", "tags"}
    assert order.spec.description == "Order things."


def test_names_that_pydantic_uses_itself_are_arguments_like_others() -> None:
    """Parameters called model_config, json or copy are neither lost nor shadowed."""

    @tool(effect="read")
    def odd(model_config: str, json: int, copy: Annotated[str, Field(max_length=3)] = "a") -> str:
        """Odd names."""
        return f"{model_config}{json}{copy}"

    bound = odd.bind({"model_config": "x", "json": 2}, ToolContext())
    assert odd(**bound) == "x2a"
    with pytest.raises(ValueError, match="copy: String should have at most 3 characters"):
        odd.bind({"model_config": "x", "json": 2, "copy": "abcd"}, ToolContext())


def test_a_parameter_without_a_type_is_refused_with_its_place() -> None:
    """The error names file, line, tool and parameter, and how to write it."""
    with pytest.raises(DefinitionError, match=r"test_tools\.py:\d+: tool 'bare': .*`q: str`"):

        @tool
        def bare(q) -> str:  # type: ignore[no-untyped-def]
            """No type."""
            return str(q)


def test_a_context_without_a_type_is_told_its_own() -> None:
    """Not to write it as a text for the model."""
    with pytest.raises(DefinitionError, match="`ctx: ToolContext`"):

        @tool
        def bare(ctx) -> str:  # type: ignore[no-untyped-def]
            """No type."""
            return str(ctx)


class Opaque:
    """No JSON is read as this."""


def test_a_type_that_no_model_can_send_is_refused_by_parameter() -> None:
    """One line with the parameter, its type and what to use; nothing of pydantic's advice."""
    with pytest.raises(DefinitionError) as raised:

        @tool
        def odd(a: int, books: list[Opaque]) -> str:
            """Take what JSON cannot say."""
            return f"{a}{books}"

    assert str(raised.value).partition("tool ")[2] == (
        "'odd': parameter 'books': type list[Opaque] cannot be sent by a model; use str, int, "
        "a list, a dataclass or a pydantic model"
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"effect": "reed"}, "none of read"),
        ({"timeout": 0}, "timeout"),
        ({"retries": 21}, "retries"),
        ({"name": "a.b"}, "letters, digits"),
    ],
)
def test_wrong_options_are_refused_at_import(options: dict[str, Any], said: str) -> None:
    """A tool that could not work is refused where it is declared."""

    def fine() -> str:
        return "x"

    with pytest.raises(DefinitionError, match=said):
        tool(**options)(fine)


def test_variadic_parameters_are_refused() -> None:
    """A model passes arguments by name, so *args has no schema."""
    with pytest.raises(DefinitionError, match="by name"):

        @tool
        def variadic(*args: str) -> str:
            """Many."""
            return ""


def test_an_undeclared_tool_has_one_attempt() -> None:
    """Without a stated effect nothing is ever repeated."""

    @tool
    def bare() -> str:
        """Say nothing about effects."""
        return ""

    assert not bare.declared
    assert (bare.spec.effect, bare.spec.attempts) == ("once", 1)


def test_an_agent_refuses_what_is_no_tool_and_double_names() -> None:
    """Both are found when the agent is made, with a way to mend them."""
    with pytest.raises(DefinitionError, match="declare it with @tool"):
        Agent(name="a", model="m", instructions="", tools=[len])  # type: ignore[list-item]
    with pytest.raises(DefinitionError, match="two tools are called 'order'; list it once, or re"):
        Agent(name="a", model="m", instructions="", tools=[order, order])


def test_wrong_options_of_a_policy_are_named_with_what_was_meant() -> None:
    """As the worker tells them, wherever it is written; what a history has is read as before."""
    told = (
        r"^ContextPolicy\.soft: Input should be less than 1; ContextPolicy\.keep_turn: there is no "
        r"such field\. Did you mean keep_turns\? The fields are mode, keep_turns, soft"
    )
    with pytest.raises(DefinitionError, match=told):
        ContextPolicy(soft=1.5, keep_turn=3)  # type: ignore[call-arg]
    with pytest.raises(DefinitionError, match=r"'recent' has no name; write ContextPolicy\(field="):
        ContextPolicy("recent")  # type: ignore[call-arg]
    with pytest.raises(DefinitionError, match=r"^Limits: max_turns is not a limit; known: turns"):
        Limits(max_turns=1)  # type: ignore[call-arg]
    assert ContextPolicy.model_validate_json('{"keep_turn": 3, "soft": 0.5}').soft == 0.5


@pytest.mark.parametrize(
    ("model", "context", "told"),
    [
        ({"window": 4_000, "max_output_tokens": 4_000}, {}, "leaves less than 1000 tokens for"),
        ({"window": 9_000, "max_output_tokens": 8_500}, {}, "lower max_output_tokens"),
        ({"max_output_tokens": 9_000, "ceiling": 100}, {}, "is more than ceiling=100"),
        (
            {"window": 4_000, "max_output_tokens": 500},
            {"checkpoint_tokens": 5_000},
            "checkpoint_tokens=5000 is more than half of window=4000",
        ),
    ],
)
def test_a_window_that_cannot_hold_a_conversation_is_refused(
    model: dict[str, Any], context: dict[str, Any], told: str
) -> None:
    """At the definition, not after some turns; recorded specs are read whatever they say."""
    spec = ModelSpec(name="m", **model)
    with pytest.raises(DefinitionError, match=f"^agent 'a': .*{told}"):
        Agent(name="a", model=spec, instructions="i", context=ContextPolicy(**context))
    assert ModelSpec.model_validate_json(spec.model_dump_json()) == spec


def test_the_page_of_options_is_what_the_models_say() -> None:
    """Every option with its default, bounds and docstring; `python -m tests.option_tables`."""
    assert option_tables.PAGE.read_text() == option_tables.show()


async def test_the_example_that_reads_an_artifact_does() -> None:
    """As it stands on the page that people copy it from."""

    async def table(_artifact: str) -> bytes:
        return b"id\n1\n2\n"

    found: dict[str, Any] = {}
    exec(code("docs/tools.md", "python", "count_rows"), found)  # noqa: S102 - our own page
    assert await found["count_rows"]("a1", ToolContext(_artifact=table)) == 2
