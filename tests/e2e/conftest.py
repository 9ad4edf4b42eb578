import warnings
from collections.abc import Iterator

import pytest
from benchmarks.server import NotAvailable
from tests.harness.kafka_tools import KafkaTools

with warnings.catch_warnings():
    # kafka-python uses a function that Python 3.11 has deprecated when it is imported.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.admin  # noqa: F401


@pytest.fixture(scope="session")
def kafka_tools() -> Iterator[KafkaTools]:
    try:
        tools = KafkaTools()
    except NotAvailable as reason:
        pytest.skip(f"Apache Kafka's tools: {reason}")
    with tools:
        yield tools
