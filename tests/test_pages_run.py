"""What stands on the pages, run as a reader would: `starter.py dev` with the agents of the pages,
and the commands and programs beside it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from temporalio.client import WorkflowFailureError

from tests import forked
from tests.archive import Archive
from tests.contract_files import published
from tests.pages import ELSEWHERE, ROOT, code, commands
from tests.rig import until
from tests.test_pages import run
from tests.test_starter import environment, processes_of
from turnkeeper.artifacts import FolderStore
from turnkeeper.client import AgentClient, AgentRunHandle
from turnkeeper.contract import STATUS, TASK_QUEUE, WORKFLOW
from turnkeeper.json_schema import JsonSchema
from turnkeeper.testing.stack import living_dev

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

CARRIER = '''
class Carrier:
    """Books, and does not answer the first time."""

    def __init__(self):
        self.booked = []

    async def book(self, order_id, reference):
        self.booked.append(reference)
        raise OSError("connection lost")

    async def find(self, reference):
        return f"{self.booked.count(reference)} booking" if reference in self.booked else None


carrier = Carrier()
'''
OTHERS = '''
from turnkeeper import Agent, tool


@tool(effect="read")
def look() -> str:
    """Look something up."""
    return "seen"


@tool
def send(to: str) -> str:
    """Send."""
    raise OSError("connection lost")


def agent(name, *tools, **more):
    return Agent(name=name, model="claude-sonnet-5-5", instructions="i", tools=tools, **more)


finance = agent("finance", look)
doubts = agent("doubts", send, on_unknown="wait")
'''
SCRIPT = """
from kettles_script import script as kettles
from turnkeeper.testing import call, text
from turnkeeper.testing.provider.script import answer


def told(x):
    return text(x.last_results[0].text)


SCRIPTS = {
    "forecast": [call("forecast", {"city": "Paris"}), told],
    "in_stock": kettles,
    "book_pickup": [call("book_pickup", {"order_id": "o-1"}), told],
    "issue_refund": [call("issue_refund", {"order": 7, "amount": "249.00"}), told],
    "send": [call("send", {"to": "ann"}), told],
    "look": lambda x: call("look") if x.prompt == "three turns" and x.turn < 2 else text("Yes."),
}


def script(x):
    for tool in x.tools:
        if tool in SCRIPTS:
            return answer(SCRIPTS[tool], x)
    return text('{"order": "A-7", "cents": 1250}')
"""
LOOKED_AT = ("show", "why", "watch", "export", "fork", "unknown")
"""Commands that leave a closed run as it is."""


@dataclass
class Desk:
    """A reader's folder, with what is served from it."""

    folder: Path
    state: Path
    agents: AgentClient
    told: AgentRunHandle
    """A run of three turns, with its end; another one waits for word about a call."""

    def type(self, command: str, **more: Any) -> subprocess.CompletedProcess[str]:
        """A command of a page, to its end; `--state` stands for a checkout of one's own."""
        _, program, *arguments = shlex.split(command.replace("REPO", str(ROOT)))
        placed = [str(ROOT / program), "--state", str(self.state), *arguments]
        return self.execute(placed, **more)

    def execute(self, arguments: list[str], **more: Any) -> subprocess.CompletedProcess[str]:
        """A Python program, in the folder."""
        address = self.agents.client.service_client.config.target_host
        env = environment(TEMPORAL_ADDRESS=address, COLUMNS="200", USER="ann")
        return forked.run(arguments, cwd=self.folder, env=env, timeout=90, stdin=None, **more)

    async def refund(self) -> tuple[AgentRunHandle, str]:
        """A run that waits for an approval, and the approval."""
        started = await self.agents.start("refunds", "Refund order 7.")

        async def asked() -> str:
            return "".join(
                [a.asked.id async for a in self.agents.approvals() if a.id == started.id]
            )

        return started, await until(asked)

    async def meant(self, verb: str, names: list[str]) -> dict[str, str]:
        """What ID, RUN, CALL and APPROVAL stand for in a command."""
        if "APPROVAL" in names:
            started, approval = await self.refund()
            return {"RUN": started.id, "APPROVAL": approval}
        if "CALL" in names:
            started = await self.agents.start("doubts", "Send it.")
            (found,) = await until(lambda: self.agents.unknown_calls_of(started.id))
            return {"RUN": started.id, "CALL": found.call.call_id}
        if verb in LOOKED_AT:
            return {"ID": self.told.id, "RUN": self.told.id}
        if verb == "retry":
            # A run of its own: it is open again afterwards.
            started = await self.agents.start("finance", "three turns")
            await started.result()
        else:
            started = await self.agents.start("finance", keep_open=True)
        return {"ID": started.id}


