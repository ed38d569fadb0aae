"""The finance agent without a model, a server or a network: its tools, its search, its script.

A test of your own agent can begin as a copy of this file.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from examples.finance.agent import agent
from examples.finance.script import script
from examples.finance.tools import calculator, search
from turnkeeper import ToolContext, ToolFailed
from turnkeeper.testing import Exchange

DOCUMENTS = Path(__file__).parent / "documents"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting from outside reaches a test."""
    for name in (
        "FINANCE_DOCUMENTS",
        "FINANCE_REPLY_DELAY",
        "FINANCE_SEARCH_DELAY",
        "TURNKEEPER_TOOL_LOG",
    ):
        monkeypatch.delenv(name, raising=False)


def hits(query: str, limit: int = 3) -> list[str]:
    """The passages that the search tool returns, best first."""
    result: str = search(query, limit)
    return result.split("\n\n[")


def ask(question: str) -> str:
    """The answer of the script, which is given whatever the real tools return to its calls."""
    tools = {"search": search, "calculator": calculator}
    messages: list[dict[str, Any]] = [{"role": "user", "content": question}]
    for turn in range(5):
        body = {"messages": messages, "tools": [{"name": name} for name in tools]}
        reply: Any = script(Exchange(body=body, headers={}, repeat=0, arrival=turn + 1))
        blocks = [dict(block.data) for block in reply.blocks]
        calls = [block for block in blocks if block["type"] == "tool_use"]
        if not calls:
            return "".join(block["text"] for block in blocks)
        results = [
            {"type": "tool_result", "tool_use_id": "t", "content": tools[c["name"]](**c["input"])}
            for c in calls
        ]
        messages += [
            {"role": "assistant", "content": blocks},
            {"role": "user", "content": results},
        ]
    raise AssertionError("the script went on calling tools")


def test_the_revenue_of_last_year_is_the_best_hit() -> None:
    """The plain query for the demonstration's figure ranks the figure first, with its place."""
    first = hits("annual revenue 2025")[0]
    assert "Revenue 2025: $412.0M" in first
    assert first.startswith("[1] Halden Instruments plc: Annual Report 2025, page 1, Key figures")


@pytest.mark.parametrize(
    ("query", "figure"),
    [
        ("revenue 2022", "Revenue 2022: $318.9M"),
        ("Services segment revenue 2025", "Services segment revenue 2025 was $84.9M"),
        ("group revenue 2025 in euros", "€364.6M"),
        ("operating margin 2024", "Operating margin 2024: 14.5%"),
        ("number of employees at year end 2025", "Employees at year end: 1,847"),
        ("revenue budget 2025", "| Group | $405.0M |"),
        ("pro-forma 2025 Brannoch acquisition", "$417.9M"),
        ("quarterly sales 2025 Q4", "| Sales 2025 ($M) | 94.8 | 101.7 | 100.9 | 114.6 |"),
        ("restatement of 2023 revenue", "restated from $341.6M to $338.1M"),
        ("sales in Asia Pacific 2025", "| Asia Pacific | $103.7M |"),
    ],
)
def test_each_question_finds_its_own_figure(query: str, figure: str) -> None:
    """Year, segment, currency, ratio, headcount, budget: each is told from its neighbours."""
    assert any(figure in hit for hit in hits(query)[:2])


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("What is 7% of last year's revenue?", "About $28.84M."),
        ("What is 12.5 percent of the 2021 revenue?", "About $35.93M."),
        ("What was revenue in 2022?", "Revenue in 2022 was $318.9M, by that year's report."),
        ("Services revenue in 2025?", "Services revenue in 2025 was $84.9M."),
        (
            "How many employees at the end of 2025?",
            "There were 1,847 employees at the end of 2025.",
        ),
        ("Operating margin of 2024?", "The operating margin in 2024 was 14.5%."),
        (
            "What was last year's revenue in euros?",
            "Revenue in 2025 was €364.6M, at the year's average rate.",
        ),
        ("What was revenue in 2019?", "The reports do not say: annual revenue 2019."),
    ],
)
def test_the_script_answers_from_what_the_tools_return(question: str, answer: str) -> None:
    """Played against the real tools, the script ends in the right answer."""
    assert ask(question) == answer


