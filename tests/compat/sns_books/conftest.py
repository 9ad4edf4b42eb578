"""The shared server in development mode, its SNS client, and a reader of the outbox."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest
from botocore.config import Config
from confluent_kafka import Consumer, TopicPartition
from tests.compat.conftest import CREDENTIALS, REGION
from tests.harness.server import Server

READ_SECONDS_MAX = 60.0

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("penstock")
    with Server(folder, fsync="never", kafka_port=0) as running:
        yield running
        assert running.stop() == 0, running.stderr_tail()
        running.assert_no_traceback()


@pytest.fixture(scope="session")
def sns(server: Server) -> Iterator[Any]:
    config = Config(retries={"max_attempts": 0, "mode": "standard"}, read_timeout=60)
    client = boto3.client(
        "sns", endpoint_url=server.url, region_name=REGION, config=config, **CREDENTIALS
    )
    yield client
    client.close()


@pytest.fixture
def name() -> str:
    return f"book-{next(_numbers)}"


@pytest.fixture
def application(sns: Any, name: str) -> str:
    attributes = {"PlatformCredential": "secret"}
    reply = sns.create_platform_application(Name=name, Platform="GCM", Attributes=attributes)
    return str(reply["PlatformApplicationArn"])


@pytest.fixture
def device(sns: Any, application: str) -> str:
    reply = sns.create_platform_endpoint(PlatformApplicationArn=application, Token="token")
    return str(reply["EndpointArn"])


@pytest.fixture
def outbox(server: Server) -> Iterator[Callable[[str], list[dict[str, Any]]]]:
    """Returns a function that reads the events of one endpoint from the topic ``__outbox``."""
    settings = {
        "bootstrap.servers": server.kafka,
        "group.id": "outbox-reader",
        "enable.auto.commit": False,
    }
    consumer = Consumer(settings)

    def read(endpoint: str) -> list[dict[str, Any]]:
        partition = TopicPartition("__outbox", 0, 0)
        _, end = consumer.get_watermark_offsets(partition, timeout=READ_SECONDS_MAX)
        consumer.assign([partition])
        events = []
        for _ in range(end):
            record = consumer.poll(READ_SECONDS_MAX)
            assert record is not None, "the outbox ends early"
            assert record.error() is None, record.error()
            if record.key() == endpoint.encode():
                events.append(json.loads(record.value() or b""))
        return events

    yield read
    consumer.close()
