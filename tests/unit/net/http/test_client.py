"""The HTTP client against a real endpoint: every form of reply and of failure."""

import asyncio
import os
import socket

import pytest
from tests.harness.endpoint import Step
from tests.unit.net.http.conftest import Hook

from penstock.net.http.client import HttpClient
from penstock.net.http.client_connection import BODY_BYTES_MAX, FAILURE_BYTES_KEPT, HEAD_BYTES_MAX
from penstock.net.http.client_messages import (
    ClientRequest,
    FailureReason,
    Origin,
    RequestFailed,
    RequestInvalid,
)

SOON_S = 0.05  # of requests that must time out


async def failure(hook: Hook, *steps: Step, **rest: object) -> RequestFailed:
    with pytest.raises(RequestFailed) as caught:
        await hook.reply(*steps, **rest)
    return caught.value


# ── Replies ──────────────────────────────────────────────────────────────────────────────────


async def test_a_request_arrives_as_it_was_given(hook: Hook) -> None:
    reply = await hook.reply(
        Step(status=201, body="fine", headers={"Set-Cookie": "a=b"}),
        headers=(("X-One", "1"), ("content-type", "text/plain; charset=UTF-8")),
        body=b"\x00\xff" * 5,
    )
    assert (reply.status, reply.body, reply.is_cut, reply.headers) == (201, b"fine", False, {})
    assert reply.duration_s > 0
    (seen,) = hook.seen()
    assert seen.method == "POST"
    assert seen.body.encode("latin-1") == b"\x00\xff" * 5
    assert seen.headers == {
        "host": f"localhost:{hook.endpoint.ports['http']}",
        "accept-encoding": "identity",
        "x-one": "1",
        "content-type": "text/plain; charset=UTF-8",
        "content-length": "10",
    }


async def test_a_request_without_a_body_says_so(hook: Hook) -> None:
    await hook.reply(Step(), method="OPTIONS", body=b"")
    (seen,) = hook.seen()
    assert (seen.method, seen.headers["content-length"]) == ("OPTIONS", "0")


@pytest.mark.parametrize("status", [200, 204, 302, 304, 404, 410, 429, 500, 599])
async def test_every_status_is_a_reply_and_the_connection_is_kept(hook: Hook, status: int) -> None:
    body = "" if status in (204, 304) else "text"
    headers = {"Location": "http://127.0.0.1/other", "Retry-After": "7"}
    raw = None if body else f"HTTP/1.1 {status} X\r\nRetry-After: 7\r\n\r\n"
    for _ in range(2):
        reply = await hook.reply(Step(status=status, body=body, headers=headers, raw=raw))
        assert (reply.status, reply.body) == (status, body.encode())
        assert reply.headers == {"retry-after": "7"}
    assert len({seen.connection for seen in hook.seen()}) == 1


async def test_a_redirect_is_not_followed(hook: Hook) -> None:
    hook.endpoint.plan(hook.path + "/private", Step())
    for status in (301, 302, 303, 307, 308):
        step = Step(status=status, headers={"Location": hook.endpoint.url(hook.path + "/private")})
        assert (await hook.reply(step)).status == status
    assert len(hook.seen()) == 5
    assert not [s for s in hook.endpoint.ledger() if s.target == hook.path + "/private"]


async def test_cookies_are_not_sent_back(hook: Hook) -> None:
    await hook.reply(Step(headers={"Set-Cookie": "session=1; Path=/"}))
    await hook.send()
    assert "cookie" not in hook.seen()[1].headers


async def test_headers_that_callers_need_are_kept_in_lower_case(hook: Hook) -> None:
    headers = {"WebHook-Allowed-Rate": "120", "webhook-allowed-ORIGIN": "*", "Other": "x"}
    reply = await hook.reply(Step(headers=headers))
    assert reply.headers == {"webhook-allowed-rate": "120", "webhook-allowed-origin": "*"}


async def test_a_compressed_body_stays_compressed(hook: Hook) -> None:
    reply = await hook.reply(Step(headers={"Content-Encoding": "gzip"}, body="\x1f\x8b\x08bomb"))
    assert reply.body == b"\x1f\x8b\x08bomb"


async def test_chunks_are_joined_and_trailers_are_not_headers(hook: Hook) -> None:
    raw = (
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        "3;ext=1\r\nabc\r\n2\r\nde\r\n0\r\nRetry-After: 9\r\n\r\n"
    )
    for _ in range(2):
        reply = await hook.reply(Step(raw=raw))
        assert (reply.status, reply.body, reply.headers) == (200, b"abcde", {})
    assert len({seen.connection for seen in hook.seen()}) == 1


