"""Every request is valid: thousands of random conversations against the strict rules."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from activities.providers import ModelRequest, ProviderError, ProviderReply
from activities.providers.admission import admit_reply
from activities.providers.anthropic_request import build_request
from activities.providers.anthropic_stream import EventReader, ReplyAssembly
from tests.conversations import TOOLS, conversation, features
from tests.rig import RigFactory
from tests.sizes import FULL
from turnkeeper import Agent, Limits, Tool, ToolContext, ToolFailed
from turnkeeper.contract import GenerateOutput, RunRequest
from turnkeeper.entries import message, result
from turnkeeper.state import Call, Phase, RunState
from turnkeeper.testing import Exchange, Reply
from turnkeeper.testing.provider.api import Api
from turnkeeper.testing.provider.http import HttpRequest
from turnkeeper.testing.provider.journal import Journal
from turnkeeper.testing.provider.models import Models
from turnkeeper.view import View
from workflows.agent_run import AgentRun
from workflows.pace import Pace

PURE_REQUESTS = 4_500 if FULL else 700
TURNS = 12
PATIENT = Limits(turns=1_000, consecutive_errors=100, repetition=100)
AGENT = Agent(
    name="tester",
    model="claude-sonnet-5-5",
    instructions="You are a test.",
    tools=TOOLS,
    limits=PATIENT,
)
KNOWN: dict[str, Tool] = {t.name: t for t in TOOLS}
HEADERS = {"x-api-key": "any", "anthropic-version": "2023-06-01"}


class Offline:
    """One run of the loop's own PARSE and RESUME, without Temporal and without a socket.

    What lies between them is done here, in the plainest way: the request goes to the provider's
    rules as bytes, and the calls are run one after the other, in an order of chance.
    """

    def __init__(self, seed: object, script: Callable[[Exchange], Reply]) -> None:
        self.api = Api(
            script,
            models=Models(None, 10**7),
            api_key=None,
            clock=lambda: 0.0,
            journal=Journal(None, fsync=False),
            log_bodies=False,
        )
        self.chosen = random.Random(f"order of {seed}")
        self.bodies: list[dict[str, Any]] = []
        self.view = View()
        self.loop = object.__new__(AgentRun)
        self.loop.pace = Pace.__new__(Pace)
        self.loop.state = RunState(
            request=RunRequest(agent="tester", prompt=f"{seed}"),
            key_base="k",
            started=0,
            spec=AGENT.spec(),
            pending=[message(f"conversation {seed}")],
        )

    @property
    def state(self) -> RunState:
        """The run's."""
        return self.loop.state

    def run(self) -> str | None:
        """Until the outcome."""
        while self.state.outcome is None:
            if self.state.phase == Phase.GENERATE:
                self.generate()
            elif self.state.phase == Phase.PARSE:
                self.loop._parse()
            elif self.state.phase == Phase.EXECUTE:
                self.execute()
            else:
                self.loop._resume()
        return self.state.outcome

    def generate(self) -> None:
        """Ask the provider; a request that breaks a rule fails the test."""
        state = self.state
        assert state.spec is not None
        self.view = self.view.up_to(state.base)
        self.view.extend(state.pending)
        body = build_request(
            ModelRequest(
                spec=state.spec,
                entries=self.view.entries,
                max_tokens=state.max_tokens or state.spec.model.max_output_tokens,
            )
        )
        data = json.dumps(body, ensure_ascii=False).encode()
        self.bodies.append(body)
        answer = self.api.answer(HttpRequest("POST", "/v1/messages", HEADERS, data))
        assert answer.status == 200, (answer.record.rule, answer.record.problem)
        admitted = admit_reply(
            _received(answer.pieces),
            turn=state.turn,
            known_ids=self.view.call_ids,
        )
        self.view.extend([admitted.entry])
        state.heard(
            GenerateOutput(
                entry=admitted.entry,
                stop_reason=admitted.stop_reason,
                stop_details=admitted.stop_details,
                usage=admitted.usage,
                refused_calls=admitted.refused_calls,
            )
        )

    def execute(self) -> None:
        """Start what may start, end one of what runs, again until all are done."""
        running: list[Call] = []
        while ready := self.state.startable() or running:
            if ready is not running:
                for started in ready:
                    started.status = "running"
                running += ready
            ended = running.pop(self.chosen.randrange(len(running)))
            ended.finish(*_carried_out(ended))
        self.state.phase = Phase.RESUME


