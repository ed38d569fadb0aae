"""Record the corpus anew: `python -m tests.replay.record [NAME ...]`.

Each scenario is a run on a real server, with a real worker and the scripted provider. Record a
scenario when it is new, or when a release changed the loop on purpose and drained the runs of the
one before it: otherwise a history that no longer replays is the finding.
"""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import json
import logging
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog
from temporalio.client import Client, WorkflowHandle

from activities.notify import Webhook
from tests.codec import Masking
from tests.prose import prose
from tests.rig import Rig, open_rig, until
from turnkeeper import (
    Limits,
    ModelSpec,
    RetryTool,
    StopRun,
    ToolContext,
    ToolFailed,
    ask_person,
    days,
    sleep,
    switchboard,
    tool,
)
from turnkeeper.client import AgentClient, AgentRunHandle
from turnkeeper.day_limits import DayLimit, Estimate
from turnkeeper.probe import Answer, Landed, NotLanded
from turnkeeper.spec import HistoryPolicy
from turnkeeper.testing import AUTO, Exchange, call, calls, reply, status, text, thinking
from turnkeeper.testing.embedded import EmbeddedServer
from turnkeeper.testing.provider import Reply, Script

UNHEARD = Webhook("http://127.0.0.1:9/", f"whsec_{'c2VjcmV0' * 6}")
"""A receiver that is not there."""

HISTORIES = Path(__file__).parent / "histories"
ROOT = Path(__file__).resolve().parents[2]

# --- tools ----------------------------------------------------------------------------------------


@tool(effect="read")
def look_up(q: str) -> str:
    """Look something up."""
    return f"found {q}"


@tool(effect="read")
async def after(seconds: float) -> str:
    """Answer after a while."""
    await asyncio.sleep(seconds)
    return f"after {seconds}"


@tool(effect="idempotent")
def write(n: int) -> str:
    """Write something."""
    if n < 0:
        raise ToolFailed("only numbers from 0 on")
    return f"wrote {n}"


@tool(effect="idempotent", approval="always")
async def pay(n: int) -> str:
    """Pay."""
    return f"paid {n}"


@tool(effect="idempotent", retries=2)
def flaky(ctx: ToolContext) -> str:
    """Work at the third attempt."""
    if ctx.attempt == 1:
        raise OSError("down")
    if ctx.attempt == 2:
        raise RetryTool("busy", delay=0.05)
    return "at last"


@tool(effect="once", timeout=0.5)
async def send() -> str:
    """Send, and hear nothing."""
    await asyncio.sleep(3600)
    return "never"


@tool(effect="once")
def give_up() -> str:
    """End the run."""
    raise StopRun("enough")


BOOKED: list[str] = []


async def find_booking(ctx: ToolContext, args: Mapping[str, Any]) -> Answer:
    """Whether it was booked."""
    return Landed(f"{args['n']} booked") if ctx.idempotency_key in BOOKED else NotLanded()


@tool(effect="reconcilable", probe=find_booking)
async def book(n: int, ctx: ToolContext) -> str:
    """Book, and hear nothing of it."""
    if n > 0:
        BOOKED.append(ctx.idempotency_key)
    raise OSError("reply lost")


@tool(effect="read")
def read_page(n: int, size: int = 1_000) -> str:
    """Read a page."""
    return f"page {n}: {prose(n, size)}"


TOOLS = [look_up, after, write, flaky, send, give_up, book]

# --- scenarios ------------------------------------------------------------------------------------

Drive = Callable[[Rig], Awaitable[Any]]


async def plain_run(r: Rig) -> Any:
    """Start a run and await its end."""
    return await r.run()


async def _stopped(r: Rig) -> Any:
    run = await r.start()
    await until(lambda: r.provider.requests)
    await run.stop("enough", "ann")
    return await run.result(check=False)


async def _stopped_by_signal(r: Rig) -> Any:
    run = await r.start()
    await until(lambda: r.provider.requests)
    handle = r.client.get_workflow_handle(run.id)
    await handle.signal("stop", args=["not", "an object"])
    await handle.signal("stop", {"reason": "enough"})
    return await run.result(check=False)


