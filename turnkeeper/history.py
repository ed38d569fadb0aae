"""The one reader of a run's transcript, out of Temporal's history and sealed segments.

History is read as a graph, not replayed: each `run.generate` that was scheduled is an edge from its
base to base + new, each one that completed an edge on to + reply. Following the edges back from the
wanted digest gives the entries; a view begins with its epoch's opening, the transcript goes on past
it to where the epoch before ended. Replies that were discarded, attempts, resets and releases with
another loop need no code here: nobody follows their edges.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field
from temporalio.api.common.v1 import Payload, WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import (
    GetWorkflowExecutionHistoryRequest,
    GetWorkflowExecutionHistoryReverseRequest,
)
from temporalio.client import Client

from turnkeeper.artifacts import ArtifactStore
from turnkeeper.contract import (
    FORK,
    GENERATE,
    SHORTEN,
    Epoch,
    ExecuteInput,
    ExecuteOutput,
    ForkOutput,
    GenerateInput,
    GenerateOutput,
    LoadAgentOutput,
    RunResult,
    Sealed,
    ShortenInput,
    ShortenOutput,
)
from turnkeeper.entries import Entry, Position, verify
from turnkeeper.epoch import Opening
from turnkeeper.errors import StateLost
from turnkeeper.spec import AgentSpec
from turnkeeper.state import RunState
from turnkeeper.text import one_line
from turnkeeper.view import View

# The server's reverse pages count batches of about two events, and most misses are one turn back:
# a first page of 20 answers those in 2-3 ms, where one of 1,000 takes 9-14.
_PAGES = (20, 100, 250)
SEGMENT_BYTES = 1_000_000

_M = TypeVar("_M", bound=BaseModel)


class Segment(BaseModel):
    """A sealed piece of a transcript, as it lies in the artifact store."""

    previous: str | None = None
    start: Position
    entries: list[Entry] = Field(default_factory=list)


@dataclass
class ToolRun:
    """A tool call as history tells it."""

    scheduled: int
    input: ExecuteInput
    output: ExecuteOutput | None = None
    failure: str | None = None


class Place(BaseModel):
    """Where a reader of a run has come to."""

    model_config = ConfigDict(frozen=True)

    said: Position = Position()
    """In the transcript."""
    view: Position = Position()
    """In the view that the run had then."""


@dataclass
class Transcript:
    """What was said in a run, or what follows a place that its reader knows."""

    entries: list[Entry]
    since: Position = field(default_factory=Position)
    """Where in the transcript they begin."""
    view: Position = field(default_factory=Position)
    """Where they end, as a place in the view."""
    tail: list[ToolRun] = field(default_factory=list)
    """Tool calls after the last reply, that the model has not read."""
    result: RunResult | None = None
    state: RunState | None = None
    """Of a continued run: what it started with."""
    start: Any = None
    """The start request of a run that was not continued, as it came."""
    epochs: dict[int, int] = field(default_factory=dict)
    """By number, from 2: entries that were said before it began. Those of earlier executions are
    not known, but for the last one."""

    @property
    def tenant(self) -> str | None:
        """For whom it runs, if the caller has said so and the beginning was read."""
        if self.state is not None:
            return self.state.tenant
        metadata = self.start.get("metadata") if isinstance(self.start, dict) else None
        tenant = metadata.get("tenant") if isinstance(metadata, dict) else None
        return tenant if isinstance(tenant, str) else None


class HistoryReader:
    """Reads one execution (workflow id and run id)."""

    def __init__(
        self, client: Client, store: ArtifactStore, workflow_id: str, run_id: str = ""
    ) -> None:
        self._client = client
        self._store = store
        self._id = workflow_id
        self._run_id = run_id

    async def view(self, wanted: Position, known: View | None = None) -> View:
        """The entries up to `wanted`, reading newest first and only back to what `known` holds.

        Raises:
            StateLost: history or a segment does not lead to the wanted digest.
        """
        back = _Walk(wanted)
        if back.done(known):
            return back.view(known)
        graph = _Graph(self._decode)
        async for event in self._events(newest_first=True):
            started = await graph.take(event)
            while (edge := graph.into(back.at)) is not None:
                back.step(edge)
            if back.done(known):
                return back.view(known)
            if (epoch := graph.opened(back.at)) is not None:
                return back.view(await self._opening(epoch))
            if graph.forked is not None and back.at == graph.forked.base:
                return back.view(await self._sealed(graph.forked.sealed, known))
            if started is not None and back.at == started.base:
                return back.view(await self._started(started, known))
        raise StateLost(
            f"history of {self._id} does not lead to entry {wanted.entries} "
            f"({wanted.digest[:12]}): stopped at entry {back.at.entries}"
        )

    async def spec(self) -> AgentSpec:
        """The pinned spec, from the start of history; its long texts from the artifact store."""
        # To the end, if need be: a burst of messages may stand before the first activity's result.
        async for event in self._events(newest_first=False):
            spec = await self._spec_in(event)
            if spec is None:
                continue
            if spec.artifact is None:
                return spec
            data = await self._store.get(self._id, spec.artifact)
            return AgentSpec.model_validate_json(data)
        raise StateLost(f"history of {self._id} holds no spec")

    async def _spec_in(self, event: HistoryEvent) -> AgentSpec | None:
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
            state = await self._continued(event)
            return state.spec if state else None
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
            # The first activity of a run that was not continued is always run.load_agent.
            payloads = event.activity_task_completed_event_attributes.result.payloads
            return (await self._decode(payloads, LoadAgentOutput)).spec
        return None

    async def _continued(self, event: HistoryEvent) -> RunState | None:
        attributes = event.workflow_execution_started_event_attributes
        if not attributes.continued_execution_run_id:
            return None
        return await self._decode(attributes.input.payloads, RunState)

    async def transcript(self, known: Place | None = None) -> Transcript:
        """Everything said, as far as history tells; for people, and for a model that recalls.

        With `known` only what follows it, if it is a place in this run: history is read newest
        first and no further, so that `state` and `start` may be missing.

        Raises:
            StateLost: a part is missing or was changed.
        """
        graph = _Graph(self._decode, tools=True)
        found = Transcript(entries=[])
        back: _Walk | None = None
        async for event in self._events(newest_first=True):
            await self._note(event, found)
            await graph.take(event)
            if back is None and graph.newest is not None:
                back = _Walk(graph.newest)
            if back is not None and back.follow(graph, known):
                break
        if back is None:
            back, unsent = _unsaid(found, graph)
        else:
            unsent = []
        found.view = back.wanted
        epochs = [*back.epochs, *([found.state.context.epoch] if found.state else [])]
        found.epochs = {e.number + 1: e.said.entries for e in epochs if e is not None}
        await self._before(back.at, found, graph.forked, known or Place())
        found.entries = [*found.entries, *back.entries(), *unsent]
        answered = {e.value["call_id"] for e in found.entries if e.kind == "result"}
        found.tail = [
            t
            for t in reversed(graph.tools)
            if t.scheduled > graph.newest_event and t.input.call_id not in answered
        ]
        return found

    async def said(self) -> AsyncIterator[Entry]:
        """Everything said, in order, of a run of any length: one sealed segment at a time, and what
        the last execution said. Each segment is read twice, since each names the one before it.

        Raises:
            StateLost: a part is missing or was changed.
        """
        state: RunState | None = None
        async for event in self._events(newest_first=False):
            state = await self._continued(event)
            break
        known: Place | None = None
        if state is not None and state.sealed is not None:
            async for entry in self._unsealed(state.sealed):
                yield entry
            known = Place(said=state.sealed.position, view=state.base)
        for entry in (await self.transcript(known)).entries:
            yield entry

    async def _unsealed(self, sealed: Sealed) -> AsyncIterator[Entry]:
        links: list[str] = []
        link: str | None = sealed.artifact
        while link is not None:
            links.append(link)
            link = (await self._segment(link)).previous
        place = Position()
        for link in reversed(links):
            segment = await self._segment(link)
            if segment.start != place:
                raise StateLost(f"segment {link[:12]} does not begin where it should")
            place = place.after(segment.entries)
            for entry in segment.entries:
                yield entry
        if place != sealed.position:
            raise StateLost(f"segment {sealed.artifact[:12]} does not end where it should")

    async def _note(self, event: HistoryEvent, found: Transcript) -> None:
        """How the run began and ended."""
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED:
            payloads = event.workflow_execution_completed_event_attributes.result.payloads
            found.result = await self._decode(payloads, RunResult)
        elif event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED:
            failure = event.workflow_execution_failed_event_attributes.failure
            details = failure.application_failure_info.details.payloads
            if details:
                found.result = await self._decode(details, RunResult)
        elif event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
            started = event.workflow_execution_started_event_attributes
            found.state = await self._continued(event)
            if found.state is None and started.input.payloads:
                found.start = await self._start(started.input.payloads)

    async def _before(
        self, at: Position, found: Transcript, forked: ForkOutput | None, known: Place
    ) -> None:
        """What was said before the place in the view to which the way back has led."""
        if at == known.view:
            found.since = known.said
        elif found.state is not None and at == found.state.base:
            found.since, found.entries = await self._sealed_since(found.state.sealed, known.said)
        elif forked is not None and at == forked.base:
            found.since, found.entries = await self._sealed_since(forked.sealed, known.said)
        elif at != Position():
            raise StateLost(f"history of {self._id} has a gap at entry {at.entries}")

    async def _start(self, payloads: Sequence[Payload]) -> Any:
        """What the caller sent, as plain data where it is such."""
        try:
            return _plain(await self._client.data_converter.decode(payloads))
        except Exception:  # noqa: BLE001 - anything may have been sent, and was refused
            return _plain(one_line(p.data.decode(errors="replace"), 1_000) for p in payloads)

    async def _started(self, started: _Started, known: View | None) -> View:
        """The view that a continued run began with."""
        if started.epoch is None:
            return await self._sealed(started.sealed, known)
        view = await self._opening(started.epoch)
        view.extend(await self._said_after(started.epoch.said, started.sealed))
        if view.position != started.base:
            raise StateLost(f"epoch {started.epoch.number} of {self._id} is not as it was")
        return view

    async def _opening(self, epoch: Epoch) -> View:
        """The beginning of an epoch's view."""
        data = await self._store.get(self._id, epoch.artifact)
        view = View(Opening.model_validate_json(data).entries)
        if view.position != epoch.opening:
            raise StateLost(f"artifact {epoch.artifact[:12]} is not the opening it should be")
        return view

    async def _said_after(self, place: Position, sealed: Sealed | None) -> list[Entry]:
        """The sealed entries after a place in the transcript."""
        start, entries = await self._segments(sealed, place.entries)
        return entries[place.entries - start.entries :]

    async def _sealed_since(
        self, sealed: Sealed | None, known: Position
    ) -> tuple[Position, list[Entry]]:
        """A place in the transcript and the sealed entries after it: the known place, if it is one
        of this run's, else the beginning."""
        start, entries = await self._segments(sealed, known.entries)
        if sealed is not None and start.after(entries) != sealed.position:
            raise StateLost(f"segment {sealed.artifact[:12]} does not end where it should")
        count = known.entries - start.entries
        if start.after(entries[:count]) == known:
            return known, entries[count:]
        if known == Position():
            raise StateLost(f"the sealed part of {self._id} lacks its beginning")
        return await self._sealed_since(sealed, Position())

    async def _segments(self, sealed: Sealed | None, back_to: int) -> tuple[Position, list[Entry]]:
        """The entries of the last segments, back to the one that holds the entry of that number,
        and where they begin."""
        segments: list[Segment] = []
        link, start = (sealed.artifact, sealed.position) if sealed else (None, Position())
        while link is not None and start.entries > back_to:
            segments.append(await self._segment(link))
            link, start = segments[-1].previous, segments[-1].start
        return start, [entry for segment in reversed(segments) for entry in segment.entries]

    async def _segment(self, artifact: str) -> Segment:
        return Segment.model_validate_json(await self._store.get(self._id, artifact))

    async def _sealed(self, sealed: Sealed | None, known: View | None) -> View:
        """The transcript that the sealed segments hold, newest first back to what `known` holds."""
        if sealed is None:
            return View()
        segments: list[Segment] = []
        link: str | None = sealed.artifact
        while link is not None:
            segment = await self._segment(link)
            segments.append(segment)
            if known is not None and known.holds(segment.start):
                break
            link = segment.previous
        start = segments[-1].start
        view = View(
            known.entries[: start.entries] if known is not None and known.holds(start) else ()
        )
        for segment in reversed(segments):
            view.extend(segment.entries)
        if view.position != sealed.position:
            raise StateLost(f"segment {sealed.artifact[:12]} does not end where it should")
        return view

    async def _events(self, *, newest_first: bool) -> AsyncIterator[HistoryEvent]:
        service = self._client.workflow_service
        request: type[Any] = GetWorkflowExecutionHistoryRequest
        ask: Any = service.get_workflow_execution_history
        run_id = self._run_id
        if newest_first:
            request = GetWorkflowExecutionHistoryReverseRequest
            ask = service.get_workflow_execution_history_reverse
            # This call alone wants the run's id.
            run_id = run_id or await self._latest_run()
        token, page = b"", 0
        while True:
            asked = request(
                namespace=self._client.namespace,
                execution=WorkflowExecution(workflow_id=self._id, run_id=run_id),
                maximum_page_size=_PAGES[min(page, len(_PAGES) - 1)],
                next_page_token=token,
            )
            reply = await ask(asked, retry=True)
            for event in reply.history.events:
                yield event
            token, page = reply.next_page_token, page + 1
            if not token:
                return

    async def _latest_run(self) -> str:
        described = await self._client.get_workflow_handle(self._id).describe()
        return described.run_id

    async def _decode(self, payloads: Sequence[Payload], model: type[_M]) -> _M:
        return (await self._client.data_converter.decode(payloads, [model]))[0]  # type: ignore[no-any-return]


