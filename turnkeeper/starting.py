"""How runs begin: their requests and ids, and what a start under an id that is taken means."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

from temporalio.client import Client
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError

from turnkeeper import days, switchboard
from turnkeeper.artifacts import ArtifactStore
from turnkeeper.connection import readable_errors
from turnkeeper.contract import WORKFLOW, ForkRequest, RunRequest
from turnkeeper.outside import describe
from turnkeeper.refusals import checked, invalid
from turnkeeper.source import forkable, request_of
from turnkeeper.text import one_line

__all__ = ["Begun", "begin", "fork_request", "options", "run_request"]

RUN_ID = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.:/@+=-]{0,199}")
"""Ids of runs: safe in a URL, a shell and a visibility query."""

# A summary has at most 400 bytes with its quotes, and a character up to 4.
_SUMMARY_CHARACTERS = 96


class Begun(NamedTuple):
    """What a start has come to."""

    id: str
    run_id: str | None = None
    """Of the execution that was started; None if the run existed."""
    existed: bool = False


def run_request(
    agent: str,
    prompt: str,
    limits: Mapping[str, Any] | None,
    request_key: str | None,
    metadata: Mapping[str, str] | None,
    *,
    fork: ForkRequest | None = None,
    keep_open: bool = False,
) -> RunRequest:
    """A run's request.

    Raises:
        InvalidRequest: it is malformed; the message names each wrong field.
    """
    body = {
        "agent": agent,
        "keep_open": keep_open,
        "prompt": prompt,
        "limits": dict(limits or {}),
        "request_key": request_key,
        "metadata": dict(metadata or {}),
        "fork": fork.model_dump(exclude_none=True) if fork else None,
    }
    return checked(RunRequest, body)


async def fork_request(
    client: Client,
    store: Callable[[], ArtifactStore],
    asked: Mapping[str, Any],
    limits: Mapping[str, Any] | None,
    metadata: Mapping[str, str] | None,
) -> RunRequest:
    """The request of a fork: that of the other run, but for what is given.

    `asked` are fields of `ForkRequest`; `store` opens where the other run's artifacts are. Raises
    as `AgentClient.fork`.
    """
    fork = checked(ForkRequest, asked)
    try:
        with readable_errors(client, fork.workflow_id):
            prefix = await forkable(client, store(), fork)
            source = await request_of(client, fork.workflow_id, fork.run_id)
    except ValueError as error:
        raise invalid(str(error)) from None
    return run_request(
        source.agent,
        [*prefix.read, *prefix.unread][0].value["text"],
        {**source.limits, **(limits or {})},
        None,
        source.metadata if metadata is None else metadata,
        fork=fork,
        keep_open=source.keep_open,
    )


def options(
    request: RunRequest, run: str, task_queue: str, summary: str, *, anew: bool = False
) -> dict[str, Any]:
    """The arguments of `start_workflow` for a run; `anew`: also if one of that id has ended.

    Raises:
        InvalidRequest: no run may have that id.
    """
    allow, reject = WorkflowIDReusePolicy.ALLOW_DUPLICATE, WorkflowIDReusePolicy.REJECT_DUPLICATE
    return {
        "workflow": WORKFLOW,
        "arg": request,
        "id": _checked_id(run),
        "task_queue": task_queue,
        # Also for closed runs: a repeated start never runs an agent a second time.
        "id_reuse_policy": allow if anew else reject,
        "static_summary": one_line(summary, _SUMMARY_CHARACTERS),
    }


async def begin(
    client: Client,
    request: RunRequest,
    run: str | None,
    task_queue: str,
    task_timeout: float | None,
) -> Begun:
    """Start a run, under an id of its own if none is given.

    Raises:
        InvalidRequest: no run may have that id, or one with another request has it.
        ConnectionError: the server cannot be reached.
    """
    chosen = run if run is not None else f"{request.agent}-{secrets.token_hex(4)}"
    start = options(request, chosen, task_queue, request.prompt or "conversation")
    limit = timedelta(seconds=task_timeout) if task_timeout else None
    try:
        with readable_errors(client, chosen):
            started = await client.start_workflow(**start, task_timeout=limit)
    except WorkflowAlreadyStartedError:
        await _check_same(client, chosen, request)
        return Begun(chosen, existed=True)
    return Begun(chosen, started.result_run_id)


async def _check_same(client: Client, run: str, request: RunRequest) -> None:
    """Refuse the id of a run with another request: its answer is to another question."""
    described = await describe(client, run)
    first = described.raw_info.first_run_id or described.run_id
    try:
        with readable_errors(client, run):
            earlier = await request_of(client, run, first)
    except LookupError:
        # The server keeps the first part of a long run not for ever.
        return
    except ValueError:
        other = ["start"]
    else:
        fields = RunRequest.model_fields
        other = [f for f in fields if getattr(earlier, f) != getattr(request, f)]
    if other:
        raise invalid(
            f"id: run {run} exists already, with another {' and '.join(other)}; "
            "choose another id, or repeat that very request"
        )


def _checked_id(run: str) -> str:
    if not RUN_ID.fullmatch(run):
        raise invalid(
            f"id: {one_line(run, 80)!r}: use 1 to 200 letters, digits and _ . : / @ + = -, "
            "beginning with a letter or digit"
        )
    if run.startswith((switchboard.PREFIX, days.PREFIX)):
        raise invalid(f"id: {one_line(run, 80)!r}: such ids are turnkeeper's own")
    return run
