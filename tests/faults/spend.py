"""What runs spend under a limit, while workers are killed and the provider fails: `make spend`.

    python -m tests.faults.spend --seed N --runs 100 --at-once 20 --gap 10
    python -m tests.faults.spend --seed N --runs 50 --per-day 2 --gap 10

Each run works until its limit on cost ends it, or all of them at once until the limit per day of
their tenant stops them. One reply in seven is cut off or refused, and one of two workers is killed
every --gap seconds. The provider counts for itself, every reply it has begun in full, also of those
that nobody read. The exit code is 1 if they cost more than the limit and one call each, or leave
more than a fifth of it unused.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from activities.pricing import of
from tests.rig import until
from tests.workers import Site, open_site
from turnkeeper.client import AgentClient
from turnkeeper.prices import cost
from turnkeeper.testing import Exchange, Reply, call, cut, reply, status, text
from turnkeeper.testing.embedded import EmbeddedServer
from turnkeeper.usage import Usage

TENANT = "acme"
MODEL = "claude-sonnet-5-5"
LIMIT = 0.05
LEAST = 0.8
"""The part of the limit that is to be used."""
THINKS_SECONDS = 0.5
"""Of each reply. Of an attempt that was killed nobody knows whether it had asked the model: it is
charged as if it had, as nearly all have where a model takes longer than all else."""
RUN_SECONDS = 300.0


@dataclass
class Provider:
    """A script that counts what it bills."""

    seed: int
    outputs: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Of each run, by its prompt: tokens of each reply that was begun."""
    asked: Counter[str] = field(default_factory=Counter)

    def script(self, exchange: Exchange) -> Reply:
        """A call and some text, or a failure; as long as the request allows."""
        self.asked[exchange.prompt] += 1
        chance = random.Random(f"{self.seed} {exchange.prompt} {self.asked[exchange.prompt]}")
        if (luck := chance.random()) < 0.07:
            return status(529, headers={"retry-after": "0"})
        tokens, allowed = chance.randint(100, 900), int(exchange.body["max_tokens"])
        said = " ".join("word" for _ in range(tokens * 4 // 5))
        self.outputs[exchange.prompt].append(min(tokens, allowed))
        billed = {"output_tokens": min(tokens, allowed)}
        if tokens > allowed:
            return text(said[: allowed * 4], stop_reason="max_tokens", usage=billed)
        # Other arguments each time: the same ones again and again would end the run.
        made = [text(said), call("look", {"seconds": tokens / 1e6})]
        whole = reply(made, usage=billed, delay=THINKS_SECONDS)
        return cut(whole, chance.uniform(0.2, 0.9)) if luck < 0.14 else whole


@dataclass
class Spent:
    """What one run has cost by the provider's count, in US dollars, and by its own."""

    run: str
    outcome: str
    billed: float
    dearest: float
    """The call that cost most."""
    told: float


@dataclass
class Day:
    """What the runs of a tenant have cost together, in US dollars."""

    limit: float
    billed: float
    """By the provider's count."""
    over: float
    """What they may have cost beyond the limit: the dearest call of each."""
    told: float
    """By the count of the limit."""
    kills: int

    @property
    def wrong(self) -> bool:
        """Whether it is too much, or too little."""
        return not LEAST * self.limit <= self.billed <= self.limit + self.over

    def __str__(self) -> str:
        return (
            f"billed {self.billed / self.limit:.1%} of ${self.limit:g}, one call each is "
            f"{self.over / self.limit:.1%}; counted {self.told / self.limit:.1%}; {self.kills} "
            "kills"
        )


@dataclass
class Report:
    """What came of it."""

    spent: list[Spent] = field(default_factory=list)
    kills: int = 0

    @property
    def wrong(self) -> list[str]:
        """In words."""
        return [
            f"{s.run}: {s.outcome}, ${s.billed:.4f} of ${LIMIT}, a call up to ${s.dearest:.4f}"
            for s in self.spent
            if s.outcome != "cost_limit" or s.billed > LIMIT + s.dearest or s.billed < LEAST * LIMIT
        ]


async def play(
    folder: Path, address: str, *, seed: int, runs: int, at_once: int, gap: float
) -> Report:
    """Play so many runs; the folder keeps logs and artifacts."""
    client = (await AgentClient.connect(address)).client
    provider = Provider(seed)
    async with open_site(client, address, folder, provider.script) as site:
        await asyncio.gather(site.worker(), site.worker())
        report, room = Report(), asyncio.Semaphore(at_once)
        killing = asyncio.create_task(_kill(site, report, gap))

        async def one(number: int) -> None:
            async with room:
                report.spent.append(await _spend(site, provider, f"run {number}"))

        try:
            await asyncio.gather(*map(one, range(runs)))
        finally:
            killing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await killing
        assert not site.provider.rejections, site.provider.rejections
    return report


async def play_day(
    folder: Path, address: str, *, seed: int, runs: int, limit: float, gap: float
) -> Day:
    """Play so many runs of a tenant at once, until all of them wait for the next day."""
    client = (await AgentClient.connect(address)).client
    provider, prompts = Provider(seed), [f"run {n}" for n in range(runs)]
    async with open_site(client, address, folder, provider.script) as site:
        await asyncio.gather(site.worker(), site.worker())
        await site.agents.limit_day("tenant", TENANT, cost_usd=limit)
        # Copies of what is switched off, and of limits, are two seconds old at most.
        await asyncio.sleep(2)
        report = Report()
        killing = asyncio.create_task(_kill(site, report, gap))
        limits = {"turns": 1_000, "wall_seconds": RUN_SECONDS * 2}
        started = await asyncio.gather(
            *(site.start(p, limits=limits, metadata={"tenant": TENANT}) for p in prompts)
        )
        try:
            await until(lambda: _all_wait(site, runs), timeout=RUN_SECONDS)
        finally:
            killing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await killing
        (use,) = await site.agents.day_limits()
        await asyncio.gather(*(run.stop() for run in started))
        ended = await asyncio.gather(*(run.result(check=False, timeout=60) for run in started))
        assert {result.outcome for result in ended} == {"stopped"}
        assert not site.provider.rejections, site.provider.rejections
        bills = [_bills(site, provider, p) for p in prompts]
    over = sum(max(each, default=0) for each in bills)
    return Day(limit, sum(map(sum, bills)), over, use.used.usd, report.kills)


async def _all_wait(site: Site, runs: int) -> bool:
    return await site.agents.count_runs(waiting_for="switch") == runs


async def _spend(site: Site, provider: Provider, prompt: str) -> Spent:
    limits = {"cost_usd": LIMIT, "turns": 1_000, "wall_seconds": RUN_SECONDS}
    run = await site.start(prompt, limits=limits)
    result = await run.result(check=False, timeout=RUN_SECONDS + 60)
    bills = _bills(site, provider, prompt)
    told = result.usage.cost_usd or 0
    return Spent(run.id, result.outcome, sum(bills), max(bills), told)


def _bills(site: Site, provider: Provider, prompt: str) -> list[float]:
    """What each call of a run has cost, in US dollars."""
    records = [r for r in site.provider.requests if r.prompt == prompt and r.status == 200]
    bills: list[float] = []
    for record, output in zip(records, provider.outputs[prompt], strict=True):
        read, written = record.cache_read or 0, record.cache_written or 0
        usage = Usage(
            input_tokens=(record.tokens or 0) - read - written,
            cache_read_tokens=read,
            cache_write_tokens=written,
            output_tokens=output,
        )
        bills.append(cost(usage, of("anthropic", MODEL, "5m")) or 0)
    return bills


async def _kill(site: Site, report: Report, gap: float) -> None:
    """One of two workers at a time; another takes its place."""
    for place in itertools.count():
        await asyncio.sleep(gap)
        await site.kill(site.workers[place])
        report.kills += 1
        await site.worker()


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--at-once", type=int, default=20)
    parser.add_argument("--per-day", type=float, metavar="USD", help="of all runs, all at once")
    parser.add_argument("--gap", type=float, default=10.0, help="seconds between two kills")
    given = vars(parser.parse_args(arguments))
    per_day = given.pop("per_day")
    folder, began = Path(tempfile.mkdtemp(prefix="spend-")), time.monotonic()
    with EmbeddedServer.start(folder / "server", port=0) as server:
        if per_day is not None:
            del given["at_once"]
            day = asyncio.run(play_day(folder, server.address, limit=per_day, **given))
            took = time.monotonic() - began
            sys.stdout.write(f"per day: {given['runs']} runs, {day}, in {took:.0f} s\n")
            return int(day.wrong)
        report = asyncio.run(play(folder, server.address, **given))
    for line in report.wrong:
        sys.stdout.write(f"violation: {line}\n")
    billed = sorted(s.billed / LIMIT for s in report.spent)
    off = sorted(s.told / s.billed for s in report.spent)
    sys.stdout.write(
        f"spend: {len(report.spent)} runs of ${LIMIT}, {report.kills} kills, in "
        f"{time.monotonic() - began:.0f} s; billed {billed[0]:.0%} to {billed[-1]:.0%} of the "
        f"limit, median {billed[len(billed) // 2]:.0%}; the runs' own count is {off[0]:.0%} to "
        f"{off[-1]:.0%} of that; {len(report.wrong)} violations; logs in {folder}\n"
    )
    return int(bool(report.wrong))


if __name__ == "__main__":
    sys.exit(main())
