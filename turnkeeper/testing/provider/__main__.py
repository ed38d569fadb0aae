"""The provider as a process.

    python -m turnkeeper.testing.provider --script examples.finance.script:script --port 0

prints one line of JSON, `{"url": ..., "pid": ...}`, when it listens, and ends with exit code 0 on
SIGTERM, on SIGINT, or when the process `--parent-pid` is gone.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from pathlib import Path

from turnkeeper.testing.provider.reload import Reloaded
from turnkeeper.testing.provider.script import load_script
from turnkeeper.testing.provider.server import ScriptedProvider

_PARENT_POLL_SECONDS = 0.2


def main() -> None:
    """Serve until told to stop."""
    options = _parser().parse_args()
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    try:
        script = Reloaded(options.script) if options.reload else load_script(options.script)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    with ScriptedProvider(
        script,
        host=options.host,
        port=options.port,
        window=options.window,
        log=options.log,
        log_bodies=options.log_bodies,
        fsync=not options.no_fsync,
    ) as provider:
        ready = json.dumps({"url": provider.url, "pid": os.getpid()})
        if options.ready_file is not None:
            _write_whole(options.ready_file, ready)
        sys.stdout.write(ready + "\n")
        sys.stdout.flush()
        while not stopping.wait(_PARENT_POLL_SECONDS):
            if options.parent_pid is not None and not _is_running(options.parent_pid):
                break


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m turnkeeper.testing.provider",
        description="A scripted, strict stand-in for Anthropic's Messages API.",
    )
    parser.add_argument("--script", required=True, metavar="MODULE:NAME")
    parser.add_argument("--reload", action="store_true", help="read it again when its file changes")
    parser.add_argument("--host", default="127.0.0.1", help="a loopback address")
    parser.add_argument("--port", type=int, default=0, help="0 (default) takes a free one")
    parser.add_argument("--window", type=int, metavar="TOKENS", help="every model's window")
    parser.add_argument("--log", type=Path, help="file to append a JSON line per request to")
    parser.add_argument("--log-bodies", action="store_true", help="with the requests' bodies")
    parser.add_argument("--no-fsync", action="store_true", help="do not sync the log")
    parser.add_argument("--ready-file", type=Path, help="file to write the ready line to")
    parser.add_argument("--parent-pid", type=int, help="end when this process is gone")
    return parser


def _write_whole(path: Path, content: str) -> None:
    # A reader that polls for the file must never see half of it.
    part = path.with_name(f"{path.name}.{os.getpid()}")
    part.write_text(content)
    part.replace(path)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return not _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    # A parent that was killed but not yet waited for still takes signals.
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return False


if __name__ == "__main__":
    main()