def test_a_question_beyond_the_script_is_told_its_bounds() -> None:
    """The script says what it can do, and invents nothing."""
    assert "What is 7% of last year's revenue?" in ask("Who won the cup?")


def test_a_changed_document_changes_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing between the document and the answer is fixed in advance."""
    folder = shutil.copytree(DOCUMENTS, tmp_path / "documents")
    monkeypatch.setenv("FINANCE_DOCUMENTS", str(folder))
    assert ask("What is 7% of last year's revenue?") == "About $28.84M."
    report = folder / "annual-report-2025.md"
    changed = report.read_text(encoding="utf-8").replace("2025: $412.0M", "2025: $430.5M")
    report.write_text(changed, encoding="utf-8")
    assert ask("What is 7% of last year's revenue?") == "About $30.14M."


def test_search_output_is_bounded() -> None:
    """Even ten passages stay a small part of what a model reads."""
    found = hits("revenue sales profit employees 2025", limit=10)
    assert len(found) == 10
    assert sum(map(len, found)) < 12_000


@pytest.mark.parametrize("query", ["", "?!", "'"])
def test_a_query_without_words_is_told_to_the_model(query: str) -> None:
    """A query that cannot be searched comes back as an error that the model can mend."""
    with pytest.raises(ToolFailed, match="no word"):
        search(query)


def test_no_hit_is_said_in_words() -> None:
    """A search that finds nothing is an answer, not an error."""
    assert search("submarine") == "No passage has any of these words. Try other words."


def test_an_empty_folder_is_told_to_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without documents the model learns that there are none."""
    monkeypatch.setenv("FINANCE_DOCUMENTS", str(tmp_path))
    with pytest.raises(ToolFailed, match="no documents"):
        search("revenue")


def test_the_calculator_returns_the_plain_number() -> None:
    """The result can be used in the next expression as it is."""
    assert calculator("412_000_000 * 0.07") == "28840000"
    with pytest.raises(ToolFailed, match="is not a number or function"):
        calculator("os")


def test_the_model_sees_two_described_tools() -> None:
    """Names, descriptions and schemas are all there; the context is not among the parameters."""
    specs = {spec.name: spec for spec in agent.spec().tools}
    assert list(specs) == ["search", "calculator"]
    assert list(specs["search"].input_schema["properties"]) == ["q", "limit"]
    assert specs["search"].input_schema["required"] == ["q"]
    assert list(specs["calculator"].input_schema["properties"]) == ["expression"]
    for spec in specs.values():
        assert spec.effect == "read"
        assert spec.description
        assert all("description" in field for field in spec.input_schema["properties"].values())


def test_the_instructions_state_the_year() -> None:
    """The prompt has no date, so the instructions say which year was the last."""
    assert '"last year" means 2025' in agent.spec().instructions


def test_calls_are_witnessed_in_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call leaves its beginning and its end, with its key and attempt, failed calls too."""
    log = tmp_path / "calls.jsonl"
    monkeypatch.setenv("TURNKEEPER_TOOL_LOG", str(log))
    search("revenue", ctx=ToolContext(idempotency_key="k1", attempt=2))
    with pytest.raises(ToolFailed):
        calculator("1/0", ctx=ToolContext(idempotency_key="k2"))
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    assert [(line["tool"], line["event"], line["key"], line["attempt"]) for line in lines] == [
        ("search", "begin", "k1", 2),
        ("search", "end", "k1", 2),
        ("calculator", "begin", "k2", 1),
        ("calculator", "end", "k2", 1),
    ]
    assert all(line["pid"] and line["time"] for line in lines)


@pytest.mark.parametrize(
    ("setting", "delay"),
    [("", 0.0), ("1.5", 1.5), ("-3", 0.0), ("600", 60.0), ("nan", 0.0), ("soon", 0.0)],
)
def test_the_delay_of_a_reply_is_bounded(
    monkeypatch: pytest.MonkeyPatch, setting: str, delay: float
) -> None:
    """A wrong setting cannot make the script hang."""
    monkeypatch.setenv("FINANCE_REPLY_DELAY", setting)
    body = {"messages": [{"role": "user", "content": "hello"}]}
    assert script(Exchange(body=body, headers={}, repeat=0, arrival=1)).delay == delay
