"""The samples of services: real processes of four clients, against one worker and one server."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sqlite3
import sys
import textwrap
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from temporalio.client import Client, WorkflowFailureError, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from examples.services import bare
from examples.services.agent import agent
from examples.services.script import script
from tests.rig import Rig, open_rig
from tests.test_layers import OURS, imported_by
from turnkeeper.testing.embedded import EmbeddedServer, find_temporal

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "examples/services"
CLI = ["sh", str(SAMPLES / "cli.sh")]
CLIENTS = ("client", "bare", "cli", "typescript")
# The first process of all installs packages.
pytestmark = pytest.mark.timeout(300)


@dataclass
class Desk:
    """The worker, and what its tool has paid back."""

    rig: Rig
    folder: Path

    def refunds(self, order: int) -> int:
        """How often an order was paid back."""
        with closing(sqlite3.connect(self.folder / "refunds.db")) as database:
            found = database.execute("SELECT count(*) FROM refunds WHERE paid = ?", (order,))
            return int(found.fetchone()[0])


@dataclass
class Ended:
    """A process that has ended."""

    status: int | None
    printed: str
    complaints: str


@dataclass
class Called:
    """What a sample has printed, and the same command again."""

    first: Ended
    again: Ended
    """After its runs have closed."""
    resumed: Ended
    """While its conversation is open, and its message was taken."""


@pytest.fixture(scope="module")
async def desk(client: Client, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Desk]:
    """It serves the samples' agent."""
    folder = tmp_path_factory.mktemp("desk")
    with pytest.MonkeyPatch.context() as settings:
        settings.setenv("SERVICES_HOME", str(folder))
        async with open_rig(client, folder, script, agents=[agent]) as r:
            yield Desk(r, folder)


NEEDS = {"cli": ["jq"], "typescript": ["node", "npm"]}
MISSING = {
    name: missing
    for name, programs in NEEDS.items()
    if (missing := [p for p in programs if not shutil.which(p)])
}
"""Programs that samples need and that are not here."""
UNREACHABLE = ("ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ETIMEDOUT")
"""What npm says when there is no network."""


@pytest.fixture(scope="module")
async def called(
    desk: Desk, server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, Called]:
    """All samples for which there is what they need, side by side, each three times."""
    environment = environment_of(desk, server)

    async def thrice(name: str) -> Called:
        folder, command = ROOT, [sys.executable, str(SAMPLES / "bare.py"), name]
        if name == "client":
            command = [sys.executable, "-m", "examples.services.client", name]
        elif name == "cli":
            command = [*CLI, name]
        elif name == "typescript":
            folder = typescript
            command = ["node", "build/sample.js", name]
        first = await ended(command, folder, environment)
        again = await ended(command, folder, environment)
        await begin_to_talk(desk, name)
        return Called(first, again, await ended(command, folder, environment))

    typescript = tmp_path_factory.mktemp("typescript")
    names = [n for n in CLIENTS if n not in MISSING]
    if "typescript" in names and not await installed(typescript):
        names.remove("typescript")
    found = await asyncio.gather(*map(thrice, names))
    return dict(zip(names, found, strict=True))


def environment_of(desk: Desk, server: EmbeddedServer) -> dict[str, str]:
    """The environment of the samples."""
    return os.environ | {
        "TEMPORAL": find_temporal(),
        "TEMPORAL_ADDRESS": server.address,
        "TURNKEEPER_ARTIFACTS": str(desk.folder / "artifacts"),
        "TURNKEEPER_TASK_QUEUE": desk.rig.task_queue,
    }


async def begin_to_talk(desk: Desk, key: str) -> None:
    """Start a conversation anew, and leave it where a service that dies after `send` does."""
    start = {"agent": "desk", "keep_open": True, "request_key": key}
    run = await desk.rig.start_raw(start, id=f"chat-{key}")
    body = {"message_id": f"{key}-1", "text": "Hello?", "actor": "ann"}
    assert await bare.tell(run, "send", body)


