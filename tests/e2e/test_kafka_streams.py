"""Kafka Streams 4.3 on three nodes, exactly once: two instances count words and join two streams
while instances and the group's coordinator are killed. Afterwards every count is there once."""

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
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from tests.e2e.test_cluster_cli import healthy
from tests.e2e.test_cluster_kafka import made
from tests.e2e.test_cluster_shares import coordinator, set_config
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
SECONDS_MAX = 120.0
TOPICS = ("lines", "orders", "payments", "counted", "paid")
PAUSE_SECONDS = 0.02
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


def both_run(apps: list[StreamsApp]) -> None:
    eventually(
        lambda: all(app.is_running for app in apps), seconds=SECONDS_MAX, what="both instances run"
    )


@pytest.mark.parametrize("protocol", ["streams", "classic"])
def test_every_word_is_counted_once_whoever_is_killed(
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
        both_run(apps)
        for victim in (apps[0], apps[1], apps[0]):
            goes_on(output)
            victim.kill()
            goes_on(output)
            victim.start()
            both_run(apps)
        goes_on(output)
        node = cluster.nodes[coordinator(cluster, app)]
        node.kill()
        goes_on(output)
        node.start()
        both_run(apps)
        written.stop()
        words, orders = sum(written.words.values()), written.orders
        eventually(
            lambda: output.read() >= words and len(output.paid) >= orders,
            seconds=SECONDS_MAX,
            what="everything is counted and joined",
        )
        assert [each.close() for each in apps] == [0, 0]
        output.read()
    assert {word: sorted(found) for word, found in output.counts.items()} == {
        word: list(range(1, count + 1)) for word, count in written.words.items()
    }
    assert sorted(output.paid) == sorted((f"order-{n}", f"{n}+{n}") for n in range(orders))


def goes_on(output: Output) -> None:
    """Some records more come out, so that the next fault meets work under way."""
    wanted = output.read() + 100
    eventually(lambda: output.read() >= wanted, seconds=SECONDS_MAX, what="more words are counted")


def test_the_tool_shows_resets_and_deletes_a_group(
    cluster: PenstockCluster, kafka_tools: KafkaTools, classes: Path, tmp_path: Path
) -> None:
    app = "shown"
    for name in TOPICS:
        made(cluster, f"{app}-{name}", partitions=PARTITIONS)
    assert set_config(cluster.nodes[1], app, "streams.initial.rebalance.delay.ms", "0") == 0
    apps = instances(cluster, classes, tmp_path, app, {"group.protocol": "streams"})
    ask = partial(kafka_tools.run, "streams.StreamsGroupCommand", at=cluster.bootstrap)
    with ExitStack() as stack:
        for each in apps:
            stack.enter_context(each)
        both_run(apps)
        written = Input(cluster.bootstrap, app)
        output = Output(cluster.bootstrap, app)
        stack.callback(output.close)
        goes_on(output)
        written.stop()
        words = sum(written.words.values())
        eventually(lambda: output.read() == words, seconds=SECONDS_MAX, what="all are counted")
        assert app in ask("--list").split()
        assert ask("--describe", "--group", app, "--state").split()[-2:] == ["Stable", "4"]
        members = ask("--describe", "--group", app, "--members", "--verbose")
        assert members.count("ACTIVE") >= 4, "every thread has tasks"
        check_endpoints(apps)
        assert f"'{app}' is not EMPTY" in ask("--delete", "--group", app, code=None)
        assert [each.close() for each in apps] == [0, 0]
    offsets = ask("--describe", "--group", app, "--offsets")
    assert f"{app}-lines" in offsets
    place = ("--group", app, "--input-topic", f"{app}-lines")
    reset = ask("--reset-offsets", *place, "--to-earliest", "--execute")
    assert [line.split()[1:] for line in reset.splitlines() if f"{app}-lines" in line] == [
        [f"{app}-lines", str(partition), "0"] for partition in range(PARTITIONS)
    ]
    assert f"'{app}'" in ask("--delete", "--group", app)
    assert app not in ask("--list").split()


def check_endpoints(apps: list[StreamsApp]) -> None:
    """Each instance knows which partitions the other one has."""
    for each in apps:
        told = each.ask("m", "metadata ", seconds=SECONDS_MAX)
        assert told.count("127.0.0.1") >= 2, told
