"""Data folders and clusters that older versions wrote (``older_data``) are served as they are.

The servers run at the time of the folder, or its messages would have expired."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import TopicPartition
from tests.compat.kafka.confluent import consumer, read_all
from tests.e2e.older_data import DATA, MASTER_KEY, client, clock_at, received
from tests.harness.cluster import PenstockCluster
from tests.harness.etcd import LACKING
from tests.harness.server import Server

pytestmark = pytest.mark.skipif(LACKING is not None, reason=str(LACKING))


class Served(NamedTuple):
    url: str
    bootstrap: str
    expected: dict[str, Any]

    @property
    def ids(self) -> dict[str, str]:
        ids: dict[str, str] = self.expected["ids"]
        return ids


@pytest.fixture(scope="module", params=["before-0.2-one", "before-0.2-three"])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    folder: Path = tmp_path_factory.mktemp("older")
    with tarfile.open(DATA / f"{request.param}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    expected = json.loads((folder / "expected.json").read_text())
    env = {"PENSTOCK_MASTER_KEY": MASTER_KEY, **clock_at(expected["written_at"] + 60)}
    if request.param.endswith("one"):
        with Server(folder / "data", fsync="never", kafka_port=0, env=env) as server:
            yield Served(server.url, server.kafka, expected)
            assert server.stop() == 0, server.stderr_tail()
            server.assert_no_traceback()
    else:
        with PenstockCluster(folder, fsync="never", env=env) as cluster:
            yield Served(cluster.nodes[1].url, cluster.bootstrap, expected)
            for node in cluster.nodes.values():
                assert node.stop() == 0, node.stderr_tail()
                node.assert_no_traceback()


def test_waiting_and_delayed_messages_are_there_and_deleted_ones_not(served: Served) -> None:
    sqs = client(served.url)
    [waiting] = received(sqs, "jobs", 1)
    assert waiting["MessageId"] == served.ids["waiting"]
    assert waiting["MessageAttributes"]["n"] == {"DataType": "Number", "StringValue": "7"}
    url = sqs.get_queue_url(QueueName="jobs")["QueueUrl"]
    shown = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    counts = {name: value for name, value in shown.items() if name.startswith("Approximate")}
    assert counts == {
        "ApproximateNumberOfMessages": "0",
        "ApproximateNumberOfMessagesNotVisible": "2",
        "ApproximateNumberOfMessagesDelayed": "1",
    }
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"team": "ledger"}


def test_a_receipt_of_before_deletes_its_message(served: Served) -> None:
    sqs = client(served.url)
    url = sqs.get_queue_url(QueueName="jobs")["QueueUrl"]
    sqs.delete_message(QueueUrl=url, ReceiptHandle=served.expected["in_flight"])
    names = ["ApproximateNumberOfMessagesNotVisible"]
    shown = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
    assert shown[names[0]] == "1"


def test_order_encryption_and_dead_letters_are_kept(served: Served) -> None:
    sqs = client(served.url)
    orders = received(sqs, "orders.fifo", 3)
    assert [each["MessageId"] for each in orders] == [
        served.ids[name] for name in ("first", "second", "third")
    ]
    [sealed], [dead] = received(sqs, "sealed", 1), received(sqs, "dead", 1)
    assert (sealed["MessageId"], sealed["Body"]) == (served.ids["sealed"], "sealed")
    assert dead["MessageId"] == served.ids["dead"]
    assert dead["Attributes"]["DeadLetterQueueSourceArn"].endswith(":dying")


def test_a_message_sent_twice_is_still_known(served: Served) -> None:
    sqs = client(served.url)
    url = sqs.get_queue_url(QueueName="orders.fifo")["QueueUrl"]
    again = sqs.send_message(QueueUrl=url, MessageBody="third", MessageGroupId="g")
    assert again["MessageId"] == served.ids["third"]


def test_records_transactions_and_deleted_offsets_are_kept(served: Served) -> None:
    clicks = read_all(served.bootstrap, "clicks", 2, isolation_level="read_committed")
    by_partition = [
        [each.value().decode() for each in clicks if each.partition() == number]
        for number in range(2)
    ]
    assert by_partition == [[f"click {number}" for number in range(10, 20)], ["committed"]]
    assert clicks[0].headers() == [("h", b"1")] or clicks[-1].headers() == [("h", b"1")]
    state = {each.key(): each.value() for each in read_all(served.bootstrap, "state")}
    assert state == {b"k0": b"state 18", b"k1": b"state 19"}


@pytest.mark.parametrize(
    ("group", "protocol"), [("classic-readers", "classic"), ("new-readers", "consumer")]
)
def test_a_group_continues_at_its_offset(served: Served, group: str, protocol: str) -> None:
    with consumer(served.bootstrap, group, group_protocol=protocol) as reader:
        [offset] = reader.committed([TopicPartition("clicks", 0)], timeout=60)
        assert (offset.offset, offset.metadata) == (15, "here")


def test_tenants_users_and_quotas_are_kept(served: Served) -> None:
    def shown(*command: str) -> str:
        penstock = [sys.executable, "-m", "penstock", "--endpoint", served.url, *command]
        return subprocess.run(penstock, check=True, capture_output=True, text=True).stdout

    assert "reader" in shown("user", "list", "--tenant", "acme")
    assert "210987654321" in shown("tenant", "list")
    assert "100" in shown("quota", "show", "acme")
