"""The input tokens of generations as a metric, by agent, model and prompt cache."""

from __future__ import annotations

from typing import Final

from temporalio import activity

from turnkeeper.metrics import INPUT_TOKENS
from turnkeeper.spec import AgentSpec
from turnkeeper.usage import Usage

MAX_PAIRS: Final = 100
"""Of agent and model, per process. Runs keep the agent they began with, and its model, so a process
may meet any number over time, and each is a series in Prometheus for good."""
OTHER: Final = "other"


class InputTokens:
    """Counts what models read."""

    def __init__(self) -> None:
        self._pairs: set[tuple[str, str]] = set()

    def count(self, spec: AgentSpec, usage: Usage) -> None:
        """Add one reply's; called in an activity."""
        agent, model = self._labels(spec)
        counter = activity.metric_meter().create_counter(INPUT_TOKENS)
        for cache, tokens in (
            ("read", usage.cache_read_tokens),
            ("written", usage.cache_write_tokens),
            ("uncached", usage.input_tokens),
        ):
            if tokens:
                counter.add(tokens, {"agent": agent, "model": model, "cache": cache})

    def _labels(self, spec: AgentSpec) -> tuple[str, str]:
        pair = spec.name, spec.model.name
        if pair not in self._pairs:
            if len(self._pairs) >= MAX_PAIRS:
                return OTHER, OTHER
            self._pairs.add(pair)
        return pair