async def test_interim_replies_are_skipped(hook: Hook) -> None:
    interim = "HTTP/1.1 100 Continue\r\nRetry-After: 1\r\n\r\nHTTP/1.1 103 Hints\r\nLink: x\r\n\r\n"
    for _ in range(2):
        raw = interim + "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
        reply = await hook.reply(Step(raw=raw))
        assert (reply.status, reply.body, reply.headers) == (200, b"ok", {})
    assert len({seen.connection for seen in hook.seen()}) == 1


@pytest.mark.parametrize("then", ["close", "half_close"])
async def test_a_reply_without_a_length_ends_with_the_connection(hook: Hook, then: str) -> None:
    reply = await hook.reply(Step(raw="HTTP/1.1 200 OK\r\n\r\nall of it", then=then))
    assert (reply.status, reply.body) == (200, b"all of it")
    assert hook.client.idle_count == 0


@pytest.mark.parametrize(
    "raw",
    [
        "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
        "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        # Bytes after the reply: another reply, or none.
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokay",
    ],
)
async def test_a_connection_that_cannot_be_used_again_is_closed(hook: Hook, raw: str) -> None:
    reply = await hook.reply(Step(raw=raw, then="stall"))
    assert (reply.status, reply.body) == (200, b"ok")
    assert hook.client.idle_count == 0
    await hook.send()
    assert len({seen.connection for seen in hook.seen()}) == 2


async def test_an_early_reply_ends_the_request(hook: Hook) -> None:
    """The endpoint replies and reads nothing of a body that exceeds all buffers."""
    step = Step(status=413, reads_body=False, then="stall")
    reply = await hook.reply(step, body=bytes(32_000_000))
    assert reply.status == 413
    assert hook.client.idle_count == 0


# ── Limits ───────────────────────────────────────────────────────────────────────────────────


async def test_a_body_at_the_limit_is_read_whole(hook: Hook) -> None:
    reply = await hook.reply(Step(filler_bytes=BODY_BYTES_MAX))
    assert (len(reply.body), reply.is_cut) == (BODY_BYTES_MAX, False)
    assert hook.client.idle_count == 1


@pytest.mark.parametrize("filler_bytes", [BODY_BYTES_MAX + 1, 10_000_000, -1])
async def test_a_larger_body_is_cut_off_and_its_connection_closed(
    hook: Hook, filler_bytes: int
) -> None:
    reply = await hook.reply(Step(filler_bytes=filler_bytes))
    assert (reply.status, reply.is_cut) == (200, True)
    assert reply.body == b"x" * BODY_BYTES_MAX
    assert hook.client.idle_count == 0


async def test_little_is_kept_of_the_body_of_a_failure(hook: Hook) -> None:
    reply = await hook.reply(Step(status=500, filler_bytes=BODY_BYTES_MAX))
    assert (reply.body, reply.is_cut) == (b"x" * FAILURE_BYTES_KEPT, False)
    assert hook.client.idle_count == 1
    reply = await hook.reply(Step(status=500, filler_bytes=-1))
    assert (reply.body, reply.is_cut) == (b"x" * FAILURE_BYTES_KEPT, True)
    assert hook.client.idle_count == 0


async def test_chunk_extensions_without_end_are_cut_off(hook: Hook) -> None:
    raw = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n1;" + "e" * 1_000_000
    reply = await hook.reply(Step(raw=raw, then="stall"))
    assert (reply.body, reply.is_cut) == (b"a", True)


async def test_many_small_chunks_are_read(hook: Hook) -> None:
    raw = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + "1\r\nx\r\n" * 8_000
    reply = await hook.reply(Step(raw=raw + "0\r\n\r\n"))
    assert (reply.body, reply.is_cut) == (b"x" * 8_000, False)


@pytest.mark.parametrize(
    "raw",
    [
        "HTTP/1.1 200 OK\r\nX: " + "y" * HEAD_BYTES_MAX + "\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\n" + "a: b\r\n" * HEAD_BYTES_MAX,
        "HTTP/1.1 200 OK\r\nX: " + "y" * 1_000_000,
        "HTTP/1.1 " + "2" * 1_000_000,
        "HTTP/1.1 100 Continue\r\n\r\n" * 100_000,
    ],
)
async def test_a_large_head_is_rejected(hook: Hook, raw: str) -> None:
    failed = await failure(hook, Step(raw=raw, then="stall"))
    # A status line of digits only is not HTTP, which may be noticed first.
    assert failed.reason in (FailureReason.HEAD_TOO_LARGE, FailureReason.PROTOCOL)
    assert failed.reason is FailureReason.HEAD_TOO_LARGE or "222" in raw
    assert failed.is_sent