def _unsaid(found: Transcript, graph: _Graph) -> tuple[_Walk, list[Entry]]:
    """Where an execution begins that has not generated yet, and what its model is to read."""
    if found.state is not None:
        # The last results of a run that has just continued are in its state alone.
        return _Walk(found.state.base), found.state.pending
    if graph.forked is not None:
        return _Walk(graph.forked.base), graph.forked.unread
    return _Walk(Position()), []


def _plain(values: Iterable[Any]) -> Any:
    found = list(values)
    return found[0] if len(found) == 1 else found


@dataclass(frozen=True)
class _Edge:
    """`entries` lead from `start` to the position they are filed under."""

    start: Position
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class _Started:
    """Where a continued run began."""

    base: Position
    sealed: Sealed | None
    epoch: Epoch | None


class _Graph:
    """Edges gathered from events that come newest first."""

    def __init__(self, decode: Any, *, tools: bool = False) -> None:
        self._decode = decode
        self._edges: dict[Position, _Edge] = {}
        self._epochs: dict[Position, tuple[Epoch, Position]] = {}
        """By where their openings end: the epoch, and where the one before ended."""
        self._outputs: dict[int, Any] = {}
        self._failures: dict[int, str] = {}
        self._want_tools = tools
        self.tools: list[ToolRun] = []
        self.newest: Position | None = None
        """Where the newest generation leads."""
        self.newest_event = 0
        self.forked: ForkOutput | None = None
        """What a fork began with."""

    def into(self, position: Position) -> _Edge | None:
        return self._edges.get(position) if position.entries else None

    def opened(self, position: Position) -> Epoch | None:
        """The epoch whose opening ends there."""
        found = self._epochs.get(position)
        return found[0] if found else None

    def before(self, position: Position) -> _Edge | None:
        """From the end of an opening to the end of the epoch before: nothing was said between."""
        found = self._epochs.get(position)
        return _Edge(found[1], ()) if found else None

    async def take(self, event: HistoryEvent) -> _Started | None:
        """Note an event; answers where the run began for the start event of a continued run."""
        kind = event.event_type
        if kind == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
            completed = event.activity_task_completed_event_attributes
            self._outputs[completed.scheduled_event_id] = completed.result.payloads
        elif kind == EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED and self._want_tools:
            failed = event.activity_task_failed_event_attributes
            self._failures[failed.scheduled_event_id] = failed.failure.message
        elif kind == EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT and self._want_tools:
            timed = event.activity_task_timed_out_event_attributes
            self._failures[timed.scheduled_event_id] = timed.failure.message
        elif kind == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            await self._scheduled(event)
        elif kind == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
            started = event.workflow_execution_started_event_attributes
            if started.continued_execution_run_id:
                state = await self._decode(started.input.payloads, RunState)
                return _Started(state.base, state.sealed, state.context.epoch)
        return None

    async def _scheduled(self, event: HistoryEvent) -> None:
        scheduled = event.activity_task_scheduled_event_attributes
        output = self._outputs.pop(event.event_id, None)
        name = scheduled.activity_type.name
        if name == GENERATE:
            await self._generation(event.event_id, scheduled.input.payloads, output)
        elif name == SHORTEN:
            await self._shortened(scheduled.input.payloads, output)
        elif name == FORK and output:
            self.forked = await self._decode(output, ForkOutput)
        elif self._want_tools and not name.startswith("run."):
            self.tools.append(
                ToolRun(
                    scheduled=event.event_id,
                    input=await self._decode(scheduled.input.payloads, ExecuteInput),
                    output=await self._decode(output, ExecuteOutput) if output else None,
                    failure=self._failures.get(event.event_id),
                )
            )

    async def _shortened(self, payloads: Any, output: Any) -> None:
        shorter = await self._decode(output, ShortenOutput) if output else None
        if shorter is None or shorter.epoch is None:
            return
        asked: ShortenInput = await self._decode(payloads, ShortenInput)
        # A view that could not be made shorter: from there the way leads on as it did before.
        if shorter.epoch.opening != asked.base:
            self._epochs[shorter.epoch.opening] = shorter.epoch, asked.base

    async def _generation(self, event_id: int, payloads: Any, output: Any) -> None:
        asked = await self._decode(payloads, GenerateInput)
        _check(asked.new)
        read = asked.base.after(asked.new)
        if asked.new:
            self._edges[read] = _Edge(asked.base, tuple(asked.new))
        reached = read
        if output is not None:
            reply: GenerateOutput = await self._decode(output, GenerateOutput)
            _check([reply.entry])
            reached = read.after([reply.entry])
            self._edges[reached] = _Edge(read, (reply.entry,))
        if self.newest is None:
            self.newest, self.newest_event = reached, event_id


