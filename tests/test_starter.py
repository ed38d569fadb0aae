"""The command line as people use it: real processes against a real server and worker."""

from __future__ import annotations

import html
import json
import os
import re
import shlex
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import starter as checkout
from tests import forked
from turnkeeper.client import AgentClient
from turnkeeper.commands.place import exit_code
from turnkeeper.commands.show import _how_far
from turnkeeper.contract import ExecuteInput, RunResult
from turnkeeper.history import ToolRun
from turnkeeper.testing.stack import living_dev

ROOT = Path(__file__).resolve().parent.parent
NOWHERE = ["--address", "127.0.0.1:1"]
COMMANDS = [
    *("run", "show", "watch", "list", "count", "why", "unknown", "stop", "export", "artifacts"),
    *("approvals", "approve", "deny", "send", "answer", "chat", "pause", "resume"),
    *("raise-limits", "fork", "retry", "switch", "demo", "dev", "new"),
]
QUESTION = "What was the revenue in 2024?"
"""Costs one search, which the fixture makes slow enough to interrupt."""
ANSWER = "Revenue in 2024 was $376.3M, by that year's report."
GREETING = "Hello?"
"""Costs one generation and no tool."""
_SEARCH_SECONDS = "9"


def environment(**more: str) -> dict[str, str]:
    """Ours without a person's own settings."""
    own = ("ANTHROPIC_", "TEMPORAL_", "TURNKEEPER_", "FINANCE_")
    return {k: v for k, v in os.environ.items() if not k.startswith(own)} | more


