"""The digest of a call's arguments: one per call, and another for every other call."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Iterable
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Literal

import pytest
from pydantic import Base64Bytes, BaseModel, Field, SecretStr

from turnkeeper import ToolContext, tool


class Card(BaseModel):
    """A way to pay."""

    kind: Literal["card"] = "card"
    number: str


class Account(BaseModel):
    """Another one, told from the first by its tag alone."""

    kind: Literal["account"] = "account"
    number: str


class Marked(BaseModel):
    """With a field that is another one each time unless it is given."""

    count: int
    mark: uuid.UUID = Field(default_factory=uuid.uuid4)


@dataclasses.dataclass
class Price:
    """As a dataclass."""

    amount: Decimal


def digest(kind: Any, value: Any, default: Any = ...) -> str:
    """Of a call with one argument of this type; with none at all if the value is `...`."""

    def work(x: Any = None) -> str:
        """Work."""
        return str(x)

    work.__annotations__["x"] = kind
    work.__defaults__ = None if default is ... else (default,)
    context = ToolContext()
    tool(effect="idempotent")(work).bind({} if value is ... else {"x": value}, context)
    return context.arguments_digest


@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        (Decimal, "1234567890123.123456789012345678", "1234567890123.123456789012345679"),
        (Annotated[Card | Account, Field(discriminator="kind")], "card", "account"),
        (SecretStr, "first", "second"),
        (Base64Bytes, "/+8=", "/+4="),
        (datetime, "2026-01-02T03:04:05", "2026-01-02T03:04:05Z"),
        (float | str, 1.5, "1.5"),
    ],
)
def test_different_calls_have_different_digests(kind: Any, one: Any, other: Any) -> None:
    """Also where digits are many, values are hidden, or a tag is all that differs."""
    if one == "card":
        one, other = ({"kind": tag, "number": "1"} for tag in (one, other))
    assert digest(kind, one) != digest(kind, other)


@pytest.mark.parametrize(("default", "given"), [(1, True), (0, False), ([0], [False])])
def test_what_python_holds_for_equal_is_no_default(default: Any, given: Any) -> None:
    """True is not 1: another call than that with the default."""
    assert digest(Any, given, default) != digest(Any, ..., default)


@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        (Decimal, "1E+2", "100.00"),
        (Decimal, "-0", "0"),
        (Decimal, "1E+999999999", "10E+999999998"),
        (dict[Decimal, int], {"1.0": 1}, {"1": 1}),
        (Price, {"amount": "1"}, {"amount": "1.0"}),
        (datetime, "0001-01-01T00:00:00+14:00", "0001-01-01T00:00:00+14:00"),
        (Marked, {"count": 1}, {"count": 1}),
        (Annotated[str, Field(default_factory=lambda: uuid.uuid4().hex)], ..., ...),
    ],
)
def test_one_call_has_one_digest(kind: Any, one: Any, other: Any) -> None:
    """However it is spelt, and in each attempt, though defaults be made anew."""
    assert digest(kind, one) == digest(kind, other)


@pytest.mark.parametrize(
    "make",
    [
        lambda fields: dataclasses.make_dataclass("Made", fields),
        lambda fields: type(
            "Made",
            (BaseModel,),
            {
                "__annotations__": {f[0]: f[1] for f in fields},
                **{f[0]: f[2].default for f in fields if len(f) > 2},
            },
        ),
    ],
    ids=["dataclass", "model"],
)
def test_a_field_that_a_deploy_adds_makes_no_other_call(make: Callable[[Any], Any]) -> None:
    """A field with a default, in an argument of an open call."""
    before: list[Any] = [("order", str)]
    after = [*before, ("note", str, dataclasses.field(default=""))]
    assert digest(make(before), {"order": "7"}) == digest(make(after), {"order": "7"})


def test_arguments_are_not_used_up_by_their_digest() -> None:
    """pydantic checks an Iterable only while it is read: the tool still gets all of it."""

    @tool(effect="idempotent")
    def add(numbers: Iterable[int]) -> int:
        """Add."""
        return sum(numbers)

    one, other = ToolContext(), ToolContext()
    assert add(**add.bind({"numbers": [1, 2]}, one)) == 3
    add.bind({"numbers": [1, 3]}, other)
    assert one.arguments_digest != other.arguments_digest
    with pytest.raises(ValueError, match="should be a valid integer"):
        add.bind({"numbers": [1, "x"]}, ToolContext())
