"""What a run does for each stop reason and each failure of its provider, as real runs show it.

    python -m tests.outcome_tables        writes docs/outcomes.md

Each row is one real run: a Temporal server, a worker, and the scripted provider over HTTP. All of
them run side by side. `tests/test_outcome_tables.py` fails if the page says something else.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any, TypeAlias

from temporalio.client import Client

from tests.rig import AGENT, Rig, open_rig
from turnkeeper import Agent, Limits, ModelSpec, tool
from turnkeeper.client import AgentClient
from turnkeeper.testing import (
    Exchange,
    Reply,
    ScriptedProvider,
    call,
    cut,
    duplicate_event,
    error_event,
    garbage,
    insert_event,
    no_stop,
    reply,
    status,
    text,
    unknown_delta,
)
from turnkeeper.testing.embedded import EmbeddedServer

PAGE = Path(__file__).resolve().parent.parent / "docs" / "outcomes.md"

Step: TypeAlias = Reply | Callable[[], Reply]


@dataclass(frozen=True)
class Row:
    """One run. The provider answers its requests in this order; the last answer stays."""

    name: str
    replies: Sequence[Step]
    wait: str = ""
    """Before a failed request is sent again: `asked` by the provider, or Temporal's `backoff`."""
    least: float = 0.0
    """Seconds between the first two requests."""
    most: float = 45.0
    """Seconds between the first and the last."""
    agent: str = AGENT


@dataclass(frozen=True)
class Seen:
    """What a run did."""

    requests: int
    tools: int
    outcome: str
    reason: str


COUNT = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
FINE = text("Done.")
ASK = call("look_up", {"q": "x"})
SOON = {"retry-after-ms": "50"}
HTML = b"<html><head><title>502</title></head><body><h1>Bad Gateway</h1></body></html>"


def _in_three_seconds() -> Reply:
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=3), usegmt=True)
    return status(429, headers={"retry-after": date})


STOPS = (
    Row("`end_turn` with text", [FINE]),
    Row("`end_turn` with a tool call", [call("look_up", {"q": "x"}, stop_reason="end_turn"), FINE]),
    Row("`end_turn` without content, then an answer", [reply([]), FINE]),
    Row("`end_turn` without content, again and again", [reply([])]),
    Row("`end_turn` with white space, then an answer", [text(" \n"), FINE]),
    Row("`tool_use` with a call", [ASK, FINE]),
    Row("`tool_use` with text and a call", [reply([text("I look."), ASK]), FINE]),
    Row("`tool_use` without a call, then an answer", [text("x", stop_reason="tool_use"), FINE]),
    Row("`tool_use` without a call, again and again", [text("x", stop_reason="tool_use")]),
    Row("`stop_sequence` with text", [text("Done.", stop_reason="stop_sequence")]),
    Row(
        "`stop_sequence` with a call",
        [call("look_up", {"q": "x"}, stop_reason="stop_sequence"), FINE],
    ),
    Row("`max_tokens` in a text, then an answer", [text("Do", stop_reason="max_tokens"), FINE]),
    Row("`max_tokens` in a text, again and again", [text("Do", stop_reason="max_tokens")]),
    Row(
        "`max_tokens` in a call, then the whole call",
        [call("look_up", {"q": "x"}, stop_reason="max_tokens"), ASK, FINE],
    ),
    Row(
        "`max_tokens` in a call, up to the model's ceiling, then an answer",
        [
            call("look_up", {"q": "x"}, stop_reason="max_tokens"),
            call("look_up", {"q": "x"}, stop_reason="max_tokens"),
            call("look_up", {"q": "x"}, stop_reason="max_tokens"),
            FINE,
        ],
    ),
    Row("`max_tokens` without content", [reply([], stop_reason="max_tokens")]),
    Row("`pause_turn`, then an answer", [text("Hm.", stop_reason="pause_turn"), FINE]),
    Row("`pause_turn` with a call", [call("look_up", {"q": "x"}, stop_reason="pause_turn"), FINE]),
    Row("`pause_turn`, again and again", [text("Hm.", stop_reason="pause_turn")]),
    Row(
        "`pause_turn` without content, then an answer", [reply([], stop_reason="pause_turn"), FINE]
    ),
    Row("`refusal`", [text("No.", stop_reason="refusal", stop_details={"category": "cyber"})]),
    Row("`refusal` with a call", [call("look_up", {"q": "x"}, stop_reason="refusal")]),
    Row(
        "`model_context_window_exceeded`",
        [text("Do", stop_reason="model_context_window_exceeded")],
    ),
    Row("a stop reason of later", [text("Done.", stop_reason="later")]),
    Row("null in a stream, then an answer", [text("Done.", stop_reason=None), FINE]),
    Row(
        "null in a whole reply, again and again",
        [garbage(b'{"content": [{"type": "text", "text": "Done."}], "stop_reason": null}')],
    ),
)

