"""A real endpoint process for the tests of the HTTP client, which run on both event loops."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import uvloop
from tests.harness.endpoint import Endpoint, Seen, Step, Tls

from penstock.cli.setup.certificates import Authority
from penstock.net.http.client import HttpClient
from penstock.net.http.client_messages import ClientReply, ClientRequest, Origin

TIMEOUT_S = 60.0  # of requests that must not time out


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@dataclass(frozen=True)
class Certificates:
    ca: str  # PEM
    client: tuple[str, str]  # certificate and key, PEM


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Endpoint, Certificates]]:
    folder = tmp_path_factory.mktemp("certificates")
    trusted, foreign = Authority.at(folder / "trusted"), Authority.at(folder / "foreign")
    listeners = {
        "right": (trusted, "localhost"),
        "wrong_name": (trusted, "other.example"),
        "wrong_authority": (foreign, "localhost"),
        "mutual": (trusted, "localhost"),
        "old": (trusted, "localhost"),
    }
    tls = {}
    for name, (authority, host) in listeners.items():
        certificate, key = authority.issue(name, hosts=[host], days=1)
        (folder / f"{name}.pem").write_bytes(certificate)
        (folder / f"{name}.key").write_bytes(key)
        tls[name] = Tls(
            str(folder / f"{name}.pem"),
            str(folder / f"{name}.key"),
            client_ca=str(folder / "trusted/ca.pem") if name == "mutual" else "",
            version_max="TLSv1_1" if name == "old" else "",
        )
    client = trusted.issue("client", days=1, is_client=True)
    found = Certificates(
        (folder / "trusted/ca.pem").read_text(), (client[0].decode(), client[1].decode())
    )
    with Endpoint(tls=tls, hosts=("127.0.0.1", "127.0.0.2")) as endpoint:
        yield endpoint, found


_NUMBERS = itertools.count()


class Hook:
    """A path of the endpoint that no other test uses, and a client."""

    def __init__(self, endpoint: Endpoint, client: HttpClient) -> None:
        self.endpoint = endpoint
        self.client = client
        self.path = f"/{next(_NUMBERS)}"
        self._before = len(endpoint.ledger())

    def plan(self, *steps: Step) -> None:
        self.endpoint.plan(self.path, *steps)

    def request(self, *, host: str = "localhost", **rest: Any) -> ClientRequest:
        rest.setdefault("origin", Origin(host, self.endpoint.ports["http"]))
        return ClientRequest(**{"target": self.path, "body": b"hello", **rest})

    async def send(
        self,
        *,
        addresses: tuple[str, ...] = ("127.0.0.1",),
        timeout_s: float = TIMEOUT_S,
        **rest: Any,
    ) -> ClientReply:
        return await self.client.send(
            self.request(**rest), addresses=addresses, timeout_s=timeout_s
        )

    async def reply(self, *steps: Step, **rest: Any) -> ClientReply:
        self.plan(*steps)
        return await self.send(**rest)

    def seen(self) -> list[Seen]:
        ledger = self.endpoint.ledger(self._before)
        return [each for each in ledger if each.target == self.path]

    async def arrived(self, count: int = 1) -> None:
        """Wait until the endpoint has seen requests of this test."""
        await asyncio.to_thread(self.endpoint.wait_for, self._before + count)


@pytest.fixture
async def hook(site: tuple[Endpoint, Certificates]) -> AsyncIterator[Hook]:
    made = Hook(site[0], HttpClient())
    yield made
    made.client.close()


@pytest.fixture
def certificates(site: tuple[Endpoint, Certificates]) -> Certificates:
    return site[1]