def _received(pieces: list[bytes]) -> ProviderReply:
    reader, assembly = EventReader(), ReplyAssembly(_no_error)
    for name, data in reader.feed(b"".join(pieces)):
        assembly.take(name, data)
    return assembly.reply(None)


def _no_error(event: Any) -> ProviderError:
    raise AssertionError(event)


def _carried_out(made: Call) -> tuple[Any, Any]:
    used = KNOWN[made.tool]
    try:
        returned = used.function(**used.bind(made.arguments, ToolContext()))
    except (ToolFailed, ValueError) as error:
        return "error", result(made.call_id, made.tool, str(error), error=True)
    return "ok", result(made.call_id, made.tool, returned)


def offline(requests: int) -> Counter[str]:
    """Conversations until `requests` requests were made and accepted; counts of their features."""
    found: Counter[str] = Counter()
    seed = 0
    while found["requests"] < requests:
        one = Offline(seed, conversation(seed, TURNS))
        assert one.run() == "completed", (seed, one.state.reason)
        found += features(one.bodies)
        seed += 1
    return found


def assert_varied(found: Counter[str]) -> None:
    """What the rules are about occurs often enough to be tested."""
    for feature in ("parallel calls", "tool errors", "thinking", "unknown blocks"):
        assert found[feature] >= found["requests"] / 10, (feature, found)
    for feature in ("redacted thinking", "text beside calls", "grown", "paused", "nudged"):
        assert found[feature] >= found["requests"] / 100, (feature, found)


def test_thousands_of_requests_break_no_rule() -> None:
    """Whatever model and tools do, the next request keeps all rules of the Messages API."""
    found = offline(PURE_REQUESTS)
    print(dict(found))  # noqa: T201 - shown with -s
    assert_varied(found)


async def test_requests_over_http_break_no_rule(rig: RigFactory) -> None:
    """The same through Temporal, the real activities and HTTP."""
    scripts = {
        f"conversation {seed}": conversation(seed, TURNS)
        for seed in range(1_000, 1_008 if FULL else 1_004)
    }

    def script(x: Exchange) -> Reply:
        answered: Reply = scripts[x.prompt.split("\n")[0]](x)
        return answered

    async with rig(
        script, tools=TOOLS, limits=PATIENT, provider={"window": 10**7, "log_bodies": True}
    ) as r:
        results = await asyncio.gather(*(r.run(prompt) for prompt in scripts))
        assert Counter(x.outcome for x in results) == {"completed": len(scripts)}
        found = features(record.body for record in r.provider.requests)
        print(dict(found))  # noqa: T201 - shown with -s
        assert r.provider.rejections == {}
        assert found["requests"] >= (130 if FULL else 60)
        assert_varied(found)
        assert await r.task_failures() == 0


def test_the_check_sees_a_result_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: with one result dropped the very same check fails, and by the right rule."""
    whole = RunState.take_results

    def lossy(self: RunState) -> None:
        whole(self)
        if len(self.pending) > 1:
            del self.pending[-1]

    monkeypatch.setattr(RunState, "take_results", lossy)
    with pytest.raises(AssertionError, match="tool_uses_answered"):
        offline(PURE_REQUESTS)


async def test_the_product_itself_never_sends_an_unanswered_call(
    rig: RigFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug that loses a result ends the run by name; the provider never sees the request."""
    whole = RunState.take_results

    def lossy(self: RunState) -> None:
        whole(self)
        del self.pending[-1:]

    monkeypatch.setattr(RunState, "take_results", lossy)
    async with rig(conversation(3, 3), tools=TOOLS, limits=PATIENT) as r:
        assert (await r.run()).outcome == "state_lost"
        assert r.provider.rejections == {}
