"""Which requests the HTTP client encodes, and that no part of one can change another part."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.net.http.client_messages import (
    HEADERS_BYTES_MAX,
    RESERVED_HEADERS,
    ClientRequest,
    Origin,
    RequestFailed,
    RequestInvalid,
    encode_request,
)
from penstock.net.http.client_tls import TlsIdentity, build_context

ORIGIN = Origin("hooks.example", 80)
# Everything that some parser takes for the end of a line or of a name.
CONTROLS = [*map(chr, range(32)), "\x7f", "\x80", "\x85", "\xa0", "\u2028", "\ud800", "é", "😀"]


def encoded(**parts: Any) -> bytes:
    return encode_request(ClientRequest(**{"origin": ORIGIN, **parts}))


def test_the_bytes_of_a_request() -> None:
    headers = (("X-A", "1"), ("x-empty", ""))
    assert encoded(target="/a?b=c", headers=headers, body=b"\r\n\r\nGET / HTTP/1.1") == (
        b"POST /a?b=c HTTP/1.1\r\nHost: hooks.example\r\nAccept-Encoding: identity\r\n"
        b"X-A: 1\r\nx-empty: \r\nContent-Length: 18\r\n\r\n\r\n\r\nGET / HTTP/1.1"
    )


@pytest.mark.parametrize(
    ("host", "port", "is_tls", "authority"),
    [
        ("a.example", 80, False, "a.example"),
        ("a.example", 443, False, "a.example:443"),
        ("a.example", 443, True, "a.example"),
        ("a.example", 80, True, "a.example:80"),
        ("2001:4860::8888", 8_080, False, "[2001:4860::8888]:8080"),
        ("2001:4860::8888", 443, True, "[2001:4860::8888]"),
    ],
)
def test_the_host_header_has_the_port_unless_it_is_the_default(
    host: str, port: int, is_tls: bool, authority: str
) -> None:
    tls = build_context(TlsIdentity()) if is_tls else None
    assert Origin(host, port, tls).authority == authority


@pytest.mark.parametrize("character", CONTROLS)
@pytest.mark.parametrize("place", ["{}x", "x{}", "x{}y"])
def test_no_control_character_gets_into_a_head(character: str, place: str) -> None:
    text = place.format(character)
    for parts in (
        {"headers": (("X-A", text),)},
        {"headers": ((text, "value"),)},
        {"target": f"/{text}"},
        {"method": text},
        {"origin": Origin(text, 80)},
    ):
        with pytest.raises(RequestInvalid):
            encoded(**parts)


@pytest.mark.parametrize(
    "name", ["", " ", "a b", "a:", ":", "a(", 'a"', "a/b", "X-A ", "[a]", "a" * 129]
)
def test_a_header_name_is_a_token(name: str) -> None:
    with pytest.raises(RequestInvalid):
        encoded(headers=((name, "1"),))


@pytest.mark.parametrize("name", sorted(RESERVED_HEADERS))
def test_headers_that_frame_or_route_a_request_cannot_be_given(name: str) -> None:
    for spelling in (name, name.upper(), name.title()):
        for _ in range(2):  # also when names are remembered
            with pytest.raises(RequestInvalid, match="cannot be given"):
                encoded(headers=((spelling, "chunked"),))


@pytest.mark.parametrize("target", ["", "a", "*", "http://other/", "/a b", "//\t", "?a"])
def test_the_target_is_a_path(target: str) -> None:
    with pytest.raises(RequestInvalid):
        encoded(target=target)


@pytest.mark.parametrize("method", ["", "post", "CONNECT", "HEAD", "TRACE", "POST /x HTTP/1.1\r\n"])
def test_only_methods_whose_replies_are_understood(method: str) -> None:
    with pytest.raises(RequestInvalid):
        encoded(method=method)


def test_a_head_has_a_largest_size() -> None:
    encoded(headers=(("X", "y" * (HEADERS_BYTES_MAX - 200)),))
    with pytest.raises(RequestInvalid):
        encoded(headers=(("X", "y" * HEADERS_BYTES_MAX),))


def test_an_error_does_not_repeat_a_value() -> None:
    with pytest.raises(RequestInvalid) as caught:
        encoded(headers=(("Authorization", "Bearer secret\n"),))
    assert "secret" not in str(caught.value)


@given(
    headers=st.lists(st.tuples(st.text(max_size=8), st.text(max_size=8)), max_size=4),
    target=st.text(max_size=8).map("/".__add__),
    body=st.binary(max_size=64),
)
def test_whatever_is_given_the_head_has_exactly_the_lines_that_were_asked_for(
    headers: list[tuple[str, str]], target: str, body: bytes
) -> None:
    try:
        data = encoded(headers=tuple(headers), target=target, body=body)
    except RequestInvalid:
        return
    head, _, rest = data.partition(b"\r\n\r\n")
    assert rest == body
    lines = head.decode("ascii").split("\r\n")
    assert lines[0] == f"POST {target} HTTP/1.1"
    assert lines[3:-1] == [f"{name}: {value}" for name, value in headers]
    assert lines[-1] == f"Content-Length: {len(body)}"
    assert not any(ord(character) < 32 for line in lines for character in line)


def test_a_failure_shows_reason_and_detail() -> None:
    from penstock.net.http.client_messages import FailureReason

    assert str(RequestFailed(FailureReason.TLS, "expired")) == "tls: expired"
