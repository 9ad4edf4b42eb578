"""Who may call whom under mutual TLS: an authority both trust, and an id in the certificate."""

import asyncio
import ssl
from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives import serialization

from penstock.calls.internal.client import InternalClient
from penstock.calls.internal.connection import (
    InternalConfig,
    NodeEnd,
    name_in_certificate,
    names_in,
)
from penstock.calls.internal.listener import InternalListener
from penstock.cli.setup import certificates
from penstock.wire.internal.calls import Call, CallerInfo, CallHandlers
from penstock.wire.internal.faults import HelloRefused, Unreachable

CLUSTER = "c1"


class Text(msgspec.Struct, frozen=True, array_like=True):
    text: str


ECHO = Call(0x7001, "test.echo", Text, Text, is_idempotent=True)


class Authority:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made = certificates._new_authority()
        self.path = folder / "authority.pem"
        self.path.write_bytes(self._made.certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, common_name: str, *names: str) -> Path:
        """Certificate and key of a node, in one file."""
        path = self._folder / f"{common_name}.pem"
        path.write_bytes(b"".join(self._made.issue(common_name, hosts=names, days=1)))
        return path

    def server(self, certificate: Path) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=self.path)
        context.load_cert_chain(certificate)
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    def client(self, certificate: Path | None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.path)
        context.check_hostname = False  # the node's id is checked instead
        if certificate is not None:
            context.load_cert_chain(certificate)
        return context


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


async def call(
    port: int, *, own_id: str, tls: ssl.SSLContext | None, node_id: str | None = None
) -> str:
    client = InternalClient(
        "127.0.0.1",
        port,
        NodeEnd(own_id, CLUSTER, config=InternalConfig(connect_seconds_max=20.0)),
        node_id=node_id,
        tls=tls,
    )
    try:
        return (await client.call(ECHO, Text(own_id), timeout_ms=5_000)).text
    finally:
        await client.close()


async def listen(
    tls: ssl.SSLContext, asked: list[CallerInfo], *, node_id: str = "n1"
) -> tuple[InternalListener, int]:
    def answer(request: Text, by: CallerInfo) -> Text:
        asked.append(by)
        return request

    answers = CallHandlers()
    answers.add(ECHO, answer)
    listener = InternalListener(answers, NodeEnd(node_id, CLUSTER))
    bound = await listener.start("127.0.0.1", 0, tls=tls)
    return listener, int(bound.rpartition(":")[2])


async def test_a_node_calls_itself_what_its_certificate_says(authority: Authority) -> None:
    asked: list[CallerInfo] = []
    listener, port = await listen(authority.server(authority.issue("n1")), asked)
    by_name = authority.client(authority.issue("n2"))
    by_alternative = authority.client(authority.issue("machine-7", "n3", "n4"))
    assert await call(port, own_id="n2", tls=by_name, node_id="n1") == "n2"
    assert await call(port, own_id="n4", tls=by_alternative) == "n4"
    assert [by.node_id for by in asked] == ["n2", "n4"]
    with pytest.raises(Unreachable, match="shown by node n5 is for another node"):
        await call(port, own_id="n5", tls=by_name)
    assert len(asked) == 2
    await listener.drain(seconds_max=1.0)


async def test_a_node_that_answers_under_anothers_name_is_not_called(authority: Authority) -> None:
    asked: list[CallerInfo] = []
    listener, port = await listen(authority.server(authority.issue("n9")), asked, node_id="n1")
    with pytest.raises(Unreachable, match="shown by node n1 is for another node"):
        await call(port, own_id="n2", tls=authority.client(authority.issue("n2")))
    assert not asked
    await listener.drain(seconds_max=1.0)


async def test_without_a_certificate_or_with_a_strangers_nobody_is_let_in(
    authority: Authority, tmp_path: Path
) -> None:
    asked: list[CallerInfo] = []
    listener, port = await listen(authority.server(authority.issue("n1")), asked)
    (tmp_path / "other").mkdir()
    stranger = Authority(tmp_path / "other")
    with_strangers = authority.client(stranger.issue("n2"))
    for tls in (None, authority.client(None), with_strangers, stranger.client(None)):
        with pytest.raises(Unreachable):
            await call(port, own_id="n2", tls=tls)
    assert not asked
    assert await call(port, own_id="n2", tls=authority.client(authority.issue("n2"))) == "n2"
    await listener.drain(seconds_max=1.0)


async def test_many_calls_go_over_one_encrypted_connection(authority: Authority) -> None:
    asked: list[CallerInfo] = []
    listener, port = await listen(authority.server(authority.issue("n1")), asked)
    client = InternalClient(
        "127.0.0.1", port, NodeEnd("n2", CLUSTER), tls=authority.client(authority.issue("n2"))
    )
    texts = [f"{n} " + "x" * (n * 500) for n in range(200)]
    replies = await asyncio.gather(
        *(client.call(ECHO, Text(text), timeout_ms=10_000) for text in texts)
    )
    assert [reply.text for reply in replies] == texts
    assert len(listener.connections) == 1
    await client.close()
    await listener.drain(seconds_max=1.0)


def test_names_are_the_common_name_and_the_alternative_ones() -> None:
    certificate = {
        "subject": ((("organizationName", "acme"),), (("commonName", "n1"),)),
        "subjectAltName": (("DNS", "n2"), ("URI", "node:n3"), ("IP Address", "10.0.0.1")),
    }
    assert names_in(certificate) == {"n1", "n2", "node:n3"}
    name_in_certificate("n2", certificate)
    for node_id in ("acme", "10.0.0.1", "n", ""):
        with pytest.raises(HelloRefused):
            name_in_certificate(node_id, certificate)
    with pytest.raises(HelloRefused, match="no certificate"):
        name_in_certificate("n1", None)
