"""What fits into a model's window: asked of its provider once, and pinned into each run."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from activities.providers import Provider
from turnkeeper.context import TOKENS_PER_BYTE
from turnkeeper.spec import DEFAULT_WINDOW, MIN_WINDOW, AgentSpec, ModelSpec


class Windows:
    """The windows of models, as their providers told this worker."""

    def __init__(self, providers: Mapping[str, Provider]) -> None:
        self._providers = providers
        self._known: dict[tuple[str, str], int] = {}

    async def measured(self, model: ModelSpec) -> ModelSpec:
        """The model with its window, and with replies that are at most half as long as that."""
        window = model.window or await self._of(model) or DEFAULT_WINDOW
        window = max(window, MIN_WINDOW)
        longest = window // 2
        return model.model_copy(
            update={
                "window": window,
                "max_output_tokens": min(model.max_output_tokens, longest),
                "ceiling": min(model.ceiling, longest),
            }
        )

    async def _of(self, model: ModelSpec) -> int | None:
        key = (model.provider, model.name)
        provider = self._providers.get(model.provider)
        if key not in self._known and provider is not None:
            window = await provider.window(model.name)
            if window is None:
                # Asked again for the next run.
                return None
            self._known[key] = window
        return self._known.get(key)


def head_tokens(spec: AgentSpec) -> int:
    """What instructions and tools take of each request, estimated."""
    tools = [[t.name, t.description, t.input_schema] for t in spec.tools]
    return math.ceil(len(json.dumps([spec.instructions, tools])) * TOKENS_PER_BYTE)