FAILURES = (
    Row(
        "connection reset before the status line", [cut(FINE, None, "reset"), FINE], "backoff", 0.9
    ),
    Row("connection closed before the status line", [cut(FINE, None), FINE], "backoff", 0.9),
    Row("body cut after 0 bytes", [cut(FINE, 0), FINE], "backoff", 0.9),
    Row("body cut after 100 bytes", [cut(FINE, 100), FINE], "backoff", 0.9),
    Row("body reset in the middle of a call", [cut(ASK, 0.6, "reset"), FINE], "backoff", 0.9),
    Row("body closed in the middle of a call", [cut(ASK, 0.6), FINE], "backoff", 0.9),
    Row("body cut before its last byte", [cut(ASK, 0.999), FINE], "backoff", 0.9),
    Row("stream ends without `message_stop`", [no_stop(FINE), FINE], "backoff", 0.9),
    Row("stream ends after `message_start`", [no_stop(FINE, after=1), FINE], "backoff", 0.9),
    Row("stream falls silent", [cut(FINE, 0.5, "stall"), FINE], "backoff", 0.9),
    Row("stream with a delta twice", [duplicate_event(FINE, 3)]),
    Row("stream with a block started twice", [duplicate_event(FINE, 2), FINE], "backoff", 0.9),
    Row("stream with an unknown delta", [unknown_delta(FINE), FINE], "backoff", 0.9),
    Row("stream with an unknown event", [insert_event(FINE, "later", {"type": "later"})]),
    Row(
        "stream with a delta that is not JSON",
        [insert_event(FINE, "content_block_delta", b'{"type": ', after=3), FINE],
        "backoff",
        0.9,
    ),
    Row(
        "stream of bytes that are no events",
        [garbage(b"\x00\xff" * 99, content_type="text/event-stream"), FINE],
        "backoff",
        0.9,
    ),
    Row("error event first: `overloaded_error`", [error_event(FINE), FINE], "backoff", 0.9),
    Row(
        "error event in the middle: `api_error`",
        [error_event(FINE, after=4, type="api_error"), FINE],
        "backoff",
        0.9,
    ),
    Row(
        "error event: `invalid_request_error`",
        [error_event(FINE, type="invalid_request_error", message="messages: odd")],
    ),
    Row(
        "error event: prompt is too long",
        [error_event(FINE, type="invalid_request_error", message="prompt is too long: 9 > 8")],
    ),
    Row(
        "200 with an error in JSON",
        [
            garbage(
                b'{"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}'
            ),
            FINE,
        ],
        "backoff",
        0.9,
    ),
    Row("200 with an empty body", [garbage(b""), FINE], "backoff", 0.9),
    Row("200 with a page of HTML", [garbage(HTML, content_type="text/html"), FINE], "backoff", 0.9),
    Row("200 with half a JSON", [garbage(b'{"content": ['), FINE], "backoff", 0.9),
    Row("400", [status(400)]),
    Row(
        "400: prompt is too long",
        [status(400, message="prompt is too long: 210000 tokens > 200000 maximum")],
    ),
    Row(
        "400: thinking of another conversation, once",
        [
            status(
                400,
                message="Invalid `signature`. The block is bound to a different conversation",
            ),
            FINE,
        ],
    ),
    Row(
        "400: thinking of another conversation, for ever",
        [status(400, message="Invalid `signature` in `thinking` block")],
    ),
    Row(
        "400 with `x-should-retry: true`",
        [status(400, headers={"x-should-retry": "true"}), FINE],
        "backoff",
        0.9,
    ),
    Row("401", [status(401)]),
    Row("402", [status(402)]),
    Row("403", [status(403)]),
    Row("404", [status(404, message="model: claude-none")]),
    Row("408", [status(408), FINE], "backoff", 0.9),
    Row("409", [status(409), FINE], "backoff", 0.9),
    Row("413", [status(413)]),
    Row("422", [status(422)]),
    Row("429 without headers", [status(429), FINE], "backoff", 0.9),
    Row(
        "429 with `retry-after: 2`", [status(429, headers={"retry-after": "2"}), FINE], "asked", 1.9
    ),
    Row("429 with `retry-after` as a date in 3 s", [_in_three_seconds, FINE], "asked", 1.8),
    Row(
        "429 with `retry-after-ms: 50`, six times",
        [status(429, headers=SOON)] * 6 + [FINE],
        "asked",
        0.04,
        20,
    ),
    Row("429 with `retry-after: 86400`", [status(429, headers={"retry-after": "86400"})]),
    Row(
        "429 with `retry-after: 1e400`",
        [status(429, headers={"retry-after": "1e400"}), FINE],
        "backoff",
        0.9,
    ),
    Row(
        "429 with `retry-after: soon`",
        [status(429, headers={"retry-after": "soon"}), FINE],
        "backoff",
        0.9,
    ),
    Row(
        "429 with `retry-after: -5`",
        [status(429, headers={"retry-after": "-5"}), FINE],
        "backoff",
        0.9,
    ),
    Row("429 for a spend limit", [status(429, error_code="enforced_spend_limit_reached")]),
    Row("500", [status(500), FINE], "backoff", 0.9),
    Row("500 for ever", [status(500, headers=SOON)], "asked", 0.04),
    Row("500 with `x-should-retry: false`", [status(500, headers={"x-should-retry": "false"})]),
    Row("502 with a page of HTML", [status(502, body=HTML), FINE], "backoff", 0.9),
    Row("503 with an empty body", [status(503, body=b""), FINE], "backoff", 0.9),
    Row("504", [status(504), FINE], "backoff", 0.9),
    Row("529", [status(529), FINE], "backoff", 0.9),
    Row("redirect", [status(302, headers={"location": "http://127.0.0.1:1/"}, body=b"")]),
    Row("a reply of 9 MB, for ever", [text("x" * 9_000_000)], "backoff", 0.9),
)
WORDS, WRONG, FITS = text("Three."), text('{"n": "three"}'), text('{"n": 3}')
TYPED = (
    Row("a value that fits", [FITS], agent="typed"),
    Row("a value that fits, in a code fence", [text('```json\n{"n": 3}\n```')], agent="typed"),
    Row("words, then a value that fits", [WORDS, FITS], agent="typed"),
    Row("words, a wrong value, then one that fits", [WORDS, WRONG, FITS], agent="typed"),
    Row("words, again and again", [WORDS], agent="typed"),
    Row("a wrong value, again and again", [WRONG], agent="typed"),
    Row("half a value, `max_tokens`", [text('{"n":', stop_reason="max_tokens")], agent="typed"),
)
REFUSED = "connection refused, then an answer"
_AT_ONCE = 12


