"""What operators see of a run in Temporal: search attributes, memo, current details."""

from __future__ import annotations

from typing import Any

from temporalio import workflow
from temporalio.common import SearchAttributeKey, SearchAttributeUpdate

from turnkeeper.render import run_card
from turnkeeper.state import Call, RunState
from turnkeeper.text import one_line

MEMO_SETTLED = 5
"""Approvals that were decided, in the memo: all of it is written again with each change."""

_KEYWORDS = {
    name: SearchAttributeKey.for_keyword(f"Turnkeeper{name}")
    for name in ("Agent", "Status", "Outcome", "Model", "Tenant", "Unknown")
}
_COST = SearchAttributeKey.for_float("TurnkeeperCostUsd")
_INTS = {name: SearchAttributeKey.for_int(f"Turnkeeper{name}") for name in ("Turns", "Tokens")}


def publish_start(state: RunState) -> None:
    """Once per run: what it is."""
    model = state.spec.model.name if state.spec else ""
    tenant = state.request.metadata.get("tenant")
    keywords = {"Agent": state.request.agent, "Status": "running", "Model": model}
    if tenant:
        keywords["Tenant"] = tenant
    _upsert(state, keywords, {})
    workflow.upsert_memo({"agent": state.request.agent, "prompt": state.request.prompt})


def publish_end(state: RunState) -> None:
    """Once per run: how it ended."""
    outcome = state.outcome or ""
    counts = {"Turns": state.turn, "Tokens": state.usage.total}
    _upsert(state, {"Status": "ended", "Outcome": outcome}, counts, state.usage.cost_usd)
    told = {"outcome": outcome, "answer": one_line(state.text, 200)}
    workflow.upsert_memo(told | ({"paused": None} if state.control.held else {}))
    show(state)


def publish_unknown(state: RunState) -> None:
    """When a call's outcome became unknown, or was settled: for lists over all runs."""
    statuses = {u.status for u in state.unknown}
    summed = next((s for s in ("waiting", "open") if s in statuses), "settled")
    _upsert(state, {"Status": _status(state), "Unknown": summed}, {})
    workflow.upsert_memo(_unknown_memo(state))


def publish_approvals(state: RunState) -> None:
    """When a person is asked to allow a call, or has decided: for lists over all runs."""
    _publish(state, _approvals_memo(state) | _used(state))


def publish_given_up(state: RunState, call: Call) -> None:
    """When a call waits no more, since the run is to end."""
    if call.awaits == "outcome":
        publish_unknown(state)
    elif call.awaits == "approval":
        publish_approvals(state)


def publish_hold(state: RunState) -> None:
    """When the run begins to wait for a person to resume it, and when it goes on."""
    _publish(state, _hold_memo(state) or {"paused": None})


def publish_outage(state: RunState) -> None:
    """When the run begins to wait for its provider, and when it asks again."""
    _publish(state, _outage_memo(state) or {"parked": None})
    show(state)


def publish_switched_off(state: RunState) -> None:
    """When the run begins to wait for its agent or tenant to be on again, and when it goes on."""
    off = state.switched_off
    _publish(state, {"switched_off": {"awaits": off} if off else None} | _used(state))
    show(state)


def publish_waiting(state: RunState) -> None:
    """When the run begins to wait for somebody's words or a time, and when it goes on."""
    _publish(state, _waiting_memo(state))
    show(state)


def _publish(state: RunState, waits: dict[str, Any]) -> None:
    """For the lists: whether the run waits, and what for."""
    _upsert(state, {"Status": _status(state)}, {})
    workflow.upsert_memo(waits)


def memo(state: RunState) -> dict[str, Any]:
    """All of it, for the next execution: unlike search attributes, a memo is not carried over."""
    try:
        theirs = dict(workflow.memo())
    except Exception:  # noqa: BLE001  the caller's own, in an encoding that is not ours
        theirs = {}
    ours = {"agent": state.request.agent, "prompt": state.request.prompt}
    waits = _unknown_memo(state) if state.unknown else {}
    if state.approvals.asked:
        waits |= _approvals_memo(state) | _used(state)
    if state.awaited():
        waits |= _waiting_memo(state)
    return theirs | ours | waits | _hold_memo(state)


def _unknown_memo(state: RunState) -> dict[str, Any]:
    return {"unknown": [u.model_dump(mode="json") for u in state.unknown]} | _used(state)


def _approvals_memo(state: RunState) -> dict[str, Any]:
    waiting = state.approvals.waiting
    settled = [a for a in state.approvals.asked if a.status != "waiting"][-MEMO_SETTLED:]
    shown = [a for a in state.approvals.asked if a in waiting or a in settled]
    return {"approvals": [a.model_dump(mode="json") for a in shown]}


def _hold_memo(state: RunState) -> dict[str, Any]:
    held = state.control.held
    return {"paused": held.model_dump(mode="json")} | _used(state) if held else {}


def _outage_memo(state: RunState) -> dict[str, Any]:
    outage = state.outage
    return {"parked": outage.model_dump(mode="json")} | _used(state) if outage.until else {}


def _used(state: RunState) -> dict[str, Any]:
    """For the lists that show a run which waits; it grows again when the run goes on."""
    return {"turns": state.turn, "tokens": state.usage.total}


def _waiting_memo(state: RunState) -> dict[str, Any]:
    return {"awaited": [a.model_dump(mode="json") for a in state.awaited()]} | _used(state)


def _status(state: RunState) -> str:
    return "waiting" if state.waits or state.switched_off else "running"


def show(state: RunState) -> None:
    """Refresh the run card; costs no event."""
    workflow.set_current_details(run_card(state, workflow.info().workflow_id))


def _upsert(
    state: RunState, keywords: dict[str, str], ints: dict[str, int], cost: float | None = None
) -> None:
    # Only those that the namespace has: an unknown one fails the workflow task for ever.
    updates: list[SearchAttributeUpdate[Any]] = [
        _KEYWORDS[name].value_set(one_line(value, 200))
        for name, value in keywords.items()
        if _KEYWORDS[name].name in state.attributes
    ]
    updates += [
        _INTS[name].value_set(value)
        for name, value in ints.items()
        if _INTS[name].name in state.attributes
    ]
    if cost is not None and _COST.name in state.attributes:
        updates.append(_COST.value_set(cost))
    if updates:
        workflow.upsert_search_attributes(updates)
