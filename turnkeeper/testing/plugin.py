"""The pytest plugin: this tool, killed at every point, keeps its promise.

    def test_refund(killed_at_every_point):
        killed_at_every_point(
            agent="refunds",
            script=[call("issue_refund", {"order": "o-7"}), text("Done.")],
            tool="issue_refund",
        )

is a test for each crash point that a tool call meets, first and second time:
`test_refund[tool.done-1]`. The worker command is named once, in the ini file:

    [pytest]
    turnkeeper_worker = worker.py --agents my_agents
    turnkeeper_root = ../turnkeeper

or for one test by `@pytest.mark.turnkeeper(worker=[...], root=...)`. It runs in the Python that
runs the tests, in the folder `root`, and imports agents from the folders of the test and the ini
file.
`turnkeeper_address` is a session fixture, to be overridden where a Temporal server runs already.

pytest loads this module in every session of an environment that has turnkeeper: it imports nothing
of it before a test asks for the fixture.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

if TYPE_CHECKING:
    from turnkeeper.testing.crash_rig import Case
    from turnkeeper.testing.moments import Moment
    from turnkeeper.testing.proof import Applied, Prover
    from turnkeeper.testing.provider import Script

__all__ = ["KilledAtEveryPoint"]

_FIXTURE = "killed_at_every_point"


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--crash-points`, and the worker command's settings."""
    parser.getgroup("turnkeeper").addoption(
        "--crash-points",
        metavar="NAME,...",
        default="",
        help="kill workers at these points only: NAME (first and second time) or NAME:N",
    )
    parser.addini("turnkeeper_worker", "worker program and its arguments", type="args")
    parser.addini("turnkeeper_root", "the worker's working directory [the ini file's folder]")


def pytest_configure(config: pytest.Config) -> None:
    """Say what the marker is; refuse crash points that do not exist."""
    config.addinivalue_line(
        "markers", "turnkeeper(worker=None, root=None): the worker command that runs the agents"
    )
    if config.getoption("crash_points"):
        _moments(config)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a test of each crash point."""
    if _FIXTURE in metafunc.fixturenames:
        metafunc.parametrize(_FIXTURE, _moments(metafunc.config), indirect=True, ids=str)


@pytest.fixture(scope="session")
def turnkeeper_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`host:port` of a Temporal server; of an embedded one, unless it is overridden."""
    from turnkeeper.testing.embedded import EmbeddedServer

    folder = tmp_path_factory.mktemp("temporal")
    with EmbeddedServer.start(folder, port=0, announce=lambda _: None) as server:
        yield server.address


@pytest.fixture(scope="session")
def _turnkeeper_prover(
    turnkeeper_address: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prover]:
    from turnkeeper.testing.proof import Prover

    with Prover(turnkeeper_address, tmp_path_factory.mktemp("crashes")) as prover:
        yield prover


@pytest.fixture
def killed_at_every_point(
    request: pytest.FixtureRequest, _turnkeeper_prover: Prover
) -> KilledAtEveryPoint:
    """Run an agent, kill its worker at a point, and check that a tool has kept its promise."""
    return KilledAtEveryPoint(request, _turnkeeper_prover)


