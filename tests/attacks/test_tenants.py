"""One tenant reaching for what is another's: by queue URL, ARN, receipt, task handle, dead-letter
target, group, offset. Whatever is asked, the answer is the one for a queue that does not exist, and
the owner notices nothing."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from tests.attacks.kit import EVERYTHING, NO_QUEUE, ROOT, Operator, code_of
from tests.compat.kafka.confluent import consumer, kinds, producer, send
from tests.harness.server import Server

from penstock.frontend.aws.sqs.actions import ACTIONS

Arguments = dict[str, Any]


@pytest.fixture(scope="module")
def victim(root: Any) -> Iterator[dict[str, Any]]:
    """A queue in use: messages waiting, one leased, dead letters, a task to move them."""
    dead = root.create_queue(QueueName="victim-dead")["QueueUrl"]
    dead_arn = arn_of(root, dead)
    redrive = json.dumps({"deadLetterTargetArn": dead_arn, "maxReceiveCount": 1})
    url = root.create_queue(QueueName="victim", Attributes={"RedrivePolicy": redrive})["QueueUrl"]
    root.tag_queue(QueueUrl=url, Tags={"owner": "root"})
    root.send_message(QueueUrl=url, MessageBody="mine")
    (message,) = root.receive_message(QueueUrl=url, VisibilityTimeout=600)["Messages"]
    for number in range(3):
        root.send_message(QueueUrl=dead, MessageBody=f"dead {number}")
    task = root.start_message_move_task(
        SourceArn=dead_arn, DestinationArn=arn_of(root, url), MaxNumberOfMessagesPerSecond=1
    )["TaskHandle"]
    found = {
        "QueueUrl": url,
        "Receipt": message["ReceiptHandle"],
        "Arn": arn_of(root, url),
        "DeadUrl": dead,
        "DeadArn": dead_arn,
        "TaskHandle": task,
        "account": url.split("/")[-2],
    }
    yield found
    root.delete_queue(QueueUrl=url)
    root.delete_queue(QueueUrl=dead)


def arn_of(client: Any, url: str) -> str:
    names = ["QueueArn"]
    got = client.get_queue_attributes(QueueUrl=url, AttributeNames=names)
    return str(got["Attributes"]["QueueArn"])


def about(victim: Arguments, operation: str) -> Arguments:
    """What a stranger would send to do this to the victim."""
    url, receipt = victim["QueueUrl"], victim["Receipt"]
    entry = {"Id": "1", "ReceiptHandle": receipt}
    return {
        "AddPermission": {
            "QueueUrl": url,
            "Label": "in",
            "AWSAccountIds": ["123456789012"],
            "Actions": ["*"],
        },
        "CancelMessageMoveTask": {"TaskHandle": victim["TaskHandle"]},
        "ChangeMessageVisibility": {
            "QueueUrl": url,
            "ReceiptHandle": receipt,
            "VisibilityTimeout": 0,
        },
        "ChangeMessageVisibilityBatch": {
            "QueueUrl": url,
            "Entries": [{**entry, "VisibilityTimeout": 0}],
        },
        "DeleteMessage": {"QueueUrl": url, "ReceiptHandle": receipt},
        "DeleteMessageBatch": {"QueueUrl": url, "Entries": [entry]},
        "DeleteQueue": {"QueueUrl": url},
        "GetQueueAttributes": {"QueueUrl": url, "AttributeNames": ["All"]},
        "GetQueueUrl": {"QueueName": "victim", "QueueOwnerAWSAccountId": victim["account"]},
        "ListDeadLetterSourceQueues": {"QueueUrl": victim["DeadUrl"]},
        "ListMessageMoveTasks": {"SourceArn": victim["DeadArn"]},
        "ListQueueTags": {"QueueUrl": url},
        "PurgeQueue": {"QueueUrl": url},
        "ReceiveMessage": {"QueueUrl": url, "VisibilityTimeout": 0},
        "RemovePermission": {"QueueUrl": url, "Label": "in"},
        "SendMessage": {"QueueUrl": url, "MessageBody": "planted"},
        "SendMessageBatch": {"QueueUrl": url, "Entries": [{"Id": "1", "MessageBody": "planted"}]},
        "SetQueueAttributes": {"QueueUrl": url, "Attributes": {"VisibilityTimeout": "0"}},
        "StartMessageMoveTask": {"SourceArn": victim["DeadArn"]},
        "TagQueue": {"QueueUrl": url, "Tags": {"owner": "stranger"}},
        "UntagQueue": {"QueueUrl": url, "TagKeys": ["owner"]},
    }[operation]


# Neither is about a queue of somebody's: one makes the caller's own, one lists those.
ABOUT_A_QUEUE = sorted(set(ACTIONS) - {"CreateQueue", "ListQueues"})
# Not about a queue that can be missing, but about a task or its source.
ABOUT_A_TASK = {"CancelMessageMoveTask", "ListMessageMoveTasks", "StartMessageMoveTask"}


def call_named(client: Any, operation: str) -> Any:
    snake = "".join(f"_{c.lower()}" if c.isupper() else c for c in operation).lstrip("_")
    return getattr(client, snake)


def told(client: Any, operation: str, arguments: Arguments) -> tuple[str, int, str]:
    with pytest.raises(ClientError) as caught:
        call_named(client, operation)(**arguments)
    response = caught.value.response
    status: int = response["ResponseMetadata"]["HTTPStatusCode"]
    return response["Error"]["Code"], status, response["Error"]["Message"]


def state_of(root: Any, victim: Arguments) -> Arguments:
    """All that a stranger could have changed."""
    url = victim["QueueUrl"]
    shown = root.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    kept = {name: shown.get(name) for name in ("VisibilityTimeout", "Policy", "RedrivePolicy")}
    leased = shown["ApproximateNumberOfMessagesNotVisible"]
    tags = root.list_queue_tags(QueueUrl=url).get("Tags", {})
    tasks = root.list_message_move_tasks(SourceArn=victim["DeadArn"])["Results"]
    return {**kept, "leased": leased, "tags": tags, "tasks": len(tasks)}


@pytest.mark.parametrize("operation", ABOUT_A_QUEUE)
def test_another_tenants_queue_is_as_good_as_missing(
    root: Any, stranger: Any, victim: Arguments, operation: str
) -> None:
    before = state_of(root, victim)
    arguments = about(victim, operation)
    got = told(stranger, operation, arguments)
    text = json.dumps(arguments).replace("/victim", "/no-such").replace(":victim", ":no-such")
    missing = json.loads(text.replace('"victim"', '"no-such"'))
    if operation == "CancelMessageMoveTask":
        missing = {"TaskHandle": another_task(victim["TaskHandle"])}
        assert got[0] == "ResourceNotFoundException", got
    else:
        assert got[0] in (NO_QUEUE, "ResourceNotFoundException"), got
        assert got[2].replace("victim", "no-such") == told(stranger, operation, missing)[2]
    assert got[:2] == told(stranger, operation, missing)[:2], "it tells that the queue exists"
    assert state_of(root, victim) == before


def another_task(handle: str) -> str:
    """One that was never begun, in the same spelling."""
    text = base64.b64decode(handle).decode()
    fields = json.loads(text)
    key = next(key for key in fields if "id" in key.lower())
    return base64.b64encode(text.replace(fields[key], fields[key][::-1]).encode()).decode()


def test_lists_show_only_ones_own(root: Any, stranger: Any, victim: Arguments) -> None:
    assert victim["QueueUrl"] in root.list_queues(QueueNamePrefix="victim")["QueueUrls"]
    theirs = stranger.list_queues().get("QueueUrls", [])
    account = victim["account"]
    assert not [url for url in theirs if f"/{account}/" in url]


def test_a_queue_of_the_same_name_is_another_queue(
    root: Any, stranger: Any, victim: Arguments
) -> None:
    url = stranger.create_queue(QueueName="victim")["QueueUrl"]
    assert url != victim["QueueUrl"]
    stranger.send_message(QueueUrl=url, MessageBody="theirs")
    before = state_of(root, victim)
    for operation in ("DeleteMessage", "ChangeMessageVisibility"):
        arguments = {**about(victim, operation), "QueueUrl": url}
        assert code_of(call_named(stranger, operation), **arguments) == "ReceiptHandleIsInvalid"
    assert state_of(root, victim) == before
    stranger.delete_queue(QueueUrl=url)


def test_dead_letters_do_not_go_to_another_tenant(
    root: Any, stranger: Any, victim: Arguments, name: Callable[..., str]
) -> None:
    """Neither as a way to plant messages there nor to learn what exists."""
    redrive = json.dumps({"deadLetterTargetArn": victim["DeadArn"], "maxReceiveCount": 1})
    missing = redrive.replace("victim-dead", "no-such")
    attributes = {"RedrivePolicy": redrive}
    answers = [
        told(stranger, "CreateQueue", {"QueueName": name(), "Attributes": {"RedrivePolicy": text}})
        for text in (redrive, missing)
    ]
    code, status, message = answers[0]
    assert (code, status, message.replace("victim-dead", "no-such")) == answers[1]
    url = stranger.create_queue(QueueName=name())["QueueUrl"]
    arguments = {"QueueUrl": url, "Attributes": attributes}
    assert told(stranger, "SetQueueAttributes", arguments) == answers[0]
    # Nor can a queue be made that takes a stranger's dead letters by saying that it may.
    sources = root.list_dead_letter_source_queues(QueueUrl=victim["DeadUrl"])["queueUrls"]
    assert sources == [victim["QueueUrl"]]


def test_messages_are_moved_neither_from_nor_to_another_tenant(
    stranger: Any, victim: Arguments, name: Callable[..., str]
) -> None:
    dead = stranger.create_queue(QueueName=name())["QueueUrl"]
    redrive = json.dumps({"deadLetterTargetArn": arn_of(stranger, dead), "maxReceiveCount": 1})
    stranger.create_queue(QueueName=name(), Attributes={"RedrivePolicy": redrive})
    start = stranger.start_message_move_task
    own = arn_of(stranger, dead)
    assert code_of(start, SourceArn=victim["DeadArn"], DestinationArn=own)
    assert code_of(start, SourceArn=own, DestinationArn=victim["Arn"])
    assert not stranger.list_message_move_tasks(SourceArn=own).get("Results")


def test_an_administrator_of_one_tenant_cannot_ask_the_admin_api_about_another(
    locked: Server, operator: Operator, victim: Arguments
) -> None:
    _, credentials = operator.user(EVERYTHING, tenant=operator.tenant())
    theirs = Operator(locked, credentials)
    account = victim["account"]
    for method, path, body in (
        ("GET", f"queues?account={account}", None),
        ("GET", f"queues/victim?account={account}", None),
        ("GET", f"queues/victim/messages?account={account}", None),
        ("POST", f"queues/victim/rotate?account={account}", {}),
        ("GET", f"tenants/{account}", None),
        ("PATCH", f"tenants/{account}", {"is_suspended": True}),
        ("GET", f"users?tenant={account}", None),
        ("POST", "users", {"name": "intruder", "tenant": account}),
        ("GET", f"keys?tenant={account}", None),
        ("POST", "keys", {"user": "root", "tenant": account}),
        ("DELETE", f"users/root?tenant={account}", None),
        ("GET", f"policies/root?tenant={account}", None),
        ("PUT", f"policies/root/p?tenant={account}", json.loads('{"Statement": []}')),
        ("GET", "config", None),
    ):
        status, answer = theirs.try_(method, path, body)
        assert status in (403, 404), f"{method} {path}: {status} {answer!r}"
        assert b"victim-dead" not in answer


# ── Kafka ────────────────────────────────────────────────────────────────────────────────────
def settings(credentials: Any) -> dict[str, Any]:
    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_username": credentials.access_key,
        "sasl_password": credentials.secret_key,
    }


def dotted(credentials: Any) -> dict[str, Any]:
    return {key.replace("_", "."): value for key, value in settings(credentials).items()}


def test_topics_groups_and_offsets_of_another_account_are_not_there(
    locked: Server, operator: Operator, root: Any, name: Callable[..., str]
) -> None:
    topic, group = name(), name("-group")
    _, credentials = operator.user(EVERYTHING, tenant=operator.tenant())
    ours, theirs = settings(ROOT), settings(credentials)
    root.create_queue(QueueName=topic)
    send(producer(locked.kafka, **ours), topic, [b"secret"])
    place = TopicPartition(topic, 0)
    with consumer(locked.kafka, group, **ours) as reader:
        reader.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    admin = AdminClient({"bootstrap.servers": locked.kafka, **dotted(credentials)})
    assert topic not in admin.list_topics(timeout=10).topics
    groups = admin.list_consumer_groups(request_timeout=10).result(10)
    assert group not in {found.group_id for found in groups.valid}
    for future in admin.delete_topics([topic], request_timeout=10).values():
        with pytest.raises(KafkaException, match="UNKNOWN_TOPIC"):
            future.result(10)
    # A topic of the same name is another one, and it is empty; a group as well.
    for future in admin.create_topics([kinds.NewTopic(topic, 1)], request_timeout=10).values():
        future.result(10)
    with consumer(locked.kafka, group, **theirs) as reader:
        (found,) = reader.committed([place], timeout=10)
        assert found.offset < 0, "another account's offset"
        assert reader.get_watermark_offsets(place, timeout=10) == (0, 0)
        reader.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)
    with consumer(locked.kafka, group, **ours) as reader:
        (kept,) = reader.committed([place], timeout=10)
        assert kept.offset == 1, "another account moved it"
        assert reader.get_watermark_offsets(place, timeout=10) == (0, 1)
