"""An agent's cycle in one process: a unit test of its tools, with no server and no worker.

    def test_the_forecast_is_looked_up():
        script = [call("forecast", {"city": "Paris"}), lambda seen: text(seen.last_results[0].text)]
        played = rehearse(agent, script, "Will it rain in Paris?")
        assert played.answer == "Paris: sunny for 1 days"
        assert [c.tool for c in played.calls] == ["forecast"]

PARSE and RESUME are those of a run, with its limits; arguments are validated, approvals asked for
and results told to the model as a worker does it. What only a run has is missing: crashes, time,
retries with a delay, artifacts, the built-in tools, summaries, messages. A call that needs one of
them raises `NeedsRun`.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import to_json

from turnkeeper.agent import Agent
from turnkeeper.approvals import why_of
from turnkeeper.contract import (
    ApproveRequest,
    Asks,
    Checked,
    DenyRequest,
    GenerateOutput,
    RunRequest,
)
from turnkeeper.entries import Entry, admit, digest_of, message, result
from turnkeeper.errors import RetryTool, StopRun, ToolFailed, TurnkeeperError
from turnkeeper.media import Media
from turnkeeper.output_type import Unfit
from turnkeeper.parse import Decision, parse
from turnkeeper.returned import BYTES, text_of
from turnkeeper.spec import warier
from turnkeeper.state import Call, RunState, key_base
from turnkeeper.testing.provider.replies import Block, HttpReply, MessageReply, call_id
from turnkeeper.testing.provider.script import Exchange, Script, answer
from turnkeeper.text import clip_json
from turnkeeper.tools import Tool, ToolContext

__all__ = ["NeedsRun", "Rehearsal", "RehearsedCall", "rehearse"]

_DIALECT = "anthropic-messages"
_ENDS = {Decision.REFUSED: "refused", Decision.TRUNCATED: "truncated"}

Allow = bool | Callable[[str, Mapping[str, Any]], bool]
"""A person's word on the calls that need one: the same for all, or by tool and arguments."""


class NeedsRun(TurnkeeperError):
    """Raised by a rehearsal that comes to what only a run on a server has; says what that is."""


@dataclass(frozen=True)
class RehearsedCall:
    """A tool call, and what became of it."""

    turn: int
    tool: str
    arguments: Mapping[str, Any]
    """As the model wrote them."""
    outcome: str
    """`ok`, `error`, `denied` or `not_run`."""
    result: str
    """What the model reads."""
    asked: str = ""
    """Why a person was asked to allow it; empty if nobody was."""
    key: str = ""
    """The idempotency key that the tool had."""


@dataclass
class Rehearsal:
    """What a rehearsal came to."""

    outcome: str = ""
    """As of a run: `completed`, `turn_limit`, `stopped`, ..."""
    answer: str = ""
    output: Any = None
    """The answer as JSON, as the agent's `output` reads it."""
    reason: str | None = None
    calls: list[RehearsedCall] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    """What the model was sent, turn by turn: `system`, `tools` and `messages`."""


def rehearse(
    agent: Agent,
    script: Script,
    prompt: str = "question",
    *,
    allow: Allow | None = None,
    metadata: Mapping[str, str] | None = None,
    request_key: str | None = None,
    id: str | None = None,  # noqa: A002 - as in `AgentClient.start`
) -> Rehearsal:
    """Play `agent` against a model that plays `script`.

    What a tool raises, other than `ToolFailed`, `RetryTool` and `StopRun`, is raised here: in a run
    the model would read that the tool failed, in a test the traceback says more. It runs an event
    loop of its own; in a coroutine, `await asyncio.to_thread(rehearse, ...)`.

    Each call is a run of its own, and so are the idempotency keys of its tools. With a
    `request_key` they are those of any other call with the same `request_key` and `id`, as of a run
    that is started again.

    Args:
        agent: what is rehearsed.
        script: what the model replies, as for `ScriptedProvider`.
        prompt: the task.
        allow: what a person says to calls that need one to allow them.
        metadata: of the start request, for tools.
        request_key: names the piece of work, to play a repeat of it.
        id: what tools see as the run's id; random, unless there is a `request_key`.

    Raises:
        NeedsRun: a call or reply that only a run can serve, or `allow` is needed and not given.
    """
    request = RunRequest(
        agent=agent.name, prompt=prompt, metadata=dict(metadata or {}), request_key=request_key
    )
    run = id or ("rehearsal" if request_key else f"rehearsal-{uuid.uuid4().hex}")
    return asyncio.run(_Play(agent, script, request, allow, run).play())


