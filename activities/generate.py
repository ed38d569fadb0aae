"""GENERATE: one request to the model, one complete reply."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta

import structlog
from pydantic import BaseModel
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.pictures import Pictures
from activities.providers import ModelRequest, Progress, Provider, ProviderError, provider_of
from activities.providers.admission import UNDIAGNOSED, Admitted, admit_reply
from activities.pulse import pulse, queue_ms
from activities.redact import Redactor
from activities.token_metrics import InputTokens
from activities.views import Views, as_failures, read
from turnkeeper.contract import GENERATE, GenerateInput, GenerateOutput, Timing, Usage
from turnkeeper.spec import AgentSpec
from turnkeeper.text import one_line
from turnkeeper.view import View, unanswered

MAX_WAIT_SECONDS = 3_600.0
"""The longest `retry-after` that is waited for."""
MAX_UNUSABLE_REPLIES = 3
"""Replies that could not be stored, before the run ends: each one was paid for."""
_TYPES = {
    "stop": "model_rejected",
    "overflow": "context_overflow",
    "thinking": "thinking_mismatch",
}
_UNUSABLE = ("unusable_reply", "reply_too_large")
# Nobody waited any longer: the provider may finish the reply all the same, and bill it.
_ABANDONED = ("read_timeout", "timeout")

log = structlog.get_logger("turnkeeper.generate")


class _Past(BaseModel):
    """What earlier attempts found out; it travels in heartbeat details."""

    whole: bool = False
    """A stream could not be put together: the reply is asked for whole."""
    unusable: int = 0
    """Replies that could not be stored."""
    lost_tokens: int = 0
    """What attempts that failed, though they got an answer or gave up waiting, may have cost."""


class Generate:
    """The activity `run.generate`."""

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
        self._input_tokens = InputTokens()

    @activity.defn(name=GENERATE)
    async def run(self, asked: GenerateInput) -> GenerateOutput:
        """Ask the model once.

        Raises:
            ApplicationError: of type `provider_error` to be tried again; of an outcome's name, or
                `thinking_mismatch`, when the same request would fail again.
        """
        began = time.monotonic()
        progress, past = Progress(), _earlier_attempts()
        async with pulse(lambda: past):
            spec, view, source = await read(
                self._views, self._redactor, asked.spec_digest, asked.base
            )
            view.extend(asked.new)
            admitted = await self._ask(spec, view, asked, progress, past)
        workflow_id, position = str(activity.info().workflow_id), view.position
        view.extend([admitted.entry])
        self._views.keep(workflow_id, view)
        self._views.remember_reply(workflow_id, position, admitted.message_id)
        self._input_tokens.count(spec, admitted.usage)
        timing = Timing(
            queue_ms=queue_ms(),
            first_token_ms=progress.first_token_ms,
            run_ms=round((time.monotonic() - began) * 1000),
            sent_bytes=progress.sent_bytes,
            received_bytes=progress.received_bytes,
            view=source,
        )
        _log_reply(asked, admitted, timing)
        _log_cache_miss(asked, admitted)
        return GenerateOutput(
            entry=admitted.entry,
            stop_reason=admitted.stop_reason,
            stop_details=admitted.stop_details,
            message_id=admitted.message_id,
            model=admitted.model,
            usage=admitted.usage.plus(Usage(estimated_tokens=past.lost_tokens)),
            refused_calls=admitted.refused_calls,
            mended=admitted.mended or None,
            timing=timing,
        )

    async def _images(self, view: View) -> dict[str, bytes]:
        with as_failures(self._redactor):
            return await self._pictures.of(str(activity.info().workflow_id), view.entries)

    async def _ask(
        self, spec: AgentSpec, view: View, asked: GenerateInput, progress: Progress, past: _Past
    ) -> Admitted:
        if open_calls := unanswered(view.entries):
            # Sent like this, the request and every later one would be refused. A bug of ours.
            raise ApplicationError(
                f"{len(open_calls)} tool calls have no result",
                type="state_lost",
                non_retryable=True,
            )
        began = time.monotonic()
        try:
            request = ModelRequest(
                spec=spec,
                entries=list(view.entries),
                max_tokens=asked.max_tokens,
                answer_only=bool(asked.answer_only),
                drop_thinking=bool(asked.drop_thinking),
                stream=not past.whole,
                previous_message_id=self._views.previous_message_id(
                    str(activity.info().workflow_id), view
                ),
                images=await self._images(view),
            )
            reply = await provider_of(self._providers, spec.model).generate(request, progress)
            return admit_reply(reply, turn=asked.turn, known_ids=view.call_ids)
        except ProviderError as error:
            if progress.first_token_ms is not None or error.code in _ABANDONED:
                # It has answered, or may yet, and will be paid: four bytes are about a token.
                past.lost_tokens += (progress.sent_bytes + progress.received_bytes) // 4
            past.whole = past.whole or error.stream_unusable
            past.unusable += error.code in _UNUSABLE
            activity.heartbeat(past)
            raise self._failure(error, asked, past, time.monotonic() - began) from None

    def _failure(
        self, error: ProviderError, asked: GenerateInput, past: _Past, took: float
    ) -> ApplicationError:
        """What Temporal is told: wait and try again, or give up with an outcome's name."""
        info = activity.info()
        message = one_line(self._redactor.error(str(error)), 600)
        details = {
            "code": error.code,
            "status": error.status,
            "request_id": error.request_id,
            "lost_tokens": past.lost_tokens,
        }
        log.warning(
            "generation failed",
            turn=asked.turn,
            attempt=info.attempt,
            kind=error.kind,
            **details,
            error=message,
        )
        if error.kind != "retry":
            return ApplicationError(message, details, type=_TYPES[error.kind], non_retryable=True)
        if past.unusable >= MAX_UNUSABLE_REPLIES:
            return ApplicationError(message, details, type="model_unavailable", non_retryable=True)
        wait = error.retry_after
        if wait is None:
            return ApplicationError(message, details, type="provider_error")
        # The server's clock against itself: this worker's may differ from it, or from virtual time.
        since = info.current_attempt_scheduled_time - info.scheduled_time
        left = asked.seconds_left - since.total_seconds() - took
        if wait > min(left, MAX_WAIT_SECONDS):
            return ApplicationError(
                f"{message}; it asks to wait {wait:g} s, but the run has {max(left, 0):.0f} s left "
                f"and waits {MAX_WAIT_SECONDS:g} s at most",
                details,
                type="model_unavailable",
                non_retryable=True,
            )
        return ApplicationError(
            message, details, type="provider_error", next_retry_delay=timedelta(seconds=wait)
        )


def _earlier_attempts() -> _Past:
    details = activity.info().heartbeat_details
    return _Past.model_validate(details[0]) if details else _Past()


def _log_reply(asked: GenerateInput, admitted: Admitted, timing: Timing) -> None:
    log.info(
        "generated",
        turn=asked.turn,
        attempt=activity.info().attempt,
        stop_reason=admitted.stop_reason,
        entries=asked.base.entries + len(asked.new),
        mended=admitted.mended or None,
        **admitted.usage.model_dump(exclude_defaults=True),
        **timing.model_dump(exclude_none=True),
    )


def _log_cache_miss(asked: GenerateInput, admitted: Admitted) -> None:
    miss = admitted.cache_miss
    if miss is None:
        return
    if miss.reason in UNDIAGNOSED:
        log.info("cache not diagnosed", turn=asked.turn, reason=miss.reason)
    else:
        log.warning("cache miss", turn=asked.turn, reason=miss.reason, missed_tokens=miss.tokens)
