"""The command line: start agent runs, look at them, settle them, stop them; a demo, a server.

Exit codes: 0 completed; 1 failed, or no server; 2 a wrong request, an unknown agent, wrong usage;
3 ended at a limit, refused, truncated, invalid or stopped; 4 cancelled; 130 interrupted by Ctrl-C.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

# Everything else is imported by the command that runs: `--help` answers at once.
from turnkeeper.commands.place import FAILED, USAGE, Complaint, Place
from turnkeeper.commands.selection import add_selection
from turnkeeper.commands.terminal import safe
from turnkeeper.errors import TurnkeeperError

ROOT = Path(__file__).resolve().parent
_INTERRUPTED = 130
_LOCKED = ("pydantic", "pydantic_core", "temporalio")
"""What the environment of `make set-up` has, and Python itself has not."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code."""
    options = _parser().parse_args(arguments)
    place = Place(
        root=ROOT,
        state=options.state.absolute(),
        address=options.address,
        namespace=options.namespace,
        task_queue=getattr(options, "task_queue", None),
    )
    try:
        return _run(place, options)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # Who reads us has seen enough (`| head`).
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:  # noqa: BLE001 - people get a sentence, not a traceback
        return _complain(place, error, as_json=getattr(options, "json", False))


def _run(place: Place, options: argparse.Namespace) -> int:
    done: int | Coroutine[Any, Any, int]
    module, _, function = options.command.partition(":")
    done = getattr(importlib.import_module(f"turnkeeper.commands.{module}"), function)(
        place, options
    )
    if isinstance(done, int):
        return done
    import asyncio

    return asyncio.run(done)


def _complain(place: Place, error: Exception, *, as_json: bool) -> int:
    if os.environ.get("TURNKEEPER_DEBUG"):
        raise error
    message, code = str(error), FAILED
    if isinstance(error, Complaint):
        code = error.code
    elif type(error) is LookupError or getattr(error, "outcome", None) == "invalid_request":
        code = USAGE
    elif isinstance(error, ModuleNotFoundError) and error.name in _LOCKED:
        message = f"{error.name} is missing: run it with .venv/bin/python (`make set-up` makes it)"
    elif not isinstance(error, (TurnkeeperError, OSError)):
        message = f"{type(error).__name__}: {message} (TURNKEEPER_DEBUG=1 shows where)"
    # What a server or a run says may be anything.
    sys.stderr.write(f"starter.py: {safe(message)}\n")
    if type(error) is LookupError:
        sys.stderr.write(f"To see what runs there are: {place.again('list')}\n")
    if as_json:
        print(json.dumps({"error": message}))
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="starter.py",
        description="Start agent runs, look at them, stop them.",
        epilog="Exit codes: 0 completed, 1 failed or no server, 2 wrong request or usage, 3 ended "
        "at a limit, refused, truncated, invalid or stopped, 4 cancelled.",
    )
    _add_place(parser, "before or after the command")
    parser.set_defaults(address=None, namespace=None, state=ROOT / ".turnkeeper")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_run(commands)
    _add_show(commands)
    _add_watch(commands)
    _add_list(commands)
    _add_count(commands)
    _add_why(commands)
    _add_approvals(commands)
    _add_unknown(commands)
    _add_send(commands)
    _add_answer(commands)
    _add_chat(commands)
    _add_stop(commands)
    _add_export(commands)
    _add_pause(commands)
    _add_resume(commands)
    _add_raise_limits(commands)
    _add_fork(commands)
    _add_retry(commands)
    _add_switch(commands)
    _add_day_limit(commands)
    _add_artifacts(commands)
    _add_demo(commands)
    _add_dev(commands)
    _add_new(commands)
    return parser


def _add_place(parser: argparse.ArgumentParser, title: str) -> None:
    """Options of every command. None has a default: what stands before the command would be
    overwritten by that of the options after it."""
    place = parser.add_argument_group(title, argument_default=argparse.SUPPRESS)
    place.add_argument(
        "--address", metavar="HOST:PORT", help="of the Temporal server (also TEMPORAL_ADDRESS)"
    )
    place.add_argument("--namespace", help="Temporal namespace (also TEMPORAL_NAMESPACE)")
    place.add_argument(
        "--state",
        type=Path,
        metavar="DIR",
        help="folder of the embedded server and its data (default: .turnkeeper beside this file)",
    )