async def installed(folder: Path) -> bool:
    """Copy the sample in TypeScript, with the packages of its lock; False without a registry."""
    source = SAMPLES / "typescript"
    shutil.copytree(
        source, folder, ignore=shutil.ignore_patterns("node_modules", "build"), dirs_exist_ok=True
    )
    for command in (["npm", "ci", "--no-audit", "--no-fund"], ["npm", "run", "build"]):
        done = await ended(command, folder, os.environ)
        if any(code in done.complaints for code in UNREACHABLE):
            return False
        assert done.status == 0, done.printed + done.complaints
    return True


async def ended(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> Ended:
    """Run a command to its end, for up to two minutes."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        printed, complaints = await asyncio.wait_for(process.communicate(), 120)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return Ended(process.returncode, printed.decode(), complaints.decode())


def called_by(name: str, called: Mapping[str, Called]) -> Called:
    """A sample's processes; skips the test where there are none."""
    if name not in called:
        pytest.skip(f"not here: {', '.join(MISSING.get(name, ['the npm registry']))}")
    return called[name]


# --- the samples ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CLIENTS)
def test_a_service_starts_approves_talks_stops_and_reads_results(
    called: Mapping[str, Called], name: str
) -> None:
    """Whatever its client: outcomes, answers, and the type of the failure of a run that failed."""
    first = called_by(name, called).first
    assert first.status == 0, first.complaints
    *lines, failed = first.printed.splitlines()
    assert lines == [
        f"refund-{name}: completed: Refunded order 1007.",
        f"chat-{name}: answer: You said: Hello?",
        f"chat-{name}: stopped: You said: Hello?",
    ]
    assert failed.startswith(f"nobody-{name}: failed: unknown_agent: ")
    assert "'nobody'" in failed


@pytest.mark.parametrize("name", CLIENTS)
def test_a_start_that_is_repeated_is_refused(called: Mapping[str, Called], name: str) -> None:
    """After the runs have closed: the service reads the results that there are."""
    first, again = called_by(name, called).first, called_by(name, called).again
    assert again.status == 0, again.complaints
    refused = [line for line in again.printed.splitlines() if line.endswith(": was started before")]
    assert [line.partition("-")[0] for line in refused] == ["refund", "chat", "nobody"]
    read = [line for line in again.printed.splitlines() if line not in refused]
    assert read == [line for line in first.printed.splitlines() if ": answer: " not in line]


@pytest.mark.parametrize("name", CLIENTS)
def test_a_message_that_is_repeated_counts_as_taken(
    called: Mapping[str, Called], name: str
) -> None:
    """The same command goes on with the conversation that another process has left open."""
    resumed = called_by(name, called).resumed
    assert resumed.status == 0, resumed.complaints
    assert [line for line in resumed.printed.splitlines() if line.startswith("chat-")] == [
        f"chat-{name}: was started before",
        f"chat-{name}: answer: You said: Hello?",
        f"chat-{name}: stopped: You said: Hello?",
    ]


def test_starts_that_are_repeated_bring_no_second_effect(
    called: Mapping[str, Called], desk: Desk
) -> None:
    """Each service has paid back once, and its run has asked the model for two replies, no more."""
    assert desk.refunds(1007) == len(called)
    prompts = [request.prompt for request in desk.rig.provider.requests]
    assert prompts.count("Refund order 1007.") == 2 * len(called)


@pytest.mark.skipif("cli" in MISSING, reason="needs jq")
async def test_the_shell_script_ends_with_the_clis_own_words(
    desk: Desk, server: EmbeddedServer
) -> None:
    """Where a run cannot be asked, and where one was cancelled; of neither it says how it went."""
    client, queue = desk.rig.client, desk.rig.task_queue
    body = {"agent": "desk", "keep_open": True}
    silent = await client.start_workflow("AgentRun", body, id="refund-silent", task_queue="nobody")
    await silent.terminate()
    cancelled = await client.start_workflow(
        "AgentRun", body, id="refund-cancelled", task_queue=queue
    )
    await cancelled.query("status")  # its worker has it
    await cancelled.cancel()
    with pytest.raises(WorkflowFailureError):
        await cancelled.result()
    for key, words in (("silent", "Error: querying workflow failed"), ("cancelled", "CANCELED")):
        done = await ended([*CLI, key], ROOT, environment_of(desk, server))
        assert (done.status, done.printed) == (1, f"refund-{key}: was started before\n")
        assert words in done.complaints


def test_the_bare_sample_needs_nothing_of_ours() -> None:
    """A service with Temporal's SDK alone can copy it."""
    assert not imported_by(SAMPLES / "bare.py") & OURS


# --- without them ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("order", "key", "applied"), [(2001, {}, 2), (2002, {"request_key": "q-17"}, 1)]
)
async def test_what_a_client_gets_wrong_without_policy_and_key(
    desk: Desk, order: int, key: dict[str, str], applied: int
) -> None:
    """By default an id is started again once its run has closed. Without a request key that pays
    back twice; with the same one the second run's call has the first one's key, and changes
    nothing."""
    request = {"agent": "desk", "prompt": f"Refund order {order}."} | key
    runs: set[str | None] = set()
    for _ in range(2):
        run = await desk.rig.client.start_workflow(
            "AgentRun", request, id=f"order-{order}", task_queue=desk.rig.task_queue
        )
        runs.add(run.result_run_id)
        await bare.approve(run)
        assert (await run.result())["answer"] == f"Refunded order {order}."
    assert (len(runs), desk.refunds(order)) == (2, applied)


