"""Reading HTTP/2 from the side: frames in pieces, header blocks of every form (RFC 7541)."""

from __future__ import annotations

import pytest

from turnkeeper.testing.http2 import FrameReader, HeaderDecoder, RequestReader

# RFC 7541, appendix C.4: three requests of one connection, Huffman-coded.
FIRST = bytes.fromhex("828684418cf1e3c2e5f23a6ba0ab90f4ff")
SECOND = bytes.fromhex("828684be5886a8eb10649cbf")
THIRD = bytes.fromhex("828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf")


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """A frame as it is sent."""
    return (
        len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload
    )


def test_the_examples_of_the_rfc() -> None:
    """Huffman codes, the static table and entries that earlier blocks have left."""
    decoder = HeaderDecoder()
    common = [(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/")]
    authority = (b":authority", b"www.example.com")
    assert decoder.decode(FIRST) == [*common, authority]
    assert decoder.decode(SECOND) == [*common, authority, (b"cache-control", b"no-cache")]
    assert decoder.decode(THIRD) == [
        (b":method", b"GET"),
        (b":scheme", b"https"),
        (b":path", b"/index.html"),
        authority,
        (b"custom-key", b"custom-value"),
    ]


def test_eviction() -> None:
    """Appendix C.6: in a table of 256 bytes old entries make room, and a smaller one is obeyed."""
    decoder = HeaderDecoder()
    decoder.decode(bytes.fromhex("3fe101"))
    decoder.decode(
        bytes.fromhex(
            "488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff"
            "6e919d29ad171863c78f0b97c8e9ae82ae43d3"
        )
    )
    assert decoder.decode(bytes.fromhex("4883640effc1c0bf"))[0] == (b":status", b"307")
    assert (decoder._bytes, len(decoder._table)) == (222, 4)
    decoder.decode(bytes.fromhex("20"))
    assert (decoder._bytes, len(decoder._table)) == (0, 0)


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
def test_requests_in_pieces(size: int) -> None:
    """However the bytes are cut, each request is seen once, under its stream's number; padding,
    priorities, continued blocks and frames of other kinds are read over."""
    padded = b"\x02" + b"\x00\x00\x00\x01\x10" + FIRST + b"\x00\x00"
    sent = b"".join(
        [
            frame(4, 0, 0, b"\x00" * 6),
            frame(1, 0x4 | 0x8 | 0x20, 1, padded),
            frame(0, 0, 1, b"body"),
            frame(1, 0, 3, SECOND[:4]),
            frame(9, 0x4, 3, SECOND[4:]),
            frame(3, 0, 1, b"\x00\x00\x00\x08"),
        ]
    )
    reader = RequestReader()
    found = [
        request for at in range(0, len(sent), size) for request in reader.feed(sent[at : at + size])
    ]
    assert found == [
        (1, b"GET / HTTP/2\r\n\r\n"),
        (3, b"GET / HTTP/2\r\ncache-control: no-cache\r\n\r\n"),
        (1, None),
    ]


def test_the_reserved_bit_is_no_part_of_the_number() -> None:
    """A receiver ignores it."""
    (found,) = FrameReader().feed(frame(0, 1, 0x80000005, b"x"))
    assert (found.stream, found.payload) == (5, b"x")


@pytest.mark.parametrize("block", ["be", "80", "41", "418c", "408825a849", "0001", "418400000000"])
def test_what_is_no_header_block_is_an_error(block: str) -> None:
    """Also an entry of a block that was not read: to guess would be to see another request."""
    with pytest.raises(ValueError, match=r"header|Huffman"):
        HeaderDecoder().decode(bytes.fromhex(block))