async def _cancelled(r: Rig) -> Any:
    run = await r.start()

    async def in_tool() -> bool:
        return (await run.status()).phase == "EXECUTE"

    await until(in_tool)
    await r.client.get_workflow_handle(run.id).cancel()
    return await run.result(check=False)


def _resolved(how: str, *, landed: bool) -> Drive:
    async def drive(r: Rig) -> Any:
        run = await _waiting(r)
        (call_id,) = [u.call_id for u in (await run.status()).unknown]
        handle = r.client.get_workflow_handle(run.id)
        body = {"call_id": call_id, "landed": landed, "result": "seen", "actor": "ann"}
        if how == "update":
            await handle.execute_update("resolve", body)
        else:
            await handle.signal("resolve", {"call_id": "another", "landed": True})
            await handle.signal("resolve", body)
        return await run.result(check=False)

    return drive


async def _waiting(r: Rig) -> AgentRunHandle:
    run = await r.start()

    async def waits() -> bool:
        return bool((await run.status()).unknown)

    await until(waits)
    return run


async def _stopped_while_waiting(r: Rig) -> Any:
    run = await _waiting(r)
    await run.stop("enough")
    return await run.result(check=False)


async def _paused_and_resumed(r: Rig) -> Any:
    run = await r.start()
    await until(lambda: r.provider.requests)
    await run.pause("lunch", "ann")

    async def waits() -> bool:
        return (await run.status()).waiting_for.startswith("a person to resume it")

    await until(waits)
    await run.resume("bob")
    return await run.result(check=False)


async def _raised(r: Rig) -> Any:
    run = await r.start()
    await until(lambda: r.provider.requests)
    await run.raise_limits({"wall_seconds": 2}, "it takes longer", "ann")
    return await run.result(check=False)


async def _forked(r: Rig) -> Any:
    run = await r.start()
    await run.result()
    fork = await run.fork(2, "Look again.")
    r.ids.append(fork.id)
    return await fork.result(check=False)


async def _retried(r: Rig) -> Any:
    run = await r.start()
    await run.result()
    return await (await run.retry_from(2, again=True)).result(check=False)


async def _conversation(r: Rig) -> Any:
    """Messages by update and signal, one of them twice; then nobody says anything."""
    run = await r.start("", keep_open=True)
    handle = r.client.get_workflow_handle(run.id)
    for n in range(4):
        body = {"message_id": f"m{n}", "text": f"message {n}"}
        await (handle.signal if n % 2 else handle.execute_update)("send", body)
        await handle.signal("send", body)
        await run.reply(f"m{n}", timeout=20)
    return await run.result(check=False)


async def _interrupted(r: Rig) -> Any:
    """A generation is ended for a message, and then the calls of a turn."""
    run = await r.start()
    await until(lambda: r.provider.requests)
    await run.send("at once", message_id="m1", interrupt=True)

    async def in_tools() -> bool:
        return any(c.status == "running" for c in (await run.status()).calls)

    await until(in_tools)
    await run.send("and at once", message_id="m2", interrupt=True)
    return await run.result(check=False)


def _interruptible(x: Exchange) -> Reply:
    if x.turn:
        return text(f"re: {x.last_text}")
    if x.last_text == "question":
        return text("Late.", delay=30)
    slow = [("after", {"seconds": 30.0}), ("send", {})]
    return calls([*slow, ("write", {"n": 1})])


async def _asked(r: Rig) -> Any:
    """A question is answered, and a time waited for."""
    run = await r.start()

    async def asks() -> Any:
        return [a.call_id for a in (await run.status()).awaited if a.kind == "answer"]

    (call_id,) = await until(asks)
    await run.answer(call_id, "the blue one", actor="ann")
    return await run.result(check=False)


async def _allowed_later(r: Rig) -> Any:
    """The run's time is raised while a person is waited for."""
    run = await r.start()

    async def asks() -> Any:
        return [a.id for a in (await run.status()).approvals if a.status == "waiting"]

    (approval,) = await until(asks)
    await run.raise_limits({"wall_seconds": 7_200}, actor="ann")
    await run.approve(approval, actor="ann")
    return await run.result(check=False)