def _add_run(commands: Any) -> None:
    parser = _add(commands, "run", "run:run", "Start a run and wait for its answer.")
    parser.add_argument("prompt", help="the task, or - to read it from standard input")
    parser.add_argument("--agent", required=True, help="the agent's name")
    parser.add_argument("--id", help="the run's id; an id that exists is not started again")
    _add_pairs(parser, "--limit", "a bound on the run, such as turns=8 or wall_seconds=600")
    _add_pairs(parser, "--metadata", "for tools and operators, such as tenant=acme")
    parser.add_argument("--request-key", metavar="KEY", help="your name of this piece of work")
    _add_task_queue(parser)
    parser.add_argument("--no-wait", action="store_true", help="print the run's id and leave")
    _add_json(parser)


def _add_show(commands: Any) -> None:
    parser = _add(commands, "show", "show:show", "Show a run's transcript, open or closed.")
    parser.add_argument("id", metavar="ID", help="the run's id")
    parser.add_argument("--follow", action="store_true", help="its steps until it ends")
    parser.add_argument(
        "--full", action="store_true", help="long results whole, as in a pipe and with --json"
    )
    parser.add_argument(
        "--html",
        nargs="?",
        const="",
        metavar="FILE",
        help="write it as one HTML file, ID.html unless named; - for standard output",
    )
    _add_json(parser)


def _add_watch(commands: Any) -> None:
    parser = _add(commands, "watch", "watch:watch", "Watch one run until it ends.")
    parser.add_argument("id", metavar="ID", help="the run's id")
    parser.add_argument("--json", action="store_true", help="print one JSON object per change")


def _add_list(commands: Any) -> None:
    parser = _add(
        commands, "list", "runs:list_runs", "List open runs and the last to close, newest first."
    )
    add_selection(parser, query=True)
    parser.add_argument("--count", type=_positive, default=20, metavar="N", help="default 20")
    _add_json(parser)


def _add_count(commands: Any) -> None:
    parser = _add(commands, "count", "runs:count", "Count runs, open and closed.")
    add_selection(parser, query=True)
    _add_json(parser)


def _add_why(commands: Any) -> None:
    parser = _add(commands, "why", "why:why", "What a run waits for, and what to do about it.")
    parser.add_argument("id", metavar="ID", help="the run's id")
    _add_json(parser)


def _add_unknown(commands: Any) -> None:
    parser = _add(
        commands,
        "unknown",
        "unknown:unknown",
        "List tool calls that may or may not have taken effect, over all runs; or settle one.",
    )
    parser.add_argument(
        "run", nargs="?", metavar="RUN", help="the id of a run; alone, its calls are listed"
    )
    parser.add_argument("call", nargs="?", metavar="CALL", help="the id of the call to settle")
    verdict = parser.add_mutually_exclusive_group()
    verdict.add_argument(
        "--landed", action="store_true", default=None, help="the call took effect: the run goes on"
    )
    verdict.add_argument(
        "--not-landed", action="store_false", dest="landed", default=None, help="it did not"
    )
    parser.add_argument("--result", metavar="TEXT", help="what the model reads, such as a receipt")
    _add_actor(parser, "says so")
    parser.add_argument(
        "--waiting", action="store_true", help="list those alone that wait for a person"
    )
    parser.add_argument(
        "--count", type=_positive, metavar="N", help="runs to look at (default 1000)"
    )
    _add_json(parser)


def _add_send(commands: Any) -> None:
    parser = _add(commands, "send", "talk:send", "Say something to the model of an open run.")
    parser.add_argument("run", metavar="RUN", help="the run's id")
    parser.add_argument("text", metavar="TEXT", help="what the model reads after this turn")
    parser.add_argument("--interrupt", action="store_true", help="cancel what is under way for it")
    parser.add_argument("--wait", action="store_true", help="print the model's answer")
    parser.add_argument(
        "--message-id", metavar="ID", help="your name of it: sent again, it is not read twice"
    )
    _add_actor(parser, "says it")
    _add_json(parser)


