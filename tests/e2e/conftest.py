from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.server import NotAvailable
from tests.harness.kafka_tools import KafkaTools

TEST_SECONDS_MAX = 900  # of several waits on a busy machine; only a hang takes longer


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        is_ours = Path(__file__).parent in item.path.parents
        if is_ours and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_SECONDS_MAX))


@pytest.fixture(scope="session")
def kafka_tools() -> Iterator[KafkaTools]:
    try:
        tools = KafkaTools()
    except NotAvailable as reason:
        pytest.skip(f"Apache Kafka's tools: {reason}")
    with tools:
        yield tools
