"""What a caller is told who asks for something malformed. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel

from turnkeeper.contract import read_public
from turnkeeper.errors import InvalidRequest

__all__ = ["checked", "invalid"]

_Model = TypeVar("_Model", bound=BaseModel)


def checked(model: type[_Model], body: Mapping[str, Any]) -> _Model:
    """Read a body before it is sent.

    Raises:
        InvalidRequest: it is malformed; the message names each wrong field.
    """
    try:
        return read_public(model, dict(body))
    except ValueError as error:
        raise invalid(str(error)) from None


def invalid(message: str) -> InvalidRequest:
    """The error of a request that is refused; nothing was done."""
    return InvalidRequest(message, outcome="invalid_request")
