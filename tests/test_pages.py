"""The pages: every block on them is run by a test, and what needs no server is run here."""

from __future__ import annotations

import base64
import json
import re
import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

import starter
import worker
from tests.contract_files import published
from tests.pages import BLOCKS, ELSEWHERE, ROOT, Block, blocks, code, commands, inline
from turnkeeper.json_schema import JsonSchema
from turnkeeper.schemas import SENT
from turnkeeper.testing import Applied, rehearse
from turnkeeper.webhook import signed_headers

PROGRAM = re.compile(r"\S*python \S*(starter|worker)\.py (.+)")


def known(block: Block) -> list[tuple[str, str]]:
    """The entries for a block."""
    return [(page, words) for page, words in BLOCKS if page == block.page and words in block.text]


@pytest.mark.parametrize("block", list(blocks()), ids=lambda b: f"{b.page}: {b.text[:40]!r}")
def test_every_block_is_run_by_a_test(block: Block) -> None:
    """A new one belongs into `BLOCKS` of tests/pages.py; a command is typed by itself, or belongs
    into `ELSEWHERE`."""
    if block.commands:
        unknown = [c for c in block.commands if c not in ELSEWHERE and "starter.py " not in c]
        assert not unknown
    else:
        assert len(known(block)) == 1


@pytest.mark.parametrize("test", sorted({*BLOCKS.values(), *ELSEWHERE.values()}))
def test_the_test_of_a_block_exists(test: str) -> None:
    """By the name that it is known by."""
    file, _, name = test.partition("::")
    assert re.search(rf"^ *(?:async )?def {name}\(", (ROOT / file).read_text(), re.MULTILINE)


def test_nothing_is_listed_that_is_on_no_page() -> None:
    """Neither blocks nor commands."""
    found = {entry for block in blocks() if not block.commands for entry in known(block)}
    assert found == BLOCKS.keys()
    assert ELSEWHERE.keys() <= set(commands())


@pytest.mark.parametrize("command", [c for c in commands() if PROGRAM.match(c)])
def test_every_command_can_be_typed(command: str) -> None:
    """It has the options that the page gives it."""
    found = PROGRAM.match(command)
    assert found
    parser = (starter if found[1] == "starter" else worker)._parser()
    parser.parse_args(shlex.split(found[2]))


TOLD = sorted({span for span in inline() if re.match(r"(\S*python )?(make|starter\.py|-m) ", span)})


@pytest.mark.parametrize("command", TOLD)
def test_what_the_text_tells_to_type_exists(command: str) -> None:
    """Commands within a sentence: their options, targets and modules."""
    told = re.sub(r"^(REPO/)?(\.venv/bin/)?(python )?", "", command)
    program, _, rest = told.partition(" ")
    if program == "make":
        assert re.search(rf"^{rest}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    elif program == "-m":
        assert find_spec(rest.split()[0])
    else:
        starter._parser().parse_args(shlex.split(rest))


# --- bodies and queries ---------------------------------------------------------------------------

START = {"agent": "finance", "prompt": "Hi"}


def bodies() -> list[dict[str, Any]]:
    """JSON on the pages that is sent to a run; a field alone is one of a start."""
    found = [json.loads(code("README.md", "", '{"agent": "finance"'))]
    for span in inline():
        if re.match(r'\{"(?!thinking)\w+": [^c]', span):
            found.append(json.loads(span))
        elif re.match(r'"\w+": ', span):
            found.append({**START, **json.loads(f"{{{span}}}")})
    return found


@pytest.mark.parametrize("body", bodies(), ids=json.dumps)
def test_bodies_fit_the_contract(body: dict[str, Any]) -> None:
    """Each of them one of the published schemas of what is sent."""
    fits = [name for name in SENT if not JsonSchema(published()[name]).problems(body)]
    assert fits


def test_bodies_are_found() -> None:
    """A start, messages, and fields of a start."""
    assert len(bodies()) >= 6


QUERY = re.compile(r"(Turnkeeper\w+|Temporal\w+|WorkflowType|ExecutionStatus) (=|!=|>|IN|IS) .+")
QUERIES = sorted({span for span in inline() if QUERY.fullmatch(span)})


@pytest.mark.parametrize("query", QUERIES)
async def test_the_server_understands_every_query(client: Client, query: str) -> None:
    """As it stands on a page."""
    assert (await client.count_workflows(query)).count >= 0


def test_queries_are_found() -> None:
    """Those of docs/operate.md are nine."""
    assert len(QUERIES) >= 12


# --- blocks that need no server -------------------------------------------------------------------


def run(block: str, **names: Any) -> dict[str, Any]:
    """What a block of Python defines."""
    found: dict[str, Any] = dict(names)
    exec(block, found)  # noqa: S102 - our own page
    return found


def test_the_refund_of_the_page_is_made_once(tmp_path: Path, monkeypatch: Any) -> None:
    """The tool of docs/tools.md, played twice under one key by the script of its test in
    docs/prove-your-tool.md. The killed worker is for tests/testing/test_plugin.py."""
    url = f"sqlite:///{tmp_path / 'refunds.db'}"
    monkeypatch.setenv("REFUNDS_URL", url)
    module = run(code("docs/tools.md", "python", "once_per_key(connection, ctx)"))
    agent, asked = module["agent"], dict[str, Any]()
    written = run(code("docs/prove-your-tool.md", "python", "def test_refund"))["test_refund"]
    written(asked.update, tmp_path)
    assert (asked["agent"], asked["environment"]) == (agent.name, {"REFUNDS_URL": url})
    (first,), (again,) = (
        rehearse(agent, asked["script"], request_key="q-17").calls for _ in range(2)
    )
    assert first.result == again.result == "Refunded 1250 cents of order o-7."
    assert asked["effects"](tmp_path) == [Applied(asked["tool"], first.key)]
    module["engine"].dispose()


def test_a_notice_is_received(capsys: pytest.CaptureFixture[str]) -> None:
    """The receiver of docs/workers.md takes what a worker signs."""
    import time

    secret = "whsec_" + base64.b64encode(b"x" * 32).decode()
    body = json.dumps({"event": "run.waiting", "workflow_id": "q-17", "waiting_for": "approval"})
    headers = signed_headers(secret, "n-1", int(time.time()), body.encode())
    run(code("docs/workers.md", "python"))["receive"](secret, headers, body.encode())
    assert capsys.readouterr().out == "run.waiting q-17 approval\n"
