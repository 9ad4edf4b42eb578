"""Requests that were signed for something else: by another key, at another time, for another place,
or changed on their way. Sent byte by byte, since no client library would."""

from __future__ import annotations

import datetime
import hashlib
import hmac
import json
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch
from urllib.parse import urlsplit

import botocore.auth
import pytest
from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from tests.attacks.kit import REGION, ROOT, exchange, send, signed, throw
from tests.harness.raw_http import json_request
from tests.harness.server import Server

Lines = list[tuple[str, str]]
BODY = b'{"QueueName":"by-hand"}'


def kind_of(answer: bytes) -> str:
    return str(json.loads(answer)["__type"]).rpartition("#")[2]


def changed(lines: Lines, **values: str) -> Lines:
    named = {name.replace("_", "-").lower(): value for name, value in values.items()}
    return [(name, named.get(name.lower(), value)) for name, value in lines]


def without(lines: Lines, *names: str) -> Lines:
    return [(name, value) for name, value in lines if name.lower() not in names]


def of(lines: Lines, wanted: str) -> str:
    return next(value for name, value in lines if name.lower() == wanted)


def at(minutes: float) -> Any:
    then = datetime.datetime.now(datetime.UTC) + datetime.timedelta(minutes=minutes)
    return patch.object(botocore.auth, "get_current_datetime", lambda: then)


def test_the_request_that_is_spoilt_below_is_good_as_it_is(locked: Server) -> None:
    assert exchange(locked, signed(locked, "CreateQueue", BODY), BODY)[0] == 200


# ── S1: by whom, when, where ─────────────────────────────────────────────────────────────────
def _old(server: Server) -> Lines:
    with at(-16):
        return signed(server, "CreateQueue", BODY)


def _early(server: Server) -> Lines:
    with at(16):
        return signed(server, "CreateQueue", BODY)


def _other_day(server: Server) -> Lines:
    lines = signed(server, "CreateQueue", BODY)
    day = of(lines, "x-amz-date")[:8]
    other = str(int(day) - 1)
    return changed(
        lines, authorization=of(lines, "authorization").replace(f"/{day}/", f"/{other}/")
    )


def _by(key: str, secret: str) -> Callable[[Server], Lines]:
    return lambda server: signed(server, "CreateQueue", BODY, credentials=Credentials(key, secret))


WRONG: dict[str, tuple[Callable[[Server], Lines], str]] = {
    "sixteen-minutes-old": (_old, "InvalidSignatureException"),
    "sixteen-minutes-early": (_early, "InvalidSignatureException"),
    "day-of-another-scope": (_other_day, "InvalidSignatureException"),
    "another-service": (
        lambda server: signed(server, "CreateQueue", BODY, service="s3"),
        "InvalidSignatureException",
    ),
    "another-secret": (_by(str(ROOT.access_key), "guessed"), "InvalidSignatureException"),
    "no-secret": (_by(str(ROOT.access_key), ""), "InvalidSignatureException"),
    "unknown-key": (
        _by("PENSTOCKNOBODYSKEY01", str(ROOT.secret_key)),
        "UnrecognizedClientException",
    ),
    "account-for-a-key": (
        _by("000000000000", str(ROOT.secret_key)),
        "UnrecognizedClientException",
    ),
}


@pytest.mark.parametrize("attack", WRONG)
def test_a_signature_by_another_or_for_another_time_or_place_is_refused(
    locked: Server, attack: str
) -> None:
    make, kind = WRONG[attack]
    status, answer = exchange(locked, make(locked), BODY)
    assert (status, kind_of(answer)) == (403, kind), answer


def test_a_region_other_than_that_of_the_host_is_refused(locked: Server) -> None:
    headers = {"Host": "sqs.eu-west-1.amazonaws.com"}
    lines = signed(locked, "CreateQueue", BODY, headers=headers)
    status, answer = exchange(locked, lines, BODY)
    assert (status, kind_of(answer)) == (403, "InvalidSignatureException")


