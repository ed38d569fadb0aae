"""GENERATE: one request to the model, one complete reply."""

from __future__ import annotations

import structlog
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.asking import Asking, Attempt
from activities.gate import Gate
from activities.outputs import Outputs
from activities.providers import ModelRequest
from activities.providers.admission import UNDIAGNOSED, Admitted
from activities.pulse import pulse
from activities.redact import Redactor
from activities.views import Views, read
from turnkeeper.contract import GENERATE, GenerateInput, GenerateOutput, Timing
from turnkeeper.day_limits import Estimate
from turnkeeper.prices import LimitName
from turnkeeper.render import usage_text
from turnkeeper.spec import AgentSpec
from turnkeeper.view import View, unanswered

log = structlog.get_logger("turnkeeper.generate")


class Generate:
    """The activity `run.generate`."""

    def __init__(
        self,
        views: Views,
        asking: Asking,
        redactor: Redactor,
        gate: Gate,
        outputs: Outputs,
    ) -> None:
        self._gate = gate
        self._outputs = outputs
        self._views = views
        self._asking = asking
        self._redactor = redactor

    @activity.defn(name=GENERATE)
    async def run(self, asked: GenerateInput) -> GenerateOutput:
        """Ask the model once.

        Raises:
            ApplicationError: as `Asking.ask`, `Gate.within` and `Outputs.of` have it, or of type
                `state_lost`.
        """
        attempt = Attempt("generation failed", asked.turn, asked.seconds_left)
        async with pulse(attempt.told):
            spec, view, source = await read(
                self._views, self._redactor, asked.spec_digest, asked.base
            )
            view.extend(asked.new)
            output = self._outputs.of(spec)
            attempt.prices = spec.model.prices
            max_tokens, cut_by = _allowed(asked, attempt)
            request = self._request(spec, view, asked, max_tokens)
            estimate = asked.estimate or Estimate()
            async with self._gate.within(spec.name, asked.tenant, spec.model, estimate, attempt):
                admitted = await self._asking.ask(request, attempt, known_ids=view.call_ids)
            checked = await self._outputs.check(output, admitted, asked.turn)
            switched_off = await self._gate.served_off(spec, asked.tenant, admitted.entry)
        workflow_id, position = str(activity.info().workflow_id), view.position
        view.extend([admitted.entry])
        self._views.keep(workflow_id, view)
        self._views.remember_reply(workflow_id, position, admitted.message_id)
        timing = attempt.timing(source)
        _log_reply(asked, admitted, timing)
        _log_cache_miss(asked, admitted)
        return GenerateOutput(
            entry=admitted.entry,
            stop_reason=admitted.stop_reason,
            stop_details=admitted.stop_details,
            message_id=admitted.message_id,
            model=admitted.model,
            usage=attempt.cost(admitted.usage),
            refused_calls=admitted.refused_calls,
            mended=admitted.mended or None,
            checked=checked,
            cut_by=cut_by,
            switched_off=switched_off or None,
            timing=timing,
        )

    def _request(
        self, spec: AgentSpec, view: View, asked: GenerateInput, max_tokens: int
    ) -> ModelRequest:
        if open_calls := unanswered(view.entries):
            # Sent like this, the request and every later one would be refused. A bug of ours.
            raise ApplicationError(
                f"{len(open_calls)} tool calls have no result",
                type="state_lost",
                non_retryable=True,
            )
        workflow_id = str(activity.info().workflow_id)
        return ModelRequest(
            spec=spec,
            entries=list(view.entries),
            max_tokens=max_tokens,
            answer_only=bool(asked.answer_only),
            drop_thinking=bool(asked.drop_thinking),
            previous_message_id=self._views.previous_message_id(workflow_id, view),
        )


def _allowed(asked: GenerateInput, attempt: Attempt) -> tuple[int, LimitName | None]:
    """Tokens that the reply may have, after what earlier attempts have lost.

    Raises:
        ApplicationError: of the limit's name, when the rest allows no reply.
    """
    if asked.allowance is None:
        return asked.max_tokens, None
    # Of those that nobody knows of each may have got a whole reply, and is paid for.
    request = asked.allowance.request_tokens
    expected = asked.estimate.tokens - request if asked.estimate else 0
    lost = attempt.lost(request, max(0, expected))
    allowed, by = asked.allowance.reply_tokens(asked.max_tokens, attempt.prices, lost)
    if by is not None and not allowed:
        told = f"attempts that failed have used up what was left ({usage_text(lost)})"
        raise ApplicationError(told, attempt.details(), type=by, non_retryable=True)
    return allowed, by


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
