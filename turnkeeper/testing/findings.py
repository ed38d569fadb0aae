"""What was found out about a tool, in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from turnkeeper.testing.checker import NEVER_APPLIED, Violation
from turnkeeper.testing.crash_points import POINTS
from turnkeeper.testing.crash_rig import Case
from turnkeeper.testing.effects import Arrival
from turnkeeper.testing.moments import Moment, way_to
from turnkeeper.testing.recorded import RecordedCall

__all__ = ["changed", "report", "useless"]

_PROMISES: Final = {
    "I1": "an idempotent or reconcilable call is applied once",
    "I2": "a once call is started at most once; of what is not sure the model is told so",
    "I3": "the transcript is whole and in order, and repeated attempts say what the first one says",
    "I4": "each call has one result, right after its reply",
    "I5": "no reply is paid for again once it was recorded",
    "I6": "the run ends by a name, and nothing of it is left",
    "I9": "its histories replay",
    "I11": "nothing of it lives or changes the world after its end",
}
_COMPARED: Final = "without faults"
"""The checker's words where something differs from the run without kills."""
_UNSEEN: Final = (
    "no effect of any tool was seen: `effects`, if it was given, has returned no rows, and nothing",
    "was posted to EFFECTS_URL. Does `effects` read the database that the workers' tools write to?",
)


def useless(control: Case, tool: str, chosen: Sequence[Moment]) -> str:
    """Why a run without kills is no measure for any moment; nothing if it is one."""
    if control.violations:
        return report(control, control.violations, tool)
    calls = [c for c in control.seen.run.calls if c.input.tool == tool]
    if not calls:
        others = ", ".join(sorted({c.input.tool for c in control.seen.run.calls})) or "none"
        result = control.result
        ended = f"it ended as {result.outcome}: {result.reason or ''}" if result else "no result"
        return f"the script never has {tool} called (tools called: {others}; {ended})"
    if not any(c.mutates for c in calls):
        return f"{tool} is declared to be a read: it promises nothing that a kill could break"
    if not any(c.output is not None and c.output.status == "ok" for c in calls):
        return f"{tool} fails without any kill: {_said(calls[0])}{_logs(control)}"
    if not control.passings:
        return (
            "no crash point was passed: the worker command has to run the worker itself, in the "
            f"process that it is started in{_logs(control)}"
        )
    if not any(way_to(moment, control) for moment in chosen):
        return f"no crash point is ever reached by this agent, of {', '.join(map(str, chosen))}"
    return ""


def changed(case: Case, control: Case) -> list[Violation]:
    """Idempotent calls whose last attempt says otherwise than the call without kills."""
    return [
        Violation(
            "I3",
            case.seen.run.id,
            ours.input.key,
            f"{ours.input.tool} ended with status {ours.output.status} ({_said(ours)!r}), "
            f"without kills with status {theirs.output.status}",
        )
        for ours, theirs in zip(case.seen.run.calls, control.seen.run.calls, strict=False)
        if ours.output is not None and theirs.output is not None
        if ours.input.effect == theirs.input.effect == "idempotent"
        if ours.output.status != theirs.output.status
    ]


def report(case: Case, violations: Sequence[Violation], tool: str) -> str:
    """What was promised, when the worker was killed, what was seen, and where to read on."""
    effects = {c.input.effect for c in case.seen.run.calls if c.input.tool == tool}
    broken = dict.fromkeys(v.invariant for v in violations)
    told = [f"{tool} ({', '.join(sorted(effects))}) does not keep its promise", ""]
    told += _column("promised", (f"{i}: {_PROMISES[i]}" for i in broken))
    told += _column("killed", _kills(case))
    told += _column("seen", (f"{v.invariant}: {v.text}" for v in violations))
    told += _column("", _effects(case))
    told += _column("logs", _where(case))
    if not case.seen.arrivals and any(NEVER_APPLIED in v.text for v in violations):
        told += _column("hint", _UNSEEN)
    if any(_COMPARED in v.text for v in violations):
        told += _column("hint", ["compare=False where results differ from run to run anyway"])
    return "\n".join(told)


def _column(head: str, lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        yield f"{head:<9} {line}"
        head = ""


def _kills(case: Case) -> Iterator[str]:
    meaning = {p.name: p.text for p in POINTS}
    for kill in case.kills:
        yield f"at {kill.name}, passing {kill.number}: {meaning[kill.name]}"
    if not case.kills:
        yield "not at all"


def _effects(case: Case) -> Iterator[str]:
    rows = case.seen.arrivals
    yield f"what reached the ledger: {len(rows)}"
    for row in rows:
        key = row.key or (row.body.get("key") if isinstance(row.body, dict) else None)
        kept = "applied" if row.applied else f"not applied, {row.status}"
        named = f"key {str(key)[:12]}" if key else "no key"
        yield f"  {row.kind} {row.name}, {named}, {kept}{_when(row, case)}"


def _when(row: Arrival, case: Case) -> str:
    if not case.kills or not row.time:
        return ""
    after = row.time - case.kills[0].time
    first = "first " if len(case.kills) > 1 else ""
    return f", {abs(after):.1f} s {'after' if after > 0 else 'before'} the {first}kill"


def _where(case: Case) -> list[str]:
    return [
        str(case.folder),
        "worker-N.log, provider.jsonl, effects.db; histories/ for Temporal's UI or a replay",
    ]


def _logs(case: Case) -> str:
    return "\n" + "\n".join(_column("logs", _where(case)))


def _said(call: RecordedCall) -> str:
    if call.output is None:
        return str(call.failure)
    return str(call.output.entry.value["text"])[:200]