def test_an_unknown_key_and_a_bad_signature_take_the_same_time(locked: Server) -> None:
    """The best of many interleaved requests: what else runs only ever adds. A difference that could
    be measured from outside would be many times what is allowed here."""
    host = urlsplit(locked.url).netloc
    makers = (WRONG["unknown-key"][0], WRONG["another-secret"][0])
    took: tuple[list[float], list[float]] = ([], [])
    for _ in range(60):
        for make, times in zip(makers, took, strict=True):
            lines = dict(make(locked))
            began = time.perf_counter()
            assert send(host, "POST", "/", BODY, lines)[0] == 403
            times.append(time.perf_counter() - began)
    unknown, bad = (min(times) for times in took)
    assert abs(unknown - bad) < 0.001, f"{unknown * 1e6:.0f} and {bad * 1e6:.0f} microseconds"


# ── S2: changed on its way ───────────────────────────────────────────────────────────────────
TAMPERED: dict[str, Callable[[Lines], Lines]] = {
    "another-target": lambda lines: changed(lines, x_amz_target="AmazonSQS.ListQueues"),
    "another-host": lambda lines: changed(lines, host="evil.example"),
    "another-date": lambda lines: changed(
        lines, x_amz_date=of(lines, "x-amz-date")[:-3] + "59Z"
        if not of(lines, "x-amz-date").endswith("59Z") else of(lines, "x-amz-date")[:-3] + "58Z"
    ),
    "signed-header-changed": lambda lines: changed(lines, x_note="two"),
    "signed-header-dropped": lambda lines: without(lines, "x-note"),
    "signed-header-doubled": lambda lines: [*lines, ("X-Note", "one")],
    "host-not-signed": lambda lines: changed(
        lines, authorization=of(lines, "authorization").replace("host;", "")
    ),
    "target-not-signed": lambda lines: changed(
        lines, authorization=of(lines, "authorization").replace(";x-amz-target", "")
    ),
    "body-said-unsigned": lambda lines: [*lines, ("X-Amz-Content-Sha256", "UNSIGNED-PAYLOAD")],
    "last-digit": lambda lines: changed(
        lines,
        authorization=of(lines, "authorization")[:-1]
        + ("0" if of(lines, "authorization")[-1] != "0" else "1"),
    ),
    "half-a-signature": lambda lines: changed(
        lines, authorization=of(lines, "authorization")[:-32]
    ),
}  # fmt: skip


@pytest.mark.parametrize("attack", TAMPERED)
def test_a_request_that_was_changed_on_its_way_is_refused(locked: Server, attack: str) -> None:
    lines = signed(locked, "CreateQueue", BODY, headers={"X-Note": "one"})
    status, answer = exchange(locked, TAMPERED[attack](lines), BODY)
    assert status == 403, answer
    assert kind_of(answer) == "InvalidSignatureException", answer


# ── signed by the right key, over too little ─────────────────────────────────────────────────
def signed_by_hand(
    server: Server, body: bytes, *, left_out: tuple[str, ...] = (), scope_day: str = ""
) -> Lines:
    """The whole of Signature Version 4 in a few lines, so that it can be done badly on purpose."""
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
    day = scope_day or stamp[:8]
    headers = {
        "content-type": "application/x-amz-json-1.0",
        "host": urlsplit(server.url).netloc,
        "x-amz-date": stamp,
        "x-amz-target": "AmazonSQS.CreateQueue",
    }
    names = [name for name in sorted(headers) if name not in left_out]
    covered = "".join(f"{name}:{headers[name]}\n" for name in names)
    digest = hashlib.sha256(body).hexdigest()
    canonical = f"POST\n/\n\n{covered}\n{';'.join(names)}\n{digest}"
    scope = f"{day}/{REGION}/sqs/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    key = b"AWS4" + str(ROOT.secret_key).encode()
    for part in (*scope.split("/"), text):
        key = hmac.digest(key, part.encode(), "sha256")
    authorization = (
        f"AWS4-HMAC-SHA256 Credential={ROOT.access_key}/{scope}, "
        f"SignedHeaders={';'.join(names)}, Signature={key.hex()}"
    )
    return [*headers.items(), ("Authorization", authorization)]