async def _switched_off(r: Rig) -> Any:
    await r.switch_off("agent", "tester", "too dear", "ann")
    run = await r.start()

    async def waits() -> bool:
        return "switched on again" in (await run.status()).waiting_for

    await until(waits)
    await r.switch_on("agent", "tester")
    return await run.result(check=False)


async def _tool_off(r: Rig) -> Any:
    await r.switch_off("tool", "write", "too many", "ann")
    return await r.run()


async def _switches(r: Rig) -> Any:
    """The history that is recorded is that of the list."""
    result = await _tool_off(r)
    handle = r.client.get_workflow_handle(switchboard.workflow_id(r.task_queue))
    await handle.signal("switch", {"kind": "tenant", "name": "acme", "off": True, "reason": "x"})
    await handle.signal("switch", {"kind": "nonsense"})
    await r.switch_on("tool", "write")
    r.ids.append(handle.id)
    return result


async def _day_limit(r: Rig) -> Any:
    """The run waits, and goes on when the limit is raised."""
    await r.agents.limit_day("agent", "tester", tokens=100)
    run = await r.start()

    async def waits() -> bool:
        return "limit per day" in (await run.status()).waiting_for

    await until(waits)
    await r.agents.limit_day("agent", "tester", tokens=100_000)
    result = await run.result(check=False)
    await r.agents.remove_day_limit("agent", "tester")
    return result


async def _day(r: Rig) -> Any:
    """The history that is recorded is that of the count."""
    result = await _day_limit(r)
    limit = DayLimit(kind="agent", name="tester", tokens=100_000)
    handle = r.client.get_workflow_handle(days.workflow_id(limit))
    await handle.signal("settle", {"settled": "nonsense"})
    await days.reserve(r.client, limit, [Estimate(tokens=10), Estimate(tokens=200_000)], 30)
    r.ids.append(handle.id)
    return result


async def _invalid(r: Rig) -> Any:
    handle = await r.start_raw(
        {"agent": "tester", "prompt": "q", "limits": {"cost_usd_per_day": 1}}
    )
    return await r.agents.result(handle.id, check=False)


async def _unknown_agent(r: Rig) -> Any:
    return await r.run(agent="nobody")


def _ever_on(exchange: Exchange) -> Reply:
    if exchange.body.get("tool_choice") == {"type": "none"}:
        return text("The last answer.")
    return call("look_up", {"q": str(exchange.turn)})


def _results(exchange: Exchange) -> Reply:
    return text(" | ".join(r.text for r in exchange.last_results))


SUMMARY = "## Decisions\nNone.\n## Unresolved work\nRead on.\n## Evidence\nNone."


def _pages(
    says: str = "",
    size: int = 1_000,
    summary: str = SUMMARY,
    refused_from: int = 99,
    delay: float = 0,
) -> Script:
    """Page after page: the next one stands in the last result."""

    def script(x: Exchange) -> Reply:
        if x.wants_summary:
            return text(summary, delay=delay)
        last = x.last_results[0].text.split(":")[0].split() if x.last_results else ["page", "0"]
        n = int(last[1]) + 1
        if n >= refused_from:
            return status(400, message="prompt is too long: 210000 tokens > 200000 maximum")
        if n > 12:
            return text("Read.")
        return reply([*([text(says)] if says else []), call("read_page", {"n": n, "size": size})])

    return script


COUNTS = {"settings": {"heartbeat_seconds": 1, "keeps_switches": True}}
COUNT = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
BRIEF = Limits(idle_seconds=1)
HISTORY = HistoryPolicy(events=50, bytes=20_000)
PAYS: Mapping[str, Any] = {"tools": [pay], "limits": Limits(wall_seconds=3_600)}
SMALL: Mapping[str, Any] = {
    "tools": [read_page],
    "model": ModelSpec(name="claude-sonnet-5-5", window=4_000, max_output_tokens=500),
}


