"""What operators see of a run in Temporal: search attributes, memo, current details."""

from __future__ import annotations

from typing import Any

from temporalio import workflow
from temporalio.common import SearchAttributeKey, SearchAttributeUpdate

from turnkeeper.render import run_card
from turnkeeper.state import RunState
from turnkeeper.text import one_line

_KEYWORDS = {
    name: SearchAttributeKey.for_keyword(f"Turnkeeper{name}")
    for name in ("Agent", "Status", "Outcome", "Model", "Tenant", "Unknown")
}
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
    _upsert(state, {"Status": "ended", "Outcome": outcome}, counts)
    workflow.upsert_memo({"outcome": outcome, "answer": one_line(state.text, 200)})
    show(state)


def publish_unknown(state: RunState) -> None:
    """When a call's outcome became unknown, or was settled: for lists over all runs."""
    statuses = {u.status for u in state.unknown}
    summed = next((s for s in ("waiting", "open") if s in statuses), "settled")
    _upsert(state, {"Status": _status(state), "Unknown": summed}, {})
    workflow.upsert_memo(_unknown_memo(state))


def publish_waiting(state: RunState) -> None:
    """When the run begins to wait for somebody's words or a time, and when it goes on."""
    _upsert(state, {"Status": _status(state)}, {})
    workflow.upsert_memo(_waiting_memo(state))
    show(state)


def memo(state: RunState) -> dict[str, Any]:
    """All of it, for the next execution: unlike search attributes, a memo is not carried over."""
    try:
        theirs = dict(workflow.memo())
    except Exception:  # noqa: BLE001  the caller's own, in an encoding that is not ours
        theirs = {}
    ours = {"agent": state.request.agent, "prompt": state.request.prompt}
    ours |= _unknown_memo(state) if state.unknown else {}
    return theirs | ours | (_waiting_memo(state) if state.awaited() else {})


def _unknown_memo(state: RunState) -> dict[str, Any]:
    return {"unknown": [u.model_dump(mode="json") for u in state.unknown], **_counts(state)}


def _waiting_memo(state: RunState) -> dict[str, Any]:
    return {"awaited": [a.model_dump(mode="json") for a in state.awaited()], **_counts(state)}


def _counts(state: RunState) -> dict[str, Any]:
    # For the lists that show a run which waits; they grow again when it goes on.
    return {"turns": state.turn, "tokens": state.usage.total}


def _status(state: RunState) -> str:
    return "waiting" if state.waits else "running"


def show(state: RunState) -> None:
    """Refresh the run card; costs no event."""
    workflow.set_current_details(run_card(state, workflow.info().workflow_id))


def _upsert(state: RunState, keywords: dict[str, str], ints: dict[str, int]) -> None:
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
    if updates:
        workflow.upsert_search_attributes(updates)
