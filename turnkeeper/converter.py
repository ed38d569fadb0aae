"""The data converter of clients and workers: plain JSON by pydantic, without nulls of fields."""

from __future__ import annotations

from typing import Any

import temporalio.api.common.v1
from pydantic_core import to_json
from temporalio.contrib.pydantic import PydanticJSONPlainPayloadConverter
from temporalio.converter import (
    CompositePayloadConverter,
    DataConverter,
    DefaultPayloadConverter,
    JSONPlainPayloadConverter,
)

__all__ = ["data_converter"]


class _Json(PydanticJSONPlainPayloadConverter):
    def to_payload(self, value: Any) -> temporalio.api.common.v1.Payload | None:
        # `exclude_none` is the only size option that loses nothing: `exclude_unset`, the one the
        # base class offers, drops lists that were filled in place. Nulls inside `Any` values stay.
        return temporalio.api.common.v1.Payload(
            metadata={"encoding": self.encoding.encode()}, data=to_json(value, exclude_none=True)
        )


class _PayloadConverter(CompositePayloadConverter):
    def __init__(self) -> None:
        json_converter = _Json()
        super().__init__(
            *(
                json_converter if isinstance(c, JSONPlainPayloadConverter) else c
                for c in DefaultPayloadConverter.default_encoding_payload_converters
            )
        )


data_converter = DataConverter(payload_converter_class=_PayloadConverter)
"""Keeps key order, which Temporal's default converter does not: a provider's reply that came back
with other keys in front would no longer be the reply that its thinking is bound to."""
