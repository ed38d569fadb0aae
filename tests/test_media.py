"""Tools that return bytes: what the model is told and shown, and what the next requests hold."""

from __future__ import annotations

import asyncio
import base64
import os
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from activities import attachments
from activities.providers import ImageBounds
from activities.providers.anthropic import AnthropicProvider
from tests import media_samples as samples
from tests.rig import Rig, RigFactory, until
from tests.workers import SiteFactory
from turnkeeper import Landed, Media, RunResult, ToolContext, tool
from turnkeeper.artifacts import FolderStore
from turnkeeper.media import ImageRef, images_of
from turnkeeper.render import image_line, transcript_text
from turnkeeper.testing import Exchange, Reply, call, calls, summary, text

GIVEN: dict[str, Any] = {}
"""What `fetch` returns next."""


@tool(effect="read")
async def fetch(kind: str) -> Any:
    """Return what the test has put there."""
    return GIVEN[kind]


@tool(effect="once")
def scan() -> list[str | Media | bytes]:
    """A tool in a process of its own: text, an image, and bytes."""
    return ["Scanned:", Media(samples.plain(40, 30), name="page.png"), b"\xff\x00raw"]


async def _landed(ctx: ToolContext, args: Any) -> Landed:
    return Landed(Media(samples.plain(20, 10)))


@tool(effect="reconcilable", probe=_landed)
async def stamp() -> Media:
    """Its first attempt fails; the receipt that the probe finds is an image."""
    raise OSError("lost")


TALK = [
    call("fetch", {"kind": "x"}),
    text("I have it."),
]


def told(r: Rig, request: int = -1) -> list[dict[str, Any]]:
    """The content of the first tool result in a request, as blocks."""
    for message in r.provider.requests[request].body["messages"]:
        for block in message["content"]:
            if block["type"] == "tool_result":
                content = block["content"]
                return [{"type": "text", "text": content}] if isinstance(content, str) else content
    raise AssertionError("no tool result")


async def fine(r: Rig, result: RunResult) -> None:
    """The run went on, and nothing invalid was sent."""
    assert result.outcome == "completed", result
    assert await r.task_failures() == 0
    assert not r.provider.rejections


def shown(r: Rig) -> list[tuple[str, bytes]]:
    """Media type and bytes of the images in the last request's tool result."""
    return [
        (b["source"]["media_type"], base64.b64decode(b["source"]["data"]))
        for b in told(r)
        if b["type"] == "image"
    ]


def artifact_of(data: bytes) -> str:
    """The id that bytes have in the store."""
    return sha256(data).hexdigest()


BODIES = {"log_bodies": True}

BYTES: dict[str, tuple[Any, str]] = {
    "random bytes": (
        os.urandom(100_000),
        "artifact {id}: binary; give the id to a tool that takes one]",
    ),
    "Latin-1": (
        "déjà vu, garçon".encode("latin-1"),
        "[text/plain; charset=unknown-8bit, 15 bytes, artifact {id}: read it with read_artifact]",
    ),
    "a PDF": (
        samples.pdf(["Revenue"]),
        (
            "[application/pdf, {size} bytes, artifact {id}: "
            "read it with read_artifact(artifact, page)]"
        ),
    ),
    "a table with a name": (
        Media(b"a,b\n1,2\n", "text/csv", "rows\n.csv"),
        '[text/csv "rows .csv", 8 bytes, artifact {id}: read it with read_artifact]',
    ),
    "a corrupt PNG": (samples.corrupt(), "not shown: it is damaged (OSError)]"),
    "a PNG bomb": (
        samples.bomb(),
        "not shown: of its 50000x50000 pixels at most 90,000,000 are decoded]",
    ),
}


