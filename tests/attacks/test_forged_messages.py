"""Records whose ``penstock`` header claims that the server wrote them: who sent the message, how
often it was received, when, and from which queue it came. Any Kafka producer can write that header.
The server must ignore it, or a move task would carry messages into queues of other tenants and into
the server's own topics."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from botocore.credentials import Credentials
from confluent_kafka.admin import (
    AdminClient,
)
from tests.attacks.kit import EVERYTHING, REGION, Operator, code_of, sqs_as
from tests.attacks.test_tenants import dotted, settings
from tests.compat.kafka.confluent import kinds, producer
from tests.harness.client import Fault, RawClient
from tests.harness.patience import eventually
from tests.harness.server import Server

from penstock.model.names import ACCOUNT_DEFAULT, INTERNAL_NAMES, OPERATOR_NAMES, queue_arn

ALL = ["All"]
INTERNAL = ("__audit", "__usage", "__telemetry", "__groups", "__transactions")


def forged(source_arn: str | None, **changes: Any) -> list[tuple[str, bytes]]:
    """The header of a message that died in ``source_arn``, as the server itself writes it."""
    fields = {
        "message_id": b"f" * 16,
        "sender": "A:ceo",
        "dedup_id": None,
        "delay_ms": None,
        "trace": None,
        "attempts": 0,
        "source_arn": source_arn,
        "sent_at_ms": None,
        **changes,
    }
    return [("penstock", msgspec.msgpack.encode(list(fields.values())))]


def produce(server: Server, credentials: Credentials | None, topic: str, headers: Any) -> None:
    client = producer(server.kafka, **({} if credentials is None else settings(credentials)))
    client.produce(topic, b"forged", key=b"k", headers=headers)
    assert client.flush(20) == 0


def arn_of(client: Any, url: str) -> str:
    found = client.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
    return str(found["Attributes"]["QueueArn"])


class Attacker:
    """A tenant with a queue ``src`` whose dead letters go to ``dlq``."""

    def __init__(self, server: Server, operator: Operator, name: Callable[..., str]) -> None:
        self.server = server
        self.tenant = operator.tenant()
        _, self.credentials = operator.user(EVERYTHING, tenant=self.tenant)
        self.client = sqs_as(server, self.credentials)
        self.dlq = name()
        self.url = self.client.create_queue(QueueName=self.dlq)["QueueUrl"]
        self.arn = arn_of(self.client, self.url)
        self.name_as_target()

    def name_as_target(self, source: str = "") -> str:
        redrive = json.dumps({"deadLetterTargetArn": self.arn, "maxReceiveCount": 1})
        made = self.client.create_queue(
            QueueName=source or f"{self.dlq}-src", Attributes={"RedrivePolicy": redrive}
        )
        return str(made["QueueUrl"])

    def move(self) -> tuple[str, str | None]:
        """Status and reason of a move task that has ended."""
        self.client.start_message_move_task(SourceArn=self.arn)

        def task() -> Any:
            return self.client.list_message_move_tasks(SourceArn=self.arn)["Results"][0]

        eventually(lambda: task()["Status"] != "RUNNING", seconds=20, what="the end of the task")
        ended = task()
        return ended["Status"], ended.get("FailureReason")

    def held(self) -> int:
        found = self.client.get_queue_attributes(
            QueueUrl=self.url, AttributeNames=["ApproximateNumberOfMessages"]
        )
        return int(found["Attributes"]["ApproximateNumberOfMessages"])


@pytest.fixture
def attacker(locked: Server, operator: Operator, name: Callable[..., str]) -> Attacker:
    return Attacker(locked, operator, name)


FAILED = ("FAILED", "CouldNotDetermineMessageSource")


def test_a_forged_source_does_not_reach_another_tenants_queue(
    locked: Server, root: Any, attacker: Attacker, name: Callable[..., str]
) -> None:
    victim = root.create_queue(QueueName=name())["QueueUrl"]
    produce(locked, attacker.credentials, attacker.dlq, forged(arn_of(root, victim)))
    assert attacker.move() == FAILED
    assert "Messages" not in root.receive_message(QueueUrl=victim)
    assert attacker.held() == 1


@pytest.mark.parametrize("topic", INTERNAL)
def test_a_forged_source_does_not_reach_the_servers_own_topics(
    locked: Server, attacker: Attacker, topic: str
) -> None:
    arn = queue_arn(ACCOUNT_DEFAULT, REGION, topic)
    produce(locked, attacker.credentials, attacker.dlq, forged(arn))
    assert attacker.move() == FAILED
    assert attacker.held() == 1


def test_a_forged_source_does_not_reach_a_queue_that_the_caller_may_not_send_to(
    locked: Server, operator: Operator, attacker: Attacker, name: Callable[..., str]
) -> None:
    """Everything but the one queue is allowed to this user of the same tenant."""
    secret = name()
    url = attacker.client.create_queue(QueueName=secret)["QueueUrl"]
    deny = {"Effect": "Deny", "Action": "sqs:SendMessage", "Resource": f"arn:aws:sqs:*:*:{secret}"}
    _, credentials = operator.user(EVERYTHING, deny, tenant=attacker.tenant)
    attacker.client = sqs_as(locked, credentials)
    assert code_of(attacker.client.send_message, QueueUrl=url, MessageBody="x") == "AccessDenied"
    produce(locked, credentials, attacker.dlq, forged(arn_of(attacker.client, url)))
    assert attacker.move() == FAILED
    assert "Messages" not in attacker.client.receive_message(QueueUrl=url)


def test_a_stream_with_forged_records_that_becomes_a_queue_moves_none_of_them(
    locked: Server, root: Any, attacker: Attacker, name: Callable[..., str]
) -> None:
    """Produce does not open the records of a stream: they are judged when they are read."""
    victim = root.create_queue(QueueName=name())["QueueUrl"]
    stream = name()
    admin = AdminClient({"bootstrap.servers": locked.kafka, **dotted(attacker.credentials)})
    admin.create_topics([kinds.NewTopic(stream, 1)])[stream].result(20)
    produce(locked, attacker.credentials, stream, forged(arn_of(root, victim)))
    entry = kinds.ConfigEntry(
        "penstock.queue", "true", incremental_operation=kinds.AlterConfigOpType.SET
    )
    change = kinds.ConfigResource(
        kinds.ConfigResource.Type.TOPIC, stream, incremental_configs=[entry]
    )
    [changed] = admin.incremental_alter_configs([change]).values()
    changed.result(20)
    attacker.url = attacker.client.get_queue_url(QueueName=stream)["QueueUrl"]
    attacker.arn = arn_of(attacker.client, attacker.url)
    attacker.name_as_target(f"{stream}-src")
    assert attacker.held() == 1
    assert attacker.move() == FAILED
    assert "Messages" not in root.receive_message(QueueUrl=victim)


def test_a_queue_that_became_a_source_later_is_not_written_to(
    locked: Server, attacker: Attacker, name: Callable[..., str]
) -> None:
    """A real dead letter whose queue no longer names the dead-letter queue stays where it is: the
    caller was not asked whether it may send there."""
    former = attacker.name_as_target(name())
    attacker.client.send_message(QueueUrl=former, MessageBody="died here")
    attacker.client.receive_message(QueueUrl=former, VisibilityTimeout=0)
    attacker.client.receive_message(QueueUrl=former, VisibilityTimeout=0)
    eventually(lambda: attacker.held() == 1, seconds=20, what="the dead letter")
    attacker.client.set_queue_attributes(QueueUrl=former, Attributes={"RedrivePolicy": ""})
    assert attacker.move() == FAILED
    assert attacker.held() == 1


def test_real_dead_letters_go_back_with_their_sender(
    locked: Server, attacker: Attacker, name: Callable[..., str]
) -> None:
    source = attacker.name_as_target(name())
    attacker.client.send_message(QueueUrl=source, MessageBody="real")
    attacker.client.receive_message(QueueUrl=source, VisibilityTimeout=0)
    attacker.client.receive_message(QueueUrl=source, VisibilityTimeout=0)
    [letter] = attacker.client.receive_message(
        QueueUrl=attacker.url, WaitTimeSeconds=10, VisibilityTimeout=0, AttributeNames=ALL
    )["Messages"]
    shown = letter["Attributes"]
    assert shown["DeadLetterQueueSourceArn"] == arn_of(attacker.client, source)
    assert int(shown["ApproximateReceiveCount"]) > 1
    assert attacker.move()[0] == "COMPLETED"
    [back] = attacker.client.receive_message(
        QueueUrl=source, WaitTimeSeconds=10, AttributeNames=ALL
    )["Messages"]
    assert (back["Body"], back["Attributes"]["SenderId"]) == ("real", shown["SenderId"])


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"attempts": -1_000},
        {"attempts": 2**64 - 1},
        {"delay_ms": 2**63},
        {"sent_at_ms": 0},
        {"sent_at_ms": 2**62},
    ],
    ids=str,
)
def test_a_producer_cannot_choose_what_only_the_server_knows(
    open_server: Server, bystander: RawClient, name: Callable[..., str], changes: dict[str, int]
) -> None:
    queue = name()
    url = bystander.call("CreateQueue", {"QueueName": queue})["QueueUrl"]
    bystander.call("SendMessage", {"QueueUrl": url, "MessageBody": "before"})
    produce(open_server, None, queue, forged("arn:aws:sqs:us-east-1:1:x", **changes))
    asked = {"QueueUrl": url, "MaxNumberOfMessages": 10, "WaitTimeSeconds": 5}
    found: dict[str, Any] = {}
    while len(found) < 2:
        messages = bystander.call("ReceiveMessage", {**asked, "AttributeNames": ALL})["Messages"]
        found |= {each["Body"]: each["Attributes"] for each in messages}
    shown, before = found["forged"], found["before"]
    assert shown["ApproximateReceiveCount"] == "1"
    assert shown.get("SenderId") != "A:ceo"
    assert "DeadLetterQueueSourceArn" not in shown
    assert abs(int(shown["SentTimestamp"]) - int(before["SentTimestamp"])) < 60_000


@pytest.mark.parametrize("topic", sorted(INTERNAL_NAMES | OPERATOR_NAMES))
def test_no_queue_gets_the_name_of_a_topic_of_the_server(
    bystander: RawClient, stranger: Any, topic: str
) -> None:
    with pytest.raises(Fault) as caught:
        bystander.call("CreateQueue", {"QueueName": topic})
    assert (caught.value.status, "reserved" in caught.value.message) == (400, True)
    assert code_of(stranger.create_queue, QueueName=topic) == "InvalidParameterValue"
