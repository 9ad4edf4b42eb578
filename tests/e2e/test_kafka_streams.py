"""Kafka Streams 4.3 on three nodes, exactly-once: two instances count words and join two streams
while an instance, the group coordinator and a partition leader are killed. All counts are exact."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from benchmarks.server import NotAvailable
from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from tests.e2e.test_cluster_cli import healthy
from tests.e2e.test_cluster_kafka import made
from tests.e2e.test_cluster_shares import coordinator, leaders, set_config
from tests.harness.cluster import PenstockCluster
from tests.harness.etcd import LACKING
from tests.harness.kafka_tools import KafkaTools
from tests.harness.patience import eventually
from tests.harness.server import stable_port
from tests.harness.streams_app import StreamsApp, compile_app

pytestmark = [
    pytest.mark.slow,
    pytest.mark.compat,
    pytest.mark.timeout(600),
    pytest.mark.skipif(LACKING is not None, reason=str(LACKING)),
]

PARTITIONS = 4
WORDS = [f"word-{number}" for number in range(20)]
SECONDS_MAX = 200.0  # on a busy machine a classic rebalance after a kill took 100 s
TOPICS = ("lines", "orders", "payments", "counted", "paid")
PAUSE_SECONDS = 0.1
# Faults come quickly after one another: a member that is gone must be noticed soon.
GROUP_CONFIGS = {
    "streams.session.timeout.ms": "6000",
    "streams.heartbeat.interval.ms": "1000",
    "streams.num.standby.replicas": "1",
    "streams.initial.rebalance.delay.ms": "3000",
}
CLASSIC = {
    "session.timeout.ms": "6000",
    "heartbeat.interval.ms": "1000",
    "num.standby.replicas": "1",
}


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classes")
    try:
        compile_app(folder)
    except NotAvailable as reason:
        pytest.skip(f"Kafka Streams: {reason}")
    return folder


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PenstockCluster]:
    with PenstockCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        healthy(cluster)
        yield cluster


class Input:
    """Writes lines, orders and payments until it is told to stop; each record once."""

    def __init__(self, bootstrap: str, app: str) -> None:
        self._app = app
        self._producer: Any = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5}
        )
        self._is_over = threading.Event()
        self._errors: list[KafkaError] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.words: Counter[str] = Counter()
        self.orders = 0
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._is_over.wait(PAUSE_SECONDS):
            word, other = WORDS[number % len(WORDS)], WORDS[number * 7 % len(WORDS)]
            self.words.update((word, other))
            self._send("lines", f"{number}", f"{word} {other}")
            self._send("orders", f"order-{number}", f"{number}")
            self._send("payments", f"order-{number}", f"{number}")
            number += 1
        self.orders = number

    def _send(self, topic: str, key: str, value: str) -> None:
        self._producer.produce(f"{self._app}-{topic}", value, key, on_delivery=self._told)
        self._producer.poll(0)

    def _told(self, error: KafkaError | None, _message: object) -> None:
        if error is not None:
            self._errors.append(error)

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()
        assert self._producer.flush(SECONDS_MAX) == 0
        assert not self._errors, self._errors[0]


class Output:
    """Reads what the application has committed."""

    def __init__(self, bootstrap: str, app: str) -> None:
        self._consumer: Any = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"{app}-reader",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
            }
        )
        self._consumer.assign(
            [
                TopicPartition(f"{app}-{name}", partition, 0)
                for name in ("counted", "paid")
                for partition in range(PARTITIONS)
            ]
        )
        self.counts: dict[str, list[int]] = {}
        self.paid: list[tuple[str, str]] = []
        self.total = 0

    def read(self) -> int:
        """What is there now; returns how many words were counted so far."""
        while True:
            messages = self._consumer.consume(500, timeout=0.2)
            for message in messages:
                assert message.error() is None, message.error()
                key, value = message.key().decode(), message.value().decode()
                if message.topic().endswith("-counted"):
                    self.counts.setdefault(key, []).append(int(value))
                    self.total += 1
                else:
                    self.paid.append((key, value))
            if len(messages) < 500:
                return self.total

    def close(self) -> None:
        self._consumer.close()


def instances(
    cluster: PenstockCluster, classes: Path, folder: Path, app: str, configs: dict[str, str]
) -> list[StreamsApp]:
    return [
        StreamsApp(
            classes,
            folder / f"state-{number}",
            bootstrap=cluster.bootstrap,
            app=app,
            configs={
                "num.stream.threads": "2",
                "application.server": f"127.0.0.1:{stable_port()}",
                **configs,
            },
        )
        for number in range(2)
    ]


def running(apps: list[StreamsApp]) -> None:
    eventually(
        lambda: all(app.is_running for app in apps), seconds=SECONDS_MAX, what="all instances run"
    )


@pytest.mark.faults
@pytest.mark.faults_only
@pytest.mark.parametrize("protocol", ["streams", "classic"])
def test_counts_are_exact_after_three_kills(
    cluster: PenstockCluster, classes: Path, tmp_path: Path, protocol: str
) -> None:
    app = f"app-{protocol}"
    for name in TOPICS:
        made(cluster, f"{app}-{name}", partitions=PARTITIONS)
    configs = {"group.protocol": protocol}
    if protocol == "streams":
        for name, value in GROUP_CONFIGS.items():
            assert set_config(cluster.nodes[1], app, name, value) == 0
    else:
        configs |= CLASSIC
    with ExitStack() as stack:
        apps = instances(cluster, classes, tmp_path, app, configs)
        for each in apps:
            stack.enter_context(each)
        written = Input(cluster.bootstrap, app)
        stack.callback(written.stop)
        output = Output(cluster.bootstrap, app)
        stack.callback(output.close)
        running(apps)
        all_words_counted(written, output)
        apps[0].kill()
        all_words_counted(written, output)  # the other instance has taken over all tasks
        apps[0].start()
        running(apps)
        check_endpoints(apps)
        kill_and_restart(cluster, coordinator(cluster, app), written, output)
        kill_and_restart(cluster, leaders(cluster, f"{app}-counted")[0], written, output)
        written.stop()
        all_was_done(written, output)
        assert [each.close() for each in apps] == [0, 0]
        output.read()
    check_exact(written, output)


def all_was_done(written: Input, output: Output) -> None:
    words, orders = sum(written.words.values()), written.orders
    eventually(
        lambda: output.read() >= words and len(output.paid) >= orders,
        seconds=SECONDS_MAX,
        what="all words are counted and all orders are joined",
    )


def check_exact(written: Input, output: Output) -> None:
    """Each word was counted once for each time it was written, each order paid once."""
    assert {word: sorted(found) for word, found in output.counts.items()} == {
        word: list(range(1, count + 1)) for word, count in written.words.items()
    }
    orders = [(f"order-{number}", f"{number}+{number}") for number in range(written.orders)]
    assert sorted(output.paid) == sorted(orders)


def kill_and_restart(cluster: PenstockCluster, number: int, written: Input, output: Output) -> None:
    node = cluster.nodes[number]
    node.kill()
    all_words_counted(written, output)
    node.start()
    healthy(cluster)


def all_words_counted(written: Input, output: Output) -> None:
    """Wait until the application has counted a line for each word that is written from now on: all
    tasks work, those of a killed instance too, and the next kill interrupts them."""
    wanted = {word: written.words[word] + 1 for word in WORDS}

    def is_so() -> bool:
        output.read()
        return all(len(output.counts.get(word, ())) >= count for word, count in wanted.items())

    eventually(is_so, seconds=SECONDS_MAX, what="every new word is counted")


def check_endpoints(apps: list[StreamsApp]) -> None:
    """Wait until each instance knows which partitions the other one has."""
    for each in apps:
        eventually(
            lambda each=each: (  # type: ignore[misc]
                each.ask("m", "metadata ", seconds=SECONDS_MAX).count("topicPartitions=[app-") == 2
            ),
            seconds=SECONDS_MAX,
            what="both instances and their partitions are known",
        )


def test_kafka_streams_groups_shows_resets_and_deletes_a_group(
    cluster: PenstockCluster, kafka_tools: KafkaTools, classes: Path, tmp_path: Path
) -> None:
    app = "shown"
    for name in TOPICS:
        made(cluster, f"{app}-{name}", partitions=PARTITIONS)
    assert set_config(cluster.nodes[1], app, "streams.initial.rebalance.delay.ms", "0") == 0
    (instance, _) = instances(cluster, classes, tmp_path, app, {"group.protocol": "streams"})
    ask = partial(kafka_tools.run, "streams.StreamsGroupCommand", at=cluster.bootstrap)
    with ExitStack() as stack:
        stack.enter_context(instance)
        written = Input(cluster.bootstrap, app)
        stack.callback(written.stop)
        output = Output(cluster.bootstrap, app)
        stack.callback(output.close)
        running([instance])
        all_words_counted(written, output)
        written.stop()
        all_was_done(written, output)
        check_exact(written, output)
        assert app in ask("--list").split()
        assert [app, "Stable"] in [line.split() for line in ask("--list", "--state").splitlines()]
        state = ask("--describe", "--group", app, "--state").splitlines()
        assert state[-1].split()[0] == app, state
        assert state[-1].split()[-2:] == ["Stable", "2"], "two threads are two members"
        members = ask("--describe", "--group", app, "--members", "--verbose")
        assert members.count("ACTIVE") >= 2, "every thread has tasks"
        shown = ask("--describe", "--group", app, "--offsets", "--verbose")
        rows = [line.split() for line in shown.splitlines() if f"{app}-lines" in line.split()]
        assert len(rows) == PARTITIONS, shown
        assert {row[-1] for row in rows} == {"0"}, "no lag"
        assert "is not EMPTY" in ask("--delete", "--group", app, code=None)
        assert instance.close() == 0
    lines = f"{app}-lines"
    assert sum(committed(cluster, app, lines)) == written.orders, "a line was read for each order"
    reset = ("--reset-offsets", "--group", app, "--input-topic", lines, "--to-earliest")
    assert new_offsets(ask(*reset, "--dry-run"), lines) == [0] * PARTITIONS
    assert sum(committed(cluster, app, lines)) == written.orders, "a dry run changes nothing"
    assert new_offsets(ask(*reset, "--execute"), lines) == [0] * PARTITIONS
    assert committed(cluster, app, lines) == [0] * PARTITIONS
    ask("--delete-offsets", "--group", app, "--input-topic", f"{app}-orders")
    assert committed(cluster, app, f"{app}-orders") == [OFFSET_INVALID] * PARTITIONS
    assert sum(committed(cluster, app, f"{app}-payments")) == written.orders
    ask("--delete", "--group", app)
    assert app not in ask("--list").split()


def committed(cluster: PenstockCluster, app: str, topic: str) -> list[int]:
    """Committed offsets of all partitions, by OffsetFetch."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(app, partitions)])
    return [each.offset for each in asked[app].result(SECONDS_MAX).topic_partitions]


def new_offsets(said: str, topic: str) -> list[int]:
    """New offsets that the tool tells, in the order of partitions."""
    rows = [line.split() for line in said.splitlines()]
    return [int(row[3]) for row in sorted(rows) if row[1:2] == [topic]]
