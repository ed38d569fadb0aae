"""What the provider's cache serves of a run's prompts, and who is told when it does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from temporalio.client import Client
from temporalio.runtime import MetricBuffer, Runtime, TelemetryConfig

from activities import token_metrics
from bench.prompt_cache import Measured, Scenario, automatic_mark, drifting_byte, measure
from tests.prose import prose
from tests.rig import AGENT, RigFactory, open_rig
from tests.test_context import PATIENT, WINDOW, reading
from tests.test_context import page as read
from turnkeeper import tool
from turnkeeper.converter import data_converter
from turnkeeper.metrics import INPUT_TOKENS
from turnkeeper.render import result_lines, usage_text
from turnkeeper.spec import ContextPolicy, ModelSpec
from turnkeeper.testing import Exchange, Reply, call, text
from turnkeeper.testing.embedded import EmbeddedServer
from turnkeeper.usage import Usage

TURNS = 12


@tool(effect="read")
def page(number: int) -> str:
    """Read a page of a long report."""
    return prose(number, 2_000)


def pages(turns: int) -> Any:
    """A script that reads one page a turn, then answers."""

    def script(x: Exchange) -> Reply:
        return text("Read.") if x.turn >= turns else call("page", {"number": x.turn})

    return script


def previous_ids(measured: Measured) -> list[str | None]:
    """The message that each request of a run wants to be compared with."""
    return [r.body["diagnostics"]["previous_message_id"] for r in measured.records]


@pytest.mark.parametrize("restart", [False, True], ids=["one worker", "restart"])
async def test_nearly_all_that_was_sent_before_is_read_from_the_cache(
    client: Client, tmp_path: Path, restart: bool
) -> None:
    """At least 95% of what a perfect cache would serve, also where a worker without any memory of
    the run takes over; that one cannot name the reply before it."""
    measured = await measure(client, tmp_path, Scenario("", TURNS, restart=restart))
    assert (measured.result.outcome, measured.share.requests) == ("completed", TURNS + 1)
    assert measured.share.of_perfect >= 0.95
    unnamed = [turn for turn, named in enumerate(previous_ids(measured)) if named is None]
    assert unnamed[0] == 0
    assert len(unnamed) == (2 if restart else 1)


@pytest.mark.long
async def test_turns_of_32_calls_are_read_from_the_cache(client: Client, tmp_path: Path) -> None:
    """65 blocks a turn are more than a mark looks back: the automatic one would find nothing."""
    many: dict[str, Any] = {"turns": 4, "parallel": 32, "size": 300}
    measured = await measure(client, tmp_path, Scenario("", **many))
    assert measured.share.of_perfect >= 0.95
    plain = await measure(client, tmp_path, Scenario("", **many, rewrite=automatic_mark))
    assert plain.share.of_perfect < 0.1


async def test_a_byte_that_drifts_is_seen_and_named(client: Client, tmp_path: Path) -> None:
    """Changed on the wire in each request: the share drops, and the log says why, each turn."""
    with capture_logs() as lines:
        measured = await measure(client, tmp_path, Scenario("", TURNS, rewrite=drifting_byte))
    assert measured.result.outcome == "completed"
    assert measured.share.of_perfect < 0.5
    misses = [x for x in lines if x["event"] == "cache miss"]
    assert [x["turn"] for x in misses] == list(range(3, TURNS + 2))
    assert {(x["reason"], x["log_level"]) for x in misses} == {("messages_changed", "warning")}
    assert all(x["missed_tokens"] > 400 for x in misses)


async def test_the_last_answer_is_not_taken_for_a_miss(rig: RigFactory) -> None:
    """It forbids tools, which the provider cannot diagnose; a run that goes well has no misses."""
    with capture_logs() as lines:
        async with rig(pages(9), tools=[page]) as r:
            result = await r.run(limits={"turns": 3, "on_limit": "answer"})
    assert result.outcome == "turn_limit"
    told = [(x["event"], x.get("reason")) for x in lines if str(x["event"]).startswith("cache")]
    assert told == [("cache not diagnosed", "unavailable")]


async def test_the_share_is_in_result_and_status(rig: RigFactory) -> None:
    """As the provider counted it: of all input tokens those that were read from its cache."""
    async with rig(pages(3), tools=[page]) as r:
        result = await r.run()
        read = sum(x.cache_read or 0 for x in r.provider.requests)
        size = sum(x.tokens or 0 for x in r.provider.requests)
        status = await r.agents.status(r.ids[-1])
    assert result.cache_share == round(read / size, 4) > 0.3
    told = f"{read / size:.0%} of input cached"
    assert told in result_lines(result)[0]
    assert told in usage_text(status.usage)


@pytest.mark.parametrize("most", [100, 0])
async def test_input_tokens_are_counted(
    server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """By agent, model and cache; agents beyond the bound are counted together."""
    monkeypatch.setattr(token_metrics, "MAX_PAIRS", most)
    pair = (AGENT, "claude-sonnet-5-5") if most else ("other", "other")
    usage, counted = await input_tokens(server, tmp_path, pages(3))
    assert counted == {
        (*pair, "read"): usage.cache_read_tokens,
        (*pair, "written"): usage.cache_write_tokens,
        (*pair, "uncached"): usage.input_tokens,
    }


async def test_the_input_tokens_of_summaries_are_counted(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    """With the model that summarises: they are paid for as others are."""
    context = ContextPolicy(summariser=ModelSpec(name="other"))
    usage, counted = await input_tokens(
        server, tmp_path, reading(20), limits=PATIENT, context=context, provider={"window": WINDOW}
    )
    assert {model for _, model, _ in counted} == {"claude-sonnet-5-5", "other"}
    assert sum(counted.values()) == (
        usage.cache_read_tokens + usage.cache_write_tokens + usage.input_tokens
    )


async def input_tokens(
    server: EmbeddedServer, folder: Path, script: Any, **settings: Any
) -> tuple[Usage, dict[tuple[str, ...], float]]:
    """What a run used, and what was counted by agent, model and cache."""
    buffer = MetricBuffer(10_000)
    client = await Client.connect(
        server.address,
        data_converter=data_converter,
        runtime=Runtime(telemetry=TelemetryConfig(metrics=buffer)),
    )
    async with open_rig(client, folder, script, tools=[read], **settings) as r:
        usage = (await r.run()).usage
    counted: dict[tuple[str, ...], float] = {}
    for update in buffer.retrieve_updates():
        if update.metric.name == INPUT_TOKENS:
            labels = tuple(str(update.attributes[x]) for x in ("agent", "model", "cache"))
            counted[labels] = counted.get(labels, 0) + update.value
    return usage, counted