@dataclass(frozen=True)
class Scenario:
    """A script, how its agent differs from the plain one, and what is done with the run."""

    script: Any
    outcome: str = "completed"
    drive: Drive = plain_run
    agent: Mapping[str, Any] = field(default_factory=dict)
    codec: bool = False


SCENARIOS: dict[str, Scenario] = {
    "completed": Scenario([text("Hello.")]),
    "tools": Scenario([call("look_up", {"q": "a"}), call("write", {"n": 1}), _results]),
    "thinking": Scenario([reply([thinking("Let me see."), call("look_up", {"q": "a"})]), _results]),
    "parallel": Scenario(
        [
            calls(
                [
                    *[("after", {"seconds": s}) for s in (0.3, 0.2, 0.1)],
                    ("write", {"n": 1}),
                    ("write", {"n": -1}),
                    ("write", {"n": 2}),
                    ("look_up", {"q": "b"}),
                ]
            ),
            _results,
        ],
        agent={"limits": Limits(parallel_calls=2)},
    ),
    "tool-errors": Scenario(
        [
            calls([("write", {"n": -1}), ("write", {"m": "x"}), ("no_such_tool", {})]),
            call("look_up", raw_input='{"q": "cut'),
            _results,
        ]
    ),
    "invalid-call-stops": Scenario(
        [call("no_such_tool")], "stopped", agent={"on_invalid_call": "stop"}
    ),
    "retries": Scenario([[status(529), status(503), call("flaky")], _results]),
    "once-unknown": Scenario([calls([("send", {}), ("give_up", {})]), _results]),
    "unknown-told": Scenario([calls([("send", {}), ("write", {"n": 1})]), _results]),
    "unknown-stops": Scenario([call("send")], "outcome_unknown", agent={"on_unknown": "stop"}),
    "unknown-resolved": Scenario(
        [calls([("send", {}), ("write", {"n": 1})]), _results],
        drive=_resolved("update", landed=True),
        agent={"on_unknown": "wait"},
    ),
    "unknown-resolved-by-signal": Scenario(
        [calls([("send", {}), ("write", {"n": 1})]), _results],
        drive=_resolved("signal", landed=False),
        agent={"on_unknown": "wait"},
    ),
    "unknown-stopped": Scenario(
        [call("send")], "stopped", _stopped_while_waiting, agent={"on_unknown": "wait"}
    ),
    "reconciled": Scenario([call("book", {"n": 1}), call("book", {"n": 0}), _results]),
    "stop-run": Scenario(
        [calls([("after", {"seconds": 30}), ("give_up", {})])],
        "stopped",
        agent={"tools": [after, tool(effect="read", name="give_up")(give_up.function)]},
    ),
    "turn-limit": Scenario(_ever_on, "turn_limit", agent={"limits": Limits(turns=2)}),
    "last-answer": Scenario(
        _ever_on, "turn_limit", agent={"limits": Limits(turns=2, on_limit="answer")}
    ),
    "token-limit": Scenario(_ever_on, "token_limit", agent={"limits": Limits(tokens=1)}),
    "time-limit-in-generation": Scenario(
        [text("Late.", delay=30)], "time_limit", agent={"limits": Limits(wall_seconds=0.5)}
    ),
    "time-limit-in-tool": Scenario(
        [call("after", {"seconds": 30})], "time_limit", agent={"limits": Limits(wall_seconds=0.5)}
    ),
    "error-limit": Scenario(
        [call("write", {"n": n}) for n in (-1, -2, -3)],
        "error_limit",
        agent={"limits": Limits(consecutive_errors=3)},
    ),
    "repetition": Scenario(
        [call("look_up", {"q": "a"})] * 3, "repetition", agent={"limits": Limits(repetition=2)}
    ),
    "stopped": Scenario([text("Late.", delay=30)], "stopped", _stopped),
    "stopped-by-signal": Scenario([text("Late.", delay=30)], "stopped", _stopped_by_signal),
    "cancelled": Scenario([call("after", {"seconds": 30})], "cancelled", _cancelled),
    "invalid-request": Scenario([], "invalid_request", _invalid),
    "unknown-agent": Scenario([], "unknown_agent", _unknown_agent),
    "model-rejected": Scenario([status(401)], "model_rejected"),
    "refused": Scenario([text("", stop_reason="refusal")], "refused"),
    "grown": Scenario(
        lambda x: text("Half an", stop_reason="max_tokens" if x.body["max_tokens"] < 65 else AUTO),
        agent={"max_output_tokens": 64},
    ),
    "truncated": Scenario(
        [text("Half an", stop_reason="max_tokens")],
        "truncated",
        agent={"max_output_tokens": 64},
    ),
    "nudged": Scenario(lambda x: text("An answer.") if "empty" in x.last_text else reply([])),
    "paused": Scenario([text("One moment.", stop_reason="pause_turn"), text("An answer.")]),
    "held": Scenario([call("after", {"seconds": 0.5}), text("Done.")], drive=_paused_and_resumed),
    "limits-raised": Scenario(
        [call("after", {"seconds": 30})],
        "time_limit",
        _raised,
        agent={"limits": Limits(wall_seconds=1)},
    ),
    "forked": Scenario(
        [call("look_up", {"q": "a"}), call("write", {"n": 1}), _results], drive=_forked
    ),
    "retried": Scenario(
        [call("look_up", {"q": "a"}), call("write", {"n": 1}), _results], drive=_retried
    ),
    "continued": Scenario(
        [*[call("look_up", {"q": c * 1_500}) for c in "abcde"], text("Done.")],
        agent={"tools": [look_up], "history": HISTORY},
    ),
    "summarised": Scenario(_pages(), agent=SMALL),
    "summarised-in-vain": Scenario(_pages(summary="Nothing."), agent=SMALL),
    "referred": Scenario(
        _pages(says="Noted.", size=4_000),
        agent={**SMALL, "model": ModelSpec(name="claude-sonnet-5-5", window=10_000)},
    ),
    "epochs-continued": Scenario(_pages(), agent={**SMALL, "history": HISTORY}),
    # Recorded before a run went on while its summary was being written.
    "summary-awaited": Scenario(_pages(delay=1), agent={**SMALL, "history": HISTORY}),
    "summary-not-awaited": Scenario(_pages(delay=1), agent={**SMALL, "history": HISTORY}),
    "window-full": Scenario(_pages(refused_from=4), "context_overflow", agent=SMALL),
    "conversation": Scenario(
        lambda x: text(f"re: {x.last_text}"), drive=_conversation, agent={"limits": BRIEF}
    ),
    "conversation-continued": Scenario(
        lambda x: text(f"re: {x.last_text} {prose(x.turn, 6_000)}"),
        drive=_conversation,
        agent={"limits": BRIEF, "history": HISTORY},
    ),
    "interrupted": Scenario(_interruptible, drive=_interrupted),
    "asked": Scenario(
        [
            calls([("ask_person", {"question": "Which?"}), ("sleep", {"seconds": 0.2})]),
            call("sleep", {"seconds": 0}),
            _results,
        ],
        drive=_asked,
        agent={"tools": [ask_person, sleep]},
    ),
    # Recorded before a run told, while it waits for a person, that its time was raised.
    "allowed": Scenario([call("pay", {"n": 1}), _results], drive=_allowed_later, agent=PAYS),
    "allowed-told": Scenario([call("pay", {"n": 1}), _results], drive=_allowed_later, agent=PAYS),
    "switched-off": Scenario([text("Hello.")], drive=_switched_off),
    "switched-off-told": Scenario([text("Hello.")], drive=_switched_off),
    "day-limit": Scenario([text("Hello.")], drive=_day_limit, agent=COUNTS),
    "day": Scenario([text("Hello.")], drive=_day, agent=COUNTS),
    "tool-off": Scenario([call("write", {"n": 1}), _results], drive=_tool_off),
    "switches": Scenario([call("write", {"n": 1}), _results], drive=_switches),
    "notices": Scenario([call("send"), status(401)], "model_rejected", agent={"webhook": UNHEARD}),
    "typed": Scenario(
        [call("look_up", {"q": "a"}), text("Three."), text('{"n": "3"}'), text('{"n": 3}')],
        agent={"output": COUNT},
    ),
    "typed-in-vain": Scenario(
        [text("Three.")] * 2, "invalid_output", agent={"output": COUNT, "output_retries": 1}
    ),
    # With ids made of what is told, which the former are not.
    "notices-by-content": Scenario(
        [call("send"), status(401)], "model_rejected", agent={"webhook": UNHEARD}
    ),
    "codec": Scenario([call("write", {"n": 1}), _results], codec=True),
}


