"""A short `make answers-lost`: the links that lead to the world, once each."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import answers_lost
from tests.faults.links import LINKS, Nth
from turnkeeper.testing.embedded import EmbeddedServer

_LINKS = ("ledger, idempotent", "ledger, reconcilable", "ledger, once", "provider")
_SERVER = ("activity completion",)


@pytest.mark.crash
@pytest.mark.timeout(300)
async def test_answers_that_get_lost(server: EmbeddedServer, tmp_path: Path) -> None:
    """Each request arrived, its answer did not, and the run says what it says without faults; only
    of the `once` call the model is told that its outcome is unknown."""
    chosen = [link for link in LINKS if link.name in (*_LINKS, *_SERVER)]
    report = await answers_lost.run(chosen, 1, tmp_path, print, address=server.address, lanes=3)
    assert report.violations == []
    lost = {p.link.name: p for p in report.played if p.injected}
    assert sorted(lost) == sorted((*_LINKS, *_SERVER))
    assert [name for name, played in lost.items() if played.unknown] == ["ledger, once"]


def test_the_request_that_is_meant() -> None:
    """Requests of other paths and halves of a request do not count; each one counts once."""
    whole = b"POST /v1/messages HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"
    rpc = b"POST /x/RespondActivityTaskCompleted HTTP/2\r\n\r\n"
    second = Nth(b"POST /v1/messages", 2)
    asked = [whole[:-1], whole, rpc, whole[:-1], whole, whole]
    assert [second(request) for request in asked] == [False, False, False, False, True, False]
    assert second.seen == 3
    assert Nth(b"/RespondActivityTaskCompleted", 1)(rpc)
