"""EXECUTE: one dynamic activity runs every tool; its type is the tool's name."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import math
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, NoReturn

import structlog
from temporalio import activity
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from activities.approving import wanted
from activities.aside import aside
from activities.attachments import Attachments
from activities.attempts import VAIN_PROBES, Attempts, backoff, earlier_attempts
from activities.fence import fenced
from activities.foreign import in_thread, said, trace
from activities.in_flight import InFlight
from activities.lease import Lease
from activities.memory import Memories
from activities.probing import ask
from activities.pulse import timing
from activities.redact import Redactor
from activities.registry import Registry
from activities.resets import Resets
from activities.results import Parts, content_of, extract, heft, sendable
from activities.runners import Runners, in_process
from activities.switched import Switched
from turnkeeper.artifacts import ArtifactStore
from turnkeeper.contract import (
    NOT_HERE,
    NOTHING_HAPPENED,
    SWITCHED_OFF,
    Asks,
    ExecuteInput,
    ExecuteOutput,
)
from turnkeeper.entries import result
from turnkeeper.errors import RetryTool, StopRun, ToolFailed
from turnkeeper.media import ImageRef
from turnkeeper.metrics import ATTEMPTS_STOPPED, ATTEMPTS_TIMED_OUT
from turnkeeper.probe import Answer, Landed, Unknown
from turnkeeper.returned import Unreadable
from turnkeeper.spec import stricter
from turnkeeper.text import clip_json, fits_json, one_line
from turnkeeper.tools import Tool, ToolContext

_BUGS = (
    AssertionError,
    AttributeError,
    ImportError,
    NameError,
    NotImplementedError,
    RecursionError,
    TypeError,
)
"""The same attempt would fail again."""
MAX_DELAY_SECONDS = 3_600
"""The longest wait that a tool's RetryTool gets."""
_STORING_SECONDS = 2.0

log = structlog.get_logger("turnkeeper.execute")