# ── Failures ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "raw",
    [
        "garbage\r\n\r\n",
        "SSH-2.0-OpenSSH_9.6\r\n",
        "\x16\x03\x01\x02\x00" * 20,
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 7\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        "HTTP/1.1 200 OK\r\nX\x00Y: 1\r\n\r\n",
        "HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n",
    ],
)
async def test_a_reply_that_is_not_http_fails(hook: Hook, raw: str) -> None:
    failed = await failure(hook, Step(raw=raw, then="stall"))
    assert failed.reason is FailureReason.PROTOCOL
    assert failed.is_sent
    assert hook.client.idle_count == 0


@pytest.mark.parametrize(
    "raw",
    [
        "",
        "HTTP/1.1 2",
        "HTTP/1.1 200 OK\r\nContent-Le",
        "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        "HTTP/1.1 100 Continue\r\n\r\n",
    ],
)
@pytest.mark.parametrize("then", ["close", "reset", "half_close"])
async def test_a_connection_that_ends_before_the_reply_does_fails(
    hook: Hook, raw: str, then: str
) -> None:
    failed = await failure(hook, Step(raw=raw, then=then))
    assert failed.reason is FailureReason.RESET
    assert failed.is_sent
    assert len(hook.seen()) == 1, "on a new connection nothing is sent again"


@pytest.mark.parametrize(
    "step",
    [
        Step(hold=True),
        Step(raw="HTTP/1.1 200 OK\r\n", then="stall"),
        Step(raw="HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhal", then="stall"),
        Step(filler_bytes=-1, pause_ms=1),
    ],
)
async def test_a_reply_that_is_not_complete_in_time_fails(hook: Hook, step: Step) -> None:
    await hook.reply(Step())  # the timeout is too short for a connection on a busy machine
    failed = await failure(hook, step, timeout_s=SOON_S)
    assert (failed.reason, failed.is_sent) == (FailureReason.TIMEOUT, True)
    assert hook.client.idle_count == 0


async def test_a_reply_that_comes_in_time_counts(hook: Hook) -> None:
    assert (await hook.reply(Step(delay_ms=20))).status == 200


async def test_a_port_on_which_nothing_listens_fails_to_connect(hook: Hook) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        origin = Origin("localhost", reserved.getsockname()[1])
        failed = await failure(hook, origin=origin)
    assert (failed.reason, failed.is_sent) == (FailureReason.CONNECT, False)


async def test_a_connection_that_is_not_accepted_times_out(hook: Hook) -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        origin = Origin("localhost", full.getsockname()[1])
        fillers = []
        for _ in range(4):  # the backlog is full, and the kernel ignores further connections
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
            fillers.append(filler)
        failed = await failure(hook, origin=origin, timeout_s=SOON_S)
        for filler in fillers:
            filler.close()
    assert (failed.reason, failed.is_sent) == (FailureReason.TIMEOUT, False)


async def test_the_next_address_is_tried(hook: Hook) -> None:
    """As for a name with an address on which nothing listens, such as localhost with ::1."""
    addresses = ("127.0.0.9", "127.0.0.2")
    for _ in range(2):
        assert (await hook.send(addresses=addresses)).status == 200
    assert {seen.address for seen in hook.seen()} == {"127.0.0.2"}
    assert len({seen.connection for seen in hook.seen()}) == 1
    hook.client.close()
    assert (await hook.send(addresses=addresses[::-1])).status == 200


async def test_a_request_without_addresses_fails(hook: Hook) -> None:
    assert (await failure(hook, addresses=())).reason is FailureReason.CONNECT


async def test_an_invalid_request_is_not_sent(hook: Hook) -> None:
    with pytest.raises(RequestInvalid):
        await hook.send(headers=(("X", "a\r\nY: b"),))
    assert not hook.seen()


# ── Connections that are kept ────────────────────────────────────────────────────────────────


async def test_a_connection_that_was_closed_while_idle_is_replaced(hook: Hook) -> None:
    await hook.send()
    hook.endpoint.drop_idle()
    reply = await hook.send()  # whether or not the client has noticed
    assert reply.status == 200
    assert [seen.body for seen in hook.seen()] == ["hello", "hello"]


@pytest.mark.parametrize("then", ["close", "reset"])
async def test_a_request_is_sent_again_once_if_not_a_byte_came(hook: Hook, then: str) -> None:
    await hook.reply(Step())
    reply = await hook.reply(Step(raw="", then=then), Step(status=202))
    assert reply.status == 202
    assert len(hook.seen()) == 3
    failed = await failure(hook, Step(raw="", then=then))
    assert failed.reason is FailureReason.RESET
    assert len(hook.seen()) == 5


