"""What fits into a model's window: asked of its provider once, and pinned into each run."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping

import structlog

from activities.providers import Provider
from turnkeeper.context import TOKENS_PER_BYTE, scarce_from
from turnkeeper.spec import DEFAULT_WINDOW, MIN_WINDOW, AgentSpec, ContextPolicy, ModelSpec

_AGAIN_SECONDS = 600.0
"""Until a provider that did not tell is asked again."""

log = structlog.get_logger("turnkeeper.windows")


class Windows:
    """The windows of models, as their providers told this worker."""

    def __init__(self, providers: Mapping[str, Provider]) -> None:
        self._providers = providers
        self._known: dict[tuple[str, str], int] = {}
        self._not_told: dict[tuple[str, str], float] = {}
        """When a provider did not tell, by a clock that is never set."""

    async def pinned(self, spec: AgentSpec) -> AgentSpec:
        """The spec with the windows of its models.

        A model that could not read what it is to summarise is left out, and the agent's own takes
        its place: each of its summaries would be asked for in vain.
        """
        model, context = await self._measured(spec.model), spec.context
        if context is not None and context.summariser is not None:
            context = await self._summarised(spec.name, model, context, context.summariser)
        return spec.model_copy(update={"model": model, "context": context})

    async def _summarised(
        self, agent: str, model: ModelSpec, context: ContextPolicy, summariser: ModelSpec
    ) -> ContextPolicy:
        summariser = await self._measured(summariser)
        window = summariser.window or DEFAULT_WINDOW
        asked = scarce_from(
            output=model.max_output_tokens,
            window=model.window or DEFAULT_WINDOW,
            soft=context.soft,
        )
        if asked + summariser.max_output_tokens <= window:
            return context.model_copy(update={"summariser": summariser})
        log.warning(
            "the summariser's window is too small: the agent's own model summarises",
            agent=agent,
            summariser=summariser.name,
            window=window,
            asked_from=math.floor(asked),
            mend="name a model with a larger window, set its ModelSpec.window if the provider does "
            "not tell it, or lower ContextPolicy.soft",
        )
        return context.model_copy(update={"summariser": None})

    async def _measured(self, model: ModelSpec) -> ModelSpec:
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
        if key not in self._known and provider is not None and not self._asked_lately(key):
            window = await provider.window(model.name)
            if window is None:
                self._not_told[key] = time.monotonic()
            else:
                self._known[key] = window
        return self._known.get(key)

    def _asked_lately(self, key: tuple[str, str]) -> bool:
        """Whether it was in vain: many gateways have no such endpoint, and no run is to wait for
        their timeout again."""
        asked = self._not_told.get(key)
        return asked is not None and time.monotonic() - asked < _AGAIN_SECONDS


def head_tokens(spec: AgentSpec) -> int:
    """What instructions and tools take of each request, estimated."""
    tools = [[t.name, t.description, t.input_schema] for t in spec.tools]
    return math.ceil(len(json.dumps([spec.instructions, tools])) * TOKENS_PER_BYTE)