async def record(client: Client, name: str, scenario: Scenario, folder: Path) -> list[str]:
    """Run a scenario and write the history of each of its executions; answers the files' names.

    Raises:
        AssertionError: it ended otherwise than it should.
    """
    if scenario.codec:
        settings = client.config()
        settings["data_converter"] = dataclasses.replace(
            client.data_converter, payload_codec=Masking()
        )
        client = Client(**settings)
    options: dict[str, Any] = {"tools": TOOLS, "settings": {"heartbeat_seconds": 1}}
    with tempfile.TemporaryDirectory() as artifacts:
        async with open_rig(
            client, Path(artifacts), scenario.script, **(options | dict(scenario.agent))
        ) as r:
            result = await scenario.drive(r)
            assert result.outcome == scenario.outcome, f"{name}: {result}"
            histories = await _executions(r.client, r.ids[-1])
    files = [name if len(histories) == 1 else f"{name}-{i}" for i in range(1, len(histories) + 1)]
    for file, history in zip(files, histories, strict=True):
        recorded = {"id": r.ids[-1], "history": _impersonal(json.loads(history))}
        text_ = json.dumps(recorded, separators=(",", ":"), sort_keys=True)
        (folder / f"{file}.json").write_text(text_ + "\n")
    return files


def _impersonal(value: Any) -> Any:
    """Without names and folders of the machine that recorded it; a replay reads neither."""
    if isinstance(value, list):
        return [_impersonal(v) for v in value]
    if not isinstance(value, dict):
        return value
    kept = {
        k: "recorder" if k == "identity" else _impersonal(v)
        for k, v in value.items()
        if k not in ("stackTrace", "binaryChecksum")
    }
    if kept.get("kind") == "TASK_QUEUE_KIND_STICKY":
        kept["name"] = "sticky"
    if isinstance(kept.get("data"), str) and "metadata" in kept:
        data = base64.b64decode(kept["data"])
        for folder in (ROOT, sys.prefix, sys.base_prefix, Path.home()):
            data = data.replace(str(folder).encode(), b"...")
        kept["data"] = base64.b64encode(data).decode()
    return kept


