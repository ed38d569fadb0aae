"""Typed answers in real runs: corrected a bounded number of times, and typed in the result."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from tests.rig import RigFactory
from tests.test_continue_as_new import OFTEN
from tests.test_render import state_of
from turnkeeper import Agent, Limits, ModelSpec, tool
from turnkeeper.contract import Checked, SendRequest
from turnkeeper.errors import AnswerInvalid, LimitReached, OutputMismatch
from turnkeeper.render import result_lines
from turnkeeper.state import Line, Phase, RunState
from turnkeeper.testing import Exchange, call, summary, text
from turnkeeper.testing.provider import Reply
from turnkeeper.testing.rehearsal import rehearse
from turnkeeper.typed import NOT_CHECKED, Typed


class Total(BaseModel):
    """The sum of an order."""

    order: str
    cents: int
    currency: str = "EUR"

    @field_validator("order")
    @classmethod
    def _exists(cls, value: str) -> str:
        if value == "bug":
            raise KeyError("a fault of the author's")
        if not value.startswith("A-"):
            raise ValueError("there is no such order: its number begins with A-")
        return value


BODIES = {"log_bodies": True}
GOOD = '{"order": "A-1", "cents": "1250"}'
READ = {"order": "A-1", "cents": 1250, "currency": "EUR"}


@tool(effect="read")
def look_up(q: str) -> str:
    """Look something up."""
    return f"found {q} {'x' * 1_500}"


async def test_wrong_twice_then_right(rig: RigFactory) -> None:
    """Two corrections, each with what was wrong and the schema; then the run is complete, its
    output is as the type writes it, and callers get it as a value of their type."""
    script = ["The order A-1 was 12.50.", '{"order": "B-1", "cents": "x"}', f"```json\n{GOOD}\n```"]
    async with rig(
        [call("look_up", {"q": "a"}), *map(text, script)],
        tools=[look_up],
        output=Total,
        provider=BODIES,
    ) as r:
        run = await r.start()
        assert await run.result(output=Total, timeout=60) == Total(order="A-1", cents=1250)
        result = await run.result()
        assert (result.outcome, result.output, result.turns) == ("completed", READ, 4)
        first, *_, third, fourth = [x.body or {} for x in r.provider.requests]
        assert '"cents"' in first["system"][0]["text"]
        form = first["output_config"]["format"]
        assert form["schema"]["required"] == ["order", "cents"]
        assert fourth["output_config"]["format"] == form
        assert "not one JSON value" in said(third)
        assert "- $.order: there is no such order: its number begins with A-" in said(fourth)
        assert "- $.cents: Input should be a valid integer" in said(fourth)
        assert '"properties"' in said(fourth)
        with pytest.raises(OutputMismatch, match="not of the type that is asked for"):
            await run.result(output=int)
        assert await r.task_failures() == 0


def said(body: dict[str, Any]) -> str:
    """The last text of a request."""
    return str(body["messages"][-1]["content"][-1]["text"])


@pytest.mark.parametrize("retries", [0, 2])
async def test_never_right(rig: RigFactory, retries: int) -> None:
    """After so many corrections the run ends by name, with what was wrong and the last text, and
    nothing more is asked. Where a validator fails by mistake that is so, too, and no more told."""
    async with rig(
        [text('{"order": "bug", "cents": 1}')] * 9, output=Total, output_retries=retries
    ) as r:
        run = await r.start()
        with pytest.raises(AnswerInvalid) as ended:
            await run.result(timeout=60)
        result = ended.value.result
        assert result is not None
        assert (result.outcome, result.output) == ("invalid_output", None)
        assert result.answer == '{"order": "bug", "cents": 1}'
        assert "It could not be checked (KeyError)" in str(result.reason)
        assert "fault" not in result.model_dump_json()
        assert len(r.provider.requests) == retries + 1


async def test_a_conversation_has_its_answers_checked(rig: RigFactory) -> None:
    """Each turn's answer, over continue-as-new; whoever awaits one gets the corrected one, and the
    corrections of one turn do not count in the next."""

    def script(x: Exchange) -> Reply:
        if x.last_text.startswith("order "):
            return text("Let me see.") if x.last_results else call("look_up", {"q": x.last_text})
        number = json.dumps(x.body["messages"]).count('"text": "order ')
        return text(json.dumps({"order": f"A-{number}", "cents": number}))

    async with rig(script, tools=[look_up], output=Total, output_retries=1, history=OFTEN) as r:
        run = await r.start("", keep_open=True)
        answers = [await run.chat(f"order {n}", timeout=60) for n in range(12)]
        await run.send("order 12", message_id="m-12")
        assert await run.reply("m-12", output=Total) == Total(order="A-13", cents=13)
        assert [json.loads(a)["cents"] for a in answers] == list(range(1, 13))
        await run.stop()
        result = await run.result(check=False)
        assert result.outcome == "stopped"
        assert result.output == {"order": "A-13", "cents": 13, "currency": "EUR"}
        assert len(await r.executions()) > 1
        assert await r.task_failures() == 0


@pytest.mark.parametrize(("last", "output"), [(GOOD, READ), ("It was 12.50.", None)])
async def test_the_last_answer_at_a_limit_is_checked(
    rig: RigFactory, last: str, output: dict[str, Any] | None
) -> None:
    """It is the output if it fits; if not, there is none, the reason says so, and it stays so."""

    def script(x: Exchange) -> Reply:
        closing = x.body.get("tool_choice") == {"type": "none"}
        return text(last) if closing else call("look_up", {"q": str(x.turn)})

    limits = Limits(turns=2, on_limit="answer")
    async with rig(script, tools=[look_up], output=Total, limits=limits) as r:
        result = await r.run()
        assert (result.outcome, result.output) == ("turn_limit", output)
        assert ("does not fit" in str(result.reason)) == (output is None)
        assert len(r.provider.requests) == 3
        with pytest.raises(LimitReached):
            await r.agents.result(r.ids[-1], output=Total)


async def test_a_long_output_is_an_artifact(rig: RigFactory) -> None:
    """A result stays under 64 kB: of a long output it has the head of the text and the id of the
    artifact, out of which callers get the whole value; of one within the bound, the value."""
    lengths = {"short": 40_000, "long": 100_000}
    async with rig(lambda x: text(json.dumps(["x" * lengths[x.prompt]])), output=list[str]) as r:
        run = await r.start("long")
        result = await run.result(timeout=60)
        assert result.output is None
        assert result.output_artifact is not None
        assert len(result.model_dump_json()) < 66_000
        assert await run.result(output=list[str]) == ["x" * 100_000]
        result = await r.run("short")
        assert result.output == ["x" * 40_000]
        assert result.output_artifact is None
        assert len(result.model_dump_json()) < 66_000
        # The artifact is gone.
        for path in r.store.root.rglob("*"):  # type: ignore[attr-defined]
            if path.is_file():
                path.unlink()
        with pytest.raises(OutputMismatch, match="cannot be read"):
            await run.result(output=list[str])


def ended_turn(checked: Checked | None, corrections: int = 1) -> RunState:
    """A run whose model has ended its turn with an answer."""
    spec = Agent(name="a", model="m", instructions="i", output=Total, output_retries=1).spec()
    made = {"spec": spec, "lines": [Line(turn=1, text="answer")], "phase": Phase.PARSE}
    return state_of(**made, typed=Typed(checked=checked, corrections=corrections))


def test_an_answer_that_nobody_has_checked_is_none() -> None:
    """A worker of before there were output types does not know that it has to."""
    state = ended_turn(None, corrections=0)
    assert state.correct()
    assert (state.outcome, state.phase) == (None, Phase.RESUME)
    assert NOT_CHECKED in state.pending[-1].value["text"]
    assert state.lines[-1].text == "answer → does not fit"


def test_who_says_more_is_heard_before_the_run_ends() -> None:
    """The last correction was in vain, but a message has come meanwhile: it is read with what was
    wrong, and the count begins anew."""
    wrong = Checked(problems=["$.cents: wrong"])
    state = ended_turn(wrong)
    assert state.correct()
    assert state.outcome == "invalid_output"
    state = ended_turn(wrong)
    state.inbox.accept(SendRequest(message_id="m", text="Of A-2, please."))
    assert state.correct()
    state.take_messages()
    assert (state.outcome, state.phase) == (None, Phase.RESUME)
    assert ["$.cents: wrong" in e.value["text"] for e in state.pending] == [True, False]
    assert state.typed.corrections == 0


async def test_a_rehearsal_checks_answers_too() -> None:
    """With the same corrections, and the same end."""
    agent = Agent(name="a", model="m", instructions="i", output=Total, output_retries=1)
    played = await asyncio.to_thread(rehearse, agent, [text("12.50"), text(GOOD)])
    assert (played.outcome, played.output, len(played.requests)) == ("completed", READ, 2)
    played = await asyncio.to_thread(rehearse, agent, [text("12.50"), text("12.50")])
    assert (played.outcome, played.output, len(played.requests)) == ("invalid_output", None, 2)


async def test_a_summary_need_not_be_an_answer(rig: RigFactory) -> None:
    """It is asked for as plain text; after it the form is asked for again, and answers checked."""

    def script(x: Exchange) -> Reply:
        if x.wants_summary:
            return summary("Pages are read.")
        if x.last_results and x.last_results[0].text.startswith("found 7 "):
            return text("It was 12.50.")
        if "could not be used" in x.last_text:
            return text(GOOD)
        last = x.last_results[0].text.split()[1] if x.last_results else "0"
        return call("look_up", {"q": str(int(last) + 1)})

    model = ModelSpec(name="claude-sonnet-5-5", window=4_000, max_output_tokens=500)
    async with rig(script, tools=[look_up], output=Total, model=model, provider=BODIES) as r:
        result = await r.run()
        assert (result.outcome, result.output) == ("completed", READ)
        assert result.epochs > 1
        bodies = [x.body or {} for x in r.provider.requests]
        plain = [b for b in bodies if "output_config" not in b]
        assert 0 < len(plain) < len(bodies)
        assert all("Write that summary" in said(b) for b in plain)
        assert await r.task_failures() == 0


async def test_an_agent_without_an_output_type_has_none(rig: RigFactory) -> None:
    """Its requests are as they were, and whoever asks for a type is told. Of a long answer the
    result has head and tail, and the id of the artifact that has all of it."""
    long = "x" * 100_000

    def script(x: Exchange) -> Reply:
        return text(long if x.prompt == "long" else GOOD)

    async with rig(script, provider=BODIES) as r:
        run = await r.start()
        assert (await run.result(timeout=60)).output is None
        assert "output_config" not in (r.provider.requests[0].body or {"output_config": 1})
        with pytest.raises(OutputMismatch, match="not of the type that is asked for"):
            await run.result(output=Total)
        result = await r.run("long")
        assert (result.outcome, result.output_artifact) == ("completed", None)
        assert len(result.model_dump_json()) < 66_000
        assert result.answer_artifact is not None
        assert (await r.store.get(r.ids[-1], result.answer_artifact)).decode() == long
        assert f"answer: artifact {result.answer_artifact}" in result_lines(result)
