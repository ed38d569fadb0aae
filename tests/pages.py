"""What people copy from the pages, so that what is tested is what they read.

Every block of README.md and docs/*.md is run by a test. Commands of `starter.py` are typed one by
one by `tests/test_pages_run.py`, unless they stand in `ELSEWHERE`; for every other block `BLOCKS`
names the test. `tests/test_pages.py` fails for a block of which nothing is known.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

BLOCKS = {
    ("README.md", 'name="weather"'): "tests/test_pages_run.py::write_agents",
    ("README.md", "def test_the_forecast"): (
        "tests/testing/test_rehearsal.py::test_the_tests_on_the_pages_pass"
    ),
    ("README.md", "def book_pickup"): "tests/test_pages_run.py::test_a_pickup_is_booked_once",
    ("docs/tools.md", "approval=is_large"): "tests/test_pages_run.py::write_agents",
    ("docs/tools.md", "once_per_key(connection, ctx)"): (
        "tests/test_pages.py::test_the_refund_of_the_page_is_made_once"
    ),
    ("docs/tools.md", "output=Total"): "tests/test_pages_run.py::test_a_typed_answer_is_a_value",
    ("README.md", 'id="q-17"'): "tests/test_pages_run.py::test_the_programs_print_an_answer",
    ("README.md", "client.send_or_start"): (
        "tests/test_pages_run.py::test_the_programs_print_an_answer"
    ),
    ("README.md", '{"agent": "finance"'): "tests/test_pages.py::test_bodies_fit_the_contract",
    ("docs/own-repository.md", "def test_the_stock"): (
        "tests/testing/test_rehearsal.py::test_the_tests_on_the_pages_pass"
    ),
    ("docs/own-repository.md", "def test_a_large_refund"): (
        "tests/testing/test_rehearsal.py::test_the_tests_on_the_pages_pass"
    ),
    ("docs/prove-your-tool.md", "def test_refund"): (
        "tests/testing/test_plugin.py::test_the_tool_of_the_page_keeps_its_promise"
    ),
    ("docs/prove-your-tool.md", "[pytest]"): (
        "tests/testing/test_plugin.py::test_the_tool_of_the_page_keeps_its_promise"
    ),
    ("docs/prove-your-tool.md", "does not keep its promise"): (
        "tests/testing/test_plugin.py::test_a_broken_promise_is_told_in_words"
    ),
    ("docs/services.md", ""): (
        "tests/examples/test_services.py::test_what_the_page_shows_is_in_a_sample"
    ),
    ("docs/tools.md", "def count_rows"): (
        "tests/test_tools.py::test_the_example_that_reads_an_artifact_does"
    ),
    ("docs/workers.md", "def receive"): "tests/test_pages.py::test_a_notice_is_received",
}
"""By page and a text that is in no other block of it, or none for all blocks of a page: the test
that runs it."""

ELSEWHERE = {
    "make demo": "tests/test_demo.py::test_the_demo_answers_and_says_where_to_look",
    # It is what runs this test.
    "make test": "tests/test_set_up.py::test_help_is_the_default_and_needs_nothing",
    ".venv/bin/python worker.py --agents examples.finance": "tests/test_starter.py::dev",
    "REPO/.venv/bin/python REPO/starter.py dev --agents weather --script weather_script:script": (
        "tests/test_pages_run.py::serving"
    ),
    "cd my_agents": "tests/test_packaging.py::repository",
    "python3 -m venv .venv": "tests/test_packaging.py::installed",
    '.venv/bin/pip install "REPO[testing]" pytest': "tests/test_packaging.py::installed",
    ".venv/bin/python REPO/starter.py new kettles --folder .": "tests/test_pages_run.py::serving",
    ".venv/bin/python -m pytest test_kettles.py": (
        "tests/test_packaging.py::test_a_new_agent_is_tested_in_a_repository_of_its_own"
    ),
    ".venv/bin/python REPO/starter.py dev --agents kettles --script kettles_script:script": (
        "tests/test_packaging.py::test_the_checkouts_worker_serves_agents_of_another_repository"
    ),
    "python REPO/worker.py --agents my_agents --address temporal.example.com:7233": (
        "tests/workers.py::worker"
    ),
}
"""Commands that another test types: those that do not end, and what sets a machine up."""

_FENCED = re.compile(r"^```(\S*).*?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?:^ {4}.*\n(?:\n(?= {4}))?)+", re.MULTILINE)
_TYPED = re.compile(r"make |cd |\S*(?:python3?|pip) ")


@dataclass(frozen=True)
class Block:
    """A block of code; `language` is empty for one that is only indented."""

    page: str
    language: str
    text: str

    @property
    def commands(self) -> list[str]:
        """Its lines without comments, if they are to be typed."""
        lines = [re.sub(r" +#.*", "", line) for line in self.text.splitlines()]
        typed = self.language in ("", "sh") and _TYPED.match(self.text)
        return [line for line in lines if line] if typed else []


def blocks() -> Iterator[Block]:
    """All of them, but for what Sphinx reads: `make docs` fails for that."""
    for path in PAGES:
        page, text = str(path.relative_to(ROOT)), path.read_text()
        for language, block in _FENCED.findall(text):
            if not language.startswith("{"):
                yield Block(page, language, block)
        for block in _INDENTED.findall(_FENCED.sub("", text)):
            yield Block(page, "", textwrap.dedent(block))


def commands() -> list[str]:
    """All that are to be typed, each once."""
    return list(dict.fromkeys(command for block in blocks() for command in block.commands))


def inline() -> Iterator[str]:
    """What stands in backticks within the text, on one line."""
    for path in PAGES:
        for span in re.findall(r"`([^`]+)`", _FENCED.sub("", path.read_text())):
            yield " ".join(span.split())


def code(page: str, language: str, containing: str = "") -> str:
    """The only block of a page in this language that contains this text."""
    (block,) = [
        b.text
        for b in blocks()
        if (b.page, b.language) == (page, language) and containing in b.text
    ]
    return block


def write_refunds(folder: Path) -> None:
    """A folder of an author who follows `docs/prove-your-tool.md`, with this checkout's worker."""
    page = "docs/prove-your-tool.md"
    refunds = code("docs/tools.md", "python", "once_per_key(connection, ctx)")
    (folder / "refunds.py").write_text(refunds)
    (folder / "test_refunds.py").write_text(code(page, "python", "def test_refund"))
    (folder / "pytest.ini").write_text(code(page, "ini").replace("REPO", str(ROOT)))
