"""The models a provider offers, and what `/v1/models` says of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from turnkeeper.testing.provider.replies import Json


@dataclass(frozen=True)
class Model:
    """A model and its limits, in tokens: the window, the longest output, and the shortest prefix
    that is cached."""

    id: str
    max_input_tokens: int = 1_000_000
    max_tokens: int = 128_000
    min_cache_tokens: int = 1024

    def as_json(self) -> Json:
        """The API's model object, with the fields of the SDK's `ModelInfo`."""
        yes, no = {"supported": True}, {"supported": False}
        return {
            "type": "model",
            "id": self.id,
            "display_name": self.id.replace("-", " ").title(),
            "created_at": "2026-10-01T00:00:00Z",
            "lifecycle": "active",
            "deprecated_at": None,
            "retires_at": None,
            "line": next((line for line in ("haiku", "sonnet", "opus") if line in self.id), None),
            "max_input_tokens": self.max_input_tokens,
            "max_tokens": self.max_tokens,
            "capabilities": {
                "batch": no,
                "citations": yes,
                "code_execution": no,
                "context_management": {**no, "clear_tool_uses_20250919": no},
                "effort": {**yes, "low": yes, "medium": yes, "high": yes, "xhigh": yes, "max": yes},
                "image_input": yes,
                "pdf_input": yes,
                "server_tools": {**no, "code_execution": no, "web_search": no},
                "structured_outputs": yes,
                "thinking": {
                    **yes,
                    "types": {
                        "adaptive": yes,
                        "between_tools": yes,
                        "disabled": yes,
                        "enabled": yes,
                    },
                },
            },
        }


DEFAULT_IDS: Final = ("claude-sonnet-5-5", "claude-haiku-5-5", "claude-opus-5-5")


class Models:
    """The table of models. Without a table of its own it lists the default ids and takes any
    other model too, with the default limits."""

    def __init__(
        self,
        table: Mapping[str, Model | Mapping[str, Any]] | None = None,
        window: int | None = None,
    ) -> None:
        self._open = table is None
        chosen = {id_: Model(id_) for id_ in DEFAULT_IDS} if table is None else table
        self._window = window
        self._models = {
            id_: self._limited(entry if isinstance(entry, Model) else Model(id_, **entry))
            for id_, entry in chosen.items()
        }

    def _limited(self, model: Model) -> Model:
        return model if self._window is None else replace(model, max_input_tokens=self._window)

    def get(self, id_: str, *, listed: bool = False) -> Model | None:
        """The model, or None if there is none of this id; `listed` leaves out unlisted ones."""
        if id_ not in self._models and self._open and not listed:
            return self._limited(Model(id_))
        return self._models.get(id_)

    def __iter__(self) -> Iterator[Model]:
        return iter(self._models.values())
