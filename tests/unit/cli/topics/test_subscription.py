"""Commands about subscriptions: what they ask of the admin API, and what they print."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.conftest import Cli, Endpoint

from penstock.cli.operate import doctor
from penstock.cli.terminal.failure import ExitCode

ID = "6f1b2c3d-0000-4000-8000-000000000001"
ARN = f"arn:aws:sqs:us-east-1:000000000000:orders:{ID}"
LIST = "/api/v1/subscriptions"
PATH = f"{LIST}/{ID}"
SECRET = "whsec_c2VjcmV0"


def row(**more: Any) -> dict[str, Any]:
    return {
        "id": ID,
        "source": "orders",
        "endpoint": "https://example.com/hook",
        "protocol": "webhook",
        "state": "confirmed",
        "paused": None,
        **more,
    }


def shown(**more: Any) -> dict[str, Any]:
    found = row(
        settings={
            "format": "raw",
            "headers": {"x-a": "1"},
            "retry": {"min_ms": 5},
            "filter": '{"a": [1]}',
            "secret": "****",
        },
        replays=[{"number": 1, "starts": [5, 9], "until": [9, 9], "created_at_ms": 1}],
        status={"limit": 4, "failing_since_ms": 0, "reason": ""},
        lag=12_345,
        oldest_age_ms=61_000,
    )
    return {**found, **more}


# ── Create, list, show ───────────────────────────────────────────────────────────────────────


def test_create_prints_the_secret_and_says_that_it_is_the_only_time(
    cli: Cli, endpoint: Endpoint
) -> None:
    endpoint.paths[LIST] = (201, {**row(), "secret": SECRET})
    result = cli("subscription", "create", "orders", "https://example.com/hook")
    assert result.code == 0
    assert result.json["secret"] == SECRET
    assert "not shown again" in result.err
    (body,) = endpoint.requests(LIST)
    assert body == {
        "source": "orders",
        "endpoint": "https://example.com/hook",
        "start": "latest",
        "paused": False,
        "settings": {},
    }
    endpoint.paths[LIST] = (201, row())
    result = cli("subscription", "create", "orders", "https://example.com/hook", "-o", "name")
    assert (result.out.strip(), result.err) == (ID, "")
    endpoint.paths[LIST] = (201, {**row(), "secret": "whsec_hidden"})
    result = cli("subscription", "create", "orders", "https://example.com/hook", "-o", "name")
    assert result.out.strip() == ID
    assert "the secret was not printed" in result.err


def test_settings_come_from_options_and_from_a_file(
    cli: Cli, endpoint: Endpoint, tmp_path: Path
) -> None:
    endpoint.paths[LIST] = (201, row())
    file = tmp_path / "settings.json"
    file.write_text(json.dumps({"secret": SECRET, "retry": {"min_ms": 7}, "method": "PUT"}))
    given = ["mode=consume", "timeout_ms=2000", "retry.max_ms=9", "rate_per_s=null", "method=POST"]
    given += ["headers.x-team=7", 'filter={"a": [1]}', "concurrency=auto"]
    options = [word for pair in given for word in ("--set", pair)]
    words = ("orders", "http://x/", "--settings", str(file), "--from", "earliest", "--paused")
    assert cli("subscription", "create", *words, *options).code == 0
    (body,) = endpoint.requests(LIST)
    assert (body["start"], body["paused"]) == ("earliest", True)
    assert body["settings"] == {
        "secret": SECRET,
        "retry": {"min_ms": 7, "max_ms": 9},
        "method": "POST",
        "mode": "consume",
        "timeout_ms": 2_000,
        "rate_per_s": None,
        "headers": {"x-team": "7"},
        "filter": '{"a": [1]}',
        "concurrency": "auto",
    }


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--set", "timeout"], "not of the form NAME=VALUE"),
        (["--set", "secret=x"], "other users of this machine can see it"),
        (["--set", "auth.token=x"], "write it to a JSON file"),
        (["--settings", "/no/such/file"], "No such file"),
        (["--settings", "-"], "not JSON"),
    ],
)
def test_invalid_settings_never_reach_the_server(
    cli: Cli, endpoint: Endpoint, words: list[str], text: str
) -> None:
    result = cli("subscription", "create", "orders", "http://x/", *words)
    assert result.code == ExitCode.USAGE
    assert text in result.err
    assert endpoint.requests(LIST) == []


def test_list_shows_all_pages_or_one_source(cli: Cli, endpoint: Endpoint) -> None:
    def page(query: Any) -> Any:
        after = query.get("after")
        item = row(paused="restored", id="second") if after else row()
        return 200, {"subscriptions": [item], "next": None if after else ID}

    endpoint.paths[LIST] = page
    result = cli("subscription", "list")
    assert [each["id"] for each in result.lines] == [ID, "second"]
    text = cli("subscription", "list", "orders", "-o", "table").out
    assert "restored" in text
    assert endpoint.asked[-1][1]["source"] == "orders"


def test_show_prints_settings_as_set_takes_them(cli: Cli, endpoint: Endpoint) -> None:
    endpoint.paths[PATH] = shown()
    assert cli("subscription", "show", ARN).json["settings"]["secret"] == "****"
    text = cli("subscription", "show", ID, "-o", "table").out
    for line in ("format=raw", "headers.x-a=1", "retry.min_ms=5", 'filter={"a": [1]}'):
        assert f"\n{line}\n" in text
    assert "12,345" in text
    assert "1m 1s" in text
    assert "failing" not in text
    sns = shown(attributes={"RawMessageDelivery": "true"}, replays=[], status=None)
    del sns["settings"]
    endpoint.paths[PATH] = sns
    assert "RawMessageDelivery=true" in cli("subscription", "show", ID, "-o", "table").out


def test_an_unknown_subscription_is_exit_3_and_one_is_suggested(
    cli: Cli, endpoint: Endpoint
) -> None:
    error = {"error": {"code": "not_found", "message": "There is no subscription."}}
    wrong = ID.replace("1", "2")
    endpoint.paths[f"{LIST}/{wrong}"] = (404, error)
    endpoint.paths[LIST] = {"subscriptions": [row()], "next": None}
    result = cli("subscription", "show", wrong)
    assert result.code == ExitCode.NOT_FOUND
    assert f"did you mean '{ID}'" in result.err


# ── Changes ──────────────────────────────────────────────────────────────────────────────────


def test_set_sends_what_changes(cli: Cli, endpoint: Endpoint) -> None:
    endpoint.paths[PATH] = shown()
    assert cli("subscription", "set", ID, "timeout_ms=5000").code == 0
    assert endpoint.requests(PATH) == [{"timeout_ms": 5_000}]
    assert cli("subscription", "set", ID, "headers.x-b=2").code == 0
    assert endpoint.requests(PATH)[-1] == {"headers": {"x-a": "1", "x-b": "2"}}
    assert "Nothing to change" in cli("subscription", "set", ID).err


def test_delete_asks_first(cli: Cli, endpoint: Endpoint) -> None:
    endpoint.paths[PATH] = shown()
    result = cli("subscription", "delete", ID)
    assert result.code == ExitCode.USAGE
    assert len(endpoint.requests(PATH)) == 1, "only looked at"
    result = cli("subscription", "delete", ID, "--yes")
    assert (result.code, result.err) == (0, f"deleted {ID}\n")


@pytest.mark.parametrize(
    ("words", "path", "body"),
    [
        (["pause", ID], "pause", {}),
        (["pause", ID, "--reason", "upgrade"], "pause", {"reason": "upgrade"}),
        (["resume", ARN], "resume", {}),
        (["confirm", ID], "confirm", {}),
    ],
)
def test_commands_without_output(
    cli: Cli, endpoint: Endpoint, words: list[str], path: str, body: Any
) -> None:
    endpoint.paths[f"{PATH}/{path}"] = row()
    result = cli("subscription", *words)
    assert (result.code, result.out) == (0, "")
    assert endpoint.requests(f"{PATH}/{path}") == [body]


def test_the_endpoint_of_a_pending_webhook_is_asked_again(cli: Cli, endpoint: Endpoint) -> None:
    endpoint.paths[f"{PATH}/confirm"] = row(state="pending", refusal=None)
    result = cli("subscription", "confirm", ID)
    assert result.code == 0
    assert f"asking the endpoint: see `penstock subscription show {ID}`" in result.err


def test_rotate_prints_the_new_secret(cli: Cli, endpoint: Endpoint) -> None:
    made = {"id": ID, "secret": SECRET, "old_secret_ends_at_ms": 1_800_000_000_000}
    endpoint.paths[f"{PATH}/rotate"] = made
    result = cli("subscription", "rotate", ID)
    assert result.json == made
    assert "not shown again" in result.err


# ── Sending again ────────────────────────────────────────────────────────────────────────────


def test_a_test_that_fails_is_exit_1(cli: Cli, endpoint: Endpoint) -> None:
    good = {"is_delivered": True, "status": 204, "duration_ms": 3, "reason": "", "body": ""}
    endpoint.paths[f"{PATH}/test"] = good
    assert cli("subscription", "test", ID, "--body", "hello").json == good
    assert cli("subscription", "test", ID).code == 0
    assert endpoint.requests(f"{PATH}/test") == [{"body": "hello"}, {}]
    endpoint.paths[f"{PATH}/redeliver"] = {**good, "is_delivered": False, "status": 500}
    result = cli("subscription", "redeliver", ID, "2", "15")
    assert result.code == ExitCode.FAILED
    assert "replied with HTTP status 500" in result.err
    assert result.json["status"] == 500
    assert endpoint.requests(f"{PATH}/redeliver") == [{"partition": 2, "offset": 15}]


@pytest.mark.parametrize(
    ("words", "body"),
    [
        (["--from", "earliest"], {"earliest": True}),
        (["--from", "1970-01-01T00:00:07Z"], {"start_ms": 7_000}),
        (
            ["--from", "0:15,2:7", "--to", "0:20"],
            {"start_offsets": {"0": 15, "2": 7}, "until_offsets": {"0": 20}},
        ),
        (
            ["--from", "earliest", "--to", "1970-01-02T00:00:00+00:00"],
            {"earliest": True, "until_ms": 86_400_000},
        ),
    ],
)
def test_positions_of_a_replay(cli: Cli, endpoint: Endpoint, words: list[str], body: Any) -> None:
    made = {"number": 3, "starts": [5, 9], "until": [9, 9], "created_at_ms": 1}
    endpoint.paths[f"{PATH}/replay"] = {"id": ID, "replay": made}
    assert cli("subscription", "replay", ID, *words).json == made
    assert endpoint.requests(f"{PATH}/replay") == [body]
    table = cli("subscription", "replay", ID, *words, "-o", "table").out
    assert table.splitlines()[1].split() == ["3", "waiting", "0", "5", "9"]
    assert len(table.splitlines()) == 2


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--from", "5"],
        ["--from", "-10"],
        ["--from", "0:x"],
        ["--from", "latest"],
        ["--from", "earliest", "--to", "earliest"],
        ["--from", "yesterday"],
    ],
)
def test_a_position_that_is_none_is_refused(cli: Cli, endpoint: Endpoint, words: list[str]) -> None:
    assert cli("subscription", "replay", ID, *words).code == ExitCode.USAGE
    assert endpoint.requests(f"{PATH}/replay") == []


def test_deliveries_and_lag(cli: Cli, endpoint: Endpoint) -> None:
    attempt = {"at_ms": 1_800_000_000_000, "outcome": "retry", "status": 503, "ms": 12}
    endpoint.paths[f"{PATH}/deliveries"] = {"deliveries": [attempt]}
    assert cli("subscription", "deliveries", ID, "-n", "5").lines == [attempt]
    assert endpoint.requests(f"{PATH}/deliveries") == [{"limit": "5"}]
    assert "2027-01-15" in cli("subscription", "deliveries", ID, "-o", "table").out
    endpoint.paths[PATH] = shown()
    endpoint.paths[LIST] = {"subscriptions": [row()], "next": None}
    for words in ((), (ID,)):
        (found,) = cli("subscription", "lag", *words).lines
        assert (found["lag"], found["oldest_age_s"]) == (12_345, 61.0)
    watched = cli("subscription", "lag", ID, "--watch", "--samples", "2", "--interval", "0.1s")
    assert [each["lag"] for each in watched.lines] == [12_345] * 2


# ── Doctor ───────────────────────────────────────────────────────────────────────────────────


def test_the_doctor_names_subscriptions_that_fail_or_are_paused(
    cli: Cli, endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "CLOCK_SKEW_MS_MAX", 10**15)
    info = {"state": "ready", "is_ready": True, "version": "1", "reasons": [], "now_ms": 0}
    endpoint.paths["/api/v1/info"] = {**info, "data": str(tmp_path)}
    endpoint.paths["/api/v1/config"] = {"settings": []}
    fails = {"failing_since_ms": 1_800_000_000_000, "reason": "connection refused"}
    rows = [
        row(id="good", status={"failing_since_ms": 0}),
        row(id="bad", status=fails),
        row(id="still", paused="restored", status=None),
        row(id="asked", state="pending", refusal="status 405", status=None),
    ]
    endpoint.paths[LIST] = {"subscriptions": rows, "next": None}
    result = cli("doctor")
    assert result.code == 0, "they are warnings"
    found = {one["check"]: one for one in result.json["checks"]}
    assert endpoint.requests(LIST)[0]["status"] == "true"
    assert "connection refused" in found["subscription bad"]["detail"]
    assert found["subscription bad"]["status"] == "warn"
    assert "is paused: restored" in found["subscription still"]["detail"]
    assert "is not permitted: status 405" in found["subscription asked"]["detail"]
    assert "subscription confirm asked" in found["subscription asked"]["fix"]
    assert "subscription good" not in found
    endpoint.paths[LIST] = {"subscriptions": rows[:1], "next": None}
    found = {one["check"]: one for one in cli("doctor").json["checks"]}
    assert found["subscriptions"]["detail"] == "none of 1 is paused or fails"
    del endpoint.paths[LIST]
    assert all("subscription" not in one["check"] for one in cli("doctor").json["checks"])


# ── SNS topics ───────────────────────────────────────────────────────────────────────────────


def test_an_sns_topic_is_created_by_the_sns_api(cli: Cli, endpoint: Endpoint) -> None:
    arn = "arn:aws:sns:us-east-1:000000000000:orders"
    reply = {"CreateTopicResponse": {"CreateTopicResult": {"TopicArn": arn}}}
    endpoint.actions["CreateTopic"] = reply
    assert cli("topic", "create", "orders", "--sns").json == {"name": "orders", "arn": arn}
    cli("topic", "create", "orders", "--sns", "--fifo", "--partitions", "4")
    first, second = endpoint.requests("CreateTopic")
    assert first == {"Action": "CreateTopic", "Version": "2010-03-31", "Name": "orders"}
    assert second["Name"] == "orders.fifo"
    assert second["Attributes.entry.1.key"] == "FifoTopic"
    assert second["Attributes.entry.2.value"] == "4"
    assert "/sns/aws4_request" in endpoint.headers[0]["authorization"]
    for words in (["--fifo"], ["--sns", "--queue"], ["--sns", "--config", "a=b"]):
        assert cli("topic", "create", "orders", *words).code == ExitCode.USAGE


def test_publish_sends_subject_and_attributes(cli: Cli, endpoint: Endpoint) -> None:
    result = {"MessageId": "m1", "SequenceNumber": "7"}
    endpoint.actions["Publish"] = {"PublishResponse": {"PublishResult": result}}
    words = ["--subject", "hi", "-a", "n:Number=7", "-a", "k=v", "--group", "g", "--dedup-id", "d"]
    shown = cli("topic", "publish", "orders", "hello", *words).json
    assert shown == {"message_id": "m1", "sequence_number": "7"}
    (fields,) = endpoint.requests("Publish")
    assert fields["TopicArn"] == "arn:aws:sns:us-east-1::orders"
    assert (fields["Message"], fields["Subject"]) == ("hello", "hi")
    assert fields["MessageAttributes.entry.1.Value.DataType"] == "Number"
    assert fields["MessageAttributes.entry.2.Value.StringValue"] == "v"
    assert (fields["MessageGroupId"], fields["MessageDeduplicationId"]) == ("g", "d")
    arn = "arn:aws:sns:eu-west-1:111111111111:news"
    cli("--account", "111111111111", "topic", "publish", arn, "-", stdin="grüezi".encode())
    fields = endpoint.requests("Publish")[1]
    assert (fields["TopicArn"], fields["Message"]) == (arn, "grüezi")
    error = {"Error": {"Code": "NotFound", "Message": "Topic does not exist", "Type": "Sender"}}
    endpoint.actions["Publish"] = (404, error)
    refused = cli("topic", "publish", "gone", "x")
    assert refused.code == ExitCode.NOT_FOUND
    assert "Topic does not exist (NotFound)" in refused.err