def write_agents(folder: Path) -> None:
    """The agents of the pages, and a few more, as one module; and what plays the model."""
    page = "docs/tools.md"
    refunds, totals = (code(page, "python", x) for x in ("approval=is_large", "output=Total"))
    pickups = CARRIER + code("README.md", "python", "book_pickup")
    (folder / "page_refunds.py").write_text(refunds)
    (folder / "page_totals.py").write_text(totals)
    (folder / "page_pickups.py").write_text(pickups)
    (folder / "page_others.py").write_text(OTHERS)
    (folder / "weather.py").write_text(
        code("README.md", "python", 'name="weather"')
        + "\nfrom kettles import agent as kettles\n"
        + "from page_others import agent as made, doubts, finance\n"
        + "from page_pickups import book_pickup\n"
        + "from page_refunds import agent as refunds\n"
        + "from page_totals import agent as totals\n"
        + 'pickups = made("pickups", book_pickup)\n'
    )
    (folder / "weather_script.py").write_text(SCRIPT)


@contextlib.contextmanager
def serving(folder: Path, state: Path) -> Iterator[str]:
    """Type what the pages say: write an agent, serve it and those of the pages; the address."""

    def typed(command: str) -> list[str]:
        (line,) = [c for c in ELSEWHERE if command in c]
        _, program, *arguments = shlex.split(line.replace("REPO", str(ROOT)))
        return [sys.executable, program, "--state", str(state), *arguments]

    subprocess.run(typed("starter.py new"), cwd=folder, check=True, capture_output=True)
    write_agents(folder)
    process = subprocess.Popen(
        typed("dev --agents weather"),
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        lines = list(itertools.takewhile(lambda x: not x.startswith("Ctrl-C"), process.stdout))
        record = living_dev(state)
        assert record is not None, "".join(lines)
        yield record.address
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 0
    assert not processes_of(state)


@pytest.fixture(scope="module")
async def desk(tmp_path_factory: pytest.TempPathFactory, histories: Archive) -> AsyncIterator[Desk]:
    """With the runs that commands look at."""
    folder = tmp_path_factory.mktemp("desk")
    state = folder / "state"
    with serving(folder, state) as address:
        client = histories.watched((await AgentClient.connect(address)).client)
        agents = AgentClient(client, store=FolderStore(state / "artifacts"))
        told = await agents.start("finance", "three turns", metadata={"tenant": "acme"})
        doubt = await agents.start("doubts", "Send it.")
        await told.result()
        await until(lambda: agents.unknown_calls_of(doubt.id))
        yield Desk(folder, state, agents, told)
        await histories.take(client)


# --- commands -------------------------------------------------------------------------------------

TYPED = [c for c in commands() if "starter.py " in c and c not in ELSEWHERE]
PRINTED = {
    'run "Will it rain in Paris?" --agent weather': "Paris: sunny for 1 days\n",
    'run "How many teapots are there?" --agent kettles': "In stock: 4.\n",
    'send ID "..." --wait': "Yes.\n",
    "show ID --html": ".html",
    "show ID --html -": "<!doctype html>",
    "why ID": "completed",
    "list --waiting-for person": "doubts",
    "unknown": "doubts",
    "switch list": "issue_refund",
}
"""Words that a command prints."""


@pytest.mark.parametrize("command", TYPED)
async def test_a_command_of_the_pages_works(desk: Desk, command: str) -> None:
    """It ends with 0, with what ID and the like stand for put in."""
    verb, *arguments = shlex.split(command.partition("starter.py ")[2])
    names = re.findall(r"\b(?:ID|RUN|CALL|APPROVAL)\b", command)
    meant = await desk.meant(verb, names) if names else {}
    filled = re.sub(r"\b(?:ID|RUN|CALL|APPROVAL)\b", lambda x: meant[x[0]], command)
    if verb == "switch" and arguments[0] == "list":
        await desk.agents.switch_off("tool", "issue_refund", "paid twice")
    done = await asyncio.to_thread(desk.type, filled)
    if verb == "switch":
        await desk.agents.switch_on("tool", "issue_refund")
    assert done.returncode == 0, done.stderr
    assert PRINTED.get(command.partition("starter.py ")[2], "") in done.stdout


def test_what_commands_print_is_looked_for() -> None:
    """Each of `PRINTED` is of a command."""
    assert len(TYPED) > 30
    assert PRINTED.keys() <= {command.partition("starter.py ")[2] for command in TYPED}


# --- programs and agents --------------------------------------------------------------------------


@pytest.mark.parametrize("words", ['id="q-17"', "client.send_or_start"])
async def test_the_programs_print_an_answer(desk: Desk, words: str) -> None:
    """Those of the README that call an agent, each run as a program."""
    program = desk.folder / "program.py"
    program.write_text(code("README.md", "python", words))
    done = await asyncio.to_thread(desk.execute, [str(program)])
    assert (done.returncode, done.stdout) == (0, "Yes.\n"), done.stderr


async def test_a_pickup_is_booked_once(desk: Desk) -> None:
    """The carrier books and does not answer: the probe of the README finds it."""
    run = await desk.agents.start("pickups", "Book a pickup.")
    assert (await run.result()).answer == "1 booking"


async def test_a_typed_answer_is_a_value(desk: Desk) -> None:
    """As docs/tools.md says: a `Total`."""
    total: type[BaseModel] = run(code("docs/tools.md", "python", "output=Total"))["Total"]
    started = await desk.agents.start("totals", "What does A-7 cost?")
    assert (await started.result(output=total)).model_dump() == {"order": "A-7", "cents": 1250}


# --- what services read ---------------------------------------------------------------------------


async def _result(desk: Desk) -> Any:
    return await desk.agents.client.get_workflow_handle(desk.told.id).result()


async def _failure(desk: Desk) -> Any:
    client = desk.agents.client
    body = {"agent": "finance"}
    handle = await client.start_workflow(WORKFLOW, body, id="bad", task_queue=TASK_QUEUE)
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    last = [event async for event in handle.fetch_history_events()][-1]
    failure = last.workflow_execution_failed_event_attributes.failure
    details = failure.application_failure_info.details.payloads
    return (await client.data_converter.decode(details))[0]


async def _status(desk: Desk) -> Any:
    started, _ = await desk.refund()
    return await desk.agents.client.get_workflow_handle(started.id).query(STATUS)


async def _accepted(desk: Desk) -> Any:
    run = await desk.agents.start("finance", keep_open=True)
    return await desk.agents.client.get_workflow_handle(run.id).execute_update("stop", {})


@pytest.mark.parametrize(
    ("body", "read"),
    [("result", _result), ("result", _failure), ("status", _status), ("accepted", _accepted)],
)
async def test_what_a_service_reads_fits_the_contract(
    desk: Desk, body: str, read: Callable[[Desk], Awaitable[Any]]
) -> None:
    """As it comes from a run, without our own client; every field of it is in the schema."""
    schema = published()[body]
    value = await read(desk)
    assert not JsonSchema({**schema, "additionalProperties": False}).problems(value)
