"""Encryption at rest, with the clients people use: nothing planted in an encrypted queue or topic
is ever found in the data folder, everything is delivered as it was sent, over restarts and new
keys, and what somebody changes on the disk is delivered to nobody."""

from __future__ import annotations

import base64
import json
import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from confluent_kafka.admin import AdminClient
from tests.compat.conftest import REGION, sqs_client
from tests.compat.kafka.confluent import consumer, producer, read, send
from tests.compat.kafka.conftest import create_topic
from tests.compat.kafka.test_share_groups import configure, sharing, take
from tests.harness.patience import eventually
from tests.harness.server import Server, ServerFailed, stable_port

from penstock.record.batch import CRC_FROM, HEADER_BYTES, parse_header
from penstock.record.crc32c import crc32c
from penstock.record.record import iter_records

BODY = "planted-body-5e1f"
NAME = "planted-name-77ab"
VALUE = "planted-value-c0de"
PLANTED = b"planted-"
SSE = {"SqsManagedSseEnabled": "true"}


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Server]:
    """A server of this test's own, with the default durability, on ports that outlive it."""
    server = Server(tmp_path / "data", port=stable_port(), kafka_port=stable_port())
    with server as running:
        yield running
        if running.is_running:
            assert running.stop() == 0, running.stderr_tail()
        running.assert_no_traceback()


@pytest.fixture
def client(own: Server) -> Iterator[Any]:
    made = sqs_client(own.url)
    yield made
    made.close()


def files_with(folder: Path, text: bytes) -> list[str]:
    return [
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and text in path.read_bytes()
    ]


def new_queue(client: Any, name: str, **attributes: str) -> str:
    url: str = client.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
    return url


def send_planted(client: Any, url: str, number: int = 0, **more: Any) -> dict[str, Any]:
    reply: dict[str, Any] = client.send_message(
        QueueUrl=url,
        MessageBody=f"{BODY} {number}",
        MessageAttributes={
            NAME: {"DataType": "String.kind", "StringValue": VALUE},
            "n": {"DataType": "Number", "StringValue": str(number)},
            "b": {"DataType": "Binary", "BinaryValue": b"\xff" + PLANTED},
        },
        **more,
    )
    return reply


def receive(client: Any, url: str, *, count: int = 10, **more: Any) -> list[dict[str, Any]]:
    """All there is now."""
    found: list[dict[str, Any]] = []
    while len(found) < count:
        some = client.receive_message(
            QueueUrl=url,
            MaxNumberOfMessages=10,
            AttributeNames=["All"],
            MessageAttributeNames=["All"],
            **more,
        ).get("Messages", [])
        if not some:
            break
        found += some
    return found


def admin_post(server: Server, path: str) -> dict[str, Any]:
    request = urllib.request.Request(
        server.admin_url + path, b"", {"content-type": "application/json"}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=10) as reply:
        answer: dict[str, Any] = json.load(reply)
        return answer


def admin_get(server: Server, path: str) -> bytes:
    with urllib.request.urlopen(server.admin_url + path, timeout=10) as reply:
        text: bytes = reply.read()
        return text


