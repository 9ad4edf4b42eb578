"""Signatures as the SDK makes them are good; whatever differs from what was signed is not."""

import datetime
import hashlib
import hmac
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlsplit

import botocore.auth
import msgspec
import pytest
from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.net.http.exchange import HttpRequest
from penstock.wire.aws import query, sigv4
from penstock.wire.aws.faults import Fault
from penstock.wire.aws.sigv4 import SignedHeaders

SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
NOW = datetime.datetime(2026, 3, 1, 12, 0, 0, tzinfo=datetime.UTC)
NOW_MS = int(NOW.timestamp() * 1_000)
HOST = "queues.test:9324"
BODY = b'{"QueueUrl":"http://queues.test:9324/000000000000/q","MessageBody":"hello"}'
JSON_HEADERS = {
    "Content-Type": "application/x-amz-json-1.0",
    "X-Amz-Target": "AmazonSQS.SendMessage",
    "User-Agent": "Boto3/1.43",
    "amz-sdk-invocation-id": "b2b9a4c6",
}


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[datetime.datetime], None]:
    def set_to(now: datetime.datetime) -> None:
        monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda: now)

    set_to(NOW)
    return set_to


def received(prepared: Any) -> HttpRequest:
    """The request as the listener would hand it over."""
    parts = urlsplit(prepared.url)
    headers = {name.lower(): value for name, value in prepared.headers.items()}
    headers.setdefault("host", parts.netloc)
    body = prepared.body or b""
    return HttpRequest(
        prepared.method,
        parts.path or "/",
        parts.query,
        {k: v if isinstance(v, str) else v.decode() for k, v in headers.items()},
        body if isinstance(body, bytes) else body.encode(),
        "127.0.0.1",
        "r",
    )


def by_header(
    path: str = "/",
    *,
    method: str = "POST",
    body: bytes = BODY,
    headers: dict[str, str] | None = None,
    service: str = "sqs",
    secret: str = SECRET,
    token: str | None = None,
) -> HttpRequest:
    request = AWSRequest(
        method, f"http://{HOST}{path}", headers=JSON_HEADERS if headers is None else headers
    )
    request.data = body
    SigV4Auth(Credentials("AKID", secret, token), service, "eu-west-1").add_auth(request)
    return received(request.prepare())


def presigned(
    path: str = "/?Action=ListQueues&Version=2012-11-05",
    *,
    method: str = "GET",
    expires: int = 3_600,
    token: str | None = None,
) -> HttpRequest:
    request = AWSRequest(method, f"http://{HOST}{path}")
    credentials = Credentials("AKID", SECRET, token)
    SigV4QueryAuth(credentials, "sqs", "eu-west-1", expires=expires).add_auth(request)
    return received(request.prepare())


def scope_of(request: HttpRequest) -> sigv4.CredentialScope:
    fields = query.fields_of(request.query)
    scope = sigv4.parse(request.headers.get("authorization"), fields)
    assert scope is not None
    return scope


def verify(request: HttpRequest, *, now_ms: int = NOW_MS, service: str = "sqs") -> bool:
    scope = scope_of(request)
    timestamp = sigv4.check(request, scope, service=service, now_ms=now_ms)
    key = sigv4.signing_key(SECRET.encode(), scope)
    return sigv4.is_genuine(request, scope, timestamp=timestamp, key=key)


def refusal(request: HttpRequest, **how: Any) -> Fault:
    with pytest.raises(Fault) as caught:
        verify(request, **how)
    return caught.value


def altered(request: HttpRequest, **changes: Any) -> HttpRequest:
    return msgspec.structs.replace(request, **changes)


# ── What clients send ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/000000000000/q",
        "/000000000000/topic:group",
        "/000000000000/topic%3Agroup%2525",
        "/queue/eu-west-1/000000000000/q/",
        "//000000000000//q",
        "/a/./b/../000000000000/q",
        "/caf%C3%A9",
    ],
)
def test_what_the_sdk_signs_is_genuine(path: str) -> None:
    assert verify(by_header(path))
    assert not verify(by_header(path, secret="another"))


def test_a_query_string_is_signed_in_sorted_order_whatever_order_it_has() -> None:
    fields = [("Action", "SendMessage"), ("MessageBody", "a b+c/ü~%"), ("Empty", "")]
    text = "&".join(f"{name}={quote(value, safe='-_.~')}" for name, value in fields)
    assert verify(by_header(f"/000000000000/q?{text}", method="GET", body=b"", headers={}))
    assert verify(presigned(f"/000000000000/q?{text}"))


