"""The connection: kept alive, opened again, given up on in time; and who signs."""

import socket
import threading

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotoCredentials
from tests.unit.cli.conftest import Endpoint

from penstock.cli.clients.contexts import Settings
from penstock.cli.clients.http import Admin, Connection, Sqs, as_seen_from
from penstock.cli.terminal.failure import ExitCode, Failure
from penstock.wire.aws.signer import Credentials, Signer


def test_calls_share_one_connection(endpoint: Endpoint) -> None:
    endpoint.actions["ListQueues"] = {}
    sqs = Sqs(endpoint.url, Settings(timeout_s=5))
    for _ in range(3):
        assert list(sqs.queue_names()) == []
    sqs.close()
    assert endpoint.connections == 1


def test_a_connection_closed_while_idle_is_opened_again(endpoint: Endpoint) -> None:
    endpoint.actions["ListQueues"] = {}
    endpoint.is_closing_idle = True
    sqs = Sqs(endpoint.url, Settings(timeout_s=5))
    for _ in range(3):
        assert list(sqs.queue_names()) == []
    sqs.close()
    assert endpoint.connections == 3


def test_a_request_whose_reply_is_lost_is_repeated_with_its_token(endpoint: Endpoint) -> None:
    endpoint.actions = {"ListQueues": {}, "SendMessage": {"MessageId": "1"}}
    endpoint.lost = 2
    sqs = Sqs(endpoint.url, Settings(timeout_s=5))
    assert list(sqs.queue_names()) == []
    assert sqs.call("SendMessage", {"MessageBody": "x"}) == {"MessageId": "1"}
    sqs.close()
    tokens = [headers["x-penstock-request-token"] for headers in endpoint.headers]
    assert tokens[1] == tokens[2] != tokens[0]


def test_a_change_without_a_token_is_not_repeated(endpoint: Endpoint) -> None:
    endpoint.paths = {"/api/v1/info": {}, "/api/v1/keys": {}}
    endpoint.lost = 2
    admin = Admin(endpoint.url, Settings(timeout_s=5))
    admin.get("info")
    with pytest.raises(Failure, match="cannot reach") as caught:
        admin.call("POST", "keys", body={}, what="cannot create a key")
    admin.close()
    assert caught.value.exit_code == ExitCode.UNREACHABLE
    assert len(endpoint.requests("/api/v1/keys")) == 1


def test_a_silent_server_is_given_up_on_as_a_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        connection = Connection(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.05)
        with pytest.raises(Failure) as caught:
            connection.call("GET", "/")
    assert caught.value.exit_code == ExitCode.TIMEOUT


@pytest.mark.slow
def test_a_server_that_hangs_up_on_a_new_connection_is_not_asked_for_ever() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        connection = Connection(f"http://127.0.0.1:{server.getsockname()[1]}", timeout_s=5)

        def hang_up() -> None:
            accepted, _ = server.accept()
            accepted.recv(65_536)
            accepted.close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        with pytest.raises(Failure) as caught:
            connection.call("GET", "/")
        thread.join()
    assert caught.value.exit_code == ExitCode.UNREACHABLE


def test_a_queue_may_be_named_by_name_arn_or_url(endpoint: Endpoint) -> None:
    sqs = Sqs(endpoint.url, Settings(timeout_s=5))
    assert sqs.queue_url("http://elsewhere/1/jobs") == "http://elsewhere/1/jobs"
    by_name = sqs.queue_url("jobs")
    assert sqs.queue_url("arn:aws:sqs:us-east-1:000000000000:jobs") == by_name
    assert len(endpoint.requests("GetQueueUrl")) == 1
    sqs.close()


def test_with_an_account_the_url_is_known_without_asking(endpoint: Endpoint) -> None:
    sqs = Sqs(endpoint.url, Settings(account="123456789012", timeout_s=5))
    assert sqs.queue_url("jobs") == f"{endpoint.url}/123456789012/jobs"
    assert endpoint.asked == []
    sqs.close()


def test_listing_follows_pages(endpoint: Endpoint) -> None:
    pages = {
        None: {"QueueUrls": ["http://h/0/a", "http://h/0/b"], "NextToken": "t"},
        "t": {"QueueUrls": ["http://h/0/c"]},
    }
    endpoint.actions["ListQueues"] = lambda request: (200, pages[request.get("NextToken")])
    sqs = Sqs(endpoint.url, Settings(timeout_s=5))
    assert list(sqs.queue_names()) == ["a", "b", "c"]
    sqs.close()


def test_the_admin_token_is_sent_when_there_is_one(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint.paths["/api/v1/info"] = {"version": "1"}
    monkeypatch.setenv("PENSTOCK_ADMIN_TOKEN", "secret")
    admin = Admin(endpoint.url, Settings(timeout_s=5))
    admin.info()
    admin.close()
    assert endpoint.headers[-1]["authorization"] == "Bearer secret"


@pytest.mark.parametrize("token", [None, "session"])
def test_the_signature_is_the_one_botocore_makes(token: str | None) -> None:
    headers = {
        "content-type": "application/x-amz-json-1.0",
        "x-amz-target": "AmazonSQS.SendMessage",
    }
    body = b'{"QueueUrl":"jobs"}'
    request = AWSRequest("POST", "http://127.0.0.1:9324/", dict(headers), data=body)
    boto = SigV4Auth(BotoCredentials("key", "secret", token), "sqs", "eu-west-1")
    boto.add_auth(request)
    ours = Signer(Credentials("key", "secret", token), region="eu-west-1").sign(
        host="127.0.0.1:9324",
        path="/",
        headers=headers,
        body=body,
        timestamp=request.headers["X-Amz-Date"],
    )
    assert ours["authorization"] == request.headers["Authorization"]


def test_an_endpoint_without_an_admin_api_is_told_apart_from_one_that_is_down(
    endpoint: Endpoint,
) -> None:
    endpoint.paths["/_penstock/info"] = {"admin": None}
    sqs = Sqs(endpoint.url, Settings(timeout_s=5))
    with pytest.raises(Failure, match="did not report the address of its admin API"):
        sqs.info()
    sqs.close()


@pytest.mark.parametrize(
    ("endpoint", "told", "dialled"),
    [
        ("http://127.0.0.1:9324", "http://127.0.0.1:9325", "http://127.0.0.1:9325"),
        ("http://localhost:9324", "127.0.0.1:9092", "127.0.0.1:9092"),
        ("https://queue.example:443", "https://127.0.0.1:9325", "https://queue.example:9325"),
        ("queue.example:9324", "SASL_SSL://[::1]:9092", "SASL_SSL://queue.example:9092"),
        ("http://[2001:db8::1]:9324", "127.0.0.1:9092", "[2001:db8::1]:9092"),
        ("http://queue.example:9324", "http://10.1.2.3:9325", "http://10.1.2.3:9325"),
    ],
)
def test_what_is_local_to_a_server_is_on_its_machine(
    endpoint: str, told: str, dialled: str
) -> None:
    assert as_seen_from(endpoint, told) == dialled
