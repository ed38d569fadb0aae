"""Begin a run with a part of what was said in another one."""

from __future__ import annotations

import time
from collections.abc import Sequence

import structlog
from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError

from activities.pulse import pulse, timing
from activities.redact import Redactor
from activities.references import artifacts_named
from activities.seal import seal
from activities.views import Views, as_failures
from turnkeeper.artifacts import ArtifactStore
from turnkeeper.contract import FORK, ForkInput, ForkOutput
from turnkeeper.entries import Entry
from turnkeeper.errors import NothingStored, StateLost
from turnkeeper.fork import Prefix
from turnkeeper.media import images_of
from turnkeeper.source import forkable
from turnkeeper.view import View, size

log = structlog.get_logger("turnkeeper.fork")


class Fork:
    """The activity `run.fork`."""

    def __init__(
        self, client: Client, views: Views, store: ArtifactStore, redactor: Redactor
    ) -> None:
        self._client = client
        self._views = views
        self._store = store
        self._redactor = redactor

    @activity.defn(name=FORK)
    async def run(self, asked: ForkInput) -> ForkOutput:
        """Store the beginning as this run's own; storing it twice changes nothing.

        Raises:
            ApplicationError: of type `invalid_request`, `state_lost`, or `store_unavailable` to be
                tried again.
        """
        began = time.monotonic()
        owner, source = str(activity.info().workflow_id), asked.fork.workflow_id
        async with pulse():
            with as_failures(self._redactor):
                prefix = await self._prefix(asked)
                copied = await self._copy(source, owner, [*prefix.read, *prefix.unread])
                view = View(prefix.read)
                sealed = await seal(self._store, owner, view, None, None)
        self._views.keep(owner, view)
        log.info("forked", source=source, entries=len(prefix.read), artifacts=copied)
        return ForkOutput(
            base=view.position,
            sealed=sealed,
            unread=prefix.unread,
            bytes=sum(map(size, prefix.read)),
            timing=timing(began),
        )

    async def _prefix(self, asked: ForkInput) -> Prefix:
        try:
            return await forkable(self._client, self._store, asked.fork)
        except (ValueError, LookupError) as error:
            told = f"fork.{error}"
            raise ApplicationError(told, type="invalid_request", non_retryable=True) from None

    async def _copy(self, source: str, owner: str, entries: Sequence[Entry]) -> int:
        """What the entries refer to, since a run reads no other run's artifacts; how many."""
        images = [image.artifact for entry in entries for image in images_of(entry)]
        wanted = dict.fromkeys([*artifacts_named(entries), *images])
        copied = 0
        for artifact in wanted:
            try:
                data = await self._store.get(source, artifact)
            except (StateLost, NothingStored) as error:
                # The model reads so when it asks for it, as it would in the other run.
                log.warning("artifact not copied", artifact=artifact, why=str(error))
                continue
            await self._store.put(owner, data)
            copied += 1
        return copied
