"""The full-text search of the finance example: it ranks, it follows its files, it fears no text."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.finance.library import PASSAGE_CHARACTERS, Library, LibraryError, open_library

BEES = """\
# Beekeeping in the north

Introduction before any page.

## Page 1

### Hives

A hive stands dry and faces the morning sun.

### Honey

The honey harvest of 2025 was 41 kg from each hive.

## Page 2

Wintering needs 18 kg of honey left in the hive.
"""

TREES = """\
# Trees

## Page 7

### Oaks

Oaks grow slowly. Honey fungus kills them.
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two small documents."""
    (tmp_path / "bees.md").write_text(BEES, encoding="utf-8")
    (tmp_path / "trees.md").write_text(TREES, encoding="utf-8")
    return tmp_path


def test_a_hit_names_its_place(folder: Path) -> None:
    """Document, title, page and heading of a passage are those above it in the file."""
    hit = Library(folder).search("harvest")[0]
    assert (hit.document, hit.title) == ("bees", "Beekeeping in the north")
    assert (hit.page, hit.heading) == (1, "Honey")
    assert hit.text == "The honey harvest of 2025 was 41 kg from each hive."


def test_text_before_the_first_page_is_found_too(folder: Path) -> None:
    """A passage above every page heading has page 0 and no heading."""
    hit = Library(folder).search("introduction")[0]
    assert (hit.page, hit.heading) == (0, "")


def test_the_better_passage_comes_first(folder: Path) -> None:
    """Rank goes by how well a passage fits, not by where it stands."""
    hits = Library(folder).search("honey harvest 2025")
    assert [(hit.document, hit.page) for hit in hits] == [("bees", 1), ("bees", 2), ("trees", 7)]


def test_words_are_stemmed_and_accents_and_case_ignored(folder: Path) -> None:
    """The query need not use the document's form of a word."""
    (folder / "cafe.md").write_text("# Notes\n\nThe cafés employ nine.", encoding="utf-8")
    assert Library(folder).search("EMPLOYED cafe")[0].document == "cafe"


def test_a_question_is_not_ranked_by_its_grammar(folder: Path) -> None:
    """Words such as 'what is the' do not count, unless there are no others."""
    library = Library(folder)
    assert library.search("What is the harvest of it?") == library.search("harvest")
    assert library.search("the")


def test_limit_bounds_the_hits(folder: Path) -> None:
    """No more passages than asked for."""
    library = Library(folder)
    assert len(library.search("honey", limit=1)) == 1
    assert library.search("honey", limit=0) == []


def test_no_match_is_an_empty_list(folder: Path) -> None:
    """A word that no passage has finds nothing, which is no error."""
    assert Library(folder).search("submarine") == []


SYNTAX = [
    "honey'",
    '"honey',
    'honey" OR "',
    "honey AND",
    "NOT honey",
    "honey NEAR/2 hive",
    "(honey",
    "text:honey",
    "no_such_column : honey",
    "{title text}: honey",
    "honey*",
    "^honey",
    "honey -hive",
    "honey'; DROP TABLE passage; --",
    "honey\x00hive",
    "honey \ud800",
]


@pytest.mark.parametrize("query", SYNTAX)
def test_query_syntax_is_only_text(folder: Path, query: str) -> None:
    """Nothing in a query reaches the search engine as an operator."""
    library = Library(folder)
    assert library.search(query)
    assert library.search("honey")


@given(query=st.text(max_size=500))
def test_any_query_ends_in_hits_or_the_modules_own_error(query: str) -> None:
    """Arbitrary text never raises what the caller does not expect."""
    library = open_library(Path(__file__).parents[2] / "examples/finance/documents")
    try:
        hits = library.search(query, limit=10)
    except LibraryError:
        return
    assert len(hits) <= 10