@tool(effect="read")
def look_up(q: str) -> str:
    """Look something up."""
    return f"found {q}"


async def show(client: Client, folder: Path) -> str:
    """Run every row, and say what was seen as the page does."""
    rows = {row.name: row for row in (*STOPS, *TYPED, *FAILURES)}
    sent: dict[str, int] = dict.fromkeys(rows, 0)

    def script(exchange: Exchange) -> Reply:
        name = exchange.prompt.split("\n")[0]
        number, sent[name] = sent[name], sent[name] + 1
        replies = rows[name].replies
        step = replies[min(number, len(replies) - 1)]
        return step if isinstance(step, Reply) else step()

    model = ModelSpec(
        name="claude-sonnet-5-5", max_output_tokens=1_000, ceiling=16_000, window=200_000
    )
    made: dict[str, Any] = {"model": model, "instructions": "i", "tools": [look_up]}
    made |= {"limits": Limits(wall_seconds=600), "outage_seconds": 0}
    agents = [Agent(name=AGENT, **made), Agent(name="typed", output=COUNT, **made)]
    async with open_rig(client, folder, script, agents=agents, silence=2.0) as rig:
        # Attempts of all at once would wait for a busy machine until they count as lost.
        slots = asyncio.Semaphore(_AT_ONCE)

        async def run(row: Row) -> Seen:
            async with slots:
                return await _run(rig, row)

        done = await asyncio.gather(
            _refused(client, folder / "refused"),
            *map(run, rows.values()),
            return_exceptions=True,
        )
        problems = [str(d) or repr(d) for d in done if isinstance(d, BaseException)]
        assert not problems, "\n".join(problems)
        assert await rig.task_failures() == 0
        assert not rig.provider.rejections
    seen = dict(zip([REFUSED, *rows], done, strict=True))
    return _page({name: what for name, what in seen.items() if isinstance(what, Seen)})


