"""How each activity is scheduled: timeouts, retries, and the words that the timeline shows."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from temporalio.common import RetryPolicy
from temporalio.workflow import ActivityCancellationType

from turnkeeper.contract import Signature
from turnkeeper.render import call_summary, generate_summary
from turnkeeper.spec import ToolSpec
from turnkeeper.state import Call, RunState
from turnkeeper.text import one_line

NOT_HERE_ATTEMPTS = 20
"""Attempts beyond a tool's own, for workers that lack it: the server counts those too."""
PROBE_ATTEMPTS = 4
"""Attempts that only probe: three in vain, and the one after the last failure."""

_GENERATE_ATTEMPTS = 8

# A result over the server's limit is a *retryable* failure by default: the effect would be
# repeated with every attempt.
_TOO_LARGE = "PayloadsTooLarge"


def load_agent(agent: str) -> dict[str, Any]:
    """A few times over: during a deploy the next worker may know the agent."""
    return {
        "start_to_close_timeout": timedelta(seconds=30),
        "retry_policy": RetryPolicy(
            initial_interval=timedelta(milliseconds=200),
            maximum_interval=timedelta(seconds=5),
            maximum_attempts=10,
            non_retryable_error_types=[_TOO_LARGE],
        ),
        "summary": one_line(agent, 64),
    }


def verify(signature: Signature) -> dict[str, Any]:
    """Two minutes: somebody has decided, and a directory that is away comes back."""
    return {
        "start_to_close_timeout": timedelta(seconds=30),
        "retry_policy": RetryPolicy(maximum_interval=timedelta(seconds=30), maximum_attempts=6),
        "cancellation_type": ActivityCancellationType.TRY_CANCEL,
        "summary": f"{signature.verdict} · {one_line(signature.actor or 'nobody', 64)}",
    }


def fork(state: RunState) -> dict[str, Any]:
    """Ten minutes: it copies a transcript, and the artifacts that stand in it."""
    return {
        "start_to_close_timeout": timedelta(minutes=10),
        "heartbeat_timeout": timedelta(seconds=state.heartbeat_seconds),
        "retry_policy": RetryPolicy(
            maximum_interval=timedelta(seconds=60),
            maximum_attempts=15,
            non_retryable_error_types=[_TOO_LARGE],
        ),
    }


def seal(state: RunState) -> dict[str, Any]:
    """A minute: while the store is down, the run goes on unsealed."""
    return {
        "start_to_close_timeout": timedelta(minutes=2),
        "heartbeat_timeout": timedelta(seconds=state.heartbeat_seconds),
        "retry_policy": RetryPolicy(maximum_interval=timedelta(seconds=30), maximum_attempts=6),
        "summary": f"{state.base.entries} entries",
    }


def summarise(state: RunState) -> dict[str, Any]:
    """As a generation, but of a shorter reply; without a summary the run goes on, too."""
    return {
        "start_to_close_timeout": timedelta(minutes=10),
        "heartbeat_timeout": timedelta(seconds=state.heartbeat_seconds),
        "retry_policy": RetryPolicy(
            maximum_interval=timedelta(seconds=30),
            maximum_attempts=5,
            non_retryable_error_types=[_TOO_LARGE],
        ),
        "cancellation_type": ActivityCancellationType.TRY_CANCEL,
        "summary": f"turn {state.turn} · {state.base.entries} entries",
    }


def shorten(state: RunState) -> dict[str, Any]:
    """As sealing, but the run cannot go on without it: a store may be down for ten minutes."""
    return {
        "start_to_close_timeout": timedelta(minutes=2),
        "heartbeat_timeout": timedelta(seconds=state.heartbeat_seconds),
        "retry_policy": RetryPolicy(
            maximum_interval=timedelta(seconds=60),
            maximum_attempts=15,
            non_retryable_error_types=[_TOO_LARGE],
        ),
        "summary": f"turn {state.turn} · {state.base.entries} entries",
    }


def generate(state: RunState, max_tokens: int) -> dict[str, Any]:
    """Long enough for a slow reply, and retried until an outage of two minutes is over."""
    return {
        "activity_id": f"turn-{state.turn}",
        # A reply of the allowed length at 20 tokens a second, and time to begin.
        "start_to_close_timeout": timedelta(seconds=300 + max_tokens // 20),
        "heartbeat_timeout": timedelta(seconds=state.heartbeat_seconds),
        "retry_policy": RetryPolicy(
            maximum_interval=timedelta(seconds=60),
            maximum_attempts=_GENERATE_ATTEMPTS,
            non_retryable_error_types=[_TOO_LARGE],
        ),
        # The reply of a cancelled generation is not waited for.
        "cancellation_type": ActivityCancellationType.TRY_CANCEL,
        "summary": generate_summary(state.turn, state.pinned.model.name),
    }


def switched_on(seconds_left: float) -> dict[str, Any]:
    """Until the run's deadline: each attempt looks once, and says itself when the next one is."""
    return {
        "start_to_close_timeout": timedelta(seconds=30),
        "schedule_to_close_timeout": timedelta(seconds=seconds_left),
        "retry_policy": RetryPolicy(maximum_interval=timedelta(seconds=60)),
        "summary": "may not ask its model",
    }


def notify(event: str) -> dict[str, Any]:
    """About ten minutes, so that a receiver may be deployed meanwhile."""
    return {
        "start_to_close_timeout": timedelta(seconds=30),
        "retry_policy": RetryPolicy(maximum_interval=timedelta(seconds=60), maximum_attempts=15),
        "summary": event,
    }


def execute(state: RunState, call: Call, tool: ToolSpec) -> dict[str, Any]:
    """As the tool's author declared it."""
    final = [_TOO_LARGE]
    if tool.effect == "once" and not call.asks_only:
        # The server's Started event is the start marker: once begun, never again. Attempts on
        # workers that lack the tool stay retryable, so maximum_attempts=1 is not the way.
        final += ["TemporalTimeout:StartToClose", "TemporalTimeout:Heartbeat"]
    return {
        "activity_id": f"turn-{state.turn}/call-{call.index}",
        "start_to_close_timeout": timedelta(seconds=tool.timeout),
        "heartbeat_timeout": timedelta(seconds=state.heartbeat_seconds),
        "retry_policy": RetryPolicy(
            maximum_interval=timedelta(seconds=30),
            # Each probe without an answer is one, too.
            maximum_attempts=tool.attempts
            + NOT_HERE_ATTEMPTS
            + (PROBE_ATTEMPTS if tool.effect == "reconcilable" else 0),
            non_retryable_error_types=final,
        ),
        "cancellation_type": ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        "summary": call_summary(
            state.turn,
            call.arguments,
            key=call.key if tool.mutates else None,
            question=_question(state, call),
        ),
    }


def _question(state: RunState, call: Call) -> str:
    """What a call says of itself that nobody has allowed yet: done, it looks like one that was
    made."""
    level = state.must_ask(call)
    if level == "never" or call.granted is not None or call.tool in state.approvals.trusted:
        return ""
    return "is it allowed?" if level == "always" or call.asks_only else "is it allowed? if so, run"