class _Play:
    def __init__(
        self,
        agent: Agent,
        script: Script,
        request: RunRequest,
        allow: Allow | None,
        run: str,
    ) -> None:
        self._agent = agent
        self._script = script
        self._allow = allow
        self._run_id = run
        self._said: list[Entry] = []
        self._bound: dict[int, tuple[dict[str, Any], ToolContext]] = {}
        self._asked: dict[int, str] = {}
        self._state = RunState(
            request=request,
            key_base=key_base(run, request.request_key or uuid.uuid4().hex),
            started=0,
            spec=agent.spec(),
            pending=[message(request.prompt)],
        )
        self._rehearsal = Rehearsal()

    async def play(self) -> Rehearsal:
        state = self._state
        while state.outcome is None:
            self._generate()
            self._parse()
            if state.outcome is None:
                await self._execute()
                self._rehearsal.calls += [self._seen(c) for c in state.calls]
            if state.outcome is None:
                self._resume()
        played = self._rehearsal
        played.outcome, played.answer, played.reason = state.outcome, state.text, state.reason
        played.output = None if state.typed.value is None else json.loads(state.typed.value)
        return played

    # --- GENERATE -------------------------------------------------------------------------------

    def _generate(self) -> None:
        state = self._state
        self._said += state.pending
        body = self._body()
        self._rehearsal.requests.append(body)
        exchange = Exchange(body=body, headers={}, repeat=0, arrival=len(self._rehearsal.requests))
        reply = answer(self._script, exchange)
        if isinstance(reply, HttpReply):
            raise NeedsRun(f"the script answers with HTTP status {reply.status}: {reply.content!r}")
        if not isinstance(reply, MessageReply) or reply.cut or reply.edits or reply.plain:
            raise NeedsRun(f"the script answers with a fault ({reply.kind}): play it in a run")
        content = [_block(b, call_id(exchange.turn, i)) for i, b in _numbered(reply.blocks)]
        entry = admit("reply", {"role": "assistant", "content": content}, dialect=_DIALECT)
        self._said.append(entry)
        state.heard(
            GenerateOutput(
                entry=entry,
                stop_reason=reply.actual_stop_reason,
                stop_details=reply.stop_details,
            )
        )

    def _body(self) -> dict[str, Any]:
        spec = self._agent.spec()
        tools = [
            {"name": t.name, "description": t.description, "input_schema": t.input_schema}
            for t in spec.tools
        ]
        return {
            "model": spec.model.name,
            "system": spec.instructions,
            "tools": [] if self._state.closing else tools,
            "messages": _messages(self._said),
        }

    # --- PARSE ----------------------------------------------------------------------------------

    def _parse(self) -> None:
        state = self._state
        assert state.reply is not None
        parsed = parse(state.reply, can_grow=False)
        state.text = parsed.text or state.text
        if parsed.decision == Decision.ANSWER:
            state.typed.checked = self._checked(parsed.text)
        state.note(parsed)
        state.keep_reply()
        if state.closing:
            state.end(state.closing, state.typed.why(state.reason))
        elif parsed.decision == Decision.CALLS:
            state.propose(parsed.calls)
        elif parsed.decision == Decision.ANSWER:
            if not state.correct():
                state.end("completed")
        elif end := _ENDS.get(parsed.decision):
            state.end(end, parsed.reason)
        else:
            raise NeedsRun(f"the reply is none to rehearse: {parsed.reason or parsed.decision}")

    def _checked(self, text: str) -> Checked | None:
        if self._agent.output is None:
            return None
        try:
            return Checked(value=self._agent.output.canonical(text))
        except Unfit as unfit:
            return Checked(problems=list(unfit.problems))

    # --- EXECUTE --------------------------------------------------------------------------------

    async def _execute(self) -> None:
        state = self._state
        self._bound, self._asked = {}, {}
        for call in state.calls:
            if call.tool in state.pinned.built_in():
                raise NeedsRun(f"{call.tool} is a built-in tool: a worker serves it, in a run")
            if call.status == "proposed":
                await self._ask(call)
        while state.outcome is None and (ready := state.startable()):
            await self._run(ready[0])

    async def _ask(self, call: Call) -> None:
        """Read its arguments, and have a person allow it where that is needed."""
        state, tool = self._state, self._agent.tools[call.tool]
        if tool.spec.awaits is not None:
            raise NeedsRun(f"{call.tool} waits for a person or a time: that takes a run")
        context = ToolContext(
            idempotency_key=call.key,
            tool=call.tool,
            agent=self._agent.name,
            turn=state.turn,
            call_id=call.call_id,
            workflow_id=self._run_id,
            metadata=state.request.metadata,
        )
        try:
            bound = tool.bind(call.arguments, context)
        except ValueError as error:
            call.refuse(str(error))
            return
        self._bound[call.index] = bound, context
        known = {name: v for name, v in bound.items() if name != tool.context_parameter}
        if why := await self._why(call, tool, known):
            self._asked[call.index] = why
            self._decide(call, tool, context, known, why)

    async def _why(self, call: Call, tool: Tool, known: Mapping[str, Any]) -> str:
        """Why a person has to allow it; empty if nobody has to."""
        must = self._state.must_ask(call)
        level = "never" if must == "deny" else warier(must, tool.spec.approval)
        if level != "asks" or tool.wants_approval is None:
            return "" if level == "never" else "each call of it is asked for"
        wanted = tool.wants_approval(known)
        if inspect.isawaitable(wanted):
            wanted = await wanted
        return why_of(wanted)

    def _decide(
        self, call: Call, tool: Tool, context: ToolContext, known: Mapping[str, Any], why: str
    ) -> None:
        state = self._state
        if self._allow is None:
            raise NeedsRun(f"{call.tool} needs a person's word ({why}): give allow=True, or False")
        allowed = self._allow if isinstance(self._allow, bool) else self._allow(call.tool, known)
        asks = Asks(
            digest=digest_of([tool.definition_digest, context.arguments_digest]),
            definition=tool.definition_digest,
            arguments=to_json(known, fallback=str).decode("utf-8", "replace"),
            why=why,
        )
        effect = tool.spec.effect
        state.approvals.ask(call, asks, turn=state.turn, effect=effect, now=0, seconds=1)
        said = ApproveRequest if allowed else DenyRequest
        state.approvals.take(said(approval=call.approval))
        state.approvals.apply(state.calls)

    async def _run(self, call: Call) -> None:
        tool = self._agent.tools[call.tool]
        bound, context = self._bound[call.index]
        limit = self._state.result_bytes()
        try:
            value = await self._tried(tool, bound, context)
        except ToolFailed as error:
            call.finish("error", clip_json(str(error) or "The tool failed.", limit))
        except StopRun as error:
            told = f"The run ends: {error}"
            call.finish("ok", result(call.call_id, call.tool, clip_json(told, limit)))
            self._state.end("stopped", str(error))
        except RetryTool as error:
            attempts = f"{context.attempt} attempt{'s' if context.attempt > 1 else ''}"
            call.finish("error", f"Tool {call.tool} failed after {attempts}: {error}")
        else:
            call.finish("ok", result(call.call_id, call.tool, clip_json(_told(value), limit)))

    async def _tried(self, tool: Tool, bound: dict[str, Any], context: ToolContext) -> Any:
        """As often as the tool may be begun, at once: a test does not wait."""
        while True:
            try:
                if tool.is_async:
                    async with asyncio.timeout(tool.spec.timeout):
                        return await tool.function(**bound)
                return await asyncio.to_thread(tool.function, **bound)
            except RetryTool:
                if context.attempt >= tool.spec.attempts:
                    raise
                context.attempt += 1

    # --- RESUME ---------------------------------------------------------------------------------

    def _resume(self) -> None:
        state = self._state
        invalid = any(c.invalid for c in state.calls)
        state.take_results()
        if invalid and state.pinned.on_invalid_call == "stop":
            state.end("stopped", "policy: an invalid call")
        else:
            state.go_on()

    def _seen(self, call: Call) -> RehearsedCall:
        return RehearsedCall(
            turn=self._state.turn,
            tool=call.tool,
            arguments=call.arguments,
            outcome=call.outcome or "not_run",
            result=call.entry.value["text"] if call.entry else "",
            asked=self._asked.get(call.index, ""),
            key=call.key,
        )