def _add_answer(commands: Any) -> None:
    parser = _add(commands, "answer", "talk:answer", "Answer a question that a run has asked.")
    parser.add_argument("run", metavar="RUN", help="the run's id")
    parser.add_argument("call", metavar="CALL", help="the id of the call that asks")
    parser.add_argument("text", metavar="TEXT", help="what the model reads")
    _add_actor(parser, "answers")
    _add_json(parser)


def _add_chat(commands: Any) -> None:
    parser = _add(commands, "chat", "talk:chat", "Talk with an agent: each line is a message.")
    parser.add_argument("agent", metavar="AGENT", help="the agent's name")
    parser.add_argument("--id", help="of the conversation; one that is open is gone on with")
    _add_actor(parser, "talks")
    _add_task_queue(parser)


def _add_approvals(commands: Any) -> None:
    listing = _add(
        commands,
        "approvals",
        "approvals:approvals",
        "List tool calls that wait for a person to allow them, over all runs.",
    )
    add_selection(listing, query=True)
    listing.add_argument(
        "--count", type=_positive, default=1_000, metavar="N", help="runs to look at (default 1000)"
    )
    _add_json(listing)
    for verb, summary in (
        ("approve", "Let a call be run that waits for a person's word."),
        ("deny", "Have a call not run that waits for a person's word."),
    ):
        parser = _add(commands, verb, f"approvals:{verb}", summary)
        parser.add_argument("run", metavar="RUN", help="the run's id")
        parser.add_argument("approval", metavar="APPROVAL", help="its id, as `approvals` lists it")
        if verb == "approve":
            parser.add_argument(
                "--remember",
                action="store_true",
                help="do not ask again in this run for this tool, whatever the arguments",
            )
        else:
            _add_reason(parser, "what the model reads")
        _add_actor(parser, "decides")
        parser.add_argument("--proof", metavar="TEXT", help="that it is them, for agents that ask")
        _add_json(parser)


def _add_stop(commands: Any) -> None:
    parser = _add_verb(commands, "stop", "stopped", "Stop a run")
    _add_reason(parser)


def _add_pause(commands: Any) -> None:
    parser = _add_verb(
        commands, "pause", "paused", "Let a run wait before its next turn; its time limit goes on"
    )
    _add_reason(parser, "why, for those who look at it meanwhile")


def _add_resume(commands: Any) -> None:
    _add_verb(commands, "resume", "resumed", "Let a paused run go on")


def _add_verb(commands: Any, name: str, done: str, summary: str) -> argparse.ArgumentParser:
    """A command for one run, or for all that are chosen."""
    whole = f"{summary}; or all that are chosen, shown first, with --yes."
    parser = _add(commands, name, f"control:{name}", whole)
    parser.add_argument("id", nargs="?", metavar="ID", help="the run's id")
    add_selection(parser)
    parser.add_argument("--yes", action="store_true", help=f"all that are chosen are {done}")
    parser.add_argument(
        "--count", type=_positive, default=1_000, metavar="N", help="at most so many (default 1000)"
    )
    _add_actor(parser, "asks")
    _add_json(parser)
    return parser


def _add_raise_limits(commands: Any) -> None:
    parser = _add(
        commands, "raise-limits", "control:raise_limits", "Raise limits before a run reaches them."
    )
    parser.add_argument("id", metavar="ID", help="the run's id")
    parser.add_argument(
        "limits",
        nargs="+",
        metavar="NAME=VALUE",
        help="such as turns=100 or wall_seconds=7200; null for no limit",
    )
    _add_reason(parser)
    _add_actor(parser, "asks")
    _add_json(parser)


