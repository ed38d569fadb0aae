"""Find out who has decided about a call, by the agent's own function."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor

import structlog
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.foreign import called, said, trace
from activities.redact import Redactor
from activities.registry import Registry
from turnkeeper.contract import NOT_VERIFIED, VERIFY, Signature, VerifyOutput
from turnkeeper.text import one_line

MOST_SECONDS = 20.0
"""For one look; less than the attempt has."""

log = structlog.get_logger("turnkeeper.verify")


class Verifying:
    """The activity `run.verify`."""

    def __init__(self, registry: Registry, threads: Executor, redactor: Redactor) -> None:
        self._registry = registry
        self._threads = threads
        self._redactor = redactor

    @activity.defn(name=VERIFY)
    async def run(self, signature: Signature) -> VerifyOutput:
        """Who made the decision.

        Raises:
            ApplicationError: of type `not_verified`; for everything but a plain no it is tried
                again.
        """
        agent = self._registry.agents.get(signature.agent)
        if agent is None or agent.verify is None:
            # Redeployed without it, or another worker's: nothing counts that nobody can verify.
            raise ApplicationError("no worker can verify who decides", type=NOT_VERIFIED)
        decided = {"approval": signature.approval.id, "verdict": signature.verdict}
        try:
            async with asyncio.timeout(MOST_SECONDS):
                actor = await called(self._threads, agent.verify, signature)
        except asyncio.CancelledError:
            raise
        except PermissionError as error:
            why = self._shown(said(error) or "they may not decide this")
            log.warning("decision refused", **decided, actor=signature.actor, why=why)
            raise ApplicationError(why, type=NOT_VERIFIED, non_retryable=True) from None
        except BaseException as error:  # noqa: BLE001  an author's function may raise anything
            log.error("not verified", **decided, error=self._redactor.error(trace(error))[-4000:])
            why = self._shown(f"{type(error).__name__}: {said(error)}")
            raise ApplicationError(f"not verified: {why}", type=NOT_VERIFIED) from None
        if not isinstance(actor, str) or not actor.strip():
            raise ApplicationError(
                f"verify returned {type(actor).__name__}, no name",
                type=NOT_VERIFIED,
                non_retryable=True,
            )
        log.info("verified", **decided, actor=one_line(actor, 200))
        return VerifyOutput(actor=one_line(actor, 200))

    def _shown(self, why: str) -> str:
        return one_line(self._redactor.error(why), 300)