@pytest.mark.parametrize(
    "query", ["", " ", "?!", "\N{BLACK CHESS QUEEN}", "-", "_", "*", "'", '"', "\x00", "\ud800"]
)
def test_a_query_without_words_is_refused(folder: Path, query: str) -> None:
    """The refusal says what is missing."""
    with pytest.raises(LibraryError, match="no word"):
        Library(folder).search(query)


def test_a_changed_figure_is_found_at_once(folder: Path) -> None:
    """A file edited under a running process is read again, even if its size stays the same."""
    library = Library(folder)
    assert "41 kg" in library.search("harvest")[0].text
    path = folder / "bees.md"
    changed_at = path.stat().st_mtime_ns
    path.write_text(BEES.replace("41 kg", "57 kg"), encoding="utf-8")
    os.utime(path, ns=(changed_at + 1, changed_at + 1))
    assert "57 kg" in library.search("harvest")[0].text


def test_files_that_come_and_go_are_followed(folder: Path) -> None:
    """The index has the documents that are there now."""
    library = Library(folder)
    assert library.search("oaks")
    (folder / "trees.md").unlink()
    assert library.search("oaks") == []
    (folder / "ash.md").write_text("# Ash\n\nAsh and oaks.", encoding="utf-8")
    assert library.search("oaks")[0].document == "ash"


@pytest.mark.parametrize("name", ["", "missing"])
def test_a_folder_without_documents_is_an_error(tmp_path: Path, name: str) -> None:
    """An empty or missing folder is told apart from a query that finds nothing."""
    with pytest.raises(LibraryError, match="no documents"):
        Library(tmp_path / name).search("honey")


def test_documents_that_come_back_are_searched_again(folder: Path) -> None:
    """An empty folder is not remembered as the library's state."""
    library = Library(folder)
    for path in folder.glob("*.md"):
        path.unlink()
    with pytest.raises(LibraryError):
        library.search("honey")
    (folder / "bees.md").write_text(BEES, encoding="utf-8")
    assert library.search("honey")


def test_passages_are_bounded_and_lose_nothing(tmp_path: Path) -> None:
    """Long paragraphs, tables and lines are cut into bounded passages, every word kept."""
    words = [f"word{number}" for number in range(3000)]
    paragraphs = "\n\n".join(" ".join(words[i : i + 7]) for i in range(0, 1000, 7))
    table = "\n".join(f"| {word} |" for word in words[1001:2000])
    line = " ".join(words[2000:])
    (tmp_path / "long.md").write_text(
        f"# Long\n\n## Page 1\n\n{paragraphs}\n\n{table}\n\n## Page 2\n\n{line}\n", encoding="utf-8"
    )
    library = Library(tmp_path)
    for word in ("word0", "word999", "word1001", "word1999", "word2999"):
        (hit,) = library.search(word)
        assert len(hit.text) <= PASSAGE_CHARACTERS
        assert word in hit.text


def test_bytes_that_are_not_text_do_not_stop_the_search(folder: Path) -> None:
    """A broken file costs its broken characters only."""
    (folder / "broken.md").write_bytes(b"# Broken\n\n\xff\xfe walrus \x00 tusks\n")
    assert Library(folder).search("walrus")[0].document == "broken"


def test_many_threads_share_one_library(folder: Path) -> None:
    """Searches from many threads while a file keeps changing each see one consistent state."""
    library = Library(folder)
    path = folder / "bees.md"

    def ask(number: int) -> str:
        if number % 10 == 0:
            partial = folder / f"bees.{number}.partial"
            partial.write_text(BEES.replace("41 kg", f"{number} kg"), encoding="utf-8")
            partial.replace(path)
        return library.search("honey harvest 2025")[0].text

    with ThreadPoolExecutor(8) as threads:
        assert all("honey harvest of 2025" in text for text in threads.map(ask, range(200)))


def test_one_folder_is_indexed_once(folder: Path) -> None:
    """Callers that name the same folder share its index."""
    assert open_library(folder) is open_library(Path(str(folder)))