def _numbered(blocks: Sequence[Block]) -> list[tuple[int, Block]]:
    """Each with the number of tool calls before it."""
    uses = [b.data.get("type") == "tool_use" for b in blocks]
    return [(sum(uses[:i]), b) for i, b in enumerate(blocks)]


def _block(block: Block, call: str) -> dict[str, Any]:
    if block.raw_input is not None:
        raise NeedsRun("the script sends arguments as raw text: play it in a run")
    filled = {"id": call, "signature": "rehearsed", "data": "rehearsed"}
    return {name: filled.get(name) if v is None else v for name, v in block.data.items()}


def _told(value: Any) -> str:
    """What the model reads; in place of an image or a file, what it is."""
    items = value if isinstance(value, (list, tuple)) else [value]
    if not any(isinstance(i, (Media, *BYTES)) for i in items):
        return text_of(value)
    return "\n".join(_named(i) for i in items)


def _named(item: Any) -> str:
    if isinstance(item, Media):
        return f"[{item.media_type or 'file'}, {len(item.data)} bytes]"
    return f"[{len(item)} bytes]" if isinstance(item, BYTES) else text_of(item)


def _messages(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """As the provider is sent them: results first, then texts, between two replies."""
    messages: list[dict[str, Any]] = []
    for entry in entries:
        if entry.kind == "reply":
            messages.append(entry.value)
            continue
        block = _text(entry) if entry.kind == "message" else _result(entry)
        if not messages or messages[-1]["role"] != "user":
            messages.append({"role": "user", "content": []})
        messages[-1]["content"].append(block)
    return messages


def _text(entry: Entry) -> dict[str, Any]:
    return {"type": "text", "text": entry.value["text"]}


def _result(entry: Entry) -> dict[str, Any]:
    failed = {"is_error": True} if entry.value.get("error") else {}
    said = {"tool_use_id": entry.value["call_id"], "content": entry.value["text"]}
    return {"type": "tool_result", **said, **failed}
