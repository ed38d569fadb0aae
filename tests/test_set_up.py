"""`make` sets up what it needs: a small checkout whose lock holds one package, made here."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

MAKEFILE = """
include real.mk
hello: set-up
	@$(VENV_PYTHON) -c 'import tiny; print(tiny.WORD)'
"""


def make_wheel(folder: Path) -> Path:
    """A wheel of the package `tiny`, complete enough for pip and uv."""
    files = {
        "tiny.py": b"WORD = 'hello'\n",
        "tiny-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
        "tiny-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\n"
        b"Root-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ["tiny-1.0.dist-info/RECORD,,"]
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
        record.append(f"{name},sha256={digest.decode()},{len(content)}")
    wheel = folder / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        archive.writestr("tiny-1.0.dist-info/RECORD", "\n".join(record) + "\n")
    return wheel


def write_lock(checkout: Path, *, digest: str | None = None) -> None:
    """Lock `tiny` to the wheel in the checkout, or to a digest that it does not have."""
    wheel = checkout / "wheels" / "tiny-1.0-py3-none-any.whl"
    digest = digest or hashlib.sha256(wheel.read_bytes()).hexdigest()
    lock = f"--no-index\n--find-links ./wheels\ntiny==1.0 \\\n    --hash=sha256:{digest}\n"
    (checkout / "requirements.lock").write_text(lock)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout, below a path with spaces, that installs one package from its own folder."""
    checkout = tmp_path / "a path with spaces"
    (checkout / "wheels").mkdir(parents=True)
    make_wheel(checkout / "wheels")
    write_lock(checkout)
    shutil.copytree(ROOT / "scripts", checkout / "scripts")
    shutil.copy(ROOT / "Makefile", checkout / "real.mk")
    (checkout / "Makefile").write_text(MAKEFILE)
    return checkout


def environment(checkout: Path, *, uv: str | None, **variables: str) -> dict[str, str]:
    """An environment in which PATH has this Python, the system's tools, and `uv` as given."""
    commands = checkout.parent / "commands"
    commands.mkdir(exist_ok=True)
    python = commands / "python3"
    if not python.is_symlink():
        # The interpreter itself, as of a machine where nothing was set up.
        python.symlink_to(Path(sys.base_prefix) / "bin" / "python3")
    if uv is not None:
        (commands / "uv").write_text(f"#!/bin/sh\n{uv}\n")
        (commands / "uv").chmod(0o755)
    return {"PATH": f"{commands}:/usr/bin:/bin", "HOME": str(checkout.parent), **variables}


def with_uv(checkout: Path, **variables: str) -> dict[str, str]:
    """An environment with the real uv on PATH."""
    uv = Path(sys.executable).parent / "uv"
    return environment(checkout, uv=f'exec "{uv}" "$@"', **variables)


def make(
    checkout: Path, variables: dict[str, str], target: str = "hello"
) -> subprocess.CompletedProcess[str]:
    """Run one target."""
    command = ["make", target]
    return subprocess.run(
        command, cwd=checkout, env=variables, check=False, capture_output=True, text=True
    )


@pytest.mark.long
def test_pip_alone_is_enough(checkout: Path) -> None:
    """Without uv, and with settings of pip that point elsewhere, the package is in .venv."""
    elsewhere = str(checkout.parent / "elsewhere")
    variables = environment(
        checkout,
        uv=None,
        PIP_USER="1",
        PIP_TARGET=elsewhere,
        PIP_PREFIX=elsewhere,
        PIP_REQUIRE_VIRTUALENV="1",
        PIP_CONSTRAINT=str(checkout / "nowhere.txt"),
    )
    done = make(checkout, variables)
    assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr
    assert not Path(elsewhere).exists()


def test_uv_on_the_path_is_used(checkout: Path) -> None:
    """With uv there, pip is not even put into .venv; progress goes to stderr."""
    done = make(checkout, with_uv(checkout))
    assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr
    assert "making .venv with Python 3." in done.stderr
    assert "ready in" in done.stderr
    assert not list((checkout / ".venv").glob("lib/*/site-packages/pip"))


def test_the_checkout_can_be_imported_from_any_folder(checkout: Path, tmp_path: Path) -> None:
    """What a person keeps elsewhere finds the checkout's packages by its interpreter alone."""
    make(checkout, with_uv(checkout), "set-up")
    (checkout / "mine.py").write_text("print('found')")
    done = subprocess.run(
        [checkout / ".venv" / "bin" / "python", "-c", "import mine"],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "found\n"), done.stderr


@pytest.mark.long
def test_a_failing_uv_is_replaced_by_pip(checkout: Path) -> None:
    """Its output is shown, then pip installs."""
    done = make(checkout, environment(checkout, uv="echo no certificate; exit 7"))
    assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr
    assert "installing with uv failed (status 7):\nno certificate" in done.stderr
    assert "uv failed; trying pip" in done.stderr


