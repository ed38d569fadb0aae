"""JSON schemas of the public contract, for services in any language. Pure.

`make contract` writes them to docs/contract/. What is sent is described as the validation takes it;
what is read is left open: a later minor version may add fields to it.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from pydantic import BaseModel

from turnkeeper import contract
from turnkeeper.contract import (
    AnswerRequest,
    ApproveRequest,
    DenyRequest,
    PauseRequest,
    RaiseLimitsRequest,
    ResolveRequest,
    ResumeRequest,
    RunRequest,
    RunResult,
    RunStatus,
    SendRequest,
    StopRequest,
)
from turnkeeper.day_limits import DayLimitRequest
from turnkeeper.notices import Notice
from turnkeeper.spec import Limits
from turnkeeper.switches import SwitchRequest

__all__ = ["READ", "SENT", "field_docstrings", "schemas"]

SENT: Mapping[str, type[BaseModel]] = {
    "start": RunRequest,
    contract.SEND: SendRequest,
    contract.ANSWER: AnswerRequest,
    contract.APPROVE: ApproveRequest,
    contract.DENY: DenyRequest,
    contract.RESOLVE: ResolveRequest,
    contract.PAUSE: PauseRequest,
    contract.RESUME: ResumeRequest,
    contract.RAISE_LIMITS: RaiseLimitsRequest,
    contract.STOP: StopRequest,
    contract.SWITCH: SwitchRequest,
    contract.DAY_LIMIT: DayLimitRequest,
}
"""Bodies that callers send, by the names of their schemas."""

READ: Mapping[str, type[BaseModel]] = {
    "result": RunResult,
    "status": RunStatus,
    "notice": Notice,
}
"""Bodies that callers read; there is one more, `accepted`."""

_ACCEPTED: dict[str, Any] = {
    "title": "Accepted",
    "description": "The answer to an update that was taken.",
    "type": "object",
    "properties": {
        "accepted": {"description": "The update's name.", "type": "string"},
        "note": {
            "description": "Of one that there was nothing to do for: why, in words for people.",
            "type": "string",
        },
        "changed": {
            "description": "Of `switch` and `day_limit`: false if it was so already.",
            "type": "boolean",
        },
    },
    "required": ["accepted"],
}


def schemas() -> dict[str, dict[str, Any]]:
    """A document of JSON Schema 2020-12 for each body, by its name."""
    made = {name: _sent(model) for name, model in SENT.items()}
    made |= {name: _read(model) for name, model in READ.items()}
    made["accepted"] = _ACCEPTED
    return {
        name: {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "$id": f"urn:turnkeeper:contract:{contract.VERSION}:{name}",
            **document,
        }
        for name, document in made.items()
    }


def _sent(model: type[BaseModel]) -> dict[str, Any]:
    document = _document(model)
    if "limits" in model.model_fields:
        document["properties"]["limits"] |= _given_limits()
    return document


def _given_limits() -> dict[str, Any]:
    """As `Limits`, whose defaults are an agent's: what a caller leaves out stays as it is there."""
    properties = _document(Limits)["properties"]
    for schema in properties.values():
        schema.pop("default", None)
    for schema in _walk(properties):
        if schema.get("type") == "integer":
            schema.setdefault("maximum", contract.MAX_LIMIT)
    return {"properties": properties, "additionalProperties": False}


def _read(model: type[BaseModel]) -> dict[str, Any]:
    document = _document(model)
    for schema in _walk(document):
        if schema.get("additionalProperties") is False:
            del schema["additionalProperties"]
    return document


def _document(model: type[BaseModel]) -> dict[str, Any]:
    """A model's schema, with the docstrings of its fields and without the titles made of names."""
    document = model.model_json_schema()
    models = {m.__name__: m for m in _models(model)}
    for name, schema in ((model.__name__, document), *document.get("$defs", {}).items()):
        said = field_docstrings(models[name])
        for field, found in schema["properties"].items():
            found.pop("title", None)
            if field in said:
                # First, as a reader would have it; beside a reference, too.
                schema["properties"][field] = {"description": said[field], **found}
    return document


def _models(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """A model, and those that its fields are made of."""
    yield model
    for field in model.model_fields.values():
        for part in _parts(field.annotation):
            yield from _models(part)


def _parts(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in getattr(annotation, "__args__", ()):
        yield from _parts(part)


def _walk(schema: Any) -> Iterator[dict[str, Any]]:
    """All objects in a schema."""
    if isinstance(schema, dict):
        yield schema
    for part in schema.values() if isinstance(schema, dict) else schema:
        if isinstance(part, (dict, list)):
            yield from _walk(part)


@lru_cache(maxsize=256)
def field_docstrings(model: type[BaseModel]) -> dict[str, str]:
    """By field, the string that stands below it, on one line."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(body, ast.ClassDef)
    found = {}
    for field, below in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
            assert isinstance(field.target, ast.Name)
            assert isinstance(below.value, ast.Constant)
            found[field.target.id] = " ".join(str(below.value.value).split())
    return found
