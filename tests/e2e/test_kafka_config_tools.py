"""Apache Kafka's tools for configs, quotas and client metrics, against three nodes."""

from __future__ import annotations

import pytest
from tests.harness.etcd import LACKING
from tests.harness.kafka_site import Site
from tests.harness.patience import eventually

pytestmark = [
    pytest.mark.slow,
    pytest.mark.compat,
    pytest.mark.skipif(LACKING is not None, reason=str(LACKING)),
]
CONFIGS = "ConfigCommand"


def described(site: Site, *of: str, at: int = 1) -> str:
    return site.tool(CONFIGS, *of, "--describe", at=at)


def altered(site: Site, *what: str, at: int = 1, code: int = 0) -> str:
    return site.tool(CONFIGS, *what, at=at, code=code)


@pytest.mark.parametrize(
    ("of", "config", "at"),
    [
        (("--entity-type", "brokers", "--entity-name", "2"), "log.retention.ms=5000000", 2),
        (("--entity-type", "brokers", "--entity-default"), "log.roll.ms=700000", 1),
        (("--broker-defaults",), "log.cleaner.threads=2", 3),
        (("--entity-type", "broker-loggers", "--entity-name", "3"), "penstock.frontend=DEBUG", 3),
        (("--entity-type", "topics", "--entity-name", "tuned"), "compression.gzip.level=3", 2),
        (("--entity-type", "clients", "--entity-name", "app"), "producer_byte_rate=5000.0", 1),
        (("--entity-type", "users", "--entity-name", "ann"), "consumer_byte_rate=6000.0", 2),
        (("--entity-type", "users", "--entity-default"), "request_percentage=50.0", 3),
        (("--entity-type", "ips", "--entity-name", "10.0.0.1"), "connection_creation_rate=7.0", 1),
        (("--entity-type", "client-metrics", "--entity-name", "m"), "interval.ms=1000", 2),
    ],
    ids=lambda value: " ".join(value[1::2]) if isinstance(value, tuple) else "",
)
def test_configs_are_set_described_and_deleted(
    site: Site, of: tuple[str, ...], config: str, at: int
) -> None:
    if "topics" in of:
        site.tool("TopicCommand", "--create", "--if-not-exists", "--topic", "tuned")
    name, _, value = config.partition("=")
    value = value.removesuffix(".0") if name.endswith("_byte_rate") else value
    said = altered(site, *of, "--alter", "--add-config", f"{name}={value}", at=at)
    assert "Completed updating" in said

    def is_shown() -> bool:
        return config in described(site, *of, at=at)

    eventually(is_shown, seconds=30, what=f"{config} is shown")
    altered(site, *of, "--alter", "--delete-config", name, at=at)
    eventually(lambda: not is_shown(), seconds=30, what=f"{config} is gone")


def test_client_metrics_are_listed(site: Site) -> None:
    command = "ClientMetricsCommand"
    site.tool(command, "--alter", "--name", "sub", "--interval", "2000", "--metrics", "org.")
    assert "sub" in site.tool(command, "--list", at=2)
    said = site.tool(command, "--describe", "--name", "sub", at=3)
    assert "interval.ms=2000" in said
    site.tool(command, "--delete", "--name", "sub")
    eventually(
        lambda: "sub" not in site.tool(command, "--list", at=2), seconds=30, what="it is gone"
    )


def test_a_read_only_config_is_refused_in_the_words_of_kafka(site: Site) -> None:
    of = ("--entity-type", "brokers", "--entity-name", "1")
    said = altered(site, *of, "--alter", "--add-config", "log.dirs=/x", code=1)
    assert "Cannot update these configs dynamically: [log.dirs]" in said