def test_the_second_time_is_silent(checkout: Path) -> None:
    """Nothing is printed and nothing is installed."""
    variables = with_uv(checkout)
    make(checkout, variables)
    done = make(checkout, variables, "set-up")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_half_made_venv_is_made_anew(checkout: Path) -> None:
    """A .venv without the stamp that is written last is not trusted."""
    site = checkout / ".venv" / "lib" / "python3.11" / "site-packages"
    site.mkdir(parents=True)
    (site / "tiny.py").write_text("WORD = 'half")
    done = make(checkout, with_uv(checkout))
    assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr


def test_a_venv_whose_python_is_gone_is_made_anew(checkout: Path) -> None:
    """After an upgrade of the system the interpreter's link may lead nowhere."""
    variables = with_uv(checkout)
    make(checkout, variables)
    python = checkout / ".venv" / "bin" / "python"
    python.unlink()
    python.symlink_to("/nowhere/python3.11")
    done = make(checkout, variables)
    assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr


def test_a_changed_lock_updates_the_venv(checkout: Path) -> None:
    """The new lock is installed into the same .venv."""
    variables = with_uv(checkout)
    make(checkout, variables)
    lock = checkout / "requirements.lock"
    lock.write_text("# renewed\n" + lock.read_text())
    done = make(checkout, variables)
    assert "updating .venv (1 locked packages)" in done.stderr
    assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr
    assert (checkout / ".venv" / "installed.lock").read_text().startswith("# renewed")


def test_two_at_once_make_it_once(checkout: Path) -> None:
    """Of three targets started together one makes .venv, the others wait for it."""
    variables = with_uv(checkout)
    running = [
        subprocess.Popen(
            ["make", "hello"],
            cwd=checkout,
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    outputs = [process.communicate() for process in running]
    assert [process.returncode for process in running] == [0, 0, 0], outputs
    assert [output for output, _ in outputs] == ["hello\n"] * 3
    assert sum("making .venv" in errors for _, errors in outputs) == 1


@pytest.mark.long
def test_a_package_with_another_hash_is_refused(checkout: Path) -> None:
    """The error is shown, the target does not run, and the next attempt starts anew."""
    write_lock(checkout, digest="0" * 64)
    done = make(checkout, with_uv(checkout))
    assert done.returncode != 0
    assert done.stdout == ""
    assert "hash" in done.stderr.lower()
    assert not (checkout / ".venv" / "installed.lock").exists()
    write_lock(checkout)
    assert make(checkout, with_uv(checkout)).stdout == "hello\n"


def test_a_machine_without_python_is_told_what_is_missing(checkout: Path) -> None:
    """Interpreters that are too old are passed over."""
    variables = environment(checkout, uv=None)
    commands = checkout.parent / "commands"
    for name in ("python3", "python3.13", "python3.12", "python3.11"):
        (commands / name).unlink(missing_ok=True)
        # In front of any of the system's own.
        (commands / name).write_text("#!/bin/sh\nexit 1\n")
        (commands / name).chmod(0o755)
    done = make(checkout, variables)
    assert done.returncode != 0
    assert "no Python of 3.11 or newer found" in done.stderr
    assert "make PYTHON=" in done.stderr


def test_a_chosen_python_is_checked(checkout: Path) -> None:
    """`make PYTHON=...` is used as it is, and refused if it is too old or not there."""
    done = make(checkout, environment(checkout, uv=None, PYTHON="/nowhere/python3"))
    assert done.returncode != 0
    assert "PYTHON=/nowhere/python3 is not a Python of 3.11 or newer" in done.stderr
    chosen = with_uv(checkout, PYTHON=str(Path(sys.base_prefix) / "bin" / "python3"))
    assert make(checkout, chosen).stdout == "hello\n"


def test_help_is_the_default_and_needs_nothing(checkout: Path) -> None:
    """`make` alone lists every public target with one line, without any set-up."""
    done = subprocess.run(["make"], cwd=ROOT, check=True, capture_output=True, text=True)
    listed = {line.split()[1] for line in done.stdout.splitlines()}
    assert listed >= {"help", "demo", "crash-demo", "dev", "test", "lint", "types"}
    assert make(checkout, environment(checkout, uv=None), "help").returncode == 0
    assert not (checkout / ".venv").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become someone else")
@pytest.mark.long
def test_another_user_than_root_can_set_up(checkout: Path) -> None:
    """Nothing depends on being root or on a writable home."""
    nobody = 65534
    variables = {"HOME": "/nonexistent", "PATH": f"{sys.base_prefix}/bin:/usr/bin:/bin"}
    # Where everyone may look, unlike pytest's own folders.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        own = Path(shutil.copytree(checkout, Path(folder) / checkout.name))
        for path in (own, *own.rglob("*")):
            os.chown(path, nobody, nobody)
        usable = any(
            subprocess.run(
                ["/bin/sh", "-c", f"{name} -c 'import ensurepip, tomllib'"],
                env=variables,
                user=nobody,
                check=False,
                capture_output=True,
            ).returncode
            == 0
            for name in ("python3", "python3.13", "python3.12", "python3.11")
        )
        if not usable:
            pytest.skip("no Python >= 3.11 that another user may run")
        done = subprocess.run(
            ["make", "hello"],
            cwd=own,
            env=variables,
            user=nobody,
            group=nobody,
            check=False,
            capture_output=True,
            text=True,
        )
    assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr
