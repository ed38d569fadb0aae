"""What a worker settles and tells before it takes work."""

from __future__ import annotations

import os
import socket

import structlog
from temporalio.client import Client
from temporalio.service import RPCError

from activities import neighbours
from activities.capacity import Caches
from activities.load_agent import registered_attributes
from activities.notify import Webhook
from activities.providers import Provider
from activities.providers.anthropic import AnthropicProvider
from activities.redact import Redactor
from activities.registry import Registry
from turnkeeper.artifacts import ArtifactStore, FolderStore
from turnkeeper.connection import namespace_identity
from turnkeeper.contract import ATTRIBUTE_TYPES
from turnkeeper.text import one_line

LONG_GRACE_SECONDS = 600.0
"""From here on the wait for calls in flight at shutdown is told at the start."""

log = structlog.get_logger("turnkeeper.worker")


def providers(registry: Registry, redactor: Redactor, script: str) -> dict[str, Provider]:
    """The providers of the models that the agents name; `script` is the command to do without.

    Raises:
        ValueError: one is unknown, or its key is missing.
    """
    specs = [agent.spec() for agent in registry.agents.values()]
    wanted = {model.provider: spec.name for spec in specs for model in spec.models}
    for name, agent in wanted.items():
        if name != "anthropic":
            raise ValueError(f"agent {agent!r}: provider {name!r} is unknown; known: anthropic")
    key = os.environ.get("ANTHROPIC_API_KEY", "")
    if not key:
        raise ValueError(
            "ANTHROPIC_API_KEY is not set: agents could not reach their model. Set it, or play a "
            f"script: {script}"
        )
    base_url = os.environ.get("ANTHROPIC_BASE_URL") or None
    return {"anthropic": AnthropicProvider(api_key=key, base_url=base_url, redactor=redactor)}


async def report(registry: Registry, client: Client, task_queue: str, redactor: Redactor) -> None:
    """Say at start what an operator should know."""
    told = {name: ", ".join(agent.tools) or "no tools" for name, agent in registry.agents.items()}
    log.info("agents", agents=told)
    if redactor.names or redactor.suspected_names:
        log.info(
            "values of these variables are kept out of what runs and logs say",
            everywhere=", ".join(redactor.names) or "none",
            in_errors_and_logs=", ".join(redactor.suspected_names) or "none",
        )
    if undeclared := registry.undeclared():
        log.warning(
            "tools that declare no effect get one attempt and are never repeated",
            tools=", ".join(undeclared),
            mend='@tool(effect="read") or "idempotent" where it is true',
        )
    own = neighbours.identity(registry.agents)
    if others := await neighbours.of_another_application(client, task_queue, own):
        log.warning(
            "another application takes runs from this task queue: of each other's runs both take "
            "some, which then wait or fail as unknown_agent",
            task_queue=task_queue,
            others="; ".join(others),
            mend="stop the other worker (`dev --no-worker` has none), or give this one and "
            "`run` a --task-queue of their own",
        )
    if unstoppable := registry.unstoppable():
        log.warning(
            "tools that cannot be stopped: a call may go on after its run was cancelled",
            tools=", ".join(unstoppable),
            mend="define the function at the top level of a module, or make it async",
        )
    here = await registered_attributes(client)
    if missing := [name for name in ATTRIBUTE_TYPES if name not in here]:
        command = " ".join(f"--name {n} --type {ATTRIBUTE_TYPES[n]}" for n in missing)
        log.warning(
            "search attributes are missing: runs work, but lists cannot be filtered by them",
            mend=f"temporal operator search-attribute create {command}",
        )


async def namespace(client: Client) -> str | None:
    """By which name the artifact store records whose what it holds is; None if it is not told."""
    try:
        return await namespace_identity(client)
    except (RPCError, ConnectionError) as error:
        log.warning(
            "the namespace's id is not known: what this worker stores is not collected later",
            error=str(error),
            mend="let its key describe the namespace",
        )
        return None


async def report_store(store: ArtifactStore, client: Client, task_queue: str) -> None:
    """Say when workers of this task queue cannot read what the others store."""
    if not isinstance(store, FolderStore):
        return
    try:
        here = await store.meet(socket.gethostname())
    except OSError as error:
        log.error(
            "artifacts cannot be stored: long results are lost, long runs cannot go on",
            folder=str(store.root),
            error=str(error),
            mend="make the folder writable, or name another one (TURNKEEPER_ARTIFACTS)",
        )
        return
    if others := await neighbours.hosts(client, task_queue) - here:
        log.warning(
            "artifacts are in a local folder, but workers of this task queue run on other hosts, "
            "too: what one stores the others cannot read",
            folder=str(store.root),
            hosts=one_line(", ".join(sorted({socket.gethostname(), *others})), 1_000),
            mend="let all of them use one folder, or an object store (TURNKEEPER_ARTIFACTS)",
        )


def warn_of_grace(seconds: float) -> None:
    """Say that the worker takes long to stop, if it may: what starts it has to let it."""
    if seconds > LONG_GRACE_SECONDS:
        log.warning(
            "at SIGTERM this worker may go on for long, so that no call is cut off",
            seconds=round(seconds),
            mend="let the orchestrator wait longer than that before SIGKILL (stop_grace_period, "
            "terminationGracePeriodSeconds), or bound it by --grace-seconds: a call that is cut "
            "off may have an unknown outcome",
        )


def tell_webhook(webhook: Webhook | None) -> None:
    """Say whom runs tell that they wait for a person, have failed, or do not know an outcome."""
    if webhook is not None:
        log.info("notices go to a webhook", host=webhook.host)


def tell_caches(caches: Caches) -> None:
    """Say what is kept at hand: more runs than that are replayed when something happens to them."""
    log.info("caches", runs=caches.runs, views_mb=round(caches.view_bytes / 1_000_000))