def starter(
    *arguments: str, stdin: str | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    made = environment(**(env or {}))
    if any(name.startswith("PYTHON") for name in env or {}):
        # What an interpreter reads as it begins.
        return subprocess.run(
            [sys.executable, "starter.py", *arguments],
            cwd=ROOT,
            env=made,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
    return forked.run(["starter.py", *arguments], cwd=ROOT, env=made, stdin=stdin, timeout=90)


@dataclass(frozen=True)
class Dev:
    """A stack served by `starter.py dev`."""

    state: Path
    address: str

    def starter(self, *arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
        """A command in the same checkout."""
        return starter("--state", str(self.state), *arguments, **more)

    def popen(self, *arguments: str) -> subprocess.Popen[str]:
        """A command that is interrupted, or looked at, while it runs."""
        return subprocess.Popen(
            [sys.executable, "starter.py", "--state", str(self.state), *arguments],
            cwd=ROOT,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    """`starter.py dev` in another terminal; it ends with everything it started."""
    state = tmp_path_factory.mktemp("dev") / "state"
    serving = subprocess.Popen(
        [sys.executable, "starter.py", "--state", str(state), "dev"],
        cwd=ROOT,
        env=environment(FINANCE_SEARCH_DELAY=_SEARCH_SECONDS),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert serving.stdout is not None
        for line in serving.stdout:
            if line.startswith("Ctrl-C"):
                break
        record = living_dev(state)
        assert record is not None, f"dev ended with status {serving.poll()}"
        yield Dev(state, record.address)
    finally:
        serving.send_signal(signal.SIGINT)
        assert serving.wait(30) == 0
        assert living_dev(state) is None
        assert not processes_of(state)


@pytest.fixture(scope="module")
def answered(dev: Dev) -> subprocess.CompletedProcess[str]:
    """The run `answered`, to its end."""
    whose = ("--metadata", "tenant=acme")
    return dev.starter("run", QUESTION, "--agent", "finance", "--id", "answered", *whose)


@dataclass(frozen=True)
class Interrupted:
    """What became of a run that was in the middle of its search."""

    command: subprocess.Popen[str]
    """`starter.py run`, which waits for it."""
    done: subprocess.CompletedProcess[str] | None = None
    """The command that interrupted it."""


@pytest.fixture(scope="module")
async def interrupted(dev: Dev) -> dict[str, Interrupted]:
    """Three runs at once: `halted` is stopped, `cancelled` cancelled, `left` left by Ctrl-C."""
    asked = {
        name: dev.popen("run", QUESTION, "--agent", "finance", "--id", name)
        for name in ("halted", "cancelled", "left")
    }
    for process in asked.values():
        read_until(process, "EXECUTE")
    asked["left"].send_signal(signal.SIGINT)
    client = await AgentClient.connect(dev.address)
    await client.client.get_workflow_handle("cancelled").cancel()
    stopped = dev.starter("stop", "halted", "--reason", "wrong year", "--actor", "ada")
    return {
        "halted": Interrupted(asked["halted"], stopped),
        "cancelled": Interrupted(asked["cancelled"]),
        "left": Interrupted(asked["left"]),
    }


def processes_of(state: Path) -> list[str]:
    """Command lines of processes that work on a state directory."""
    listed = subprocess.run(
        ["ps", "-ww", "-eo", "args"], capture_output=True, text=True, check=True
    )
    return [line for line in listed.stdout.splitlines() if str(state) in line]


# --- without a server -----------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [[], *([c] for c in COMMANDS)])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    """Help answers at once: nothing but a few parts of the standard library and of our own."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "starter.py", *arguments, "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "usage: starter.py" in done.stdout
    imported = {line.split("|")[-1].strip() for line in done.stderr.splitlines()}
    assert not imported & {"temporalio", "pydantic", "anthropic", "structlog", "httpx", "httpx2"}
    assert not imported & {"workflows", "activities", "sqlalchemy", "asyncio", "ssl", "sqlite3"}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "COMMAND"),
        (["fly"], "fly"),
        (["run", "hello"], "--agent"),
        (["run", "hello", "--agent", "finance", "--limit", "turns"], "e.g. --limit turns=8"),
        (["run", "hello", "--agent", "finance", "--limit", "a=1", "--limit", "a=2"], "twice"),
        (["list", "--count", "0"], "at least 1"),
        (["stop"], "name a run, or choose several"),
        (["stop", "x", "--agent", "finance"], "not both"),
        (["stop", "--agent", "x' OR '1' = '1"], "no quotes"),
    ],
)
def test_wrong_usage_is_exit_2(arguments: list[str], told: str) -> None:
    """A wrong command line is told in a line, with exit code 2, server or not."""
    done = starter(*NOWHERE, *arguments)
    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "state"),
    [
        (["dev"], str(ROOT / ".turnkeeper")),
        (["--state", "here", "dev"], "here"),
        (["dev", "--state", "here"], "here"),
        (["--state", "there", "artifacts", "gc", "--state", "here"], "here"),
    ],
)
def test_the_state_is_named_before_or_after_the_command(arguments: list[str], state: str) -> None:
    """As the server is; what stands after the command counts."""
    parser = checkout._parser()
    assert str(parser.parse_args(arguments).state) == state
    server = parser.parse_args([*arguments, "--address", "h:1", "--namespace", "n"])
    assert (server.address, server.namespace, str(server.state)) == ("h:1", "n", state)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--agents", "library"], "dev --agents library --script MODULE:NAME"),
        (["--script", "nowhere:script"], "there is no module nowhere in the checkout, the current"),
        (["--script", "examples.finance.script:nothing"], "has no nothing"),
        (["--script", "examples/finance/script.py"], "write it as MODULE:NAME"),
        (["--script", "examples.finance.script:__name__"], "it is no script but a str"),
        (["--no-worker", "--agents", "library"], "--no-worker goes with neither"),
    ],
)
def test_dev_refuses_what_cannot_work_before_anything_starts(
    tmp_path: Path, arguments: list[str], told: str
) -> None:
    """A model that could not answer, a script that is none: one line, and no server was started."""
    done = starter("--state", str(tmp_path / "state"), "dev", *arguments)
    assert done.returncode == 2
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "state").exists()


def test_dev_has_a_server_of_its_own() -> None:
    """Another address is refused, not ignored: other commands would go there."""
    named = starter(*NOWHERE, "dev")
    assert (named.returncode, "worker.py --address" in named.stderr) == (2, True)
    done = starter("dev", env={"TEMPORAL_ADDRESS": "127.0.0.1:2"})
    assert (done.returncode, "other commands go to 127.0.0.1:2" in done.stderr) == (2, True)


