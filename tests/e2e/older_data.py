"""Write a data folder with one of everything, so that later versions can be tried on it.

    python -m tests.e2e.older_data before-0.3

packs ``data/before-0.3-one.tar.xz`` (a server) and ``data/before-0.3-three.tar.xz`` (a cluster of
three nodes and its etcd) with the version that is checked out. Each archive has ``expected.json``:
ids of the messages and the time of writing.
"""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

import boto3
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from tests.harness.cluster import PenstockCluster
from tests.harness.server import Server
from tests.lab.clock_faults import LIBRARY

DATA = Path(__file__).parent / "data"
MASTER_KEY = "b2xkZXIgZGF0YSBmb2xkZXJzIGFyZSBzZXJ2ZWQhISE="
KEEP_MS = "-1"  # topics keep their records for ever


def client(url: str) -> Any:
    return boto3.client(
        "sqs",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="AKIAOLDSENDER",
        aws_secret_access_key="x",
    )


def received(sqs: Any, queue: str, count: int) -> list[Any]:
    url = sqs.get_queue_url(QueueName=queue)["QueueUrl"]
    found: list[Any] = []
    while len(found) < count:
        reply = sqs.receive_message(
            QueueUrl=url,
            MaxNumberOfMessages=10,
            WaitTimeSeconds=20,
            AttributeNames=["All"],
            MessageAttributeNames=["All"],
        )
        found += reply["Messages"]
    return found


def clock_at(unix_seconds: float) -> dict[str, str]:
    """Return the environment of a server whose wall clock starts at this time."""
    at = datetime.datetime.fromtimestamp(unix_seconds, datetime.UTC).astimezone()
    return {
        "LD_PRELOAD": str(LIBRARY),
        "FAKETIME": f"@{at:%Y-%m-%d %H:%M:%S}",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }


def write_queues(url: str) -> dict[str, Any]:
    """Return message ids by name, and the receipt of a message that is in flight."""
    sqs = client(url)

    def made(name: str, **attributes: str) -> str:
        attributes["MessageRetentionPeriod"] = "1209600"
        return str(sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"])

    dead = made("dead")
    arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]
    redrive = json.dumps({"deadLetterTargetArn": arn["QueueArn"], "maxReceiveCount": 1})
    jobs, dying = made("jobs"), made("dying", RedrivePolicy=redrive, VisibilityTimeout="0")
    orders = made("orders.fifo", FifoQueue="true", ContentBasedDeduplication="true")
    sealed = made("sealed", SqsManagedSseEnabled="true")
    sqs.tag_queue(QueueUrl=jobs, Tags={"team": "ledger"})
    ids = {}

    def sent(name: str, queue: str, **extra: Any) -> None:
        ids[name] = sqs.send_message(QueueUrl=queue, MessageBody=name, **extra)["MessageId"]

    number = {"n": {"DataType": "Number", "StringValue": "7"}}
    sent("deleted", jobs)
    gone = sqs.receive_message(QueueUrl=jobs, WaitTimeSeconds=5)["Messages"][0]
    sqs.delete_message(QueueUrl=jobs, ReceiptHandle=gone["ReceiptHandle"])
    sent("in flight", jobs)
    flying = sqs.receive_message(QueueUrl=jobs, VisibilityTimeout=43_200, WaitTimeSeconds=5)
    sent("waiting", jobs, MessageAttributes=number)
    sent("delayed", jobs, DelaySeconds=900)
    sent("sealed", sealed)
    for each in ("first", "second", "third"):
        sent(each, orders, MessageGroupId="g")
    sent("dead", dying)
    for _ in range(2):
        sqs.receive_message(QueueUrl=dying, WaitTimeSeconds=1)
    return {"ids": ids, "in_flight": flying["Messages"][0]["ReceiptHandle"]}


def write_topics(bootstrap: str) -> None:
    """``clicks``: two partitions, of which the first ten records of 0 are deleted; transactions,
    one committed and one aborted; a classic and a new consumer group; ``state``: compacted."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    config = {"retention.ms": KEEP_MS}
    topics = [
        NewTopic("clicks", 2, config=config),
        NewTopic("state", 1, config={**config, "cleanup.policy": "compact"}),
    ]
    for future in admin.create_topics(topics).values():
        future.result(30)
    plain = Producer({"bootstrap.servers": bootstrap, "compression.type": "zstd"})
    for number in range(20):
        plain.produce("clicks", f"click {number}", f"k{number}", 0, headers=[("h", b"1")])
        plain.produce("state", f"state {number}", f"k{number % 2}", 0)
    assert plain.flush(30) == 0
    transactional = Producer({"bootstrap.servers": bootstrap, "transactional.id": "writer"})
    transactional.init_transactions(30)
    for value, end in (
        ("aborted", transactional.abort_transaction),
        ("committed", transactional.commit_transaction),
    ):
        transactional.begin_transaction()
        transactional.produce("clicks", value, partition=1)
        assert transactional.flush(30) == 0
        end(30)
    for future in admin.delete_records([TopicPartition("clicks", 0, 10)]).values():
        future.result(30)
    for group, protocol in (("classic-readers", "classic"), ("new-readers", "consumer")):
        reader = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "group.protocol": protocol,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        reader.subscribe(["clicks"])
        while (message := reader.poll(30)) is None or message.error():
            pass
        reader.commit(offsets=[TopicPartition("clicks", 0, 15, "here")], asynchronous=False)
        reader.close()


def write_identities(url: str) -> None:
    """A tenant with a quota and a user with a key."""
    for command in (
        "tenant create acme 210987654321",
        "quota set acme --requests-per-second 100",
        "user create --tenant acme --administrator reader",
        "key create --tenant acme reader",
    ):
        penstock = [sys.executable, "-m", "penstock", "--endpoint", url, *command.split()]
        subprocess.run(penstock, check=True, stdout=subprocess.DEVNULL)


def pack(folder: Path, name: str, expected: dict[str, Any]) -> None:
    (folder / "expected.json").write_text(json.dumps({"written_at": time.time(), **expected}))
    for spare in folder.rglob("wal/*.tmp"):
        spare.unlink()
    with tarfile.open(DATA / f"{name}.tar.xz", "w:xz") as archive:
        archive.add(folder, ".")


def write_one(folder: Path) -> dict[str, Any]:
    env = {"PENSTOCK_MASTER_KEY": MASTER_KEY}
    with Server(folder / "data", kafka_port=0, env=env) as server:
        expected = write_queues(server.url)
        write_topics(server.kafka)
        write_identities(server.url)
        assert server.stop() == 0
    return expected


def write_three(folder: Path) -> dict[str, Any]:
    with PenstockCluster(folder, env={"PENSTOCK_MASTER_KEY": MASTER_KEY}) as cluster:
        expected = write_queues(cluster.nodes[2].url)
        write_topics(cluster.bootstrap)
        write_identities(cluster.nodes[3].url)
        for node in cluster.nodes.values():
            assert node.stop() == 0
    return expected


if __name__ == "__main__":
    os.umask(0o022)
    for kind, write in (("one", write_one), ("three", write_three)):
        with tempfile.TemporaryDirectory() as folder:
            pack(Path(folder), f"{sys.argv[1]}-{kind}", write(Path(folder)))