# ── Queues ───────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    "attributes",
    [SSE, {"KmsMasterKeyId": "alias/aws/sqs"}, {**SSE, "FifoQueue": "true"}],
    ids=["sse", "kms", "fifo"],
)
def test_an_encrypted_queue_is_a_queue_and_leaves_nothing_on_the_disk(
    own: Server, client: Any, attributes: dict[str, str]
) -> None:
    is_fifo = "FifoQueue" in attributes
    url = new_queue(client, "secret.fifo" if is_fifo else "secret", **attributes)
    more = {"MessageGroupId": "g", "MessageDeduplicationId": "d"} if is_fifo else {}
    sent = send_planted(client, url, 7, **more)
    [got] = receive(client, url)
    assert got["MessageId"] == sent["MessageId"]
    assert got["Body"] == f"{BODY} 7"
    assert got["MD5OfBody"] == sent["MD5OfMessageBody"]
    assert got["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
    assert got["MessageAttributes"][NAME] == {"DataType": "String.kind", "StringValue": VALUE}
    assert got["MessageAttributes"]["b"]["BinaryValue"] == b"\xff" + PLANTED
    # As a whole batch, too.
    entries = [{"Id": str(n), "MessageBody": f"{BODY} batch {n}"} for n in range(10)]
    for entry in entries:
        entry |= {"MessageGroupId": "h", "MessageDeduplicationId": entry["Id"]} if is_fifo else {}
    reply = client.send_message_batch(QueueUrl=url, Entries=entries)
    assert len(reply["Successful"]) == 10
    bodies = {message["Body"] for message in receive(client, url)}
    assert bodies == {f"{BODY} batch {n}" for n in range(10)}
    assert own.stop() == 0
    assert files_with(own.data, PLANTED) == []


def test_what_is_not_encrypted_is_found_or_the_other_tests_prove_nothing(
    own: Server, client: Any
) -> None:
    """A queue of which nothing was said shows the attribute as the original does, and pays for
    nothing until somebody asks for it by name."""
    url = new_queue(client, "plain")
    shown = client.get_queue_attributes(QueueUrl=url, AttributeNames=["SqsManagedSseEnabled"])
    assert shown["Attributes"] == SSE
    send_planted(client, url)
    assert files_with(own.data, BODY.encode()) != []
    assert files_with(own.data, VALUE.encode()) != []


@pytest.mark.parametrize("how", ["set", "create"])
def test_encryption_turned_on_and_off_concerns_what_is_sent_from_then_on(
    own: Server, client: Any, how: str
) -> None:
    url = new_queue(client, "changing")
    client.send_message(QueueUrl=url, MessageBody="before")
    if how == "set":
        client.set_queue_attributes(QueueUrl=url, Attributes=SSE)
    else:
        assert new_queue(client, "changing", **SSE) == url
    send_planted(client, url)
    client.set_queue_attributes(QueueUrl=url, Attributes={"SqsManagedSseEnabled": "false"})
    client.send_message(QueueUrl=url, MessageBody="after")
    own.restart()
    assert files_with(own.data, PLANTED) == []
    assert files_with(own.data, b"after") != []
    assert [m["Body"] for m in receive(client, url)] == ["before", f"{BODY} 0", "after"]


def test_a_node_can_encrypt_whatever_nobody_spoke_of(own: Server) -> None:
    own.stop()
    own.env["PENSTOCK_KEYS__ENCRYPT_BY_DEFAULT"] = "true"
    own.start()
    client = sqs_client(own.url)
    url = new_queue(client, "default")
    send_planted(client, url)
    send_kafka(own, "auto-made", 3)
    open_url = new_queue(client, "open", SqsManagedSseEnabled="false")
    client.send_message(QueueUrl=open_url, MessageBody="in the clear")
    assert [m["Body"] for m in receive(client, url)] == [f"{BODY} 0"]
    assert read_kafka(own, "auto-made", 3) == expected_kafka(3)
    client.close()
    assert own.stop() == 0
    assert files_with(own.data, PLANTED) == []
    assert files_with(own.data, b"in the clear") != []


def test_dead_letters_and_moved_messages_stay_sealed_and_open_where_they_come_to(
    own: Server, client: Any
) -> None:
    dead = new_queue(client, "dead")
    arn = client.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])
    dead_arn = arn["Attributes"]["QueueArn"]
    rule = json.dumps({"deadLetterTargetArn": dead_arn, "maxReceiveCount": 1})
    url = new_queue(client, "source", RedrivePolicy=rule, **SSE)
    sent = send_planted(client, url)
    assert len(receive(client, url, count=1, VisibilityTimeout=0)) == 1
    assert receive(client, url) == []
    [letter] = receive(client, dead, count=1, VisibilityTimeout=0)
    assert letter["MessageId"] == sent["MessageId"]
    assert letter["MessageAttributes"][NAME]["StringValue"] == VALUE
    client.start_message_move_task(SourceArn=dead_arn)
    [moved] = eventually(lambda: receive(client, url, count=1), seconds=20, what="a moved message")
    assert moved["Body"] == f"{BODY} 0"
    assert own.stop() == 0
    assert files_with(own.data, PLANTED) == []


