import datetime

import pytest
from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.wire.aws import query, sigv4
from penstock.wire.aws.faults import Fault
from penstock.wire.aws.sigv4 import CredentialScope, SignedHeaders

GOOD = (
    "AWS4-HMAC-SHA256 Credential=AKID/20260101/eu-west-1/sqs/aws4_request, "
    "SignedHeaders=host;x-amz-date, Signature=ab12"
)


def test_a_header_made_by_the_sdk_is_read() -> None:
    request = AWSRequest("POST", "http://localhost:9324/", data=b"{}")
    SigV4Auth(Credentials("AKID", "secret"), "sqs", "ap-south-1").add_auth(request)
    scope = sigv4.parse(request.headers["Authorization"], {})
    assert scope is not None
    assert (scope.access_key, scope.region, scope.service) == ("AKID", "ap-south-1", "sqs")
    assert "host" in scope.signed_headers
    assert len(scope.signature) == 64
    assert datetime.datetime.strptime(scope.date, "%Y%m%d").replace(tzinfo=datetime.UTC)
    assert not scope.is_presigned


def test_a_presigned_url_made_by_the_sdk_is_read() -> None:
    request = AWSRequest("GET", "http://localhost:9324/?Action=ListQueues")
    SigV4QueryAuth(Credentials("AKID", "secret"), "sqs", "us-west-2").add_auth(request)
    scope = sigv4.parse(None, query.fields_of(request.url.partition("?")[2]))
    assert scope is not None
    assert (scope.access_key, scope.region, scope.service) == ("AKID", "us-west-2", "sqs")
    assert scope.is_presigned


def test_the_parts_of_a_header_may_stand_without_blanks() -> None:
    expected = CredentialScope(
        "AKID", "20260101", "eu-west-1", "sqs", SignedHeaders(("host", "x-amz-date")), "ab12"
    )
    assert sigv4.parse(GOOD, {}) == expected
    assert sigv4.parse(GOOD.replace(", ", ","), {}) == expected


def test_an_access_key_may_contain_a_slash() -> None:
    scope = sigv4.parse(GOOD.replace("AKID", "a/b"), {})
    assert scope is not None
    assert scope.access_key == "a/b"


@pytest.mark.parametrize("authorization", [None, "", "Basic abc", "Bearer abc"])
def test_a_request_without_a_signature_has_no_scope(authorization: str | None) -> None:
    assert sigv4.parse(authorization, {"Action": "ListQueues"}) is None


@pytest.mark.parametrize(
    "authorization",
    [
        "AWS4-HMAC-SHA256",
        "AWS4-HMAC-SHA256 ",
        GOOD.replace("Credential=", "Cred="),
        GOOD.replace("SignedHeaders=", "X="),
        GOOD.replace("Signature=", "X="),
        GOOD.replace("AWS4-HMAC-SHA256", "AWS4-ECDSA-P256-SHA256"),
        GOOD.replace("/aws4_request", ""),
        GOOD.replace("aws4_request", "aws3_request"),
        GOOD.replace("20260101", "yesterday"),
        GOOD.replace("eu-west-1", "../../etc"),
        GOOD.replace("eu-west-1", ""),
        GOOD.replace("AKID", ""),
        GOOD.replace("AKID", "A" * 200),
        GOOD.replace("host;", "h;" * 200),
    ],
)
def test_a_damaged_header_is_an_incomplete_signature(authorization: str) -> None:
    with pytest.raises(Fault) as caught:
        sigv4.parse(authorization, {})
    assert (caught.value.code, caught.value.status) == ("IncompleteSignature", 400)


@pytest.mark.parametrize("absent", ["Algorithm", "Credential", "SignedHeaders", "Signature"])
def test_a_presigned_url_needs_all_its_parts(absent: str) -> None:
    fields = {
        "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
        "X-Amz-Credential": "AKID/20260101/eu-west-1/sqs/aws4_request",
        "X-Amz-SignedHeaders": "host",
        "X-Amz-Signature": "ab",
    }
    del fields[f"X-Amz-{absent}"]
    with pytest.raises(Fault, match=f"X-Amz-{absent}"):
        sigv4.parse(None, fields)


@settings(max_examples=100)
@given(tail=st.text(max_size=60), cut=st.integers(0, len(GOOD)))
def test_arbitrary_headers_give_a_scope_or_an_incomplete_signature(tail: str, cut: int) -> None:
    header = "AWS4-HMAC-SHA256 " + GOOD[cut:] + tail
    try:
        found = type(sigv4.parse(header, {})).__name__
    except Fault as refusal:
        found = refusal.code
    assert found in ("CredentialScope", "IncompleteSignature")