def test_a_signature_over_too_little_is_refused(locked: Server) -> None:
    """Genuine, every one; but what it leaves open could be changed on the way."""
    assert exchange(locked, signed_by_hand(locked, BODY), BODY)[0] == 200
    yesterday = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    for lines in (
        signed_by_hand(locked, BODY, left_out=("host",)),
        signed_by_hand(locked, BODY, left_out=("x-amz-target",)),
        signed_by_hand(locked, BODY, left_out=("host", "x-amz-target", "content-type")),
        signed_by_hand(locked, BODY, scope_day=yesterday.strftime("%Y%m%d")),
    ):
        status, answer = exchange(locked, lines, BODY)
        assert (status, kind_of(answer)) == (403, "InvalidSignatureException"), lines


def test_another_body_is_refused(locked: Server) -> None:
    lines = signed(locked, "CreateQueue", BODY)
    for body in (BODY.replace(b"by", b"my"), BODY + b" ", b"{}"):
        assert exchange(locked, lines, body)[0] == 403


PATHS = ("/%2F", "/%2f", "/%2e", "/x", "/000000000000/q", "/?a=b", "/%00")


@pytest.mark.parametrize("path", PATHS)
def test_another_path_is_refused(locked: Server, path: str) -> None:
    status, answer = exchange(locked, signed(locked, "CreateQueue", BODY), BODY, path=path)
    assert (status, kind_of(answer)) == (403, "InvalidSignatureException"), answer


# SDKs sign a path with its dots and empty segments resolved, so these are all signed alike. They
# must not be read as the path of another queue than the one that was signed.
DETOURS = (
    "/{account}/{victim}/../{other}",
    "/{account}/{victim}/%2e%2e/{other}",
    "/{account}/./{other}",
    "//{account}//{other}",
    "/{account}%2F{victim}/../{account}/{other}",
    "/{account}/{victim}/x/../../{other}",
    "/x/../{account}/{other}",
)


@pytest.mark.parametrize("detour", DETOURS)
def test_a_path_with_a_detour_never_leads_to_another_queue(
    locked: Server, root: Any, name: Callable[..., str], detour: str
) -> None:
    victim, other = name(), name()
    url = root.create_queue(QueueName=victim)["QueueUrl"]
    account = urlsplit(url).path.split("/")[1]
    root.create_queue(QueueName=other)
    body = b"Action=SendMessage&Version=2012-11-05&MessageBody=strayed"
    host = urlsplit(locked.url).netloc
    headers = {"Host": host, "Content-Type": "application/x-www-form-urlencoded"}
    request = AWSRequest("POST", f"http://{host}/{account}/{other}", headers=headers, data=body)
    SigV4Auth(ROOT, "sqs", REGION).add_auth(request)
    lines = list(request.headers.items())
    path = detour.format(account=account, victim=victim, other=other)
    status, answer = exchange(locked, lines, body, path=path)
    assert status in (200, 400, 403, 404), answer
    assert "Messages" not in root.receive_message(QueueUrl=url)


DOUBLED = ("Authorization", "X-Amz-Date", "X-Amz-Target", "Host", "X-Amz-Security-Token")


@pytest.mark.parametrize("header", DOUBLED)
def test_a_header_that_decides_may_not_come_twice(locked: Server, header: str) -> None:
    lines = signed(locked, "CreateQueue", BODY, headers={"X-Amz-Security-Token": "t"})
    again = [*lines, (header, of(lines, header.lower()))]
    head = "".join(f"{name}: {value}\r\n" for name, value in again)
    text = f"POST / HTTP/1.1\r\n{head}Content-Length: {len(BODY)}\r\n\r\n"
    reply = throw(locked.port, text.encode() + BODY)
    assert (reply.statuses, reply.is_closed) == ([400], True)


# ── S3: presigned ────────────────────────────────────────────────────────────────────────────
def presigned(server: Server, *, expires: int = 60, query: str = "Action=ListQueues") -> str:
    request = AWSRequest("GET", f"{server.url}/?{query}&Version=2012-11-05")
    SigV4QueryAuth(ROOT, "sqs", REGION, expires=expires).add_auth(request)
    return f"/?{urlsplit(str(request.url)).query}"