def test_a_look_through_the_admin_api_opens_what_it_shows(own: Server, client: Any) -> None:
    url = new_queue(client, "looked-at", **SSE)
    send_planted(client, url)
    shown = json.loads(admin_get(own, "/api/v1/queues/looked-at/messages"))
    assert shown["messages"][0]["body"] == f"{BODY} 0"
    assert shown["messages"][0]["attributes"][NAME]["value"] == VALUE


# ── Topics ───────────────────────────────────────────────────────────────────────────────────
def send_kafka(server: Server, topic: str, count: int, **settings: object) -> None:
    made = producer(server.kafka, **settings)
    for number in range(count):
        headers: list[tuple[str, bytes | None]] = [(NAME, VALUE.encode()), ("empty", None)]
        value = f"{BODY} {number}".encode()
        send(made, topic, [value], key=b"key %d" % number, headers=headers)


def expected_kafka(count: int) -> list[tuple[bytes, bytes, list[tuple[str, bytes | None]]]]:
    return [
        (
            b"key %d" % number,
            f"{BODY} {number}".encode(),
            [(NAME, VALUE.encode()), ("empty", None)],
        )
        for number in range(count)
    ]


def read_kafka(server: Server, topic: str, count: int) -> list[Any]:
    with consumer(server.kafka, f"group-{os.urandom(4).hex()}") as made:
        made.subscribe([topic])
        return [(m.key(), m.value(), m.headers()) for m in read(made, count)]


@pytest.mark.parametrize("compression", ["none", "gzip", "lz4"])
def test_an_encrypted_topic_is_a_topic_and_leaves_nothing_on_the_disk(
    own: Server, compression: str
) -> None:
    create_topic(AdminClient({"bootstrap.servers": own.kafka}), "secret", penstock_encryption=True)
    send_kafka(own, "secret", 20, compression_type=compression, enable_idempotence=True)
    assert read_kafka(own, "secret", 20) == expected_kafka(20)
    own.restart()
    send_kafka(own, "secret", 1)
    assert read_kafka(own, "secret", 21) == [*expected_kafka(20), *expected_kafka(1)]
    assert own.stop() == 0
    assert files_with(own.data, PLANTED) == []
    assert files_with(own.data, b"key 7") != []  # keys are what compaction goes by


def test_transactions_on_an_encrypted_topic_commit_and_abort_as_ever(own: Server) -> None:
    create_topic(AdminClient({"bootstrap.servers": own.kafka}), "secret", penstock_encryption=True)
    made = producer(own.kafka, transactional_id="t")
    made.init_transactions(30)
    for number in range(4):
        made.begin_transaction()
        send(made, "secret", [b"%s %d" % (BODY.encode(), number)])
        if number % 2:
            made.abort_transaction(30)
        else:
            made.commit_transaction(30)
    with consumer(own.kafka, "g", isolation_level="read_committed") as reader:
        reader.subscribe(["secret"])
        assert [m.value() for m in read(reader, 2)] == [
            b"%s %d" % (BODY.encode(), n) for n in (0, 2)
        ]
    assert own.stop() == 0
    assert files_with(own.data, PLANTED) == []


def test_both_views_of_an_encrypted_queue_show_the_same_messages(own: Server, client: Any) -> None:
    kafka_admin = AdminClient({"bootstrap.servers": own.kafka})
    create_topic(kafka_admin, "both", penstock_queue=True, penstock_encryption=True)
    url = client.get_queue_url(QueueName="both")["QueueUrl"]
    shown = client.get_queue_attributes(QueueUrl=url, AttributeNames=["SqsManagedSseEnabled"])
    assert shown["Attributes"] == SSE
    send_kafka(own, "both", 1)
    send_planted(client, url, 1)
    read_back = read_kafka(own, "both", 2)
    assert read_back[0] == expected_kafka(1)[0]
    assert read_back[1][1] == f"{BODY} 1".encode()
    assert (NAME, VALUE.encode()) in read_back[1][2]
    got = receive(client, url)
    assert [m["Body"] for m in got] == [f"{BODY} 0", f"{BODY} 1"]
    assert got[0]["MessageAttributes"][NAME] == {"DataType": "String", "StringValue": VALUE}
    assert got[0]["Attributes"]["MessageGroupId"] == "key 0"
    assert own.stop() == 0
    assert files_with(own.data, PLANTED) == []