def _add_fork(commands: Any) -> None:
    parser = _add(
        commands,
        "fork",
        "branch:fork",
        "Start a new run from what another one had said before a turn; print the new run's id.",
    )
    parser.add_argument("id", metavar="RUN", help="the id of the run that is forked")
    parser.add_argument(
        "--turn", type=_positive, required=True, metavar="N", help="the first turn of its own"
    )
    parser.add_argument(
        "--edit",
        metavar="TEXT",
        help="what the model reads in place of the last message, or after the last results",
    )
    parser.add_argument(
        "--id", dest="new_id", metavar="NEW", help="the new run's id; one that exists stays"
    )
    _add_pairs(parser, "--limit", "a bound on the new run, such as turns=20")
    parser.add_argument("--task-queue", metavar="NAME", help="default: that of the forked run")
    _add_json(parser)


def _add_retry(commands: Any) -> None:
    parser = _add(
        commands,
        "retry",
        "branch:retry",
        "Run a run again from a turn on, under its own id and keys; what came after is replaced.",
    )
    parser.add_argument("id", metavar="RUN", help="the run's id")
    parser.add_argument(
        "--turn", type=_positive, required=True, metavar="N", help="the first turn to run again"
    )
    parser.add_argument(
        "--again",
        action="store_true",
        help="also if these turns have changed the world; without it, what they did is listed",
    )
    _add_reason(parser)
    _add_actor(parser, "asks")
    _add_json(parser)


def _add_export(commands: Any) -> None:
    parser = _add(
        commands,
        "export",
        "export:export",
        "Write runs to files, one each, for audits: those that are named, or have ended and are "
        "chosen. Files that are there already are kept.",
    )
    parser.add_argument("id", nargs="*", metavar="ID", help="a run's id")
    add_selection(parser)
    parser.add_argument(
        "--out", type=Path, default=Path("exports"), metavar="DIR", help="default: exports"
    )
    parser.add_argument(
        "--count", type=_positive, default=10_000, metavar="N", help="at most so many (10000)"
    )
    _add_json(parser)


def _add_switch(commands: Any) -> None:
    summary = "Switch a tool, an agent or a tenant off for all runs, and on again."
    parser = commands.add_parser("switch", help=summary, description=summary)
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")
    off = _add(
        actions,
        "off",
        "switches:off",
        "From now on nothing of it begins, in any run of the namespace.",
    )
    on = _add(actions, "on", "switches:on", "Let it go on; runs that wait do so within a minute.")
    listing = _add(actions, "list", "switches:list_switches", "What is off, since when and why.")
    for action in (off, on):
        action.add_argument(
            "kind",
            choices=("tool", "agent", "tenant"),
            metavar="KIND",
            help="tool, agent or tenant",
        )
        action.add_argument(
            "name",
            metavar="NAME",
            help="such as issue_refund, or refunds.issue_refund for one agent",
        )
        _add_actor(action, "does it")
    off.add_argument("--reason", required=True, help="why: models and operators read it")
    _add_reason(on, "why, for the record in history")
    for action in (off, on):
        action.add_argument(
            "--task-queue", metavar="NAME", help="for its runs alone (default: the whole namespace)"
        )
    listing.add_argument(
        "--task-queue", metavar="NAME", help="what holds for its runs (default: all that is off)"
    )
    for action in (off, on, listing):
        _add_json(action)


def _add_day_limit(commands: Any) -> None:
    summary = "Bound what all runs of an agent or a tenant use in a day."
    parser = commands.add_parser("day-limit", help=summary, description=summary)
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")
    setting = _add(
        actions,
        "set",
        "day_limits:set_limit",
        "Set a limit, in place of one that is set; runs that reach it wait for the next day (UTC).",
    )
    removing = _add(
        actions,
        "remove",
        "day_limits:remove",
        "Take it away; runs that wait go on within a minute.",
    )
    listing = _add(
        actions,
        "list",
        "day_limits:list_limits",
        "Which limits there are, and what was used today.",
    )
    for action in (setting, removing):
        action.add_argument(
            "kind", choices=("agent", "tenant"), metavar="KIND", help="agent or tenant"
        )
        action.add_argument(
            "name", metavar="NAME", help="of the agent, or as in the metadata of the tenant's runs"
        )
        _add_actor(action, "does it")
    setting.add_argument("--cost-usd", type=float, metavar="USD", help="US dollars a day")
    setting.add_argument("--tokens", type=int, metavar="N", help="tokens in and out a day")
    for action in (setting, removing, listing):
        _add_json(action)


