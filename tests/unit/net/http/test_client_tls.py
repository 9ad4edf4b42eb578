"""TLS of the HTTP client: which certificates it accepts, and which it shows."""

import asyncio
import ssl
from pathlib import Path

import pytest
from tests.harness.endpoint import Step
from tests.unit.net.http.conftest import Certificates, Hook

from penstock.net.http.client_messages import FailureReason, Origin, RequestFailed
from penstock.net.http.client_tls import (
    CONTEXTS_MAX,
    TlsContexts,
    TlsIdentity,
    TlsInvalid,
    build_context,
)


def origin(hook: Hook, listener: str, identity: TlsIdentity, host: str = "localhost") -> Origin:
    return Origin(host, hook.endpoint.ports[listener], build_context(identity))


async def failure(hook: Hook, target: Origin) -> RequestFailed:
    with pytest.raises(RequestFailed) as caught:
        await hook.send(origin=target)
    assert not hook.seen()
    assert not caught.value.is_sent
    return caught.value


async def test_a_trusted_certificate_of_the_right_name(
    hook: Hook, certificates: Certificates
) -> None:
    target = origin(hook, "right", TlsIdentity(ca=certificates.ca))
    hook.plan(Step(filler_bytes=40_000))
    for _ in range(2):
        reply = await hook.send(origin=target, body=b"x" * 300_000)
        assert (reply.status, len(reply.body)) == (200, 40_000)
    first, second = hook.seen()
    assert (first.server_name, first.body_bytes) == ("localhost", 300_000)
    assert first.connection == second.connection
    assert not first.client_certificate


async def test_a_body_cut_off_under_tls(hook: Hook, certificates: Certificates) -> None:
    target = origin(hook, "right", TlsIdentity(ca=certificates.ca))
    reply = await hook.reply(Step(filler_bytes=10_000_000), origin=target)
    assert reply.is_cut
    assert hook.client.idle_count == 0


@pytest.mark.parametrize("listener", ["wrong_name", "wrong_authority"])
async def test_a_wrong_certificate_gets_no_request(
    hook: Hook, certificates: Certificates, listener: str
) -> None:
    failed = await failure(hook, origin(hook, listener, TlsIdentity(ca=certificates.ca)))
    assert failed.reason is FailureReason.TLS
    assert "certificate" in failed.detail


async def test_the_private_authority_is_not_trusted_by_default(hook: Hook) -> None:
    assert (await failure(hook, origin(hook, "right", TlsIdentity()))).reason is FailureReason.TLS


async def test_the_certificate_is_checked_by_the_name_and_not_by_the_address(
    hook: Hook, certificates: Certificates
) -> None:
    target = origin(hook, "right", TlsIdentity(ca=certificates.ca), host="127.0.0.1")
    assert (await failure(hook, target)).reason is FailureReason.TLS
    target = origin(hook, "wrong_name", TlsIdentity(ca=certificates.ca), host="other.example")
    assert (await hook.send(origin=target)).status == 200
    assert hook.seen()[0].server_name == "other.example"


async def test_tls_below_1_2_is_refused(hook: Hook, certificates: Certificates) -> None:
    failed = await failure(hook, origin(hook, "old", TlsIdentity(ca=certificates.ca)))
    assert failed.reason is FailureReason.TLS


async def test_a_client_certificate_is_shown(hook: Hook, certificates: Certificates) -> None:
    certificate, key = certificates.client
    target = origin(hook, "mutual", TlsIdentity(certificates.ca, certificate, key))
    assert (await hook.send(origin=target)).status == 200
    assert hook.seen()[0].client_certificate


async def test_an_endpoint_that_wants_a_client_certificate_gets_no_request(
    hook: Hook, certificates: Certificates
) -> None:
    with pytest.raises(RequestFailed) as caught:
        await hook.send(origin=origin(hook, "mutual", TlsIdentity(ca=certificates.ca)))
    # With TLS 1.3 the handshake ends for the client before the endpoint has checked it.
    assert caught.value.reason in (FailureReason.TLS, FailureReason.RESET)
    assert not hook.seen()


async def test_a_plain_listener_is_not_tls(hook: Hook) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1_024)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    target = Origin("localhost", port, build_context(TlsIdentity()))
    assert (await failure(hook, target)).reason is FailureReason.TLS
    server.close()


async def test_connections_of_two_identities_are_not_shared(
    hook: Hook, certificates: Certificates
) -> None:
    for identity in (
        TlsIdentity(ca=certificates.ca),
        TlsIdentity(certificates.ca, *certificates.client),
    ):
        await hook.send(origin=origin(hook, "right", identity))
    assert len({seen.connection for seen in hook.seen()}) == 2


async def test_a_ca_file_is_trusted_beside_the_system(
    hook: Hook, certificates: Certificates, tmp_path: Path
) -> None:
    path = tmp_path / "ca.pem"
    path.write_text(certificates.ca)
    context = await TlsContexts(ca_file=path).get(TlsIdentity())
    target = Origin("localhost", hook.endpoint.ports["right"], context)
    assert (await hook.send(origin=target)).status == 200
    assert len(context.get_ca_certs()) >= 1


async def test_contexts_are_kept_and_bounded(certificates: Certificates) -> None:
    contexts = TlsContexts()
    identity = TlsIdentity(ca=certificates.ca)
    first, second = await asyncio.gather(contexts.get(identity), contexts.get(identity))
    assert first is second
    assert await contexts.get(TlsIdentity(ca=certificates.ca)) is first
    for number in range(CONTEXTS_MAX):
        await contexts.get(TlsIdentity(ca=certificates.ca + "\n" * (number + 1)))
    assert await contexts.get(identity) is not first


def test_a_context_checks_everything(certificates: Certificates) -> None:
    for identity in (TlsIdentity(), TlsIdentity(ca=certificates.ca)):
        context = build_context(identity)
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.check_hostname
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_texts_that_cannot_be_used(certificates: Certificates, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    certificate, key = certificates.client
    loaded = serialization.load_pem_private_key(key.encode(), password=None)
    sealed = loaded.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"password"),
    ).decode()
    for identity in (
        TlsIdentity(ca="x"),
        TlsIdentity(ca="é"),
        TlsIdentity(ca="x" * 65_537),
        TlsIdentity(ca=key),
        TlsIdentity(certificate=certificate),
        TlsIdentity(key=key),
        TlsIdentity(certificate="\ud800", key=key),
        TlsIdentity(certificate=certificate, key=sealed),
        TlsIdentity(certificate=certificates.ca, key=key),
    ):
        with pytest.raises(TlsInvalid) as caught:
            build_context(identity)
        assert "PRIVATE" not in str(caught.value)
    with pytest.raises(TlsInvalid, match=r"ca\.pem"):
        build_context(TlsIdentity(), tmp_path / "ca.pem")
    assert key not in repr(TlsIdentity(key=key))


async def test_a_context_in_use_is_not_the_one_to_go(certificates: Certificates) -> None:
    contexts, identity = TlsContexts(), TlsIdentity(ca=certificates.ca)
    used = await contexts.get(identity)
    for number in range(CONTEXTS_MAX + 1):
        await contexts.get(TlsIdentity(ca=certificates.ca + "\n" * (number + 1)))
        assert await contexts.get(identity) is used