async def _executions(client: Client, workflow_id: str) -> list[str]:
    """The histories of a run as JSON, its first execution first."""
    found: list[str] = []
    run_id: str | None = None
    while run_id != "":
        handle: WorkflowHandle[Any, Any] = client.get_workflow_handle(workflow_id, run_id=run_id)
        history = await handle.fetch_history()
        found.insert(0, history.to_json())
        started = history.events[0].workflow_execution_started_event_attributes
        run_id = started.continued_execution_run_id
    return found


async def main(names: list[str]) -> None:
    """Record the named scenarios, or all."""
    logging.disable()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    HISTORIES.mkdir(exist_ok=True)
    if not names:
        for old in HISTORIES.glob("*.json"):
            old.unlink()
    with tempfile.TemporaryDirectory() as folder:
        server = await asyncio.to_thread(EmbeddedServer.start, Path(folder), port=0)
        try:
            client = (await AgentClient.connect(server.address)).client
            for name in names or SCENARIOS:
                files = await record(client, name, SCENARIOS[name], HISTORIES)
                sizes = sum((HISTORIES / f"{f}.json").stat().st_size for f in files)
                print(f"{name}: {len(files)} executions, {sizes} bytes")  # noqa: T201
        finally:
            await asyncio.to_thread(server.stop)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
