"""The requests of the limits benchmark are ones a server accepts, and its verdicts are right."""

import pytest
from benchmarks.limits import Row, parse, table
from benchmarks.requests import QueueRequests, RequestMaker

from penstock.net.http.exchange import HttpRequest
from penstock.wire.aws import sigv4
from penstock.wire.aws.signer import Credentials

KEY = Credentials("AKBENCH", "a-secret")
STAMP = "20260102T030405Z"
NOW_MS = 1_767_323_045_000


def parsed(data: bytes) -> HttpRequest:
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    assert first == "POST / HTTP/1.1"
    assert int(headers["content-length"]) == len(body)
    return HttpRequest("POST", "/", "", headers, body, "", "r")


def test_a_request_made_with_a_key_is_one_that_a_server_lets_in() -> None:
    maker = RequestMaker("127.0.0.1", 9324, stamp=STAMP, key=KEY)
    for data in (
        QueueRequests(maker, "http://h/0/q", body_bytes=64).send(),
        QueueRequests(maker, "http://h/0/q", body_bytes=64).receive(10, wait_s=20),
    ):
        request = parsed(data)
        scope = sigv4.parse(request.headers["authorization"], {})
        assert scope is not None
        timestamp = sigv4.check(request, scope, service="sqs", now_ms=NOW_MS)
        key = sigv4.signing_key(KEY.secret.encode(), scope)
        assert sigv4.is_genuine(request, scope, timestamp=timestamp, key=key)
        wrong = sigv4.signing_key(b"another", scope)
        assert not sigv4.is_genuine(request, scope, timestamp=timestamp, key=wrong)


def test_sends_go_round_as_many_different_requests_as_asked_for_and_all_clients_share_them() -> (
    None
):
    maker = RequestMaker("127.0.0.1", 9324, stamp=STAMP, key=KEY)
    queue = QueueRequests(maker, "http://h/0/q", body_bytes=64, distinct=5)
    ours, theirs = queue.sends(), queue.sends()
    seen = [next(each) for each in (ours, theirs) * 5]
    assert len(set(seen)) == 5
    assert seen[:5] == seen[5:]
    ids = {parsed(data).headers["amz-sdk-invocation-id"] for data in seen}
    assert len(ids) == 5
    assert len({len(parsed(data).body) for data in seen}) == 1


def test_one_request_is_made_once_where_nothing_else_is_asked_for() -> None:
    queue = QueueRequests(RequestMaker("h", 1, stamp=STAMP), "http://h/0/q", body_bytes=64)
    sends = queue.sends()
    assert next(sends) is next(sends)


def test_the_table_says_which_bars_were_missed() -> None:
    shown = table([Row("a", "1 %", "≤ 2 %", True), Row("b", "3 %", "≤ 2 %", False)])
    assert "| a | 1 % | ≤ 2 % | met |" in shown
    assert "| b | 3 % | ≤ 2 % | **missed** |" in shown


def test_a_quick_run_is_short_and_parts_can_be_chosen(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options, only, _ = parse(["--quick", "--only", "guard,flood"])
    assert (options.rounds, only) == (1, ["guard", "flood"])
    assert parse([])[1] == ["guard", "sealing", "polls", "flood", "scrubbing"]
    with pytest.raises(SystemExit):
        parse(["--only", "guard,nothing"])
    assert "no such case: nothing" in capsys.readouterr().err
