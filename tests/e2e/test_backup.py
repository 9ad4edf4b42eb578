"""``penstock backup`` of real servers that go on working meanwhile, and real servers made of what
it has written: one node, and a cluster restored to one node and to a fresh cluster."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from tests.e2e.test_cluster import Sender, client, drained, made
from tests.e2e.test_cluster_cli import penstock
from tests.e2e.test_push import FAST, PushSite, bodies, has_all
from tests.harness.cluster import PenstockCluster
from tests.harness.command import Done
from tests.harness.endpoint import Endpoint, Step
from tests.harness.etcd import LACKING
from tests.harness.patience import eventually
from tests.harness.server import Server, penstock_command, stable_port

from penstock.cli.terminal.failure import ExitCode
from penstock.model.levels import LEVEL_MAX

pytestmark = pytest.mark.slow

SECONDS_MAX = 200.0


def ok(*args: str, url: str = "") -> Done:
    done = penstock(*args, env={"PENSTOCK_ENDPOINT": url} if url else None)
    assert done.code == 0, done
    return done


def backed_up(url: str, folder: Path, *more: str) -> Path:
    """A new backup that verifies."""
    path = Path(ok("backup", "create", "--to", str(folder), *more, url=url).json["path"])
    ok("backup", "verify", str(path))
    return path


def restored(backup: Path, data: Path, original: Server, *flags: str, **more: Any) -> Server:
    ok("backup", "restore", str(backup), "--data", str(data), *flags)
    shutil.copy(original.data / "master.key", data / "master.key")
    return Server(data, **more)


def counted(sqs: Any, queue_url: str) -> dict[str, int]:
    names = ("", "NotVisible", "Delayed")
    found = sqs.get_queue_attributes(QueueUrl=queue_url, AttributeNames=["All"])["Attributes"]
    return {name: int(found[f"ApproximateNumberOfMessages{name}"]) for name in names}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server") / "data"
    with Server(folder, partitions=2, kafka_port=stable_port()) as server:
        yield server


def test_what_was_answered_before_is_restored_while_sends_go_on(
    server: Server, tmp_path: Path
) -> None:
    sqs = client(server.url, attempts=5)
    path = str(sqs.create_queue(QueueName="busy")["QueueUrl"]).removeprefix(server.url)
    sender = Sender([server.url], path, attempts=1)
    sender.start()
    try:
        sender.wait_for(200)
        before = set(sender.answered)
        backup = backed_up(server.url, tmp_path / "backups")
        after_count = len(sender.answered)
        sender.wait_for(20)
    finally:
        sender.end()
    assert not sender.failed
    assert after_count > len(before), "sends went on meanwhile"
    with restored(backup, tmp_path / "data", server) as copy:
        found = drained(client(copy.url), copy.url + path)
        copy.assert_no_traceback()
    assert before <= found <= sender.answered


def test_a_queue_comes_back_as_it_was_at_that_moment(server: Server, tmp_path: Path) -> None:
    sqs = client(server.url, attempts=5)
    sealed = {"SqsManagedSseEnabled": "true"}
    url = sqs.create_queue(QueueName="work", Attributes=sealed)["QueueUrl"]
    sent = {
        sqs.send_message(QueueUrl=url, MessageBody=f"a-body-nobody-may-read {n}")["MessageId"]
        for n in range(40)
    }
    sqs.send_message(QueueUrl=url, MessageBody="later", DelaySeconds=900)
    got: list[Any] = []
    while len(got) < 15:
        count = min(10, 15 - len(got))
        got += sqs.receive_message(
            QueueUrl=url, MaxNumberOfMessages=count, VisibilityTimeout=900
        ).get("Messages", [])
    acked, leased = got[:10], got[10:]
    for one in acked:
        sqs.delete_message(QueueUrl=url, ReceiptHandle=one["ReceiptHandle"])
    backup = backed_up(server.url, tmp_path)
    sqs.purge_queue(QueueUrl=url)
    for file in backup.rglob("*"):
        assert not file.is_file() or b"a-body-nobody" not in file.read_bytes(), "it is sealed"
    with restored(backup, tmp_path / "data", server) as copy:
        sqs = client(copy.url)
        url = copy.url + "/000000000000/work"
        # Which are delayed is found out when somebody asks for them.
        found = counted(sqs, url)
        assert (found[""] + found["Delayed"], found["NotVisible"]) == (26, len(leased))
        # A receipt from before means what it meant.
        sqs.delete_message(QueueUrl=url, ReceiptHandle=leased[0]["ReceiptHandle"])
        for one in leased[1:]:
            sqs.change_message_visibility(
                QueueUrl=url, ReceiptHandle=one["ReceiptHandle"], VisibilityTimeout=0
            )
        gone = {one["MessageId"] for one in (*acked, leased[0])}
        assert drained(sqs, url) == sent - gone
        assert counted(sqs, url) == {"": 0, "NotVisible": 0, "Delayed": 1}
        copy.assert_no_traceback()


def test_order_dead_letters_and_settings_come_back(server: Server, tmp_path: Path) -> None:
    sqs = client(server.url, attempts=5)
    orders = sqs.create_queue(
        QueueName="orders.fifo",
        Attributes={"FifoQueue": "true", "ContentBasedDeduplication": "true"},
    )["QueueUrl"]
    for number in range(4):
        for group in ("a", "b"):
            sqs.send_message(QueueUrl=orders, MessageBody=f"{group}{number}", MessageGroupId=group)
    dead = sqs.create_queue(QueueName="dead")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])
    rule = {"deadLetterTargetArn": arn["Attributes"]["QueueArn"], "maxReceiveCount": "1"}
    fragile = sqs.create_queue(
        QueueName="fragile",
        Attributes={"RedrivePolicy": json.dumps(rule), "VisibilityTimeout": "0"},
    )["QueueUrl"]
    sqs.send_message(QueueUrl=fragile, MessageBody="breaks")
    eventually(
        lambda: sqs.receive_message(QueueUrl=fragile) and counted(sqs, dead)[""] == 1,
        seconds=SECONDS_MAX,
        what="a dead letter",
    )
    first = sqs.receive_message(QueueUrl=orders)["Messages"][0]
    sqs.delete_message(QueueUrl=orders, ReceiptHandle=first["ReceiptHandle"])
    ok("tenant", "create", "acme", url=server.url)
    backup = backed_up(server.url, tmp_path)
    with restored(backup, tmp_path / "data", server) as copy:
        sqs = client(copy.url)
        base = f"{copy.url}/000000000000"
        order: dict[str, list[str]] = {"a": [], "b": []}
        while sum(map(len, order.values())) < 7:
            for one in sqs.receive_message(QueueUrl=f"{base}/orders.fifo", WaitTimeSeconds=2)[
                "Messages"
            ]:
                order[one["Body"][0]].append(one["Body"])
                sqs.delete_message(
                    QueueUrl=f"{base}/orders.fifo", ReceiptHandle=one["ReceiptHandle"]
                )
        order[first["Body"][0]].insert(0, first["Body"])
        assert order == {group: [f"{group}{n}" for n in range(4)] for group in order}
        # A duplicate within five minutes is one there as well.
        again = sqs.send_message(
            QueueUrl=f"{base}/orders.fifo", MessageBody="a3", MessageGroupId="a"
        )
        assert again["MessageId"]
        assert counted(sqs, f"{base}/orders.fifo")[""] == 0
        assert counted(sqs, f"{base}/dead")[""] == 1
        assert counted(sqs, f"{base}/fragile") == {"": 0, "NotVisible": 0, "Delayed": 0}
        tenants = ok("tenant", "list", url=copy.url).lines
        assert "acme" in {one["name"] for one in tenants}
        copy.assert_no_traceback()


def produced(bootstrap: str, topic: str, values: range) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for value in values:
        producer.produce(topic, str(value), key=str(value))
    assert producer.flush(120) == 0


def consumer(bootstrap: str, group: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )


def consumed(bootstrap: str, topic: str, group: str, count: int) -> list[str]:
    """So many, committed."""
    reader = consumer(bootstrap, group)
    reader.subscribe([topic])
    found: list[str] = []
    until = time.monotonic() + SECONDS_MAX
    try:
        while len(found) < count and time.monotonic() < until:
            record = reader.poll(1.0)
            if record is not None and record.error() is None:
                found.append((record.value() or b"").decode())
        assert len(found) == count
        reader.commit(asynchronous=False)
    finally:
        reader.close()
    return found


def committed(bootstrap: str, topic: str, group: str, partitions: int) -> list[int]:
    reader = consumer(bootstrap, group)
    try:
        asked = [TopicPartition(topic, number) for number in range(partitions)]
        return [one.offset for one in reader.committed(asked, timeout=60)]
    finally:
        reader.close()


def test_a_group_goes_on_where_it_was(server: Server, tmp_path: Path) -> None:
    ok("topic", "create", "clicks", "--partitions", "3", url=server.url)
    produced(server.kafka, "clicks", range(60))
    first = consumed(server.kafka, "clicks", "readers", 25)
    offsets = committed(server.kafka, "clicks", "readers", 3)
    backup = backed_up(server.url, tmp_path)
    produced(server.kafka, "clicks", range(60, 90))
    data = tmp_path / "data"
    with restored(backup, data, server, kafka_port=stable_port()) as copy:
        assert committed(copy.kafka, "clicks", "readers", 3) == offsets
        rest = consumed(copy.kafka, "clicks", "readers", 35)
        assert sorted(first + rest, key=int) == [str(number) for number in range(60)]
        produced(copy.kafka, "clicks", range(5))
        copy.assert_no_traceback()


def test_a_copy_calls_no_endpoint_until_its_subscriptions_are_resumed(
    server: Server, tmp_path: Path
) -> None:
    site = PushSite([server])
    sns, arn = site.sns[0], site.topic("calls")
    url, queue = site.queue("copies")
    raw = {"RawMessageDelivery": "true"}

    def subscribe(at: PushSite, protocol: str, to: str) -> str:
        fields = {"TopicArn": arn, "Protocol": protocol, "Endpoint": to, "Attributes": raw}
        return str(at.sns[0].subscribe(**fields, ReturnSubscriptionArn=True)["SubscriptionArn"])

    with Endpoint() as endpoint:
        subscribe(site, "sqs", queue)
        confirmed = subscribe(site, "http", endpoint.url("/confirmed"))
        ok("subscription", "confirm", confirmed, url=server.url)
        subscribe(site, "http", endpoint.url("/pending"))
        subscribe(site, "email", "ann@example.com")
        hook = site.webhook(arn, endpoint.url("/hook"))
        site.queue("failing")
        endpoint.plan("/retried", Step(status=503))
        failing = site.webhook("failing", endpoint.url("/retried"), mode="consume", retry=FAST)
        for message in ("1", "2"):
            sns.publish(TopicArn=arn, Message=message)
        ok("message", "send", "failing", "again", url=server.url)
        for path, count in (("/confirmed", 3), ("/pending", 1), ("/hook", 2), ("/retried", 2)):
            eventually(
                lambda path=path, count=count: len(bodies(endpoint, path)) >= count,  # type: ignore[misc]
                seconds=SECONDS_MAX,
                what=f"requests to {path}",
            )
        endpoint.plan("/hook", Step(hold=True))
        site.ask("POST", f"/subscriptions/{hook}/replay", {"earliest": True})
        eventually(
            lambda: len(bodies(endpoint, "/hook")) == 4, seconds=SECONDS_MAX, what="the replay"
        )
        backup = backed_up(server.url, tmp_path)
        for each in (hook, failing):
            ok("subscription", "pause", each, url=server.url)
        endpoint.plan("/retried", Step())
        endpoint.plan("/hook", Step())
        endpoint.release("/hook")
        eventually(
            lambda: not any((each["status"] or {}).get("in_flight") for each in shown(server)),
            seconds=SECONDS_MAX,
            what="the requests of the original end",
        )
        before = len(endpoint.ledger())

        def called() -> set[str]:
            return {each.target for each in endpoint.ledger()[before:]}

        with restored(backup, tmp_path / "paused", server) as copy:
            at_copy = PushSite([copy])
            paused = {each["endpoint"]: each["paused"] for each in shown(copy)}
            assert paused.pop(queue) is None
            assert {*paused.values()} == {"restored"}
            at_copy.sns[0].publish(TopicArn=arn, Message="3")
            # Its queues have what the original's had, and get what is published to the copy.
            found = at_copy.received_bodies(url, lambda found: len(found) >= 3)
            assert sorted(found) == ["1", "2", "3"]
            subscribe(at_copy, "http", endpoint.url("/pending"))  # asks for a confirmation again
            ok("subscription", "resume", hook, url=copy.url)
            eventually(
                lambda: [each.body for each in endpoint.ledger()[before:]].count("3") == 1,
                seconds=SECONDS_MAX,
                what="a request of the copy",
            )
            assert called() == {"/hook"}
            ok("subscription", "resume", "--restored", url=copy.url)
            assert {each["paused"] for each in shown(copy)} == {None}
            eventually(
                lambda: called() == {"/hook", "/confirmed", "/retried"},
                seconds=SECONDS_MAX,
                what="requests of all",
            )
            copy.assert_no_traceback()
        count = len(bodies(endpoint, "/retried"))
        with restored(backup, tmp_path / "pushing", server, "--push") as copy:
            assert {each["paused"] for each in shown(copy)} == {None}
            eventually(
                lambda: len(bodies(endpoint, "/retried")) > count,
                seconds=SECONDS_MAX,
                what="a retry of the copy",
            )
            copy.assert_no_traceback()


def shown(server: Server) -> list[Any]:
    """All subscriptions with their status."""
    reply = PushSite([server]).ask("GET", "/subscriptions?status=true")
    return list(reply["subscriptions"])


def test_ctrl_c_leaves_nothing_that_looks_like_a_backup(server: Server, tmp_path: Path) -> None:
    sqs = client(server.url, attempts=5)
    url = sqs.create_queue(QueueName="large")["QueueUrl"]
    for _ in range(8):
        sqs.send_message(QueueUrl=url, MessageBody="x" * 200_000)
    process = subprocess.Popen(
        [penstock_command(), "backup", "create", "--to", str(tmp_path), "--rate", "10KiB"],
        env={**os.environ, "PENSTOCK_ENDPOINT": server.url},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        eventually(lambda: list(tmp_path.rglob("*.log")), seconds=SECONDS_MAX, what="a file")
        assert ok("backup", "list", str(tmp_path)).lines == []
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=120)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == ExitCode.INTERRUPTED
    assert "Traceback" not in told
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_in_use_and_a_changed_backup_are_refused(
    server: Server, tmp_path: Path
) -> None:
    backup = backed_up(server.url, tmp_path)
    refused = penstock("backup", "restore", str(backup), "--data", str(server.data))
    assert refused.code == ExitCode.CONFLICT
    assert "not empty" in refused.err
    victim = max(backup.rglob("*.log"), key=lambda file: file.stat().st_size)
    victim.write_bytes(victim.read_bytes()[:-1])
    found = penstock("backup", "verify", str(backup))
    assert found.code == ExitCode.UNHEALTHY
    assert found.lines[0]["file"] == victim.relative_to(backup).as_posix()
    data = tmp_path / "data"
    refused = penstock("backup", "restore", str(backup), "--data", str(data))
    assert refused.code == ExitCode.FAILED
    assert victim.name in refused.err
    assert {file.name for file in data.iterdir()} <= {"lock"}, "nothing half done is left"


def test_what_workers_have_is_restored_to_one_process(tmp_path: Path) -> None:
    """Their metadata is another process, and each of them has a part of the partitions."""
    with Server(tmp_path / "old", arguments=("--workers", "2"), partitions=4) as workers:
        sqs = client(workers.url, attempts=5)
        path = str(sqs.create_queue(QueueName="shared")["QueueUrl"]).removeprefix(workers.url)
        sent = {
            sqs.send_message(QueueUrl=workers.url + path, MessageBody=str(number))["MessageId"]
            for number in range(40)
        }
        backup = backed_up(workers.url, tmp_path / "backups")
        with restored(backup, tmp_path / "new", workers) as copy:
            assert drained(client(copy.url), copy.url + path) == sent
            copy.assert_no_traceback()


@pytest.mark.skipif(LACKING is not None, reason=str(LACKING))
def test_a_cluster_is_restored_to_one_node_and_to_a_fresh_cluster(tmp_path: Path) -> None:
    with Endpoint() as endpoint:
        check_cluster(tmp_path, endpoint)


def check_cluster(tmp_path: Path, endpoint: Endpoint) -> None:
    master = "c2l4dGVlbiBieXRlcyBhbmQgc2l4dGVlbiBtb3JlIGE="
    env = {"PENSTOCK_MASTER_KEY": master}
    with PenstockCluster(tmp_path / "old", env=env) as cluster:
        path = made(cluster, "spread")
        ok("topic", "create", "clicks", "--partitions", "3", url=cluster.nodes[1].url)
        produced(cluster.bootstrap, "clicks", range(60))
        first = consumed(cluster.bootstrap, "clicks", "readers", 20)
        site = PushSite(list(cluster.nodes.values()))
        arn = site.topic("calls", 3)
        fields = {"Endpoint": site.queue("copies")[1], "Attributes": {"RawMessageDelivery": "true"}}
        site.sns[1].subscribe(TopicArn=arn, Protocol="sqs", **fields)
        site.webhook(arn, endpoint.url("/hook"))
        site.publish(arn, 30)
        eventually(lambda: has_all(endpoint, "/hook", 30), seconds=SECONDS_MAX, what="all requests")
        sender = Sender([node.url for node in cluster.nodes.values()], path, attempts=5)
        sender.start()
        try:
            sender.wait_for(60)
            # Epochs that batches have been written in: leaders change once.
            cluster.nodes[3].restart()
            sender.wait_for(60)
            before = set(sender.answered)
            backup = backed_up(cluster.nodes[2].url, tmp_path / "backups")
            sender.wait_for(5)
            until_then = set(sender.answered)
            sender.wait_for(20)
        finally:
            sender.end()
        for node in cluster.nodes.values():
            node.assert_no_traceback()
    late = sender.answered - until_then
    shown = ok("backup", "list", str(tmp_path / "backups")).lines
    assert shown[0]["nodes"] == [1, 2, 3]

    alone = tmp_path / "alone"
    ok("backup", "restore", str(backup), "--data", str(alone))
    with Server(alone, env=env, kafka_port=stable_port()) as server:
        check(server.url, server.kafka, path, before, late, first)
        server.assert_no_traceback()

    with PenstockCluster(tmp_path / "new", nodes=0, env=env) as fresh:
        etcd = ",".join(fresh.etcd.endpoints)
        into = ("--data", str(tmp_path / "new" / "n1"), "--node", "1", "--etcd", etcd)
        ok("backup", "restore", str(backup), *into)
        for number in (1, 2, 3):
            fresh.add(number)
        one = fresh.nodes[3]
        eventually(lambda: is_healthy(one.url), seconds=SECONDS_MAX, what="three replicas")
        check(one.url, fresh.bootstrap, path, before, late, first)
        told = ok("cluster", "status", url=one.url).json
        assert told["level"]["in_force"] == LEVEL_MAX
        check_push(PushSite(list(fresh.nodes.values())), arn, endpoint)
        again = penstock(
            "backup", "restore", str(backup), "--data", str(tmp_path / "n4"), "--node", "4",
            "--etcd", etcd,
        )  # fmt: skip
        assert again.code == ExitCode.CONFLICT
        for node in fresh.nodes.values():
            node.assert_no_traceback()


def is_healthy(url: str) -> bool:
    return penstock("cluster", "status", env={"PENSTOCK_ENDPOINT": url}).code == 0


def check_push(site: PushSite, arn: str, endpoint: Endpoint) -> None:
    """The copy's queues get messages; its endpoints do when an operator resumes them."""
    before = len(bodies(endpoint, "/hook"))
    site.publish(arn, 30, start=30)
    path = "http://any/000000000000/copies"
    found = site.received_bodies(path, lambda found: len(found) >= 60)
    assert sorted(found, key=int) == [str(number) for number in range(60)]
    assert {each["paused"] for each in shown(site.servers[2])} == {None, "restored"}
    assert len(bodies(endpoint, "/hook")) == before
    ok("subscription", "resume", "--restored", url=site.servers[1].url)
    eventually(lambda: has_all(endpoint, "/hook", 60), seconds=SECONDS_MAX, what="all requests")
    assert len(bodies(endpoint, "/hook")) == before + 30


def check(
    url: str, bootstrap: str, path: str, before: set[str], late: set[str], first: list[str]
) -> None:
    """Everything from before the backup, and nothing from after it; and it goes on."""
    sqs = client(url, attempts=5)
    found = drained(sqs, url + path)
    assert before <= found
    assert not found & late
    sent = sqs.send_message(QueueUrl=url + path, MessageBody="more")["MessageId"]
    assert drained(sqs, url + path) == {sent}
    rest = consumed(bootstrap, "clicks", "readers", 40)
    assert sorted(first + rest, key=int) == [str(number) for number in range(60)]
    produced(bootstrap, "clicks", range(5))
