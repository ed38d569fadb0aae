"""The port behind which model providers stand.

A provider turns entries into one request, sends it once (Temporal is the only layer that retries)
and returns the complete reply as the JSON that came over the wire. It knows its dialect; the rest
of the application does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from turnkeeper.entries import Entry
from turnkeeper.spec import AgentSpec, ModelSpec
from turnkeeper.usage import Usage


@dataclass(frozen=True)
class ModelRequest:
    """One generation, as the loop asks for it."""

    spec: AgentSpec
    """The whole spec, never its outline."""
    entries: Sequence[Entry]
    """The view, ending with something the model has not answered yet."""
    max_tokens: int
    answer_only: bool = False
    """Forbid tool calls without changing the tools: a changed prefix would break thinking."""
    drop_thinking: bool = False
    """Ask the provider to drop thinking blocks that it holds for bound to another conversation."""
    stream: bool = True
    """False after a stream held something that could not be put together without loss."""
    previous_message_id: str | None = None
    """The provider's id of the run's previous reply: asks why the cache missed, if it does."""
    images: Mapping[str, bytes] = field(default_factory=dict)
    """By artifact id: the bytes of the images that results in `entries` refer to."""


@dataclass(frozen=True)
class ImageBounds:
    """What one request may have."""

    number: int
    bytes: int
    """Of all its images."""


@dataclass
class Progress:
    """How far a generation got; written by the provider, read by the heartbeat."""

    received_bytes: int = 0
    sent_bytes: int = 0
    first_token_ms: int | None = None
    counted: Usage = field(default_factory=Usage)
    """What the provider has said so far that it costs."""
    said_bytes: int = 0
    """Of the reply's own text, thinking and arguments."""

    def spent(self) -> Usage:
        """What is paid for, if this is all that comes: four bytes are about a token."""
        said = max(self.counted.output_tokens, self.said_bytes // 4)
        if not self.counted.all_input:
            return Usage(estimated_input_tokens=self.sent_bytes // 4, estimated_tokens=said)
        return self.counted.model_copy(update={"output_tokens": 0, "estimated_tokens": said})


@dataclass(frozen=True)
class ProviderReply:
    """A complete reply: the provider's JSON with equal values and key order."""

    message: dict[str, Any]
    request_id: str | None = None
    raw_inputs: dict[int, str] = field(default_factory=dict)
    """By index of the block in `content`: the text of a tool's arguments where it came in pieces.
    The block's own `input` is then a placeholder; admission reads the text and judges it."""


Kind = Literal["retry", "stop", "overflow", "thinking"]


@dataclass
class ProviderError(Exception):
    """Why there is no reply.

    `retry`: the same request may succeed later. `stop`: it never will. `overflow`: it is too large
    for the model. `thinking`: a thinking block is held for bound to another conversation.
    """

    kind: Kind
    code: str
    """The provider's own name of the error, for operators, e.g. `overloaded_error`."""
    message: str
    """One line without secrets."""
    status: int | None = None
    request_id: str | None = None
    retry_after: float | None = None
    """Seconds that the provider asked to wait."""
    stream_unusable: bool = False
    """The reply could not be put together from its stream: ask for it whole."""

    def __str__(self) -> str:
        status = f"HTTP {self.status} " if self.status else ""
        return f"{status}{self.code}: {self.message}"


class Provider(Protocol):
    """A model provider; one instance serves the whole worker process."""

    images: ImageBounds
    """What the provider takes in one request: more would be refused, after it was sent."""

    async def generate(self, request: ModelRequest, progress: Progress) -> ProviderReply:
        """Send one request, once.

        Raises:
            ProviderError: for everything the wire or the provider can do.
        """
        ...

    async def window(self, model: str) -> int | None:
        """Tokens that a request and its reply may have together, as the provider says of a model.

        None: it does not say, or not now. Never raises ProviderError.
        """
        ...

    async def close(self) -> None:
        """Release connections."""
        ...


def provider_of(providers: Mapping[str, Provider], model: ModelSpec) -> Provider:
    """The provider that a model names.

    Raises:
        ProviderError: `stop`, if this worker does not have it.
    """
    provider = providers.get(model.provider)
    if provider is None:
        known = ", ".join(providers) or "none"
        raise ProviderError("stop", "unknown_provider", f"{model.provider!r} is none of: {known}")
    return provider