@pytest.mark.parametrize("kind", BYTES)
async def test_bytes_become_an_artifact_and_a_line(rig: RigFactory, kind: str) -> None:
    """The model reads what it is, how large, where it lies and what can be done with it."""
    value, line = BYTES[kind]
    data = value.data if isinstance(value, Media) else value
    GIVEN["x"] = value
    async with rig(TALK, tools=[fetch], provider=BODIES) as r:
        await fine(r, result := await r.run())
        (block,) = told(r)
        assert block["text"].endswith(line.format(id=artifact_of(data), size=len(data)))
        assert f"artifact {artifact_of(data)}" in block["text"]
        assert await r.store.get(r.ids[-1], artifact_of(data)) == data
        assert result.errors == 0


IMAGES: dict[str, tuple[Any, str, tuple[int, int]]] = {
    "a PNG of 25 MB": (lambda: samples.noise(2_900, 2_900), "image/jpeg", (1_568, 1_568)),
    "a JPEG of 9,000 pixels": (
        lambda: samples.plain(9_000, 3_000, "JPEG"),
        "image/jpeg",
        (1_568, 523),
    ),
    "an animated GIF": (lambda: samples.animation(30, 20), "image/png", (30, 20)),
    "a small PNG": (lambda: samples.plain(30, 20), "image/png", (30, 20)),
    "a PNG that says it is a JPEG": (
        lambda: Media(samples.plain(30, 20), "image/jpeg"),
        "image/png",
        (30, 20),
    ),
}


@pytest.mark.parametrize("kind", IMAGES)
async def test_images_are_shown_as_the_api_takes_them(rig: RigFactory, kind: str) -> None:
    """Small enough to stay in every later request; the original lies in the store; history has
    neither."""
    make, media_type, size = IMAGES[kind]
    GIVEN["x"] = make()
    original = GIVEN["x"].data if isinstance(GIVEN["x"], Media) else GIVEN["x"]
    async with rig(TALK, tools=[fetch], provider=BODIES) as r:
        await fine(r, await r.run())
        ((sent_type, sent),) = shown(r)
        entry = (await r.transcript()).entries[2]
        assert entry.value["images"] == [
            {
                "artifact": artifact_of(sent),
                "media_type": media_type,
                "width": size[0],
                "height": size[1],
                "bytes": len(sent),
            }
        ]
        assert sent_type == media_type
        assert len(sent) <= 750_000
        assert f"artifact {artifact_of(original)}: shown as image 1" in entry.value["text"]
        assert await r.store.get(r.ids[-1], artifact_of(original)) == original
        assert sum(e.ByteSize() for e in await r.events()) < 40_000


async def test_text_and_images_of_one_result_keep_their_order(rig: RigFactory) -> None:
    """Lines stand where the images stood; the fifth is told, and can be read by its id."""
    many = [samples.plain(n, n) for n in range(1, 6)]
    GIVEN["x"] = ["before", *many[:2], "between", *many[2:], {"n": 1}]
    async with rig(TALK, tools=[fetch], provider=BODIES) as r:
        await fine(r, await r.run())
        lines = told(r)[0]["text"].split("\n")
        assert (lines[0], lines[3], lines[7]) == ("before", "between", '{"n":1}')
        assert "shown as image 2, 2x2" in lines[2]
        assert lines[6].endswith(": not shown: at most 4 images of this result are]")
        assert [data for _, data in shown(r)] == many[:4]
        assert await r.store.get(r.ids[-1], artifact_of(many[4])) == many[4]


async def test_the_images_of_one_reply_share_the_window(rig: RigFactory) -> None:
    """Twelve calls with four full images each: what is shown fits, of the rest the model is told
    how to see it, and the run goes on."""
    GIVEN["x"] = [samples.plain(1_568, 1_568)] * 4
    script = [calls([("fetch", {"kind": "x"})] * 12), text("Seen.")]
    async with rig(script, tools=[fetch], provider={"window": 100_000}) as r:
        result = await r.run()
        assert (result.outcome, result.answer) == ("completed", "Seen.")
        results = [e for e in (await r.transcript()).entries if e.kind == "result"]
        assert sum(len(images_of(e)) for e in results) == 7
        assert all("ask again, with fewer calls in one reply" in e.value["text"] for e in results)
        assert not r.provider.rejections


