"""`rehearse`: an agent's cycle in one process, as an author's unit test sees it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import starter
from tests.pages import code
from turnkeeper import (
    Agent,
    ApprovalPolicy,
    Limits,
    RetryTool,
    StopRun,
    ToolContext,
    ToolFailed,
    ask_person,
    tool,
)
from turnkeeper.testing import (
    Exchange,
    NeedsRun,
    Reply,
    Script,
    call,
    calls,
    cut,
    rehearse,
    status,
    text,
)


@tool(effect="read")
def forecast(city: str, days: int = 1) -> str:
    """The weather forecast of a city."""
    if city != "Paris":
        raise ToolFailed("Try Paris.")
    return f"{city}: sunny for {days} days"


@tool(effect="idempotent", approval=lambda args: args["amount"] > 100 and "it is much")
async def refund(amount: int, ctx: ToolContext) -> dict[str, Any]:
    """Refund."""
    return {"refunded": amount, "for": ctx.principal, "key": bool(ctx.idempotency_key)}


@tool(effect="idempotent", retries=2)
def flaky(succeeds_at: int, ctx: ToolContext) -> str:
    """Try."""
    if ctx.attempt < succeeds_at:
        raise RetryTool("busy")
    return f"attempt {ctx.attempt}"


@tool(effect="once")
def halt() -> str:
    """End the run."""
    raise StopRun("enough")


@tool(effect="once")
def broken() -> str:
    """Raise what no tool should."""
    raise ZeroDivisionError("a bug")


@tool(effect="read")
def tell_run(ctx: ToolContext) -> str:
    """Tell the run's id."""
    return ctx.workflow_id


def agent(**options: Any) -> Agent:
    """An agent with all the tools."""
    tools = [forecast, refund, flaky, halt, broken, ask_person, tell_run]
    return Agent(name="a", model="m", instructions="Do.", tools=tools, **options)


def last(exchange: Exchange) -> Reply:
    """Answer with what the tools have returned."""
    return text(" | ".join(r.text for r in exchange.last_results))


def test_an_answer_is_made_of_what_the_tools_return() -> None:
    """Calls, results and requests can be looked at, with the schema that the model sees."""
    played = rehearse(agent(), [call("forecast", {"city": "Paris"}), last], "Rain?")
    assert (played.outcome, played.answer) == ("completed", "Paris: sunny for 1 days")
    (made,) = played.calls
    assert (made.turn, made.tool, made.outcome) == (1, "forecast", "ok")
    first, second = played.requests
    assert first["messages"] == [{"role": "user", "content": [{"type": "text", "text": "Rain?"}]}]
    assert first["tools"][0]["input_schema"]["required"] == ["city"]
    assert [m["role"] for m in second["messages"]] == ["user", "assistant", "user"]


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (call("forecast", {"town": "Paris"}), "Invalid arguments for forecast"),
        (call("forecast", {"city": "Rome"}), "Try Paris."),
        (call("forcast"), "There is no tool 'forcast'"),
        (call("flaky", {"succeeds_at": 9}), "Tool flaky failed after 3 attempts: busy"),
    ],
)
def test_what_goes_wrong_is_told_to_the_model(reply: Reply, told: str) -> None:
    """As in a run: the model reads it, and the run goes on."""
    played = rehearse(agent(), [reply, last])
    assert [c.outcome for c in played.calls] == ["error"]
    assert told in played.answer
    assert played.requests[1]["messages"][-1]["content"][0]["is_error"] is True


def test_a_tool_that_asks_for_another_attempt_has_it_at_once() -> None:
    """With the number of the attempt, and without a wait."""
    assert rehearse(agent(), [call("flaky", {"succeeds_at": 3}), last]).answer == "attempt 3"


def test_each_rehearsal_has_keys_of_its_own_unless_it_is_a_repeat() -> None:
    """A tool that does a thing once per key does it in every rehearsal; a `request_key` plays a run
    that is started again, whose keys are those of an `id`."""

    def key_and_run(**options: Any) -> tuple[str, str]:
        (made,) = rehearse(agent(), [call("tell_run"), last], **options).calls
        return made.key, made.result

    first, second = key_and_run(), key_and_run()
    assert first[0] != second[0]
    assert first[1] != second[1]
    again = {"request_key": "q-17"}
    assert key_and_run(**again) == key_and_run(**again)
    assert key_and_run(**again, id="a-1")[0] != key_and_run(**again, id="a-2")[0]
    assert key_and_run(id="a-1")[0] != key_and_run(id="a-1")[0]
    assert key_and_run(id="a-1")[1] == "a-1"