def _add_artifacts(commands: Any) -> None:
    summary = "What runs have in the artifact store; remove what those that are gone have left."
    parser = commands.add_parser("artifacts", help=summary, description=summary)
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")
    listing = _add(
        actions, "list", "artifacts:list_artifacts", "List what each run has, last stored first."
    )
    collecting = _add(
        actions,
        "gc",
        "artifacts:gc",
        "Show what runs have left that are gone from Temporal; remove it with --yes.",
    )
    collecting.add_argument("--yes", action="store_true", help="remove it")
    collecting.add_argument(
        "--grace",
        type=_grace,
        default=3_600,
        metavar="SECONDS",
        help="spare runs that stored something within that time (default 3600, at least 60)",
    )
    collecting.add_argument(
        "--unrecorded",
        action="store_true",
        help="also what releases stored that did not record their namespace: only where no other "
        "namespace or server has used the store",
    )
    for action in (listing, collecting):
        action.add_argument("--artifacts", metavar="URL", help="the store (TURNKEEPER_ARTIFACTS)")
        _add_json(action)


def _add_demo(commands: Any) -> None:
    parser = _add(commands, "demo", "demo:demo", "One agent answers one question.")
    parser.add_argument("--crash", action="store_true", help="kill its worker twice meanwhile")
    parser.add_argument("--id", help="the run's id")
    _add_json(parser)


def _add_dev(commands: Any) -> None:
    parser = _add(commands, "dev", "dev:dev", "Server, UI and worker in the foreground.")
    parser.add_argument(
        "--agents",
        metavar="MODULES",
        help="what the worker serves, from here or the checkout, separated with commas (default: "
        "examples.finance)",
    )
    parser.add_argument(
        "--script",
        metavar="MODULE:NAME",
        help="what stands in for the model without ANTHROPIC_API_KEY",
    )
    parser.add_argument(
        "--no-worker", action="store_true", help="server and UI only, for a worker.py of your own"
    )
    parser.add_argument(
        "--no-reload",
        action="store_false",
        dest="reload",
        help="keep the worker when a Python file of the agents changes",
    )


def _add_new(commands: Any) -> None:
    parser = _add(commands, "new", "new:new", "Write an agent, a tool and a test to begin with.")
    parser.add_argument("name", metavar="NAME", help="of the agent and its module: small_letters")
    parser.add_argument(
        "--folder",
        type=Path,
        metavar="DIR",
        help="where to; nothing is overwritten (default: NAME)",
    )


def _add(commands: Any, name: str, command: str, summary: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=summary, description=summary)
    parser.set_defaults(command=command)
    _add_place(parser, "where")
    return parser


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _add_actor(parser: argparse.ArgumentParser, acts: str) -> None:
    parser.add_argument("--actor", metavar="NAME", help=f"who {acts} (default: you)")


def _add_reason(
    parser: argparse.ArgumentParser, why: str = "why, for those who look at it later"
) -> None:
    parser.add_argument("--reason", default="", help=why)


def _add_task_queue(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--task-queue", metavar="NAME", help="of the workers (also TURNKEEPER_TASK_QUEUE)"
    )


def _add_pairs(parser: argparse.ArgumentParser, name: str, what: str) -> None:
    told = f"{what}; repeatable"
    parser.add_argument(name, action="append", default=[], metavar="NAME=VALUE", help=told)


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def _positive(text: str) -> int:
    number = _whole(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def _grace(text: str) -> int:
    number = _whole(text)
    if number < 60:
        raise argparse.ArgumentTypeError("at least 60: what was just stored may be of a new run")
    return number


if __name__ == "__main__":
    exit_code = main()
    # Not sys.exit: a short-lived process that used temporalio may abort while the interpreter is
    # taken down (temporalio/sdk-python#300), which would turn success into exit code 134.
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(exit_code)
