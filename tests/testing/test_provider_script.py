"""How a script is followed, and what it is told."""

from __future__ import annotations

import threading
import time
from typing import Any

import httpx2
import pytest

import turnkeeper.testing
import turnkeeper.testing.provider
from turnkeeper.epoch import SUMMARISE, problem_of_summary
from turnkeeper.testing import (
    Exchange,
    Reply,
    Result,
    ScriptedProvider,
    call,
    call_id,
    calls,
    status,
    summary,
    text,
)

Json = dict[str, Any]

PROMPT: Json = {"role": "user", "content": "What was revenue?"}


def ask(provider: ScriptedProvider, *messages: Json, **fields: Any) -> httpx2.Response:
    """Send a request."""
    return httpx2.post(
        f"{provider.url}/v1/messages",
        json={"model": "m", "max_tokens": 10, "messages": list(messages) or [PROMPT], **fields},
        headers={"authorization": "Bearer secret", "anthropic-version": "2026-10-21"},
    )


def said(answer: httpx2.Response) -> str:
    """The text of a reply."""
    assert answer.status_code == 200, answer.text
    value: str = answer.json()["content"][0]["text"]
    return value


def later(*texts: str) -> list[Json]:
    """A conversation in which the assistant has said these texts."""
    messages = [PROMPT]
    for value in texts:
        messages += [{"role": "assistant", "content": value}, {"role": "user", "content": "Go on."}]
    return messages


def test_step_by_turn() -> None:
    """The step is chosen by the number of assistant messages, whatever was asked before, so a
    request that is sent again gets the same reply."""
    with ScriptedProvider([text("zero"), text("one"), text("two")]) as provider:
        assert said(ask(provider, *later("a", "b"))) == "two"
        assert said(ask(provider)) == "zero"
        assert said(ask(provider, *later("a"))) == "one"
        assert said(ask(provider, *later("a"))) == "one"


def test_alternatives_by_repeat() -> None:
    """A list of alternatives is gone through as the identical request is repeated, and its last
    one stays; another request starts from the first."""
    with ScriptedProvider([[status(529), status(503), text("ok")]]) as provider:
        codes = [ask(provider).status_code for _ in range(4)]
        assert codes == [529, 503, 200, 200]
        assert ask(provider, max_tokens=11).status_code == 529


def test_computed_steps() -> None:
    """A step, an alternative, and a whole script may be functions of the exchange."""

    def echo(exchange: Exchange) -> Reply:
        return text(f"{exchange.turn} {exchange.repeat} {exchange.arrival}")

    with ScriptedProvider([echo, [status(529), echo]]) as provider:
        assert said(ask(provider)) == "0 0 1"
        ask(provider, *later("a"))
        assert said(ask(provider, *later("a"))) == "1 1 3"
    with ScriptedProvider(echo) as provider:
        assert said(ask(provider, *later("a", "b", "c"))) == "3 0 1"


def test_exchange() -> None:
    """A script sees prompt, tools, last texts and results, stream and headers, but no
    credentials."""
    seen: list[Exchange] = []

    def script(exchange: Exchange) -> Reply:
        seen.append(exchange)
        return text("ok")

    results = [
        {"type": "tool_result", "tool_use_id": "a", "content": "42"},
        {
            "type": "tool_result",
            "tool_use_id": "b",
            "content": [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}],
            "is_error": True,
        },
        {"type": "tool_result", "tool_use_id": "c"},
    ]
    uses = [{"type": "tool_use", "id": id_, "name": "t", "input": {}} for id_ in "abc"]
    with ScriptedProvider(script) as provider:
        ask(
            provider,
            PROMPT,
            {"role": "assistant", "content": uses},
            {"role": "user", "content": results},
            tools=[{"name": "t", "input_schema": {"type": "object"}}],
            metadata={"user_id": "u"},
        )
        ask(provider, PROMPT, {"role": "assistant", "content": "Yes?"}, PROMPT | {"content": "No."})
    first, second = seen
    assert first.prompt == first.last_text == "What was revenue?"
    assert first.tools == ["t"]
    assert first.last_results == [
        Result("a", "42", False),
        Result("b", "x\ny", True),
        Result("c", "", False),
    ]
    assert first.body["metadata"] == {"user_id": "u"}
    assert not first.stream
    assert first.headers["anthropic-version"] == "2026-10-21"
    assert not [name for name, value in first.headers.items() if "secret" in value]
    assert (second.last_text, second.last_results) == ("No.", [])


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ([text("x")], "no step for turn 1 (it has 1"),
        (lambda exchange: exchange.nothing, "AttributeError"),
        ([text("x"), lambda _: "a string"], "gave str for turn 1, not a Reply"),
        ([text("x"), []], "IndexError"),
    ],
)
def test_broken_script(script: Any, says: str) -> None:
    """A script without a step for the turn, or that fails, is answered 500 and says why; the
    provider goes on."""
    with ScriptedProvider(script) as provider:
        for _ in range(2):
            answer = ask(provider, *later("a"))
            assert answer.status_code == 500
            assert says in answer.json()["error"]["message"]