def test_sts_is_signed_for_sts() -> None:
    body = b"Action=GetCallerIdentity&Version=2011-06-15"
    form = {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"}
    request = by_header(body=body, headers=form, service="sts")
    assert verify(request, service="sts")
    assert "correct service: 'sqs'" in refusal(request).message


def test_a_presigned_url_may_be_posted_too() -> None:
    assert verify(presigned(method="POST"))


def test_a_date_header_will_do() -> None:
    headers = {"Date": "Sun, 01 Mar 2026 12:00:00 GMT", **JSON_HEADERS}
    request = by_header(headers=headers)
    assert "x-amz-date" not in request.headers
    assert verify(request)


def test_blanks_in_headers_are_signed_as_one() -> None:
    request = by_header(headers={**JSON_HEADERS, "X-Note": "a   b \t c"})
    assert verify(request)
    spaced = {**request.headers, "x-note": "  a b    c "}
    assert verify(altered(request, headers=spaced))


def test_the_header_of_several_values_is_signed_with_commas() -> None:
    twice = by_header(headers={**JSON_HEADERS, "X-Note": "a,b"})
    assert verify(twice)  # the listener joins what came twice in this form


def test_a_hash_of_the_body_in_a_header_is_fine_when_it_is_true() -> None:
    digest = hashlib.sha256(BODY).hexdigest()
    assert verify(by_header(headers={**JSON_HEADERS, "X-Amz-Content-SHA256": digest}))


# ── What others make of it ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("claim", ["UNSIGNED-PAYLOAD", "0" * 64, ""])
def test_the_body_is_what_counts_and_not_what_a_header_says_of_it(claim: str) -> None:
    assert not verify(by_header(headers={**JSON_HEADERS, "X-Amz-Content-SHA256": claim}))
    request = by_header()
    added = {**request.headers, "x-amz-content-sha256": claim}
    assert not verify(altered(request, headers=added))


@pytest.mark.parametrize(
    "changes",
    [
        {"body": BODY.replace(b"hello", b"hullo")},
        {"body": b""},
        {"method": "PUT"},
        {"path": "/000000000000/other"},
        {"path": "/000000000000%2Fq"},
        {"path": "/000000000000/q/"},
        {"query": "Action=PurgeQueue"},
    ],
)
def test_a_request_that_was_changed_is_not_genuine(changes: dict[str, Any]) -> None:
    request = by_header("/000000000000/q")
    assert verify(request)
    assert not verify(altered(request, **changes))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-amz-target", "AmazonSQS.DeleteQueue"),
        ("host", "elsewhere.test"),
        ("content-type", "text/plain"),
        ("amz-sdk-invocation-id", "b2b9a4c6,b2b9a4c6"),
        ("amz-sdk-invocation-id", None),
    ],
)
def test_a_signed_header_that_was_changed_or_dropped_is_noticed(
    name: str, value: str | None
) -> None:
    request = by_header()
    headers = dict(request.headers)
    del headers[name]
    if value is not None:
        headers[name] = value
    assert not verify(altered(request, headers=headers))


def test_a_header_that_is_not_signed_may_change() -> None:
    request = by_header()
    assert verify(altered(request, headers={**request.headers, "user-agent": "a proxy"}))


@pytest.mark.parametrize("dropped", ["host", "x-amz-target"])
def test_what_decides_must_be_signed(dropped: str) -> None:
    request = by_header()
    authorization = request.headers["authorization"].replace(f"{dropped};", "")
    authorization = authorization.replace(f";{dropped},", ",")
    headers = {**request.headers, "authorization": authorization}
    found = refusal(altered(request, headers=headers))
    assert (found.code, found.status) == ("SignatureDoesNotMatch", 403)
    assert "must be a 'SignedHeader'" in found.message


def test_an_operation_cannot_be_slipped_under_a_form() -> None:
    form = by_header(headers={"Content-Type": "application/x-www-form-urlencoded"}, body=b"A=b")
    headers = {**form.headers, "x-amz-target": "AmazonSQS.PurgeQueue"}
    assert refusal(altered(form, headers=headers)).code == "SignatureDoesNotMatch"


