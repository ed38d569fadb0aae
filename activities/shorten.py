"""Begin a new epoch: the opening of a shorter view, and everything said so far sealed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import structlog
from temporalio import activity

from activities.aside import aside
from activities.pulse import pulse, timing
from activities.redact import Redactor
from activities.references import artifacts_named
from activities.seal import seal
from activities.views import Views, as_failures, read
from turnkeeper.artifacts import ArtifactStore, artifact_id
from turnkeeper.contract import SHORTEN, Epoch, ShortenInput, ShortenOutput
from turnkeeper.entries import Entry
from turnkeeper.epoch import (
    Opening,
    bulky_results,
    carried,
    checkpoint_entry,
    reference,
    tail_from,
    task_of,
    used_results,
)
from turnkeeper.spec import ContextPolicy
from turnkeeper.view import View, size

MAX_ARTIFACTS_NAMED = 20
"""Ids that an opening repeats of what it leaves out, the last ones."""
_BULKY = 500
"""Bytes of a result that becomes a reference when not even the last turns fit."""

log = structlog.get_logger("turnkeeper.shorten")


@dataclass
class _Draft:
    """What an opening is to be made of."""

    entries: list[Entry]
    how: Literal["references", "summary", "recent"] = "references"
    referred: list[bytes] = field(default_factory=list)
    """Texts that references stand for: to be stored."""
    left_out: list[Entry] = field(default_factory=list)


class Shorten:
    """The activity `run.shorten`."""

    def __init__(self, views: Views, store: ArtifactStore, redactor: Redactor) -> None:
        self._views = views
        self._store = store
        self._redactor = redactor

    @activity.defn(name=SHORTEN)
    async def run(self, asked: ShortenInput) -> ShortenOutput:
        """Store an opening; storing it twice changes nothing.

        Raises:
            ApplicationError: of type `store_unavailable` to be tried again, or `state_lost`.
        """
        began = time.monotonic()
        async with pulse():
            spec, view, _ = await read(self._views, self._redactor, asked.spec_digest, asked.base)
            policy = spec.context or ContextPolicy()
            draft = await aside(view.bytes, lambda: _draft(policy, view.entries, asked))
            with as_failures(self._redactor):
                output = await self._begin(view, draft, asked) if draft else ShortenOutput()
        output.timing = timing(began)
        _log(asked, output)
        return output

    async def _begin(self, view: View, draft: _Draft, asked: ShortenInput) -> ShortenOutput:
        owner = str(activity.info().workflow_id)
        for text in draft.referred:
            await self._store.put(owner, text)
        sealed = await seal(self._store, owner, view, asked.epoch, asked.sealed)
        assert sealed is not None
        left_out = sealed.position.entries - len(draft.entries) if draft.left_out else 0
        opening = _opening(await self._before(owner, asked.epoch, view), draft, asked, left_out)
        data = opening.model_dump_json(exclude_none=True).encode()
        view = View(opening.entries)
        epoch = Epoch(
            number=asked.epoch.number + 1 if asked.epoch else 1,
            artifact=await self._store.put(owner, data),
            opening=view.position,
            said=sealed.position,
        )
        self._views.keep(owner, view)
        return ShortenOutput(
            epoch=epoch,
            sealed=sealed,
            bytes=_weight(opening.entries),
            how=draft.how,
            left_out=left_out,
            referred=len(draft.referred),
        )

    async def _before(self, owner: str, epoch: Epoch | None, view: View) -> Opening:
        """The opening of the epoch that ends."""
        if epoch is None:
            return Opening(task=task_of(view.entries), entries=[])
        return Opening.model_validate_json(await self._store.get(owner, epoch.artifact))


def _opening(before: Opening, draft: _Draft, asked: ShortenInput, left_out: int) -> Opening:
    if not draft.left_out:
        return before.model_copy(update={"entries": draft.entries})
    # What was summarised once stays so, also where nothing that came after it could be: no later
    # view shows it.
    covered = asked.checkpoint.entries if asked.checkpoint else 0
    summary = asked.checkpoint.text if asked.checkpoint else before.summary
    named = _artifacts(draft.left_out, summary or "")
    first = checkpoint_entry(
        before.task, summary, left_out, named, whole=covered == len(draft.left_out)
    )
    return Opening(task=before.task, entries=[first, *draft.entries], summary=summary)


def _draft(policy: ContextPolicy, entries: list[Entry], asked: ShortenInput) -> _Draft | None:
    """The cheapest way that makes enough room; None if it needs a summary first."""
    whole = _weight(entries)
    used = used_results(entries, policy.bulky_bytes) if policy.mode == "checkpoint" else []
    draft = _with_references(entries, used)
    after = _weight(draft.entries)
    if after <= asked.room and whole - after >= policy.frees * whole:
        return draft
    covered = asked.checkpoint.entries if asked.checkpoint else 0
    if asked.checkpoint is not None:
        tail = entries[covered:]
        spare = [] if _weight(tail) <= asked.room else [i - covered for i in used if i >= covered]
        draft = _with_references(tail, spare)
        if _weight(draft.entries) <= asked.room:
            return _leaving_out(entries[:covered], draft, asked)
    newest = tail_from(entries, policy.keep_turns, whole // 2)
    if not asked.last_resort and (asked.checkpoint is None or covered < newest):
        return None
    first = max(covered, tail_from(entries, policy.keep_turns, asked.room))
    return _leaving_out(entries[:first], _shortest(entries[first:], asked.room), asked)


def _shortest(tail: list[Entry], room: int) -> _Draft:
    """As it is, if it fits; else with references for all that is bulky but the last turn's."""
    last = tail_from(tail, 1, 0)
    return _with_references(
        tail, [] if _weight(tail) <= room else bulky_results(tail[:last], _BULKY)
    )


def _leaving_out(left_out: list[Entry], draft: _Draft, asked: ShortenInput) -> _Draft:
    draft.how = "summary" if asked.checkpoint else "recent"
    draft.left_out = left_out
    return draft


def _with_references(entries: list[Entry], bulky: Sequence[int]) -> _Draft:
    texts = {i: entries[i].value["text"].encode() for i in bulky}
    instead = {i: reference(entries[i], artifact_id(text)) for i, text in texts.items()}
    return _Draft(entries=carried(entries, instead), referred=list(texts.values()))


def _weight(entries: Sequence[Entry]) -> int:
    return sum(map(size, entries))


def _artifacts(left_out: Sequence[Entry], summary: str) -> str:
    """Ids that the runtime told of in what is left out, and that the summary does not name."""
    found = artifacts_named(left_out)
    return ", ".join([i for i in found if i not in summary][-MAX_ARTIFACTS_NAMED:])


def _log(asked: ShortenInput, output: ShortenOutput) -> None:
    if output.epoch is None:
        log.info("a summary is needed first", turn=asked.turn)
        return
    told = output.model_dump(include={"how", "left_out", "referred", "bytes"})
    log.info("epoch begun", turn=asked.turn, epoch=output.epoch.number + 1, **told)
