"""A run's transcript out of events that no run of a test makes at will."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

from turnkeeper import history
from turnkeeper.contract import (
    GENERATE,
    SHORTEN,
    Epoch,
    GenerateInput,
    GenerateOutput,
    RunRequest,
    ShortenInput,
    ShortenOutput,
)
from turnkeeper.converter import data_converter
from turnkeeper.entries import Entry, Position, admit, message
from turnkeeper.errors import StateLost
from turnkeeper.history import HistoryReader, Transcript
from turnkeeper.state import RunState

ASKED = message("question")
ANSWERED = admit("reply", {"role": "assistant", "content": []}, dialect="anthropic-messages")
ENDED = Position().after([ASKED, ANSWERED])
ELSEWHERE = Position().after([message("another view")])


@pytest.fixture(autouse=True)
def bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A walk that goes on for ever fails, and does not hang."""
    step, steps = history._Walk.step, [0]

    def counted(self: history._Walk, edge: history._Edge) -> None:
        steps[0] += 1
        assert steps[0] < 100
        step(self, edge)

    monkeypatch.setattr(history._Walk, "step", counted)


class Told(HistoryReader):
    """Reads the given activities, each as its name, input and output, in the order of time."""

    def __init__(self, *activities: tuple[str, BaseModel, BaseModel | None]) -> None:
        client: Any = SimpleNamespace(data_converter=data_converter)
        nothing: Any = None
        super().__init__(client, nothing, "told")
        self._activities = activities

    async def _events(self, *, newest_first: bool) -> AsyncIterator[HistoryEvent]:
        assert newest_first
        for number in range(len(self._activities), 0, -1):
            name, asked, answered = self._activities[number - 1]
            if answered is not None:
                completed = HistoryEvent(event_type=EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED)
                about = completed.activity_task_completed_event_attributes
                about.scheduled_event_id = number
                about.result.payloads.extend(await data_converter.encode([answered]))
                yield completed
            scheduled = HistoryEvent(
                event_id=number, event_type=EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
            )
            began = scheduled.activity_task_scheduled_event_attributes
            began.activity_type.name = name
            began.input.payloads.extend(await data_converter.encode([asked]))
            yield scheduled


def generation(
    base: Position, new: Sequence[Entry] = (), reply: Entry | None = None
) -> tuple[str, BaseModel, BaseModel | None]:
    """One that was asked for, and completed if there is a reply."""
    asked = GenerateInput(
        turn=1, spec_digest="", base=base, new=list(new), max_tokens=1, seconds_left=1
    )
    return GENERATE, asked, GenerateOutput(entry=reply) if reply else None


def shortening(base: Position, opening: Position) -> tuple[str, BaseModel, BaseModel]:
    """One that made an opening."""
    asked = ShortenInput(turn=1, spec_digest="", base=base, room=1)
    epoch = Epoch(number=1, artifact="", opening=opening, said=ENDED)
    return SHORTEN, asked, ShortenOutput(epoch=epoch)


@pytest.mark.parametrize(
    ("start", "tenant"),
    [
        ({"metadata": {"tenant": "acme"}}, "acme"),
        ({"metadata": {"tenant": 7}}, None),
        ({"metadata": "acme"}, None),
        ("acme", None),
    ],
)
def test_whose_a_run_is(start: Any, tenant: str | None) -> None:
    """As its start says, which may be anything, or the state that a continued run began with."""
    assert Transcript(entries=[], start=start).tenant == tenant
    request = RunRequest(agent="a", prompt="x", metadata={"tenant": "acme"})
    state = RunState(request=request, key_base="k", started=0)
    assert Transcript(entries=[], state=state, start=start).tenant == "acme"


BEGINS = generation(Position(), [ASKED], ANSWERED)


@pytest.mark.parametrize("times", [1, 3])
async def test_a_view_that_could_not_be_made_shorter_leads_on(times: int) -> None:
    """An opening may be the very view that it replaces: what was said before it is still found."""
    read = Told(BEGINS, *[shortening(ENDED, ENDED)] * times, generation(ENDED))
    assert (await read.transcript()).entries == [ASKED, ANSWERED]
    assert (await read.view(ENDED)).entries == [ASKED, ANSWERED]


async def test_what_leads_in_a_circle_is_told_by_name() -> None:
    """No run makes such a history; whoever reads one gets an error, and neither waits for ever nor
    runs out of memory."""
    read = Told(shortening(ELSEWHERE, ENDED), shortening(ENDED, ELSEWHERE), generation(ELSEWHERE))
    with pytest.raises(StateLost, match="history leads in a circle at entry 1"):
        await read.transcript()
