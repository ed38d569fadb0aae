"""The pytest plugin, as an author meets it: a folder of their own, and a pytest of its own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest
from temporalio.client import Client

from tests.pages import code, write_refunds
from turnkeeper.testing.embedded import EmbeddedServer

pytest_plugins = ["pytester"]
# One session of the author's is run, by whichever test comes first.
pytestmark = [
    pytest.mark.crash,
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.timeout(300),
]

SESSION = pytest.StashKey["Ran"]()

OTHER_TOOLS = '''
import os
import sqlite3
import time

from turnkeeper import Agent, ToolContext, tool
from turnkeeper.testing import Effects


@tool(effect="idempotent")
def refund_blindly(order: str, ctx: ToolContext) -> str:
    """Refund an order, each time anew."""
    body = {"order": order, "key": ctx.idempotency_key}
    Effects(os.environ["EFFECTS_URL"]).plain("refund_blindly", body)
    return f"refunded {order}"


@tool(effect="once")
async def note(order: str, ctx: ToolContext) -> str:
    """Write to a book of our own."""
    with sqlite3.connect(os.environ["BOOK"]) as book:
        book.execute("CREATE TABLE IF NOT EXISTS notes (key TEXT, time REAL)")
        book.execute("INSERT INTO notes VALUES (?, ?)", (ctx.idempotency_key, time.time()))
    return f"noted {order}"


agent = Agent(
    name="others",
    model="claude-sonnet-5-5",
    instructions="You are a test.",
    tools=[refund_blindly, note],
    on_unknown="wait",
)
'''
OTHER_TESTS = """
import asyncio
import sqlite3
from contextlib import closing

import pytest
from turnkeeper.testing import Applied, KilledAtEveryPoint, call, text

with_others = pytest.mark.turnkeeper(worker=["python", "worker.py", "--agents", "others"])


def asked(tool):
    return dict(agent="others", tool=tool, script=[call(tool, {"order": "o-1"}), text("Done.")])


@with_others
def test_blind(killed_at_every_point: KilledAtEveryPoint):
    killed_at_every_point(**asked("refund_blindly"))


@with_others
def test_own_book(killed_at_every_point, tmp_path_factory):
    book = tmp_path_factory.getbasetemp() / "book.db"

    def notes(folder):
        with closing(sqlite3.connect(book)) as reading:
            return [Applied("note", *row) for row in reading.execute("SELECT * FROM notes")]

    async def prove():
        return await asyncio.to_thread(
            killed_at_every_point,
            **asked("note"),
            effects=notes,
            environment={"BOOK": str(book)},
        )

    case = asyncio.run(prove())
    assert [call.tool for call in case.result.unknown] == ["note"]


@pytest.mark.turnkeeper(worker="worker.py --agents nowhere")
def test_wrong_agents(killed_at_every_point):
    killed_at_every_point(**asked("note"))


@pytest.mark.turnkeeper(worker=["/usr/bin/python9", "worker.py"])
def test_wrong_python(killed_at_every_point):
    killed_at_every_point(**asked("note"))


@pytest.mark.turnkeeper(root="nowhere")
def test_wrong_root(killed_at_every_point):
    killed_at_every_point(**asked("note"))
"""
CHOSEN = (
    "--crash-points=effect.sent:1,tool.done:1,ledger.committed:1",
    "test_refunds.py",
    *(f"test_others.py::test_{t}[tool.done-1]" for t in ("blind", "own_book")),
    *(f"test_others.py::test_wrong_{what}[tool.done-1]" for what in ("agents", "python", "root")),
)


class Ran(NamedTuple):
    """A pytest session of the author: how each test ended, and all that it printed."""

    ends: dict[str, str]
    output: str

    def report(self, test: str) -> str:
        """What it printed of a test that failed."""
        head = rf"^_+ {re.escape(test)} _+$"
        found = re.search(rf"{head}(.*?)(?=^_+ |^=+ )", self.output, re.MULTILINE | re.DOTALL)
        assert found, self.output
        return found[1]


class Author:
    """A folder outside of the checkout, in which pytest is run."""

    def __init__(self, pytester: pytest.Pytester, address: str) -> None:
        self.folder = pytester.path
        self._pytester = pytester
        write_refunds(self.folder)
        fixture = "import pytest\n\n@pytest.fixture(scope='session')\ndef turnkeeper_address():\n"
        (self.folder / "conftest.py").write_text(f"{fixture}    return {address!r}\n")
        (self.folder / "others.py").write_text(OTHER_TOOLS)
        (self.folder / "test_others.py").write_text(OTHER_TESTS)

    def pytest(self, *options: str) -> Ran:
        """Run it; an environment with the package would load the plugin by itself."""
        loaded = ["-p", "turnkeeper.testing.plugin"]
        ran = self._pytester.runpytest_subprocess(*loaded, "-vrs", *options, timeout=280)
        output = ran.stdout.str() + ran.stderr.str()
        ends = re.findall(r"^\S+::(\S+) ([A-Z]+)", output, re.MULTILINE)
        return Ran({test: end.lower() for test, end in ends}, output)


@pytest.fixture
def author(pytester: pytest.Pytester, server: EmbeddedServer, client: Client) -> Author:
    """Their runs are on the session's server: their histories are replayed at its end."""
    return Author(pytester, server.address)


