"""Text of clients that comes out again where people and machines read lines: logs, metrics,
listings. It can neither end a line, nor drive a terminal, nor make as many series as it likes."""

from __future__ import annotations

import json
import logging
import re
from urllib.parse import urlsplit

import pytest
from tests.attacks.frames import Wire
from tests.attacks.kit import send
from tests.harness.client import RawClient
from tests.harness.raw_http import RawConnection, json_request
from tests.harness.server import Server

from penstock.telemetry.logs import ConsoleFormatter, JsonFormatter

FORGED = '\n{"ts":"2026-01-01T00:00:00.000Z","level":"info","event":"all is well","node":"x"}\n'
NASTY = {
    "newline": "a\nb",
    "forged-line": FORGED,
    "carriage-return": "a\rb",
    "terminal": "a\x1b[31m\x1b]0;title\x07b",
    "terminal-in-one": "a\x9b31mb",
    "quote": 'a"} 1\npenstock_forged_total{x="',
    "backslash": "a\\",
    "nul": "a\0b",
    "separator": "a\u2028b",
    "reversed": "a\u202eb",
    "long": "x" * 30_000,
    "format": "%s%n{0.__class__}${jndi:ldap://x/y}",
}
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e]")
SERIES_MAX = 4_000
LINE_CHARS_MAX = 40_000


def metrics(server: Server) -> str:
    status, text, _ = send(urlsplit(server.admin_url).netloc, "GET", "/metrics", None, {})
    assert status == 200
    return text.decode()


@pytest.mark.parametrize("attack", NASTY)
def test_texts_of_clients_stay_what_they_are(
    open_server: Server, bystander: RawClient, attack: str
) -> None:
    text = NASTY[attack]
    header = text.replace("\r", "").replace("\n", "").replace("\0", "")
    header = CONTROL.sub("", header)[:8_000]
    request = json_request(
        "NoSuchOperation",
        json.dumps({"QueueName": text}).encode(),
        headers=f"User-Agent: {header}\r\nX-Forwarded-For: {header}\r\n".encode().decode("latin-1"),
    )
    for data in (request, request.replace(b"NoSuchOperation", b"CreateQueue")):
        with RawConnection(open_server.port) as connection:
            connection.send(data)
            assert connection.read_reply().statuses[0] == 400
    clipped = text[:10_000]
    with Wire(open_server, client_id=clipped) as wire:
        assert wire.ask("ApiVersions", 3, client_software_name=clipped,
                        client_software_version=clipped) is not None  # fmt: skip
        wire.ask("DescribeGroups", 5, groups=[clipped])
        wire.ask("FindCoordinator", 4, key_type=0, coordinator_keys=[clipped])
        wire.ask("OffsetFetch", 7, group_id=clipped, topics=[])
        wire.ask("InitProducerId", 4, transactional_id=clipped, transaction_timeout_ms=1_000)
        wire.ask("Metadata", 12, topics=None)
    assert_log_is_whole(open_server)
    shown = metrics(open_server)
    assert "penstock_forged_total" not in shown.replace('\\"', "")
    assert not CONTROL.search(shown)
    for line in shown.splitlines():
        assert line.startswith("#") or re.fullmatch(
            r'[a-z_:][a-z0-9_:]*(\{([a-z_]+="([^"\\]|\\.)*",?)*\})? \S+', line
        ), line


def assert_log_is_whole(server: Server) -> None:
    """One object a line, each with the keys that belong there and none that was forged."""
    for line in server.stderr.splitlines():
        assert not CONTROL.search(line), line[:300]
        found = json.loads(line)
        assert {"ts", "level", "event", "node"} <= found.keys()
        assert found["event"] != "all is well"
        assert len(line) < LINE_CHARS_MAX


def test_inventing_names_does_not_make_series(open_server: Server, bystander: RawClient) -> None:
    """Actions, topics, groups and clients that do not exist are counted as unknown, together."""
    before = len(metrics(open_server).splitlines())
    with RawConnection(open_server.port) as connection:
        for number in range(300):
            connection.send(json_request(f"Invented{number}", b"{}"))
            assert connection.read_reply().statuses == [400]
    with Wire(open_server) as wire:
        for number in range(300):
            wire.client_id = f"client-{number}"
            wire.ask("DescribeGroups", 5, groups=[f"group-{number}"])
    after = len(metrics(open_server).splitlines())
    assert after - before < 60
    assert after < SERIES_MAX


def test_groups_with_odd_names_are_shown_as_data(open_server: Server) -> None:
    """A member's own words come back in a listing, as they are and in their place."""
    odd = "a\x1b[31m\nb"
    with Wire(open_server, client_id=odd) as wire:
        joined = wire.ask(
            "ConsumerGroupHeartbeat",
            0,
            group_id="odd-words",
            member_id="",
            member_epoch=0,
            rebalance_timeout_ms=1_000,
            subscribed_topic_names=["no-such-topic"],
            topic_partitions=[],
        )
        assert joined.error_code == 0
        told = wire.ask("ConsumerGroupDescribe", 0, group_ids=["odd-words"])
        (member,) = told.groups[0].members
        assert member.client_id == odd
    assert_log_is_whole(open_server)


CREDENTIALS = {
    "signature": "GET /?X-Amz-Signature=5ec4e7&a=b",
    "header": "AWS4-HMAC-SHA256 Credential=k/20260101/us-east-1/sqs/aws4_request, Signature=5ec4e7",
    "bearer": "authorization: Bearer 5ec4e7 was refused",
    "basic": "Basic 5ec4e7",
    "session": "X-Amz-Security-Token: 5ec4e7",
    "password": "cannot log in with password=5ec4e7, try again",
}


@pytest.mark.parametrize("attack", CREDENTIALS)
@pytest.mark.parametrize("formatter", [JsonFormatter("n"), ConsoleFormatter()])
def test_a_credential_inside_a_logged_text_is_withheld(
    attack: str, formatter: logging.Formatter
) -> None:
    """As when the error of a library quotes a header."""
    record = logging.makeLogRecord({"msg": CREDENTIALS[attack], "why": CREDENTIALS[attack]})
    shown = formatter.format(record)
    assert "5ec4e7" not in shown
    assert "[withheld]" in shown


@pytest.mark.parametrize("attack", NASTY)
@pytest.mark.parametrize("formatter", [JsonFormatter("n"), ConsoleFormatter()])
def test_a_logged_text_can_neither_end_its_line_nor_drive_a_terminal(
    attack: str, formatter: logging.Formatter
) -> None:
    text = NASTY[attack]
    shown = formatter.format(logging.makeLogRecord({"msg": text, "group": text}))
    assert not CONTROL.search(shown)
    assert len(shown.splitlines()) == 1
    assert len(shown) < 10_000
