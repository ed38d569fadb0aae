"""Seal what was said into segments, so that a run can continue as new without carrying it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import structlog
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.pulse import pulse
from activities.redact import Redactor
from activities.views import Views, as_failures
from turnkeeper.artifacts import ArtifactStore
from turnkeeper.contract import (
    NOT_SEALED,
    SEAL,
    STORE_UNAVAILABLE,
    Epoch,
    Sealed,
    SealInput,
    SealOutput,
)
from turnkeeper.entries import Entry, Position
from turnkeeper.history import SEGMENT_BYTES, Segment
from turnkeeper.view import View

log = structlog.get_logger("turnkeeper.seal")


class Seal:
    """The activity `run.seal`."""

    def __init__(self, views: Views, store: ArtifactStore, redactor: Redactor) -> None:
        self._views = views
        self._store = store
        self._redactor = redactor

    @activity.defn(name=SEAL)
    async def run(self, asked: SealInput) -> SealOutput:
        """Store the entries after the last segment; storing them twice changes nothing.

        Raises:
            ApplicationError: of type `not_sealed` to be tried again, or `state_lost`.
        """
        info = activity.info()
        owner = str(info.workflow_id)
        async with pulse():
            with _as_not_sealed(self._redactor):
                view, _ = await self._views.view(owner, str(info.workflow_run_id), asked.position)
                self._views.keep(owner, view)
                sealed = await seal(self._store, owner, view, asked.epoch, asked.sealed)
        if sealed is None:
            raise ApplicationError("nothing to seal", type="state_lost", non_retryable=True)
        log.info("sealed", entries=sealed.position.entries, artifact=sealed.artifact)
        return SealOutput(sealed=sealed)


@contextlib.contextmanager
def _as_not_sealed(redactor: Redactor) -> Iterator[None]:
    """As `as_failures`, but a store that is down is not the run's end: the loop goes on unsealed.

    Raises:
        ApplicationError: of type `not_sealed` to be tried again, or `state_lost`.
    """
    try:
        with as_failures(redactor):
            yield
    except ApplicationError as error:
        if error.type != STORE_UNAVAILABLE:
            raise
        raise ApplicationError(error.message, type=NOT_SEALED) from None


async def seal(
    store: ArtifactStore, owner: str, view: View, epoch: Epoch | None, sealed: Sealed | None
) -> Sealed | None:
    """Store what was said since the last segment, as it stands in a view of that epoch.

    Raises:
        OSError: the store cannot take it now.
    """
    # What was said before an epoch was sealed when it began: the rest stands after its opening.
    first = sealed.position.entries if sealed else 0
    if epoch is not None:
        first += epoch.opening.entries - epoch.said.entries
    for entries in _portions(view.entries[first:]):
        sealed = await _segment(store, owner, sealed, entries)
    return sealed


async def _segment(
    store: ArtifactStore, owner: str, last: Sealed | None, entries: list[Entry]
) -> Sealed:
    start = last.position if last else Position()
    segment = Segment(previous=last.artifact if last else None, start=start, entries=entries)
    data = segment.model_dump_json(exclude_none=True).encode()
    return Sealed(artifact=await store.put(owner, data), position=start.after(entries))


def _portions(entries: list[Entry]) -> list[list[Entry]]:
    """Runs of entries of about `SEGMENT_BYTES` each."""
    portions: list[list[Entry]] = []
    room = 0
    for entry in entries:
        size = len(entry.model_dump_json().encode())
        if size > room:
            portions.append([])
            room = SEGMENT_BYTES
        portions[-1].append(entry)
        room -= size
    return portions