@pytest.mark.parametrize("program", [["starter.py", "list"], ["worker.py", "--agents", "x"]])
def test_an_interpreter_without_the_packages_is_told_which_one_has_them(program: list[str]) -> None:
    """A sentence instead of a ModuleNotFoundError."""
    done = subprocess.run(
        [sys.executable, "-S", *program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "run it with .venv/bin/python (`make set-up` makes it)" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"ANTHROPIC_API_KEY": "x"}, "connection refused. Start one with `make dev`"),
        ({}, "--script MODULE:NAME"),
    ],
)
def test_a_worker_that_cannot_start_says_what_to_do(variables: dict[str, str], told: str) -> None:
    """One line of the log, and exit code 2."""
    done = subprocess.run(
        [sys.executable, "worker.py", "--agents", "examples.finance", *NOWHERE],
        cwd=ROOT,
        env=environment(**variables),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert json.loads(line)["event"] == "cannot start"
    assert told in json.loads(line)["error"]


@pytest.mark.parametrize(
    ("ended", "told"),
    [
        (None, "not returned yet"),
        (RunResult(outcome="terminated"), "not finished: the run was terminated"),
    ],
)
def test_a_closed_run_waits_for_nothing(ended: RunResult | None, told: str) -> None:
    """A call that was cut off by the run's end is not shown as if it could still return."""
    call = ExecuteInput(
        agent="finance",
        tool="search",
        effect="read",
        attempts=3,
        turn=1,
        index=0,
        call_id="c",
        arguments={},
        arguments_digest="d",
        key="k",
        result_bytes=1_000,
    )
    assert _how_far(ToolRun(scheduled=5, input=call), ended) == told


def test_each_end_has_an_exit_code() -> None:
    """Scripts branch on it: limits are told apart from failures and from the caller's faults."""
    outcomes = ("completed", "time_limit", "refused", "cancelled", "unknown_agent", "state_lost")
    assert [exit_code(outcome) for outcome in outcomes] == [0, 3, 3, 4, 2, 1]


@pytest.mark.parametrize(
    "command",
    [
        ["run", "hello", "--agent", "finance"],
        ["show", "x"],
        ["list"],
        ["unknown"],
        ["unknown", "x", "c1", "--landed"],
        ["stop", "x"],
        ["send", "x", "hello"],
        ["answer", "x", "c1", "yes"],
    ],
    ids=lambda c: c[0],
)
def test_an_unreachable_server_is_a_sentence_and_exit_1(command: list[str]) -> None:
    """Where, what is wrong and what to do, in every command; as JSON where that was asked for."""
    done = starter(*NOWHERE, *command, "--json")
    assert done.returncode == 1
    assert "no Temporal server at 127.0.0.1:1" in done.stderr
    assert "TEMPORAL_ADDRESS" in done.stderr
    assert "Traceback" not in done.stderr
    assert "127.0.0.1:1" in json.loads(done.stdout)["error"]


def test_the_address_comes_from_the_environment() -> None:
    """Temporal's own settings are honoured, and mended where they lead nowhere."""
    done = starter("list", env={"TEMPORAL_ADDRESS": "127.0.0.1:2"})
    assert done.returncode == 1
    assert "127.0.0.1:2" in done.stderr


def test_settings_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    """A broken temporal.toml is told as such."""
    broken = tmp_path / "temporal.toml"
    broken.write_text("profile = [")
    done = starter("list", env={"TEMPORAL_CONFIG_FILE": str(broken)})
    assert done.returncode == 2
    assert "settings" in done.stderr
    assert "Traceback" not in done.stderr


# --- run ------------------------------------------------------------------------------------------


def test_run_prints_the_answer_and_nothing_else_on_stdout(
    answered: subprocess.CompletedProcess[str],
) -> None:
    """The answer can be piped on; the four phases go to stderr as they happen."""
    done = answered
    assert done.returncode == 0
    assert done.stdout == ANSWER + "\n"
    phases = re.findall(r"GENERATE|PARSE|EXECUTE|RESUME", done.stderr)
    assert list(dict.fromkeys(phases)) == ["GENERATE", "PARSE", "EXECUTE", "RESUME"]
    assert "completed · 2 turns · 1 tool call" in done.stderr
    assert "\x1b" not in done.stderr


def test_run_as_json_prints_one_object(dev: Dev) -> None:
    """Outcome, answer, usage and the run's id for programs."""
    done = dev.starter("run", GREETING, "--agent", "finance", "--json", "--metadata", "tenant=acme")
    assert done.returncode == 0
    told = json.loads(done.stdout)
    assert told["outcome"] == "completed"
    assert told["answer"].startswith("I am a script")
    assert told["id"].startswith("finance-")
    assert told["usage"]["output_tokens"] > 0


def test_the_prompt_may_come_from_standard_input(dev: Dev) -> None:
    """`-` reads the task, so that it may be long."""
    done = dev.starter("run", "-", "--agent", "finance", stdin=f"{GREETING}\n")
    assert done.stdout.startswith("I am a script")


def test_an_agent_that_nobody_serves_is_exit_2(dev: Dev) -> None:
    """After some seconds the reason names those that are served, and one that may be meant."""
    done = dev.starter("run", GREETING, "--agent", "finanse")
    assert done.returncode == 2
    assert "reason: there is no agent 'finanse'" in done.stderr
    assert "Did you mean finance?" in done.stderr
    assert " ".join(done.stderr.split()).count("there is no agent 'finanse'") == 1


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--limit", "cost_usd_per_day=1"], "limits per day are those of an agent"),
        (["--limit", "turns=0"], "turns"),
        (["--id", "with space"], "id:"),
        (["--metadata", f"k={'x' * 600}"], "metadata"),
    ],
)
def test_a_refused_request_is_exit_2(dev: Dev, arguments: list[str], named: str) -> None:
    """The field that is wrong is named, and nothing was started."""
    done = dev.starter("run", GREETING, "--agent", "finance", *arguments)
    assert done.returncode == 2
    assert named in done.stderr


