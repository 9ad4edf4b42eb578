"""The reply parser of the load generator, whole and cut at every byte."""

import pytest
from benchmarks.reply import Reply, parse_reply

CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"4\r\nwiki\r\nA;note=1\r\n0123456789\r\n0\r\n\r\n"
)
REPLIES: dict[str, tuple[bytes, Reply]] = {
    "plain": (
        b"HTTP/1.1 200 OK\r\nContent-Type: x\r\nContent-Length: 5\r\n\r\nhello",
        (200, b"hello", False),
    ),
    "lower case": (
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nserver: s\r\n\r\n{}",
        (200, b"{}", False),
    ),
    "odd spelling": (
        b"HTTP/1.1 400 Bad Request\r\nCONTENT-LENGTH:\t3\r\n\r\nbad",
        (400, b"bad", False),
    ),
    "closing": (
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx",
        (200, b"x", True),
    ),
    "chunked": (CHUNKED, (200, b"wiki0123456789", False)),
    "empty": (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", (200, b"", False)),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", (204, b"", False)),
}


@pytest.mark.parametrize("name", REPLIES)
def test_a_whole_reply_is_read(name: str) -> None:
    data, expected = REPLIES[name]
    assert parse_reply(data) == expected


@pytest.mark.parametrize("name", REPLIES)
def test_a_reply_that_is_cut_anywhere_is_waited_for(name: str) -> None:
    data, _ = REPLIES[name]
    assert [parse_reply(data[:size]) for size in range(len(data))] == [None] * len(data)


def test_a_body_of_unstated_length_ends_with_the_connection() -> None:
    data = b"HTTP/1.0 200 OK\r\nServer: old\r\n\r\nto the end"
    assert parse_reply(data) is None
    assert parse_reply(data, at_end=True) == (200, b"to the end", True)


def test_a_length_named_in_the_body_is_not_believed() -> None:
    data = b"HTTP/1.0 200 OK\r\n\r\nContent-Length: 900\r\n\r\n"
    assert parse_reply(data, at_end=True) == (200, b"Content-Length: 900\r\n\r\n", True)