# ── Keys ─────────────────────────────────────────────────────────────────────────────────────
def test_a_new_data_key_on_demand_leaves_older_messages_readable(own: Server, client: Any) -> None:
    url = new_queue(client, "rotated", **SSE)
    send_planted(client, url, 0)
    assert admin_post(own, "/api/v1/queues/rotated/rotate")["name"] == "rotated"
    send_planted(client, url, 1)
    own.restart()
    send_planted(client, url, 2)
    assert [m["Body"] for m in receive(client, url)] == [f"{BODY} {n}" for n in range(3)]


def write_master(path: Path) -> Path:
    path.write_bytes(base64.b64encode(os.urandom(32)))
    path.chmod(0o600)
    return path


def test_a_new_master_key_leaves_everything_readable_and_the_old_one_can_go(
    tmp_path: Path,
) -> None:
    first, second = write_master(tmp_path / "one.key"), write_master(tmp_path / "two.key")
    data = tmp_path / "data"
    env = {"PENSTOCK_KEYS__MASTER_FILE": str(first)}
    with Server(data, port=stable_port(), env=env) as server:
        client = sqs_client(server.url)
        url = new_queue(client, "kept", **SSE)
        for number in range(3):
            send_planted(client, url, number)
        assert server.stop() == 0
        server.env = {
            "PENSTOCK_KEYS__MASTER_FILE": str(second),
            "PENSTOCK_KEYS__OLD_MASTER_FILES": str(first),
        }
        server.start()
        got = receive(client, url, VisibilityTimeout=0, count=3)
        assert sorted(m["Body"] for m in got[:3]) == [f"{BODY} {n}" for n in range(3)]
        assert server.stop() == 0
        first.unlink()
        server.env = {"PENSTOCK_KEYS__MASTER_FILE": str(second)}
        server.start()
        assert {m["Body"] for m in receive(client, url)} == {f"{BODY} {n}" for n in range(3)}
        client.close()
        assert server.stop() == 0
        server.assert_no_traceback()


def test_a_node_with_the_wrong_master_key_does_not_start(tmp_path: Path) -> None:
    """It could deliver nothing, and would make dead letters of everything."""
    first, wrong = write_master(tmp_path / "one.key"), write_master(tmp_path / "two.key")
    env = {"PENSTOCK_KEYS__MASTER_FILE": str(first)}
    with Server(tmp_path / "data", port=stable_port(), env=env) as server:
        client = sqs_client(server.url)
        url = new_queue(client, "kept", **SSE)
        send_planted(client, url)
        assert server.stop() == 0
        server.env = {"PENSTOCK_KEYS__MASTER_FILE": str(wrong)}
        with pytest.raises(ServerFailed, match="master key"):
            server.start()
        server.env = env
        server.start()
        assert [m["Body"] for m in receive(client, url)] == [f"{BODY} 0"]
        client.close()


# ── Somebody at the disk ─────────────────────────────────────────────────────────────────────
def sealed_segments(folder: Path) -> list[Path]:
    filled = [path for path in folder.rglob("*.log") if path.stat().st_size > HEADER_BYTES]
    return [path for path in filled if parse_header(path.read_bytes()).is_sealed]


def replace_segment(segment: Path, content: bytes) -> None:
    """And everything beside it that could tell: it is made anew from the segment."""
    segment.write_bytes(content)
    for path in segment.parent.iterdir():
        if path.suffix in (".check", ".index", ".time", ".checkpoint", "") and path.is_file():
            path.unlink()


def change_sealed(folder: Path, which: int) -> None:
    """Flip a bit in the content of the n-th sealed record of the only topic, with checksums that
    fit: whoever can write to a disk can do that."""
    [segment] = sealed_segments(folder)
    content = bytearray(segment.read_bytes())
    position = found = 0
    while position < len(content):
        header = parse_header(content, position)
        end = position + header.total_bytes
        batch = bytes(content[position:end])
        if header.is_sealed:
            for record in iter_records(batch):
                if found == which:
                    assert record.value is not None
                    at = position + batch.index(record.value) + len(record.value) - 1
                    content[at] ^= 1
                    crc = crc32c(bytes(content[position + CRC_FROM : end]))
                    content[position + 17 : position + 21] = crc.to_bytes(4, "big")
                found += 1
        position = end
    assert found > which
    replace_segment(segment, bytes(content))


