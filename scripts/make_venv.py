"""Make or mend `.venv` from `requirements.lock`. Run by `scripts/set-up`; standard library only.

One process works at a time (a lock on `.venv.lock`), the others wait and find the work done.
The packages come in by uv if there is one on PATH, by a uv that pip brings in otherwise, and
by pip itself if uv cannot be had or fails. Their output is shown only when they fail.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
VENV_PYTHON = str(VENV / "bin" / "python")
LOCK = ROOT / "requirements.lock"
STAMP = VENV / "installed.lock"

# Settings of pip that send packages elsewhere than into the .venv, or change what is
# installed. Those that say where packages come from (index, certificates) stay.
MISDIRECTING = (
    "PIP_CONSTRAINT",
    "PIP_DRY_RUN",
    "PIP_EDITABLE",
    "PIP_NO_DEPS",
    "PIP_PREFIX",
    "PIP_PYTHON",
    "PIP_REQUIREMENT",
    "PIP_ROOT",
    "PIP_TARGET",
)
# uv does not read pip's settings: a mirror or a private certificate must hold for both.
PIP_TO_UV = {
    "PIP_INDEX_URL": "UV_DEFAULT_INDEX",
    "PIP_EXTRA_INDEX_URL": "UV_INDEX",
    "PIP_CERT": "SSL_CERT_FILE",
}


class SetUpError(Exception):
    """A step failed; the message is what the person at the terminal reads."""


def main() -> None:
    """Bring `.venv` up to date, or leave with status 1 and the failed step's output."""
    with (ROOT / ".venv.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another set-up of this checkout")
            fcntl.flock(lock, fcntl.LOCK_EX)
        if up_to_date():
            return
        started = time.monotonic()
        prepare_venv()
        install_packages()
        add_checkout()
        shutil.copyfile(LOCK, STAMP)
        say(f"ready in {time.monotonic() - started:.0f} s")


def up_to_date() -> bool:
    """Whether the stamp matches the lock and the interpreter runs."""
    return STAMP.is_file() and STAMP.read_bytes() == LOCK.read_bytes() and interpreter_runs()


def interpreter_runs() -> bool:
    """Whether `.venv/bin/python` starts and is new enough."""
    check = "import sys; sys.exit(sys.version_info < (3, 11))"
    try:
        done = subprocess.run([VENV_PYTHON, "-c", check], check=False, capture_output=True)
    except OSError:
        return False
    return done.returncode == 0


def prepare_venv() -> None:
    """Keep a `.venv` that was once complete; make anything else anew."""
    if STAMP.is_file() and interpreter_runs():
        # Gone until the update is complete: an interrupted one is made anew.
        STAMP.unlink()
        say(f"updating .venv ({packages_in_lock()} locked packages)")
        return
    version = ".".join(map(str, sys.version_info[:3]))
    say(f"making .venv with Python {version} ({packages_in_lock()} locked packages)")
    if VENV.is_symlink():
        VENV.unlink()
    elif VENV.exists():
        shutil.rmtree(VENV)
    # Packages are brought in by uv if there is one: pip itself is added only on demand.
    run("making .venv", [sys.executable, "-m", "venv", "--without-pip", str(VENV)])


def install_packages() -> None:
    """Install the lock with uv, or with pip where uv cannot be had or fails."""
    uv = shutil.which("uv") or uv_by_pip()
    if uv:
        sync = [uv, "pip", "sync", "--quiet", "--require-hashes"]
        try:
            run("installing with uv", [*sync, "--python", VENV_PYTHON, str(LOCK)], uv_environment())
            return
        except SetUpError as error:
            say(f"{error}\nuv failed; trying pip")
    pip_install("-r", str(LOCK))


def add_checkout() -> None:
    """Let `.venv/bin/python` import the checkout's packages from any folder."""
    for packages in VENV.glob("lib/python*/site-packages"):
        # Relative to the folder it lies in, so that a moved checkout finds itself.
        (packages / "checkout.pth").write_text("../../../..\n")


def uv_by_pip() -> str | None:
    """The uv of the lock, installed by pip into `.venv`; None if it cannot be had."""
    block = re.search(r"^uv==(?:.*\\\n)*.*$", LOCK.read_text(), re.MULTILINE)
    if block is None:
        return None
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirement:
        requirement.write(block.group() + "\n")
        requirement.flush()
        try:
            pip_install("-r", requirement.name)
        except SetUpError as error:
            say(f"{error}\nno uv; going on with pip")
            return None
    return str(VENV / "bin" / "uv")


def pip_install(*arguments: str) -> None:
    """Run pip inside `.venv`, adding pip first if it is not there."""
    version = [VENV_PYTHON, "-m", "pip", "--version"]
    if subprocess.run(version, check=False, capture_output=True).returncode:
        run("adding pip to .venv", [VENV_PYTHON, "-m", "ensurepip", "--default-pip"])
    quiet = ["--quiet", "--disable-pip-version-check", "--no-input", "--require-hashes"]
    install = [VENV_PYTHON, "-m", "pip", "install", *quiet]
    run("installing with pip", [*install, *arguments], pip_environment())


def pip_environment() -> dict[str, str]:
    """The environment without the settings that would miss `.venv`."""
    environment = {name: value for name, value in os.environ.items() if name not in MISDIRECTING}
    # Set, not removed: a `user = true` of pip's configuration files counts as well.
    environment["PIP_USER"] = "0"
    return environment


def uv_environment() -> dict[str, str]:
    """The environment in which uv uses pip's index and certificate, unless it has its own."""
    environment = dict(os.environ)
    for pip_name, uv_name in PIP_TO_UV.items():
        if pip_name in environment:
            environment.setdefault(uv_name, environment[pip_name])
    return environment


def run(step: str, command: list[str], environment: dict[str, str] | None = None) -> None:
    """Run one step quietly; on failure raise `SetUpError` with everything it printed."""
    done = subprocess.run(
        command,
        check=False,
        env=environment,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    if done.returncode:
        raise SetUpError(f"{step} failed (status {done.returncode}):\n{done.stdout.rstrip()}")


def packages_in_lock() -> int:
    """How many packages the lock pins."""
    return len(re.findall(r"^[^\s#].*==", LOCK.read_text(), re.MULTILINE))


def say(line: str) -> None:
    """One line of progress, on stderr: stdout belongs to the target."""
    print(f"set-up: {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        main()
    except (SetUpError, OSError) as error:
        say(str(error))
        sys.exit(1)