async def _run(rig: Rig, row: Row) -> Seen:
    handle = await rig.start(row.name, agent=row.agent)
    result = await handle.result(check=False, timeout=50)
    records = [r for r in rig.provider.requests if (r.prompt or "").split("\n")[0] == row.name]
    if row.wait:
        assert len(records) > 1, f"{row.name}: sent once"
        gap, all_of_them = (records[n].time - records[0].time for n in (1, -1))
        assert row.least <= gap, f"{row.name}: waited {gap:.2f} s"
        assert all_of_them <= row.most, f"{row.name}: waited {all_of_them:.2f} s in all"
    return Seen(len(records), result.calls, result.outcome, _reason(result.reason))


async def _refused(client: Client, folder: Path) -> Seen:
    """The provider is not there for the first request, and is for a later one."""
    async with open_rig(client, folder, [FINE]) as rig:
        rig.provider.stop()
        handle = await rig.start(REFUSED)
        await asyncio.sleep(1.5)
        with ScriptedProvider([FINE], port=rig.provider.port, fsync=False) as again:
            result = await handle.result(check=False, timeout=50)
            return Seen(len(again.requests), result.calls, result.outcome, _reason(result.reason))


def _reason(reason: str | None) -> str:
    # The seconds that a run has left differ from run to run.
    return re.sub(r"but the run has \d+ s left", "but the run has N s left", reason or "")


def _page(seen: dict[str, Seen]) -> str:
    stops, typed = (
        "\n".join(_line(row.name, seen[row.name], str(seen[row.name].tools)) for row in rows)
        for rows in (STOPS, TYPED)
    )
    waits = {row.name: _WAITS[row.wait] for row in FAILURES} | {REFUSED: _WAITS["backoff"]}
    failures = [_line(name, seen[name], wait) for name, wait in waits.items()]
    return _TEXT.format(stops=stops, typed=typed, failures="\n".join(failures))


_WAITS = {"": "-", "asked": "as asked", "backoff": "1 s, doubling"}


def _line(name: str, seen: Seen, more: str) -> str:
    reason = seen.reason.replace("|", "\\|")
    return f"| {name} | {seen.requests} | {more} | `{seen.outcome}` | {reason} |"


_TEXT = """# What a run does for each answer of its provider

Every row is a real run, and this page is written from what those runs did:
`python -m tests.outcome_tables` writes it, and a test fails when a run does something else.

A request is counted when it has reached the provider. A run tries a failed request at most 8
times; a reply that was paid for and cannot be stored is asked for 3 times at most.

## Stop reasons

A reply that makes no sense, or was cut off, is discarded and asked for again, at most twice in a
row. A call in a reply that was cut off is never run.

| The provider answers | Requests | Tool calls | Outcome | Reason |
|---|---|---|---|---|
{stops}

## Typed answers

The same with `Agent(output=...)`, a JSON schema of an object with a whole number `n`, and
`output_retries=2`.

| The model answers | Requests | Tool calls | Outcome | Reason |
|---|---|---|---|---|
{typed}

## Failures

Temporal is the only layer that retries. `1 s, doubling` is its own wait, up to 60 s; `as asked` is
the wait that the provider asked for, which is kept up to an hour and never beyond the run's end.

| The provider, or the way to it | Requests | Wait | Outcome | Reason |
|---|---|---|---|---|
{failures}
"""


async def _write() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        EmbeddedServer.start(Path(folder) / "temporal", ui=False) as server,
    ):
        client = (await AgentClient.connect(server.address)).client
        PAGE.write_text(await show(client, Path(folder)))


if __name__ == "__main__":
    asyncio.run(_write())
