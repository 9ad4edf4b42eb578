from collections.abc import Iterator

import pytest
from benchmarks.server import NotAvailable
from tests.harness.kafka_tools import KafkaTools


@pytest.fixture(scope="session")
def kafka_tools() -> Iterator[KafkaTools]:
    try:
        tools = KafkaTools()
    except NotAvailable as reason:
        pytest.skip(f"Apache Kafka's tools: {reason}")
    with tools:
        yield tools
