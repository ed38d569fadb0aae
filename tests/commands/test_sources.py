"""Which files `dev` looks at, and when one of them counts as changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from turnkeeper.commands import sources
from turnkeeper.commands.sources import LOOK_SECONDS, Sources


class Clock:
    """A clock that goes on by as much as it is told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Seconds."""
        return self.now

    def look(self, watched: Sources, times: int = 2) -> list[str]:
        """Names of what has changed, over so many looks."""
        found = []
        for _ in range(times):
            self.now += LOOK_SECONDS
            if (path := watched.changed()) is not None:
                found.append(path.name)
        return found


@pytest.fixture
def clock() -> Clock:
    """Starts at 0."""
    return Clock()


def write(path: Path, text: str = "x = 1\n") -> Path:
    """A file, with the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_of_a_package_all_below_it_counts(tmp_path: Path, clock: Clock) -> None:
    """Changed, added and removed; once each."""
    deep = write(tmp_path / "shop" / "deep" / "tools.py")
    write(tmp_path / "shop" / "__init__.py")
    watched = Sources(["shop.agent"], [tmp_path], clock)
    assert clock.look(watched) == []
    write(deep, "x = 10\n")
    assert clock.look(watched, 4) == ["tools.py"]
    added = write(tmp_path / "shop" / "agent.py")
    assert clock.look(watched) == ["agent.py"]
    added.unlink()
    assert clock.look(watched, 4) == ["agent.py"]


def test_of_a_module_those_beside_it_count(tmp_path: Path, clock: Clock) -> None:
    """What it is likely to import; not what lies in folders, and nothing elsewhere."""
    write(tmp_path / "mine" / "weather.py")
    watched = Sources(["weather"], [tmp_path / "other", tmp_path / "mine"], clock)
    write(tmp_path / "mine" / "weather_tools.py")
    assert clock.look(watched) == ["weather_tools.py"]
    write(tmp_path / "mine" / "venv" / "library.py")
    write(tmp_path / "other" / "else.py")
    assert clock.look(watched) == []


@pytest.mark.parametrize(
    "name", ["test_shop.py", "shop_test.py", "conftest.py", "notes.md", ".hidden.py"]
)
def test_what_the_worker_does_not_import_does_not_count(
    tmp_path: Path, clock: Clock, name: str
) -> None:
    """A worker is not made anew for each save of a test."""
    write(tmp_path / "shop" / "__init__.py")
    watched = Sources(["shop"], [tmp_path], clock)
    write(tmp_path / "shop" / name)
    assert clock.look(watched) == []


def test_a_file_that_goes_on_changing_is_waited_for(tmp_path: Path, clock: Clock) -> None:
    """One restart for a checkout of a hundred files, not a hundred."""
    file = write(tmp_path / "shop.py")
    watched = Sources(["shop"], [tmp_path], clock)
    for size in range(2, 5):
        write(file, "x" * size)
        assert clock.look(watched, 1) == []
    assert clock.look(watched, 4) == ["shop.py"]


def test_between_two_looks_nothing_is_read(tmp_path: Path, clock: Clock) -> None:
    """However often it is asked."""
    file = write(tmp_path / "shop.py")
    watched = Sources(["shop"], [tmp_path], clock)
    clock.look(watched)
    write(file, "x = 10\n")
    assert [watched.changed() for _ in range(10)] == [None] * 10


def test_modules_that_are_nowhere_are_not_looked_for(tmp_path: Path, clock: Clock) -> None:
    """Such as those of an installed package; what is looked at is bounded."""
    watched = Sources(["nowhere"], [tmp_path], clock)
    assert watched.folders == []
    assert clock.look(watched) == []


def test_a_large_package_is_looked_at_in_part(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first files by name."""
    monkeypatch.setattr(sources, "MOST_FILES", 2)
    for name in "abc":
        write(tmp_path / "shop" / f"{name}.py")
    watched = Sources(["shop"], [tmp_path], clock)
    write(tmp_path / "shop" / "c.py", "x = 10\n")
    assert clock.look(watched) == []
    write(tmp_path / "shop" / "b.py", "x = 10\n")
    assert clock.look(watched) == ["b.py"]