def test_a_parameter_given_twice_is_refused_since_its_order_is_not_signed() -> None:
    found = refusal(by_header("/?Action=ListQueues&Action=PurgeQueue", method="GET", body=b""))
    assert (found.code, found.status) == ("SignatureDoesNotMatch", 403)


def test_a_plus_sign_cannot_be_exchanged_for_a_plus() -> None:
    request = presigned("/?Action=SendMessage&MessageBody=1%2B1")
    assert verify(request)
    assert not verify(altered(request, query=request.query.replace("%2B", "+")))


@pytest.mark.parametrize("extra", ["X-Amz-Expires=604800", "Action=PurgeQueue"])
def test_a_presigned_url_cannot_be_extended(extra: str) -> None:
    request = presigned("/?Version=2012-11-05")
    name = extra.partition("=")[0]
    pairs = [pair for pair in request.query.split("&") if not pair.startswith(name)]
    assert not verify(altered(request, query="&".join([*pairs, extra])))


@pytest.mark.parametrize("signature", ["", "0" * 64, "ü", "not hex"])
def test_any_other_signature_is_refused(signature: str) -> None:
    request = by_header()
    head = request.headers["authorization"].rpartition("=")[0]
    headers = {**request.headers, "authorization": f"{head}={signature}"}
    assert not verify(altered(request, headers=headers))


def test_two_ways_of_signing_in_one_request_are_refused() -> None:
    one, other = presigned(), by_header()
    with_header = {**one.headers, "authorization": other.headers["authorization"]}
    scope = scope_of(one)
    for request, which in (
        (altered(one, headers=with_header), scope),
        (altered(one, headers=with_header), scope_of(other)),
        (altered(one, headers={**one.headers, "authorization": "Basic eDp5"}), scope),
    ):
        with pytest.raises(Fault) as caught:
            sigv4.check(request, which, service="sqs", now_ms=NOW_MS)
        assert (caught.value.code, caught.value.status) == ("IncompleteSignature", 400)


def test_temporary_credentials_are_unknown_here() -> None:
    for request in (by_header(token="t"), presigned(token="t")):
        assert refusal(request).code == "InvalidClientTokenId"


# ── When ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("minutes", [-15, -1, 0, 1, 15])
def test_a_clock_may_be_a_quarter_of_an_hour_off(minutes: int) -> None:
    assert verify(by_header(), now_ms=NOW_MS + minutes * 60_000)


def test_an_old_signature_is_expired() -> None:
    found = refusal(by_header(), now_ms=NOW_MS + 16 * 60_000)
    assert (found.code, found.shape, found.status) == (
        "SignatureDoesNotMatch",
        "InvalidSignatureException",
        403,
    )
    assert found.message == (
        "Signature expired: 20260301T120000Z is now earlier than 20260301T120100Z "
        "(20260301T121600Z - 15 min.)"
    )


def test_a_signature_from_the_future_is_not_yet_current() -> None:
    found = refusal(by_header(), now_ms=NOW_MS - 16 * 60_000)
    assert found.message == (
        "Signature not yet current: 20260301T120000Z is still later than 20260301T115900Z "
        "(20260301T114400Z + 15 min.)"
    )


@pytest.mark.parametrize(
    ("expires", "after_s", "is_good"),
    [(60, 59, True), (60, 61, False), (604_800, 604_799, True), (3_600, -901, False)],
)
def test_a_presigned_url_is_good_for_as_long_as_it_says(
    expires: int, after_s: int, is_good: bool
) -> None:
    request = presigned(expires=expires)
    now_ms = NOW_MS + after_s * 1_000
    if is_good:
        assert verify(request, now_ms=now_ms)
    else:
        found = refusal(request, now_ms=now_ms)
        assert (found.code, found.status) == ("SignatureDoesNotMatch", 403)


@pytest.mark.parametrize("expires", ["604801", "-1", "soon", "9" * 40])
def test_no_url_is_good_for_more_than_a_week(expires: str) -> None:
    request = presigned()
    text = request.query.replace("X-Amz-Expires=3600", f"X-Amz-Expires={expires}")
    found = refusal(altered(request, query=text))
    assert (found.code, found.status) == ("IncompleteSignature", 400)


def test_the_day_of_the_scope_is_that_of_the_request() -> None:
    request = by_header()
    headers = {**request.headers, "x-amz-date": "20260302T000100Z"}
    found = refusal(altered(request, headers=headers), now_ms=NOW_MS + 43_200_000)
    assert "'20260301' != '20260302'" in found.message
    assert found.code == "SignatureDoesNotMatch"


