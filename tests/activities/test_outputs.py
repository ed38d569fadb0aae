"""Checking an answer beside the event loop, with whatever a type's author and a store may do."""

from __future__ import annotations

import threading
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities import outputs
from activities.outputs import Outputs
from activities.providers.admission import Admitted
from activities.redact import Redactor
from activities.registry import Registry
from turnkeeper import Agent
from turnkeeper.artifacts import FolderStore
from turnkeeper.contract import Checked
from turnkeeper.entries import admit
from turnkeeper.usage import Usage

SECRET = "hunter2-hunter2"


def agent(output: Any) -> Agent:
    """One whose answers are of a type."""
    return Agent(name="a", model="m", instructions="i", output=output)


def reply(text: str, stop_reason: str = "end_turn") -> Admitted:
    """A reply of the model that has only text."""
    value = {"role": "assistant", "content": [{"type": "text", "text": text}]}
    entry = admit("reply", value, dialect="anthropic-messages")
    return Admitted(entry, stop_reason, None, None, None, Usage())


class Broken(FolderStore):
    """A store that takes nothing, and says so with a key in it."""

    async def put(self, owner: str, data: bytes) -> str:  # noqa: ARG002
        """Never."""
        raise OSError(f"https://key:{SECRET}@bucket is down")


async def checked(outputs_: Outputs, of: Agent, said: Admitted) -> Checked | None:
    """What the activity finds out of a reply."""

    async def look() -> Checked | None:
        return await outputs_.check(outputs_.of(of.spec()), said, turn=1)

    return await ActivityEnvironment().run(look)


@pytest.mark.parametrize("stop_reason", ["max_tokens", "refusal", "pause_turn", "later"])
async def test_only_what_ends_a_turn_is_checked(tmp_path: Any, stop_reason: str) -> None:
    """Half a reply, or one that the loop will not keep, is no wrong answer."""
    a = agent(int)
    found = Outputs(Registry([a]), FolderStore(tmp_path), Redactor())
    assert await checked(found, a, reply("half", stop_reason)) is None
    assert await checked(found, a, reply("3")) == Checked(value="3")


async def test_a_worker_without_the_type_asks_nothing(tmp_path: Any) -> None:
    """In a rolling deploy another worker has it: retryable, by the name of the outcome that it is
    when nobody has. A schema needs no code, and every worker checks it."""
    none = Outputs(Registry([]), FolderStore(tmp_path), Redactor())
    with pytest.raises(ApplicationError) as refused:
        await checked(none, agent(int), reply("3"))
    assert (refused.value.type, refused.value.non_retryable) == ("unknown_agent", False)
    assert await checked(none, agent({"type": "integer"}), reply("3")) == Checked(value="3")
    assert await checked(none, agent(None), reply("3")) is None


async def test_a_validator_is_bounded(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that takes too long costs a correction and no more."""
    monkeypatch.setattr(outputs, "CHECK_SECONDS", 0.05)
    released = threading.Event()
    a = agent(Annotated[int, AfterValidator(lambda _: released.wait(60))])
    late = await checked(Outputs(Registry([a]), FolderStore(tmp_path), Redactor()), a, reply("1"))
    released.set()
    assert late is not None
    assert "in time" in late.problems[0]


@pytest.mark.parametrize("raised", [KeyError("x"), RecursionError(), SystemExit(1)])
async def test_whatever_a_validator_raises_is_told(tmp_path: Any, raised: BaseException) -> None:
    """By its type alone; it ends neither the activity nor the worker."""

    def look(_: int) -> int:
        raise raised

    a = agent(Annotated[int, AfterValidator(look)])
    found = Outputs(Registry([a]), FolderStore(tmp_path), Redactor())
    told = f"It could not be checked ({type(raised).__name__})."
    assert await checked(found, a, reply("2")) == Checked(problems=[told])


async def test_a_problem_tells_no_secret(tmp_path: Any) -> None:
    """It goes into history and to the model: what a validator says is redacted, as all errors."""

    def look(value: int) -> int:
        raise ValueError(f"{SECRET} knows no {value}")

    a = agent(Annotated[int, AfterValidator(look)])
    found = Outputs(Registry([a]), FolderStore(tmp_path), Redactor([SECRET]))
    assert await checked(found, a, reply("2")) == Checked(problems=["$: [redacted] knows no 2"])


async def test_a_store_that_is_down_does_not_cost_the_reply(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was paid for: a long output that cannot be stored is said to be so."""
    monkeypatch.setattr(outputs, "STORE_ATTEMPTS", 1)
    a = agent(str)
    found = Outputs(Registry([a]), Broken(tmp_path), Redactor([SECRET]))
    kept = await checked(found, a, reply(f'"{"x" * 64_000}"'))
    assert kept is not None
    assert (kept.value, kept.artifact, kept.problems) == (None, None, [])
    assert kept.not_stored == (
        "the output of 64002 bytes could not be stored; the transcript has it"
    )
