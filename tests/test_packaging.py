"""What is shipped and run outside the checkout: the wheel, the locks, the Compose file."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.testing import WorkflowEnvironment

from tests.pages import write_refunds
from turnkeeper.contract import ATTRIBUTE_TYPES
from turnkeeper.testing.embedded import dev_server_arguments, find_temporal

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    """The Compose file, as parsed."""
    loaded: dict[str, Any] = YAML(typ="safe").load(ROOT / "docker-compose.yml")
    return loaded


def check_compose(path: Path) -> subprocess.CompletedProcess[str]:
    """Validate a Compose file against the specification's schema."""
    schema = ["--builtin-schema", "vendor.compose-spec"]
    command = [sys.executable, "-m", "check_jsonschema", *schema, str(path)]
    return subprocess.run(command, check=False, capture_output=True, text=True)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.iterdir()
    return built


@pytest.fixture
def installed(wheel: Path, tmp_path: Path) -> Path:
    """The Python of a new environment that has the wheel, and beside it what it depends on."""
    environment = tmp_path / "environment"
    venv.create(environment, symlinks=True)
    (packages,) = environment.glob("lib/*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    # The folder alone: what a `.pth` file in it adds, this checkout, is not added.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return environment / "bin" / "python"


def test_the_wheel_ships_turnkeeper_alone(wheel: Path) -> None:
    """No `workflows`, `activities`, tests or examples: other distributions use those names."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    top_level = {name.split("/")[0] for name in names}
    assert {name for name in top_level if not name.endswith(".dist-info")} == {"turnkeeper"}
    assert "turnkeeper/contract.py" in names
    assert "turnkeeper/testing/embedded.py" in names


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.long
def test_the_wheel_brings_the_pytest_plugin(installed: Path, tmp_path: Path) -> None:
    """Who installs it can test a tool under a kill: server and worker are there without a word."""
    write_refunds(tmp_path)
    path = f"{Path(find_temporal()).parent}{os.pathsep}{os.environ['PATH']}"
    ran = subprocess.run(
        [installed, "-m", "pytest", "-v", "--basetemp=base", "--crash-points=tool.done:1"],
        cwd=tmp_path,
        env={"PATH": path},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    assert re.search(r"^plugins:.* turnkeeper-\d", ran.stdout, re.MULTILINE)
    assert "test_refunds.py::test_refund[tool.done-1] PASSED" in ran.stdout


class Repository:
    """An author's own, with the wheel installed in an environment beside it."""

    def __init__(self, folder: Path, python: Path) -> None:
        self.folder = folder
        # Nothing of the checkout's environment but where the server's program is.
        temporal = Path(find_temporal()).parent
        self.environment = {"PATH": f"{temporal}{os.pathsep}/usr/bin{os.pathsep}/bin"}
        starter = [str(python), str(ROOT / "starter.py"), "--state", str(folder / "state")]
        told = self.run(shlex.join([*starter, "new", "kettles"]))
        self.cd, self.test, self.dev, self.ask = re.findall(r"^  (.+)$", told, re.MULTILINE)
        """The commands that `new` has printed, as they are."""

    def run(self, *commands: str) -> str:
        """Type commands into a shell; what they print."""
        typed = ["/bin/sh", "-ec", "\n".join(commands)]
        done = subprocess.run(
            typed,
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout


@pytest.fixture
def repository(installed: Path, tmp_path: Path) -> Repository:
    """One with the agent `kettles`, made by `starter.py new`."""
    (tmp_path / "my agents").mkdir()
    return Repository(tmp_path / "my agents", installed)


def test_a_new_agent_is_tested_in_a_repository_of_its_own(repository: Repository) -> None:
    """By the command that was printed, with the package as it is installed there."""
    assert "2 passed" in repository.run(repository.cd, repository.test)
    where = "import turnkeeper; print(turnkeeper.__file__)"
    python = shlex.split(repository.test)[0]
    assert "site-packages" in repository.run(shlex.join([python, "-c", where]))


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_checkouts_worker_serves_agents_of_another_repository(repository: Repository) -> None:
    """The commands that were printed, typed in two terminals, end in an answer."""
    serving = subprocess.Popen(
        ["/bin/sh", "-ec", f"{repository.cd}\nexec {repository.dev}"],
        cwd=repository.folder,
        env=repository.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert serving.stdout is not None
        read = ""
        while "Ctrl-C ends it all." not in read:
            line = serving.stdout.readline()
            assert line, read
            read += line
        assert re.search(r"^agents +kettles$", read, re.MULTILINE)
        assert "In stock: 4." in repository.run(repository.cd, repository.ask)
    finally:
        serving.send_signal(signal.SIGINT)
        serving.communicate(timeout=60)
    assert serving.returncode == 0


def test_the_locks_name_the_public_registry_alone() -> None:
    """No mirror's address: `uv.lock` names PyPI, `requirements.lock` no address at all."""
    locked = (ROOT / "uv.lock").read_text()
    hosts = set(re.findall(r'"(?:\w+://)([^/"]+)', locked))
    assert hosts == {"pypi.org", "files.pythonhosted.org"}
    assert not re.search(r'"(?:file://|/|\.\.)', locked)
    assert "://" not in (ROOT / "requirements.lock").read_text()


def test_every_locked_package_has_a_hash() -> None:
    """The set-up installs nothing that was not seen when the lock was made."""
    lock = (ROOT / "requirements.lock").read_text()
    blocks = re.findall(r"^\S+==(?:.*\\\n)*.*$", lock, re.MULTILINE)
    assert len(blocks) > 50
    assert all("--hash=sha256:" in block for block in blocks)


def test_the_compose_file_is_valid() -> None:
    """It follows the Compose specification."""
    checked = check_compose(ROOT / "docker-compose.yml")
    assert checked.returncode == 0, checked.stdout


def test_the_compose_check_sees_a_misspelt_condition(tmp_path: Path) -> None:
    """The check is not a formality: one wrong word is found."""
    wrong = tmp_path / "docker-compose.yml"
    text = (ROOT / "docker-compose.yml").read_text()
    wrong.write_text(text.replace("service_healthy", "service_helthy", 1))
    assert check_compose(wrong).returncode == 1


def test_compose_publishes_to_loopback_only(compose: dict[str, Any]) -> None:
    """Temporal and its UI have no login: they are not for the network."""
    ports = [port for service in compose["services"].values() for port in service.get("ports", [])]
    assert len(ports) == 2
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_compose_creates_the_search_attributes_of_the_contract(compose: dict[str, Any]) -> None:
    """The namespace one-shot adds exactly the attributes that runs set."""
    (script,) = compose["services"]["namespace"]["command"]
    added = dict(re.findall(r"^add (\w+) (\w+)$", script, re.MULTILINE))
    assert added == ATTRIBUTE_TYPES


def test_compose_holds_no_secret(compose: dict[str, Any]) -> None:
    """The provider's key comes from the caller; the password's default names its purpose."""
    assert compose["services"]["worker"]["environment"]["ANTHROPIC_API_KEY"] is None
    password = compose["services"]["postgresql"]["environment"]["POSTGRES_PASSWORD"]
    assert password == "${TURNKEEPER_POSTGRES_PASSWORD:-for-development-only}"
    assert compose["services"]["temporal"]["environment"]["POSTGRES_PWD"] == password


def test_compose_starts_in_order(compose: dict[str, Any]) -> None:
    """Database, schema, server, namespace, worker: each waits for the one before it."""
    waits = {name: service.get("depends_on", {}) for name, service in compose["services"].items()}
    done, healthy = "service_completed_successfully", "service_healthy"
    assert waits["schema"] == {"postgresql": {"condition": healthy}}
    assert waits["temporal"] == {"schema": {"condition": done}}
    assert waits["namespace"] == {"temporal": {"condition": healthy}}
    assert waits["worker"] == {"namespace": {"condition": done}}


@pytest.mark.parametrize("name", ["schema", "namespace"])
def test_the_one_shots_are_valid_shell(compose: dict[str, Any], name: str) -> None:
    """Their scripts parse once Compose has undone the doubled dollar signs."""
    (script,) = compose["services"][name]["command"]
    text = script.replace("$$", "$")
    subprocess.run(["/bin/sh", "-n", "-c", text], check=True, capture_output=True)


async def test_the_namespace_one_shot_can_run_again(compose: dict[str, Any]) -> None:
    """Against a real server: it makes namespace and attributes, the second time nothing."""
    (script,) = compose["services"]["namespace"]["command"]
    async with await WorkflowEnvironment.start_local(
        dev_server_existing_path=find_temporal(),
        dev_server_extra_args=dev_server_arguments(search_attributes=False),
    ) as environment:
        service = environment.client.service_client
        variables = {
            "PATH": f"{Path(find_temporal()).parent}{os.pathsep}{os.environ['PATH']}",
            "TEMPORAL_ADDRESS": service.config.target_host,
            "TEMPORAL_NAMESPACE": "compose",
        }
        for _ in range(2):
            command = ["/bin/sh", "-euc", script.replace("$$", "$")]
            shell = await asyncio.create_subprocess_exec(*command, env=variables)
            assert await shell.wait() == 0
        request = ListSearchAttributesRequest(namespace="compose")
        listed = await service.operator_service.list_search_attributes(request)
    assert set(listed.custom_attributes) == set(ATTRIBUTE_TYPES)


def test_everything_the_image_copies_is_in_its_context() -> None:
    """`.dockerignore` lets through what the Dockerfile copies."""
    dockerfile = (ROOT / "Dockerfile").read_text()
    copies = re.findall(r"^COPY (?!--from)(.+) \S+$", dockerfile, re.MULTILINE)
    copied = {name for line in copies for name in line.split()}
    ignore = (ROOT / ".dockerignore").read_text().splitlines()
    assert copied == {line[1:] for line in ignore if line.startswith("!")}