async def test_refusals_have_types(desk: Desk) -> None:
    """As docs/services.md has them: a wrong body, a message that was taken before, a run that has
    ended."""
    start = {"agent": "desk", "keep_open": True}
    run = await desk.rig.start_raw(start, id="refusals")
    message = {"message_id": "m-1", "text": "Hello?"}
    assert await bare.tell(run, "send", message)
    for update, body, kind in (
        ("send", message, "duplicate_message"),
        ("send", {"text": "Hello?"}, "invalid_request"),
        ("approve", {"approval": "none"}, "invalid_request"),
    ):
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await run.execute_update(update, body)
        assert isinstance(refused.value.cause, ApplicationError)
        assert refused.value.cause.type == kind
    assert await bare.tell(run, "stop", {})
    assert (await run.result())["outcome"] == "stopped"
    assert not await bare.tell(run, "send", message)
    with pytest.raises(RPCError) as missing:
        await desk.rig.client.get_workflow_handle("none").execute_update("stop", {})
    assert missing.value.status is RPCStatusCode.NOT_FOUND


# --- the page -------------------------------------------------------------------------------------

PAGE = (ROOT / "docs/services.md").read_text()
LABELLED = re.compile(r"\]\(\.\./(\S+)\)\):\n\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""A block under the name of the file that it is from."""


@pytest.mark.parametrize(("sample", "excerpt"), LABELLED.findall(PAGE))
def test_what_the_page_shows_is_in_a_sample(sample: str, excerpt: str) -> None:
    """Literally, but for how far it is indented."""
    source = (ROOT / sample).read_text()
    assert any(textwrap.indent(excerpt, " " * width) in source for width in (0, 2, 4, 8))


def test_the_page_names_the_sample_of_each_block() -> None:
    """Two of one language look alike. Of each client there are some."""
    samples = [sample for sample, _ in LABELLED.findall(PAGE)]
    assert len(samples) == len(re.findall(r"^```\w", PAGE, re.MULTILINE))
    files = ("client.py", "bare.py", "cli.sh", "typescript/sample.ts")
    assert set(samples) == {f"examples/services/{file}" for file in files}