class _Walk:
    """The way back from a wanted position."""

    def __init__(self, wanted: Position) -> None:
        self.wanted = self.at = wanted
        self.epochs: list[Epoch] = []
        """Whose openings it came over."""
        self._steps: list[tuple[Entry, ...]] = []
        self._been = {wanted}

    def step(self, edge: _Edge) -> None:
        """Go back over an edge.

        Raises:
            StateLost: it leads to where the walk has been.
        """
        self._steps.append(edge.entries)
        self.at = edge.start
        if self.at in self._been:
            raise StateLost(f"history leads in a circle at entry {self.at.entries}")
        self._been.add(self.at)

    def follow(self, graph: _Graph, known: Place | None) -> bool:
        """Go back as far as the graph leads, over epochs; True if that is to the known place."""
        while known is None or self.at != known.view:
            edge = graph.into(self.at) or graph.before(self.at)
            if edge is None:
                return False
            if (epoch := graph.opened(self.at)) is not None:
                self.epochs.append(epoch)
            self.step(edge)
        return True

    def done(self, known: View | None) -> bool:
        return self.at == Position() or (known is not None and known.holds(self.at))

    def view(self, earlier: View | None) -> View:
        """The whole way, on top of a view that holds where it begins."""
        view = View(earlier.entries[: self.at.entries] if earlier is not None else ())
        view.extend(self.entries())
        return view

    def entries(self) -> list[Entry]:
        """The whole way."""
        return [entry for step in reversed(self._steps) for entry in step]


def _check(entries: Iterable[Entry]) -> None:
    for entry in entries:
        if not verify(entry):
            raise StateLost(f"an entry of history has another digest than its value ({entry.kind})")


async def read_transcript(
    client: Client,
    store: ArtifactStore,
    workflow_id: str,
    run_id: str | None = None,
    known: Place | None = None,
) -> Transcript:
    """The transcript of a run, open or closed, or what follows a known place; needs no worker.

    Raises:
        StateLost: a part is missing or was changed.
        RPCError: Temporal cannot be reached, or has no such run.
    """
    return await HistoryReader(client, store, workflow_id, run_id or "").transcript(known)
