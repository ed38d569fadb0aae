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
from turnkeeper.text import one_line

MAX_OUTPUT_BYTES: Final = 64_000
"""Of JSON: a longer output goes to the artifact store."""
CHECK_SECONDS: Final = 60.0
"""The longest that a type's validators may take."""
STORE_ATTEMPTS: Final = 3
"""Times that a long output is written: asking for the reply again would be paid for."""

log = structlog.get_logger("turnkeeper.outputs")


class Outputs:
    """Checks the answers of agents that have an output type."""

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

    async def check(self, output: OutputType, reply: Admitted, turn: int) -> Checked | None:
        """What the loop has to know of a reply; None if it does not end its turn."""
        said = GenerateOutput(entry=reply.entry, stop_reason=reply.stop_reason)
        if parse(said, can_grow=True).decision is not Decision.ANSWER:
            return None
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                # In a thread: validators may take long, or wait for something.
                text = await asyncio.to_thread(output.canonical, replies.text(reply.entry.value))
        except Unfit as unfit:
            problems = [one_line(self._redactor.error(p), 500) for p in unfit.problems]
            log.warning("answer does not fit", turn=turn, problems=problems)
            return Checked(problems=problems)
        except TimeoutError:
            log.error("answer not checked", turn=turn, error=f"took over {CHECK_SECONDS:g} s")
            return Checked(problems=["It could not be checked in time; a shorter one may be."])
        except Exception as error:
            log.error("answer not checked", turn=turn, exc_info=error)
            return Checked(problems=[f"It could not be checked ({type(error).__name__})."])
        return await self._kept(text)

    async def _kept(self, text: str) -> Checked:
        if len(data := text.encode()) <= MAX_OUTPUT_BYTES:
            return Checked(value=text)
        for attempt in range(STORE_ATTEMPTS):
            try:
                owner = str(activity.info().workflow_id)
                return Checked(artifact=await self._store.put(owner, data))
            except OSError as error:
                why = one_line(self._redactor.error(str(error)), 300)
                log.warning("output not stored", attempt=attempt + 1, error=why)
                await asyncio.sleep(2.0**attempt)
        told = f"the output of {len(data)} bytes could not be stored; the transcript has the answer"
        return Checked(not_stored=told)