def get(server: Server, path: str, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
    return send(urlsplit(server.url).netloc, "GET", path, None, headers or {})[:2]


def test_a_presigned_url_ends_and_is_good_for_a_week_at_most(locked: Server) -> None:
    assert get(locked, presigned(locked))[0] == 200
    assert get(locked, presigned(locked, expires=604_800))[0] == 200
    status, text = get(locked, presigned(locked, expires=604_801))
    assert (status, b"IncompleteSignature" in text) == (400, True)
    with at(-2):
        ended = presigned(locked, expires=60)
    status, text = get(locked, ended)
    assert (status, b"Signature expired" in text) == (403, True)
    assert get(locked, ended.replace("X-Amz-Expires=60", "X-Amz-Expires=600"))[0] == 403


def test_a_query_in_another_order_is_the_same_and_with_another_meaning_is_not(
    locked: Server,
) -> None:
    path = presigned(locked, query="Action=ListQueues&QueueNamePrefix=a%20b%2Bc")
    parts = path[2:].split("&")
    assert get(locked, "/?" + "&".join(reversed(parts)))[0] == 200
    assert get(locked, path.replace("a%20b", "a+b"))[0] == 200, "both spell a blank"
    for old, new in (("b%2Bc", "b+c"), ("b%2Bc", "b%20c"), ("a%20b", "a%2520b"), ("a%20", "A%20")):
        assert get(locked, path.replace(old, new))[0] == 403, new
    assert get(locked, path + "&QueueNamePrefix=other")[0] in (400, 403)
    assert get(locked, path + "&MaxResults=1")[0] == 403


def test_two_signatures_in_one_request_are_refused(locked: Server) -> None:
    path = presigned(locked)
    lines = dict(signed(locked, "ListQueues", b"", path=path))
    status, text = get(locked, path, lines)
    assert (status, b"IncompleteSignature" in text) == (400, True)


# ── S4: replay ───────────────────────────────────────────────────────────────────────────────
def test_what_was_captured_can_be_repeated_and_a_fifo_queue_takes_it_once(
    locked: Server, root: Any, name: Callable[..., str]
) -> None:
    """A signature has no memory: whoever reads the wire can say the same again for a quarter of an
    hour. That is what TLS is for; a deduplication id makes a repeated send harmless."""
    fifo = {"FifoQueue": "true"}
    url = root.create_queue(QueueName=name(".fifo"), Attributes=fifo)["QueueUrl"]
    body = json.dumps(
        {
            "QueueUrl": url,
            "MessageBody": "pay",
            "MessageGroupId": "g",
            "MessageDeduplicationId": "once",
        }
    ).encode()
    lines = signed(locked, "SendMessage", body)
    answers = {exchange(locked, lines, body)[1] for _ in range(3)}
    assert len({json.loads(answer)["MessageId"] for answer in answers}) == 1
    got = root.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
    assert [message["Body"] for message in got] == ["pay"]


# ── S5: nobody ───────────────────────────────────────────────────────────────────────────────
OPERATIONS = ("ListQueues", "CreateQueue", "SendMessage", "ReceiveMessage", "PurgeQueue")


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_unsigned_call_is_refused(locked: Server, operation: str) -> None:
    reply = throw(locked.port, json_request(operation, b"{}", headers="Connection: close\r\n"))
    assert reply.statuses == [403]
    assert b"MissingAuthenticationToken" in reply.data


HALF = (
    "",
    "AWS4-HMAC-SHA256",
    "AWS4-HMAC-SHA256 Credential=x",
    "AWS4-HMAC-SHA256 Credential=a/b/c/d/e, SignedHeaders=host, Signature=0",
    "AWS4-ECDSA-P256-SHA256 Credential=a/20260101/us-east-1/sqs/aws4_request",
    "Basic cm9vdDpyb290",
    "Bearer x",
)


@pytest.mark.parametrize("header", HALF)
def test_half_a_signature_is_none(locked: Server, header: str) -> None:
    request = json_request(
        "ListQueues", b"{}", headers=f"Authorization: {header}\r\nConnection: close\r\n"
    )
    assert throw(locked.port, request).statuses[0] in (400, 403)


def test_a_clean_slate_is_not_for_strangers(locked: Server) -> None:
    host = urlsplit(locked.url).netloc
    for path in ("/_penstock/reset", "/moto-api/reset", "/_penstock/reset/"):
        assert send(host, "POST", path, b"", {})[0] == 403
