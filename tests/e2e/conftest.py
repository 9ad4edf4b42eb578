from collections.abc import Iterator

import pytest
from benchmarks.server import NotAvailable
from tests.harness.cluster import PenstockCluster
from tests.harness.kafka_site import Site
from tests.harness.kafka_tools import KafkaTools


@pytest.fixture(scope="session")
def kafka_tools() -> Iterator[KafkaTools]:
    try:
        tools = KafkaTools()
    except NotAvailable as reason:
        pytest.skip(f"Apache Kafka's tools: {reason}")
    with tools:
        yield tools


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, kafka_tools: KafkaTools) -> Iterator[Site]:
    with PenstockCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield Site(cluster, kafka_tools)