@pytest.fixture
def ran(author: Author, request: pytest.FixtureRequest) -> Ran:
    """What became of the chosen tests, each at one or more points."""
    stash = request.config.stash
    if SESSION not in stash:
        stash[SESSION] = author.pytest(*CHOSEN)
    return stash[SESSION]


@pytest.mark.long
def test_the_tool_of_the_page_keeps_its_promise(ran: Ran) -> None:
    """The code of the page passes, each crash point under a name of its own."""
    ends = {test: end for test, end in ran.ends.items() if test.startswith("test_refund[")}
    assert ends == {
        "test_refund[effect.sent-1]": "skipped",
        "test_refund[tool.done-1]": "passed",
        "test_refund[ledger.committed-1]": "passed",
    }, ran.output


def test_a_point_that_is_never_met_is_skipped_with_a_reason(ran: Ran) -> None:
    """This tool posts nothing to the effect ledger: nothing is proved at a point of it."""
    never = r"agent never comes to effect\.sent, first time \(a POST to the effect ledger"
    assert re.search(never, ran.output)


def _shape(line: str) -> str:
    return re.sub(r"key \w+|\d+\.\d s", "#", line.strip())


def test_a_broken_promise_is_told_in_words(ran: Ran) -> None:
    """Promise, kill, effects, and where the histories are: as the page shows it, but for keys,
    times and folders."""
    report = ran.report("test_blind[tool.done-1]")
    shown = code("docs/prove-your-tool.md", "", "does not keep its promise").splitlines()
    lines = {_shape(line) for line in report.splitlines()}
    assert {_shape(line) for line in shown if "/tmp/" not in line} <= lines  # noqa: S108 - a page
    assert "refund_blindly (idempotent) does not keep its promise" in report
    assert "I1: an idempotent or reconcilable call is applied once" in report
    assert "at tool.done, passing 1: the tool has done its work" in report
    assert "I1: refund_blindly was applied 2 times" in report
    assert re.search(r"plain refund_blindly, key \w{12}, applied, \d+\.\d s after the kill", report)
    (folder,) = re.findall(r"^logs +(.+)$", report, re.MULTILINE)
    assert list(Path(folder, "histories").iterdir())


def test_an_author_may_bring_a_ledger_and_a_loop(ran: Ran) -> None:
    """Rows of earlier runs in the same book do not count; the author's loop goes on meanwhile."""
    assert ran.ends["test_own_book[tool.done-1]"] == "passed", ran.output


def test_a_worker_that_does_not_start_is_told_with_its_log(ran: Ran) -> None:
    """Nobody waits for it; what is wrong with its command is said in one line or by its log."""
    agents = ran.report("test_wrong_agents[tool.done-1]")
    assert "worker-0 is not ready, status 2" in agents
    assert "nowhere" in agents
    python = "runs in the Python that runs the tests, not in /usr/bin/python9"
    assert python in ran.report("test_wrong_python[tool.done-1]")
    assert "nowhere is not a folder" in ran.report("test_wrong_root[tool.done-1]")


def test_a_crash_point_that_does_not_exist_is_refused(author: Author) -> None:
    """Before anything is run."""
    refused = author.pytest("--crash-points=tool.dnoe")
    assert refused.ends == {}
    assert "--crash-points: there is no crash point 'tool.dnoe'" in refused.output
