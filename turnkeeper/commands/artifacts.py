"""`starter.py artifacts`: what the artifact store holds, and what of it no run needs any more."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from turnkeeper.commands.place import Complaint, Option, Place
from turnkeeper.commands.terminal import say, say_json, tell
from turnkeeper.text import age, one_line

if TYPE_CHECKING:
    from temporalio.client import Client

    from turnkeeper.artifacts import ArtifactStore, Holding

_AT_ONCE = 16
_CELL = 200
_HEADINGS = ("RUN", "OBJECTS", "BYTES", "AGE", "")

Verdict = Literal[
    "gone", "kept", "young", "elsewhere", "shared", "unrecorded", "unnamed", "unchecked"
]
_WHY: dict[Verdict, str] = {
    "kept": "of runs that Temporal has",
    "young": "stored lately (--grace)",
    "elsewhere": "of other namespaces",
    "shared": "of runs of the same id in several namespaces: of this one alone it cannot be told",
    "unrecorded": "stored before namespaces were recorded: if no other namespace uses this store, "
    "--unrecorded takes them for this one's",
    "unnamed": "whose run cannot be told",
    "unchecked": "of an id that Temporal refuses to look up",
}


@dataclass(frozen=True)
class Judged:
    """A holding, and whether a run may still need it."""

    holding: Holding
    verdict: Verdict
    age: float
    """Seconds since something was last stored."""


async def list_artifacts(place: Place, options: argparse.Namespace) -> int:
    """Print what each run has in the store, the last stored first."""
    store, named = place.written_store(options.artifacts)
    held = [h async for h in store.holdings()]
    held.sort(key=lambda h: h.newest, reverse=True)
    now = time.time()
    if options.json:
        say_json({"store": named, "artifacts": [_as_json(h, now) for h in held]})
    elif held:
        rows = [(*_row(h, now), one_line(", ".join(sorted(h.namespaces)), _CELL)) for h in held]
        _print([(*_HEADINGS[:4], "NAMESPACE"), *rows])
    tell(f"{'' if held else 'no artifacts '}in {named}")
    return 0


async def gc(place: Place, options: argparse.Namespace) -> int:
    """Show what runs that are gone from Temporal have left; with --yes remove it."""
    store, named = place.written_store(options.artifacts)
    async with place.client(to_read=True) as client:
        collector = await Collector.of(client.client, store, options)
        judged = await collector.judge([h async for h in store.holdings()])
        _refuse_foreign(judged, collector.namespace)
        gone = [j for j in judged if j.verdict == "gone"]
        removed = [await collector.remove(j) for j in gone] if options.yes else []
    kept: Counter[Verdict] = Counter(j.verdict for j in judged)
    del kept["gone"]
    if options.json:
        say_json({"store": named, **_report(collector.namespace, gone, removed, kept)})
    else:
        if gone:
            now = time.time()
            marks = ["" if r else "not removed: in use again, or gone by now" for r in removed] or [
                ""
            ] * len(gone)
            rows = [(*_row(j.holding, now), m) for j, m in zip(gone, marks, strict=True)]
            _print([_HEADINGS, *rows])
        _tell_kept(kept)
        if not gone:
            tell(f"nothing to remove in {named}")
        elif options.yes:
            taken = [j for j, was in zip(gone, removed, strict=True) if was]
            tell(f"removed {_sum(taken)} in {named}")
        else:
            removing = place.again("artifacts gc", options=_removing(options))
            tell(f"{_sum(gone)} in {named} can be removed: {removing}")
    return 0


def _removing(options: argparse.Namespace) -> list[Option]:
    """The options that remove what these have shown."""
    given: list[Option] = ["--yes", ("--grace", str(options.grace))]
    if options.unrecorded:
        given.append("--unrecorded")
    if options.artifacts:
        given.append(("--artifacts", options.artifacts))
    return given


class Collector:
    """Tells what no run of a namespace needs any more, and removes it."""

    def __init__(
        self,
        client: Client,
        store: ArtifactStore,
        namespace: str,
        *,
        grace: float,
        unrecorded: bool,
    ) -> None:
        self.namespace = namespace
        self._client = client
        self._store = store
        self._grace = grace
        self._unrecorded = unrecorded

    @classmethod
    async def of(
        cls, client: Client, store: ArtifactStore, options: argparse.Namespace
    ) -> Collector:
        """For the namespace that the client is connected to.

        Raises:
            ConnectionError: the server does not answer, or has no such namespace.
        """
        from turnkeeper.connection import namespace_identity

        namespace = await namespace_identity(client)
        return cls(client, store, namespace, grace=options.grace, unrecorded=options.unrecorded)

    async def judge(self, holdings: Sequence[Holding]) -> list[Judged]:
        """Each of them; Temporal is asked a few at a time.

        Raises:
            ConnectionError: the server does not answer.
        """
        found: list[Judged] = []
        for first in range(0, len(holdings), _AT_ONCE):
            some = holdings[first : first + _AT_ONCE]
            found += await asyncio.gather(*(self._judge(h) for h in some))
        return found

    async def remove(self, judged: Judged) -> bool:
        """Remove what is gone, if it still is and nobody has stored in it meanwhile."""
        again = await self._judge(judged.holding)
        if again.verdict != "gone":
            return False
        before = time.time() - self._grace
        return await self._store.remove(judged.holding.key, before=before) is not None

    async def _judge(self, holding: Holding) -> Judged:
        since = time.time() - holding.newest
        return Judged(holding, await self._verdict(holding, since), since)

    async def _verdict(self, holding: Holding, since: float) -> Verdict:
        if holding.owner is None:
            return "unnamed"
        if not (holding.namespaces or self._unrecorded):
            return "unrecorded"
        if holding.namespaces and self.namespace not in holding.namespaces:
            return "elsewhere"
        if len(holding.namespaces) > 1:
            return "shared"
        # A run that has just begun may not be in what was read of Temporal.
        if since < self._grace:
            return "young"
        return await self._known(holding.owner)

    async def _known(self, workflow_id: str) -> Verdict:
        from temporalio.service import RPCError, RPCStatusCode

        from turnkeeper.connection import readable

        try:
            await self._client.get_workflow_handle(workflow_id).describe()
        except RPCError as error:
            if error.status is RPCStatusCode.INVALID_ARGUMENT:
                return "unchecked"
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise readable(error, workflow_id, self._client) from error
        else:
            return "kept"
        # The last execution is not there; earlier ones of the same id may be.
        quoted = workflow_id.replace("\\", "\\\\").replace("'", "''")
        try:
            count = (await self._client.count_workflows(f"WorkflowId = '{quoted}'")).count
        except RPCError as refused:
            if refused.status is RPCStatusCode.INVALID_ARGUMENT:
                return "unchecked"
            raise readable(refused, "", self._client) from refused
        return "kept" if count else "gone"


# --- what is told ---------------------------------------------------------------------------------


def _refuse_foreign(judged: Sequence[Judged], namespace: str) -> None:
    """A store that other namespaces alone have written is hardly the one that was meant."""
    if judged and all(j.verdict == "elsewhere" for j in judged):
        writers = sorted({n for j in judged for n in j.holding.namespaces})
        raise Complaint(
            f"this store was written by {one_line(', '.join(writers), 400)}, not by {namespace}: "
            "nothing is removed. Name the namespace and its server with --namespace and --address, "
            "or the store with --artifacts"
        )


def _tell_kept(kept: Counter[Verdict]) -> None:
    for verdict, why in _WHY.items():
        if kept[verdict]:
            tell(f"not touched: {kept[verdict]:,} {why}")


def _sum(judged: Sequence[Judged]) -> str:
    objects = sum(j.holding.objects for j in judged)
    size = sum(j.holding.bytes for j in judged)
    return f"{objects:,} objects of {len(judged):,} runs, {size:,} bytes"


def _row(holding: Holding, now: float) -> tuple[str, ...]:
    # Callers choose the ids of runs.
    return (
        one_line(holding.owner or f"({holding.key})", _CELL),
        f"{holding.objects:,}",
        f"{holding.bytes:,}",
        age(now - holding.newest),
    )


def _print(rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEADINGS))]
    for run, objects, size, since, more in rows:
        cells = (
            run.ljust(widths[0]),
            objects.rjust(widths[1]),
            size.rjust(widths[2]),
            since.rjust(widths[3]),
            more,
        )
        say("  ".join(cells).rstrip())


def _as_json(holding: Holding, now: float) -> dict[str, object]:
    return {
        "id": holding.owner,
        "key": holding.key,
        "namespaces": sorted(holding.namespaces),
        "objects": holding.objects,
        "bytes": holding.bytes,
        "age_seconds": round(now - holding.newest),
    }


def _report(
    namespace: str, gone: Sequence[Judged], removed: Sequence[bool], kept: Counter[Verdict]
) -> dict[str, object]:
    now = time.time()
    taken = list(removed) or [False] * len(gone)
    return {
        "namespace": namespace,
        "gone": [
            {**_as_json(j.holding, now), "removed": was} for j, was in zip(gone, taken, strict=True)
        ],
        "not_touched": dict(kept),
    }
