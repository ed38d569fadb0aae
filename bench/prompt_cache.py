"""What part of its prompts a run reads from the provider's cache, against a perfect cache.

    python -m bench.prompt_cache [--turns 50] [--bytes 2000] [--to bench/results/prompt_cache.json]

Method. A real server and worker; the scripted provider over real HTTP, which keeps a cache as the
API documents its own: at most 4 marks, 20 blocks of look-back from each, a shortest prefix of 1,024
tokens, five minutes to live. It counts the tokens (a quarter of the bytes of JSON) and what of them
was in its cache. A run of N turns makes K parallel calls a turn, each of which returns prose; with
32 calls 300 bytes each, and a quarter of the turns in all but one of these runs.

A perfect cache serves everything that the request before has sent, if that is long enough to be
cached at all: `of perfect` is the sum of what was read over the sum of that, `of prompt` over the
sum of all prompts. A restart ends the worker after half of the turns and starts another one, with
its own connection, that has never seen the run.

Two controls show that the count would notice a prefix that is not stable: on the wire, behind all
our code, the first byte of turn 2's first result is made another one in each request, or once,
after half of the turns. A third one replaces our marks by the API's automatic mark.

Nothing is asserted here: tests/test_prompt_cache.py does that.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx2
from temporalio.client import Client

import worker
from activities.providers.anthropic import AnthropicProvider
from activities.registry import Registry
from tests.prose import prose
from turnkeeper import Agent, Limits, RunResult, tool
from turnkeeper.artifacts import FolderStore
from turnkeeper.client import AgentClient
from turnkeeper.testing import Exchange, Record, Reply, ScriptedProvider, calls, text
from turnkeeper.testing.embedded import EmbeddedServer

_PATIENT = Limits(turns=10_000, consecutive_errors=100, repetition=100)
_MINIMUM = 1_024

Body = dict[str, Any]
Rewrite = Callable[[Body], None]


@dataclasses.dataclass(frozen=True)
class Scenario:
    """One run."""

    name: str
    turns: int
    parallel: int = 1
    size: int = 2_000
    restart: bool = False
    """Whether another worker takes over after half of the turns."""
    rewrite: Callable[[int], Rewrite] | None = None
    """Makes of `turns` what is done to each request on its way."""


@dataclasses.dataclass(frozen=True)
class Share:
    """Tokens of all prompts of a run."""

    requests: int
    prompt: int
    read: int
    perfect: int
    """What a perfect cache would have read."""

    @property
    def of_perfect(self) -> float:
        """0 to 1."""
        return self.read / self.perfect

    @property
    def of_prompt(self) -> float:
        """0 to 1."""
        return self.read / self.prompt


@dataclasses.dataclass(frozen=True)
class Measured:
    """A run and what the provider counted."""

    result: RunResult
    share: Share
    records: list[Record]


def share_of(records: list[Record]) -> Share:
    """Of the requests of one run, in order."""
    sizes = [r.tokens or 0 for r in records]
    return Share(
        requests=len(records),
        prompt=sum(sizes),
        read=sum(r.cache_read or 0 for r in records),
        perfect=sum(size for size in sizes[:-1] if size >= _MINIMUM),
    )


# --- on the wire ---------------------------------------------------------------------------------


def drifting_byte(_turns: int) -> Rewrite:
    """Another byte of turn 2 in each request."""
    letters = (chr(n) for n in range(0x100, 0x10000))
    return lambda body: _change(body, next(letters))


def byte_changed_once(turns: int) -> Rewrite:
    """Another byte of turn 2 in each request of the second half, always the same."""

    def rewrite(body: Body) -> None:
        if sum(m["role"] == "assistant" for m in body["messages"]) >= turns // 2:
            _change(body, "\u0100")

    return rewrite


def automatic_mark(_turns: int) -> Rewrite:
    """No marks but the one that the API itself places at the end."""

    def rewrite(body: Body) -> None:
        blocks = [b for m in body["messages"] for b in m["content"]]
        for block in [*body.get("tools", []), *body.get("system", []), *blocks]:
            block.pop("cache_control", None)
        body["cache_control"] = {"type": "ephemeral"}

    return rewrite


def _change(body: Body, letter: str) -> None:
    """Put `letter` in place of the first one of the first result that turn 2 reads."""
    if len(body["messages"]) > 2:
        result = body["messages"][2]["content"][0]
        result["content"] = letter + result["content"][1:]


class _Rewriting(httpx2.AsyncHTTPTransport):
    """Sends another body than the one it is given."""

    def __init__(self, rewrite: Rewrite) -> None:
        super().__init__()
        self._rewrite = rewrite

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        body = json.loads(await request.aread())
        self._rewrite(body)
        return await super().handle_async_request(
            httpx2.Request(
                request.method,
                request.url,
                headers={k: v for k, v in request.headers.items() if k != "content-length"},
                content=json.dumps(body, ensure_ascii=False).encode(),
                extensions=request.extensions,
            )
        )


# --- a run ---------------------------------------------------------------------------------------


async def measure(client: Client, folder: Path, scenario: Scenario) -> Measured:
    """Run once."""
    half = asyncio.Event()

    @tool(effect="read")
    async def page(number: int, size: int) -> str:
        """Read a page of a long report."""
        if number >= scenario.turns * scenario.parallel // 2:
            half.set()
        return prose(number, size)

    def script(x: Exchange) -> Reply:
        if x.turn >= scenario.turns:
            return text("Read.")
        first = x.turn * scenario.parallel
        numbers = range(first, first + scenario.parallel)
        return calls([("page", {"number": n, "size": scenario.size}) for n in numbers])

    agent = Agent(
        name="reader",
        model="claude-sonnet-5-5",
        instructions=prose("instructions", 5_000),
        tools=[page],
        limits=_PATIENT,
    )
    rewrite = scenario.rewrite(scenario.turns) if scenario.rewrite else None
    options: dict[str, Any] = {"fsync": False, "log_bodies": True, "window": 10**8}
    async with ScriptedProvider(script, **options) as provider:
        agents = AgentClient(
            client, task_queue=f"cache-{uuid.uuid4()}", store=FolderStore(folder / "artifacts")
        )
        serving = _Serving(agents, provider, folder, agent, rewrite)
        run = await agents.start(agent.name, "Read the report.")
        if scenario.restart:
            async with serving.worker():
                await half.wait()
        async with serving.worker():
            result = await run.result(check=False, timeout=600)
        records = [r for r in provider.requests if r.cache_read is not None]
        if provider.rejections:
            raise SystemExit(f"{scenario.name}: refused: {dict(provider.rejections)}")
    return Measured(result, share_of(records), records)


@dataclasses.dataclass(frozen=True)
class _Serving:
    """Where workers come and go."""

    agents: AgentClient
    provider: ScriptedProvider
    folder: Path
    agent: Agent
    rewrite: Rewrite | None

    @contextlib.asynccontextmanager
    async def worker(self) -> AsyncIterator[None]:
        """One on a connection of its own, which has never seen a run."""
        old = self.agents.client
        own = await Client.connect(
            old.service_client.config.target_host,
            namespace=old.namespace,
            data_converter=old.data_converter,
        )
        model = AnthropicProvider(
            api_key="bench-key-0123456789",
            base_url=self.provider.url,
            transport=_Rewriting(self.rewrite) if self.rewrite else None,
        )
        settings = worker.Settings(
            task_queue=self.agents.task_queue, grace_seconds=5, sticky_seconds=1
        )
        store = FolderStore(self.folder / "artifacts")
        async with worker.build_worker(
            own, Registry([self.agent]), {"anthropic": model}, store, settings
        ):
            yield


# --- the table -----------------------------------------------------------------------------------


def scenarios(turns: int, size: int) -> list[Scenario]:
    """All that is measured."""
    one: dict[str, Any] = {"turns": turns, "size": size}
    many: dict[str, Any] = {"turns": turns, "parallel": 32, "size": 300}
    # Nothing more would show in as many turns of 32 calls, which take a minute.
    some = many | {"turns": max(turns // 4, 4)}
    return [
        Scenario("1 call a turn", **one),
        Scenario("1 call, restart", **one, restart=True),
        Scenario("32 calls a turn", **many),
        Scenario("32 calls, restart", **some, restart=True),
        Scenario("control: a byte of turn 2 drifts", **one, rewrite=drifting_byte),
        Scenario("control: it is changed once", **one, rewrite=byte_changed_once),
        Scenario("control: 32 calls, automatic mark", **some, rewrite=automatic_mark),
    ]


async def table(client: Client, folder: Path, chosen: list[Scenario]) -> list[dict[str, Any]]:
    """Measure and print line by line; the rows as JSON."""
    print(f"{'':<34} requests   prompt tokens         read   of prompt   of perfect")
    rows = []
    for scenario in chosen:
        measured = await measure(client, folder, scenario)
        if measured.result.outcome != "completed":
            raise SystemExit(f"{scenario.name}: {measured.result.outcome}")
        share = measured.share
        print(
            f"{scenario.name:<34} {share.requests:>8} {share.prompt:>15,} {share.read:>12,}"
            f" {share.of_prompt:>11.1%} {share.of_perfect:>12.1%}",
            flush=True,
        )
        rows.append(
            {
                "name": scenario.name,
                "turns": scenario.turns,
                "calls_a_turn": scenario.parallel,
                "bytes_a_call": scenario.size,
                "requests": share.requests,
                "prompt_tokens": share.prompt,
                "read_tokens": share.read,
                "perfect_tokens": share.perfect,
                "of_prompt": round(share.of_prompt, 4),
                "of_perfect": round(share.of_perfect, 4),
            }
        )
    return rows


async def _main(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="prompt-cache-") as folder:
        place = Path(folder)
        with EmbeddedServer.start(place / "temporal", ui=False) as server:
            connected = await AgentClient.connect(server.address)
            chosen = scenarios(options.turns, options.bytes)
            rows = await table(connected.client, place, chosen)
    method = " ".join(str(__doc__).split("Method. ")[1].split("Nothing is asserted")[0].split())
    options.to.parent.mkdir(parents=True, exist_ok=True)
    options.to.write_text(json.dumps({"method": method, "runs": rows}, indent=2) + "\n")


def main(argv: list[str] | None = None) -> int:
    """Print the table and write the file."""
    import structlog

    parser = argparse.ArgumentParser(prog="python -m bench.prompt_cache", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--turns", type=int, default=50, metavar="N")
    parser.add_argument("--bytes", type=int, default=2_000, metavar="B")
    default = Path(__file__).parent / "results" / "prompt_cache.json"
    parser.add_argument("--to", type=Path, default=default, metavar="FILE")
    # Log lines cost as much as they would in production, and are not looked at.
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    asyncio.run(_main(parser.parse_args(argv)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