def test_a_repeated_id_follows_the_run_that_exists(dev: Dev) -> None:
    """The same request again gives the same answer; another one is not answered by it."""
    first = dev.starter("run", GREETING, "--agent", "finance", "--id", "same")
    again = dev.starter("run", GREETING, "--agent", "finance", "--id", "same")
    assert (first.returncode, again.returncode) == (0, 0)
    assert again.stdout == first.stdout
    assert "exists already" in again.stderr
    other = dev.starter("run", QUESTION, "--agent", "finance", "--id", "same")
    assert (other.returncode, other.stdout) == (2, "")
    assert "run same exists already, with another prompt; choose another id" in other.stderr


def test_ctrl_c_leaves_the_run_running(dev: Dev, interrupted: dict[str, Interrupted]) -> None:
    """The person is told how to come back; coming back shows the whole run and its answer."""
    asked = interrupted["left"].command
    _, rest = asked.communicate(timeout=40)
    assert asked.returncode == 130
    assert "The run goes on without you" in rest
    assert "watch left" in rest
    assert "Traceback" not in rest
    back = dev.starter("show", "left", "--follow")
    assert (back.returncode, back.stdout) == (0, ANSWER + "\n")
    assert "PARSE" in back.stderr


def test_a_stopped_run_is_exit_3(dev: Dev, interrupted: dict[str, Interrupted]) -> None:
    """`stop` says that it was heard, and who waits for the run learns why it ended."""
    asked, stopped = interrupted["halted"].command, interrupted["halted"].done
    assert stopped is not None
    assert (stopped.returncode, stopped.stdout) == (0, "run halted is stopping\n")
    _, told = asked.communicate(timeout=30)
    assert asked.returncode == 3
    assert "stopped by ada: wrong year" in told
    again = dev.starter("stop", "halted", "--json")
    assert json.loads(again.stdout) == {"id": "halted", "stop": "ended"}
    # Its search cannot be cut short: the run ended with it, or after its patience without it.
    assert "unread      search: " in dev.starter("show", "halted").stdout


