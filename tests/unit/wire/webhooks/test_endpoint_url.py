"""Which URLs of endpoints are accepted, and how they are read."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.webhooks.endpoint_url import (
    URL_CHARS_MAX,
    EndpointUrl,
    UrlInvalid,
    parse_endpoint_url,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://a.example", EndpointUrl("http", "a.example", 80, "/", False)),
        ("HTTPS://A.Example/Path?q=1", EndpointUrl("https", "a.example", 443, "/Path?q=1", False)),
        ("http://a.example:8080?x", EndpointUrl("http", "a.example", 8080, "/?x", False)),
        ("https://a.example:443/", EndpointUrl("https", "a.example", 443, "/", False)),
        ("http://localhost:99/%zz/@:", EndpointUrl("http", "localhost", 99, "/%zz/@:", False)),
        ("http://my_service.ns/", EndpointUrl("http", "my_service.ns", 80, "/", False)),
        ("http://192.0.2.1/", EndpointUrl("http", "192.0.2.1", 80, "/", True)),
        ("http://[2001:DB8:0::1]:81/", EndpointUrl("http", "2001:db8::1", 81, "/", True)),
        ("http://[::ffff:10.0.0.1]/", EndpointUrl("http", "::ffff:a00:1", 80, "/", True)),
        ("http://bücher.example/", EndpointUrl("http", "xn--bcher-kva.example", 80, "/", False)),
        ("http://例え.テスト/", EndpointUrl("http", "xn--r8jz45g.xn--zckzah", 80, "/", False)),
        ("http://xn--bcher-kva.test/", EndpointUrl("http", "xn--bcher-kva.test", 80, "/", False)),
        # Full-width letters and dots are other spellings of ASCII; the ASCII form is judged.
        ("http://ｌｏｃａｌｈｏｓｔ/", EndpointUrl("http", "localhost", 80, "/", False)),
        ("http://１２７.０.０.１/", EndpointUrl("http", "127.0.0.1", 80, "/", True)),
        ("http://a。example/", EndpointUrl("http", "a.example", 80, "/", False)),
    ],
)  # fmt: skip
def test_urls_that_are_accepted(text: str, expected: EndpointUrl) -> None:
    assert parse_endpoint_url(text) == expected


ODD_ADDRESSES = [
    "0x7f.0.0.1", "0x7f000001", "0X7F.1", "2130706433", "017700000001", "0177.0.0.1", "127.1",
    "127.0.1", "127.0.0.01", "127.0.0.1.", "0", "0.0.0.0.0", "1.2.3.256", "1.2.3.-4", "+127.0.0.1",
    "127.0.0.0x1", "a.0x", "a.1", "１２７.1", "127。0。1", "①②⑦.0.1", "0x7f.example.1",
]  # fmt: skip


@pytest.mark.parametrize("host", ODD_ADDRESSES)
def test_odd_spellings_of_addresses_are_refused(host: str) -> None:
    with pytest.raises(UrlInvalid):
        parse_endpoint_url(f"http://{host}/")


@pytest.mark.parametrize(
    "text",
    [
        "", "http", "http:/a", "http://", "http:///path", "http://?q", "ftp://a/", "//a/",
        "a.example", "javascript:http://a/", " http://a/", "http://a/ ", "http:\\\\a\\",
        "http://a\\@b/", "http://a\\b", "http://a/#f", "http://a#@b/", "http://a/b c",
        "http://a/\n", "http://a\n/", "http://a/\x00", "ht\ntp://a/", "http://a\t.example/",
        "http://a/é", "http://a/?é", "http://a b/", "http://a:/", "http://a:0/", "http://a:65536/",
        "http://a:080/", "http://a:+80/", "http://a:8 0/", "http://a:80:80/", "http://a:٨٠/",
        "http://a@b@c/", "http://@a/", "http://:p@a/", "http://u:p:q@a/", "http://u\n:p@a/",
        "http://u:%0d%0aX@a/", "http://u%3a:p@a/", "http://u:%00@a/", "http://ü:p@a/",
        "http://[::1/", "http://::1/", "http://[::1]x/", "http://[::1%25eth0]/",
        "http://[fe80::1%eth0]/", "http://[127.0.0.1]/", "http://[]/", "http://[::1]:/",
        "http://[v1.x]/", "http://[0:0:0:0:0:0:0]/", "http://[::ffff:127.1]/",
        "http://[::ffff:0127.0.0.1]/", "http://.a/", "http://a./", "http://a..b/", "http://-a/",
        "http://a-/", "http://a%2eb/", "http://a,b/", f"http://{'a' * 64}/",
        f"http://{'a.' * 127}a/", "http://a\u200d.example/", "http://fuß.example/",
        "http://a\u00ad\u200c/", "http://\ud800/", "http://xn--\u00fc/", f"http://{'ü' * 300}/",
        "http://a＠b/", "http://a／b/", "http://a％00/", "http://ａ：８０/", "http://a？b/",
    ],
)  # fmt: skip
def test_urls_that_are_refused(text: str) -> None:
    with pytest.raises(UrlInvalid):
        parse_endpoint_url(text)


def test_a_url_has_a_largest_length() -> None:
    text = "http://a.example/".ljust(URL_CHARS_MAX, "x")
    assert len(parse_endpoint_url(text).target) == URL_CHARS_MAX - len("http://a.example")
    with pytest.raises(UrlInvalid, match="2,048"):
        parse_endpoint_url(text + "x")


@pytest.mark.parametrize(
    ("login", "user", "decoded"),
    [
        ("user:pass", "user", b"user:pass"),
        ("user:", "user", b"user:"),
        ("user", "user", b"user:"),
        ("u%40x:p%3Aq%2F%C3%BC", "u%40x", "u@x:p:q/ü".encode()),
        ("u:p[]!$&'()*+,;=", "u", b"u:p[]!$&'()*+,;="),
    ],
)
def test_a_login_becomes_basic_authorization_and_is_not_shown(
    login: str, user: str, decoded: bytes
) -> None:
    url = parse_endpoint_url(f"https://{login}@a.example:8443/x")
    assert (url.host, url.port, url.user) == ("a.example", 8_443, user)
    assert url.authorization == "Basic " + base64.b64encode(decoded).decode()
    assert url.shown == f"https://{user}:****@a.example:8443/x"
    assert url.authorization not in repr(url)


@pytest.mark.parametrize(
    "text", ["http://a.example/", "https://a.example/x?y", "http://[2001:db8::1]:81/"]
)
def test_a_url_without_a_login_is_shown_as_it_is(text: str) -> None:
    assert parse_endpoint_url(text).shown == text


def test_an_error_does_not_repeat_the_url() -> None:
    with pytest.raises(UrlInvalid) as caught:
        parse_endpoint_url("http://user:secret@0x7f.1/")
    assert "secret" not in str(caught.value)


@given(st.text(max_size=40) | st.text(alphabet="htp:/@[]?#\\.%0127xaｘé \n", max_size=40))
def test_every_text_is_a_url_or_an_error(rest: str) -> None:
    for text in (rest, f"http://{rest}", f"https://{rest}/"):
        try:
            url = parse_endpoint_url(text)
        except UrlInvalid:
            continue
        # What remains has one reading: parsing the accepted parts again gives the same.
        assert parse_endpoint_url(url.shown.replace(f"{url.user}:****@", "")).host == url.host
        assert url.target.isascii()
        assert url.target.isprintable()
        assert url.host.isascii()
        assert url.authorization.isprintable()
