"""The HTTP client through a proxy: CONNECT to the address that was checked, then as without one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.unit.net.http.conftest import Certificates, Hook

from penstock.net.http.client import HttpClient
from penstock.net.http.client_messages import FailureReason, Origin, RequestFailed
from penstock.net.http.client_sockets import Proxy
from penstock.net.http.client_tls import TlsIdentity, build_context

ESTABLISHED = b"HTTP/1.1 200 Connection established\r\nVia: x\r\n\r\n"


async def here() -> tuple[str]:
    return ("127.0.0.1",)


@asynccontextmanager
async def proxy(reply: bytes = ESTABLISHED) -> AsyncIterator[tuple[Proxy, list[str]]]:
    heads: list[str] = []
    tasks: set[asyncio.Task[None]] = set()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                writer.write(data)
        finally:
            writer.transport.abort()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        heads.append(head)
        writer.write(reply)
        if reply.startswith(b"HTTP/1.1 200"):
            host, _, port = head.split(" ")[1].rpartition(":")
            far = await asyncio.open_connection(host, int(port))
            tasks.add(asyncio.create_task(copy(reader, far[1])))
            tasks.add(asyncio.create_task(copy(far[0], writer)))
        else:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield Proxy(here, server.sockets[0].getsockname()[1], "Basic dTpw"), heads
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_tunnel_leads_to_the_address_and_is_kept(
    hook: Hook, certificates: Certificates
) -> None:
    async with proxy() as (made, heads):
        hook.client = HttpClient(proxy=made)
        for listener in ("http", "right"):
            tls = build_context(TlsIdentity(ca=certificates.ca)) if listener == "right" else None
            origin = Origin("localhost", hook.endpoint.ports[listener], tls)
            for _ in range(2):
                assert (await hook.send(origin=origin)).status == 200
            authority = f"127.0.0.1:{origin.port}"
            assert heads.pop() == (
                f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n"
                "Proxy-Authorization: Basic dTpw\r\n\r\n"
            )
            assert not heads
        hook.client.close()
    assert [seen.headers["host"].split(":")[0] for seen in hook.seen()] == ["localhost"] * 4
    assert "proxy-authorization" not in hook.seen()[0].headers
    assert hook.seen()[2].server_name == "localhost"


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 403 Forbidden\r\n\r\n",
        b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n",
        b"garbage\r\n\r\n",
        b"",
        b"x" * 20_000,
        b"HTTP/1.0 200 OK\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    ],
)
async def test_a_proxy_that_refuses(hook: Hook, reply: bytes) -> None:
    async with proxy(reply) as (made, _):
        hook.client = HttpClient(proxy=made)
        with pytest.raises(RequestFailed) as caught:
            await hook.send()
        assert (caught.value.reason, caught.value.is_sent) == (FailureReason.CONNECT, False)
    assert not hook.seen()


async def test_a_proxy_that_is_not_there(hook: Hook) -> None:
    hook.client = HttpClient(proxy=Proxy(here, 1))
    with pytest.raises(RequestFailed) as caught:
        await hook.send()
    assert caught.value.reason is FailureReason.CONNECT


def test_a_proxy_does_not_show_its_password() -> None:
    assert "dTpw" not in repr(Proxy(here, 1, "Basic dTpw"))
