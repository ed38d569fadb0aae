"""Whether an answer is of its agent's output type: found out where the author's code may run."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Final

import structlog
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.providers.admission import Admitted
from activities.redact import Redactor
from activities.registry import Registry
from turnkeeper import replies
from turnkeeper.artifacts import ArtifactStore
from turnkeeper.contract import Checked, GenerateOutput
from turnkeeper.output_type import OutputType, Unfit
from turnkeeper.parse import Decision, parse
from turnkeeper.spec import AgentSpec
from turnkeeper.text import one_line, utf8_size

MAX_INLINE_BYTES: Final = 64_000
"""What a result may have of an answer, as text or as JSON: a longer one goes to the store."""
CHECK_SECONDS: Final = 60.0
"""The longest that a type's validators may take."""
STORE_ATTEMPTS: Final = 3
"""Times that a long answer is written: asking for the reply again would be paid for."""

log = structlog.get_logger("turnkeeper.outputs")


class Outputs:
    """Checks the answers of agents that have an output type, and stores what is too long."""

    def __init__(self, registry: Registry, store: ArtifactStore, redactor: Redactor) -> None:
        self._registry = registry
        self._store = store
        self._redactor = redactor

    def of(self, spec: AgentSpec) -> OutputType | None:
        """What checks the answers of an agent; None if they may be any text.

        Raises:
            ApplicationError: retryable, of type `unknown_agent`: this worker does not have it.
        """
        if spec.output is None:
            return None
        agent = self._registry.agents.get(spec.name)
        own = agent.output if agent else None
        if not spec.output.typed:
            same = own is not None and own.json_schema == spec.output.json_schema
            return own if same else OutputType(spec.output.json_schema)
        if own is None:
            # Before anything was asked. In a rolling deploy another worker has it.
            raise ApplicationError(
                f"this worker has no agent {spec.name!r} with an output type; its answers cannot "
                "be checked here",
                type="unknown_agent",
                next_retry_delay=timedelta(seconds=min(0.5 * 2 ** activity.info().attempt, 30)),
            )
        return own

    async def check(self, output: OutputType | None, reply: Admitted, turn: int) -> Checked | None:
        """What the loop has to know of a reply; None if it does not end its turn, or needs no
        check: without an output type an answer may be any text."""
        said = GenerateOutput(entry=reply.entry, stop_reason=reply.stop_reason)
        if parse(said, can_grow=True).decision is not Decision.ANSWER:
            return None
        text = replies.text(reply.entry.value)
        if output is not None:
            return await self._checked(output, text, turn)
        if utf8_size(text) <= MAX_INLINE_BYTES:
            return None
        artifact, not_stored = await self._stored("answer", text)
        return Checked(answer_artifact=artifact, not_stored=not_stored)

    async def _checked(self, output: OutputType, text: str, turn: int) -> Checked:
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                # In a thread: validators may take long, or wait for something.
                value = await asyncio.to_thread(output.canonical, text)
        except Unfit as unfit:
            problems = [one_line(self._redactor.error(p), 500) for p in unfit.problems]
            log.warning("answer does not fit", turn=turn, problems=problems)
            return Checked(problems=problems)
        except TimeoutError:
            log.error("answer not checked", turn=turn, error=f"took over {CHECK_SECONDS:g} s")
            return Checked(problems=["It could not be checked in time; a shorter one may be."])
        except (Exception, SystemExit) as error:
            # Whatever a validator raises: an exit would be the worker's.
            log.error("answer not checked", turn=turn, exc_info=error)
            return Checked(problems=[f"It could not be checked ({type(error).__name__})."])
        if utf8_size(value) <= MAX_INLINE_BYTES:
            return Checked(value=value)
        artifact, not_stored = await self._stored("output", value)
        return Checked(artifact=artifact, not_stored=not_stored)

    async def _stored(self, what: str, text: str) -> tuple[str | None, str | None]:
        """The artifact, or why there is none."""
        data, owner = text.encode(), str(activity.info().workflow_id)
        for attempt in range(STORE_ATTEMPTS):
            await asyncio.sleep(attempt)
            try:
                return await self._store.put(owner, data), None
            except OSError as error:
                why = one_line(self._redactor.error(str(error)), 300)
                log.warning("answer not stored", what=what, attempt=attempt + 1, error=why)
        return None, f"the {what} of {len(data)} bytes could not be stored; the transcript has it"
