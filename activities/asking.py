"""One request to a model, once: what it cost, and why there is no reply.

A generation and a summary are paid for alike and fail alike; both activities ask here.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal

import structlog
from pydantic import BaseModel
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.pictures import Pictures
from activities.providers import (
    ImageBounds,
    ModelRequest,
    Progress,
    Provider,
    ProviderError,
    provider_of,
)
from activities.providers.admission import Admitted, admit_reply
from activities.pulse import timing
from activities.redact import Redactor
from activities.token_metrics import InputTokens
from activities.views import as_failures
from turnkeeper.contract import PROVIDER_ERROR, THINKING_MISMATCH, Timing
from turnkeeper.entries import Entry
from turnkeeper.prices import priced
from turnkeeper.spec import Price
from turnkeeper.text import one_line
from turnkeeper.usage import Usage

MAX_WAIT_SECONDS = 3_600.0
"""The longest `retry-after` that is waited for."""
MAX_UNUSABLE_REPLIES = 3
"""Replies that could not be stored, before it is given up: each one was paid for."""
_TYPES = {
    "stop": "model_rejected",
    "overflow": "context_overflow",
    "thinking": THINKING_MISMATCH,
}
_UNUSABLE = ("unusable_reply", "reply_too_large")
# Nobody waited any longer: the provider may finish the reply all the same, and bill it.
_ABANDONED = ("read_timeout", "timeout")

log = structlog.get_logger("turnkeeper.asking")


class Past(BaseModel):
    """What earlier attempts found out; it travels in heartbeat details."""

    whole: bool = False
    """A stream could not be put together: the reply is asked for whole."""
    unusable: int = 0
    """Replies that could not be stored."""
    lost_tokens: int = 0
    """As `lost` was told before there were prices."""
    lost: Usage = Usage()
    """What attempts that failed, though they got an answer or gave up waiting, may have cost."""
    attempt: int = 0
    """The last one that `lost` and `missing` account for."""
    missing: int = 0
    """Attempts before it of which nothing is known: their workers died too early to tell."""

    @classmethod
    def known(cls) -> Past:
        """Of the activity at work."""
        info = activity.info()
        details = info.heartbeat_details
        # Null from a worker of before summaries had a past.
        past = cls.model_validate(details[0]) if details and details[0] is not None else cls()
        if "attempt" in past.model_fields_set or not details:
            past.missing += info.attempt - 1 - past.attempt
        before = Usage(estimated_tokens=past.lost_tokens)
        past.attempt, past.lost, past.lost_tokens = info.attempt - 1, past.lost.plus(before), 0
        return past

    def learn(self, error: ProviderError, spent: Usage) -> None:
        """This attempt has failed as well, and spent so much."""
        self.attempt += 1
        self.lost = self.lost.plus(spent)
        self.whole = self.whole or error.stream_unusable
        self.unusable += error.code in _UNUSABLE


@dataclasses.dataclass
class Attempt:
    """One attempt of an activity that asks a model."""

    failed: Literal["generation failed", "summary failed"]
    """The event that the log has then."""
    turn: int
    seconds_left: float = math.inf
    """When the activity was scheduled, until the run's deadline: a wait beyond it is not begun."""
    prices: Sequence[Price] = ()
    """Of the model, once it is known."""
    past: Past = dataclasses.field(default_factory=Past.known)
    progress: Progress = dataclasses.field(default_factory=Progress)
    began: float = dataclasses.field(default_factory=time.monotonic)
    spent: Usage | None = None
    """What this attempt alone has cost, once that is known."""

    def cost(self, reply: Usage) -> Usage:
        """Of a reply, and of the attempts that got none."""
        # Those of which nobody knows were about to say the same.
        lost = self.lost(reply.all_input, reply.output_tokens)
        return priced(reply, self.prices).plus(lost)

    def lost(self, request_tokens: int = 0, reply_tokens: int = 0) -> Usage:
        """What attempts before this one cost; so much each of those that nobody knows of."""
        missed = Usage(estimated_input_tokens=request_tokens, estimated_tokens=reply_tokens)
        lost = self.past.lost
        for _ in range(self.past.missing):
            lost = lost.plus(priced(missed, self.prices))
        return lost

    def told(self) -> Past:
        """For the next attempt, should this be the last that is heard of this one."""
        if not self.progress.sent_bytes:
            return self.past
        spent = priced(self.progress.spent(), self.prices)
        return self.past.model_copy(
            update={"attempt": self.past.attempt + 1, "lost": self.past.lost.plus(spent)}
        )

    def details(self) -> dict[str, Any]:
        """For the run, when it gets no reply."""
        return {"lost": self.past.lost.model_dump(exclude_defaults=True)}

    def failed_by(self, error: ProviderError) -> None:
        """Keep what is to be known of it."""
        paid = self.progress.first_token_ms is not None or error.code in _ABANDONED
        # It has answered, or may yet, and will be paid.
        spent = priced(self.progress.spent(), self.prices) if paid else Usage()
        self.past.lost = self.lost(self.progress.sent_bytes // 4)
        self.past.missing = 0
        self.past.learn(error, spent)
        self.spent = spent
        self.progress = Progress()

    def timing(self, view: str) -> Timing:
        """Of the attempt so far; `view` says where the view came from."""
        return timing(self.began).model_copy(
            update={**dataclasses.asdict(self.progress), "view": view}
        )


class Asking:
    """Asks the models of this worker's providers."""

    def __init__(
        self, pictures: Pictures, providers: Mapping[str, Provider], redactor: Redactor
    ) -> None:
        self._pictures = pictures
        self._providers = providers
        self._redactor = redactor
        self._input_tokens = InputTokens()

    async def ask(
        self, request: ModelRequest, attempt: Attempt, *, known_ids: Collection[str] = ()
    ) -> Admitted:
        """Send a request, with the images that its entries refer to.

        known_ids: see `admit_reply`.

        Raises:
            ApplicationError: of type `provider_error` or `store_unavailable` to be tried again; of
                an outcome's name, or `THINKING_MISMATCH`, when the same request would fail again.
                Its details say what was lost.
        """
        began = time.monotonic()
        try:
            provider = provider_of(self._providers, request.spec.model)
            request = dataclasses.replace(
                request,
                stream=not attempt.past.whole,
                images=await self._images(request.entries, provider.images),
            )
            reply = await provider.generate(request, attempt.progress)
            admitted = admit_reply(reply, turn=attempt.turn, known_ids=known_ids)
        except ProviderError as error:
            attempt.failed_by(error)
            activity.heartbeat(attempt.past)
            raise self._failure(error, attempt, time.monotonic() - began) from None
        self._input_tokens.count(request.spec, admitted.usage)
        attempt.spent = priced(admitted.usage, attempt.prices)
        return admitted

    async def _images(self, entries: Sequence[Entry], most: ImageBounds) -> dict[str, bytes]:
        with as_failures(self._redactor):
            return await self._pictures.of(str(activity.info().workflow_id), entries, most)

    def _failure(self, error: ProviderError, attempt: Attempt, took: float) -> ApplicationError:
        """What Temporal is told: wait and try again, or give up with an outcome's name."""
        info = activity.info()
        message = one_line(self._redactor.error(str(error)), 600)
        told = {"code": error.code, "status": error.status, "request_id": error.request_id}
        details = told | attempt.details()
        log.warning(
            attempt.failed,
            turn=attempt.turn,
            attempt=info.attempt,
            kind=error.kind,
            **told,
            lost_tokens=attempt.past.lost.total,
            error=message,
        )
        if error.kind != "retry":
            return ApplicationError(message, details, type=_TYPES[error.kind], non_retryable=True)
        if attempt.past.unusable >= MAX_UNUSABLE_REPLIES:
            return ApplicationError(message, details, type="model_unavailable", non_retryable=True)
        wait = error.retry_after
        if wait is None:
            return ApplicationError(message, details, type=PROVIDER_ERROR)
        # The server's clock against itself: this worker's may differ from it, or from virtual time.
        since = info.current_attempt_scheduled_time - info.scheduled_time
        left = attempt.seconds_left - since.total_seconds() - took
        if wait > min(left, MAX_WAIT_SECONDS):
            has = "" if math.isinf(left) else f"has {max(left, 0):.0f} s left and "
            return ApplicationError(
                f"{message}; it asks to wait {wait:g} s, but the run {has}waits "
                f"{MAX_WAIT_SECONDS:g} s at most",
                details,
                type="model_unavailable",
                non_retryable=True,
            )
        return ApplicationError(
            message, details, type=PROVIDER_ERROR, next_retry_delay=timedelta(seconds=wait)
        )