def test_a_person_allows_or_denies_what_the_tool_asks_for() -> None:
    """The predicate sees the arguments; what needs no word is not asked for."""
    seen: list[Mapping[str, Any]] = []

    def allow(name: str, arguments: Mapping[str, Any]) -> bool:
        seen.append(arguments)
        return bool(arguments["amount"] < 1000)

    amounts = [5, 500, 5000]
    script: Script = [*(call("refund", {"amount": a}) for a in amounts), last]
    played = rehearse(agent(), script, allow=allow, metadata={"principal": "ann"})
    assert seen == [{"amount": 500}, {"amount": 5000}]
    assert [(c.outcome, c.asked) for c in played.calls] == [
        ("ok", ""),
        ("ok", "it is much"),
        ("denied", "it is much"),
    ]
    assert played.calls[0].result == '{"refunded":5,"for":"ann","key":true}'


def test_a_denied_call_keeps_those_behind_it_from_being_run() -> None:
    """Mutating ones, as in a run; a read is made."""
    asked = calls([("refund", {"amount": 500}), ("refund", {"amount": 5}), ("forecast", {})])
    played = rehearse(agent(), [asked, last], allow=False)
    assert [c.outcome for c in played.calls] == ["denied", "not_run", "error"]


def test_what_the_agents_policy_denies_is_not_run() -> None:
    """Nobody is asked."""
    denying = agent(approvals=ApprovalPolicy(tools={"forecast": "always"}))
    script: Script = [calls([("halt", {}), ("forecast", {"city": "Paris"})]), last]
    played = rehearse(denying, script, allow=True)
    assert [c.outcome for c in played.calls] == ["denied", "ok"]


def test_limits_and_stops_end_it_as_they_end_a_run() -> None:
    """The outcome is named, with its reason."""
    looping = rehearse(agent(limits=Limits(turns=2)), [call("forecast", {"city": "Paris"})] * 2)
    assert (looping.outcome, looping.reason) == ("turn_limit", "2 of 2 turns used")
    last_word = rehearse(
        agent(limits=Limits(turns=1, on_limit="answer")),
        [call("forecast", {"city": "Paris"}), text("So far.")],
    )
    assert (last_word.outcome, last_word.answer) == ("turn_limit", "So far.")
    assert last_word.requests[-1]["tools"] == []
    halted = rehearse(agent(), [calls([("halt", {}), ("refund", {"amount": 1})])])
    assert (halted.outcome, halted.reason) == ("stopped", "enough")
    assert [c.outcome for c in halted.calls] == ["ok", "not_run"]


def test_a_bug_of_a_tool_fails_the_test() -> None:
    """The author sees the traceback, where a model would read that the tool failed."""
    with pytest.raises(ZeroDivisionError, match="a bug"):
        rehearse(agent(), [call("broken")])


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ([call("ask_person", {"question": "Which?"})], "ask_person waits for a person"),
        ([call("recall", {"query": "x"})], "recall is a built-in tool"),
        ([call("refund", {"amount": 500})], r"refund needs a person's word \(it is much\)"),
        ([status(529)], "HTTP status 529"),
        ([cut(text("Done."), at=0.5)], "a fault"),
        ([], "the script has no step for turn 0"),
        ([text("")], "no text and no tool call"),
    ],
)
def test_what_only_a_run_has_is_named(script: list[Reply], told: str) -> None:
    """Nothing is made up: it is told that a run is needed, and for what."""
    with pytest.raises(NeedsRun, match=told):
        rehearse(agent(), script)


@pytest.mark.parametrize(
    ("test", "module", "source"),
    [
        (("README.md", "def test_the_forecast"), "weather", ("README.md", 'name="weather"')),
        (("docs/own-repository.md", "def test_the_stock"), "kettles", None),
        (
            ("docs/own-repository.md", "def test_a_large_refund"),
            "refunds",
            ("docs/tools.md", "approval=is_large"),
        ),
    ],
)
def test_the_tests_on_the_pages_pass(
    test: tuple[str, str],
    module: str,
    source: tuple[str, str] | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As they stand there, with an agent of a page; or as `starter.py new` writes them both."""
    page, words = test
    shown = code(page, "python", words)
    if source is not None:
        (tmp_path / f"{module}.py").write_text(code(source[0], "python", source[1]))
    else:
        assert starter.main(["new", module, "--folder", str(tmp_path)]) == 0
        written = (tmp_path / f"test_{module}.py").read_text()
        assert shown[shown.index(words) :] in written
    monkeypatch.syspath_prepend(tmp_path)
    found: dict[str, Any] = {}
    exec(shown, found)  # noqa: S102 - our own page
    (run,) = [made for name, made in found.items() if name.startswith("test_")]
    run()
    for name in (module, f"{module}_script"):
        sys.modules.pop(name, None)


def test_the_script_of_the_readme_plays_the_model() -> None:
    """What is saved as `weather_script.py`: the test's first line, and that of the script."""
    first, *lines = code("README.md", "python", "def test_the_forecast").splitlines()
    (script,) = [line.strip() for line in lines if line.strip().startswith("script =")]
    found: dict[str, Any] = {}
    for module in (f"{first}\n{script}", code("README.md", "python", 'name="weather"')):
        exec(module, found)  # noqa: S102 - our own page
    played = rehearse(found["agent"], found["script"], "Will it rain in Paris?")
    assert played.answer == "Paris: sunny for 1 days"