async def test_the_media_of_one_result_are_bounded(
    rig: RigFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is an object in the store; the model learns how many were not kept."""
    monkeypatch.setattr(attachments, "MAX_KEPT", 2)
    GIVEN["x"] = [b"\xff\x00" + bytes([n]) for n in range(4)]
    async with rig(TALK, tools=[fetch], provider=BODIES) as r:
        await fine(r, await r.run())
        assert told(r)[0]["text"].count("artifact ") == 2
        assert told(r)[0]["text"].endswith("\n[Of these 4 only the first 2 were kept.]")


async def test_bytes_come_out_of_a_tools_process(rig: RigFactory) -> None:
    """A tool that changes the world runs in a process, and returns the same things."""
    async with rig([call("scan"), text("I have it.")], tools=[scan], provider=BODIES) as r:
        await fine(r, await r.run())
        said, image = told(r)
        assert said["text"].startswith('Scanned:\n[image/png "page.png", ')
        assert image["source"]["media_type"] == "image/png"


async def test_a_receipt_may_be_an_image(rig: RigFactory) -> None:
    """What a probe finds is shown as what the tool returns."""
    async with rig([call("stamp"), text("I have it.")], tools=[stamp], provider=BODIES) as r:
        await fine(r, await r.run())
        assert len(shown(r)) == 1


async def test_no_time_is_left_for_an_image(rig: RigFactory) -> None:
    """It is kept and told of: the attempt must not run into its timeout over it."""

    @tool(effect="once", timeout=4)
    async def slow() -> bytes:
        """Take nearly all of its time."""
        await asyncio.sleep(3.3)
        return samples.plain(30, 20)

    async with rig([call("slow"), text("I have it.")], tools=[slow], provider=BODIES) as r:
        await fine(r, await r.run())
        (block,) = told(r)
        assert block["text"].endswith(": not shown: the tool left no time to decode it]")


async def test_a_store_that_is_down_does_not_repeat_the_tool(
    rig: RigFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The effect has happened: the model learns that the bytes are lost."""

    async def down(*_: Any) -> str:
        raise OSError("no space left on device")

    monkeypatch.setattr(FolderStore, "put", down)
    GIVEN["x"] = samples.plain(2_000, 10)
    async with rig(TALK, tools=[fetch], provider=BODIES) as r:
        await fine(r, result := await r.run())
        (block,) = told(r)
        assert block["text"].endswith(
            "which could not be stored: not shown: it could not be stored]"
        )
        assert result.calls == 1


# --- the next requests ------------------------------------------------------------------------


def only_file(folder: Path, name: str) -> Path:
    """The file of an artifact below a rig's folder."""
    (found,) = folder.glob(f"artifacts/*/{name}")
    return found


@pytest.fixture
def pair(rig: RigFactory, tmp_path: Path) -> Any:
    """Runs in which something befalls the store between an image and the request that has it."""

    async def run(befalls: Any) -> tuple[Rig, RunResult]:
        @tool(effect="idempotent")
        async def befall() -> str:
            """After the image is stored, since a change waits for what is before it."""
            befalls(only_file(tmp_path, artifact_of(GIVEN["x"])))
            return "done"

        steps = [calls([("fetch", {"kind": "x"}), ("befall", {})]), text("I have it.")]
        GIVEN["x"] = samples.plain(30, 20)
        async with rig(steps, tools=[fetch, befall], provider=BODIES) as r:
            result = await r.run()
            assert await r.task_failures() == 0
            return r, result

    return run


@pytest.mark.parametrize(
    "befalls",
    [
        Path.unlink,
        lambda image: image.write_bytes(image.read_bytes()[:-1]),
        lambda image: image.write_bytes(b"\x00" + image.read_bytes()[1:]),
    ],
    ids=["missing", "truncated", "changed"],
)
async def test_an_image_that_is_lost_ends_the_run_by_name(pair: Any, befalls: Any) -> None:
    """Never is another prefix sent than the one that was: the run is `state_lost`."""
    r, result = await pair(befalls)
    assert result.outcome == "state_lost"
    assert f"artifact {artifact_of(GIVEN['x'])[:12]}" in result.reason
    assert len(r.provider.requests) == 1


async def test_a_store_that_comes_back_is_waited_for(pair: Any) -> None:
    """A folder that is not mounted is no loss."""

    def away(image: Path) -> None:
        folder = image.parent
        folder.rename(folder.with_name("away"))
        loop = asyncio.get_running_loop()
        loop.call_later(1.5, lambda: folder.with_name("away").rename(folder))

    r, result = await pair(away)
    await fine(r, result)
    assert len(shown(r)) == 1
    failures = [
        e.activity_task_started_event_attributes.last_failure.application_failure_info.type
        for e in await r.events()
    ]
    assert "store_unavailable" in failures


async def test_more_images_than_a_request_takes_leave_the_view(
    rig: RigFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is sent that would be refused: earlier ones give way to a shorter view."""
    monkeypatch.setattr(AnthropicProvider, "images", ImageBounds(number=3, bytes=10**9))
    GIVEN["x"] = [samples.plain(30, 20), samples.plain(20, 30)]
    steps = [call("fetch", {"kind": "x"})] * 4 + [text("Seen.")]

    def script(x: Exchange) -> Reply:
        return summary() if x.wants_summary else steps.pop(0)

    async with rig(script, tools=[fetch]) as r:
        result = await r.run()
        assert (result.outcome, result.answer) == ("completed", "Seen.")
        assert result.epochs > 1
        assert await r.task_failures() == 0
        assert not r.provider.rejections


async def test_images_are_counted_by_their_pixels(rig: RigFactory) -> None:
    """In the provider's usage, as in ours: not by the length of their base64."""
    GIVEN["x"] = samples.noise(500, 450)
    async with rig(TALK, tools=[fetch]) as r:
        await fine(r, await r.run())
        (image,) = images_of((await r.transcript()).entries[2])
        assert image.tokens == 300
        before, after = (int(x.tokens or 0) for x in r.provider.requests)
        assert 300 < after - before < 600


@pytest.mark.long
@pytest.mark.crash
async def test_a_new_worker_sends_the_same_bytes(site: SiteFactory) -> None:
    """Killed while the model looks at the images: the request is put together again from history
    and store, byte for byte."""

    def steps(exchange: Exchange) -> Any:
        if not exchange.turn:
            return call("photograph")
        return text("I see.") if exchange.repeat else text("Never read.", delay=60)

    async with site(steps, module="tests.media_agents") as s:
        first = await s.worker()
        run = await s.start()
        await until(lambda: len(s.generations()) == 2)
        await s.kill(first)
        await s.worker()
        result = await run.result(timeout=60)
        assert result.answer == "I see."
        _, before, after = (r for r in s.provider.requests if r.asks_model)
        assert before.digest == after.digest
        assert not s.provider.rejections


# --- what people read -------------------------------------------------------------------------


async def test_a_transcript_says_which_images_were_shown(rig: RigFactory) -> None:
    """One line for each: measures, kind, and the beginning of its id."""
    GIVEN["x"] = samples.plain(30, 20)
    async with rig(TALK, tools=[fetch]) as r:
        await r.run()
        lines = transcript_text((await r.transcript()).entries).splitlines()
        line = f"[image 30x20 png, artifact {artifact_of(GIVEN['x'])[:12]}…]"
        assert line in [x.strip() for x in lines]


def test_an_image_line_has_no_control_characters() -> None:
    """Its words come from a history, which may be anybody's."""
    image = ImageRef(artifact="\x1b[2J", media_type="image/\x1b[31m", width=1, height=2, bytes=3)
    assert "\x1b" not in image_line(image)