async def test_a_request_is_not_sent_again_after_a_byte_came(hook: Hook) -> None:
    await hook.reply(Step())
    failed = await failure(hook, Step(raw="H", then="close"), Step())
    assert failed.reason is FailureReason.RESET
    assert len(hook.seen()) == 2


async def test_a_request_that_must_not_be_repeated_is_not(hook: Hook) -> None:
    await hook.reply(Step())
    failed = await failure(hook, Step(raw="", then="close"), Step(), may_resend=False)
    assert (failed.reason, failed.is_sent) == (FailureReason.RESET, True)
    first, second = hook.seen()
    assert first.connection != second.connection, "an idle connection may just be closed"


async def test_a_timeout_is_not_a_reason_to_send_again(hook: Hook) -> None:
    await hook.reply(Step())
    failed = await failure(hook, Step(hold=True), Step(), timeout_s=SOON_S)
    assert failed.reason is FailureReason.TIMEOUT
    await hook.arrived(2)
    assert len(hook.seen()) == 2


async def test_requests_at_once_have_connections_of_their_own(hook: Hook) -> None:
    hook.plan(Step(hold=True))
    calls = [asyncio.create_task(hook.send(body=str(number).encode())) for number in range(20)]
    await hook.arrived(20)
    hook.endpoint.release(hook.path)
    assert {reply.status for reply in await asyncio.gather(*calls)} == {200}
    assert max(seen.path_at_once for seen in hook.seen()) == 20
    assert {seen.body for seen in hook.seen()} == {str(number) for number in range(20)}
    assert hook.client.idle_count == 20, "for the next requests of a burst"


@pytest.mark.parametrize("different", [{"host": "127.0.0.1"}, {"addresses": ("127.0.0.2",)}])
async def test_connections_are_not_shared_between_hosts(hook: Hook, different: dict) -> None:
    await hook.send()
    await hook.send(**different)
    assert len({seen.connection for seen in hook.seen()}) == 2


async def test_a_cancelled_request_closes_its_connection(hook: Hook) -> None:
    await hook.reply(Step())
    hook.plan(Step(hold=True), Step())
    call = asyncio.create_task(hook.send())
    await hook.arrived(2)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert hook.client.idle_count == 0
    await hook.send()
    assert [seen.connection for seen in hook.seen()][2] != hook.seen()[0].connection
    assert len(hook.seen()) == 3


async def test_bytes_on_an_idle_connection_close_it(hook: Hook) -> None:
    closed = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"hello")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        await told.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged")
        assert not await reader.read()
        writer.close()
        closed.set()

    told = asyncio.Event()
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    origin = Origin("localhost", server.sockets[0].getsockname()[1])
    await hook.send(origin=origin)
    told.set()
    await asyncio.wait_for(closed.wait(), 60)
    server.close()
    with pytest.raises(RequestFailed):
        await hook.send(origin=origin)


async def test_closing_the_client_ends_requests_under_way(hook: Hook) -> None:
    hook.plan(Step(hold=True))
    call = asyncio.create_task(hook.send())
    await hook.arrived()
    hook.client.close()
    with pytest.raises(RequestFailed):
        await call


async def test_no_form_of_failure_leaves_a_socket_open(hook: Hook) -> None:
    def sockets() -> int:
        names = os.listdir("/proc/self/fd")
        found = 0
        for name in names:
            try:
                found += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
            except OSError:
                pass
        return found

    before = sockets()
    for step in (Step(raw="x\r\n"), Step(raw="", then="reset"), Step(raw="", then="close")):
        await failure(hook, step)
    await hook.reply(Step())
    await failure(hook, Step(hold=True), timeout_s=SOON_S)
    await failure(hook, addresses=("127.0.0.9",))
    hook.plan(Step(hold=True))
    call = asyncio.create_task(hook.send())
    await hook.arrived(6)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    for _ in range(100):  # transports close their sockets in a later turn of the event loop
        if sockets() == before:
            break
        await asyncio.sleep(0.01)
    assert sockets() == before


async def test_the_environment_has_no_say(hook: Hook, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.9:1")
    client = HttpClient()
    request = ClientRequest(origin=Origin("localhost", hook.endpoint.ports["http"]))
    reply = await client.send(request, addresses=("127.0.0.1",), timeout_s=60)
    assert reply.status == 200
    client.close()
