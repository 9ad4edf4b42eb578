"""Endpoints whose replies are meant to cost memory, time or sense: without end, drop by drop,
compressed, with a head that never ends, or not HTTP at all."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from typing import Any

import pytest
from tests.attacks.push_stage import seen
from tests.attacks.test_push import Webhooks, send_sqs
from tests.harness.client import RawClient
from tests.harness.endpoint import Endpoint, Step
from tests.harness.server import Server

from penstock.flow.verdicts import Failure

OK = "HTTP/1.1 200 OK\r\n"
BOMB = gzip.compress(bytes(50_000_000))
BOMB_REPLY = f"{OK}Content-Encoding: gzip\r\nContent-Length: {len(BOMB)}\r\n\r\n"
TRAILERS = "".join(f"x-{number}: 1\r\n" for number in range(10_000))
DELIVERED = ""

# The reply, and the reason that the tenant gets.
REPLIES = {
    "without end": (Step(filler_bytes=-1), DELIVERED),
    "drop by drop": (Step(filler_bytes=-1, pause_ms=100), Failure.TIMEOUT),
    "never": (Step(hold=True), Failure.TIMEOUT),
    "head without end": (Step(raw=OK + "x: y\r\n" * 100_000), Failure.BAD_REPLY),
    "one long header": (Step(raw=OK + "x: " + "y" * 200_000), Failure.BAD_REPLY),
    "interim replies": (Step(raw="HTTP/1.1 103 H\r\n\r\n" * 50_000), Failure.BAD_REPLY),
    "trailers": (
        Step(raw=f"{OK}Transfer-Encoding: chunked\r\n\r\n0\r\n{TRAILERS}\r\n"),
        Failure.BAD_REPLY,
    ),
    "not HTTP": (Step(raw="SSH-2.0-OpenSSH_9.6\r\n"), Failure.BAD_REPLY),
    "negative length": (Step(raw=f"{OK}Content-Length: -1\r\n\r\n"), Failure.BAD_REPLY),
    "cut off": (
        Step(raw=f"{OK}Content-Length: 9\r\n\r\nx", then="close"),
        Failure.CONNECTION_LOST,
    ),
    "compressed": (Step(raw=BOMB_REPLY + BOMB.decode("latin-1")), DELIVERED),
}


@pytest.mark.parametrize("which", REPLIES)
def test_a_hostile_reply_costs_one_short_request(
    open_server: Server,
    endpoint: Endpoint,
    bystander: RawClient,
    name: Callable[..., str],
    which: str,
) -> None:
    queue, (step, reason) = name(), REPLIES[which]
    send_sqs(open_server, "CreateQueue", QueueName=queue)
    endpoint.plan(f"/{queue}", step)
    before = open_server.rss_bytes()
    timeout_ms = 1_000 if reason == Failure.TIMEOUT else 60_000
    webhooks = Webhooks(open_server, queue)
    sent: Any = webhooks.test(endpoint.url(f"/{queue}"), timeout_ms=timeout_ms)
    assert (sent["is_delivered"], sent["reason"]) == (not reason, reason), sent
    if reason == Failure.TIMEOUT:  # the request itself was ended, not only the wait for it
        assert sent["duration_ms"] >= timeout_ms
    assert len(sent["body"]) <= 1_024
    assert open_server.rss_bytes() - before < 30_000_000
    (request,) = seen(endpoint, f"/{queue}")
    assert request.headers["accept-encoding"] == "identity"
