"""One server with a Kafka listener per test process, names of their own for topics and groups, and
what the tests of all clients share: topics made to order, records read to the last one expected.

The server runs with ``--fsync never`` as that of the SQS tests does; what survives a restart is
asked of a server of the test's own (``own``)."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from tests.compat.conftest import sqs_client
from tests.compat.kafka.confluent import kinds
from tests.harness.server import Server, stable_port

SECONDS_MAX = 30.0

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def kafka_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Shared by all tests of this process; ends with a graceful stop and a clean log."""
    with Server(tmp_path_factory.mktemp("kafka"), fsync="never", kafka_port=0) as running:
        yield running
        assert running.stop() == 0, running.stderr_tail()
        running.assert_no_traceback()


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Server]:
    """A server of this test's own, with the default durability, on ports that outlive it."""
    server = Server(tmp_path / "data", port=stable_port(), kafka_port=stable_port())
    with server as running:
        yield running
        if running.is_running:
            assert running.stop() == 0, running.stderr_tail()
        running.assert_no_traceback()


@pytest.fixture(scope="session")
def bootstrap(kafka_server: Server) -> str:
    return kafka_server.kafka


@pytest.fixture(scope="session")
def kafka_sqs(kafka_server: Server) -> Iterator[Any]:
    """boto3 on the same server: the other view of the same topics."""
    client = sqs_client(kafka_server.url)
    yield client
    client.close()


@pytest.fixture(scope="session")
def name() -> Callable[..., str]:
    """``name()`` or ``name("group")``: for a topic or a group that no other test has."""

    def make(what: str = "topic") -> str:
        return f"{what}-{os.getpid()}-{next(_numbers)}"

    return make


@pytest.fixture(scope="session")
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


class MakeTopic(Protocol):
    """What the ``make_topic`` fixture is: configs go in as Kafka names them, with ``_`` for ``.``.
    Returns the name."""

    def __call__(self, partitions: int = 1, **configs: object) -> str: ...


@pytest.fixture
def make_topic(admin: AdminClient, name: Callable[..., str]) -> Iterator[MakeTopic]:
    made: list[str] = []

    def make(partitions: int = 1, **configs: object) -> str:
        topic = name()
        create_topic(admin, topic, partitions, **configs)
        made.append(topic)
        return topic

    yield make
    if made:
        for future in admin.delete_topics(made, request_timeout=SECONDS_MAX).values():
            try:
                future.result(SECONDS_MAX)
            except KafkaException as error:
                if error.args[0].name() != "UNKNOWN_TOPIC_OR_PART":
                    raise


def create_topic(admin: AdminClient, topic: str, partitions: int = 1, **configs: object) -> None:
    asked = kinds.NewTopic(
        topic,
        num_partitions=partitions,
        replication_factor=1,
        config={key.replace("_", "."): str(value) for key, value in configs.items()},
    )
    (future,) = admin.create_topics([asked], request_timeout=SECONDS_MAX).values()
    future.result(SECONDS_MAX)
