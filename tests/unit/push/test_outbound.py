"""Attacks on the way out, against a real endpoint that must not see a request.

The endpoint listens on two addresses: 127.0.0.1, which the guard of most tests allows, stands for a
public address, and 127.0.0.2 for a service inside the network."""

import asyncio
from collections.abc import Iterator, Sequence

import pytest
from tests.harness.endpoint import Endpoint, Step
from tests.unit.push.test_address_guard import embeddings

from penstock.net.http.client import HttpClient
from penstock.net.http.client_messages import FailureReason, RequestFailed, RequestInvalid
from penstock.net.http.client_tls import TlsContexts, TlsIdentity
from penstock.push.address_guard import AddressGuard, parse_rules
from penstock.push.outbound import Outbound, make_proxy
from penstock.push.resolver import Lookup, Resolver, system_lookup
from penstock.wire.webhooks.endpoint_url import UrlInvalid, parse_endpoint_url

ONE_ALLOWED = AddressGuard(allow=parse_rules(["127.0.0.1"]))


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    with Endpoint(hosts=("127.0.0.1", "127.0.0.2")) as made:
        yield made


@pytest.fixture(autouse=True)
def _fresh(endpoint: Endpoint) -> None:
    endpoint.plan("/hook")


class Sender:
    def __init__(self, endpoint: Endpoint, guard: AddressGuard, lookup: Lookup) -> None:
        self._endpoint = endpoint
        self._client = HttpClient()
        self.resolver = Resolver(guard, lookup=lookup)
        self._outbound = Outbound(self._client, self.resolver, TlsContexts())
        self._seen_before = len(endpoint.ledger())
        self._connections_before = endpoint.connection_count()

    async def send(self, host: str, *, path: str = "/hook", **rest: object) -> int:
        url = parse_endpoint_url(f"http://{host}:{self._endpoint.ports['http']}{path}")
        options: dict = {"tenant": "t", "timeout_s": 60.0, **rest}
        try:
            return (await self._outbound.send(url, **options)).status
        finally:
            await asyncio.sleep(0)

    async def refused(self, host: str) -> None:
        with pytest.raises(RequestFailed) as caught:
            await self.send(host)
        assert caught.value.reason is FailureReason.REFUSED_ADDRESS
        assert self.connections() == 0, "not even a connection"

    def connections(self) -> int:
        return self._endpoint.connection_count() - self._connections_before

    def addresses(self) -> list[str]:
        return [seen.address for seen in self._endpoint.ledger(self._seen_before)]

    def close(self) -> None:
        self._client.close()
        self.resolver.close()


def sender(
    endpoint: Endpoint, guard: AddressGuard = ONE_ALLOWED, lookup: Lookup = system_lookup
) -> Sender:
    return Sender(endpoint, guard, lookup)


def always(addresses: Sequence[str]) -> Lookup:
    return lambda _host: addresses


async def test_an_allowed_address_is_called(endpoint: Endpoint) -> None:
    made = sender(endpoint)
    assert await made.send("127.0.0.1") == 200
    assert await made.send("[::ffff:127.0.0.1]") == 200
    assert made.addresses() == ["127.0.0.1"] * 2
    made.close()


async def test_a_forbidden_address_by_literal(endpoint: Endpoint) -> None:
    made = sender(endpoint, AddressGuard())
    for host in ("127.0.0.1", "127.0.0.2", "0.0.0.0", "[::1]", "[::]"):
        await made.refused(host)
    for embedded in embeddings("127.0.0.1").values():
        await made.refused(f"[{embedded}]")
    made.close()


async def test_a_forbidden_address_by_name(endpoint: Endpoint) -> None:
    made = sender(endpoint, AddressGuard())
    await made.refused("localhost")
    made.close()
    for reply in (["127.0.0.2"], ["127.0.0.1", "127.0.0.2"], ["127.0.0.2", "127.0.0.1"]):
        made = sender(endpoint, lookup=always(reply))
        await made.refused("evil.example")
        made.close()
    for embedded in embeddings("127.0.0.2").values():
        made = sender(endpoint, lookup=always([embedded]))
        await made.refused("evil.example")
        made.close()


async def test_a_name_that_changes_between_check_and_connect(endpoint: Endpoint) -> None:
    replies = iter([["127.0.0.1"], *[["127.0.0.2"]] * 10])

    def lookup(_host: str) -> Sequence[str]:
        return next(replies)

    made = sender(endpoint, lookup=lookup)
    # On a kept connection, on new ones, and when the request is sent again.
    closing = Step(headers={"Connection": "close"})
    endpoint.plan("/hook", Step(), closing, closing, Step(), Step(raw="", then="close"), Step())
    for _ in range(5):
        assert await made.send("rebinding.example") == 200
    assert len(made.addresses()) == 6
    assert set(made.addresses()) == {"127.0.0.1"}, "new connections go to the judged address too"
    made.close()