@pytest.mark.parametrize(
    "date",
    ["", "20260301", "20260301T120000", "20261301T120000Z", "２０２６0301T120000Z", "x" * 9_999],
)
def test_a_date_that_is_none_is_an_incomplete_signature(date: str) -> None:
    request = by_header()
    found = refusal(altered(request, headers={**request.headers, "x-amz-date": date}))
    assert (found.code, found.status) == ("IncompleteSignature", 400)
    assert len(found.message) < 200
    without = {k: v for k, v in request.headers.items() if k != "x-amz-date"}
    assert refusal(altered(request, headers=without)).code == "IncompleteSignature"
    assert refusal(altered(request, headers={**without, "date": date})).code == (
        "IncompleteSignature"
    )


# ── Anything at all ──────────────────────────────────────────────────────────────────────────

texts = st.text(alphabet=st.characters(min_codepoint=1, max_codepoint=255), max_size=30)


@settings(max_examples=100, deadline=None)
@given(path=texts, text=texts, header=texts, body=st.binary(max_size=20))
def test_no_request_makes_verification_fail_otherwise(
    path: str, text: str, header: str, body: bytes
) -> None:
    scope = sigv4.CredentialScope(
        "AKID", "20260301", "eu-west-1", "sqs", SignedHeaders(("host", "x-any")), "0" * 64
    )
    headers = {"host": HOST, "x-amz-date": "20260301T120000Z", "x-any": header}
    request = HttpRequest("POST", f"/{path}", text, headers, body, "", "r")
    key = sigv4.signing_key(b"k", scope)
    try:
        timestamp = sigv4.check(request, scope, service="sqs", now_ms=NOW_MS)
        found = 200 if sigv4.is_genuine(request, scope, timestamp=timestamp, key=key) else 403
    except Fault as refused:
        found = refused.status
    assert found in (400, 403)


@settings(max_examples=60, deadline=None)
@given(
    headers=st.dictionaries(texts, texts, max_size=6),
    signed=st.lists(texts | st.sampled_from(("host", "%s", "a%")), min_size=1, max_size=6),
)
def test_the_lines_that_are_signed_are_those_of_the_specification(
    headers: dict[str, str], signed: list[str]
) -> None:
    def trimmed(value: str) -> str:
        return re.sub(" +", " ", value.replace("\t", " ")).strip(" ")

    lines = [f"{name}:{trimmed(headers.get(name, ''))}\n" for name in signed]
    expected = "".join(lines) + "\n" + ";".join(signed) + "\n"
    assert SignedHeaders(signed).canonical(headers) == expected


@settings(max_examples=60, deadline=None)
@given(secret=st.binary(max_size=80), timestamp=texts, digest=texts)
def test_a_key_that_is_kept_ready_signs_as_hmac_does(
    secret: bytes, timestamp: str, digest: str
) -> None:
    scope = scope_of(by_header("/"))
    key = b"AWS4" + secret
    for part in ("20260301", "eu-west-1", "sqs", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    text = f"AWS4-HMAC-SHA256\n{timestamp}\n20260301/eu-west-1/sqs/aws4_request\n{digest}"
    ready = sigv4.signing_key(secret, scope)
    for _ in range(2):  # it is as it was
        assert ready.sign(timestamp, digest) == hmac.digest(key, text.encode(), "sha256").hex()


@pytest.mark.parametrize("signature", ["", "0" * 64, "ü" * 64, "\udcff", "0" * 100_000])
def test_a_signature_of_any_text_is_refused_and_breaks_nothing(signature: str) -> None:
    request = by_header("/")
    scope = msgspec.structs.replace(scope_of(request), signature=signature)
    key = sigv4.signing_key(SECRET.encode(), scope)
    assert not sigv4.is_genuine(request, scope, timestamp="20260301T120000Z", key=key)


names = st.text(alphabet="abcXYZ019-_.~ +/%&=üé", min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(fields=st.dictionaries(names, names, max_size=5), body=st.binary(max_size=30))
def test_whatever_is_signed_properly_is_genuine(fields: dict[str, str], body: bytes) -> None:
    text = "&".join(f"{quote(k, safe='-_.~')}={quote(v, safe='-_.~')}" for k, v in fields.items())
    assert verify(by_header(f"/?{text}" if text else "/", body=body))