def test_a_cancelled_run_is_exit_4(interrupted: dict[str, Interrupted]) -> None:
    """Cancelled through Temporal, by whatever client."""
    asked = interrupted["cancelled"].command
    asked.communicate(timeout=30)
    assert asked.returncode == 4


def test_who_waits_learns_that_no_worker_is_there(dev: Dev) -> None:
    """Silence is explained after some seconds, by what the server waits for."""
    asked = dev.popen("run", GREETING, "--agent", "finance", "--id", "w", "--task-queue", "empty")
    read_until(asked, f"run w at {dev.address} (namespace default)")
    stopping = dev.popen("stop", "w")
    line = read_until(asked, "WAITING").splitlines()[-1]
    assert "no worker takes the next step from task queue empty" in line
    asked.send_signal(signal.SIGINT)
    asked.communicate(timeout=40)
    assert stopping.communicate(timeout=30)[0].startswith("no worker answers: run w stops")


# --- show, list -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("answered")
def test_a_run_is_shown_for_people_and_for_programs(dev: Dev) -> None:
    """`show` has the whole transcript, as text and as JSON, with the limits that were its own."""
    shown = dev.starter("show", "answered")
    assert shown.returncode == 0
    assert "run       answered" in shown.stdout
    assert "tenant    acme\n" in shown.stdout
    assert "outcome   completed · 2 turns" in shown.stdout
    assert re.search(r"^limits    turns 2 of \d+ · time .* of .*$", shown.stdout, re.MULTILINE)
    assert QUESTION in shown.stdout
    assert '-> search q="annual revenue 2024"' in shown.stdout
    assert ANSWER in shown.stdout
    told = json.loads(dev.starter("show", "answered", "--json").stdout)
    assert [e["kind"] for e in told["entries"]] == ["message", "reply", "result", "reply"]
    assert told["result"]["outcome"] == "completed"
    assert told["unanswered"] == []


@pytest.mark.usefixtures("answered")
def test_a_run_is_shown_as_a_page(dev: Dev, tmp_path: Path) -> None:
    """Written whole, for its owner alone, or to standard output; neither followed nor JSON."""
    file = tmp_path / "a page.html"
    assert dev.starter("show", "answered", "--html", str(file)).stdout == f"{file}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["a page.html"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert html.escape(ANSWER) in file.read_text()
    piped = dev.starter("show", "answered", "--html", "-").stdout
    assert piped.startswith("<!doctype html>")
    assert piped.endswith("</html>\n")
    assert dev.starter("show", "answered", "--html", "-", "--json").returncode == 2
    assert dev.starter("show", "no-such-run", "--html", "-").returncode == 2
    assert dev.starter("show", "answered", "--html", str(tmp_path / "no" / "x")).returncode == 1


def test_a_run_that_is_not_waited_for_is_followed_later(dev: Dev) -> None:
    """`--no-wait` prints the id and how to come back."""
    asked = ("--agent", "finance", "--no-wait", "--limit", "turns=7")
    started = dev.starter("run", GREETING, *asked)
    assert started.returncode == 0
    run = started.stdout.strip()
    assert f"watch {run}" in started.stderr
    assert dev.starter("show", run, "--follow").returncode == 0
    told = json.loads(dev.starter("show", run, "--json").stdout)
    assert told["status"]["limits"]["turns"] == 7


def test_a_run_that_does_not_exist_is_exit_2(dev: Dev) -> None:
    """Named, without a traceback."""
    for command in (["show"], ["show", "--follow"], ["stop"]):
        done = dev.starter(*command, "nowhere")
        assert done.returncode == 2
        told, listing = done.stderr.splitlines()
        assert told == f"starter.py: there is no run nowhere at {dev.address} (namespace default)"
    aim, _, pasted = listing.partition(": ")
    assert aim == "To see what runs there are"
    listed = subprocess.run(
        ["/bin/sh", "-c", f"{pasted} --count 1"], cwd=ROOT, env=environment(), check=False
    )
    assert listed.returncode == 0