class Execute:
    """The dynamic activity."""

    def __init__(
        self,
        registry: Registry,
        store: ArtifactStore,
        redactor: Redactor,
        threads: ThreadPoolExecutor,
        runners: Runners,
        *,
        memories: Memories,
        resets: Resets,
        switched: Switched,
    ) -> None:
        self.in_flight = InFlight()
        """The calls that this worker is at."""
        self._registry = registry
        self._store = store
        self._redactor = redactor
        self._threads = threads
        self._runners = runners
        self._memories = memories
        self._resets = resets
        self._switched = switched

    @activity.defn(dynamic=True)
    async def run(self, args: Sequence[RawValue]) -> ExecuteOutput:
        """Run one attempt of one call.

        Raises:
            ApplicationError: `ToolNotHere`, `SwitchedOff`, `RetryTool` and `tool_failed`; the
                message is written for the model, internals are in the details.
        """
        began = time.monotonic()
        asked: ExecuteInput = activity.payload_converter().from_payload(
            args[0].payload, ExecuteInput
        )
        tool = self._registry.tool(asked.agent, asked.tool)
        attempts = earlier_attempts()
        if tool is None:
            self._not_here(asked, attempts)
        asked = asked.model_copy(update={"effect": stricter(asked.effect, tool.spec.effect)})
        again = activity.info().attempt > 1
        sure = not (tool.spec.mutates or again)
        lease = Lease(lambda: attempts, silence=tool.spec.heartbeat, sure=sure)
        context = self._context(asked, attempts, lease)
        try:
            arguments = tool.bind(asked.arguments, context)
        except ValueError as error:
            if attempts.unsure:
                # Redeployed with other parameters since it was begun.
                attempts.why = str(error)
                raise self._final(asked, attempts) from None
            return self._output(asked, "invalid", str(error), began)
        except BaseException as error:  # noqa: BLE001  an author's validator may raise anything
            attempts.why = f"{type(error).__name__}: {said(error)}"
            shown = self._redactor.error(trace(error))[-4000:]
            raise self._final(asked, attempts, shown) from None
        async with lease.kept():
            if again:
                await self._refuse_stale(asked, lease)
                self._count_silent(asked, attempts)
            output = await self._without_body(
                tool, asked, attempts, arguments, context, began=began
            )
            if output is not None:
                return output
            self._refuse_spent(asked, attempts)
            await self._refuse_switched_off(asked, attempts)
            attempts.begin()
            context.attempt = attempts.begun
            body = functools.partial(self._call, tool, arguments, context, asked, lease)
            return await self._body(body, asked, attempts, lease, began)

    async def _without_body(
        self,
        tool: Tool,
        asked: ExecuteInput,
        attempts: Attempts,
        arguments: dict[str, Any],
        context: ToolContext,
        *,
        began: float,
    ) -> ExecuteOutput | None:
        """What is known or missing before the body may be begun; None if it may."""
        if asked.effect == "reconcilable" and (attempts.unsure or asked.repeated):
            answer = await ask(tool, context, arguments, self._threads)
            if isinstance(answer, Landed):
                log.info("landed before", tool=asked.tool, turn=asked.turn, key=asked.key)
                return await self._returned(asked, answer.receipt, began)
            self._not_landed(asked, attempts, answer)
        if (made := await self._made_before(asked, attempts, began)) is not None:
            return made
        if attempts.unsure:
            return None
        return await self._needs_word(tool, asked, arguments, context, began)

    async def _needs_word(
        self,
        tool: Tool,
        asked: ExecuteInput,
        arguments: dict[str, Any],
        context: ToolContext,
        began: float,
    ) -> ExecuteOutput | None:
        """That a person has to allow it; None if the body may be begun."""
        asks, needed = await wanted(
            tool,
            asked,
            arguments,
            context,
            threads=self._threads,
            redactor=self._redactor,
        )
        if needed:
            told = f"waits for a person to allow it: {asks.why}"
            return self._output(asked, "needs_approval", told, began, asks=asks)
        if asked.asks_only:
            return self._output(asked, "cleared", "nobody has to allow it", began, asks=asks)
        return None

    async def _made_before(
        self, asked: ExecuteInput, attempts: Attempts, began: float
    ) -> ExecuteOutput | None:
        """What is told of a `once` call that was begun before the run was reset; None if it was
        not."""
        if not asked.reset or asked.effect != "once" or attempts.begun:
            return None
        made = await self._resets.call(asked)
        if made is None:
            return None
        log.info("begun before a reset", tool=asked.tool, turn=asked.turn, key=asked.key)
        if isinstance(made, ExecuteOutput):
            made.timing = timing(began)
            return made
        if made.sure:
            return self._output(asked, "error", made.why, began)
        attempts.unsure, attempts.why = 1, made.why
        raise self._final(asked, attempts)

    async def _body(
        self,
        body: Callable[[], Awaitable[Any]],
        asked: ExecuteInput,
        attempts: Attempts,
        lease: Lease,
        began: float,
    ) -> ExecuteOutput:
        try:
            value = await body()
        except asyncio.CancelledError as error:
            if failure := self._interrupted(asked, attempts, lease, error):
                raise failure from None
            raise
        except ToolFailed as error:
            return self._output(asked, "error", said(error) or "The tool failed.", began)
        except StopRun as error:
            reason = one_line(self._redactor.error(said(error)), 1_000)
            return self._output(asked, "stop", f"The run ends: {reason}", began, reason=reason)
        except RetryTool as error:
            raise self._again(asked, attempts, error) from None
        except Unreadable as error:
            return self._unreadable(asked, error, began)
        except BaseException as error:  # noqa: BLE001  a tool may raise anything, SystemExit too
            await self._refuse_late(asked, attempts, lease, type(error).__name__)
            raise self._raised(asked, attempts, error) from None
        await self._refuse_late(asked, attempts, lease, "returned")
        return await self._returned(asked, value, began)

    async def _call(
        self,
        tool: Tool,
        arguments: dict[str, Any],
        context: ToolContext,
        asked: ExecuteInput,
        lease: Lease,
    ) -> Any:
        if tool.spec.mutates:
            # The server knows that the body is begun before anything can have happened.
            await lease.ask()
            await self._refuse_stale(asked, lease)
        with lease.tool_runs(), self.in_flight.entered(asked.tool, asked.effect):
            if tool.is_async:
                return await fenced(tool.function(**arguments), lease)
            if in_process(tool):
                return await self._runners.call(tool, arguments, context, lease)
            return await in_thread(self._threads, lambda: tool.function(**arguments))

    async def _refuse_stale(self, asked: ExecuteInput, lease: Lease) -> None:
        """Begin nothing that another worker has by now: this one was stopped while it was handed
        the task."""
        if not await lease.assured():
            log.warning("not begun", tool=asked.tool, key=asked.key, why=lease.why)
            raise RetryTool(lease.why)

    async def _refuse_late(
        self, asked: ExecuteInput, attempts: Attempts, lease: Lease, end: str
    ) -> None:
        """Say it here, with the run's id: the server would refuse it anyway."""
        if lease.in_doubt:
            await lease.ask()
        if lease.loss == "superseded":
            begun = attempts.begun
            log.warning("late result", tool=asked.tool, key=asked.key, attempt=begun, result=end)
            raise self._stopped(asked, attempts, lease)

    async def _returned(self, asked: ExecuteInput, value: Any, began: float) -> ExecuteOutput:
        owner = str(activity.info().workflow_id)
        attached = Attachments(
            self._store,
            self._redactor,
            owner,
            most=asked.images,
            seconds=_seconds_left(began),
        )
        try:
            content = await aside(heft(value), lambda: content_of(value))
        except Unreadable as error:
            return self._unreadable(asked, error, began)
        told = await attached.told(content) if isinstance(content, Parts) else content
        text = await aside(len(told), lambda: self._redactor.known(told))
        images, limit = attached.images, asked.result_bytes
        if fits_json(text, limit):
            return self._output(asked, "ok", text, began, images=images)
        artifact = None
        try:
            artifact = await self._store.put(owner, await aside(len(text), text.encode))
        except (OSError, ValueError) as error:
            # The effect has happened: a store that is down must not have it repeated.
            log.error("result not stored", tool=asked.tool, turn=asked.turn, error=str(error))
        shown = await aside(len(text), lambda: extract(text, limit, artifact))
        return self._output(asked, "ok", shown, began, artifact=artifact, images=images)

    def _unreadable(self, asked: ExecuteInput, error: Unreadable, began: float) -> ExecuteOutput:
        told = (
            f"The tool ran to its end, but returned {error}. That cannot be shown: ask for less of "
            "it, or for another form."
        )
        return self._output(asked, "error", told, began)

    def _output(
        self,
        asked: ExecuteInput,
        status: Any,
        text: str,
        began: float,
        *,
        reason: str | None = None,
        artifact: str | None = None,
        images: Sequence[ImageRef] = (),
        asks: Asks | None = None,
    ) -> ExecuteOutput:
        failed = status in ("error", "invalid")
        shown = clip_json(self._redactor.error(text) if failed else text, asked.result_bytes)
        took = timing(began)
        log.info(
            "executed",
            tool=asked.tool,
            turn=asked.turn,
            call=asked.index,
            key=asked.key,
            attempt=activity.info().attempt,
            status=status,
            bytes=len(shown.encode()),
            artifact=artifact,
            images=len(images) or None,
            **took.model_dump(exclude_none=True),
        )
        return ExecuteOutput(
            entry=result(
                asked.call_id,
                asked.tool,
                shown,
                error=failed,
                images=[image.model_dump() for image in images],
            ),
            status=status,
            reason=reason,
            artifact=artifact,
            asks=asks,
            timing=took,
        )

    def _count_silent(self, asked: ExecuteInput, attempts: Attempts) -> None:
        """Tell of attempts that ended without a word: nobody else may have been able to."""
        if silent := attempts.begun - attempts.settled:
            log.warning("attempts timed out", tool=asked.tool, key=asked.key, attempts=silent)
            _count(ATTEMPTS_TIMED_OUT, silent, tool=asked.tool)
            attempts.settled = attempts.begun

    # --- failures -------------------------------------------------------------------------------

    def _not_here(self, asked: ExecuteInput, attempts: Attempts) -> NoReturn:
        # Retryable, so that the server hands it to another worker: re-scheduled by the workflow,
        # eager execution would bring it back to this one for ever.
        attempt = activity.info().attempt
        attempts.aside += 1
        activity.heartbeat(attempts)
        log.warning("tool not here", agent=asked.agent, tool=asked.tool, attempt=attempt)
        raise ApplicationError(
            f"Tool {asked.tool} of agent {asked.agent} is not on this worker.",
            # Once it has begun somewhere, it cannot be told that it was not run.
            type="tool_failed" if attempts.begun else NOT_HERE,
            next_retry_delay=timedelta(seconds=min(0.2 * 1.5 ** (attempt - 1), 30)),
        )

    def _not_landed(self, asked: ExecuteInput, attempts: Attempts, answer: Answer) -> None:
        """Return if the body may be begun as if it never had been."""
        if isinstance(answer, Unknown):
            raise self._vain(asked, attempts, answer)
        # A target that may have forgotten the key cannot tell.
        if not attempts.is_late(asked.key_ttl):
            attempts.unsure = 0

    def _vain(self, asked: ExecuteInput, attempts: Attempts, answer: Unknown) -> ApplicationError:
        attempts.vain += 1
        activity.heartbeat(attempts)
        why = one_line(self._redactor.error(answer.why), 1_000)
        log.warning("probe without an answer", tool=asked.tool, key=asked.key, why=why)
        if attempts.vain >= VAIN_PROBES:
            attempts.unsure = max(attempts.unsure, 1)
            attempts.why = attempts.why or "it could not be found out whether it had happened"
            return self._final(asked, attempts)
        return ApplicationError(
            f"Whether {asked.tool} has taken effect is not known yet.",
            type="tool_failed",
            next_retry_delay=backoff(attempts.vain + 1),
        )

    def _refuse_spent(self, asked: ExecuteInput, attempts: Attempts) -> None:
        # Attempts of a `once` tool are for RetryTool alone: after it, nothing is unsure.
        begun_once = asked.effect == "once" and attempts.unsure > 0
        if attempts.over or begun_once or attempts.begun >= asked.attempts:
            # The attempt that was the last one ended without a word, or a probe came after it.
            limit = activity.info().start_to_close_timeout
            within = f" within {limit.total_seconds():g} s" if limit else ""
            attempts.why = attempts.why or (
                f"it did not finish{within}, its worker died, or its result could not be sent"
            )
            raise self._final(asked, attempts)
        if attempts.unsure and attempts.is_late(asked.key_ttl):
            attempts.why = "it is too late to try again under the same key"
            raise self._final(asked, attempts)

    async def _refuse_switched_off(self, asked: ExecuteInput, attempts: Attempts) -> None:
        """Begin nothing that an operator has forbidden, a further attempt neither."""
        tenant = asked.metadata.get("tenant")
        off = await self._switched.check_tool(asked.agent, asked.tool, tenant)
        if off is None:
            return
        if attempts.unsure:
            attempts.why = (
                f"{attempts.why or 'it may have begun'}; then it could not be tried "
                f"again: {off.told}"
            )
            raise self._final(asked, attempts)
        raise ApplicationError(
            self._shown(f"{off.told}. The call was not run."), type=SWITCHED_OFF, non_retryable=True
        )

    def _again(self, asked: ExecuteInput, attempts: Attempts, error: RetryTool) -> ApplicationError:
        attempts.unsure -= 1
        attempts.why = self._shown(said(error) or "it asked to be tried again")
        attempts.end()
        begun = attempts.begun
        if begun >= asked.attempts:
            return self._final(asked, attempts)
        log.info("tool asks for another attempt", tool=asked.tool, key=asked.key, attempt=begun)
        delay = _delay(error.delay)
        return ApplicationError(
            attempts.why,
            type=NOTHING_HAPPENED,
            next_retry_delay=backoff(begun) if delay is None else delay,
        )

    def _raised(
        self, asked: ExecuteInput, attempts: Attempts, error: BaseException
    ) -> ApplicationError:
        begun, shown = attempts.begun, self._redactor.error(trace(error))[-4000:]
        attempts.why = f"{type(error).__name__}: {said(error)}"
        bug = isinstance(error, _BUGS)
        failure = self._failed(asked, attempts, shown, hopeless=bug)
        # A tool that is tried again for an hour says the same each time.
        whole = {"traceback": shown} if begun == 1 or bug else {}
        tell = log.error if failure.non_retryable else log.warning
        raised = {"tool": asked.tool, "key": asked.key, "attempt": begun, "error": attempts.why}
        tell("tool raised", **raised, **whole)
        if not whole:
            log.debug("raised at", **raised, traceback=shown)
        return failure

    def _failed(
        self, asked: ExecuteInput, attempts: Attempts, shown: str = "", *, hopeless: bool = False
    ) -> ApplicationError:
        """By the rules of the effect: another attempt, or the last word."""
        begun = attempts.begun
        attempts.why = self._shown(attempts.why)
        if asked.effect == "reconcilable":
            # Also after the last attempt: the next one asks the probe before anything else.
            attempts.over = hopeless
        elif asked.effect == "once" or begun >= asked.attempts or hopeless:
            return self._final(asked, attempts, shown)
        attempts.end()
        return ApplicationError(
            attempts.why,
            *([shown] if shown else []),
            type="tool_failed",
            next_retry_delay=backoff(begun),
        )

    def _stopped(self, asked: ExecuteInput, attempts: Attempts, lease: Lease) -> ApplicationError:
        begun = attempts.begun
        log.warning("attempt stopped", tool=asked.tool, key=asked.key, attempt=begun, why=lease.why)
        _count(ATTEMPTS_STOPPED, 1, tool=asked.tool, loss=str(lease.loss))
        attempts.why = lease.why
        return self._failed(asked, attempts)

    def _final(self, asked: ExecuteInput, attempts: Attempts, shown: str = "") -> ApplicationError:
        tries = "1 attempt" if attempts.begun <= 1 else f"{attempts.begun} attempts"
        told = self._shown(attempts.why)
        proven = asked.effect == "reconcilable" and attempts.begun and not attempts.unsure
        return ApplicationError(
            f"Tool {asked.tool} failed after {tries}: {told}"
            + (" It did not take effect." if proven else ""),
            *([shown] if shown else []),
            type="tool_failed" if attempts.unsure else NOTHING_HAPPENED,
            non_retryable=True,
        )

    def _shown(self, why: str) -> str:
        return one_line(self._redactor.error(why), 1_000)

    def _interrupted(
        self, asked: ExecuteInput, attempts: Attempts, lease: Lease, error: asyncio.CancelledError
    ) -> ApplicationError | None:
        """How a cancelled body fails; None if the run has asked for it."""
        if lease.given_up() or lease.loss is not None:
            return self._stopped(asked, attempts, lease)
        details = activity.cancellation_details()
        if details is None:
            # The tool's own, or a heartbeat that could not be sent: nobody asked for it, and the
            # SDK would have it tried again.
            return self._raised(asked, attempts, error)
        attempts.end()
        stopped = details.worker_shutdown
        # Also for `once`: paused or reset by an operator, it would be begun again.
        if not (stopped or (asked.effect == "once" and not details.cancel_requested)):
            return None
        # The SDK would report a retryable failure, and a `once` tool would run twice.
        by = "a shutdown of its worker" if stopped else "an operator"
        spent = attempts.begun >= asked.attempts and asked.effect != "reconcilable"
        return ApplicationError(
            f"Tool {asked.tool} was interrupted by {by}.",
            type="tool_failed",
            non_retryable=asked.effect == "once" or spent,
        )

    def _context(self, asked: ExecuteInput, attempts: Attempts, lease: Lease) -> ToolContext:
        info = activity.info()
        owner, run_id = str(info.workflow_id), str(info.workflow_run_id)
        loop, thread = asyncio.get_running_loop(), threading.get_ident()
        here = contextvars.copy_context()

        def heartbeat(details: Any) -> None:
            # The count of attempts travels along: details that cannot be sent would lose it.
            attempts.details = sendable(details)
            lease.word()
            if threading.get_ident() == thread:
                # Outside of the tool's own context: the SDK's task is not the tool's.
                here.copy().run(activity.heartbeat, attempts)
            else:
                # A synchronous tool: the SDK sends heartbeats from the loop's own thread only.
                loop.call_soon_threadsafe(here.copy().run, activity.heartbeat, attempts)

        return ToolContext(
            idempotency_key=asked.key,
            tool=asked.tool,
            agent=asked.agent,
            turn=asked.turn,
            call_id=asked.call_id,
            workflow_id=owner,
            run_id=run_id,
            metadata=asked.metadata,
            log=log.bind(tool=asked.tool, turn=asked.turn, key=asked.key),
            resume_from=attempts.details,
            result_bytes=asked.result_bytes,
            _heartbeat=heartbeat,
            _artifact=lambda artifact: self._store.get(owner, artifact),
            _part=functools.partial(self._store.read, owner),
            _memory=lambda: self._memories.of(owner, run_id, asked.turn),
        )


def _seconds_left(began: float) -> float:
    """Of the attempt's own timeout, less what storing a result takes."""
    limit = activity.info().start_to_close_timeout
    if limit is None:
        return math.inf
    seconds = limit.total_seconds()
    return seconds - min(seconds / 5, _STORING_SECONDS) - (time.monotonic() - began)


def _count(metric: str, number: int, **attributes: str) -> None:
    activity.metric_meter().create_counter(metric).add(number, attributes)


def _delay(seconds: Any) -> timedelta | None:
    """A tool author's delay within bounds; None for what is no number."""
    if not isinstance(seconds, (int, float)) or not math.isfinite(seconds):
        return None
    return timedelta(seconds=min(max(seconds, 0), MAX_DELAY_SECONDS))
