"""The client of the Kafka listener: versions agreed upon, refusals told, addresses checked."""

from collections.abc import Iterator

import pytest
from tests.unit.cli.kafka_endpoint import KafkaEndpoint

from penstock.cli.clients.kafka import Kafka, connected, failing, refused
from penstock.cli.terminal.failure import ExitCode, Failure
from penstock.net.kafka_client.client import LATEST, Place
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated import list_offsets

LIST_OFFSETS = 2


@pytest.fixture
def server() -> Iterator[KafkaEndpoint]:
    made = KafkaEndpoint()
    yield made
    made.close()


@pytest.fixture
def kafka(server: KafkaEndpoint) -> Iterator[Kafka]:
    made = Kafka(server.address, timeout_s=5.0)
    yield made
    made.close()


def ends(request: list_offsets.ListOffsetsRequest) -> list_offsets.ListOffsetsResponse:
    return list_offsets.ListOffsetsResponse(
        topics=[
            list_offsets.ListOffsetsTopicResponse(
                topic.name,
                [
                    list_offsets.ListOffsetsPartitionResponse(
                        part.partition_index, 0, -1, 10 + part.partition_index, 0
                    )
                    for part in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def test_the_newest_version_that_both_speak_is_used(server: KafkaEndpoint, kafka: Kafka) -> None:
    server.version_max[3] = 9
    kafka.metadata()
    assert [(name, version) for name, version, _ in server.asked] == [
        ("ApiVersions", 0),
        ("Metadata", 9),
    ]


def test_an_api_that_is_not_served_is_named(kafka: Kafka) -> None:
    with pytest.raises(Failure, match="no version of DescribeConfigs"), failing():
        kafka.call(32, None)


def test_offsets_are_asked_of_the_leader(server: KafkaEndpoint, kafka: Kafka) -> None:
    server.topics["t"] = 2
    server.answers[LIST_OFFSETS] = ends
    places = [Place("t", 0), Place("t", 1)]
    found = kafka.offsets(dict.fromkeys(places, LATEST))
    assert found == {Place("t", 0): 10, Place("t", 1): 11}


def test_an_unknown_topic_is_not_found(kafka: Kafka) -> None:
    with pytest.raises(Failure) as failed, failing("cannot show topic 'nope'"):
        kafka.topic("nope")
    assert failed.value.what == "cannot show topic 'nope'"
    assert failed.value.exit_code is ExitCode.NOT_FOUND
    assert "UNKNOWN_TOPIC_OR_PARTITION" in failed.value.why


def test_a_server_that_is_gone_is_unreachable(server: KafkaEndpoint) -> None:
    server.close()
    kafka = Kafka(server.address, timeout_s=2.0)
    with pytest.raises(Failure, match="cannot reach") as failed, failing():
        kafka.metadata()
    assert failed.value.exit_code is ExitCode.UNREACHABLE


def test_refusals_become_exit_codes() -> None:
    assert refused("x", ErrorCode.TOPIC_ALREADY_EXISTS).exit_code is ExitCode.CONFLICT
    assert refused("x", ErrorCode.GROUP_ID_NOT_FOUND).exit_code is ExitCode.NOT_FOUND
    assert refused("x", ErrorCode.LEADER_NOT_AVAILABLE).exit_code is ExitCode.UNREACHABLE
    assert refused("x", ErrorCode.INVALID_CONFIG, "No.").why == "No. (INVALID_CONFIG)"
    assert refused("x", 4_242).why == "code 4242"


def test_addresses() -> None:
    for address in ("host:1", "[::1]:9092", "a:1,b:2"):
        Kafka(address, timeout_s=1.0).close()
    for wrong in ("host", ":1", "host:", "host:0", "host:65536", "http://host:x"):
        with pytest.raises(Failure, match="is not a valid address"):
            Kafka(wrong, timeout_s=1.0)


def test_a_log_in_uses_the_key_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "PENSTOCK_KEY_ID"):
        monkeypatch.delenv(name, raising=False)
    listener = "sasl_plaintext://127.0.0.1:1"
    with pytest.raises(Failure, match="requires authentication") as failed:
        connected(listener, is_tls=False, timeout_s=1.0)
    assert failed.value.exit_code is ExitCode.DENIED
    monkeypatch.setenv("PENSTOCK_KEY_ID", "K")
    monkeypatch.setenv("PENSTOCK_SECRET", "s")
    kafka = connected(listener, is_tls=False, timeout_s=1.0)
    assert (kafka.address, kafka.security.protocol) == ("127.0.0.1:1", "SASL_PLAINTEXT")
    assert (kafka.security.user, kafka.security.password) == ("K", "s")
    with pytest.raises(Failure, match="is not a valid address"):
        connected("HTTP://127.0.0.1:1", is_tls=False, timeout_s=1.0)
