"""A cluster of the last version without push, from the history of this repository, becomes one of
this version, goes back to the older version, and is upgraded again: all under load.

``test_cluster_upgrade.py`` does the same in ``make test``, with nodes of this version that
behave like an earlier one."""

from __future__ import annotations

import base64
import itertools
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import botocore.exceptions
import pytest
from confluent_kafka import Consumer
from tests.e2e import test_older_versions as older
from tests.e2e.older_data import write_identities, write_queues, write_topics
from tests.e2e.test_cluster import Sender, client, made, taken
from tests.e2e.test_cluster_cli import ask, healthy, penstock
from tests.e2e.test_cluster_kafka import made as made_topic
from tests.e2e.test_cluster_upgrade import Producing, said
from tests.e2e.test_push import PushSite, bodies
from tests.harness.cluster import PenstockCluster
from tests.harness.endpoint import Endpoint
from tests.harness.etcd import LACKING
from tests.harness.patience import eventually
from tests.harness.sns_site import connect

from penstock.model.levels import PUSH
from penstock.record.batch import parse_header
from penstock.record.record import iter_records

pytestmark = [
    pytest.mark.slow,
    pytest.mark.faults,
    pytest.mark.faults_only,
    pytest.mark.timeout(1_800),
    pytest.mark.skipif(LACKING is not None, reason=str(LACKING)),
]

ROOT = Path(__file__).parents[2]
WITHOUT_PUSH = "bee3b301a1f707e99f1607428469b0b4bc10d4c3"
SECONDS_MAX = 300.0
POLICY = {
    "Version": "2012-10-17",
    "Statement": [
        {
            "Effect": "Allow",
            "Principal": {"Service": "sns.amazonaws.com"},
            "Action": "sqs:SendMessage",
            "Resource": "*",
            "Condition": {"ArnLike": {"aws:SourceArn": "arn:aws:sns:*:*:orders"}},
        }
    ],
}
# Run by the older version: reads metadata entries and prints those that it does not know.
READER = """
import base64, json, sys
import msgspec
from penstock.metadata.serving.entry_rules import RULES, prefix_of
from penstock.model.topic import Topic
known = {field.encode_name for field in msgspec.structs.fields(Topic)}
for key, value in json.load(sys.stdin).items():
    value = base64.b64decode(value)
    try:
        assert RULES[prefix_of(key)].key_of(key, value) == key
        if key.startswith(("/topics/", "/tombs/")):
            assert not set(json.loads(value)) - known, set(json.loads(value)) - known
    except Exception as error:
        print(key, repr(error))
"""