def test_call_ids() -> None:
    """Call ids follow from turn and index, are the same for a repeated request, and stay unique if
    the conversation already has them."""
    with ScriptedProvider(lambda _: calls([("t", {}), call("t", id="own"), ("t", {})])) as provider:
        messages = [PROMPT]
        ids = [block["id"] for block in ask(provider, *messages).json()["content"]]
        assert ids == [call_id(0, 0), "own", call_id(0, 2)]
        assert ids == [block["id"] for block in ask(provider, *messages).json()["content"]]
        taken: Json = {"type": "tool_use", "id": call_id(1, 0), "name": "t", "input": {}}
        answered = {"type": "tool_result", "tool_use_id": call_id(1, 0)}
        messages += [
            {"role": "assistant", "content": [taken]},
            {"role": "user", "content": [answered]},
        ]
        later_ids = [block["id"] for block in ask(provider, *messages).json()["content"]]
        assert later_ids == [f"{call_id(1, 0)}_1", "own", call_id(1, 2)]


async def test_caller_may_be_busy() -> None:
    """The provider answers while the caller's event loop is blocked."""
    async with ScriptedProvider([text("ok")]) as provider:
        answers: list[str] = []
        thread = threading.Thread(target=lambda: answers.append(said(ask(provider))))
        thread.start()
        deadline = time.monotonic() + 5
        while not answers and time.monotonic() < deadline:
            time.sleep(0.01)  # noqa: ASYNC251 - blocking the loop is what is tested
        thread.join()
    assert answers == ["ok"]


def test_loopback_only() -> None:
    """The provider cannot be bound to an address that others can reach."""
    with pytest.raises(ValueError, match="loopback only"):
        ScriptedProvider([], host="0.0.0.0")  # noqa: S104 - that it is refused


def test_port_taken() -> None:
    """A port that is in use is an OSError for the caller."""
    with ScriptedProvider([]) as provider, pytest.raises(OSError, match="in use"):
        ScriptedProvider([], port=provider.port).start()


def test_stop_ends_waiting_replies() -> None:
    """Stopping does not wait for replies that are delayed, and may be done twice."""
    provider = ScriptedProvider([text("x", delay=60)]).start()
    failures: list[Exception] = []

    def wait() -> None:
        try:
            ask(provider)
        except httpx2.HTTPError as error:
            failures.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    while not provider.requests:
        time.sleep(0.01)
    started = time.monotonic()
    provider.stop()
    provider.stop()
    thread.join(30)
    assert time.monotonic() - started < 20
    assert len(failures) == 1
    assert provider.requests[0].outcome == "stopped"


def test_a_run_asks_for_a_summary_of_itself() -> None:
    """A script sees that it is no turn, and how to answer it: the run takes what `summary` says."""
    wants: list[bool] = []

    def script(exchange: Exchange) -> Reply:
        wants.append(exchange.wants_summary)
        return summary("Read on.")

    asked = {"role": "user", "content": SUMMARISE.format(words=1_000)}
    with ScriptedProvider(script) as provider:
        ask(provider)
        reply = {"role": "assistant", "content": "It was 3."}
        answered = said(ask(provider, PROMPT, reply, asked))
    assert wants == [False, True]
    assert problem_of_summary(answered, 200) is None


def test_window() -> None:
    """`window` sets every model's window, listed or not."""
    with ScriptedProvider([text("x")], window=50) as provider:
        assert ask(provider, max_tokens=10).status_code == 200
        refused = ask(provider, max_tokens=45, model="another")
        assert "> 50 maximum" in refused.json()["error"]["message"]


def test_public_names() -> None:
    """`turnkeeper.testing` offers all that the provider's package does, and every name is there."""
    assert set(turnkeeper.testing.provider.__all__) <= set(turnkeeper.testing.__all__)
    for name in turnkeeper.testing.__all__:
        assert getattr(turnkeeper.testing, name) is not None
    for name in turnkeeper.testing.provider.__all__:
        assert getattr(turnkeeper.testing, name) is getattr(turnkeeper.testing.provider, name)
    with pytest.raises(AttributeError, match="nothing"):
        _ = turnkeeper.testing.nothing
