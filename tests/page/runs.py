"""Runs as an export has them, made by hand for tests of the page."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from turnkeeper.contract import (
    ApprovalAsked,
    Awaited,
    RunRequest,
    RunResult,
    RunStatus,
    UnknownCall,
)
from turnkeeper.entries import Entry
from turnkeeper.export import (
    ExportedCall,
    ExportedEpoch,
    ExportedGeneration,
    ExportedMessage,
    ExportedSummary,
    RunExport,
)
from turnkeeper.page.document import page
from turnkeeper.page.story import story_of
from turnkeeper.spec import Limits
from turnkeeper.usage import Usage

START = datetime(2026, 11, 30, 9, 0, 0, tzinfo=UTC)


def at(seconds: float) -> datetime:
    """So many seconds after the run began."""
    return START + timedelta(seconds=seconds)


def entry(kind: Any, value: Any, digest: str = "") -> Entry:
    """Of any text, also such as is never admitted."""
    return Entry(kind=kind, value=value, digest=digest)


def said(text: str, **more: str) -> Entry:
    """A message."""
    return entry("message", {"text": text, **more})


def replied(digest: str, *blocks: dict[str, Any]) -> Entry:
    """A reply, which generations name by its digest."""
    return entry("reply", {"role": "assistant", "content": list(blocks)}, digest)


def text(words: str) -> dict[str, Any]:
    """A block."""
    return {"type": "text", "text": words}


def asks(call_id: str, tool: str = "search", /, **arguments: Any) -> dict[str, Any]:
    """A block that calls a tool."""
    return {"type": "tool_use", "id": call_id, "name": tool, "input": arguments}


def returned(call_id: str, words: str, **more: Any) -> Entry:
    """A result."""
    return entry("result", {"call_id": call_id, "tool": "search", "text": words, **more})


def generated(turn: int, reply: str | None = None, **fields: Any) -> ExportedGeneration:
    """Asked at ten times its turn, and answered a second later."""
    made = {
        "turn": turn,
        "reply": reply,
        "status": "ok",
        "stop_reason": "tool_use",
        "usage": Usage(input_tokens=100, cache_read_tokens=300, output_tokens=20),
        "attempts": 1,
        "scheduled": at(10 * turn),
        "ended": at(10 * turn + 1),
    }
    return ExportedGeneration(**(made | fields))


def called(call_id: str, turn: int = 1, **fields: Any) -> ExportedCall:
    """Begun two seconds after its turn, for half a second."""
    made = {
        "turn": turn,
        "call_id": call_id,
        "tool": "search",
        "effect": "read",
        "arguments": "",
        "key": f"key-{call_id}",
        "status": "ok",
        "attempts": 1,
        "scheduled": at(10 * turn + 2),
        "ended": at(10 * turn + 2.5),
    }
    return ExportedCall(**(made | fields))


def run_of(entries: Sequence[Entry] = (), **fields: Any) -> RunExport:
    """One that is over, or with `result=None` one that is not."""
    made: dict[str, Any] = {
        "exported": at(3_600),
        "namespace": "default",
        "id": "q-17",
        "run_ids": ["r-1"],
        "agent": "finance",
        "model": "claude-sonnet-5-5",
        "status": "completed",
        "started": START,
        "closed": at(100),
        "limits": Limits(turns=50),
        "entries": list(entries),
        "result": RunResult(outcome="completed", answer="42", turns=2, calls=1),
    }
    if fields.get("result", ...) is None:
        made |= {"closed": None, "status": "running"}
    return RunExport(**(made | fields))


def status_of(run: RunExport, **fields: Any) -> RunStatus:
    """As the run itself, or the server, tells it."""
    over = run.result is not None
    made: dict[str, Any] = {
        "agent": run.agent,
        "model": run.model,
        "phase": "ended" if over else "EXECUTE",
        "turn": 2,
        "waiting_for": "" if over else "results of search",
        "outcome": run.result.outcome if run.result else None,
        "approvals": run.result.approvals if run.result else [],
    }
    if run.limits is not None:
        made["limits"] = run.limits
    return RunStatus(**(made | fields))


def page_of(run: RunExport, images: dict[str, str] | None = None, **status: Any) -> str:
    """Its page."""
    return page(story_of(run, status_of(run, **status)), images or {})


def hostile_run(bad: str, *, over: bool = True) -> tuple[RunExport, RunStatus, dict[str, str]]:
    """A run that has a text wherever one can stand."""
    call: dict[str, Any] = {"turn": 1, "call_id": f"c{bad}", "tool": bad, "key": bad}
    unknown = UnknownCall(**call, what=bad, arguments=bad, status="open", actor=bad)
    asked = ApprovalAsked(
        id=bad,
        turn=1,
        call_id=f"d{bad}",
        tool=bad,
        effect="once",
        arguments=bad,
        why=bad,
        since=START.timestamp(),
        status="denied" if over else "waiting",
        actor=bad,
        reason=bad,
    )
    images = [
        {"artifact": f"a{n}{bad}", "media_type": bad, "width": 4, "height": 3, "bytes": 70}
        for n in (1, 2)
    ]
    blocks = [
        text(bad),
        {"type": "thinking", "thinking": bad},
        {"type": bad, bad: bad},
        asks(f"c{bad}", bad, **{f"k{bad}": bad, "list": [bad], "deep": {bad: {bad: bad}}}),
        asks(f"d{bad}", bad),
        {"type": "tool_use", "id": bad, "name": bad, "input": bad},
    ]
    result = RunResult(outcome=bad, reason=bad, answer=bad, model=bad, unknown=[unknown])
    request = RunRequest.model_construct(
        agent=bad, prompt=bad, request_key=bad, metadata={bad: bad, "tenant": bad}, fork=None
    )
    run = run_of(
        [
            said(bad, id=bad, actor=bad),
            replied("r", *blocks),
            returned(f"c{bad}", bad, images=images),
        ],
        id=bad,
        namespace=bad,
        run_ids=[bad],
        agent=bad,
        model=bad,
        spec_digest=bad,
        request=request,
        result=result if over else None,
        generations=[
            generated(1, "r", stop_reason=bad, model=bad),
            generated(2, None, status="failed", failure=bad),
        ],
        summaries=[ExportedSummary(turn=1, at=at(14), text=bad, problem=bad)],
        epochs=[ExportedEpoch(number=2, at=at(15), entries=3, how="summary", left_out=2)],
        calls=[
            called(f"c{bad}", tool=bad, key=bad, status=bad, failure=bad, artifact=bad),
            called(f"d{bad}", tool=bad, status="needs_approval"),
        ],
        unknown=[unknown],
        decisions={"approval": [asked.model_dump(mode="json"), bad]},
        messages=[
            ExportedMessage(at=at(16), name=name, how="signal", body=body)
            for name, body in (
                ("stop", {"reason": bad, "actor": bad}),
                ("raise_limits", {"limits": {bad: bad}}),
                ("send", {"message_id": "other", "text": bad}),
                ("deny", {"approval": bad}),
                (bad, bad),
                ("pause", bad),
            )
        ],
        unread=[returned(f"d{bad}", bad, actor=bad)],
        missing=[bad],
    )
    status = status_of(
        run,
        phase=bad,
        waiting_for=bad,
        approvals=[asked],
        unknown=[unknown],
        awaited=[Awaited(kind="answer", question=bad, call_id=bad, update=bad)],
    )
    return run, status, {f"a1{bad}": "data:image/png;base64,iVBORw0KGgo="}