class KilledAtEveryPoint:
    """The fixture `killed_at_every_point`, at the point of one test."""

    def __init__(self, request: pytest.FixtureRequest, prover: Prover) -> None:
        self._item = request.node
        self._config = request.config
        self._moment: Moment = request.param
        self._prover = prover
        self._calls = 0

    def __call__(
        self,
        *,
        agent: str,
        tool: str,
        script: Script,
        prompt: str = "question",
        environment: Mapping[str, str] | None = None,
        effects: Callable[[Path], Iterable[Applied]] | None = None,
        unwitnessed: Sequence[str] = (),
        compare: bool = False,
    ) -> Case:
        """Run `agent` on `prompt` with a model that plays `script`, killed; the case.

        The tools post their effects to the ledger at `EFFECTS_URL` (`turnkeeper.testing.Effects`).
        Those that act elsewhere are witnessed by `effects`: called with the folder that the tools
        know as `CASE_FOLDER`, it returns a row (`turnkeeper.testing.Applied`) for each time that
        something was done. unwitnessed: mutating tools that neither one sees. environment: more for
        the worker. compare: every result has to be that of the run without kills, word by word.

        It blocks; in a coroutine, `await asyncio.to_thread(killed_at_every_point, ...)` leaves the
        loop free. The test fails with a report if the promise is broken, or if nothing would have
        shown it, and is skipped if the agent never comes to the point.
        """
        from turnkeeper.errors import TurnkeeperError
        from turnkeeper.testing.proof import NeverReached, Trial

        worker, root = self._worker()
        self._calls += 1
        trial = Trial(
            identity=(self._test(), self._calls),
            worker=worker,
            root=root,
            agent=agent,
            tool=tool,
            script=script,
            prompt=prompt,
            chosen=_moments(self._config),
            environment={"PYTHONPATH": self._import_path(), **(environment or {})},
            effects=effects,
            unwitnessed=unwitnessed,
            compare=compare,
        )
        try:
            return self._prover.prove(trial, self._moment)
        except NeverReached as error:
            raise pytest.skip.Exception(str(error)) from None
        except TurnkeeperError as error:
            raise pytest.fail.Exception(str(error), pytrace=False) from None

    def _test(self) -> tuple[str, ...]:
        """The test as it is for all crash points."""
        params = self._item.callspec.indices
        others = [f"{name}={index}" for name, index in params.items() if name != _FIXTURE]
        function = self._item.nodeid.partition("[")[0]
        return (function, *sorted(others))

    def _worker(self) -> tuple[list[str], Path]:
        """Program and arguments, and the folder to run it in."""
        marker = self._item.get_closest_marker("turnkeeper")
        worker, root = _named(*marker.args, **marker.kwargs) if marker else _named()
        folder = self._here() / Path(root or self._config.getini("turnkeeper_root")).expanduser()
        if not folder.is_dir():
            _fail(f"the worker's root {folder} is not a folder")
        return _program(worker or self._config.getini("turnkeeper_worker")), folder.resolve()

    def _here(self) -> Path:
        ini = self._config.inipath
        return ini.parent if ini else self._config.rootpath

    def _import_path(self) -> str:
        """The worker finds modules where the test does."""
        folders = [self._item.path.parent, self._here(), *self._config.getini("pythonpath")]
        given = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
        return os.pathsep.join([str(Path(p).absolute()) for p in [*folders, *given]])


def _named(
    worker: str | Sequence[str] = (), root: str | os.PathLike[str] = ""
) -> tuple[str | Sequence[str], str | os.PathLike[str]]:
    """What the marker says."""
    return worker, root


def _program(command: str | Sequence[str]) -> list[str]:
    words = shlex.split(command) if isinstance(command, str) else list(command)
    if words and Path(words[0]).name.startswith("python"):
        # The crash points are laid by the Python that runs the program.
        python = words.pop(0)
        if python not in ("python", "python3", sys.executable):
            _fail(f"the worker runs in the Python that runs the tests, not in {python}")
    if not words:
        _fail(
            "name the worker command: `turnkeeper_worker = worker.py --agents MODULE` in the "
            "ini file, or @pytest.mark.turnkeeper(worker=[...], root=...)"
        )
    return words


def _fail(message: str) -> NoReturn:
    pytest.fail(message, pytrace=False)


def _moments(config: pytest.Config) -> list[Moment]:
    from turnkeeper.testing.crash_points import UnknownPoint
    from turnkeeper.testing.moments import chosen

    try:
        return chosen(config.getoption("crash_points"))
    except UnknownPoint as error:
        raise pytest.UsageError(f"--crash-points: {error}") from None