def test_a_namespace_that_is_not_there_is_named(dev: Dev) -> None:
    """Also where `dev` serves, whose own it is not."""
    (dev.state / "artifacts").mkdir(exist_ok=True)
    for command in (["list"], ["artifacts", "gc"]):
        done = dev.starter("--namespace", "other", *command)
        assert done.returncode == 1
        assert f"namespace other is not on {dev.address}; it was named by" in done.stderr


def test_list_tells_how_runs_ended(dev: Dev) -> None:
    """A table for people, one object for programs, filtered by any visibility query."""
    run = json.loads(dev.starter("run", GREETING, "--agent", "finance", "--json").stdout)["id"]
    query = f"WorkflowId = '{run}'"
    table = listed(dev, query)
    assert table[0].split() == [
        *("RUN", "AGENT", "STATUS", "OUTCOME", "TURNS", "TOKENS", "STARTED"),
    ]
    assert table[1].split()[:5] == [run, "finance", "completed", "completed", "1"]
    told = json.loads(dev.starter("list", query, "--json").stdout)["runs"]
    assert [(r["id"], r["outcome"], r["turns"]) for r in told] == [(run, "completed", 1)]
    everything = json.loads(dev.starter("list", "--json").stdout)["runs"]
    started = [r["started"] for r in everything]
    assert started == sorted(started, reverse=True)
    refused = dev.starter("list", "nonsense = 'x'")
    assert refused.returncode == 2
    assert "query" in refused.stderr