@pytest.mark.parametrize("host", ["2130706434", "0x7f.0.0.2", "0177.0.0.2", "127.2", "127.0.0.02"])
async def test_an_odd_spelling(endpoint: Endpoint, host: str) -> None:
    made = sender(endpoint, AddressGuard(is_development=True))
    with pytest.raises(UrlInvalid):
        await made.send(host)
    assert made.connections() == 0
    made.close()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_to_a_forbidden_address(endpoint: Endpoint, status: int) -> None:
    made = sender(endpoint)
    target = endpoint.url("/inside", host="127.0.0.2")
    endpoint.plan(
        "/hook", Step(status=status, headers={"Location": target, "Refresh": f"0;{target}"})
    )
    assert await made.send("127.0.0.1") == status
    assert made.addresses() == ["127.0.0.1"]
    made.close()


async def test_own_ports_in_development(endpoint: Endpoint) -> None:
    own = [("0.0.0.0", endpoint.ports["http"])]
    made = sender(endpoint, AddressGuard(is_development=True, own=own))
    for host in ("127.0.0.1", "127.0.0.2", "localhost", "[::ffff:127.0.0.1]"):
        await made.refused(host)
    made.close()


async def test_an_address_that_becomes_forbidden_is_not_called_on_a_kept_connection(
    endpoint: Endpoint,
) -> None:
    made = sender(endpoint)
    assert await made.send("127.0.0.1") == 200
    made.resolver.guard = AddressGuard()
    with pytest.raises(RequestFailed):
        await made.send("127.0.0.1")
    assert len(made.addresses()) == 1
    made.close()


async def test_a_header_cannot_add_a_line(endpoint: Endpoint) -> None:
    made = sender(endpoint)
    for headers in (
        (("x-amz-sns-topic-arn", "arn\r\nX-Injected: 1"),),
        (("ce-subject", "a\nX-Injected: 1"),),
        (("X\r\nX-Injected", "1"),),
        (("Transfer-Encoding", "chunked"),),
        (("content-length", "0"),),
        (("Host", "inside"),),
    ):
        with pytest.raises(RequestInvalid):
            await made.send("127.0.0.1", headers=headers)
    assert made.connections() == 0
    made.close()


async def test_a_login_in_the_url_becomes_a_header(endpoint: Endpoint) -> None:
    made = sender(endpoint)
    assert await made.send("user:p%40ss@127.0.0.1", headers=(("X-A", "1"),)) == 200
    seen = endpoint.ledger()[-1]
    assert seen.headers["authorization"] == "Basic dXNlcjpwQHNz"
    assert seen.headers["host"] == f"127.0.0.1:{endpoint.ports['http']}"
    made.close()


async def test_a_failed_lookup_and_an_unusable_certificate_are_failures(endpoint: Endpoint) -> None:
    def lookup(_host: str) -> Sequence[str]:
        raise OSError(-2, "Name or service not known")

    made = sender(endpoint, lookup=lookup)
    with pytest.raises(RequestFailed) as caught:
        await made.send("missing.example")
    assert caught.value.reason is FailureReason.DNS
    made.close()
    outbound = Outbound(HttpClient(), Resolver(ONE_ALLOWED), TlsContexts())
    url = parse_endpoint_url("https://127.0.0.1/")
    with pytest.raises(RequestFailed) as caught:
        await outbound.send(url, tenant="t", timeout_s=60, identity=TlsIdentity(ca="x"))
    assert caught.value.reason is FailureReason.TLS


async def test_the_proxy_of_the_operator_may_be_inside(endpoint: Endpoint) -> None:
    asked = []

    def lookup(host: str) -> Sequence[str]:
        asked.append(host)
        return ["10.0.0.1"]

    proxy = make_proxy("http://user:pass@proxy.corp:88", lookup=lookup)
    assert [await proxy.find() for _ in range(2)] == [("10.0.0.1",)] * 2
    assert asked == ["proxy.corp"]
    assert (proxy.port, proxy.authorization) == (88, "Basic dXNlcjpwYXNz")
    for text in ("https://proxy.corp", "http://proxy.corp/path", "socks5://proxy.corp"):
        with pytest.raises(UrlInvalid):
            make_proxy(text)