def git(*args: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", *args], cwd=ROOT, capture_output=True, check=False)


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder ``src`` of the older version."""
    archive = git("archive", WITHOUT_PUSH, "src")
    if archive.returncode:
        pytest.skip("the history of this repository is not there")
    folder = tmp_path_factory.mktemp("older-code")
    subprocess.run(["tar", "x", "-C", str(folder)], input=archive.stdout, check=True)
    return folder / "src"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, code: Path) -> Iterator[PenstockCluster]:
    with PenstockCluster(tmp_path_factory.mktemp("cluster"), code=code) as cluster:
        yield cluster


class Receiving(threading.Thread):
    """Receives and deletes messages by way of any node that runs."""

    def __init__(self, cluster: PenstockCluster, path: str) -> None:
        super().__init__(daemon=True)
        self._cluster, self._path = cluster, path
        self._end = threading.Event()
        self.found: Counter[str] = Counter()
        self.cut_off = 0

    def run(self) -> None:
        for node in itertools.cycle(self._cluster.nodes.values()):
            if self._end.wait(0 if node.is_running else 0.1):
                break
            url = node.url
            sqs = client(url, attempts=5)
            try:
                reply = sqs.receive_message(
                    QueueUrl=url + self._path, MaxNumberOfMessages=10, WaitTimeSeconds=1
                )
                messages = reply.get("Messages", [])
                self.found.update(message["MessageId"] for message in messages)
                for message in messages:
                    sqs.delete_message(
                        QueueUrl=url + self._path, ReceiptHandle=message["ReceiptHandle"]
                    )
            except botocore.exceptions.BotoCoreError:
                self.cut_off += 1  # the node was just stopped
            finally:
                sqs.close()

    def end(self) -> None:
        self._end.set()
        self.join()


class Consuming(threading.Thread):
    """A member of a consumer group that goes on until it has seen everything."""

    def __init__(self, cluster: PenstockCluster, topic: str) -> None:
        super().__init__(daemon=True)
        self._consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": "upgraded",
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 30_000,
            }
        )
        self._consumer.subscribe([topic])
        self._end = threading.Event()
        self.found: Counter[str] = Counter()

    def run(self) -> None:
        while not self._end.is_set():
            message = self._consumer.poll(0.5)
            if message is not None and message.error() is None:
                self.found[(message.value() or b"").decode()] += 1

    def end(self, expected: list[str]) -> None:
        try:
            eventually(lambda: set(expected) <= set(self.found), seconds=SECONDS_MAX, what="all")
        finally:
            self._end.set()
            self.join()
            self._consumer.close()


class Load:
    """Sends, receives, produces and consumes. Sends use only nodes that are not being replaced, and
    are not repeated. They may fail only while a leader hands over to another that runs too."""

    def __init__(self, cluster: PenstockCluster) -> None:
        self._cluster = cluster
        self._path = made(cluster, "upgraded", VisibilityTimeout="600")
        made_topic(cluster, "upgraded-topic")
        self._sent: set[str] = set()
        self._unknown = 0  # sends whose outcome is unknown
        self._receiving = Receiving(cluster, self._path)
        self._producing = Producing(cluster, "upgraded-topic")
        self._consuming = Consuming(cluster, "upgraded-topic")
        for each in (self._receiving, self._producing, self._consuming):
            each.start()

    def replace(self, number: int, code: Path | None) -> None:
        """Replace a node by one of another version."""
        cluster, node = self._cluster, self._cluster.nodes[number]
        others = [one for one in cluster.nodes.values() if one is not node]
        by = others[0].number
        safe = ask(cluster, "wait-safe", "--node", str(number), "--timeout", "120", by=by)
        assert safe.code == 0, safe
        sender = Sender([one.url for one in others], self._path, attempts=1)
        sender.start()
        try:
            sender.wait_for(20, seconds=SECONDS_MAX)
            assert node.stop() == 0
            node.code = code
            sender.wait_for(20, seconds=SECONDS_MAX)
            node.start(seconds=SECONDS_MAX)
            sender.wait_for(20, seconds=SECONDS_MAX)
        finally:
            sender.end()
        assert all("Outcome unknown" in each for each in sender.failed), said(
            cluster, sender.failed
        )
        self._unknown += len(sender.failed)
        self._sent |= sender.answered

    def end(self) -> dict[str, int]:
        self._producing.end()
        produced = self._producing.produced
        assert not produced.failed, said(self._cluster, produced.failed)
        self._consuming.end(produced.written)
        received = self._receiving
        eventually(lambda: self._sent <= set(received.found), seconds=SECONDS_MAX, what="all")
        received.end()
        url = self._cluster.nodes[1].url
        assert list(taken(client(url, attempts=5), url + self._path)) == []
        return {
            "sent": len(self._sent),
            "outcome_unknown": self._unknown,
            "received": len(received.found),
            "received_twice": received.found.total() - len(received.found),
            "receives_cut_off": received.cut_off,
            "produced": len(set(produced.written)),
            "consumed": len(self._consuming.found),
        }


def control_types(folder: Path) -> set[int]:
    """The types of all control records in the logs of a node."""
    found = set()
    for segment in folder.glob("topics/*/*/*.log"):
        data, at = segment.read_bytes(), 0
        while at + 12 <= len(data):
            size = 12 + int.from_bytes(data[at + 8 : at + 12])
            batch, at = data[at : at + size], at + size
            if size > 12 and len(batch) == size and parse_header(batch).is_control:
                for record in iter_records(batch):
                    found.add(int.from_bytes((record.key or b"")[2:4]))
    return found


def unknown_entries(cluster: PenstockCluster, code: Path) -> str:
    """What the older version says about the metadata entries that it cannot read."""
    entries = {
        key.removeprefix("/penstock/penstock"): base64.b64encode(value).decode()
        for key, value in cluster.etcd.entries().items()
    }
    done = subprocess.run(
        [sys.executable, "-c", READER],
        input=json.dumps(entries),
        env={"PYTHONPATH": str(code)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert len(entries) > 20
    return done.stdout


def refused(call: Any, *args: Any, **fields: Any) -> str:
    with pytest.raises(botocore.exceptions.ClientError) as error:
        call(*args, **fields)
    found = error.value.response
    assert found["ResponseMetadata"]["HTTPStatusCode"] == 503
    return f"{found['Error']['Code']}: {found['Error']['Message']}"


def test_push_begins_when_the_level_is_raised(
    cluster: PenstockCluster, code: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert healthy(cluster)["level"]["in_force"] == PUSH - 1
    load = Load(cluster)
    began = time.monotonic()
    for number in (1, 2, 3):
        load.replace(number, None)
        healthy(cluster)
    expected = written_by_new_nodes(cluster)
    nothing_new(cluster, code)
    # Back: the older version reads what the new one has written, and leads all of it.
    for number in (1, 2, 3):
        load.replace(number, code)
        healthy(cluster)
    read_by_older_nodes(cluster, expected)
    for number in (3, 2, 1):
        load.replace(number, None)
        healthy(cluster)
    assert ask(cluster, "upgrade").json["is_done"] is True
    with Endpoint() as endpoint:
        push_works(cluster, endpoint)
    figures = load.end()
    with capsys.disabled():
        print(f"\n{figures}, {time.monotonic() - began:.0f} s")
    assert 0 <= figures["received"] - figures["sent"] <= figures["outcome_unknown"]
    assert figures["received_twice"] == 0
    for node in cluster.nodes.values():
        node.assert_no_traceback()
        for event in ("checkpoint ignored", "partition damaged", "damage found in log"):
            assert f'"event":"{event}' not in node.stderr


def written_by_new_nodes(cluster: PenstockCluster) -> dict[str, Any]:
    """One of everything, below the level. Returns what readers must find."""
    url = cluster.nodes[2].url
    expected = write_queues(url)
    write_topics(cluster.bootstrap)
    write_identities(url)
    sqs = client(url, attempts=5)
    queue = sqs.get_queue_url(QueueName="jobs")["QueueUrl"]
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"Policy": json.dumps(POLICY)})
    share = sqs.create_queue(QueueName="clicks:billing", Attributes={"PenstockStart": "earliest"})[
        "QueueUrl"
    ]
    first = sqs.receive_message(QueueUrl=share, MaxNumberOfMessages=5, WaitTimeSeconds=5)
    for message in first["Messages"]:
        sqs.delete_message(QueueUrl=share, ReceiptHandle=message["ReceiptHandle"])
    clicks = {*(f"click {number}" for number in range(10, 20)), "committed", "aborted"}
    return {**expected, "clicks": clicks - {message["Body"] for message in first["Messages"]}}


def nothing_new(cluster: PenstockCluster, code: Path) -> None:
    """Push is refused, and nothing is written that the older version does not know."""
    for node in cluster.nodes.values():
        sns = connect("sns", node.url, attempts=1)
        for call, fields in (
            (sns.create_topic, {"Name": "orders"}),
            (
                sns.subscribe,
                {"TopicArn": "arn:aws:sns:us-east-1:000000000000:orders", "Protocol": "sqs"},
            ),
            (sns.publish, {"PhoneNumber": "+4915112345678", "Message": "m"}),
            (sns.set_sms_attributes, {"attributes": {"DefaultSMSType": "Promotional"}}),
        ):
            text = refused(call, **fields)
            assert text.startswith("ServiceUnavailable: SNS needs feature level")
            assert "penstock cluster upgrade" in text
    tried = penstock(
        "subscription", "create", "jobs", "http://127.0.0.1:9/hook",
        env={"PENSTOCK_ENDPOINT": cluster.nodes[1].url},
    )  # fmt: skip
    assert tried.code != 0
    assert "penstock cluster upgrade" in tried.err
    assert unknown_entries(cluster, code) == ""
    names = {key.rpartition("/")[2] for key in cluster.etcd.entries() if "/topics/" in key}
    assert "clicks:billing" in names
    assert not names & {"__deliveries", "__outbox"}
    known = {0, 1, *range(64, 69), *range(80, 85)}
    for node in cluster.nodes.values():
        found = control_types(node.data)
        assert {64, 80} <= found <= known, found


def read_by_older_nodes(cluster: PenstockCluster, expected: dict[str, Any]) -> None:
    served = older.Served(cluster.nodes[1].url, cluster.bootstrap, expected)
    older.test_waiting_and_delayed_messages_are_there_and_deleted_ones_not(served)
    older.test_a_receipt_of_before_deletes_its_message(served)
    older.test_order_encryption_and_dead_letters_are_kept(served)
    older.test_a_message_sent_twice_is_still_known(served)
    older.test_records_transactions_and_deleted_offsets_are_kept(served)
    for group, protocol in (("classic-readers", "classic"), ("new-readers", "consumer")):
        older.test_a_group_continues_at_its_offset(served, group, protocol)
    older.test_tenants_users_and_quotas_are_kept(served)
    sqs = client(served.url, attempts=5)
    share = sqs.get_queue_url(QueueName="clicks:billing")["QueueUrl"]
    assert Counter(message["Body"] for message in taken(sqs, share)) == Counter(expected["clicks"])


def push_works(cluster: PenstockCluster, endpoint: Endpoint) -> None:
    site = PushSite(list(cluster.nodes.values()))
    arn = site.topic("orders", 3)
    url, queue = site.queue("copies")
    site.sns[1].subscribe(
        TopicArn=arn, Protocol="sqs", Endpoint=queue, Attributes={"RawMessageDelivery": "true"}
    )
    site.webhook(arn, endpoint.url("/hook"))
    site.publish(arn, 60)
    expected = Counter(map(str, range(60)))
    copies = Counter(
        message["Body"] for message in taken(client(site.servers[2].url, attempts=5), url)
    )
    assert copies == expected
    eventually(
        lambda: Counter(bodies(endpoint, "/hook")) == expected,
        seconds=SECONDS_MAX,
        what="all requests",
    )
