"""Write a summary of a view's beginning, for the day when it no longer fits."""

from __future__ import annotations

import structlog
from temporalio import activity

from activities.aside import aside
from activities.asking import Asking, Attempt
from activities.gate import Gate
from activities.providers import ModelRequest
from activities.providers.admission import Admitted
from activities.pulse import pulse
from activities.redact import Redactor
from activities.views import Views, read
from turnkeeper import replies
from turnkeeper.contract import SUMMARISE, Checkpoint, SummariseInput, SummariseOutput
from turnkeeper.day_limits import Estimate
from turnkeeper.entries import Entry, message
from turnkeeper.epoch import SUMMARISE as INSTRUCTION
from turnkeeper.epoch import carried, problem_of_summary, tail_from
from turnkeeper.prices import cost
from turnkeeper.spec import AgentSpec, ContextPolicy
from turnkeeper.usage import Usage
from turnkeeper.view import size

_BYTES_PER_TOKEN = 4
_FINISHED = (None, "end_turn", "stop_sequence")

log = structlog.get_logger("turnkeeper.summarise")


class Summarise:
    """The activity `run.summarise`."""

    def __init__(self, views: Views, asking: Asking, redactor: Redactor, gate: Gate) -> None:
        self._gate = gate
        self._views = views
        self._asking = asking
        self._redactor = redactor

    @activity.defn(name=SUMMARISE)
    async def run(self, asked: SummariseInput) -> SummariseOutput:
        """Ask the model once; what it wrote is checked, and a bad summary is a problem, no error.

        Raises:
            ApplicationError: as `Asking.ask` and `Gate.within` have it, or of type `state_lost`.
        """
        attempt = Attempt("summary failed", asked.turn)
        async with pulse(attempt.told):
            spec, view, source = await read(
                self._views, self._redactor, asked.spec_digest, asked.base
            )
            policy = spec.context or ContextPolicy()
            attempt.prices = (policy.summariser or spec.model).prices
            covered = await aside(
                view.bytes, lambda: _covered(view.entries, policy.keep_turns, asked.room)
            )
            output = await self._summary(spec, policy, view.entries[:covered], asked, attempt)
        output.timing = attempt.timing(source)
        log.info(
            "summarised" if output.checkpoint else "no summary",
            turn=asked.turn,
            entries=covered,
            problem=output.problem,
            **output.usage.model_dump(exclude_defaults=True),
        )
        return output

    async def _summary(
        self,
        spec: AgentSpec,
        policy: ContextPolicy,
        entries: list[Entry],
        asked: SummariseInput,
        attempt: Attempt,
    ) -> SummariseOutput:
        if len(entries) < 2:
            return SummariseOutput(problem="there is nothing to summarise yet")
        request, model = _request(spec, policy, entries, asked), policy.summariser or spec.model
        estimate = _estimate(request, policy)
        async with self._gate.within(spec.name, asked.tenant, model, estimate, attempt):
            reply = await self._asking.ask(request, attempt)
        text = "\n".join(replies.texts(reply.entry.value)).strip()
        problem = _unfinished(reply) or problem_of_summary(text, policy.checkpoint_tokens)
        epoch = asked.epoch.number if asked.epoch else 0
        made = Checkpoint(epoch=epoch, entries=len(entries), text=text) if not problem else None
        return SummariseOutput(checkpoint=made, problem=problem, usage=attempt.cost(reply.usage))


def _covered(entries: list[Entry], keep_turns: int, room: int | None) -> int:
    """How many entries a summary stands for."""
    # As much as half of the view may stay: it is to become a good deal shorter.
    half = sum(map(size, entries)) // 2
    return tail_from(entries, keep_turns, half if room is None else min(half, room))


def _request(
    spec: AgentSpec, policy: ContextPolicy, entries: list[Entry], asked: SummariseInput
) -> ModelRequest:
    words = max(50, policy.checkpoint_tokens // 2)
    instruction = message(INSTRUCTION.format(words=words))
    # A summary is plain text.
    spec = spec.model_copy(update={"output": None})
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
    )


def _estimate(request: ModelRequest, policy: ContextPolicy) -> Estimate:
    usage = Usage(
        input_tokens=sum(map(size, request.entries)) // _BYTES_PER_TOKEN,
        output_tokens=policy.checkpoint_tokens,
    )
    return Estimate.bounded(usage.total, cost(usage, request.spec.model.prices) or 0)


def _unfinished(reply: Admitted) -> str | None:
    if replies.calls(reply.entry.value):
        return "the model called a tool instead"
    if reply.stop_reason not in _FINISHED:
        return f"the reply ended with {reply.stop_reason}"
    return None
