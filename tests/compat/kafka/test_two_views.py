"""One log, two views: what boto3 sends to a queue is read by Kafka consumers, what Kafka producers
send to a queue's topic is received with boto3; before and after a restart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from tests.compat.conftest import sqs_client
from tests.compat.kafka.confluent import consumer, kinds, producer, read, read_all, send
from tests.harness.patience import eventually
from tests.harness.server import Server

Name = Callable[..., str]


def receive(client: Any, url: str, count: int) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []

    def more() -> bool:
        messages.extend(
            client.receive_message(
                QueueUrl=url,
                MaxNumberOfMessages=10,
                AttributeNames=["All"],
                MessageAttributeNames=["All"],
            ).get("Messages", [])
        )
        return len(messages) >= count

    eventually(more, seconds=20, what=f"{count} messages")
    assert len(messages) == count
    return messages


def headers_of(message: Any) -> dict[str, bytes]:
    """What a consumer is interested in: our own system header stands first and is left out."""
    headers = dict(message.headers() or [])
    headers.pop("penstock", None)
    return headers


def test_a_consumer_reads_what_was_sent_to_a_queue(
    kafka_sqs: Any, bootstrap: str, name: Name
) -> None:
    queue = name("queue")
    url = kafka_sqs.create_queue(QueueName=queue)["QueueUrl"]
    kafka_sqs.send_message(
        QueueUrl=url,
        MessageBody="body ☃",
        MessageAttributes={
            "colour": {"DataType": "String", "StringValue": "blue"},
            "size": {"DataType": "Number", "StringValue": "42"},
            "blob": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
        },
    )
    (got,) = read_all(bootstrap, queue)
    assert got.value() == "body ☃".encode()
    assert got.key() is None
    headers = headers_of(got)
    assert (headers["colour"], headers["size"], headers["blob"]) == (b"blue", b"42", b"\x00\xff")


def test_leases_and_deletes_of_a_queue_are_invisible_to_consumers(
    kafka_sqs: Any, bootstrap: str, name: Name
) -> None:
    queue = name("queue")
    url = kafka_sqs.create_queue(QueueName=queue)["QueueUrl"]
    for number in range(10):
        kafka_sqs.send_message(QueueUrl=url, MessageBody=str(number))
        for message in kafka_sqs.receive_message(QueueUrl=url).get("Messages", []):
            kafka_sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    kafka_sqs.send_message(QueueUrl=url, MessageBody="last")
    got = read_all(bootstrap, queue)
    assert [message.value() for message in got] == [b"%d" % n for n in range(10)] + [b"last"]
    offsets = [message.offset() for message in got]
    assert offsets == sorted(set(offsets))
    assert offsets[-1] > 10, "leases and deletes have offsets of their own"


def test_every_group_reads_all_of_a_queue(kafka_sqs: Any, bootstrap: str, name: Name) -> None:
    queue = name("queue")
    url = kafka_sqs.create_queue(QueueName=queue)["QueueUrl"]
    for number in range(5):
        kafka_sqs.send_message(QueueUrl=url, MessageBody=str(number))
    for _ in range(2):
        with consumer(bootstrap, name("group")) as reader:
            reader.subscribe([queue])
            got = read(reader, 5)
            assert [message.value() for message in got] == [b"%d" % n for n in range(5)]
            reader.commit(got[-1], asynchronous=False)
    assert len(receive(kafka_sqs, url, 5)) == 5, "readers by offset take nothing from the queue"


def test_the_group_of_a_fifo_message_is_its_key(kafka_sqs: Any, bootstrap: str, name: Name) -> None:
    queue = name("queue") + ".fifo"
    url = kafka_sqs.create_queue(QueueName=queue, Attributes={"FifoQueue": "true"})["QueueUrl"]
    for number in range(6):
        kafka_sqs.send_message(
            QueueUrl=url,
            MessageBody=str(number),
            MessageGroupId=f"g{number % 2}",
            MessageDeduplicationId=str(number),
        )
    partitions = len(
        AdminClient({"bootstrap.servers": bootstrap})
        .list_topics(queue, 10)
        .topics[queue]
        .partitions
    )
    got = read_all(bootstrap, queue, partitions)
    by_key: dict[bytes, list[int]] = {}
    for message in got:
        by_key.setdefault(message.key(), []).append(int(message.value()))
    assert by_key == {b"g0": [0, 2, 4], b"g1": [1, 3, 5]}


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_queue_hands_out_what_a_producer_sent(
    kafka_sqs: Any, bootstrap: str, name: Name, codec: str
) -> None:
    queue = name("queue")
    url = kafka_sqs.create_queue(QueueName=queue)["QueueUrl"]
    made = producer(bootstrap, compression_type=codec)
    values = [f"from kafka {number} ☃".encode() for number in range(10)]
    send(made, queue, values, key=b"k", headers=[("colour", b"blue")])
    messages = receive(kafka_sqs, url, 10)
    assert sorted(message["Body"].encode() for message in messages) == sorted(values)
    assert len({message["MessageId"] for message in messages}) == 10
    for message in messages:
        assert message["MessageAttributes"]["colour"]["StringValue"] == "blue"
        kafka_sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    counts = kafka_sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert counts["ApproximateNumberOfMessages"] == "0"
    assert counts["ApproximateNumberOfMessagesNotVisible"] == "0"
    assert len(read_all(bootstrap, queue)) == 10, "the log keeps what the queue has finished"


def test_a_parked_receive_wakes_for_a_produced_record(
    kafka_sqs: Any, bootstrap: str, name: Name
) -> None:
    from concurrent.futures import ThreadPoolExecutor

    queue = name("queue")
    url = kafka_sqs.create_queue(QueueName=queue)["QueueUrl"]
    made = producer(bootstrap, linger_ms=0)
    made.list_topics(queue, 10)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(kafka_sqs.receive_message, QueueUrl=url, WaitTimeSeconds=20)
        with pytest.raises(TimeoutError):
            waiting.result(timeout=0.5)
        send(made, queue, [b"wake"])
        (message,) = waiting.result(timeout=25)["Messages"]  # none if it waits its time out
    assert message["Body"] == "wake"


def test_a_topic_opened_as_a_queue_hands_out_its_records(
    kafka_sqs: Any, bootstrap: str, admin: AdminClient, name: Name
) -> None:
    topic = name()
    asked = kinds.NewTopic(topic, 2, 1, config={"penstock.queue": "true"})
    (future,) = admin.create_topics([asked]).values()
    future.result(10)
    send(producer(bootstrap), topic, [b"0"], partition=0)
    send(producer(bootstrap), topic, [b"1"], partition=1)
    url = kafka_sqs.get_queue_url(QueueName=topic)["QueueUrl"]
    assert {message["Body"] for message in receive(kafka_sqs, url, 2)} == {"0", "1"}


def test_both_views_are_kept_over_a_restart(own: Server) -> None:
    client = sqs_client(own.url)
    url = client.create_queue(QueueName="both")["QueueUrl"]
    attributes = {"n": {"DataType": "Number", "StringValue": "7"}}
    client.send_message(QueueUrl=url, MessageBody="from sqs", MessageAttributes=attributes)
    made = producer(own.kafka, enable_idempotence=True)
    send(made, "both", [b"from kafka"], key=b"k", headers=[("h", b"v")])
    before = [(m.offset(), m.key(), m.value(), m.headers()) for m in read_all(own.kafka, "both")]
    own.restart()
    after = [(m.offset(), m.key(), m.value(), m.headers()) for m in read_all(own.kafka, "both")]
    assert after == before
    messages = {message["Body"]: message for message in receive(client, url, 2)}
    assert set(messages) == {"from sqs", "from kafka"}
    assert messages["from sqs"]["MessageAttributes"]["n"]["StringValue"] == "7"
    assert messages["from kafka"]["MessageAttributes"]["h"]["StringValue"] == "v"
    for message in messages.values():
        client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    own.restart()
    assert client.receive_message(QueueUrl=url).get("Messages") is None
    assert {m.value() for m in read_all(own.kafka, "both")} == {b"from sqs", b"from kafka"}
    send(made, "both", [b"again"])
    assert receive(client, url, 1)[0]["Body"] == "again"
    client.close()