def test_a_reader_that_leaves_early_is_no_error(dev: Dev) -> None:
    """`show ... | head -1` prints no traceback."""
    run = dev.starter("run", GREETING, "--agent", "finance", "--no-wait").stdout.strip()
    dev.starter("show", run, "--follow")
    line = f"{sys.executable} starter.py --state {dev.state} show {run} | head -1"
    done = subprocess.run(
        ["/bin/sh", "-c", line],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"run       {run}\n"
    assert done.stderr == ""


def test_a_terminal_without_utf_8_gets_all_it_can_show(dev: Dev) -> None:
    """No UnicodeEncodeError in an old terminal."""
    done = dev.starter(
        "run", GREETING, "--agent", "finance", env={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    )
    assert done.returncode == 0
    assert "completed ? 1 turn" in done.stderr


def test_a_second_dev_is_refused(dev: Dev) -> None:
    """One stack for each state directory; the message names the process that serves it, and the
    command that serves beside it."""
    done = dev.starter("dev", "--agents", "examples.finance", "--no-reload")
    assert done.returncode == 1
    assert f"`dev` serves {dev.state} already (pid " in done.stderr
    beside = re.search(r"Stop it there with Ctrl-C, or .* of its own: (.+)$", done.stderr)
    assert beside is not None
    typed = checkout._parser().parse_args(shlex.split(beside[1])[2:])
    assert typed.state == ROOT / ".turnkeeper"
    assert (typed.agents, typed.reload) == ("examples.finance", False)


def test_the_demo_uses_the_stack_of_dev(dev: Dev) -> None:
    """Nothing new is started, and the links lead to the UI that is up."""
    done = dev.starter("demo")
    assert done.returncode == 0
    assert "its server and worker are used" in done.stderr
    assert "About $28.84M." in done.stdout
    record = living_dev(dev.state)
    assert record is not None
    assert f"{record.ui_url}/namespaces/default/workflows/" in done.stdout


def test_a_worker_finds_dev_and_warns_of_the_other_application(dev: Dev, tmp_path: Path) -> None:
    """Two applications on one task queue take each other's runs: said at start, with a way out."""
    tmp_path.joinpath("library.py").write_text(LIBRARY)
    worker = subprocess.Popen(
        [sys.executable, str(ROOT / "worker.py"), "--agents", "library", "--state", str(dev.state)],
        cwd=tmp_path,
        env=environment(ANTHROPIC_API_KEY="x"),
        stderr=subprocess.PIPE,
        text=True,
    )
    told = read_until(worker, "worker takes work")
    worker.send_signal(signal.SIGTERM)
    worker.communicate(timeout=30)
    assert worker.returncode == 0
    assert f'"address": "{dev.address}"' in told
    assert "another application takes runs from this task queue" in told
    assert " finance" in told
    assert "dev --no-worker" in told


LIBRARY = '''
import time

from turnkeeper import Agent, tool


@tool(effect="read")
def borrow(seconds: float) -> str:
    """Borrow a book."""
    time.sleep(seconds)
    return "Moby Dick"


agent = Agent(name="library", model="claude-sonnet-5-5", instructions="Lend.", tools=[borrow])
'''
LIBRARY_SCRIPT = """
from turnkeeper.testing import call, text

script = [
    lambda x: call("borrow", {"seconds": 60 if "long" in x.prompt else 0}),
    lambda x: text(x.last_results[0].text),
]
"""


@pytest.mark.long
def test_dev_serves_the_agents_of_the_folder_it_is_called_in(tmp_path: Path) -> None:
    """Modules are found there, the hint names the agent; a second Ctrl-C waits for no call."""
    tmp_path.joinpath("library.py").write_text(LIBRARY)
    tmp_path.joinpath("library_script.py").write_text(LIBRARY_SCRIPT)
    command = [sys.executable, str(ROOT / "starter.py"), "--state", str(tmp_path / "state")]
    serving = subprocess.Popen(
        [*command, "dev", "--agents", "library", "--script", "library_script:script"],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert serving.stdout is not None
        told = "".join(iter(serving.stdout.readline, "Ctrl-C ends it all.\n"))
        assert f"--state {tmp_path / 'state'} run '...' --agent library" in told, serving.stderr
        ask = [*command, "run", "--agent", "library"]
        done = subprocess.run(
            [*ask, "A book"], env=environment(), capture_output=True, text=True, check=True
        )
        assert done.stdout == "Moby Dick\n"
        reading = subprocess.Popen(
            [*ask, "A long book"], env=environment(), stderr=subprocess.PIPE, text=True
        )
        read_until(reading, "EXECUTE")
        reading.send_signal(signal.SIGINT)
        reading.communicate(timeout=40)
        began = time.monotonic()
        serving.send_signal(signal.SIGINT)
        assert "10 s to end. Ctrl-C again ends at once." in read_until(serving, "Stopping")
    finally:
        serving.send_signal(signal.SIGINT)
        _, rest = serving.communicate(timeout=30)
    assert "Ending at once." in rest
    assert time.monotonic() - began < 8
    assert not processes_of(tmp_path)


def test_dev_without_a_worker_is_server_and_ui(tmp_path: Path) -> None:
    """For a worker of one's own: the hint says how to start it."""
    serving = subprocess.Popen(
        [sys.executable, "starter.py", "--state", str(tmp_path), "dev", "--no-worker"],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert serving.stdout is not None
    told = "".join(iter(serving.stdout.readline, "Ctrl-C ends it all.\n"))
    assert "worker.py --state" in told
    assert not [line for line in processes_of(tmp_path) if "worker.py" in line]
    serving.send_signal(signal.SIGINT)
    assert serving.wait(30) == 0


def listed(dev: Dev, query: str) -> list[str]:
    """The table once visibility, which lags a little, has the end of the run."""
    deadline = time.monotonic() + 10
    while True:
        table = dev.starter("list", query).stdout.splitlines()
        if (len(table) == 2 and "running" not in table[1]) or time.monotonic() > deadline:
            return table


def read_until(process: subprocess.Popen[str], word: str) -> str:
    """Read stderr up to the line with a word."""
    assert process.stderr is not None
    read = ""
    for line in process.stderr:
        read += line
        if word in line:
            return read
    raise AssertionError(f"no {word} in: {read}")
