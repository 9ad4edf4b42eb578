"""``topic:group`` as a queue name: boto3 reads a topic through a lease cursor of the group's own,
beside Kafka consumers and beside the queue that the topic may be."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError
from tests.compat.conftest import sqs_client
from tests.compat.kafka.confluent import producer, read_all, send
from tests.compat.kafka.conftest import MakeTopic
from tests.compat.kafka.test_two_views import receive
from tests.harness.patience import eventually
from tests.harness.server import Server

Name = Callable[..., str]
NO_QUEUE = r"NonExistentQueue|QueueDoesNotExist"


def made(client: Any, queue: str, **attributes: str) -> str:
    url: str = client.create_queue(QueueName=queue, Attributes=attributes)["QueueUrl"]
    return url


def listing(client: Any, prefix: str) -> list[str]:
    found: list[str] = client.list_queues(QueueNamePrefix=prefix).get("QueueUrls", [])
    return found


def bodies(messages: list[dict[str, Any]]) -> list[str]:
    return sorted(message["Body"] for message in messages)


def test_two_groups_each_get_what_a_kafka_producer_sends(
    kafka_sqs: Any, bootstrap: str, make_topic: MakeTopic
) -> None:
    topic = make_topic(partitions=3)
    late = made(kafka_sqs, f"{topic}:late")
    send(producer(bootstrap), topic, [b"m%d" % n for n in range(9)])
    early = made(kafka_sqs, f"{topic}:early", PenstockStart="earliest", VisibilityTimeout="60")
    for url in (late, early):
        got = receive(kafka_sqs, url, 9)
        assert bodies(got) == sorted(f"m{n}" for n in range(9))
        for message in got:
            kafka_sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        shown = kafka_sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
        assert shown["ApproximateNumberOfMessages"] == "0"
        assert shown["QueueArn"].endswith(url.rpartition("/")[2])
    assert len(read_all(bootstrap, topic, 3)) == 9, "offsets know nothing of leases"


def test_a_share_of_a_queue_leaves_the_queue_alone(kafka_sqs: Any, name: Name) -> None:
    queue = name("queue")
    url = made(kafka_sqs, queue)
    share = made(kafka_sqs, f"{queue}:audit")
    kafka_sqs.send_message(
        QueueUrl=url,
        MessageBody="hello",
        MessageAttributes={"colour": {"DataType": "String", "StringValue": "blue"}},
    )
    (copy,) = receive(kafka_sqs, share, 1)
    assert copy["MessageAttributes"]["colour"]["StringValue"] == "blue"
    kafka_sqs.delete_message(QueueUrl=share, ReceiptHandle=copy["ReceiptHandle"])
    (own,) = receive(kafka_sqs, url, 1)
    assert own["Body"] == "hello"
    assert own["Attributes"]["ApproximateReceiveCount"] == "1"


def test_a_receipt_of_one_share_is_none_of_another(
    kafka_sqs: Any, bootstrap: str, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    one, two = made(kafka_sqs, f"{topic}:one"), made(kafka_sqs, f"{topic}:two")
    send(producer(bootstrap), topic, [b"m"])
    (message,) = receive(kafka_sqs, one, 1)
    with pytest.raises(ClientError, match="ReceiptHandleIsInvalid"):
        kafka_sqs.delete_message(QueueUrl=two, ReceiptHandle=message["ReceiptHandle"])


def test_a_long_poll_on_a_share_wakes_for_a_kafka_record(
    kafka_sqs: Any, bootstrap: str, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    url = made(kafka_sqs, f"{topic}:waiting")
    sender = threading.Timer(0.3, lambda: send(producer(bootstrap), topic, [b"woken"]))
    sender.start()
    got = kafka_sqs.receive_message(QueueUrl=url, WaitTimeSeconds=15).get("Messages", [])
    sender.join()
    assert bodies(got) == ["woken"]


def test_dead_letters_of_a_share_go_to_its_queue(
    kafka_sqs: Any, bootstrap: str, make_topic: MakeTopic, name: Name
) -> None:
    letters = made(kafka_sqs, name("letters"))
    arn = kafka_sqs.get_queue_attributes(QueueUrl=letters, AttributeNames=["QueueArn"])
    topic = make_topic()
    rule = f'{{"deadLetterTargetArn":"{arn["Attributes"]["QueueArn"]}","maxReceiveCount":"1"}}'
    url = made(kafka_sqs, f"{topic}:g", RedrivePolicy=rule, VisibilityTimeout="0")
    send(producer(bootstrap), topic, [b"poison"])
    receive(kafka_sqs, url, 1)
    assert "Messages" not in kafka_sqs.receive_message(QueueUrl=url)
    assert bodies(receive(kafka_sqs, letters, 1)) == ["poison"]


def test_what_a_share_cannot_do_is_said(kafka_sqs: Any, make_topic: MakeTopic, name: Name) -> None:
    topic = make_topic()
    url = made(kafka_sqs, f"{topic}:g")
    assert made(kafka_sqs, f"{topic}:g") == url, "asking again is harmless"
    with pytest.raises(ClientError, match=f"send to {topic}"):
        kafka_sqs.send_message(QueueUrl=url, MessageBody="x")
    with pytest.raises(ClientError, match=NO_QUEUE):
        made(kafka_sqs, f"{name('nothing')}:g")
    with pytest.raises(ClientError, match="an attribute of the source topic"):
        made(kafka_sqs, f"{topic}:other", MessageRetentionPeriod="60")
    with pytest.raises(ClientError, match="PenstockStart"):
        made(kafka_sqs, f"{topic}:other", PenstockStart="yesterday")
    fifo = name("f") + ".fifo"
    made(kafka_sqs, fifo, FifoQueue="true")
    with pytest.raises(ClientError, match="FIFO"):
        made(kafka_sqs, f"{fifo}:g")


def test_shares_are_listed_deleted_and_gone_with_their_topic(
    kafka_sqs: Any, bootstrap: str, make_topic: MakeTopic, admin: Any
) -> None:
    topic = make_topic()
    one, two = made(kafka_sqs, f"{topic}:one"), made(kafka_sqs, f"{topic}:two")
    assert listing(kafka_sqs, topic) == [one, two], "the stream itself is no queue"
    assert f"{topic}:one" not in admin.list_topics(timeout=10).topics
    kafka_sqs.delete_queue(QueueUrl=one)
    assert listing(kafka_sqs, topic) == [two]
    (future,) = admin.delete_topics([topic]).values()
    future.result(10)
    # They go behind the topic, in the background.
    eventually(lambda: not listing(kafka_sqs, topic), seconds=10, what="the shares to go")
    with pytest.raises(ClientError, match=NO_QUEUE):
        kafka_sqs.get_queue_attributes(QueueUrl=two, AttributeNames=["QueueArn"])


def test_a_restart_keeps_where_each_share_stands(own: Server) -> None:
    client = sqs_client(own.url)
    queue = client.create_queue(QueueName="orders")["QueueUrl"]
    share = client.create_queue(QueueName="orders:billing")["QueueUrl"]
    for number in range(5):
        client.send_message(QueueUrl=queue, MessageBody=f"m{number}")
    for message in receive(client, share, 5)[:3]:
        client.delete_message(QueueUrl=share, ReceiptHandle=message["ReceiptHandle"])
    own.kill()
    own.start()
    shown = client.get_queue_attributes(QueueUrl=share, AttributeNames=["All"])["Attributes"]
    assert shown["ApproximateNumberOfMessages"] == "0"
    assert shown["ApproximateNumberOfMessagesNotVisible"] == "2"
    assert len(receive(client, queue, 5)) == 5
    client.close()
