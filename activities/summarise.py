"""Write a summary of a view's beginning, for the day when it no longer fits."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta

import structlog
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.pictures import Pictures
from activities.providers import ModelRequest, Progress, Provider, ProviderError, provider_of
from activities.providers.admission import Admitted, admit_reply
from activities.pulse import pulse, queue_ms
from activities.redact import Redactor
from activities.views import Views, as_failures, read
from turnkeeper.contract import (
    SUMMARISE,
    Checkpoint,
    SummariseInput,
    SummariseOutput,
    Timing,
)
from turnkeeper.entries import Entry, message
from turnkeeper.epoch import SUMMARISE as INSTRUCTION
from turnkeeper.epoch import carried, problem_of_summary, tail_from
from turnkeeper.spec import AgentSpec, ContextPolicy
from turnkeeper.text import one_line
from turnkeeper.view import size

_MAX_WAIT_SECONDS = 300.0
_FINISHED = (None, "end_turn", "stop_sequence")

log = structlog.get_logger("turnkeeper.summarise")


class Summarise:
    """The activity `run.summarise`."""

    def __init__(
        self,
        views: Views,
        pictures: Pictures,
        providers: Mapping[str, Provider],
        redactor: Redactor,
    ) -> None:
        self._views = views
        self._pictures = pictures
        self._providers = providers
        self._redactor = redactor

    @activity.defn(name=SUMMARISE)
    async def run(self, asked: SummariseInput) -> SummariseOutput:
        """Ask the model once; what it wrote is checked, and a bad summary is a problem, no error.

        Raises:
            ApplicationError: of type `provider_error` or `store_unavailable` to be tried again, of
                type `state_lost` when what was said is gone.
        """
        began = time.monotonic()
        async with pulse(lambda: None):
            spec, view, _ = await read(self._views, self._redactor, asked.spec_digest, asked.base)
            policy = spec.context or ContextPolicy()
            # As much as half of the view may stay: it is to become a good deal shorter.
            room = sum(map(size, view.entries)) // 2
            covered = tail_from(view.entries, asked.keep_turns, room)
            output = await self._summary(spec, policy, view.entries[:covered], asked)
        output.timing = Timing(queue_ms=queue_ms(), run_ms=round((time.monotonic() - began) * 1000))
        log.info(
            "summarised" if output.checkpoint else "no summary",
            turn=asked.turn,
            entries=covered,
            problem=output.problem,
            **output.usage.model_dump(exclude_defaults=True),
        )
        return output

    async def _summary(
        self, spec: AgentSpec, policy: ContextPolicy, entries: list[Entry], asked: SummariseInput
    ) -> SummariseOutput:
        if len(entries) < 2:
            return SummariseOutput(problem="there is nothing to summarise yet")
        try:
            images = await self._images(entries)
            reply = await self._ask(_request(spec, policy, entries, images, asked))
        except ProviderError as error:
            raise self._failure(error, asked) from None
        text = _text(reply)
        problem = _unfinished(reply) or problem_of_summary(text, policy.checkpoint_tokens)
        epoch = asked.epoch.number if asked.epoch else 0
        made = Checkpoint(epoch=epoch, entries=len(entries), text=text) if not problem else None
        return SummariseOutput(checkpoint=made, problem=problem, usage=reply.usage)

    async def _images(self, entries: list[Entry]) -> dict[str, bytes]:
        with as_failures(self._redactor):
            return await self._pictures.of(str(activity.info().workflow_id), entries)

    async def _ask(self, request: ModelRequest) -> Admitted:
        provider = provider_of(self._providers, request.spec.model)
        return admit_reply(await provider.generate(request, Progress()), turn=0, known_ids=())

    def _failure(self, error: ProviderError, asked: SummariseInput) -> ApplicationError:
        told = one_line(self._redactor.error(str(error)), 600)
        log.warning("summary failed", turn=asked.turn, kind=error.kind, code=error.code, error=told)
        if error.kind != "retry":
            return ApplicationError(told, type="provider_error", non_retryable=True)
        wait = min(error.retry_after or 0, _MAX_WAIT_SECONDS)
        delay = timedelta(seconds=wait) if wait else None
        return ApplicationError(told, type="provider_error", next_retry_delay=delay)


def _request(
    spec: AgentSpec,
    policy: ContextPolicy,
    entries: list[Entry],
    images: Mapping[str, bytes],
    asked: SummariseInput,
) -> ModelRequest:
    words = max(50, policy.checkpoint_tokens // 2)
    instruction = message(INSTRUCTION.format(words=words))
    model = policy.summariser
    if model is not None:
        # Thinking is bound to the model that thought it.
        entries = carried(entries, {})
        spec = spec.model_copy(update={"model": model})
    return ModelRequest(
        spec=spec,
        # The same beginning as in the run's own requests, word for word, and no `tool_choice`:
        # so the provider has most of it in its cache.
        entries=[*entries, instruction],
        max_tokens=spec.model.max_output_tokens,
        drop_thinking=bool(asked.drop_thinking),
        images=images,
    )


def _text(reply: Admitted) -> str:
    blocks = reply.entry.value.get("content", [])
    return "\n".join(b["text"] for b in blocks if b.get("type") == "text").strip()


def _unfinished(reply: Admitted) -> str | None:
    calls = any(b.get("type") == "tool_use" for b in reply.entry.value.get("content", []))
    if calls:
        return "the model called a tool instead"
    if reply.stop_reason not in _FINISHED:
        return f"the reply ended with {reply.stop_reason}"
    return None
