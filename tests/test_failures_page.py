"""docs/failures.md: what callers meet is what the page says."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from temporalio.client import (
    Client,
    WorkflowFailureError,
    WorkflowUpdateFailedError,
)
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError, TerminatedError
from temporalio.exceptions import TimeoutError as TemporalTimeout
from temporalio.service import RPCError, RPCStatusCode

from tests.commands.test_unknown import Shell
from tests.pages import ROOT
from tests.rig import AGENT, Rig, RigFactory
from tests.talking import echo
from turnkeeper import asking, errors, tool
from turnkeeper.client import AgentClient, AgentRunHandle
from turnkeeper.commands.place import exit_code
from turnkeeper.connection import readable
from turnkeeper.contract import SEND, STATUS, STOP, WORKFLOW, RunRequest, SendRequest
from turnkeeper.ends import _result_of_failure
from turnkeeper.errors import RunFailed, error_for
from turnkeeper.outcomes import OUTCOMES
from turnkeeper.state import RunState
from turnkeeper.testing import Exchange, Reply, call, status
from turnkeeper.testing.embedded import EmbeddedServer

ENDS, REFUSALS = (
    [[cell.strip() for cell in row.strip("| ").split(" | ")] for row in rows.splitlines()[2:]]
    for rows in re.findall(
        r"^(?:\|.*\n)+", (ROOT / "docs" / "failures.md").read_text(), re.MULTILINE
    )
)
Seen: TypeAlias = tuple[list[str], list[str], str]
"""What a bare client and AgentClient gave, and the exit code, each in the words of the page."""


def words(cell: str) -> list[str]:
    """The names in a cell."""
    return re.findall(r"`(.+?)`", cell)


# --- how a run ends -------------------------------------------------------------------------------

OF_TEMPORAL = {
    "terminated": TerminatedError("x"),
    "timed_out": TemporalTimeout("x", type=None, last_heartbeat_details=[]),
}


def test_every_outcome_is_on_the_page_once() -> None:
    """And those that Temporal itself makes."""
    listed = [outcome for row in ENDS for outcome in words(row[0])]
    assert sorted(listed) == sorted([*OUTCOMES, *OF_TEMPORAL])


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_an_outcome_is_told_as_the_page_says(outcome: str) -> None:
    """By the class of the error, how Temporal closes the workflow, and the exit code."""
    (row,) = [row for row in ENDS if outcome in words(row[0])]
    closes = {
        "completed": [],
        "canceled": ["CancelledError"],
        "failed": ["ApplicationError"],
    }
    assert words(row[1]) == closes[OUTCOMES[outcome].closes]
    told = [] if outcome == "completed" else [type(error_for(outcome, "x")).__name__]
    assert (words(row[2]), row[3]) == (told, str(exit_code(outcome)))


@pytest.mark.parametrize("outcome", OF_TEMPORAL)
def test_what_temporal_ended_is_told_as_the_page_says(outcome: str) -> None:
    """As a failure of the run."""
    (row,) = [row for row in ENDS if outcome in words(row[0])]
    cause = OF_TEMPORAL[outcome]
    assert _result_of_failure(cause).outcome == outcome
    assert words(row[1]) == [type(cause).__name__]
    assert words(row[2]) == [type(error_for(outcome, "x")).__name__]
    assert row[3] == str(exit_code(outcome))


def test_every_error_of_a_caller_is_on_the_page() -> None:
    """What AgentClient raises, but for the base classes."""
    not_for_callers = {
        *("TurnkeeperError", "RunError", "DefinitionError", "AdmissionError", "NothingStored"),
        *("ToolError", "RetryTool", "ToolFailed", "StopRun", "NoticeRefused"),
    }
    named = {name for row in (*ENDS, *REFUSALS) for name in words(row[2])}
    assert set(errors.__all__) - {"error_for"} - not_for_callers <= named


# --- refusals -------------------------------------------------------------------------------------


@tool(effect="idempotent")
async def note(what: str) -> str:
    """Note something."""
    return f"noted {what}"


def script(x: Exchange) -> Reply:
    """`note` has the tool called, `reject` is refused by the provider once; else an echo."""
    if x.prompt.startswith("reject") and x.repeat == 0:
        return status(401)
    return call("note", {"what": "it"}) if x.prompt == "note" and x.turn == 0 else echo(x)


@dataclass
class Desk:
    """What situations are made of."""

    rig: Rig
    shell: Shell
    address: str
    closed: AgentRunHandle
    """A run that has completed, with one turn."""
    open: AgentRunHandle
    """A conversation that waits for a message and has read `m-1`."""
    unserved: AgentClient
    """Of a task queue without workers."""
    waiting: AgentRunHandle
    """A run there."""
    typing: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(3))

    async def exit(self, *arguments: str, **more: Any) -> str:
        """Of a command."""
        # A few at once: the worker is to answer each within the seconds that it has.
        async with self.typing:
            return str((await self.shell.starter(*arguments, **more)).returncode)


async def met(made: Awaitable[Any], *, timeout: float = 60) -> list[str]:
    """What somebody gets who awaits something, in the words of the page."""
    try:
        async with asyncio.timeout(timeout):
            given = await made
    except RPCError as error:
        # Client and server count the same seconds: either may be the first to give up.
        late = ["CANCELLED", "DEADLINE_EXCEEDED"]
        name = error.status.name
        return ["RPCError", *(late if name in late else [name])]
    except WorkflowUpdateFailedError as error:
        return ["WorkflowUpdateFailedError", _type(error.cause)]
    except WorkflowFailureError as error:
        return ["WorkflowFailureError", "ApplicationError", _type(error.cause)]
    except Exception as error:  # noqa: BLE001 - whatever it is
        return [type(error).__name__]
    return [given] if isinstance(given, str) else [type(given).__name__]


def _type(cause: BaseException | None) -> str:
    return str(cause.type) if isinstance(cause, ApplicationError) else repr(cause)


NOBODY = "127.0.0.1:1"


async def _no_server(desk: Desk) -> Seen:
    return (
        await met(Client.connect(NOBODY)),
        await met(AgentClient.connect(NOBODY, timeout=1)),
        await desk.exit("--address", NOBODY, "list"),
    )


async def _silent_server(desk: Desk) -> Seen:
    return await _rpc(desk, RPCStatusCode.UNAVAILABLE)


async def _forbidden(desk: Desk) -> Seen:
    bare, _, code = await _rpc(desk, RPCStatusCode.PERMISSION_DENIED)
    # As it is.
    return bare, ["RPCError"], code


async def _rpc(desk: Desk, code: RPCStatusCode) -> Seen:
    """As an error of the transport is told: no server here has logins, or goes away."""

    async def fail(error: Exception) -> None:
        raise error

    error = RPCError("x", code, b"")
    told = readable(error, "r", desk.rig.client)
    return await met(fail(error)), await met(fail(told)), str(_exit_of(told))


def _exit_of(error: Exception) -> int:
    from starter import _complain
    from turnkeeper.commands.place import Place

    return _complain(Place(ROOT, ROOT), error, as_json=False)


async def _no_namespace(desk: Desk) -> Seen:
    bare = await Client.connect(desk.address, namespace="nowhere")
    agents = await AgentClient.connect(desk.address, namespace="nowhere")
    return (
        await met(bare.get_workflow_handle("x").describe()),
        await met(agents.status("x")),
        await desk.exit("--namespace", "nowhere", "list"),
    )


async def _malformed_start(desk: Desk) -> Seen:
    started = await desk.rig.start_raw({"agent": AGENT})
    return (
        await met(started.result()),
        await met(desk.rig.agents.start(AGENT, "")),
        await desk.exit("run", "--agent", AGENT, ""),
    )


async def _too_large(desk: Desk) -> Seen:
    huge = "x" * 3_000_000
    bare = desk.rig.client.start_workflow(
        WORKFLOW, {"agent": AGENT, "prompt": huge}, id="huge", task_queue=desk.rig.task_queue
    )
    return (
        await met(bare),
        await met(desk.rig.agents.start(AGENT, huge)),
        await desk.exit("run", "--agent", AGENT, "-", stdin=huge),
    )


async def _same_request(desk: Desk) -> Seen:
    again = await desk.rig.agents.start(AGENT, "closed", id=desk.closed.id)
    assert again.existed
    given = await desk.exit("run", "--agent", AGENT, "closed", "--id", desk.closed.id)
    return await met(_start_again(desk)), ["existed"], given


async def _other_request(desk: Desk) -> Seen:
    return (
        await met(_start_again(desk)),
        await met(desk.rig.agents.start(AGENT, "another", id=desk.closed.id)),
        await desk.exit("run", "--agent", AGENT, "another", "--id", desk.closed.id),
    )


def _start_again(desk: Desk) -> Awaitable[Any]:
    return desk.rig.client.start_workflow(
        WORKFLOW,
        {"agent": AGENT, "prompt": "closed"},
        id=desk.closed.id,
        task_queue=desk.rig.task_queue,
        id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
    )


async def _no_worker(desk: Desk) -> Seen:
    bare = desk.rig.client.get_workflow_handle(desk.waiting.id)
    return (
        await met(bare.result(), timeout=0.5),
        await met(desk.waiting.result(timeout=0.5)),
        "-",
    )


async def _no_run(desk: Desk) -> Seen:
    return (
        await met(desk.rig.client.get_workflow_handle("nothing").result()),
        await met(desk.rig.agents.result("nothing")),
        await desk.exit("show", "nothing"),
    )


async def _refused(desk: Desk) -> Seen:
    bare = desk.rig.client.get_workflow_handle(desk.open.id)
    return (
        await met(bare.execute_update("resolve", {"call_id": "c-9", "landed": True})),
        await met(desk.rig.agents.resolve(desk.open.id, "c-9", landed=True, timeout=60)),
        await desk.exit("unknown", desk.open.id, "c-9", "--landed"),
    )


async def _duplicate(desk: Desk) -> Seen:
    bare = desk.rig.client.get_workflow_handle(desk.open.id)
    return (
        await met(bare.execute_update(SEND, {"message_id": "m-1", "text": "Hi"})),
        await met(desk.rig.agents.send(desk.open.id, "Hi", message_id="m-1", timeout=60)),
        await desk.exit("send", desk.open.id, "Hi", "--message-id", "m-1"),
    )


async def _as_it_ends(desk: Desk) -> Seen:
    """A moment that no test can hold still: what the run would say, and what is made of it."""
    state = RunState(
        request=RunRequest(agent=AGENT, prompt="x"), key_base="k", started=0, outcome="stopped"
    )
    with pytest.raises(ValueError, match="has ended") as told:
        state.not_sendable(SendRequest(message_id="m", text="x"))
    kind = getattr(told.value, "kind", None)
    error = WorkflowUpdateFailedError(ApplicationError("x", type=kind))
    # As of one that has ended: the command is given the same word.
    _, _, code = await _after_the_end(desk)
    return ["WorkflowUpdateFailedError", str(kind)], [asking.SEND.refusal(error)], code


async def _after_the_end(desk: Desk) -> Seen:
    bare = desk.rig.client.get_workflow_handle(desk.closed.id)
    return (
        await met(bare.execute_update(STOP, {})),
        await met(desk.closed.stop()),
        await desk.exit("send", desk.closed.id, "Hi"),
    )


async def _unanswered_update(desk: Desk) -> Seen:
    bare = desk.rig.client.get_workflow_handle(desk.waiting.id)
    return (
        await met(bare.execute_update(SEND, {"message_id": "m", "text": "x"}), timeout=0.5),
        await met(desk.unserved.pause(desk.waiting.id, timeout=0.5)),
        await desk.exit("pause", desk.waiting.id),
    )


async def _unanswered_query(desk: Desk) -> Seen:
    bare = desk.rig.client.get_workflow_handle(desk.waiting.id)
    return (
        await met(bare.query(STATUS, rpc_timeout=timedelta(seconds=1))),
        await met(desk.unserved.status(desk.waiting.id, timeout=0.5)),
        await desk.exit("show", desk.waiting.id),
    )


async def _unread(desk: Desk) -> Seen:
    told = await met(desk.closed.reply("m-9"))
    return [], [*told, "reply"], "-"


async def _other_type(desk: Desk) -> Seen:
    return [], await met(desk.closed.result(output=dict[str, int])), "-"


async def _no_turn(desk: Desk) -> Seen:
    assert await met(desk.closed.retry_from(7)) == await met(desk.closed.fork(7))
    return (
        [],
        await met(desk.closed.fork(7)),
        await desk.exit("fork", desk.closed.id, "--turn", "7"),
    )


async def _effects(desk: Desk) -> Seen:
    run = await desk.rig.start("note")
    await run.result()
    return [], await met(run.retry_from(1)), await desk.exit("retry", run.id, "--turn", "1")


SITUATIONS: dict[str, Callable[[Desk], Awaitable[Seen]]] = {
    "there is no server at the address": _no_server,
    "the server stops answering": _silent_server,
    "the server has no such namespace": _no_namespace,
    "the server refuses who asks": _forbidden,
    "a start is malformed": _malformed_start,
    "a start or message is over 2 MB": _too_large,
    "the id is that of a run with this very request": _same_request,
    "the id is that of a run with another request": _other_request,
    "no worker takes the run": _no_worker,
    "there is no such run": _no_run,
    "a run cannot take an update, or the body is malformed": _refused,
    "a message was taken before": _duplicate,
    "a message comes as the run ends": _as_it_ends,
    "an update comes after the end": _after_the_end,
    "no worker answers an update": _unanswered_update,
    "no worker answers a query": _unanswered_query,
    "a run ends without reading a message": _unread,
    "an output is not of the type asked for": _other_type,
    "there is no such turn to fork or retry from": _no_turn,
    "turns to be run again have changed the world": _effects,
}
ELSEWHERE = {
    "a stored part of what was said is lost": "test_store_faults.py",
    "`AgentClient` is used inside a workflow": "test_client.py",
}
"""Shown by other tests."""


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_refusals_are_what_the_page_says(
    rig: RigFactory, client: Client, server: EmbeddedServer, tmp_path: Path
) -> None:
    """Every row is brought about, side by side: with a bare client, AgentClient and a command."""
    nobody = AgentClient(client, task_queue=f"unserved-{uuid.uuid4()}")
    async with rig(script, tools=[note]) as r:
        closed, talk, waiting = (
            await r.start("closed", id=f"closed-{uuid.uuid4()}"),
            await r.start("open", keep_open=True),
            await nobody.start(AGENT, "waiting"),
        )
        await closed.result()
        await talk.send("Hi", message_id="m-1")
        await talk.reply("m-1")
        desk = Desk(r, Shell(server, tmp_path), server.address, closed, talk, nobody, waiting)
        seen = dict(
            zip(
                SITUATIONS,
                await asyncio.gather(*(make(desk) for make in SITUATIONS.values())),
                strict=True,
            )
        )
        await talk.stop()
        await client.get_workflow_handle(waiting.id).terminate(reason="the test is over")
    listed = {
        row[0]: (words(row[1]), [w for w in words(row[2]) if w != "timeout="], row[3])
        for row in REFUSALS
    }
    assert {row: listed[row] for row in seen} == seen
    assert listed.keys() == seen.keys() | ELSEWHERE.keys()


async def test_a_run_that_the_provider_rejected_is_retried(rig: RigFactory) -> None:
    """What the page advises, under the same id."""
    async with rig(script) as r:
        run = await r.start("reject")
        with pytest.raises(RunFailed):
            await run.result()
        again = await run.retry_from(1)
        assert again.id == run.id
        assert (await again.result(timeout=60)).outcome == "completed"