def quarantined(server: Server, *, token: str = "") -> float:
    return server.metrics(token=token)["penstock_messages_quarantined_total"]


def test_a_changed_message_is_delivered_to_nobody_and_the_others_are(
    own: Server, client: Any
) -> None:
    url = new_queue(client, "tampered", **SSE)
    for number in range(5):
        send_planted(client, url, number)
    assert own.stop() == 0
    change_sealed(own.data, 2)
    own.start()
    got = receive(client, url, VisibilityTimeout=5)
    assert [m["Body"] for m in got] == [f"{BODY} {n}" for n in (0, 1, 3, 4)]
    for message in got:
        client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    assert quarantined(own) == 1
    shown = json.loads(admin_get(own, "/api/v1/queues/tampered/messages"))
    assert [m.get("is_quarantined") for m in shown["messages"]] == [True]
    assert "body" not in shown["messages"][0]
    # After its attempts it goes where all go that nobody could work on, as it is.
    dead = new_queue(client, "dead")
    arn = client.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])
    rule = {"deadLetterTargetArn": arn["Attributes"]["QueueArn"], "maxReceiveCount": 1}
    client.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": json.dumps(rule)})

    def dead_letters() -> int:
        assert receive(client, url) == []
        counts = client.get_queue_attributes(
            QueueUrl=dead, AttributeNames=["ApproximateNumberOfMessages"]
        )
        return int(counts["Attributes"]["ApproximateNumberOfMessages"])

    assert eventually(dead_letters, seconds=30, what="a dead letter") == 1
    assert receive(client, dead) == []
    assert "planted" not in own.stderr


def test_a_changed_record_is_a_gap_for_readers_by_offset(own: Server) -> None:
    create_topic(AdminClient({"bootstrap.servers": own.kafka}), "secret", penstock_encryption=True)
    send_kafka(own, "secret", 5)
    assert own.stop() == 0
    change_sealed(own.data, 3)
    own.start()
    expected = expected_kafka(5)
    assert read_kafka(own, "secret", 4) == [*expected[:3], *expected[4:]]
    assert quarantined(own) == 1
    assert own.stop() == 0
    assert files_with(own.data, PLANTED) == []


def test_shares_of_an_encrypted_topic_get_what_opens_and_nothing_else(
    own: Server, client: Any
) -> None:
    kafka_admin = AdminClient({"bootstrap.servers": own.kafka})
    create_topic(kafka_admin, "secret", penstock_encryption=True)
    send_kafka(own, "secret", 5)
    assert own.stop() == 0
    change_sealed(own.data, 0)
    own.start()
    url = new_queue(client, "secret:jobs", PenstockStart="earliest")
    assert [m["Body"] for m in receive(client, url)] == [f"{BODY} {n}" for n in range(1, 5)]
    configure(kafka_admin, "group", share_auto_offset_reset="earliest")
    with sharing(own.kafka, "group", "secret") as member:
        taken = take(member)
        assert [(m.key(), m.value(), m.headers()) for m in taken] == expected_kafka(5)[1:]
    assert quarantined(own) == 1


def test_what_was_sealed_in_one_queue_opens_in_no_other_tenants(own: Server, client: Any) -> None:
    """A segment copied over that of another account's queue: same ciphertext, same checksums."""
    url = new_queue(client, "mine", **SSE)
    send_planted(client, url)
    other = boto3.client(
        "sqs",
        endpoint_url=own.url,
        region_name=REGION,
        aws_access_key_id="222222222222",  # while nobody has to prove it, the account
        aws_secret_access_key="testing",
    )
    theirs = new_queue(other, "theirs", **SSE)
    assert "222222222222" in theirs
    other.send_message(QueueUrl=theirs, MessageBody="x")
    assert own.stop() == 0
    taken, mine = sorted(sealed_segments(own.data), key=lambda path: path.stat().st_size)
    replace_segment(taken, mine.read_bytes())
    own.start()
    assert receive(other, theirs) == []
    assert quarantined(own) == 1
    assert [m["Body"] for m in receive(client, url)] == [f"{BODY} 0"]
    other.close()
